//! Estimated times: the longer of reading and computing, kernels, submits and transfers.

use bilayer_graph::{Facts, Graph, Link, Recorder, Window};
use bilayer_quant::Type;
use bilayer_scheduler::{Basis, Cost, DeviceTimes, Machine, Times, Upload};

use crate::models::{
    ATTENTION, F32, GIB, NETWORK, VOCAB, WIDTH, assert_close, attention, cost, dense, embedding,
    gpu, head, host, sparse,
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
    let figures =
        |cost: Cost| [Some(cost.decode_ms), cost.batch_ms, cost.prefill_ms, cost.prompt_ms];
    for (found, expected) in figures(found).into_iter().zip(figures(expected)) {
        match (found, expected) {
            (Some(found), Some(expected)) => assert_close(found, expected),
            _ => assert_eq!(found, expected),
        }
    }
}

/// Milliseconds for bytes that are read.
fn read(weights: f64) -> f64 {
    4.0 * weights / 1e6
}

/// Elements of the matrices of a layer, and of the head.
const MATRICES: f64 = (ATTENTION + NETWORK) as f64;
const HEAD: f64 = (VOCAB * WIDTH) as f64;

/// Operations of attention for a token that sees 256 others: two for each element of four heads of 16 queries and as many
/// values.
const SEEN: f64 = 2.0 * 4.0 * (16.0 + 16.0) * 256.0;

/// Milliseconds of five kernels of a layer: queries, keys and values with their norm; attention; its results and the sum;
/// gate, up and activation with the norm; down and the sum.
const LAYER_KERNELS: f64 = 5.0 * 0.02;

/// Those of the head: the rows, and the product with its norm.
const HEAD_KERNELS: f64 = 2.0 * 0.02;

/// Milliseconds in which logits come back, 256 of four bytes a row.
const LOGITS: f64 = 4.0 * 256.0 / 0.25e6;

#[test]
fn parts_take_the_longer_of_reading_and_computing() {
    let graph = dense(2);
    // So many operations in a millisecond: reading decides, or computing does but for the head of a prompt.
    for per_ms in [1e9, 1e4] {
        let times = times(&graph, device(Some(per_ms / 1e9)));
        let longer = |bytes: f64, ops: f64| bytes.max(ops / per_ms);
        let of_prompt = 2.0 * MATRICES + SEEN;
        let prompt =
            |tokens: f64| (longer(read(MATRICES), of_prompt * tokens) + LAYER_KERNELS) / tokens;
        assert_eq!(times.layers.len(), 2);
        for layer in &times.layers {
            let of = |rows: f64| longer(read(MATRICES), 2.0 * MATRICES * rows) + LAYER_KERNELS;
            assert_cost(*layer, cost([of(1.0), of(8.0), prompt(128.0), prompt(512.0)]));
        }
        // One row of a prompt of 512 tokens is asked for, whatever the micro-batch.
        let of = |rows: f64| longer(read(HEAD), 2.0 * HEAD * rows) + HEAD_KERNELS + rows * LOGITS;
        let of_prompt = |tokens: f64| HEAD_KERNELS / tokens + read(HEAD) / 512.0 + LOGITS / 512.0;
        let output = cost([of(1.0), of(8.0), of_prompt(128.0), of_prompt(512.0)]);
        assert_cost(times.output, output);
    }
}

#[test]
fn segments_take_submits_and_the_transfer_of_hidden_states() {
    let times = times(&dense(1), device(Some(1.0)));
    // Submit and wait; 64 elements of four bytes a row.
    let (fixed, row) = (0.03 + 0.05, 4.0 * 64.0 / 0.5e6);
    let of_prompt = |tokens: f64| fixed / tokens + row;
    let segment = cost([fixed + row, fixed + 8.0 * row, of_prompt(128.0), of_prompt(512.0)]);
    assert_cost(times.segment, segment);
    // Looking rows up takes no time.
    assert_eq!(times.embedding, cost([0.0; 4]));
    assert_eq!(times.upload, Some(Upload { gbps: 0.5, overlap: 1.0 }));
}

#[test]
fn what_is_unknown_is_not_estimated() {
    let graph = dense(1);
    let known = device(None);
    let times = times(&graph, known.clone());
    // Without a speed of computing there are no times of prompts.
    let layer = read(MATRICES) + LAYER_KERNELS;
    let expected =
        Cost { decode_ms: layer, batch_ms: Some(layer), prefill_ms: None, prompt_ms: None };
    assert_cost(times.layers[0], expected);
    let unknown = Facts { link: Link::default(), ..known.clone() };
    let free = Times::estimated(&graph, &Machine::new(vec![unknown])).unwrap();
    assert_eq!((free.devices[0].upload, free.devices[0].segment), (None, cost([0.0; 4])));
    assert_close(free.devices[0].output.decode_ms, read(HEAD));
    // One device without a bandwidth is enough.
    let machine = Machine::new(vec![known, host(GIB)]);
    assert_eq!(Times::estimated(&graph, &machine), None);
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
        let ops = 2.0 * ATTENTION as f64 + 2.0 * 128.0 * seen;
        let kernels = 3.0 * 0.02;
        let prompt = |tokens: f64| ops / 1e3 + kernels / tokens;
        let found = of(window);
        assert_close(found.prefill_ms.unwrap(), prompt(128.0));
        assert_close(found.prompt_ms.unwrap(), prompt(512.0));
        assert_close(found.decode_ms, 2.0 * ATTENTION as f64 / 1e3 + kernels);
    }
}

#[test]
fn steps_read_the_experts_that_their_tokens_use() {
    let graph = sparse(1, 8, 2);
    let used = |tokens: i32| 8.0 * (1.0 - 0.75f64.powi(tokens));
    // Attention and the router; experts.
    let (rest, expert) = ((ATTENTION + 8 * 64) as f64, NETWORK as f64);
    // Three of attention; the router with its norm; the route; gate, up and activation; down; their mix; the sum.
    let kernels = 9.0 * 0.02;
    let fast = times(&graph, device(Some(1.0))).layers[0];
    let of = |tokens: i32| read(rest + used(tokens) * expert) + kernels;
    let prompt = |tokens: i32| of(tokens) / f64::from(tokens);
    assert_cost(fast, cost([of(1), of(8), prompt(128), prompt(512)]));
    // Each token computes with the two that it uses.
    let slow = times(&graph, device(Some(1e-6))).layers[0];
    let ops = 2.0 * (rest + 2.0 * expert);
    let prompt = |tokens: f64| (ops + SEEN) / 1e3 + kernels / tokens;
    let step = |rows: f64| rows * ops / 1e3 + kernels;
    assert_cost(slow, cost([step(1.0), step(8.0), prompt(128.0), prompt(512.0)]));
}

#[test]
fn weights_are_read_as_the_device_stores_them() {
    let converting = Facts { converted: vec![(Type::F32, Type::F16)], ..device(Some(1.0)) };
    let layer = times(&dense(1), converting).layers[0];
    assert_close(layer.decode_ms, read(MATRICES) / 2.0 + LAYER_KERNELS);
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
