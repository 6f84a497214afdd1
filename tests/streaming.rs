//! The promise of streamed prefill: the logits are those without it, weights are copied while the device computes, and a
//! device that fails meanwhile does not change the answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use bilayer_convert::mix::Mix;
use bilayer_convert::synth::{Experts, Shape, Sizes, Synth};
use bilayer_engine::Model;
use bilayer_engine::placement::Placing;
use bilayer_engine::session::{
    Event, Run, SequenceId, Session, Settings, Trace, Wanted, Warning, What,
};
use bilayer_graph::{Backend, Graph};
use bilayer_scheduler::{Budget, Machine, Offload, OpOffload};

mod support {
    pub mod devices;
    pub mod gpu;
    pub mod logits;
    pub mod model;
    pub mod words;
}

#[path = "experts/resident.rs"]
mod experts;

use support::devices::{Call, Failing, Fault, Queued, Script, cpu};
use support::logits::argmax;

/// Tokens from which the tests stream: more than a step of decode has.
const STREAMED: OpOffload = OpOffload::From(16);

/// Micro-batches of a prompt: more than use one copy of the weights.
const LONG: usize = 11;

/// Rows of a micro-batch; prompts are multiples of it, so that they are split alike with and without streaming.
const ROWS: usize = 50;

/// A model of six layers with two mixes of types.
fn model() -> Model {
    let sizes = Sizes { layers: Some(6), vocab: Some(1000), ..Sizes::default() };
    let shape = Shape::find("tiny").unwrap().with(sizes).unwrap();
    let synth = Synth::new(shape, Mix::find("Q4_K_M").unwrap());
    Model::from_bytes("six", synth.to_bytes().unwrap()).unwrap()
}

/// A mixture of three layers, of whose 32 experts a token uses two.
fn mixture() -> Model {
    let sizes = Sizes {
        layers: Some(3),
        width: Some(256),
        heads: Some(4),
        kv_heads: Some(2),
        head_dim: Some(64),
        ffn: Some(256),
        vocab: Some(1000),
        ..Sizes::default()
    };
    let mut shape = Shape::find("qwen3-30b-a3b").unwrap().with(sizes).unwrap();
    shape.experts = shape.experts.map(|experts| Experts { count: 32, used: 2, ..experts });
    let synth = Synth::new(shape, Mix::find("Q4_K_M").unwrap());
    Model::from_bytes("mixture", synth.to_bytes().unwrap()).unwrap()
}

fn settings() -> Settings<'static> {
    Settings {
        threads: Some(1),
        ctx_size: Some(1024),
        sequences: 2,
        cached_sequences: 1,
        ubatch_size: ROWS,
        ..Settings::default()
    }
}

/// A session on the CPU and another device that holds the head and the last layer.
fn beside(model: &Model, device: Box<dyn Backend>, settings: Settings<'_>) -> Session {
    let gpu_layers = Offload::Count(2);
    placed(
        model,
        device,
        settings,
        &Placing { gpu_layers, op_offload: STREAMED, ..Placing::default() },
    )
}

fn placed(
    model: &Model,
    device: Box<dyn Backend>,
    settings: Settings<'_>,
    placing: &Placing,
) -> Session {
    let planner =
        |graph: &Graph, machine: &Machine, budget: &Budget| placing.plan(graph, machine, budget);
    Session::on(model, vec![cpu(1), device], &planner, settings).unwrap()
}

fn alone(model: &Model) -> Session {
    Session::new(model, Settings { placing: Placing::cpu(), ..settings() }).unwrap()
}

fn some(count: usize, seed: usize) -> Vec<u32> {
    (0..count).map(|i| ((i * 31 + seed * 17 + i * i * 7) % 990) as u32 + 5).collect()
}

/// The logits of prompts long and short, with a shared prefix, a page that is copied on write, steps of two sequences and
/// decode in between.
fn conversation(session: &mut Session, micro_batches: usize) -> Vec<Vec<f32>> {
    let mut all = Vec::new();
    let read = |session: &mut Session, sequence: SequenceId, tokens: &[u32]| {
        session.prefill(sequence, tokens, &mut |_| true).unwrap().unwrap().to_vec()
    };
    let first = session.open().unwrap();
    all.push(read(session, first, &some(micro_batches * ROWS, 1)));
    for token in [7, 70] {
        let run = Run { sequence: first, tokens: &[token], wanted: Wanted::Last };
        all.push(session.step(&[run]).unwrap().to_vec());
    }
    let second = session.fork(first).unwrap();
    all.push(read(session, second, &some(ROWS, 2)));
    all.push(read(session, first, &some(ROWS, 3)));
    let texts = [some(20, 4), some(20, 5)];
    let runs = [(first, &texts[0]), (second, &texts[1])].map(|(sequence, tokens)| Run {
        sequence,
        tokens,
        wanted: Wanted::Last,
    });
    all.push(session.step(&runs).unwrap().to_vec());
    for sequence in [first, second] {
        let run = Run { sequence, tokens: &[99], wanted: Wanted::Last };
        all.push(session.step(&[run]).unwrap().to_vec());
        session.close(sequence);
    }
    all
}

/// √(Σ(found - expected)² / Σ expected²), as in `tests/models.rs`.
fn error(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let pairs = found.iter().flatten().zip(expected.iter().flatten());
    let (mut off, mut whole) = (0.0, 0.0);
    for (found, expected) in pairs {
        off += f64::from(found - expected).powi(2);
        whole += f64::from(*expected).powi(2);
    }
    (off / whole).sqrt()
}

/// Greedy choices.
fn best(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().map(|row| argmax(row)).collect()
}

#[test]
fn streamed_prompts_have_the_bits_of_the_device_that_decodes() {
    let model = model();
    let expected = conversation(&mut alone(&model), LONG);
    // A CPU behind a queue computes with the same kernels.
    let device = Box::new(Queued::new(cpu(1), Duration::ZERO));
    let mut session =
        beside(&model, device, Settings { trace_events: Some(1 << 14), ..settings() });
    let streaming = session.plan().streaming.clone().unwrap();
    assert_eq!((streaming.tokens_min, streaming.tokens_max), (16, 8 * ROWS));
    let found = conversation(&mut session, LONG);
    assert!(found == expected, "bits differ: {:e}", error(&found, &expected));
    assert_eq!(session.take_warnings(), []);
    let streamed = |e: &&Event| e.what == What::Stream;
    let events = session.trace().unwrap().recorded().iter().filter(streamed).count();
    let weights: usize = streaming.stages.iter().map(|stage| stage.weights.len()).sum();
    // Two passes of the long prompt, one of each other step that is long enough.
    assert_eq!(events, 5 * weights);
}

#[test]
fn a_prompt_that_is_stopped_ends_with_a_pass() {
    let model = model();
    let mut session = beside(&model, cpu_as_gpu(), settings());
    let sequence = session.open().unwrap();
    let prompt = some(12 * ROWS, 1);
    let mut asked = 0;
    let stopped = session.prefill(sequence, &prompt, &mut |rows| {
        asked += 1;
        rows < 6 * ROWS
    });
    assert!(stopped.unwrap().is_none());
    assert_eq!(session.len(sequence), 6 * ROWS);
    assert!(asked > 6, "only asked {asked} times");
    let rest = session.prefill(sequence, &prompt[6 * ROWS..], &mut |_| true).unwrap().unwrap();
    let found = vec![rest.to_vec()];
    let mut whole = alone(&model);
    let sequence = whole.open().unwrap();
    let expected = whole.prefill(sequence, &prompt, &mut |_| true).unwrap().unwrap().to_vec();
    assert_eq!(found, [expected]);
}

fn cpu_as_gpu() -> Box<dyn Backend> {
    Box::new(Queued::new(cpu(1), Duration::ZERO))
}

#[test]
fn a_device_that_fails_meanwhile_does_not_change_the_answer() {
    let model = model();
    let expected = best(&conversation(&mut alone(&model), LONG));
    let calls = [Call::Stream, Call::Write, Call::Submit, Call::Read, Call::Save, Call::Restore];
    for (call, fault) in
        calls.into_iter().flat_map(|call| [Fault::Lost, Fault::OutOfMemory].map(|f| (call, f)))
    {
        for after in [0, 3] {
            let device = Failing::new(cpu_as_gpu(), Script { call, after, fault });
            let failed = device.failed.clone();
            let mut session = beside(&model, Box::new(device), settings());
            let found = best(&conversation(&mut session, LONG));
            let what = format!("{call:?} {fault:?} after {after}");
            assert!(*failed.lock().unwrap(), "{what}: never failed");
            assert_eq!(found, expected, "{what}");
            match (&session.take_warnings()[..], fault) {
                ([Warning::Moved { .. }], Fault::Lost) => {}
                ([Warning::NotStreamed { .. }], Fault::OutOfMemory) => {
                    assert!(session.plan().streaming.is_none());
                }
                (warnings, _) => panic!("{what}: {warnings:?}"),
            }
        }
    }
}

#[test]
fn a_device_that_is_lost_before_it_streams_gets_nothing() {
    let model = model();
    let expected = best(&conversation(&mut alone(&model), LONG));
    let script = Script { call: Call::Compile, after: 0, fault: Fault::Lost };
    let device = Box::new(Failing::new(cpu_as_gpu(), script));
    let mut session = beside(&model, device, settings());
    let warnings = session.take_warnings();
    let is_moved = matches!(warnings[..], [Warning::NotStreamed { .. }, Warning::Reduced { .. }]);
    assert!(is_moved, "{warnings:?}");
    assert!(session.plan().streaming.is_none());
    assert_eq!(best(&conversation(&mut session, LONG)), expected);
}

#[test]
fn the_other_gpu_takes_over_from_one_that_fails_meanwhile() {
    let model = model();
    let expected = best(&conversation(&mut alone(&model), LONG));
    let placing = Placing {
        gpu_layers: Offload::Count(4),
        tensor_split: vec![1.0, 1.0],
        op_offload: STREAMED,
        ..Placing::default()
    };
    let planner =
        |graph: &Graph, machine: &Machine, budget: &Budget| placing.plan(graph, machine, budget);
    for (fault, after) in [Fault::Lost, Fault::OutOfMemory].map(|f| [(f, 0), (f, 9)]).concat() {
        for failing in [1, 2] {
            let mut backends = vec![cpu(1), cpu_as_gpu(), cpu_as_gpu()];
            let script = Script { call: Call::Submit, after, fault };
            let device = Failing::new(backends.remove(failing), script);
            let failed = device.failed.clone();
            backends.insert(failing, Box::new(device));
            let mut session = Session::on(&model, backends, &planner, settings()).unwrap();
            let (map, streams) = {
                let plan = session.plan();
                (plan.map.clone(), plan.streaming.as_ref().unwrap().device == failing)
            };
            let found = best(&conversation(&mut session, LONG));
            let what = format!("gpu{} {fault:?} after {after}", failing - 1);
            assert!(*failed.lock().unwrap(), "{what}: never failed");
            assert_eq!(found, expected, "{what}");
            match (&session.take_warnings()[..], fault) {
                // Its layers stay where they are.
                ([Warning::NotStreamed { .. }], Fault::OutOfMemory) if streams => {
                    assert!(session.plan().streaming.is_none(), "{what}");
                    assert_eq!(session.plan().map, map, "{what}");
                }
                ([Warning::Moved { .. }], _) if fault == Fault::Lost || !streams => {
                    assert_eq!(session.plan().map, "out:gpu 5-3:gpu 2-0:cpu", "{what}");
                }
                (warnings, _) => panic!("{what}: {warnings:?}"),
            }
        }
    }
}

#[test]
fn gpus_stream_beside_their_kernels() {
    let model = model();
    let expected = conversation(&mut alone(&model), 2);
    for (name, opened) in support::gpu::opened().filter(|(name, _)| PROVED.contains(name)) {
        let all = Placing { gpu_layers: Offload::All, ..Placing::default() };
        let mut whole = placed(&model, Box::new(opened.backend()), settings(), &all);
        let whole = conversation(&mut whole, 2);
        let settings = Settings { trace_events: Some(1 << 16), ..settings() };
        let mut session = beside(&model, Box::new(opened.backend()), settings);
        let planned = session.plan().devices[1].used_bytes;
        let held = session.backends().nth(1).unwrap().held_bytes().unwrap();
        assert!(held as f64 <= 1.05 * planned as f64, "{name}: {held} of {planned} planned");
        let found = conversation(&mut session, 2);
        assert_eq!(session.take_warnings(), [], "{name}");
        // The prompt runs on the GPU as a whole; what follows reads the CPU's copy of its keys and values.
        let first = error(&found[..1], &whole[..1]);
        assert!(first < 1e-3, "{name}: error of the prompt {first:e}");
        let (usual, error) = (error(&whole, &expected), error(&found, &expected));
        assert!(error < 1.5 * usual, "{name}: error {error:e}, without streaming {usual:e}");
        let (beside, all) = overlap(session.trace().unwrap().recorded());
        assert!(beside > all / 2, "{name}: {beside} of {all} ns of copies beside kernels");
    }
}

/// Prompts of few tokens and of many, and the bytes of weights that each of them copies.
fn prompts(session: &mut Session) -> (Vec<Vec<f32>>, [u64; 2]) {
    let mut all = Vec::new();
    let bytes = [8, 4 * FEW].map(|tokens| {
        session.trace_mut().into_iter().for_each(Trace::clear);
        let sequence = session.open().unwrap();
        let prompt = some(tokens, tokens);
        let logits = session.prefill(sequence, &prompt, &mut |_| true).unwrap().unwrap();
        all.push(logits.to_vec());
        for token in [5, 50, 500] {
            let run = Run { sequence, tokens: &[token], wanted: Wanted::Last };
            all.push(session.step(&[run]).unwrap().to_vec());
        }
        session.close(sequence);
        let events = session.trace().into_iter().flat_map(Trace::recorded);
        events.filter(|event| event.what == What::Stream).map(|event| event.bytes).sum()
    });
    (all, bytes)
}

/// Rows of a micro-batch of mixtures: short prompts have several, too.
const FEW: usize = 4;

/// What streams of a mixture: the last layer and the head are on the device, and of the others everything or the experts.
fn mixtures() -> [Placing; 2] {
    let placing = Placing {
        gpu_layers: Offload::Count(2),
        op_offload: OpOffload::From(8),
        ..Placing::default()
    };
    let apart = Placing { gpu_layers: Offload::All, cpu_moe_layers: 2, ..placing.clone() };
    [placing, apart]
}

#[test]
fn short_prompts_copy_only_the_experts_that_they_use() {
    let model = mixture();
    let settings = || Settings { ubatch_size: FEW, trace_events: Some(1 << 14), ..settings() };
    let on_cpu = Settings { placing: Placing::cpu(), ..settings() };
    let (expected, _) = prompts(&mut Session::new(&model, on_cpu).unwrap());
    for placing in mixtures() {
        let mut session = placed(&model, cpu_as_gpu(), settings(), &placing);
        let streaming = session.plan().streaming.clone().unwrap();
        // With two of 32 experts, 10 tokens are expected to use less than half of them.
        let routed = streaming.routed.as_ref().unwrap();
        assert_eq!(routed.tokens_max, 10);
        let (found, [few, many]) = prompts(&mut session);
        assert!(found == expected, "bits differ: {:e}", error(&found, &expected));
        assert_eq!(session.take_warnings(), []);
        // Eight tokens use at most 16 of the 32 experts; the dense matrices are copied whole.
        let whole = session.plan().streaming.as_ref().unwrap().upload_bytes;
        assert_eq!(many, whole);
        let (expected, most) = (routed.upload_bytes, (whole * 2).div_ceil(3));
        assert!(few < most && few < expected, "{few} of {whole} bytes, {expected} for 10 tokens");
    }
    for (name, opened) in support::gpu::opened().filter(|(name, _)| *name == "gpu") {
        let on = |placing: &Placing| {
            let mut session = placed(&model, Box::new(opened.backend()), settings(), placing);
            let answers = prompts(&mut session);
            assert_eq!(session.take_warnings(), [], "{name}");
            answers
        };
        // The prompts run on the GPU as a whole, with the experts that have been copied.
        let all = Placing { gpu_layers: Offload::All, ..Placing::default() };
        let (whole, _) = on(&all);
        for placing in mixtures() {
            let (found, [few, many]) = on(&placing);
            assert!(few < many * 2 / 3, "{name}: {few} of {many} bytes");
            assert_eq!(best(&found), best(&expected), "{name}: {:e}", error(&found, &expected));
            for prompt in [0, 4] {
                let error = error(&found[prompt..=prompt], &whole[prompt..=prompt]);
                assert!(error < 1e-3, "{name}: error {error:e}");
            }
        }
    }
}

/// The GPUs that are tested: as it is, and with weights in parts.
const PROVED: [&str; 2] = ["gpu", "gpu with small blocks"];

/// Nanoseconds of copies in all, and of those that ran while a segment of the device did.
fn overlap(events: &[Event]) -> (u64, u64) {
    let of = |what: What| events.iter().filter(move |event| event.what == what);
    let (mut beside, mut all) = (0, 0);
    for copy in of(What::Stream) {
        all += copy.ns;
        let lane = copy.id as usize + 1;
        let segments = of(What::Segment).filter(|event| event.lane == lane);
        beside += segments
            .map(|event| {
                event.end_ns().min(copy.end_ns()).saturating_sub(event.start_ns.max(copy.start_ns))
            })
            .sum::<u64>();
    }
    (beside, all)
}
