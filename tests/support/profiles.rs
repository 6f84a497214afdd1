//! Synthetic profiles, computed by a formula, for the charts.

use bilayer_measure::profile::{Point, Profile, Span, SpanKind, knee, recommend};

/// A machine and a model, in milliseconds per token.
pub struct Shape {
    pub name: &'static str,
    pub layers: u32,
    /// One layer on the CPU and on the GPU.
    pub layer: (f64, f64),
    /// The output head on both.
    pub head: (f64, f64),
    /// One transfer between the two.
    pub crossing: f64,
    /// One layer's memory, bytes.
    pub layer_bytes: u64,
    /// Number of layers that fit.
    pub fit: u32,
    pub predicted: bool,
    /// Whether numbers that do not fit were measured nevertheless.
    pub measured_beyond: bool,
    pub timeline: bool,
}

pub const SHAPES: [Shape; 4] = [
    Shape {
        name: "Llama-1B Q4_K_M",
        layers: 16,
        layer: (2.4, 0.62),
        head: (6.1, 1.3),
        crossing: 0.35,
        layer_bytes: 38 << 20,
        fit: 99,
        predicted: true,
        measured_beyond: true,
        timeline: true,
    },
    Shape {
        name: "Llama-70B Q4_K_M",
        layers: 80,
        layer: (11.2, 1.9),
        head: (14.0, 2.2),
        crossing: 0.6,
        layer_bytes: 490 << 20,
        fit: 46,
        predicted: true,
        measured_beyond: false,
        timeline: true,
    },
    // A software adapter, slower than the CPU.
    Shape {
        name: "demo",
        layers: 2,
        layer: (0.11, 0.9),
        head: (0.05, 0.31),
        crossing: 0.08,
        layer_bytes: 1 << 20,
        fit: 99,
        predicted: false,
        measured_beyond: true,
        timeline: false,
    },
    // Names from a file may contain anything.
    Shape {
        name: "</script><script>throw 'x'</script>\"'&amp;\u{1b}",
        layers: 31,
        layer: (5.0, 3.2),
        head: (11.0, 2.5),
        crossing: 2.4,
        layer_bytes: 130 << 20,
        fit: 24,
        predicted: true,
        measured_beyond: true,
        timeline: true,
    },
];

/// The profile of a shape.
pub fn profile(shape: &Shape) -> Profile {
    let mut points: Vec<Point> = Vec::new();
    for n in 0..=shape.layers + 1 {
        let point = point(shape, n, &points);
        points.push(point);
    }
    let (recommended, why) = recommend(&points);
    Profile {
        model: shape.name.to_owned(),
        parameters: u64::from(shape.layers) * shape.layer_bytes * 2,
        bytes: u64::from(shape.layers) * shape.layer_bytes,
        gpu: "Some Adapter <X> & Y".to_owned(),
        cpu: "avx512vnni".to_owned(),
        threads: 8,
        context: 4096,
        prompt_tokens: 512,
        streamed_prompt_tokens: None,
        rounds: 5,
        knee: knee(&points),
        recommended,
        why,
        timeline: if shape.timeline { timeline(shape, recommended) } else { Vec::new() },
        steps: Vec::new(),
        read_gbps: 41.7,
        curves: None,
        points,
    }
}

/// A small deterministic disturbance at each point, as a fraction.
fn noise(n: u32) -> f64 {
    (f64::from(n.wrapping_mul(2_654_435_761) >> 20) / 4096.0 - 0.5) * 0.03
}

fn point(shape: &Shape, n: u32, before: &[Point]) -> Point {
    let offloaded = f64::from(n.saturating_sub(1));
    let kept = f64::from(shape.layers) - offloaded;
    let head = if n == 0 { (shape.head.0, 0.0) } else { (0.0, shape.head.1) };
    let (cpu_ms, gpu_ms) = (kept * shape.layer.0 + head.0, offloaded * shape.layer.1 + head.1);
    let crossing_ms = if n == 0 { 0.0 } else { shape.crossing };
    let predicted = cpu_ms + gpu_ms + crossing_ms;
    let idle_ms = predicted * (0.02 + noise(n).abs());
    let fits = n <= shape.fit;
    let measured = fits || shape.measured_beyond;
    let or_nan = |value: f64| if measured { value } else { f64::NAN };
    let decode_ms = or_nan((predicted + idle_ms) * (1.0 + noise(n)));
    let alone = before.first().map_or(decode_ms, |p| p.decode_ms);
    let marginal = before.last().map(|p| p.decode_ms - decode_ms).filter(|saved| saved.is_finite());
    let split = shape.layers.saturating_sub(n.saturating_sub(1));
    let device = |on: bool| if on { "gpu" } else { "cpu" };
    let mut map = format!("out:{}", device(n > 0));
    if split < shape.layers {
        map += &format!(" {}-{split}:gpu", shape.layers - 1);
    }
    if split > 0 {
        map += &format!(" {}-0:cpu", split - 1);
    }
    Point {
        gpu_layers: n,
        map,
        decode_ms,
        predicted_decode_ms: shape.predicted.then_some(predicted * 0.98),
        prefill_tps: or_nan(20_000.0 / (cpu_ms + 0.2 * gpu_ms)),
        streamed_prefill_tps: None,
        predicted_prefill_tps: shape.predicted.then_some(21_000.0 / (cpu_ms + 0.2 * gpu_ms)),
        speedup: alone / decode_ms,
        marginal,
        cpu_ms: or_nan(cpu_ms),
        gpu_ms: or_nan(gpu_ms),
        crossing_ms: or_nan(crossing_ms),
        idle_ms: or_nan(idle_ms),
        expert_hit_rate: None,
        expected_expert_hit_rate: None,
        gpu_bytes: fits.then_some(u64::from(n) * shape.layer_bytes),
        gpu_held_bytes: shape.predicted.then_some(u64::from(n) * shape.layer_bytes / 100 * 99),
        fits,
    }
}

/// Five ops per layer, the CPU's first.
fn timeline(shape: &Shape, n: u32) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut now = 0.0;
    let mut add = |lane: &str, name: String, kind: SpanKind, start_us: f64, us: f64| {
        let bytes = if kind == SpanKind::Op { 20_000_000 } else { 0 };
        spans.push(Span { lane: lane.to_owned(), name, kind, start_us, us, bytes });
        start_us + us
    };
    let kept = shape.layers - n.saturating_sub(1).min(shape.layers);
    for layer in 0..shape.layers {
        let on_gpu = layer >= kept;
        let (lane, ms) = if on_gpu { ("gpu", shape.layer.1) } else { ("cpu", shape.layer.0) };
        if layer == kept {
            let handed = add("host", "submit".to_owned(), SpanKind::Submit, now, 60.0);
            let crossed = add(
                "host",
                "hidden states".to_owned(),
                SpanKind::Transfer,
                handed,
                shape.crossing * 1000.0,
            );
            add(
                "cpu",
                "wait for gpu".to_owned(),
                SpanKind::Wait,
                now,
                f64::from(n) * shape.layer.1 * 1000.0,
            );
            add("gpu", "idle".to_owned(), SpanKind::Idle, 0.0, now);
            now = crossed;
        }
        for (op, part) in
            [("norm", 0.02), ("attend", 0.2), ("qkv", 0.18), ("ffn </script>", 0.55), ("add", 0.05)]
        {
            now = add(lane, format!("{layer} {op}"), SpanKind::Op, now, ms * part * 1000.0);
        }
    }
    add("gpu", "head".to_owned(), SpanKind::Op, now, shape.head.1 * 1000.0);
    spans
}
