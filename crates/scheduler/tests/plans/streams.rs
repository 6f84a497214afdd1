//! Prefill with streamed weights: what is streamed, through how much memory, and from how many tokens on.

use bilayer_graph::{Graph, OpKind, Recorder, Value};
use bilayer_scheduler::{
    Budget, DeviceTimes, Error, Machine, Offload, OpOffload, Plan, PlannedSegment, Request,
    StreamBuffers, StreamStage, Streaming, Upload, offload, stream_batches, working_bytes,
};

use crate::models::{
    ATTENTION, BUDGET, F32, GIB, NETWORK, WIDTH, attend, attention, cards, cost, dense, embedding,
    head, measured, norm, product, weight,
};

/// Bytes of the matrices of a layer, which are streamed.
pub const MATRICES: u64 = 4 * (ATTENTION + NETWORK);

pub fn asked(count: u32, op_offload: OpOffload) -> Request {
    Request { offload: Offload::Count(count), op_offload, ..Request::default() }
}

pub fn of(graph: &Graph, machine: &Machine, request: &Request) -> Result<Plan, Error> {
    offload(graph, machine, &BUDGET, request)
}

/// The streaming of a plan whose card has the head.
pub fn streamed(graph: &Graph, budget: &Budget) -> Option<Streaming> {
    let request = asked(1, OpOffload::From(4));
    offload(graph, &cards(&[GIB]), budget, &request).unwrap().streaming
}

pub fn times(layers: u32, layer: [f64; 4], upload: Option<Upload>) -> DeviceTimes {
    DeviceTimes {
        embedding: cost([0.25, 0.5, 0.125, 0.0625]),
        layers: vec![cost(layer); layers as usize],
        output: cost([0.5, 1.0, 0.25, 0.125]),
        segment: cost([0.0625, 0.125, 0.03125, 0.015625]),
        upload,
    }
}

/// A slow host and a fast card, to which a layer is copied in two milliseconds.
pub fn timed(layers: u32, overlap: f64) -> Machine {
    let mut machine = cards(&[GIB]);
    let upload = Some(Upload { gbps: MATRICES as f64 / 2e6, overlap });
    let host = times(layers, [1.0, 1.5, 0.5, 0.4], None);
    machine.times = measured(vec![host, times(layers, [0.5, 1.0, 0.0625, 0.03125], upload)]);
    machine
}

#[test]
fn layers_on_the_host_are_streamed_through_two_slots() {
    let graph = dense(3);
    let machine = cards(&[GIB]);
    let plan = of(&graph, &machine, &asked(1, OpOffload::From(4))).unwrap();
    let streaming = plan.streaming.as_ref().unwrap();
    let found: Vec<_> = (streaming.stages.iter())
        .map(|of| {
            (of.segment.device, of.segment.nodes.clone(), of.unit, of.slot(), of.weights.len())
        })
        .collect();
    // An embedding on the host; layers of 13 ops and seven matrices; the head, which the card holds.
    let expected = [
        (0, 0..1, None, None, 0),
        (1, 1..14, Some(0), Some(0), 7),
        (1, 14..27, Some(1), Some(1), 7),
        (1, 27..40, Some(2), Some(0), 7),
        (1, 40..43, None, None, 0),
    ];
    assert_eq!(found, expected);
    for (layer, stage) in streaming.stages[1..4].iter().enumerate() {
        let names = ["q", "k", "v", "o", "gate", "up", "down"];
        let ids = names.map(|name| weight(&graph, &format!("{layer}.{name}")));
        assert_eq!(
            (&stage.weights[..], stage.caches[0].0, stage.caches.len()),
            (&ids[..], layer as u32, 1)
        );
        assert!(stage.experts.is_empty());
    }
    assert_eq!((streaming.device, streaming.tokens_min), (1, 4));
    assert_eq!((&streaming.routed, streaming.upload_bytes), (&None, 3 * MATRICES));
    assert_eq!((streaming.prefill_ms_per_token, streaming.prompts.len()), (None, 0));
    // Each slot has the cache and the weights of a layer; besides there are a layer's activations and values in transfer,
    // and six norms.
    let kept = 64 * 2 * (32 + 32);
    let working = working_bytes(&graph, &streaming.stages[1].segment, &BUDGET, &machine.devices[1]);
    assert_eq!(working, 4 * 8 * (128 + 5 * 64) + 2 * 4 * 8 * 64);
    let bytes = 2 * (kept + MATRICES) + working + 6 * 4 * 64;
    assert_eq!(streaming.device_bytes, bytes);
    // Hidden states of 64 tokens, in two buffers by turns.
    assert_eq!((streaming.tokens_max, streaming.host_bytes), (64, 2 * 4 * 64 * 64));
    let without = of(&graph, &machine, &asked(1, OpOffload::Never)).unwrap();
    assert_eq!(without.streaming, None);
    for (device, more) in [(0, streaming.host_bytes), (1, bytes)] {
        let [with, without] = [&plan, &without].map(|plan| &plan.devices[device]);
        assert_eq!((with.stream_bytes, with.used_bytes), (more, without.used_bytes + more));
    }
    let mut taken = plan.clone();
    taken.without_streaming();
    assert_eq!(taken, without);
}

#[test]
fn steps_have_so_many_tokens_as_eight_micro_batches_or_the_context() {
    for (context, most) in [(64, 64), (1000, 64), (40, 40), (4, 8)] {
        let streaming = streamed(&dense(1), &Budget { context, ..BUDGET }).unwrap();
        assert_eq!(streaming.tokens_max, most, "{context}");
    }
    let from = |tokens: usize| {
        let plan = of(&dense(1), &cards(&[GIB]), &asked(1, OpOffload::From(tokens))).unwrap();
        plan.streaming.unwrap()
    };
    assert_eq!((from(0).tokens_min, from(9).tokens_min), (1, 9));
    assert_eq!([8, 9, 10].map(|tokens| from(9).takes(tokens)), [false, true, true]);
    // Nothing is predicted that could be faster.
    let auto = of(&dense(1), &cards(&[GIB]), &asked(1, OpOffload::Auto)).unwrap();
    assert_eq!(auto.streaming, None);
    for (tokens, rows, count) in [(0, 0, 1), (8, 8, 1), (9, 5, 2), (16, 8, 2), (17, 6, 3)] {
        assert_eq!(stream_batches(tokens, &BUDGET), (rows, count), "{tokens}");
    }
}

#[test]
fn only_cards_with_a_queue_and_something_to_hold_stream_what_they_can_run() {
    let graph = dense(2);
    let from = asked(1, OpOffload::From(4));
    let units = |machine: &Machine, request: &Request| -> Vec<usize> {
        let plan = of(&graph, machine, request).unwrap();
        let stages = plan.streaming.map_or(Vec::new(), |streaming| streaming.stages);
        stages
            .iter()
            .filter(|stage| stage.unit.is_some())
            .map(|stage| stage.segment.nodes.start)
            .collect()
    };
    let changed = |change: &dyn Fn(&mut bilayer_graph::Facts)| {
        let mut machine = cards(&[GIB]);
        change(&mut machine.devices[1]);
        units(&machine, &from)
    };
    assert_eq!(changed(&|_| ()), [1, 14]);
    assert_eq!(changed(&|card| card.is_async = false), []);
    assert_eq!(changed(&|card| card.copies_weights = false), []);
    assert_eq!(changed(&|card| card.ops.retain(|&op| op != OpKind::Attend)), []);
    // A card that holds nothing is not used; one that holds a layer is not sent that.
    assert_eq!(units(&cards(&[GIB]), &asked(0, OpOffload::From(4))), []);
    assert_eq!(units(&cards(&[GIB]), &asked(2, OpOffload::From(4))), [1]);
    assert_eq!(units(&cards(&[GIB]), &asked(3, OpOffload::From(4))), []);
    // Of a layer that is partly on the card, what the host has on either side.
    let pins = vec![(weight(&graph, "1.gate"), 1), (weight(&graph, "1.up"), 1)];
    let request = Request { pins, ..from.clone() };
    let plan = of(&graph, &cards(&[GIB]), &request).unwrap();
    let stages = plan.streaming.unwrap().stages;
    // The activation is with gate and up.
    let nodes: Vec<_> = stages.iter().map(|of| (of.segment.nodes.clone(), of.unit)).collect();
    let expected = [
        (0..1, None),
        (1..14, Some(0)),
        (14..22, Some(1)),
        (22..25, None),
        (25..27, Some(2)),
        (27..30, None),
    ];
    assert_eq!(nodes, expected);
}

#[test]
fn models_with_states_or_without_caches_are_not_streamed() {
    let recurrent = {
        let mut of = Recorder::new(&F32);
        let hidden = embedding(&mut of, WIDTH);
        of.layer(Some(0));
        let taps = of.stack_vector("taps", [64, 4]).unwrap();
        let hidden = of.conv("conv", hidden, taps, None);
        let hidden = attention(&mut of, 0, hidden, None);
        head(of, hidden)
    };
    let encoder = {
        let mut of = Recorder::new(&F32);
        let hidden = embedding(&mut of, WIDTH);
        of.layer(Some(0));
        let q = product(&mut of, "q", hidden, 64);
        let k = product(&mut of, "k", hidden, 32);
        let hidden = of.attend("attn", attend(q, k, k, None, None));
        head(of, hidden)
    };
    assert_eq!([&recurrent, &encoder].map(|graph| streamed(graph, &BUDGET)), [None, None]);
    // A layer without matrices has nothing that is worth a copy.
    let mut of = Recorder::new(&F32);
    let hidden = embedding(&mut of, WIDTH);
    of.layer(Some(0));
    let hidden = norm(&mut of, "first", hidden);
    assert_eq!(streamed(&head(of, hidden), &BUDGET), None);
}

#[test]
fn weights_that_several_segments_read_stay_on_the_card() {
    let mut of = Recorder::new(&F32);
    let hidden = embedding(&mut of, WIDTH);
    let shared = of.matrix("shared", 64, 64).unwrap();
    let mut value = hidden;
    for layer in 0..2 {
        of.layer(Some(layer));
        value = of.matmul("shared", value, shared, None);
        value = product(&mut of, &format!("{layer}"), value, 64);
        value = of.matmul("shared", value, shared, None);
    }
    let graph = head(of, value);
    let streaming = streamed(&graph, &BUDGET).unwrap();
    let own = |name| vec![weight(&graph, name)];
    assert_eq!(streaming.stages[1].weights, own("0"));
    assert_eq!(streaming.stages[2].weights, own("1"));
    assert_eq!(streaming.upload_bytes, 2 * 4 * 64 * 64);
    let machine = cards(&[GIB]);
    let working = working_bytes(&graph, &streaming.stages[1].segment, &BUDGET, &machine.devices[1]);
    // A matrix in each slot, and the shared one.
    assert_eq!(streaming.device_bytes, working + 3 * 4 * 64 * 64);
}

#[test]
fn slots_have_room_for_caches_of_each_shape() {
    let mut of = Recorder::new(&F32);
    let mut hidden = embedding(&mut of, WIDTH);
    for layer in 0..4 {
        of.layer(Some(layer));
        let heads = if layer == 3 { 1 } else { 2 };
        let cache = of.cache(heads, 16, None);
        let q = product(&mut of, &format!("{layer}.q"), hidden, 64);
        let k = product(&mut of, &format!("{layer}.k"), hidden, 16 * heads);
        let attend =
            bilayer_graph::Attend { kv_heads: heads, ..attend(q, k, k, Some(cache), None) };
        hidden = of.attend("attn", attend);
    }
    let graph = head(of, hidden);
    let streaming = streamed(&graph, &BUDGET).unwrap();
    let wide = 64 * 2 * (32 + 32);
    let weights = |rows: u64| 4 * 64 * rows;
    let machine = cards(&[GIB]);
    let working = streaming.stages.iter().filter(|stage| stage.unit.is_some());
    let working =
        working.map(|of| working_bytes(&graph, &of.segment, &BUDGET, &machine.devices[1]));
    // Layers 1 and 3 share a slot, with caches of two shapes; the weights of the larger.
    let slots = wide + weights(96) + wide + wide / 2 + weights(96);
    assert_eq!(streaming.device_bytes, slots + working.max().unwrap());
}

#[test]
fn what_does_not_fit_is_an_error_if_it_was_asked_for() {
    let graph = dense(2);
    let used = |request: &Request| of(&graph, &cards(&[GIB]), request).unwrap().devices[1].clone();
    let from = asked(1, OpOffload::From(4));
    let [with, without] = [used(&from), used(&asked(1, OpOffload::Never))];
    let exact = of(&graph, &cards(&[with.used_bytes]), &from).unwrap();
    assert_eq!(exact.devices[1].used_bytes, exact.devices[1].budget_bytes);
    let error = of(&graph, &cards(&[with.used_bytes - 1]), &from).unwrap_err();
    let Error::DoesNotFit { what, largest } = &error else { panic!("{error}") };
    assert_eq!((what.used_bytes, what.budget_bytes), (with.used_bytes, with.used_bytes - 1));
    assert_eq!((what.weight_bytes, what.kv_bytes, what.state_bytes), (with.weight_bytes, 0, 0));
    let besides = without.activation_bytes + without.staging_bytes + with.stream_bytes;
    // With all layers on the card nothing is streamed, and less is needed.
    assert_eq!((what.activation_bytes, *largest), (besides, Some(3)));
    // Where it is not asked for, the plan is without.
    let mut small = timed(2, 0.5);
    small.devices[1].memory_bytes = with.used_bytes;
    let auto = asked(1, OpOffload::Auto);
    assert!(of(&graph, &small, &auto).unwrap().streaming.is_some());
    small.devices[1].memory_bytes -= 1;
    assert_eq!(of(&graph, &small, &auto).unwrap().streaming, None);
}

#[test]
fn buffers_are_shared_by_values_that_do_not_live_at_the_same_time() {
    let graph = dense(1);
    let stage = |inputs: &[u32], outputs: &[u32]| StreamStage {
        segment: PlannedSegment {
            device: 1,
            nodes: 0..1,
            inputs: inputs.iter().map(|&value| Value(value)).collect(),
            outputs: outputs.iter().map(|&value| Value(value)).collect(),
        },
        unit: None,
        weights: Vec::new(),
        experts: Vec::new(),
        caches: Vec::new(),
    };
    // Values 0 and 7 have 64 elements, 9 has 128; 14 has 64 of each output.
    assert_eq!([0, 7, 9, 14].map(|value| graph.width(Value(value))), [64, 64, 128, 64]);
    let stages = [
        stage(&[], &[0]),
        stage(&[0], &[9, 10]),
        stage(&[9], &[7]),
        stage(&[7], &[14]),
        stage(&[14], &[16]),
    ];
    let StreamBuffers { of, lens } = Streaming::buffers(&graph, &stages, (10, 3));
    // What nobody reads has none. Largest first.
    assert_eq!(
        of.into_iter().map(|(value, place)| (value.0, place)).collect::<Vec<_>>(),
        [(0, 1), (7, 1), (9, 0), (14, 0)]
    );
    assert_eq!(lens, [1280, 640]);
    let mut wide = vec![5, 9];
    StreamBuffers::widen(&mut wide, &[7, 3, 4]);
    assert_eq!(wide, [7, 9, 4]);
    StreamBuffers::widen(&mut wide, &[8]);
    assert_eq!(wide, [8, 9, 4]);
}
