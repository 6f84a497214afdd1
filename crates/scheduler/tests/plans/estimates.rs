//! Estimated times: of each kernel the longer of reading and computing, pauses between them, submits and transfers.

use bilayer_graph::{Facts, Graph, Link, Recorder, Rows, Window};
use bilayer_quant::Type;
use bilayer_scheduler::{Basis, Cost, DeviceTimes, Machine, Times, Upload};

use crate::models::{
    F32, GIB, NETWORK, WIDTH, assert_close, attention, cost, dense, embedding, gpu, head, host,
    sparse,
};

/// A device that reads 10^6 bytes in a millisecond, and takes time for everything else.
fn device(tops: Option<f64>) -> Facts {
    let link = Link {
        upload_gbps: Some(0.5),
        download_gbps: Some(0.25),
        submit_us: 30.0,
        kernel_us: 20.0,
        wait_us: 50.0,
    };
    Facts { read_gbps: Some(1.0), tops, link, ..gpu(GIB) }
}

fn times(graph: &Graph, facts: Facts) -> DeviceTimes {
    let times = Times::estimated(graph, &Machine::new(vec![facts])).unwrap();
    assert_eq!(times.basis, Basis::Estimated);
    times.devices[0].clone()
}

#[track_caller]
fn assert_cost(found: Cost, expected: Cost) {
    let figures = |cost: Cost| {
        let Cost { decode_ms, batch_ms, short_ms, prefill_ms, prompt_ms } = cost;
        [Some(decode_ms), batch_ms, short_ms, prefill_ms, prompt_ms]
    };
    for (found, expected) in figures(found).into_iter().zip(figures(expected)) {
        match (found, expected) {
            (Some(found), Some(expected)) => assert_close(found, expected),
            _ => assert_eq!(found, expected),
        }
    }
}

/// A kernel by its elements: of its matrices and of those that a row computes with, and of the values that it reads and
/// writes for every token, and for every row that is asked for.
#[derive(Clone, Copy)]
struct Kernel {
    rows: Rows,
    weights: f64,
    row_weights: f64,
    values: [f64; 2],
    attends: bool,
}

impl Kernel {
    const fn of(weights: u64, values: u64) -> Kernel {
        let (weights, values) = (weights as f64, [values as f64, 0.0]);
        Kernel { rows: Rows::Tokens, weights, row_weights: weights, values, attends: false }
    }
}

/// Three of attention: queries, keys and values with their norm; attention; its results and the sum.
const ATTENDING: [Kernel; 3] = [
    Kernel::of(64 * 64 + 2 * 32 * 64, 64 + 64 + 64 + 32 + 32),
    Kernel { attends: true, ..Kernel::of(0, 64 + 32 + 32 + 64) },
    Kernel::of(64 * 64, 64 + 64 + 64),
];

/// Two of a feed-forward network: gate, up and activation with the norm; down and the sum.
const FEEDING: [Kernel; 2] =
    [Kernel::of(2 * 128 * 64, 64 + 64 + 128), Kernel::of(128 * 64, 128 + 64 + 64)];

/// The rows that are asked for; the product with its norm.
const HEAD: [Kernel; 2] = [
    Kernel { rows: Rows::Outputs, values: [64.0, 64.0], ..Kernel::of(0, 0) },
    Kernel { rows: Rows::Outputs, values: [0.0, 64.0 + 64.0 + 256.0], ..Kernel::of(256 * 64, 0) },
];

fn layer() -> Vec<Kernel> {
    [&ATTENDING[..], &FEEDING].concat()
}

/// What a [`device`] takes: milliseconds of a kernel, bytes of a weight, the tokens that a token of a prompt sees, and
/// operations in a millisecond.
struct Taken {
    weight_bytes: f64,
    seen: f64,
    per_ms: f64,
}

impl Taken {
    fn of(per_ms: f64) -> Taken {
        Taken { weight_bytes: 4.0, seen: 256.0, per_ms }
    }

    /// Milliseconds of kernels one after the other in a step of so many tokens and rows that are asked for.
    fn ms(&self, kernels: &[Kernel], [tokens, outputs]: [f64; 2], seen: f64) -> f64 {
        let each = |kernel: &Kernel| {
            let rows = if kernel.rows == Rows::Tokens { tokens } else { outputs };
            let read = if rows > 0.0 { self.weight_bytes * kernel.weights } else { 0.0 };
            let values = 4.0 * (kernel.values[0] * tokens + kernel.values[1] * outputs);
            // Two operations for each element of four heads of 16 queries and as many values.
            let seen = if kernel.attends { 2.0 * 4.0 * (16.0 + 16.0) * seen } else { 0.0 };
            let ops = rows * (2.0 * kernel.row_weights + seen);
            0.02 + f64::max((read + values) / 1e6, ops / self.per_ms)
        };
        kernels.iter().map(each).sum()
    }

    /// Their cost, of kernels that may depend on the tokens of the step.
    fn cost(&self, kernels: &dyn Fn(i32) -> Vec<Kernel>) -> Cost {
        let step = |tokens: i32| self.ms(&kernels(tokens), [f64::from(tokens); 2], 0.0);
        // One row of a prompt of 512 tokens is asked for, whatever the micro-batch.
        let prompt = |tokens: i32| {
            let of = |outputs| self.ms(&kernels(tokens), [f64::from(tokens), outputs], self.seen);
            of(0.0) / f64::from(tokens) + (of(1.0) - of(0.0)) / 512.0
        };
        with_short(cost([step(1), step(8), prompt(128), prompt(512)]), prompt(32))
    }
}

fn with_short(cost: Cost, short_ms: f64) -> Cost {
    Cost { short_ms: Some(short_ms), ..cost }
}

/// Milliseconds in which logits come back, 256 of four bytes a row.
const LOGITS: f64 = 4.0 * 256.0 / 0.25e6;

#[test]
fn kernels_take_the_longer_of_reading_and_computing() {
    let graph = dense(2);
    // So many operations in a millisecond: reading decides, or of a prompt computing does for some kernels, or for all.
    for per_ms in [1e9, 1e6, 1e3] {
        let times = times(&graph, device(Some(per_ms / 1e9)));
        let taken = Taken::of(per_ms);
        assert_eq!(times.layers.len(), 2);
        for found in &times.layers {
            assert_cost(*found, taken.cost(&|_| layer()));
        }
        let of = taken.cost(&|_| HEAD.to_vec());
        let expected = Cost {
            decode_ms: of.decode_ms + LOGITS,
            batch_ms: of.batch_ms.map(|ms| ms + 8.0 * LOGITS),
            short_ms: of.short_ms.map(|ms| ms + LOGITS / 512.0),
            prefill_ms: of.prefill_ms.map(|ms| ms + LOGITS / 512.0),
            prompt_ms: of.prompt_ms.map(|ms| ms + LOGITS / 512.0),
        };
        assert_cost(times.output, expected);
    }
}

#[test]
fn segments_take_submits_and_the_transfer_of_hidden_states() {
    let times = times(&dense(1), device(Some(1.0)));
    // Submit and wait; 64 elements of four bytes a row.
    let (fixed, row) = (0.03 + 0.05, 4.0 * 64.0 / 0.5e6);
    let of_prompt = |tokens: f64| fixed / tokens + row;
    let segment = cost([fixed + row, fixed + 8.0 * row, of_prompt(128.0), of_prompt(512.0)]);
    assert_cost(times.segment, with_short(segment, of_prompt(32.0)));
    // Looking rows up takes no time.
    assert_eq!(times.embedding, with_short(cost([0.0; 4]), 0.0));
    assert_eq!(times.upload, Some(Upload { gbps: 0.5, overlap: 1.0 }));
}

#[test]
fn what_is_unknown_is_not_estimated() {
    let graph = dense(1);
    let known = device(None);
    let times = times(&graph, known.clone());
    // Without a speed of computing there are no times of prompts.
    let of = Taken::of(f64::INFINITY).cost(&|_| layer());
    let expected = Cost { short_ms: None, prefill_ms: None, prompt_ms: None, ..of };
    assert_cost(times.layers[0], expected);
    let unknown = Facts { link: Link::default(), ..known.clone() };
    let free = Times::estimated(&graph, &Machine::new(vec![unknown])).unwrap();
    let nothing = with_short(cost([0.0; 4]), 0.0);
    assert_eq!((free.devices[0].upload, free.devices[0].segment), (None, nothing));
    let read = 4.0 * (256.0 * 64.0 + 2.0 * 64.0 + 64.0 + 64.0 + 256.0) / 1e6;
    assert_close(free.devices[0].output.decode_ms, read);
    // One device without a bandwidth is enough.
    let machine = Machine::new(vec![known, host(GIB)]);
    assert_eq!(Times::estimated(&graph, &machine), None);
}

/// Kernels of a type that were measured at half of the bandwidth take twice as long to read its matrices; faster ones take no
/// less.
#[test]
fn kernels_that_read_more_slowly_than_memory_decide() {
    let graph = dense(1);
    let layer_of = |kernel_gbps| times(&graph, Facts { kernel_gbps, ..device(None) }).layers[0];
    assert_eq!(layer_of(vec![(Type::F32, 2.0), (Type::Q4_K, 0.1)]), layer_of(Vec::new()));
    let slow = Taken { weight_bytes: 8.0, ..Taken::of(f64::INFINITY) }.cost(&|_| layer());
    let expected = Cost { short_ms: None, prefill_ms: None, prompt_ms: None, ..slow };
    assert_cost(layer_of(vec![(Type::F32, 0.5)]), expected);
}

#[test]
fn attention_computes_what_its_window_shows() {
    let of = |window| {
        let mut of = Recorder::new(&F32);
        let hidden = embedding(&mut of, WIDTH);
        of.layer(Some(0));
        let hidden = attention(&mut of, 0, hidden, window);
        times(&head(of, hidden), device(Some(1e-6))).layers[0]
    };
    // A million operations take a second: 1000 a millisecond. A token of a chunk is in its middle on average.
    let windows = [
        (None, 256.0),
        (Some(Window::Last(100)), 100.0),
        (Some(Window::Last(1000)), 256.0),
        (Some(Window::Chunk(100)), 50.0),
        (Some(Window::Chunk(1000)), 256.0),
    ];
    for (window, seen) in windows {
        let taken = Taken { seen, ..Taken::of(1e3) };
        assert_cost(of(window), taken.cost(&|_| ATTENDING.to_vec()));
    }
}

/// Kernels behind attention of a mixture of eight experts, of which a token uses two and a step so many.
fn mixture(read: f64) -> [Kernel; 6] {
    let experts = |network: u64, values| Kernel {
        weights: read * network as f64,
        row_weights: 2.0 * network as f64,
        ..Kernel::of(0, values)
    };
    [
        // The router with its norm; two weights and two numbers of experts.
        Kernel::of(8 * 64, 64 + 64 + 8),
        Kernel::of(0, 8 + 4),
        // Gate, up and activation; down; their sum by weights; the sum with what was before.
        experts(2 * NETWORK / 3, 64 + 4 + 2 * 128),
        experts(NETWORK / 3, 2 * 128 + 4 + 2 * 64),
        Kernel::of(0, 2 * 64 + 4 + 64),
        Kernel::of(0, 64 + 64 + 64),
    ]
}

#[test]
fn steps_read_the_experts_that_their_tokens_use() {
    let graph = sparse(1, 8, 2);
    // Each token computes with the two that it uses. In between, attention computes while experts are read.
    for per_ms in [1e9, 1e7, 2e6, 1e3] {
        let found = times(&graph, device(Some(per_ms / 1e9))).layers[0];
        let kernels = |tokens: i32| {
            let read = 8.0 * (1.0 - 0.75f64.powi(tokens));
            [&ATTENDING[..], &mixture(read)].concat()
        };
        assert_cost(found, Taken::of(per_ms).cost(&kernels));
    }
}

#[test]
fn weights_are_read_as_the_device_stores_them() {
    let converting = Facts { converted: vec![(Type::F32, Type::F16)], ..device(Some(1.0)) };
    let found = times(&dense(1), converting).layers[0];
    let taken = Taken { weight_bytes: 2.0, ..Taken::of(1e9) };
    assert_close(found.decode_ms, taken.cost(&|_| layer()).decode_ms);
}

fn every(factor: f64) -> DeviceTimes {
    let of = |base: f64| cost([factor * base, 2.0 * base, 3.0 * base, 5.0 * base]);
    DeviceTimes {
        embedding: of(1.0),
        layers: vec![of(2.0), of(3.0)],
        output: of(4.0),
        segment: of(5.0),
        upload: None,
    }
}

#[test]
fn times_for_other_types_change_as_their_estimates_do() {
    let of = |devices| Times { basis: Basis::Measured, devices };
    let known = of(vec![every(10.0)]);
    let from = of(vec![every(2.0)]);
    let mut to = of(vec![every(6.0)]);
    to.devices[0].layers[1] = cost([3.0, 12.0, 0.0, 45.0]);
    let scaled = known.scaled(&from, &to);
    assert_eq!(scaled.basis, Basis::Estimated);
    let [found] = &scaled.devices[..] else { panic!("one device") };
    // Three times as long in decode, and else alike.
    assert_eq!(found.layers[0], cost([60.0, 4.0, 6.0, 10.0]));
    // 3 / 6 of 30, 12 / 6 of 6, nothing, 45 / 15 of 15.
    assert_eq!(found.layers[1], cost([15.0, 12.0, 0.0, 45.0]));
    assert_eq!(found.output, cost([120.0, 8.0, 12.0, 20.0]));
    // What reads no weights does not change.
    assert_eq!((found.embedding, found.segment), (every(10.0).embedding, every(10.0).segment));
    // Figures that are not estimated stay, as do those whose estimate is zero.
    let mut none = from.clone();
    none.devices[0].layers[0] = Cost { batch_ms: None, ..cost([0.0; 4]) };
    let found = known.scaled(&none, &to).devices[0].layers[0];
    assert_eq!(found, known.devices[0].layers[0]);
}

#[test]
fn times_fit_a_model_of_as_many_layers_and_devices() {
    let good = Times { basis: Basis::Measured, devices: vec![every(1.0), every(2.0)] };
    assert!(good.fit(2, 2));
    assert!(!good.fit(3, 2) && !good.fit(2, 1));
    let changed = |change: &dyn Fn(&mut DeviceTimes)| {
        let mut times = good.clone();
        change(&mut times.devices[1]);
        times.fit(2, 2)
    };
    assert!(changed(&|of| of.embedding = cost([0.0; 4])));
    assert!(changed(&|of| of.layers[0].batch_ms = None));
    // A layer takes time in decode, and no time is negative or infinite.
    assert!(!changed(&|of| of.layers[0].decode_ms = 0.0));
    assert!(!changed(&|of| of.layers[1].prompt_ms = Some(-1.0)));
    assert!(!changed(&|of| of.output.prefill_ms = Some(f64::NAN)));
    assert!(!changed(&|of| of.segment.batch_ms = Some(f64::INFINITY)));
    assert!(!changed(&|of| of.embedding.decode_ms = -1.0));
    assert!(!changed(&|of| {
        of.layers.pop();
    }));
    assert_eq!(good.layer(1, 1), Some(every(2.0).layers[1]));
    assert_eq!((good.layer(2, 0), good.layer(0, 2)), (None, None));
}
