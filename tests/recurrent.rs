//! The promise that layers which carry a state compute the same however a text is fed, forked, cut back, moved or saved.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use std::path::Path;
use std::time::Duration;

use bilayer_engine::generate::Statistics;
use bilayer_engine::generate::speculate::{Bounds, DraftModel, Drafter, Lookup};
use bilayer_engine::placement::Placing;
use bilayer_engine::session::{
    Overlap, Run, SavedSequence, SequenceId, Session, Settings, Wanted, Warning,
};
use bilayer_engine::{Error, Model};
use bilayer_graph::reference::Reference;
use bilayer_graph::{Backend, Graph, StateId};
use bilayer_models::{DeltaNet, Mixer};
use bilayer_quant::Type;
use bilayer_scheduler::{Budget, Machine, Placement, Plan, place};
use serde::Deserialize;

mod support {
    pub mod checkpoint;
    pub mod data;
    pub mod devices;
    pub mod gpu;
    pub mod greedy;
    pub mod logits;
    pub mod model;
    pub mod runner;
}

use support::data::shared;
use support::devices::{Call, Failing, Fault, Queued, Script, cpu};
use support::logits::argmax;
use support::runner::{LIMITS, Runner};
use support::{checkpoint, gpu, greedy};

/// Checkpoints whose layers carry a state: of the shared data or our own. The last one has no attention in any layer.
const CHECKPOINTS: [&str; 7] =
    ["lfm2", "lfm2-moe", "granite-hybrid", "qwen35", "qwen35-moe", "nemotron-h", "mamba2"];

/// Bound on [`error`]: expected logits have five decimals, and devices sum floats in their own order (AMX tiles: 4.6e-5).
const BOUND: f32 = 5e-5;

/// A checkpoint with what the original code computed.
struct Subject {
    name: &'static str,
    model: Model,
    expected: Expected,
}

#[derive(Deserialize)]
struct Expected {
    cases: Vec<Case>,
    splits: Splits,
    forks: Forks,
    state_after: Option<StateAfter>,
}

#[derive(Deserialize)]
struct Case {
    ids: Vec<u32>,
    argmax_each: Vec<u32>,
    logits_last: Vec<f32>,
}

#[derive(Deserialize)]
struct Splits {
    case: usize,
    cuts: Vec<usize>,
}

#[derive(Deserialize)]
struct Forks {
    case: usize,
    prefix: usize,
    branches: Vec<Case>,
}

#[derive(Deserialize)]
struct StateAfter {
    case: usize,
    layers: Vec<LayerState>,
}

#[derive(Deserialize)]
struct LayerState {
    layer: u32,
    /// Channels, and rows of each.
    conv_shape: [usize; 2],
    conv_first: Vec<Vec<f32>>,
    conv_last: Vec<f32>,
    conv_norm: f32,
    /// Of a recurrence: heads, rows of each, elements of these.
    state_shape: Option<[usize; 3]>,
    #[serde(default)]
    state_norm_per_head: Vec<f32>,
    /// The first elements of the first rows of the first head.
    #[serde(default)]
    state_corner: Vec<Vec<f32>>,
}

impl Expected {
    fn long(&self) -> &Case {
        &self.cases[self.splits.case]
    }
}

fn subjects() -> impl Iterator<Item = Subject> {
    CHECKPOINTS.into_iter().filter_map(|name| {
        let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints")).join(name);
        let folder = if own.exists() { own } else { shared(&format!("arch-tiny/{name}"))? };
        let text = std::fs::read_to_string(folder.join("reference.json")).unwrap();
        let model = Model::from_bytes(name, checkpoint::bytes(&folder, Type::F32)).unwrap();
        Some(Subject { name, model, expected: serde_json::from_str(&text).unwrap() })
    })
}

fn settings() -> Settings<'static> {
    Settings {
        threads: Some(1),
        ctx_size: Some(256),
        sequences: 4,
        ubatch_size: 192,
        outputs: Some(192),
        cache_type_k: Type::F32,
        cache_type_v: Type::F32,
        placing: Placing::cpu(),
        ..Settings::default()
    }
}

fn as_placed(placement: &Placement) -> impl Fn(&Graph, &Machine, &Budget) -> Result<Plan, Error> {
    move |graph, machine, budget| Ok(place(graph, machine, budget, placement)?)
}

fn session(model: &Model, settings: Settings<'static>) -> Session {
    let placement = Placement::single(model.graph().layers(), 0);
    Session::on(model, vec![cpu(2)], &as_placed(&placement), settings).unwrap()
}

/// The logits after each of `tokens`, fed in pieces of `size`.
fn feed(session: &mut Session, sequence: SequenceId, tokens: &[u32], size: usize) -> Vec<f32> {
    let piece = |tokens| {
        let run = Run { sequence, tokens, wanted: Wanted::All };
        session.step(&[run]).unwrap().to_vec()
    };
    tokens.chunks(size).flat_map(piece).collect()
}

/// √(Σ(found - expected)² / Σ expected²).
fn error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = found.iter().zip(expected).map(|(f, e)| square(f - e)).sum();
    let whole: f64 = expected.iter().map(|&e| square(e)).sum();
    (off / whole).sqrt() as f32
}

fn best(logits: &[f32], vocab: usize) -> Vec<u32> {
    logits.chunks_exact(vocab).map(argmax).collect()
}

/// Compares rows of logits with the best token of each, and the last one with its logits.
#[track_caller]
fn check(logits: &[f32], expected: &Case, what: &str) {
    let vocab = expected.logits_last.len();
    let off = error(&logits[logits.len() - vocab..], &expected.logits_last);
    assert!(off <= BOUND, "{what}: error {off:e}");
    let rows = logits.len() / vocab;
    let each = &expected.argmax_each[expected.argmax_each.len() - rows..];
    assert_eq!(best(logits, vocab), each, "{what}");
}

#[test]
fn a_text_in_pieces_of_any_size_is_the_text_at_once() {
    for Subject { name, model, expected } in subjects() {
        let (case, mut session) = (expected.long(), session(&model, settings()));
        for size in (1..=65).chain([case.ids.len()]) {
            let sequence = session.open().unwrap();
            let logits = feed(&mut session, sequence, &case.ids, size);
            check(&logits, case, &format!("{name}, pieces of {size}"));
            session.close(sequence);
        }
        for &cut in &expected.splits.cuts {
            let sequence = session.open().unwrap();
            let (start, end) = case.ids.split_at(cut);
            feed(&mut session, sequence, start, start.len());
            check(&feed(&mut session, sequence, end, 192), case, &format!("{name}, cut at {cut}"));
            session.close(sequence);
        }
    }
}

/// The whole model on the GPU, and layers in turn on the CPU and the GPU.
#[test]
fn pieces_on_the_gpu_give_the_same_text() {
    if gpu::gpu().is_none() {
        return;
    }
    for Subject { name, model, expected } in subjects() {
        let (case, layers) = (expected.long(), model.graph().layers() as usize);
        let mixed = Placement {
            embedding: 0,
            layers: (0..layers).map(|layer| layer % 2).collect(),
            output: 0,
            exceptions: Default::default(),
        };
        for placement in [Placement::single(layers as u32, 1), mixed] {
            let backends: Vec<Box<dyn Backend>> = vec![cpu(2), Box::new(gpu::gpu().unwrap())];
            let planner = as_placed(&placement);
            let mut session = Session::on(&model, backends, &planner, settings()).unwrap();
            for size in [5, 65, case.ids.len()] {
                let sequence = session.open().unwrap();
                let logits = feed(&mut session, sequence, &case.ids, size);
                check(&logits, case, &format!("{name}, {placement:?}, pieces of {size}"));
                session.close(sequence);
            }
        }
    }
}

#[test]
fn sequences_of_one_step_keep_their_states_apart() {
    for Subject { name, model, expected } in subjects() {
        let (long, short) = (expected.long(), &expected.cases[0]);
        let mut session = session(&model, settings());
        let [a, b] = [session.open().unwrap(), session.open().unwrap()];
        feed(&mut session, a, &long.ids[..100], 33);
        let (one, rest) = short.ids.split_first().unwrap();
        for (long_part, short_part) in
            [(&long.ids[100..101], std::slice::from_ref(one)), (&long.ids[101..], rest)]
        {
            let runs = [(a, long_part), (b, short_part)].map(|(sequence, tokens)| Run {
                sequence,
                tokens,
                wanted: Wanted::All,
            });
            let rows = long_part.len() * session.vocab();
            let logits = session.step(&runs).unwrap();
            let (of_long, of_short) = (logits[..rows].to_vec(), logits[rows..].to_vec());
            if short_part.len() > 1 {
                check(&of_long, long, &format!("{name}, the long one"));
                check(&of_short, short, &format!("{name}, the short one"));
            }
        }
    }
}

#[test]
fn forks_and_rejected_tokens_leave_the_state_of_their_prefix() {
    for Subject { name, model, expected } in subjects() {
        let Forks { case, prefix, branches } = &expected.forks;
        let ids = &expected.cases[*case].ids[..*prefix];
        let mut session = session(&model, settings());
        let base = session.open().unwrap();
        feed(&mut session, base, ids, 40);
        for (number, branch) in branches.iter().enumerate() {
            let fork = session.fork(base).unwrap();
            let logits = feed(&mut session, fork, &branch.ids, 3);
            check(&logits, branch, &format!("{name}, fork {number}"));
            session.close(fork);
            // Wrong tokens, and back.
            feed(&mut session, base, &[9, 8, 7, 6, 5], 5);
            assert_eq!(session.truncate(base, *prefix), *prefix, "{name}: the end of a step");
            let logits = feed(&mut session, base, &branch.ids, 192);
            check(&logits, branch, &format!("{name}, rollback {number}"));
            assert_eq!(session.truncate(base, *prefix), *prefix);
        }
    }
}

/// Whatever number of checkpoints there is, a sequence returns to no more tokens than asked for, and goes on from there.
#[test]
fn any_length_is_reached_from_the_last_checkpoint_before_it() {
    for Subject { name, model, expected } in subjects() {
        let case = expected.long();
        for checkpoints in [0, 1, 4, 64] {
            let mut session = session(&model, Settings { checkpoints, ..settings() });
            let sequence = session.open().unwrap();
            feed(&mut session, sequence, &case.ids, 50);
            let mut there = Vec::new();
            for wanted in [169, 150, 149, 101, 64, 33, 1, 0] {
                let length = session.truncate(sequence, wanted);
                assert!(length <= wanted && length == session.len(sequence), "{name}: {wanted}");
                assert_eq!(session.tokens(sequence), &case.ids[..length]);
                there.push(wanted - length);
                let logits = feed(&mut session, sequence, &case.ids[length..], 192);
                check(&logits, case, &format!("{name}, {checkpoints} checkpoints, to {wanted}"));
            }
            // With many, those of pages and of steps are all there.
            let farthest = there.iter().max().unwrap();
            assert!(checkpoints < 64 || *farthest <= 32, "{name}: {there:?} tokens again");
        }
    }
}

#[test]
fn states_have_the_values_of_the_original_code() {
    for Subject { name, expected, .. } in subjects() {
        let Some(state_after) = &expected.state_after else { continue };
        let folder = shared(&format!("arch-tiny/{name}")).unwrap();
        let model = support::model::Model::new(checkpoint::gguf(&folder));
        let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Reference::new()), cpu(2)];
        backends.extend(gpu::gpu().map(|gpu| -> Box<dyn Backend> { Box::new(gpu) }));
        for backend in backends {
            let device = backend.facts().name.clone();
            let mut runner = Runner::single(&model, backend, LIMITS).unwrap();
            let ids = &expected.cases[state_after.case].ids;
            runner.prefill(&ids[..100]).unwrap();
            runner.go_on(ids, 100).unwrap();
            for of_layer in &state_after.layers {
                let what = format!("{name} on {device}, layer {}", of_layer.layer);
                let infos = model.graph.states.iter();
                let state = infos.clone().position(|info| info.layer == of_layer.layer).unwrap();
                let found = runner.state(StateId(state as u32), 0);
                if of_layer.state_shape.is_some() {
                    let found = runner.state(StateId(state as u32 + 1), 0);
                    let mixer = model.config.layers[of_layer.layer as usize].mixer;
                    check_recurrence(of_layer, &as_original(&found, mixer), &what);
                }
                let [channels, rows] = of_layer.conv_shape;
                assert_eq!(found.len(), channels * rows, "{what}");
                let channel = |c: usize| found.iter().skip(c).step_by(channels).copied();
                let first = (0..3).flat_map(channel).collect::<Vec<_>>();
                assert!(error(&first, &of_layer.conv_first.concat()) < 1e-4, "{what}");
                let last = channel(channels - 1).collect::<Vec<_>>();
                assert!(error(&last, &of_layer.conv_last) < 1e-4, "{what}");
                let norm = found.iter().map(|x| x * x).sum::<f32>().sqrt();
                assert!((norm / of_layer.conv_norm - 1.0).abs() < 1e-4, "{what}: norm {norm}");
            }
        }
    }
}

/// Compares the state of a recurrence, of which the original code shows the norm of each head and a corner of the first. That
/// of a delta net has keys as rows there, and the heads of values that share a key side by side.
fn check_recurrence(expected: &LayerState, found: &[f32], what: &str) {
    let [heads, rows, cols] = expected.state_shape.unwrap();
    assert_eq!(found.len(), heads * rows * cols, "{what}");
    for (head, &norm) in found.chunks_exact(rows * cols).zip(&expected.state_norm_per_head) {
        let found = head.iter().map(|x| x * x).sum::<f32>().sqrt();
        assert!((found / norm - 1.0).abs() < 1e-4, "{what}: norm {found}, not {norm}");
    }
    let corner = expected.state_corner.iter().enumerate();
    let found = corner.flat_map(|(row, expected)| &found[row * cols..][..expected.len()]);
    let found: Vec<f32> = found.copied().collect();
    // Expected elements have five decimals, and the largest are some hundredths.
    assert!(error(&found, &expected.state_corner.concat()) < 5e-4, "{what}: {found:?}");
}

/// The state of a recurrence in the order of the original code.
fn as_original(found: &[f32], mixer: Mixer) -> Vec<f32> {
    let Mixer::DeltaNet(DeltaNet { key_heads, value_heads, head_dim, .. }) = mixer else {
        return found.to_vec();
    };
    let each = value_heads / key_heads;
    let mut original = Vec::with_capacity(found.len());
    for head in 0..value_heads {
        let stored = head % each * key_heads + head / each;
        let state = &found[stored * head_dim * head_dim..][..head_dim * head_dim];
        let keys = 0..head_dim;
        original.extend(keys.flat_map(|key| state.iter().skip(key).step_by(head_dim)));
    }
    original
}

/// Layers of a running session move between devices with their states, and a lost device's states are computed again.
#[test]
fn states_move_with_their_layers_and_survive_the_loss_of_a_device() {
    for Subject { name, model, expected } in subjects() {
        let (case, layers) = (expected.long(), model.graph().layers());
        let Forks { prefix, branches, .. } = &expected.forks;
        let devices = |script| -> Vec<Box<dyn Backend>> {
            let inner = Box::new(Queued::new(Box::new(Reference::new()), Duration::ZERO));
            vec![cpu(2), Box::new(Failing::new(inner, script))]
        };
        let never = Script { call: Call::Submit, after: usize::MAX, fault: Fault::Lost };
        let placements = [1, layers, 0, layers / 2].map(|n| Placement::offload(layers, n, 0, 1));
        let planner = as_placed(&placements[3]);
        let mut session = Session::on(&model, devices(never), &planner, settings()).unwrap();
        let sequence = session.open().unwrap();
        let mut logits = feed(&mut session, sequence, &case.ids[..*prefix], 30);
        let fork = session.fork(sequence).unwrap();
        let rest = &case.ids[*prefix..];
        for (piece, placement) in rest.chunks(rest.len() / 3).zip(placements.iter().cycle()) {
            session.place(&as_placed(placement)).unwrap();
            logits.extend(feed(&mut session, sequence, piece, 7));
        }
        check(&logits, case, &format!("{name}, moving"));
        check(&feed(&mut session, fork, &branches[0].ids, 8), &branches[0], name);

        let script = Script { call: Call::Submit, after: 6, fault: Fault::Lost };
        let mut session = Session::on(&model, devices(script), &planner, settings()).unwrap();
        let sequence = session.open().unwrap();
        feed(&mut session, sequence, &case.ids[..*prefix], 30);
        let fork = session.fork(sequence).unwrap();
        let logits = feed(&mut session, sequence, rest, 9);
        assert!(matches!(session.take_warnings()[..], [Warning::Moved { .. }]), "{name}");
        check(&logits, case, &format!("{name}, after a loss"));
        check(&feed(&mut session, fork, &branches[0].ids, 8), &branches[0], name);
    }
}

/// A prompt runs in parts. Other steps that begin before its last part, and take slots of states between, change nothing.
#[test]
fn steps_that_begin_between_the_parts_of_a_prompt_leave_its_states() {
    for Subject { name, model, expected } in subjects() {
        let ids = &expected.long().ids;
        let placement = Placement::offload(model.graph().layers(), 1, 0, 1);
        let planner = as_placed(&placement);
        let answers = |at_once| {
            let queued = || Box::new(Queued::new(cpu(2), Duration::from_millis(10)));
            let devices: Vec<Box<dyn Backend>> = vec![queued(), queued()];
            // Slots for three sequences before and after a step.
            let overlap = Overlap::Always;
            let settings = Settings { sequences: 3, checkpoints: 0, overlap, ..settings() };
            let mut session = Session::on(&model, devices, &planner, settings).unwrap();
            let [long, one, other] = [(); 3].map(|()| session.open().unwrap());
            let steps = [(one, 0..5), (other, 0..6), (long, 0..160), (one, 5..7), (other, 6..8)];
            let mut found = Vec::new();
            for (sequence, part) in steps.into_iter().chain([(long, 160..161)]) {
                while session.begun() >= if session.len(long) == 160 { at_once } else { 1 } {
                    found.push(session.finish().unwrap().to_vec());
                }
                let run = Run { sequence, tokens: &ids[part], wanted: Wanted::Last };
                session.begin(&[run]).unwrap();
            }
            while session.begun() > 0 {
                found.push(session.finish().unwrap().to_vec());
            }
            found
        };
        let [one, three] = [1, 3].map(answers);
        for (step, (one, three)) in one.iter().zip(&three).enumerate() {
            assert!(error(three, one) < 1e-3, "{name}, step {step}: {}", error(three, one));
        }
    }
}

/// Steps of single tokens update states in place. One that fails, or whose logits are no numbers, is repeated in its sequence
/// and in a fork, from the states before it.
#[test]
fn a_failed_step_leaves_the_text_as_it_was() {
    for Subject { name, model, expected } in subjects() {
        let (case, layers) = (expected.long(), model.graph().layers());
        let prefix = case.ids.len() - 40;
        for fault in [Fault::Refused, Fault::NoNumber] {
            let script = Script { call: Call::Read, after: 35, fault };
            let devices: Vec<Box<dyn Backend>> =
                vec![cpu(2), Box::new(Failing::new(cpu(2), script))];
            let placement = Placement::offload(layers, layers / 2, 0, 1);
            let planner = as_placed(&placement);
            let mut session = Session::on(&model, devices, &planner, settings()).unwrap();
            let sequence = session.open().unwrap();
            let mut logits = feed(&mut session, sequence, &case.ids[..prefix], 50);
            let mut failures = 0;
            for (at, token) in case.ids.iter().enumerate().skip(prefix) {
                let run = Run { sequence, tokens: &[*token], wanted: Wanted::Last };
                if let Ok(row) = session.step(&[run]) {
                    logits.extend_from_slice(row);
                    continue;
                }
                failures += 1;
                assert_eq!(session.len(sequence), at, "{name}, {fault:?}");
                let fork = session.fork(sequence).unwrap();
                let row = feed(&mut session, fork, &[*token], 1);
                assert_eq!(row, feed(&mut session, sequence, &[*token], 1), "{name}, {fault:?}");
                session.close(fork);
                logits.extend_from_slice(&row);
            }
            assert_eq!(failures, 1, "{name}, {fault:?}");
            check(&logits, case, &format!("{name}, {fault:?}"));
            // Each of the 40 steps has not left a state of its own.
            let used = session.cache().slots_in_use().len();
            assert!(used < 12, "{name}: {used} slots");
        }
    }
}

#[test]
fn saved_sequences_go_on_in_another_session() {
    for Subject { name, model, expected } in subjects() {
        let Forks { case, prefix, branches } = &expected.forks;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let mut first = session(&model, settings());
        let sequence = first.open().unwrap();
        feed(&mut first, sequence, &expected.cases[*case].ids[..*prefix], 64);
        first.save(sequence).unwrap().write(&path).unwrap();
        let saved = SavedSequence::read(&path, &model, 256).unwrap();
        let mut second = session(&model, settings());
        let sequence = second.restore(&saved).unwrap();
        assert_eq!(second.len(sequence), *prefix);
        check(&feed(&mut second, sequence, &branches[0].ids, 5), &branches[0], name);
        // Nothing before its end is known.
        assert_eq!(second.truncate(sequence, prefix - 1), 0);
    }
}

fn generate(
    session: &mut Session,
    model: &Model,
    prompt: &[u32],
    drafter: Option<&mut dyn Drafter>,
) -> (Vec<u32>, Statistics) {
    greedy::answer((model, session), prompt, 60, drafter)
}

/// Draft tokens of both kinds leave the text as it is, however few checkpoints there are for rejected ones.
#[test]
fn drafts_do_not_change_the_text() {
    let subjects: Vec<Subject> = subjects().collect();
    for Subject { name, model, expected } in &subjects {
        let prompt = &expected.cases[1].ids;
        for checkpoints in [0, 3, 16] {
            let settings = || Settings { checkpoints, ..settings() };
            let plain = generate(&mut session(model, settings()), model, prompt, None).0;
            let bounds =
                Bounds { draft_max: 6, draft_min: 0, draft_p_min: 0.0, ..Bounds::default() };
            let mut lookup = Lookup::new(bounds);
            let found = generate(&mut session(model, settings()), model, prompt, Some(&mut lookup));
            assert_eq!(found.0, plain, "{name}, lookup, {checkpoints} checkpoints");
            for other in &subjects {
                let draft = DraftModel::new(&other.model, model, settings(), bounds);
                let mut draft = draft.unwrap();
                let mut with = session(model, settings());
                let (ids, statistics) = generate(&mut with, model, prompt, Some(&mut draft));
                let what = format!("{name} with {}, {checkpoints} checkpoints", other.name);
                assert_eq!(ids, plain, "{what}");
                assert!(statistics.drafted > 0, "{what}");
                // A model knows its own next tokens.
                let all = other.name == *name;
                assert_eq!(statistics.accepted == statistics.drafted, all, "{what}");
            }
        }
    }
}

/// Slots for states are part of the plan, and a state too large for it is refused before loading.
#[test]
fn states_are_planned() {
    for Subject { name, model, .. } in subjects() {
        let of = |checkpoints| {
            let session = session(&model, Settings { checkpoints, ..settings() });
            let held = session.backends().next().unwrap().held_bytes().unwrap();
            (session.plan().devices[0].clone(), held)
        };
        let ((few, held_few), (many, held_many)) = (of(2), of(66));
        let slot: usize = model.graph().states.iter().map(|state| 4 * state.elements).sum();
        assert_eq!(few.state_bytes, (10 * slot) as u64, "{name}");
        assert_eq!(many.used_bytes - few.used_bytes, (64 * slot) as u64, "{name}");
        assert!(held_many - held_few >= (64 * slot) as u64, "{name}");
        let shown = session(&model, settings()).plan().to_string();
        assert!(shown.contains("states"), "{shown}");
        let checkpoints = 4096;
        let machine = Machine::new(vec![bilayer_graph::Facts::host("small", 1 << 20)]);
        let settings = Settings { checkpoints, ..settings() };
        let budget = bilayer_engine::session::budget_of(&model, &settings).unwrap();
        let placement = Placement::single(model.graph().layers(), 0);
        let error = place(model.graph(), &machine, &budget, &placement).unwrap_err().to_string();
        assert!(error.contains("states"), "{error}");
    }
}
