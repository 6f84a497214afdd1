//! Times of a model's layers on a device, measured on the device itself.
//!
//! Each device runs a stretch of layers larger than any cache (the weights of a single layer would be cached when read
//! repeatedly), one of these layers, and the head: with one token, a small batch, a short prompt, and a piece of a prompt. Layers are
//! weighted by their bytes. Times are wall-clock times, as in a session: clocks between kernels would delay them.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bilayer_engine::Error;
use bilayer_engine::session::Subject;
use bilayer_graph::{
    Backend, Exactness, Facts, Graph, Holding, Limits, MappedWeight, PAGE_TOKENS, Rows, SegmentId,
    SharedBytes, Span, StateSpan, Step, Weight,
};
use bilayer_scheduler::{
    BATCH_TOKENS, Cost, DeviceTimes, PROMPT_TOKENS, Placement, PlannedSegment, SHORT_TOKENS, cut,
    timed_tokens,
};

mod upload;

/// Bytes of weights in the stretch of layers: more than caches hold. A device that copies them is given fewer, since
/// every byte is loaded first.
const STRETCH_BYTES: u64 = 1536 << 20;
const STRETCH_COPIED_BYTES: u64 = 384 << 20;

/// Factor by which more may be loaded if much of a layer is not read for a token.
const STRETCH_LOADED: f64 = 4.0;

/// Maximum tokens of the piece of a prompt: the size of micro-batches if devices share a prompt.
const PIECE_TOKENS: usize = 128;

/// Position at which decode is timed.
pub const POSITION: usize = 96;

/// Duration of repetitions of one kind of step, and their minimum and maximum number.
const TIME: Duration = Duration::from_millis(250);
const REPEATS: std::ops::Range<usize> = 4..40;

/// The longest step of a single layer that is run to be timed.
const LONGEST: Duration = Duration::from_secs(1);

/// The place of the single layer among what is timed.
const ONE_LAYER: usize = 1;

/// Times one device: the head alone, one layer, and a stretch of layers, in turn. A layer's time is the difference
/// that more layers make, which separates the cost of submitting a segment.
///
/// # Errors
/// The device fails, or the file lacks a tensor.
pub fn device(subject: &Subject<'_>, backend: &mut dyn Backend) -> Result<DeviceTimes, Error> {
    let graph = subject.graph;
    let end = End::of(backend.facts());
    let bytes = sums(graph, |node| graph.matrix_bytes(node, 1));
    let held = sums(graph, |node| graph.matrix_bytes(node, usize::MAX));
    let layers = stretch(&bytes, &held, end);
    let parts = [&[][..], &layers[..1], &layers].map(|part| segments(graph, part, end));
    let most = timed_tokens(subject.limits.tokens);
    let pages = (POSITION + most.max(BATCH_TOKENS)).div_ceil(PAGE_TOKENS) + 1;
    let limits = Limits {
        tokens: most.max(BATCH_TOKENS),
        outputs: BATCH_TOKENS,
        sequences: 1,
        pages,
        page_entries: pages,
        states: 1,
        timings: false,
        check: false,
        ..subject.limits
    };
    let parts = load(subject, backend, parts, limits)?;
    let mut bench = Bench { graph, backend, parts, values: BTreeMap::new() };
    let before = bench.repeat(1, 1, TIME)?;
    let batch = low(bench.repeat(BATCH_TOKENS, BATCH_TOKENS, TIME / 2)?);
    let prompts = bench.prompts(most)?;
    // Repeated, since the load on the machine may have changed.
    let mut decode = bench.repeat(1, 1, TIME)?;
    decode.iter_mut().zip(before).for_each(|(all, before)| all.extend(before));
    let decode = low(decode);
    // A prompt is bound by compute, and most of its last layer is computed for the requested row only.
    let weights = sums(graph, |node| prompt_weights(graph, node));
    let apart = |walls, all: &[f64]| {
        let shares: Vec<f64> = layers.iter().map(|&layer| all[layer]).collect();
        Walls { walls, shares: &shares }.apart()
    };
    let (decode, batch) = (apart(decode, &bytes), apart(batch, &bytes));
    let apart_prompt = |of: Prompt| Prompt { tokens: of.tokens, walls: apart(of.walls, &weights) };
    let [short, piece, mut prompt] = prompts.map(apart_prompt);
    // The last layer's mixture has one row of a prompt, and says nothing about others.
    if prompt.tokens < most && end == End::First && graph.has_experts() {
        prompt = bench.longer(piece, weights[layers[0]], most)?;
    }
    let upload = upload::measured(subject, bench.backend, &layers, prompt, limits)?;
    bench.backend.reserve(&Holding::default())?;
    let per_token = |of: &Prompt<Apart>, ms: f64| Some(ms / of.tokens as f64);
    let cost = |of: &dyn Fn(&Apart) -> f64, of_prompt: &dyn Fn(&Apart) -> f64| Cost {
        decode_ms: of(&decode),
        batch_ms: Some(of(&batch)),
        short_ms: per_token(&short, of_prompt(&short.walls)),
        prefill_ms: per_token(&piece, of_prompt(&piece.walls)),
        prompt_ms: per_token(&prompt, of_prompt(&prompt.walls)),
    };
    let layer = |(bytes, weights): (&f64, &f64)| {
        cost(&|apart| apart.of_unit * bytes, &|apart| apart.of_unit * weights)
    };
    Ok(DeviceTimes {
        // Looking up table rows is negligible next to submitting the first segment.
        embedding: cost(&|_| 0.0, &|_| 0.0),
        layers: std::iter::zip(&bytes, &weights).map(layer).collect(),
        output: Cost {
            // Only the last token of a prompt needs it.
            short_ms: Some(short.walls.output / PROMPT_TOKENS as f64),
            prefill_ms: Some(piece.walls.output / PROMPT_TOKENS as f64),
            prompt_ms: Some(prompt.walls.output / PROMPT_TOKENS as f64),
            ..cost(&|apart| apart.output, &|_| 0.0)
        },
        segment: cost(&|apart| apart.segment, &|apart| apart.segment),
        upload,
    })
}

/// Times of a piece of a prompt.
#[derive(Clone, Copy, Debug)]
struct Prompt<T = [f64; 3]> {
    tokens: usize,
    walls: T,
}

/// Segments of some layers on a device; without layers, of the head.
fn segments(graph: &Graph, layers: &[usize], end: End) -> Vec<PlannedSegment> {
    let mut placement = Placement::single(graph.layers(), 0);
    placement.output = usize::from(layers.is_empty());
    placement.embedding = usize::from(end == End::First && !layers.is_empty());
    layers.iter().for_each(|&layer| placement.layers[layer] = 1);
    cut(graph, &placement).into_iter().filter(|segment| segment.device == 1).collect()
}

/// Loads the weights of all parts' segments and compiles them.
fn load(
    subject: &Subject<'_>,
    backend: &mut dyn Backend,
    parts: [Vec<PlannedSegment>; 3],
    limits: Limits,
) -> Result<[Vec<(PlannedSegment, SegmentId)>; 3], Error> {
    let graph = subject.graph;
    let nodes = parts.iter().flatten().flat_map(|part| &graph.nodes[part.nodes.clone()]);
    let ids: HashSet<_> = nodes.flat_map(|node| node.op.weights()).collect();
    let weights: Vec<&Weight> =
        graph.weights.iter().filter(|weight| ids.contains(&weight.id)).collect();
    let mapped: Vec<MappedWeight> =
        weights.iter().filter_map(|weight| subject.model.mapped(weight)).collect();
    backend.reserve(&Holding { weights: &weights, mapped: &mapped, ..Holding::default() })?;
    for segment in parts.iter().flatten() {
        backend.ready(&segment.segment(graph), limits)?;
    }
    for weight in weights {
        backend.load(weight, bytes_of(subject, weight)?)?;
    }
    let mut compiled = [const { Vec::new() }; 3];
    for (part, compiled) in parts.into_iter().zip(&mut compiled) {
        for segment in part {
            let id = backend.compile(&segment.segment(graph), limits)?;
            compiled.push((segment, id));
        }
    }
    Ok(compiled)
}

/// A weight's bytes in the file.
fn bytes_of(subject: &Subject<'_>, weight: &Weight) -> Result<SharedBytes, Error> {
    let file = subject.model.file();
    let missing = || bilayer_graph::Error::MissingTensor { name: weight.name.clone() };
    let tensor = file.tensor(&weight.name).ok_or_else(missing)?;
    Ok(file.bytes(tensor).slice(weight.range_in_tensor()))
}

/// Which layers a device is timed with: one that reads the file's map is the host and holds the first ones, after the
/// embedding; one that copies weights holds the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    First,
    Last,
}

impl End {
    fn of(facts: &Facts) -> End {
        if facts.copies_weights { End::Last } else { End::First }
    }

    /// Bytes of weights in the stretch.
    fn stretch_bytes(self) -> u64 {
        match self {
            End::First => STRETCH_BYTES,
            End::Last => STRETCH_COPIED_BYTES,
        }
    }
}

/// The layers that are timed on a device, at least two, starting from its end of the model. `bytes` are those that a
/// token reads of each layer, `held` all of them. Most experts are not read: layers are loaded until that would take too
/// long, even if the bytes read then fit in a cache.
fn stretch(bytes: &[f64], held: &[f64], end: End) -> Vec<usize> {
    let mut left = end.stretch_bytes() as f64;
    let mut room = STRETCH_LOADED * left;
    let mut layers = Vec::new();
    for at in 0..bytes.len() {
        let layer = if end == End::Last { bytes.len() - 1 - at } else { at };
        if layers.len() >= 2 && (left <= 0.0 || room <= 0.0) {
            break;
        }
        left -= bytes[layer];
        room -= held[layer];
        layers.push(layer);
    }
    layers
}

/// Times of the head, one layer and a stretch of layers, milliseconds.
struct Walls<'a> {
    walls: [f64; 3],
    /// Bytes, or other measures of their work, of the layers of the stretch, the single layer first.
    shares: &'a [f64],
}

/// The parts of these times, milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Apart {
    output: f64,
    of_unit: f64,
    segment: f64,
}

impl Walls<'_> {
    fn apart(&self) -> Apart {
        let [head, one, all] = self.walls;
        let (first, more) = (self.shares[0].max(1.0), self.shares[1..].iter().sum::<f64>());
        // With a single layer, its time cannot be separated from submission.
        let of_unit = if more > 0.0 { (all - one) / more } else { one / first };
        // A layer's time is at most the total, and not negative.
        let of_unit = of_unit.clamp(0.25 * all / (first + more), all / (first + more));
        let segment = (one - of_unit * first).max(0.0);
        Apart { output: (head - segment).max(0.0), of_unit, segment: segment.min(head) }
    }
}

/// The sum of a figure over the nodes of each layer.
fn sums(graph: &Graph, of: impl Fn(usize) -> f64) -> Vec<f64> {
    let mut sums = vec![0.0; graph.layers() as usize];
    for (number, node) in graph.nodes.iter().enumerate() {
        if let Some(layer) = node.layer {
            sums[layer as usize] += of(number);
        }
    }
    sums
}

/// Weights of a node's matrices that a token of a prompt uses, the last one excepted.
fn prompt_weights(graph: &Graph, node: usize) -> f64 {
    let op = &graph.nodes[node].op;
    if graph.rows(op.out()) == Rows::Outputs {
        return 0.0;
    }
    let sizes = op.matrices().iter().map(|&id| graph.weight(id));
    let weights: f64 = sizes.map(|weight| weight.rows as f64 * weight.cols as f64).sum();
    weights * graph.share(node, 1)
}

/// The time of each part on an otherwise idle machine: the first quartile of its runs.
fn low(walls: [Vec<f64>; 3]) -> [f64; 3] {
    walls.map(|mut walls| {
        walls.sort_by(f64::total_cmp);
        walls.get(walls.len() / 4).copied().unwrap_or(0.0)
    })
}

/// Segments ready to be timed.
struct Bench<'a> {
    graph: &'a Graph,
    backend: &'a mut dyn Backend,
    /// The head, one layer, a stretch of layers.
    parts: [Vec<(PlannedSegment, SegmentId)>; 3],
    /// Values by id, `[rows, width]`.
    values: BTreeMap<u32, Vec<f32>>,
}

impl Bench<'_> {
    /// Times of a short prompt, of a micro-batch, and of as many of up to `most` tokens in one step as do not take too long.
    fn prompts(&mut self, most: usize) -> Result<[Prompt; 3], Error> {
        let tokens = most.min(SHORT_TOKENS);
        let short = Prompt { tokens, walls: low(self.repeat(tokens, 1, TIME / 2)?) };
        let fits = |tokens: usize, of: &Prompt| {
            let each = of.walls.iter().sum::<f64>() / of.tokens as f64;
            tokens <= most && each * tokens as f64 <= TIME.as_secs_f64() * 1e3
        };
        let piece = match [PIECE_TOKENS, 64].into_iter().find(|&tokens| fits(tokens, &short)) {
            Some(tokens) => Prompt { tokens, walls: low(self.repeat(tokens, 1, TIME)?) },
            None => short,
        };
        let prompt = match most {
            tokens if tokens > piece.tokens && fits(tokens, &piece) => {
                Prompt { tokens, walls: low(self.repeat(tokens, 1, TIME / 2)?) }
            }
            _ => piece,
        };
        Ok([short, piece, prompt])
    }

    /// The times of more tokens in one step, of a mixture for which all layers would take too long: more rows have an expert in
    /// common, so that a token takes less. The single layer, whose share is given, is timed with them unless that takes too long
    /// too; others become as many times as slow as it does.
    fn longer(
        &mut self,
        piece: Prompt<Apart>,
        share: f64,
        tokens: usize,
    ) -> Result<Prompt<Apart>, Error> {
        let Apart { of_unit, segment, .. } = piece.walls;
        let layer = of_unit * share;
        let expected = (segment + layer) * tokens as f64 / piece.tokens as f64;
        if expected > LONGEST.as_secs_f64() * 1e3 || layer <= 0.0 {
            return Ok(piece);
        }
        self.step(ONE_LAYER, tokens, 1)?;
        let walls = [self.step(ONE_LAYER, tokens, 1)?, self.step(ONE_LAYER, tokens, 1)?];
        let longer = (walls[0].min(walls[1]) - segment).max(layer);
        Ok(Prompt { tokens, walls: Apart { of_unit: of_unit * longer / layer, ..piece.walls } })
    }

    /// Repeats steps of `tokens` tokens, the last `outputs` of which are requested, through each part in turn:
    /// milliseconds of each part without the first.
    fn repeat(
        &mut self,
        tokens: usize,
        outputs: usize,
        time: Duration,
    ) -> Result<[Vec<f64>; 3], Error> {
        (0..3).try_for_each(|part| self.step(part, tokens, outputs).map(|_| ()))?;
        let clock = self.backend.clock();
        let began = clock.now();
        let mut walls = [const { Vec::new() }; 3];
        while walls[0].is_empty()
            || (walls[0].len() < REPEATS.end && clock.since(began) < time)
            || (walls[0].len() < REPEATS.start && clock.since(began) < 4 * time)
        {
            for (part, walls) in walls.iter_mut().enumerate() {
                walls.push(self.step(part, tokens, outputs)?);
            }
        }
        Ok(walls)
    }

    /// One step through the segments of a part, milliseconds.
    fn step(&mut self, part: usize, tokens: usize, outputs: usize) -> Result<f64, Error> {
        self.step_with(part, tokens, outputs, &|_| Ok(()))
    }

    /// Like [`Bench::step`]; `between` is called after each submit.
    fn step_with(
        &mut self,
        part: usize,
        tokens: usize,
        outputs: usize,
        between: Between<'_>,
    ) -> Result<f64, Error> {
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let rows = tokens as u32;
        let first_position = if tokens == 1 { POSITION as u32 } else { 0 };
        let spans = [Span { first_row: 0, rows, first_position, first_page: 0 }];
        let count = (first_position as usize + tokens).div_ceil(PAGE_TOKENS);
        let pages: Vec<u32> = (0..count as u32).collect();
        let outputs: Vec<u32> = (rows - outputs as u32..rows).collect();
        let step = Step {
            tokens: &ids,
            spans: &spans,
            pages: &pages,
            outputs: &outputs,
            states: &[StateSpan { first_row: 0, rows, from: None, to: 0 }],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        let segments = std::mem::take(&mut self.parts[part]);
        let clock = self.backend.clock();
        let began = clock.now();
        for (segment, id) in &segments {
            for &input in &segment.inputs {
                let len = self.len(input, tokens, outputs.len());
                let values = self.values.entry(input.0).or_default();
                noise(values, len);
                self.backend.write_to(*id, input, values)?;
            }
            self.backend.submit(*id, &step)?;
            between(self.backend)?;
            for &output in &segment.outputs {
                let len = self.len(output, tokens, outputs.len());
                let values = self.values.entry(output.0).or_default();
                values.resize(len, 0.0);
                self.backend.read(output, values)?;
            }
        }
        let wall = clock.since(began).as_secs_f64() * 1e3;
        self.parts[part] = segments;
        Ok(wall)
    }

    fn len(&self, value: bilayer_graph::Value, tokens: usize, outputs: usize) -> usize {
        let rows = match self.graph.rows(value) {
            Rows::Tokens => tokens,
            Rows::Outputs => outputs,
        };
        rows * self.graph.width(value)
    }
}

/// What is done while a step runs.
type Between<'a> = &'a dyn Fn(&mut dyn Backend) -> Result<(), bilayer_graph::Error>;

/// Reproducible values between -1 and 1. Existing ones are unchanged.
fn noise(values: &mut Vec<f32>, len: usize) {
    if values.len() < len {
        values.extend((values.len()..len).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0));
    }
    values.truncate(len);
}

#[cfg(test)]
mod tests {
    use super::{Apart, End, Walls, stretch};

    #[test]
    fn walls_are_taken_apart() {
        // Submission takes 1, every 10 bytes of a layer 2, the head 5.
        let apart = |walls, shares: &[f64]| Walls { walls, shares }.apart();
        let found = apart([6.0, 3.0, 9.0], &[10.0, 20.0, 10.0]);
        assert_eq!(found, Apart { output: 5.0, of_unit: 0.2, segment: 1.0 });
        // A single layer; and noise that must not make times negative.
        let one = apart([6.0, 3.0, 3.0], &[10.0]);
        assert_eq!(one, Apart { output: 6.0, of_unit: 0.3, segment: 0.0 });
        let odd = apart([6.0, 3.0, 2.0], &[10.0, 10.0]);
        assert!(odd.of_unit > 0.0 && odd.segment >= 0.0 && odd.output >= 0.0, "{odd:?}");
    }

    #[test]
    fn two_layers_at_least_are_timed() {
        let mib = f64::from(1 << 20);
        let alike = |bytes: &[f64], end| stretch(bytes, bytes, end);
        assert_eq!(alike(&[600.0 * mib; 4], End::Last), [3, 2]);
        assert_eq!(alike(&[600.0 * mib; 4], End::First), [0, 1, 2]);
        assert_eq!(alike(&[mib; 3], End::Last), [2, 1, 0]);
        assert_eq!(alike(&[mib], End::Last), [0]);
        // A hundredth of the experts is read: loading two of many layers is enough.
        let (read, held) = ([10.0 * mib; 9], [1000.0 * mib; 9]);
        assert_eq!(stretch(&read, &held, End::Last), [8, 7]);
    }
}
