//! The promise of hybrid sessions: devices that work at the same time give the same bits, and a device that fails does
//! not change the answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bilayer_convert::mix::Mix;
use bilayer_convert::synth::{Shape, Synth};
use bilayer_engine::placement::Placing;
use bilayer_engine::session::SequenceId;
use bilayer_engine::session::{Overlap, Run, Session, Settings, Wanted, Warning};
use bilayer_engine::{Error, Model};
use bilayer_gguf::File;
use bilayer_graph::{Backend, Facts, Graph, SegmentId, reference::Reference};
use bilayer_measure::verify;
use bilayer_quant::Type;
use bilayer_scheduler::{
    Budget, Machine, Offload, Placement, Plan, PlannedSegment, place, place_mapped,
};
use proptest::prelude::*;

mod support {
    pub mod devices;
    pub mod gpu;
    pub mod logits;
    pub mod model;
    pub mod words;
}

use support::devices::{CALLS, Call, Failing, Fault, Queued, Script, Times, cpu};
use support::logits::argmax;
use support::words;

/// A random model of the first architecture's smallest shape, with a vocabulary of letters.
fn tiny() -> Model {
    Model::from_bytes("tiny", words::tiny(Type::F32, 7)).unwrap()
}

fn settings() -> Settings<'static> {
    Settings {
        threads: Some(1),
        ctx_size: Some(512),
        sequences: 4,
        outputs: Some(64),
        cache_type_k: Type::F32,
        cache_type_v: Type::F32,
        ..Settings::default()
    }
}

/// A CPU and a simulated GPU, which is a CPU behind a queue.
fn pair() -> Vec<Box<dyn Backend>> {
    vec![cpu(1), Box::new(Queued::new(cpu(1), Duration::ZERO))]
}

/// Tokens of the tiny vocabulary, excluding special ones.
fn some(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| 3 + ((i * 31 + seed * 17 + i * i * 7) % 120) as u32).collect()
}

/// The device of each part of the model, from the embedding to the head.
fn parts(devices: &[usize]) -> Placement {
    let (first, rest) = devices.split_first().unwrap();
    let (last, layers) = rest.split_last().unwrap();
    Placement {
        embedding: *first,
        layers: layers.to_vec(),
        output: *last,
        exceptions: Default::default(),
    }
}

fn on(
    model: &Model,
    backends: Vec<Box<dyn Backend>>,
    placement: &Placement,
    settings: Settings<'_>,
) -> Session {
    let planner =
        |graph: &_, machine: &_, budget: &_| Ok(place(graph, machine, budget, placement)?);
    Session::on(model, backends, &planner, settings).unwrap()
}

/// The logits of a prompt and of `more` greedy steps after it, and the tokens chosen.
fn answer(
    session: &mut Session,
    sequence: SequenceId,
    prompt: &[u32],
    more: usize,
) -> (Vec<Vec<f32>>, Vec<u32>) {
    let mut all = vec![session.prefill(sequence, prompt, &mut |_| true).unwrap().unwrap().to_vec()];
    let mut tokens = Vec::new();
    for _ in 0..more {
        tokens.push(argmax(all.last().unwrap()));
        let run = Run { sequence, tokens: &tokens[tokens.len() - 1..], wanted: Wanted::Last };
        all.push(session.step(&[run]).unwrap().to_vec());
    }
    (all, tokens)
}

/// Placements of a model of `layers` layers on two devices: halves in either order, alternating thirds, every other
/// layer.
fn placements(layers: usize) -> Vec<Placement> {
    let half = |layer: usize| usize::from(layer >= layers / 2);
    let all: [Vec<usize>; 4] = [
        (0..layers + 2).map(|part| half(part.saturating_sub(1).min(layers - 1))).collect(),
        (0..layers + 2).map(|part| 1 - half(part.saturating_sub(1).min(layers - 1))).collect(),
        (0..layers + 2).map(|part| usize::from((1..=layers).contains(&part))).collect(),
        (0..layers + 2).map(|part| part % 2).collect(),
    ];
    all.iter().map(|devices| parts(devices)).collect()
}

#[test]
fn overlap_gives_the_same_bits() {
    let model = tiny();
    for placement in placements(model.graph().layers() as usize) {
        for length in [1, 40, 64, 200, 300] {
            let of = |overlap, ubatch_size| {
                let settings = Settings { overlap, ubatch_size, outputs: Some(512), ..settings() };
                let mut session = on(&model, pair(), &placement, settings);
                let sequence = session.open().unwrap();
                let found = answer(&mut session, sequence, &some(length, 3), 5);
                assert_eq!(session.len(sequence), length + 5);
                // More micro-batches than segments, each with output rows.
                let all = some(length.min(ubatch_size), 4);
                let run = Run { sequence, tokens: &all, wanted: Wanted::All };
                if overlap == Overlap::Always || session.len(sequence) + all.len() > 512 {
                    return (found, Vec::new());
                }
                (found, session.step(&[run]).unwrap().to_vec())
            };
            for ubatch in [512, 48] {
                let alone = of(Overlap::Off, ubatch);
                assert!(of(Overlap::Auto, ubatch) == alone, "{placement:?}, {length} tokens");
                assert!(of(Overlap::Always, ubatch).0 == alone.0, "{placement:?}, {length} tokens");
            }
        }
    }
}

/// Experts on the CPU and attention on the GPU, as with `-ncmoe`, and vice versa.
#[test]
fn experts_apart_from_their_layers_give_the_same_bits() {
    for name in ["qwen2moe", "qwen3moe"] {
        let model = Model::from_bytes("tiny", words::tiny_of(name)).unwrap();
        let of = |placing: &Placing, overlap| {
            let planner = |graph: &_, machine: &_, budget: &_| placing.plan(graph, machine, budget);
            let settings = Settings { overlap, ..settings() };
            let mut session = Session::on(&model, pair(), &planner, settings).unwrap();
            let map = session.plan().map.clone();
            let sequence = session.open().unwrap();
            (answer(&mut session, sequence, &some(200, 3), 5), map)
        };
        let all = Placing { gpu_layers: Offload::All, ..Placing::default() };
        let (expected, map) = of(&all, Overlap::Off);
        assert_eq!(map, "out:gpu 2-0:gpu");
        let named = vec![("_exps".to_owned(), 1)];
        let cases = [
            (Placing { cpu_moe_layers: u32::MAX, ..all.clone() }, "out:gpu 2-0:gpu+cpu"),
            (Placing { cpu_moe_layers: 1, ..all.clone() }, "out:gpu 2-1:gpu 0:gpu+cpu"),
            (Placing { overrides: named, ..Placing::cpu() }, "out:cpu 2-0:cpu+gpu"),
        ];
        for (placing, expected_map) in cases {
            for overlap in [Overlap::Off, Overlap::Auto, Overlap::Always] {
                let (found, map) = of(&placing, overlap);
                assert_eq!(map, expected_map);
                assert!(found == expected, "{name} {map} {overlap:?}");
            }
        }
    }
}

#[test]
fn the_cpu_works_while_work_is_submitted_to_the_gpu() {
    let model = tiny();
    let prompt = some(128, 3);
    let cases = [
        ([0, 0, 0, 1, 1], vec![(0, 0), (0, 1), (1, 0), (1, 1)]),
        ([1, 1, 1, 0, 0], vec![(0, 0), (0, 1), (1, 0), (1, 1)]),
        ([0, 0, 1, 1, 0], vec![(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]),
    ];
    for (devices, expected) in cases {
        let mut session = on(&model, pair(), &parts(&devices), settings());
        let sequence = session.open().unwrap();
        session.prefill(sequence, &prompt, &mut |_| true).unwrap();
        let given: Vec<(usize, usize)> =
            session.lanes().iter().map(|lane| (lane.segment, lane.micro_batch)).collect();
        assert_eq!(given, expected, "{devices:?}");
    }
}

/// The time during which both devices worked.
fn together(a: &[Range<Instant>], b: &[Range<Instant>]) -> Duration {
    let common = |a: &Range<Instant>, b: &Range<Instant>| {
        a.end.min(b.end).saturating_duration_since(a.start.max(b.start))
    };
    a.iter().flat_map(|a| b.iter().map(move |b| common(a, b))).sum()
}

#[test]
fn devices_work_at_the_same_time() {
    const DELAY: Duration = Duration::from_millis(20);
    let model = tiny();
    let placement = &placements(model.graph().layers() as usize)[0];
    let prompt = some(256, 3);
    for overlap in [Overlap::Off, Overlap::Auto] {
        let queued: Vec<Queued> = (0..2).map(|_| Queued::new(cpu(1), DELAY)).collect();
        let times: Vec<Times> = queued.iter().map(|device| device.times.clone()).collect();
        let backends = queued.into_iter().map(|d| Box::new(d) as Box<dyn Backend>).collect();
        let mut session = on(&model, backends, placement, Settings { overlap, ..settings() });
        let sequence = session.open().unwrap();
        let began = Instant::now();
        session.prefill(sequence, &prompt, &mut |_| true).unwrap();
        let wall = began.elapsed();

        let busy: Vec<Vec<Range<Instant>>> =
            times.iter().map(|times| times.lock().unwrap().clone()).collect();
        assert_eq!((busy[0].len(), busy[1].len()), (4, 4), "four micro-batches on each");
        let overlapped = together(&busy[0], &busy[1]);

        // The trace agrees, up to the delay of noticing the end.
        let epoch = session.lanes().epoch();
        let seen = |device| -> Vec<Range<Instant>> {
            let lanes = session.lanes().iter().filter(|lane| lane.device == device);
            let at = |ns| epoch + Duration::from_nanos(ns);
            lanes.map(|lane| at(lane.submitted_ns)..at(lane.done_ns)).collect()
        };
        let seen = together(&seen(0), &seen(1));
        let lanes: Vec<(usize, usize)> =
            session.lanes().iter().map(|lane| (lane.segment, lane.micro_batch)).collect();
        let wave = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)];
        assert_eq!(lanes, wave);
        let spent = session.take_spent();
        assert!(spent.offload() >= 4 * DELAY, "{spent:?}");
        if overlap == Overlap::Off {
            assert_eq!((overlapped, seen), (Duration::ZERO, Duration::ZERO));
            assert!(wall >= 8 * DELAY, "{wall:?}");
        } else {
            assert!(overlapped >= 2 * DELAY, "{overlapped:?} of {wall:?}");
            assert!(seen >= 2 * DELAY, "{seen:?} of {wall:?}");
        }
    }
}

/// Steps of several sequences of different lengths, some with a common prefix.
#[test]
fn sequences_alternate_and_equal_those_stepped_as_one() {
    let model = tiny();
    let placement = &placements(model.graph().layers() as usize)[0];
    let of = |overlap, sequences: usize| {
        let backends: Vec<Box<dyn Backend>> = vec![
            Box::new(Reference::new()),
            Box::new(Queued::new(Box::new(Reference::new()), Duration::ZERO)),
        ];
        let settings = Settings { overlap, sequences, ctx_size: Some(96), ..settings() };
        let mut session = on(&model, backends, placement, settings);
        let base = session.open().unwrap();
        let head = Run { sequence: base, tokens: &some(20, 1), wanted: Wanted::None };
        session.step(&[head]).unwrap();
        let ids: Vec<SequenceId> = (1..sequences)
            .map(|i| if i % 2 == 0 { session.fork(base).unwrap() } else { session.open().unwrap() })
            .chain([base])
            .collect();
        let mut all = Vec::new();
        for round in 0..4 {
            let texts: Vec<Vec<u32>> =
                (0..sequences).map(|i| some(1 + (i + round) % 2, i + round)).collect();
            let runs: Vec<Run<'_>> = ids
                .iter()
                .zip(&texts)
                .map(|(&sequence, tokens)| Run { sequence, tokens, wanted: Wanted::Last })
                .collect();
            all.extend_from_slice(session.step(&runs).unwrap());
        }
        let most = session.lanes().iter().map(|lane| lane.micro_batch).max().unwrap();
        (all, most + 1)
    };
    for (sequences, auto, always) in [(3, 1, 2), (24, 2, 2)] {
        let (one, parts) = of(Overlap::Off, sequences);
        assert_eq!(parts, 1);
        for (overlap, expected) in [(Overlap::Auto, auto), (Overlap::Always, always)] {
            let (found, parts) = of(overlap, sequences);
            assert_eq!(parts, expected, "{overlap:?} {sequences}");
            assert!(found == one, "{overlap:?} {sequences}");
        }
    }
}

/// A plan with each node on an arbitrary device.
fn scattered(
    graph: &Graph,
    machine: &Machine,
    budget: &Budget,
    devices: &[usize],
) -> Result<Plan, bilayer_scheduler::Error> {
    let plan = place(graph, machine, budget, &Placement::single(graph.layers(), 0))?;
    let of = |node: usize| devices[node % devices.len()];
    let mut segments: Vec<PlannedSegment> = Vec::new();
    for node in 0..graph.nodes.len() {
        match segments.last_mut() {
            Some(last) if last.device == of(node) => last.nodes.end = node + 1,
            _ => segments.push(PlannedSegment {
                device: of(node),
                nodes: node..node + 1,
                inputs: Vec::new(),
                outputs: Vec::new(),
            }),
        }
    }
    let made = |segment: &PlannedSegment, value| {
        graph.nodes[segment.nodes.clone()].iter().any(|node| node.op.out() == value)
    };
    for number in 0..segments.len() {
        for node in segments[number].nodes.clone() {
            for value in graph.nodes[node].op.inputs() {
                let maker = (0..=number).find(|&other| made(&segments[other], value)).unwrap();
                if maker != number && !segments[number].inputs.contains(&value) {
                    segments[number].inputs.push(value);
                    if !segments[maker].outputs.contains(&value) {
                        segments[maker].outputs.push(value);
                    }
                }
            }
        }
    }
    segments.last_mut().unwrap().outputs.push(graph.logits);
    Ok(Plan { segments, ..plan })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// Values that skip segments, and devices that occur several times, for every step and prompt.
    #[test]
    fn any_placement_of_the_nodes_gives_the_same_answer(
        devices in prop::collection::vec(0..3usize, 1..20),
        length in 1..200usize,
    ) {
        let model = tiny();
        let alone = |model: &Model| {
            let planner = |graph: &_, machine: &_, budget: &_| Ok(scattered(graph, machine, budget, &[0])?);
            Session::on(model, vec![Box::new(Reference::new())], &planner, settings()).unwrap()
        };
        let queued = || Box::new(Queued::new(Box::new(Reference::new()), Duration::ZERO));
        let backends: Vec<Box<dyn Backend>> = vec![queued(), Box::new(Reference::new()), queued()];
        let planner = |graph: &_, machine: &_, budget: &_| Ok(scattered(graph, machine, budget, &devices)?);
        let always = Settings { overlap: Overlap::Always, ..settings() };
        let mut hybrid = Session::on(&model, backends, &planner, always).unwrap();
        let mut found = Vec::new();
        for session in [&mut alone(&model), &mut hybrid] {
            let sequence = session.open().unwrap();
            let (mut all, _) = answer(session, sequence, &some(length, 1), 3);
            let run = Run { sequence, tokens: &some(30, 2), wanted: Wanted::All };
            all.push(session.step(&[run]).unwrap().to_vec());
            found.push(all);
        }
        prop_assert!(found[0] == found[1]);

        // The order of sums depends on the batch, so only equal steps give equal bits.
        let [one, other] = [Overlap::Off, Overlap::Auto].map(|overlap| {
            let queued = || Box::new(Queued::new(cpu(1), Duration::ZERO));
            let backends: Vec<Box<dyn Backend>> = vec![queued(), cpu(1), queued()];
            let settings = Settings { overlap, ..settings() };
            let mut session = Session::on(&model, backends, &planner, settings).unwrap();
            let sequence = session.open().unwrap();
            answer(&mut session, sequence, &some(length, 1), 3)
        });
        prop_assert!(one == other);
    }
}

/// The logits after each token of three sequences: one whose prompt is still computed in parts, two that decode. Each
/// has a group; `at_once` steps are in progress together.
fn turns(session: &mut Session, at_once: usize) -> Vec<Vec<Vec<f32>>> {
    let sequences: Vec<SequenceId> = (0..3).map(|_| session.open().unwrap()).collect();
    let mut next: Vec<Vec<u32>> = (0..3).map(|seed| some(5, seed)).collect();
    let mut found = vec![Vec::new(); 3];
    let mut told = |session: &mut Session, of: usize, next: &mut Vec<Vec<u32>>| {
        let row = session.finish().unwrap().to_vec();
        next[of] = match (of, found[of].len()) {
            (0, at @ 0..4) => some(70, at),
            _ => vec![argmax(&row)],
        };
        found[of].push(row);
    };
    let mut oldest = 0;
    for step in 0..24 {
        let of = step % 3;
        if session.begun() == at_once {
            told(session, oldest % 3, &mut next);
            oldest += 1;
        }
        let tokens = &next[of];
        session.begin(&[Run { sequence: sequences[of], tokens, wanted: Wanted::Last }]).unwrap();
    }
    while session.begun() > 0 {
        told(session, oldest % 3, &mut next);
        oldest += 1;
    }
    sequences.into_iter().for_each(|sequence| session.close(sequence));
    found
}

#[test]
fn steps_in_progress_together_give_the_same_bits() {
    let model = tiny();
    let layers = model.graph().layers() as usize;
    for placement in placements(layers) {
        let always = Settings { overlap: Overlap::Always, ..settings() };
        let mut session = on(&model, pair(), &placement, always);
        let expected = turns(&mut session, 1);
        assert!(turns(&mut session, 3) == expected, "{placement:?}");
        // As steps of their own, and after those steps.
        let sequence = session.open().unwrap();
        let run = Run { sequence, tokens: &some(5, 1), wanted: Wanted::Last };
        assert!(session.step(&[run]).unwrap() == expected[1][0]);
    }
    for devices in [[0, 1, 2, 1, 0], [1, 2, 0, 2, 1]] {
        let planner =
            |graph: &_, machine: &_, budget: &_| Ok(scattered(graph, machine, budget, &devices)?);
        let mut session = Session::on(&model, three(), &planner, settings()).unwrap();
        let expected = turns(&mut session, 1);
        assert!(turns(&mut session, 3) == expected, "{devices:?}");
    }
}

#[test]
fn steps_in_progress_are_taken_back_together() {
    let model = tiny();
    let placement = &placements(model.graph().layers() as usize)[0];
    let mut session = on(&model, pair(), placement, settings());
    let [one, other] = [session.open().unwrap(), session.open().unwrap()];
    session.prefill(one, &some(40, 1), &mut |_| true).unwrap();
    let run = |sequence, tokens| Run { sequence, tokens, wanted: Wanted::Last };
    session.begin(&[run(one, &[5])]).unwrap();
    // A wrong token in the second step.
    assert!(session.begin(&[run(other, &[1 << 20])]).is_err());
    assert_eq!((session.begun(), session.len(one), session.len(other)), (0, 40, 0));
    let row = session.step(&[run(one, &[5])]).unwrap().to_vec();
    session.truncate(one, 40);
    session.begin(&[run(one, &[5])]).unwrap();
    session.begin(&[run(other, &[5])]).unwrap();
    assert!(session.finish().unwrap() == row);
    session.finish().unwrap();
    assert_eq!((session.len(one), session.len(other)), (41, 1));
}

#[test]
fn a_device_that_is_lost_in_a_turn_does_not_change_the_answer() {
    let model = tiny();
    let placement = &placements(model.graph().layers() as usize)[0];
    let mut plain = on(&model, pair(), placement, settings());
    let best = |all: Vec<Vec<Vec<f32>>>| -> Vec<Vec<u32>> {
        all.iter().map(|rows| rows.iter().map(|row| argmax(row)).collect()).collect()
    };
    let expected = best(turns(&mut plain, 1));
    for (call, after) in
        [(Call::Submit, 1), (Call::Submit, 9), (Call::Write, 6), (Call::Read, 0), (Call::Read, 11)]
    {
        for fault in [Fault::Lost, Fault::OutOfMemory] {
            let (backends, failed) = failing(Script { call, after, fault });
            let mut session = on(&model, backends, placement, settings());
            assert_eq!(best(turns(&mut session, 3)), expected, "{call:?} {after} {fault:?}");
            assert!(*failed.lock().unwrap());
            assert_eq!(session.take_warnings().len(), 1);
        }
    }
}

/// A GPU, if there is one; a software adapter counts.
fn adapter() -> Option<Box<dyn Backend>> {
    support::gpu::gpu().map(|gpu| -> Box<dyn Backend> { Box::new(gpu) })
}

#[test]
fn a_gpu_overlaps_and_gives_the_same_bits() {
    let model = tiny();
    let prompt = some(200, 3);
    let alone = {
        let mut session = Session::new(&model, settings()).unwrap();
        let sequence = session.open().unwrap();
        answer(&mut session, sequence, &prompt, 12).1
    };
    for placement in placements(model.graph().layers() as usize) {
        let mut found = Vec::new();
        for overlap in [Overlap::Off, Overlap::Auto] {
            let Some(gpu) = adapter() else { return };
            let settings = Settings { overlap, top_k: Some(8), ..settings() };
            let mut session = on(&model, vec![cpu(1), gpu], &placement, settings);
            let sequence = session.open().unwrap();
            found.push(answer(&mut session, sequence, &prompt, 12));
        }
        assert!(found[0] == found[1], "{placement:?}");
        assert_eq!(found[0].1, alone, "{placement:?}");
    }
}

/// The logits of a prompt at all places, and of a token after it.
fn all_logits(session: &mut Session) -> Vec<f32> {
    let sequence = session.open().unwrap();
    let [prompt, more] = [some(40, 5), some(1, 6)].map(|tokens| {
        session.step(&[Run { sequence, tokens: &tokens, wanted: Wanted::All }]).unwrap().to_vec()
    });
    [prompt, more].concat()
}

/// Types that a GPU converts at load, and rows with one scale: `verify` passes on each device, and every cut has the logits of
/// exact arithmetic but for the rounding of activations.
#[test]
fn sparse_and_row_scaled_types_are_right_on_each_device_and_cut() {
    for ty in [Type::S8_8_64, Type::S4_16_64, Type::W8A8] {
        let synth = Synth::new(Shape::find("tiny").unwrap(), Mix::pure(ty).unwrap());
        let file = File::from_bytes("tiny", synth.to_bytes().unwrap()).unwrap();
        let of_type = file.tensors().iter().filter(|tensor| tensor.layout().ty() == ty);
        assert!(of_type.count() >= 14, "{ty}");
        let model = Model::new(file).unwrap();
        let queued = || -> Box<dyn Backend> { Box::new(Queued::new(cpu(1), Duration::ZERO)) };
        let gpus = || [Some(("queued CPU", queued())), adapter().map(|gpu| ("gpu", gpu))];
        for (name, mut device) in [("cpu", cpu(1))].into_iter().chain(gpus().into_iter().flatten())
        {
            let (reference, tokens) = (&mut Reference::new(), some(20, 4));
            let input = verify::Input::new(&tokens);
            let report =
                verify::verify(&model, reference, device.as_mut(), input, &mut |_, _| true)
                    .unwrap();
            assert!(report.is_good(), "{ty} on {name}: {:?}", report.first_bad());
        }
        let layers = model.graph().layers() as usize;
        let whole = parts(&vec![0; layers + 2]);
        let expected =
            all_logits(&mut on(&model, vec![Box::new(Reference::new())], &whole, settings()));
        let norm =
            |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>().sqrt();
        for placement in placements(layers) {
            for (name, device) in gpus().into_iter().flatten() {
                let mut session = on(&model, vec![cpu(1), device], &placement, settings());
                let found = all_logits(&mut session);
                let off = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
                let error = off / norm(&mut expected.iter().copied());
                assert!(error < 0.03, "{ty} with {name}, {placement:?}: {error}");
                assert!(
                    session.plan().devices.iter().all(|device| device.parts > 0),
                    "{placement:?}"
                );
            }
        }
    }
}

#[test]
fn an_interrupted_prefill_resumes_where_it_stopped() {
    let model = tiny();
    let placement = &placements(model.graph().layers() as usize)[0];
    let prompt = some(300, 3);
    let mut session = on(&model, pair(), placement, settings());
    let whole = session.open().unwrap();
    let (expected, _) = answer(&mut session, whole, &prompt, 0);
    let sequence = session.open().unwrap();
    let mut told = Vec::new();
    let stopped = session.prefill(sequence, &prompt, &mut |done| {
        told.push(done);
        told.len() < 2
    });
    assert!(stopped.unwrap().is_none());
    assert_eq!(told, [75, 150]);
    let begun = session.len(sequence);
    assert!((150..300).contains(&begun), "{begun} tokens");
    let (found, _) = answer(&mut session, sequence, &prompt[begun..], 0);
    let off = found[0].iter().zip(&expected[0]).fold(0.0f32, |a, (f, e)| a.max((f - e).abs()));
    assert!(off < 1e-4, "{off}");
}

/// The answers of three sequences stepped together, two with a common prefix, and the session's warnings.
fn conversation(session: &mut Session) -> (Vec<Vec<u32>>, Vec<Warning>) {
    let head = session.open().unwrap();
    session.prefill(head, &some(70, 4), &mut |_| true).unwrap();
    let fork = session.fork(head).unwrap();
    let other = session.open().unwrap();
    session.prefill(other, &some(5, 9), &mut |_| true).unwrap();
    let ids = [head, fork, other];
    let mut texts: Vec<Vec<u32>> = (0..3).map(|i| vec![20 + i]).collect();
    for _ in 0..6 {
        let runs: Vec<Run<'_>> = ids
            .iter()
            .zip(&texts)
            .map(|(&sequence, text)| Run {
                sequence,
                tokens: &text[text.len() - 1..],
                wanted: Wanted::Last,
            })
            .collect();
        let rows = session.step(&runs).unwrap();
        let next: Vec<u32> = rows.chunks_exact(rows.len() / 3).map(argmax).collect();
        texts.iter_mut().zip(next).for_each(|(text, token)| text.push(token));
    }
    (texts, session.take_warnings())
}

/// A CPU and a simulated GPU that fails as scripted, and whether it has failed.
fn failing(script: Script) -> (Vec<Box<dyn Backend>>, Arc<Mutex<bool>>) {
    let device = Failing::new(Box::new(Queued::new(cpu(1), Duration::ZERO)), script);
    let failed = device.failed.clone();
    (vec![cpu(1), Box::new(device)], failed)
}

#[test]
fn a_device_that_fails_at_any_call_does_not_change_the_answer() {
    let model = tiny();
    let layers = model.graph().layers() as usize;
    let expected = conversation(&mut Session::new(&model, settings()).unwrap());
    assert_eq!(expected.1, []);
    let placements = placements(layers);
    // The third page of the prefix holds 6 prompt tokens and is no longer shared once both sequences have continued.
    let most = 70 + 6 + 5 + 3 * 6;
    let faults = [Fault::Lost, Fault::OutOfMemory];
    for (placement, fault) in placements.iter().flat_map(|p| faults.map(|fault| (p, fault))) {
        for call in CALLS {
            let mut tried = 0;
            for after in 0.. {
                let (backends, failed) = failing(Script { call, after, fault });
                let mut session = on(&model, backends, placement, settings());
                let (texts, warnings) = conversation(&mut session);
                assert_eq!(texts, expected.0, "{placement:?} {fault:?} {call:?} {after}");
                if !*failed.lock().unwrap() {
                    assert_eq!(warnings, []);
                    break;
                }
                tried += 1;
                let at_load = matches!(call, Call::Reserve | Call::Load | Call::Compile);
                let told = match &warnings[..] {
                    [Warning::Reduced { from, to, .. }] => at_load && from != to,
                    [Warning::Moved { tokens, .. }] => !at_load && *tokens <= most,
                    _ => false,
                };
                assert!(told, "{fault:?} {call:?} {after}: {warnings:?}");
            }
            // A first segment has no input to write.
            let is_first = call == Call::Write && placement.embedding == 1;
            assert!(tried > 0 || is_first, "{call:?} never failed");
        }
    }
}

#[test]
fn pages_that_sequences_share_are_computed_once() {
    let model = tiny();
    let placement = &placements(model.graph().layers() as usize)[0];
    let script = Script { call: Call::Submit, after: 6, fault: Fault::Lost };
    let (backends, _) = failing(script);
    let mut session = on(&model, backends, placement, settings());
    let head = session.open().unwrap();
    session.prefill(head, &some(64, 4), &mut |_| true).unwrap();
    for i in 0..3 {
        let fork = session.fork(head).unwrap();
        let run = Run { sequence: fork, tokens: &some(2, i), wanted: Wanted::Last };
        session.step(&[run]).unwrap();
    }
    // Two micro-batches of the prompt and a step of each fork make five submits; the seventh loses the device.
    let run = Run { sequence: head, tokens: &[7], wanted: Wanted::Last };
    session.step(&[run]).unwrap();
    assert_eq!(session.take_warnings(), []);
    session.step(&[run]).unwrap();
    let warnings = session.take_warnings();
    let [Warning::Moved { tokens, .. }] = warnings[..] else { panic!("{warnings:?}") };
    assert_eq!(tokens, 64 + 3 * 2 + 1);
}

/// Values of a step that a GPU cannot bind make steps smaller, and what does not fit then either is on the CPU.
#[test]
fn steps_are_as_large_as_a_gpu_can_bind_their_values() {
    let model = tiny();
    let layers = model.graph().layers() as usize;
    let large = || Settings { ubatch_size: 1024, ctx_size: Some(256), ..settings() };
    let mut cpu = Session::new(&model, large()).unwrap();
    let expected = conversation(&mut cpu).0;
    for (bytes, tokens) in [(1 << 19, 1024), (1 << 18, 512), (1 << 17, 256), (1 << 16, 1024)] {
        let Some(gpu) = support::gpu::that_binds(bytes) else { return };
        let backends: Vec<Box<dyn Backend>> = vec![self::cpu(1), Box::new(gpu)];
        let mut session = on(&model, backends, &placements(layers)[0], large());
        let (texts, warnings) = conversation(&mut session);
        assert_eq!(texts, expected);
        assert_eq!(session.limits().tokens, tokens, "{warnings:?}");
        let told = match bytes {
            // Its keys cannot be bound either.
            0x1_0000 => warnings.iter().all(|told| matches!(told, Warning::Reduced { .. })),
            _ => matches!(
                warnings[..],
                [] | [Warning::SmallerSteps {
                    error: bilayer_graph::Error::StepTooLarge { found: 1024, .. }
                }]
            ),
        };
        assert!(told && warnings.is_empty() == (bytes == 1 << 19), "{warnings:?}");
    }
}

/// A GPU that has no layer, but experts of all layers.
#[test]
fn a_device_with_pinned_tensors_alone_may_fail_while_the_session_is_prepared() {
    let model = Model::from_bytes("tiny", words::tiny_of("qwen3moe")).unwrap();
    let expected = conversation(&mut Session::new(&model, settings()).unwrap()).0;
    let placing = Placing { overrides: vec![("_exps".to_owned(), 1)], ..Placing::cpu() };
    let planner = |graph: &_, machine: &_, budget: &_| placing.plan(graph, machine, budget);
    for call in [Call::Reserve, Call::Load, Call::Compile] {
        for fault in [Fault::Lost, Fault::OutOfMemory] {
            let (backends, _) = failing(Script { call, after: 0, fault });
            let mut session = Session::on(&model, backends, &planner, settings()).unwrap();
            let (texts, warnings) = conversation(&mut session);
            assert!(
                matches!(&warnings[..], [Warning::Reduced { from, to, .. }] if from != to),
                "{call:?} {fault:?}: {warnings:?}"
            );
            assert_eq!(texts, expected, "{call:?} {fault:?}");
        }
    }
}

#[test]
fn a_refusal_halves_the_layers_of_a_device() {
    let model = tiny();
    let layers = model.graph().layers();
    let placement = Placement::offload(layers, layers + 1, 0, 1);
    let script = Script { call: Call::Reserve, after: 0, fault: Fault::OutOfMemory };
    let (backends, _) = failing(script);
    let mut session = on(&model, backends, &placement, settings());
    let expected = Placement::offload(layers, layers / 2 + 1, 0, 1);
    let labels = ["cpu".to_owned(), "gpu".to_owned()];
    assert_eq!(session.plan().map, expected.map(&labels));
    let warning = session.take_warnings().remove(0).to_string();
    assert!(warning.contains("out of memory") && warning.contains(&expected.map(&labels)));
}

/// A GPU without a CPU beside it, and a failure on the CPU as well.
#[test]
fn a_cpu_backend_is_created_if_there_is_none() {
    let model = tiny();
    let alone = Placement::single(model.graph().layers(), 0);
    let expected = conversation(&mut Session::new(&model, settings()).unwrap()).0;
    for call in CALLS.into_iter().filter(|&call| call != Call::Write) {
        let device = Failing::new(cpu(1), Script { call, after: 0, fault: Fault::Lost });
        let mut session = on(&model, vec![Box::new(device)], &alone, settings());
        let (texts, warnings) = conversation(&mut session);
        assert_eq!((texts, warnings.len()), (expected.clone(), 1), "{call:?}");
        assert!(session.backends().any(|b| !b.facts().can_be_lost));
    }
}

/// Bytes of a file's mapping that are resident.
#[cfg(target_os = "linux")]
fn resident_bytes(path: &std::path::Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = maps.lines().skip_while(|line| !line.ends_with(path.to_str().unwrap()));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Pages copied to the GPU leave host memory, except those that the CPU reads, and return when the GPU is lost.
#[test]
#[cfg(target_os = "linux")]
fn pages_leave_memory_once_the_gpu_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, words::tiny(Type::F32, 7)).unwrap();
    let expected = conversation(&mut Session::new(&tiny(), settings()).unwrap()).0;
    let model = || Model::open(&path, bilayer_engine::OpenOptions::default()).unwrap();
    let size = std::fs::metadata(&path).unwrap().len() as usize;
    let layers = model().graph().layers();
    for (placement, most) in
        [(Placement::single(layers, 1), size / 4), (Placement::offload(layers, 2, 0, 1), size)]
    {
        let model = model();
        // The reference copies its weights, as a GPU does.
        let script = Script { call: Call::Submit, after: 3, fault: Fault::Lost };
        let device = Failing::new(Box::new(Reference::new()), script);
        let mut session = on(&model, vec![cpu(1), Box::new(device)], &placement, settings());
        let resident = resident_bytes(&path);
        assert!(resident <= most, "{resident} of {size} bytes under {}", session.plan().map);
        let (texts, warnings) = conversation(&mut session);
        assert_eq!((texts, warnings.len()), (expected.clone(), 1));
        assert!(resident_bytes(&path) > size / 2, "the CPU reads the file");
    }
}

/// The planner of a placement.
fn as_placed(
    placement: &Placement,
) -> impl Fn(&Graph, &Machine, &Budget) -> Result<Plan, Error> + '_ {
    move |graph, machine, budget| Ok(place(graph, machine, budget, placement)?)
}

/// Layers move between devices in the middle of a conversation of sequences that share pages.
#[test]
fn layers_move_with_their_caches() {
    for (cache, _) in bilayer_quant::cache::TYPES {
        let model = tiny();
        let settings = || Settings { cache_type_k: cache, cache_type_v: cache, ..settings() };
        let layers = model.graph().layers();
        let mut alone = Session::on(
            &model,
            vec![cpu(1)],
            &as_placed(&Placement::single(layers, 0)),
            settings(),
        )
        .unwrap();
        let mut moving = on(&model, pair(), &Placement::offload(layers, 2, 0, 1), settings());
        let mut placements = placements(layers as usize);
        placements.extend((0..=layers + 1).map(|count| Placement::offload(layers, count, 0, 1)));
        let mut prompts = Vec::new();
        for session in [&mut alone, &mut moving] {
            let head = session.open().unwrap();
            let first =
                session.prefill(head, &some(70, 4), &mut |_| true).unwrap().unwrap().to_vec();
            let fork = session.fork(head).unwrap();
            prompts.push((head, fork, first));
        }
        assert_eq!(prompts[0].2.len(), prompts[1].2.len());
        for (i, placement) in placements.iter().enumerate() {
            let before = moving.plan().map.clone();
            moving.place(&as_placed(placement)).unwrap();
            assert_eq!(moving.plan().placement, *placement);
            let mut found = Vec::new();
            for (session, (head, fork, _)) in [&mut alone, &mut moving].into_iter().zip(&prompts) {
                for sequence in [*head, *fork] {
                    let run = Run { sequence, tokens: &some(1, i), wanted: Wanted::Last };
                    found.push(session.step(&[run]).unwrap().to_vec());
                }
            }
            let moves = format!("{cache}: {before} to {placement:?}");
            assert!(found[..2] == found[2..], "{moves}");
            assert_eq!(moving.take_warnings(), []);
        }
    }
}

/// Weights that remain on a device are not loaded again.
#[test]
fn weights_that_stay_are_not_loaded_again() {
    let model = tiny();
    let layers = model.graph().layers();
    let gpu = || adapter();
    let Some(device) = gpu() else { return };
    let mut session =
        on(&model, vec![cpu(1), device], &Placement::offload(layers, 1, 0, 1), settings());
    let sequence = session.open().unwrap();
    session.prefill(sequence, &some(40, 1), &mut |_| true).unwrap();
    // More layers, then fewer: the logits of the next token equal those of a new session with that placement.
    for count in [2, layers + 1, 1, 0, 2] {
        let placement = Placement::offload(layers, count, 0, 1);
        session.place(&as_placed(&placement)).unwrap();
        let at = session.len(sequence);
        let run = Run { sequence, tokens: &[9], wanted: Wanted::Last };
        let found = session.step(&[run]).unwrap().to_vec();
        session.truncate(sequence, at);
        let Some(device) = gpu() else { return };
        let mut fresh = on(&model, vec![cpu(1), device], &placement, settings());
        let other = fresh.open().unwrap();
        fresh.prefill(other, &some(40, 1), &mut |_| true).unwrap();
        let run = Run { sequence: other, ..run };
        let expected = fresh.step(&[run]).unwrap();
        let off = found.iter().zip(expected).fold(0.0f32, |a, (f, e)| a.max((f - e).abs()));
        assert!(off < 1e-3, "{count} parts: {off}");
    }
}

/// If a device fails while layers move, all layers move to the CPU, with the same tokens.
#[test]
fn a_device_that_fails_while_layers_move_does_not_change_the_answer() {
    let model = tiny();
    let layers = model.graph().layers();
    let prompt = some(70, 4);
    let mut alone = Session::new(&model, settings()).unwrap();
    let sequence = alone.open().unwrap();
    let (_, expected) = answer(&mut alone, sequence, &prompt, 12);
    let calls = [Call::Reserve, Call::Load, Call::Compile, Call::Save, Call::Restore];
    for (call, fault) in calls.into_iter().flat_map(|c| [(c, Fault::Lost), (c, Fault::OutOfMemory)])
    {
        let mut failures = 0;
        for after in 0.. {
            let (backends, failed) = failing(Script { call, after, fault });
            let mut session =
                on(&model, backends, &Placement::offload(layers, 2, 0, 1), settings());
            session.take_warnings();
            let sequence = session.open().unwrap();
            let (_, mut text) = answer(&mut session, sequence, &prompt, 4);
            for count in [layers + 1, 1] {
                let placement = Placement::offload(layers, count, 0, 1);
                let placed = session.place(&as_placed(&placement));
                assert!(placed.is_ok() || *failed.lock().unwrap(), "{placed:?}");
                for _ in 0..4 {
                    let run =
                        Run { sequence, tokens: &text[text.len() - 1..], wanted: Wanted::Last };
                    let next = argmax(session.step(&[run]).unwrap());
                    text.push(next);
                }
            }
            assert_eq!(text, expected, "{call:?} {after} {fault:?}");
            if !*failed.lock().unwrap() {
                break;
            }
            failures += 1;
        }
        assert!(failures > 0, "{call:?} never failed");
    }
}

/// Bytes that the CPU needs for a placement besides weights.
fn besides(model: &Model, placement: &Placement) -> u64 {
    let session = on(model, pair(), placement, settings());
    let host = &session.plan().devices[0];
    host.used_bytes - host.weight_bytes
}

/// A session whose CPU has so much memory, and whose GPU fails.
fn crowded(model: &Model, placement: &Placement, memory_bytes: u64, script: Script) -> Session {
    let (mut backends, _) = failing(script);
    let never = Script { call: Call::Reserve, after: usize::MAX, fault: Fault::Lost };
    let mut host = Failing::new(backends.remove(0), never);
    host.facts = Facts { memory_bytes, ..cpu(1).facts().clone() };
    backends.insert(0, Box::new(host));
    let planner =
        |graph: &_, machine: &_, budget: &_| Ok(place_mapped(graph, machine, budget, placement)?);
    Session::on(model, backends, &planner, settings()).unwrap()
}

#[test]
fn a_cpu_with_less_memory_than_weights_takes_over() {
    let model = tiny();
    let expected = conversation(&mut Session::new(&model, settings()).unwrap()).0;
    let memory = besides(&model, &Placement::single(model.graph().layers(), 0));
    let placement = &placements(model.graph().layers() as usize)[0];
    for (call, after) in [(Call::Reserve, 0), (Call::Submit, 4)] {
        for fault in [Fault::Lost, Fault::OutOfMemory] {
            let script = Script { call, after, fault };
            let mut session = crowded(&model, placement, memory, script);
            let (texts, warnings) = conversation(&mut session);
            assert_eq!((texts, warnings.len()), (expected.clone(), 1), "{script:?}: {warnings:?}");
        }
    }
}

#[test]
fn if_the_cpu_has_no_room_the_error_names_both_causes() {
    let model = tiny();
    let placement = &placements(model.graph().layers() as usize)[0];
    let script = Script { call: Call::Submit, after: 4, fault: Fault::Lost };
    let mut session = crowded(&model, placement, besides(&model, placement), script);
    let sequence = session.open().unwrap();
    session.prefill(sequence, &some(80, 1), &mut |_| true).unwrap();
    let run = Run { sequence, tokens: &[9], wanted: Wanted::Last };
    session.step(&[run]).unwrap();
    session.step(&[run]).unwrap();
    // A second attempt gives the same error, and the sequence is unchanged.
    for _ in 0..2 {
        let error = session.step(&[run]).unwrap_err();
        let Error::Fallback { lost, source } = &error else { panic!("{error}") };
        assert!(matches!(lost, bilayer_graph::Error::DeviceLost { .. }), "{error}");
        assert!(matches!(**source, Error::Plan(_)), "{error}");
        assert_eq!((session.len(sequence), session.take_warnings()), (82, vec![]));
    }
}

#[test]
fn errors_other_than_device_failures_are_returned() {
    let bytes = words::tiny_with(Type::F32, 7, &|name, values| {
        if name == "blk.1.ffn_down.weight" {
            values[17] = f32::NAN;
        }
    });
    let model = Model::from_bytes("damaged", bytes).unwrap();
    for placement in placements(model.graph().layers() as usize) {
        let mut session = on(&model, pair(), &placement, settings());
        let sequence = session.open().unwrap();
        let compiled = |session: &Session| -> Vec<SegmentId> {
            session.backends().map(|backend| backend.next_segment()).collect()
        };
        let before = compiled(&session);
        let error = session.prefill(sequence, &some(100, 1), &mut |_| true).unwrap_err();
        assert_eq!(compiled(&session), before, "what was compiled for the error is freed");
        let Error::Device(bilayer_graph::Error::NotFinite { label, .. }) = &error else {
            panic!("{error}")
        };
        assert!(label.contains("layer 1") && label.contains("ffn_down"), "{error}");
        assert_eq!((session.len(sequence), session.take_warnings()), (0, vec![]));
    }
}

/// A CPU and two GPUs.
fn three() -> Vec<Box<dyn Backend>> {
    let gpu = || Box::new(Queued::new(cpu(1), Duration::ZERO));
    vec![cpu(1), gpu(), gpu()]
}

#[test]
fn three_devices_answer_as_one() {
    let model = tiny();
    let layers = model.graph().layers() as usize;
    let prompt = some(200, 3);
    let mut alone = Session::new(&model, settings()).unwrap();
    let sequence = alone.open().unwrap();
    let (_, expected) = answer(&mut alone, sequence, &prompt, 6);
    assert!(alone.take_spent().crossing.is_zero(), "nothing crosses on one device");
    // Halves on the two GPUs, a third on each device, and each layer on another device than the one before.
    let ways: [&dyn Fn(usize) -> usize; 3] =
        [&|part| 1 + part * 2 / (layers + 2), &|part| part * 3 / (layers + 2), &|part| {
            2 - part % 3
        }];
    for way in ways {
        let placement = parts(&(0..layers + 2).map(way).collect::<Vec<_>>());
        let of = |overlap| {
            let settings = Settings { overlap, ..settings() };
            let mut session = on(&model, three(), &placement, settings);
            let sequence = session.open().unwrap();
            let found = answer(&mut session, sequence, &prompt, 6);
            let spent = session.take_spent();
            let busy = session.plan().devices.iter().map(|device| device.parts > 0);
            for (is_used, spent) in busy.zip(&spent.devices) {
                assert!(!is_used || !spent.is_zero(), "{spent:?} of {placement:?}");
            }
            assert_eq!(spent.devices.len(), 3);
            assert!(!spent.crossing.is_zero(), "{placement:?}");
            found
        };
        let (apart, together) = (of(Overlap::Off), of(Overlap::Auto));
        assert!(apart == together, "{placement:?}");
        assert_eq!(apart.1, expected, "{placement:?}");
    }
}

/// At the first call of each kind, and in the middle of answers.
#[test]
fn the_other_gpu_takes_over_from_one_that_fails() {
    let model = tiny();
    let layers = model.graph().layers();
    let expected = conversation(&mut Session::new(&model, settings()).unwrap()).0;
    let placement = Placement::split(layers, 0, &[(1, layers - 1), (2, 2)]);
    let first = CALLS.map(|call| (call, 0));
    let moments = first.into_iter().chain([(Call::Submit, 6), (Call::Write, 4), (Call::Read, 4)]);
    let scripts = moments.flat_map(|(call, after)| {
        [Fault::Lost, Fault::OutOfMemory].map(|fault| Script { call, after, fault })
    });
    for (failing, script) in scripts.flat_map(|script| [(1, script), (2, script)]) {
        let mut backends = three();
        let device = Failing::new(backends.remove(failing), script);
        let failed = device.failed.clone();
        backends.insert(failing, Box::new(device));
        let mut session = on(&model, backends, &placement, settings());
        let (texts, warnings) = conversation(&mut session);
        let what = format!("gpu{} {script:?}", failing - 1);
        assert!(*failed.lock().unwrap(), "{what}: never failed");
        assert_eq!(texts, expected, "{what}");
        let plan = session.plan();
        let [warning] = &warnings[..] else { panic!("{what}: {warnings:?}") };
        let at_load = matches!(script.call, Call::Reserve | Call::Load | Call::Compile);
        match warning {
            // Only the embedding remains on the host.
            Warning::Moved { .. } if !at_load => {
                assert_eq!(plan.map, format!("out:gpu {}-0:gpu", layers - 1), "{what}");
            }
            Warning::Reduced { .. } if at_load => {
                let had = placement.layers.iter().filter(|of| **of == failing).count() as u32;
                let kept = if script.fault == Fault::OutOfMemory { had / 2 } else { 0 };
                let parts = [failing, 0].map(|device| plan.devices[device].parts);
                assert_eq!(parts, [kept, 0], "{what}");
            }
            _ => panic!("{what}: {warning}"),
        }
        assert!(!warning.to_string().contains("all runs on"), "{what}: {warning}");
    }
}

#[test]
fn the_host_takes_layers_the_other_gpu_has_no_room_for() {
    let model = tiny();
    let layers = model.graph().layers();
    let placement = Placement::split(layers, 0, &[(1, layers), (2, 1)]);
    // Room for the head and one layer.
    let two = Placement::split(layers, 0, &[(2, 2)]);
    let room = on(&model, three(), &two, settings()).plan().devices[2].used_bytes;
    let expected = conversation(&mut Session::new(&model, settings()).unwrap()).0;
    let mut backends = three();
    // The second GPU takes what fits, or is lost as well.
    let never = Script { call: Call::Reserve, after: usize::MAX, fault: Fault::Lost };
    let again = Script { call: Call::Reserve, after: 1, fault: Fault::Lost };
    for (script, hosts) in [(never, layers - 1), (again, layers + 1)] {
        let mut small = Failing::new(backends.remove(2), script);
        small.facts.memory_bytes = room;
        let first = Script { call: Call::Submit, after: 3, fault: Fault::Lost };
        let first = Failing::new(backends.remove(1), first);
        let all: Vec<Box<dyn Backend>> = vec![cpu(1), Box::new(first), Box::new(small)];
        let mut session = on(&model, all, &placement, settings());
        let (texts, warnings) = conversation(&mut session);
        assert_eq!((texts, warnings.len()), (expected.clone(), 1), "{warnings:?}");
        assert_eq!(session.plan().devices[0].parts, hosts, "{}", session.plan().map);
        backends = three();
    }
}
