//! The promise of simulated machines: results are those of the CPU, memory is limited as on a card, times are exact, and
//! plans predict them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bilayer_convert::mix::Mix;
use bilayer_convert::synth::{Experts, Shape, Sizes, Synth};
use bilayer_cpu::{Cpu, Options};
use bilayer_engine::generate::speculate::{
    Acceptance, Bounds, CHECKED_ROWS, DraftModel, Drafter, weigh,
};
use bilayer_engine::placement::{self, Execution, Placing, Simulation};
use bilayer_engine::session::{
    Overlap, Progress, Run, Session, Settings, Stage, Subject, TimeDevice, Wanted, Warning, What,
};
use bilayer_engine::{Error, Model, OpenOptions};
use bilayer_graph::{Backend, Graph};
use bilayer_scheduler::{
    Basis, Budget, DeviceTimes, ExpertCache, ExpertUses, Machine, Offload, OpOffload,
    PROMPT_TOKENS, Plan,
};
use tempfile::TempDir;

mod support {
    pub mod greedy;
    pub mod model;
    pub mod program;
    pub mod words;
}

use support::greedy;
use support::program::{Place, ran};
use support::words;

/// The described machine of the examples.
const DESKTOP: &str = include_str!("../examples/machines/rtx-4090.toml");

/// A machine of a CPU and GPUs, given as (GiB, GB/s, 10^12 operations a second, GB/s of uploads).
fn described(cpu: (f64, f64), gpus: &[(f64, f64, f64, f64)]) -> String {
    let (read, tops) = cpu;
    let mut text = format!(
        "[cpu]\nname = \"c\"\nmemory = \"128GiB\"\nread_gbps = {read}\ntops = {tops}\n\
         submit_us = 5\nkernel_us = 2\n"
    );
    for (memory, read, tops, link) in gpus {
        text += &format!(
            "[[gpu]]\nname = \"g\"\nmemory = \"{memory}GiB\"\nread_gbps = {read}\ntops = {tops}\n\
             upload_gbps = {link}\ndownload_gbps = {link}\nsubmit_us = 20\nkernel_us = 4\n\
             wait_us = 20\n"
        );
    }
    text
}

fn simulation(text: &str, execution: Execution) -> Simulation {
    Simulation::described(text, execution).unwrap()
}

/// A model of a few layers with weights.
fn small() -> Model {
    let sizes = Sizes { layers: Some(4), vocab: Some(1000), ..Sizes::default() };
    let shape = Shape::find("tiny").unwrap().with(sizes).unwrap();
    let synth = Synth::new(shape, Mix::find("Q4_K_M").unwrap());
    Model::from_bytes("small", synth.to_bytes().unwrap()).unwrap()
}

fn settings(placing: Placing) -> Settings<'static> {
    Settings { threads: Some(1), ctx_size: Some(512), sequences: 2, placing, ..Settings::default() }
}

/// The logits after a prompt and after each of a few tokens, and the times of prompt and tokens on the session's clock.
fn run(session: &mut Session, prompt: usize) -> (Vec<Vec<f32>>, [Duration; 2]) {
    let sequence = session.open().unwrap();
    let vocab = session.vocab() as u32;
    let prompt: Vec<u32> = (0..prompt as u32).map(|i| (i * 7 + 3) % vocab).collect();
    let began = session.clock().now();
    let mut logits =
        vec![session.prefill(sequence, &prompt, &mut |_| true).unwrap().unwrap().to_vec()];
    let prefill = session.clock().since(began);
    let began = session.clock().now();
    for token in [5, 17, 300] {
        let run = Run { sequence, tokens: &[token], wanted: Wanted::Last };
        logits.push(session.step(&[run]).unwrap().to_vec());
    }
    let decode = session.clock().since(began);
    session.close(sequence);
    (logits, [prefill, decode])
}

#[test]
fn results_are_those_of_the_cpu_and_times_those_of_the_schedule() {
    let model = small();
    let split = Placing {
        gpu_layers: Offload::Count(4),
        tensor_split: vec![1.0, 1.0],
        ..Placing::default()
    };
    // The same split over three CPU backends, since the last bits depend on the rows of micro-batches.
    let cpu =
        || Box::new(Cpu::new(Options { threads: Some(1), ..Default::default() }).unwrap()) as _;
    let backends: Vec<Box<dyn Backend>> = vec![cpu(), cpu(), cpu()];
    let planner =
        |graph: &Graph, machine: &Machine, budget: &Budget| split.plan(graph, machine, budget);
    let mut cpus = Session::on(&model, backends, &planner, settings(Placing::cpu())).unwrap();
    let (expected, _) = run(&mut cpus, 200);
    let machine = described((20.0, 0.1), &[(1.0, 300.0, 5.0, 10.0), (1.0, 200.0, 4.0, 10.0)]);
    let on = |execution, overlap| {
        let simulated = Some(simulation(&machine, execution));
        let placing = Placing { simulated, ..split.clone() };
        let mut session = Session::new(&model, Settings { overlap, ..settings(placing) }).unwrap();
        assert_eq!(session.plan().map, "out:gpu1 3:gpu1 2-1:gpu0 0:cpu");
        run(&mut session, 200)
    };
    let (logits, times) = on(Execution::Compute, Overlap::Auto);
    assert!(logits == expected, "bits differ from those of the CPU");
    assert!(times.iter().all(|time| *time > Duration::ZERO));
    // Exact: the times do not depend on this machine, nor on whether anything is computed.
    let (logits, idle) = on(Execution::ScheduleOnly, Overlap::Auto);
    assert_eq!(idle, times);
    assert!(logits.iter().flatten().all(|logit| *logit == 0.0));
    let (logits, apart) = on(Execution::Compute, Overlap::Off);
    assert!(logits == expected);
    assert!(apart[0] > times[0], "devices do not overlap: {apart:?} {times:?}");
}

#[test]
fn a_card_without_room_refuses_as_a_real_one() {
    let model = small();
    let machine = described((20.0, 0.1), &[(1.0, 300.0, 5.0, 10.0)]);
    let placing = |simulated, gib: u64| Placing {
        gpu_layers: Offload::All,
        vram_bytes: vec![gib << 30],
        margin_bytes: vec![0],
        simulated: Some(simulated),
        ..Placing::default()
    };
    let roomy = simulation(&machine, Execution::Compute);
    let mut session = Session::new(&model, settings(placing(roomy.clone(), 1))).unwrap();
    assert!(session.take_warnings().is_empty());
    let planned = session.plan().devices[1].used_bytes;
    let held = session.backends().nth(1).unwrap().held_bytes().unwrap();
    assert_eq!(held, planned);
    let (expected, _) = run(&mut session, 40);
    // The planner is told that there is room, but the card has half of what is needed.
    let mib = (planned / 2) as f64 / f64::from(1 << 30);
    let small_card = described((20.0, 0.1), &[(mib, 300.0, 5.0, 10.0)]);
    let full = simulation(&small_card, Execution::Compute);
    let mut less = Session::new(&model, settings(placing(full, 1))).unwrap();
    let warnings = less.take_warnings();
    let is_full = |warning: &Warning| {
        matches!(warning, Warning::Reduced { error: bilayer_graph::Error::OutOfMemory { .. }, .. })
    };
    assert!(!warnings.is_empty() && warnings.iter().all(is_full), "{warnings:?}");
    assert!(less.backends().nth(1).unwrap().held_bytes().unwrap() <= planned / 2);
    assert!(run(&mut less, 40).0 == expected);
    // Two sessions share a card's memory, until one of them ends.
    let room = (3 * planned / 2) as f64 / f64::from(1 << 30);
    let shared = described((20.0, 0.1), &[(room, 300.0, 5.0, 10.0)]);
    let shared = simulation(&shared, Execution::Compute);
    let first = Session::new(&model, settings(placing(shared.clone(), 1))).unwrap();
    let mut second = Session::new(&model, settings(placing(shared.clone(), 1))).unwrap();
    assert!(!second.take_warnings().is_empty());
    drop((first, second));
    let mut third = Session::new(&model, settings(placing(shared, 1))).unwrap();
    assert!(third.take_warnings().is_empty());
}

/// Writes the header of a well-known shape.
fn hollow(folder: &TempDir, name: &str) -> PathBuf {
    hollow_of(folder, name, Shape::find(name).unwrap())
}

fn hollow_of(folder: &TempDir, name: &str, shape: Shape) -> PathBuf {
    let synth = Synth { hollow: true, ..Synth::new(shape, Mix::find("Q4_K_M").unwrap()) };
    let path = folder.path().join(format!("{name}.gguf"));
    synth.write(&path, &mut |_, _| ControlFlow::Continue(())).unwrap();
    path
}

/// The machines of the grid, from a laptop to a workstation with two cards.
fn machines() -> Vec<(&'static str, String)> {
    let card = |gib, read, tops, link| vec![(gib, read, tops, link)];
    let machines = [
        ("desktop without a card", (65.0, 2.0), vec![]),
        ("laptop, 8 GB", (50.0, 0.6), card(8.0, 220.0, 40.0, 8.0)),
        ("old desktop, 6 GB", (25.0, 0.3), card(6.0, 170.0, 10.0, 6.0)),
        ("desktop, 12 GB", (60.0, 1.0), card(12.0, 330.0, 50.0, 12.0)),
        ("desktop, 24 GB", (65.0, 2.0), card(24.0, 800.0, 160.0, 25.0)),
        ("narrow link, 24 GB", (65.0, 2.0), card(24.0, 800.0, 160.0, 8.0)),
        ("workstation, 48 GB", (200.0, 6.0), card(48.0, 800.0, 150.0, 25.0)),
        ("server, 80 GB", (300.0, 8.0), card(80.0, 2800.0, 600.0, 50.0)),
        (
            "two cards of 24 GB",
            (65.0, 2.0),
            vec![(24.0, 800.0, 120.0, 25.0), (24.0, 800.0, 120.0, 25.0)],
        ),
        (
            "cards of 24 GB and 12 GB",
            (80.0, 1.5),
            vec![(24.0, 900.0, 140.0, 25.0), (12.0, 330.0, 50.0, 12.0)],
        ),
    ];
    machines.into_iter().map(|(name, cpu, gpus)| (name, described(cpu, &gpus))).collect()
}

/// Milliseconds per token on the session's clock: of a prompt, and of decode at the depth that predictions are for.
fn simulated(session: &mut Session) -> [f64; 2] {
    let sequence = session.open().unwrap();
    let prompt = vec![1; PROMPT_TOKENS];
    let began = session.clock().now();
    session.prefill(sequence, &prompt, &mut |_| true).unwrap();
    let prefill = session.clock().since(began).as_secs_f64() * 1e3 / PROMPT_TOKENS as f64;
    session.truncate(sequence, 90);
    let steps = 12;
    let began = session.clock().now();
    for _ in 0..steps {
        let run = Run { sequence, tokens: &[1], wanted: Wanted::Last };
        session.step(&[run]).unwrap();
    }
    let decode = session.clock().since(began).as_secs_f64() * 1e3 / f64::from(steps);
    session.close(sequence);
    [prefill, decode]
}

/// The ratios of prediction and simulation that are off by more than 10 %.
fn misses(name: &str, plan: &Plan, found: [f64; 2]) -> Vec<String> {
    let predicted = plan.predicted.as_ref().unwrap();
    let expected = [predicted.prefill_ms_per_token.unwrap(), predicted.decode_ms];
    let kinds = ["prefill", "decode"].into_iter().zip(expected).zip(found);
    let off = kinds.filter(|((_, expected), found)| (expected / found - 1.0).abs() > 0.1);
    off.map(|((kind, expected), found)| {
        let Plan { map, .. } = plan;
        format!("{name}, {map}, {:?}: {kind} {expected:.3} for {found:.3} ms", predicted.basis)
    })
    .collect()
}

#[test]
fn plans_predict_simulated_runs_within_a_tenth() {
    let shapes =
        ["llama-1b", "llama-8b", "llama-70b"].map(|name| (name, Shape::find(name).unwrap()));
    predict(&shapes, &[Basis::Estimated, Basis::Measured]);
}

/// Each of many small experts has few rows of a prompt, so they are bound by reading and the rest of a layer by compute.
#[test]
fn plans_predict_mixtures_of_many_small_experts_within_a_tenth() {
    let large = Shape::find("qwen3-30b-a3b").unwrap();
    let mut small = large;
    small.layers = 16;
    small.experts = Some(Experts { count: 64, used: 8, ffn: 1024, shared: 0, dense: 0 });
    predict(&[("128 experts", large), ("64 experts", small)], &[Basis::Estimated, Basis::Measured]);
}

/// Compares plans of models for all machines with runs: those of measured times, those of estimated ones, or both.
fn predict(shapes: &[(&str, Shape)], bases: &[Basis]) {
    let folder = tempfile::tempdir().unwrap();
    let (mut cases, mut compared, mut off) = (0, 0, Vec::new());
    for (shape, sizes) in shapes {
        let path = hollow_of(&folder, shape, *sizes);
        let model = Model::open(&path, OpenOptions::default()).unwrap();
        for (machine, text) in machines() {
            let name = format!("{shape} on {machine}");
            let kept = tempfile::tempdir().unwrap();
            let placing = Placing {
                simulated: Some(simulation(&text, Execution::ScheduleOnly)),
                kept: Some(kept.path().to_owned()),
                // One of the machines has no GPU.
                remeasure: true,
                ..Placing::default()
            };
            let settings = || Settings {
                ctx_size: Some(1024),
                time_device: Some(bilayer_measure::timing::device),
                placing: placing.clone(),
                ..Settings::default()
            };
            // What `plan` tells before anything was measured.
            let estimated = placement::plan(&model, &settings(), None).unwrap();
            assert_eq!(estimated.predicted.as_ref().unwrap().basis, Basis::Estimated);
            let mut session = Session::new(&model, settings()).unwrap();
            let measured = session.plan().clone();
            assert_eq!(measured.predicted.as_ref().unwrap().basis, Basis::Measured, "{name}");
            if bases.contains(&Basis::Measured) {
                off.extend(misses(&name, &measured, simulated(&mut session)));
            }
            let layers = estimated.gpu_layers;
            let placing = Placing { gpu_layers: Offload::Count(layers), ..placing.clone() };
            session
                .place(&|graph: &Graph, machine: &Machine, budget: &Budget| {
                    placing.plan(graph, machine, budget)
                })
                .unwrap();
            assert!(session.take_warnings().is_empty(), "{name}: the plan does not fit");
            if session.plan().map == estimated.map {
                off.extend(misses(&name, &estimated, simulated(&mut session)));
                compared += 1;
            }
            cases += 1;
        }
    }
    assert_eq!(cases, machines().len() * shapes.len());
    assert_eq!(compared, cases, "estimated plans are compared where they are placed");
    assert!(off.is_empty(), "{} are off:\n{}", off.len(), off.join("\n"));
}

/// Cards that cannot hold the head and two layers beside one that can: of an equal kind, and of another, which may have memory
/// at the next start.
#[test]
fn a_card_without_memory_to_be_measured_leaves_the_times_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&hollow(&folder, "llama-8b"), OpenOptions::default()).unwrap();
    let large = (24.0, 900.0, 140.0, 25.0);
    for (small, notes) in [((0.25, 900.0, 140.0, 25.0), 0), ((0.25, 300.0, 40.0, 25.0), 1)] {
        let kept = tempfile::tempdir().unwrap();
        let placing = Placing {
            simulated: Some(simulation(
                &described((80.0, 1.5), &[large, small]),
                Execution::ScheduleOnly,
            )),
            kept: Some(kept.path().to_owned()),
            ..Placing::default()
        };
        for start in 0..2 {
            let mut measures = false;
            let progress = &mut |told: Progress| {
                measures |= told.stage == Stage::Measuring;
                ControlFlow::Continue(())
            };
            let settings = Settings {
                ctx_size: Some(1024),
                time_device: Some(bilayer_measure::timing::device),
                placing: placing.clone(),
                progress: Some(progress),
                ..Settings::default()
            };
            let session = Session::new(&model, settings).unwrap();
            let plan = session.plan();
            assert_eq!(plan.predicted.as_ref().unwrap().basis, Basis::Measured, "{small:?}");
            let told = plan.notes.iter().filter(|note| note.contains("out of memory")).count();
            assert_eq!(told, notes, "{:?}", plan.notes);
            assert_eq!(measures, start == 0 || notes > 0, "{small:?}");
        }
    }
}

/// A machine with a small card, whose times are kept in a folder.
fn keeping(folder: &Path) -> Placing {
    let machine = described((20.0, 0.1), &[(1.0, 300.0, 5.0, 10.0)]);
    Placing {
        simulated: Some(simulation(&machine, Execution::ScheduleOnly)),
        kept: Some(folder.to_owned()),
        ..Placing::default()
    }
}

/// Before devices are measured, and after each weight.
#[test]
fn whoever_is_told_of_the_progress_may_end_the_preparation() {
    let (model, kept) = (small(), tempfile::tempdir().unwrap());
    let placing = keeping(kept.path());
    for last in [Stage::Measuring, Stage::Loading] {
        let mut told = Vec::new();
        let progress = &mut |now: Progress| {
            told.push(now.stage);
            if now.stage == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let settings = Settings {
            time_device: Some(bilayer_measure::timing::device),
            progress: Some(progress),
            ..settings(placing.clone())
        };
        let Err(error) = Session::new(&model, settings) else { panic!("it is prepared") };
        assert!(matches!(error, Error::Interrupted), "{error}");
        assert!(told.last() == Some(&last) && told.len() <= 2, "{told:?}");
    }
}

/// Times as of a clock that jumps, by an hour each time, while they are measured.
fn jumping(subject: &Subject<'_>, backend: &mut dyn Backend) -> Result<DeviceTimes, Error> {
    let mut times = bilayer_measure::timing::device(subject, backend)?;
    let DeviceTimes { layers, output, .. } = &mut times;
    layers.iter_mut().chain([output]).for_each(|cost| cost.decode_ms += 3.6e6);
    Ok(times)
}

/// They are kept for the next start until answers show that they are wrong. Then the next start measures again.
#[test]
fn times_of_a_clock_that_jumps_during_a_load_are_dropped() {
    let (model, kept) = (small(), tempfile::tempdir().unwrap());
    let placing = keeping(kept.path());
    // Whether a start measures, and whether its times are dropped at the end.
    let start = |time_device: TimeDevice, steps: u32| {
        let mut measures = false;
        let progress = &mut |told: Progress| {
            measures |= told.stage == Stage::Measuring;
            ControlFlow::Continue(())
        };
        let settings = Settings {
            time_device: Some(time_device),
            progress: Some(progress),
            ..settings(placing.clone())
        };
        let mut session = Session::new(&model, settings).unwrap();
        assert_eq!(session.plan().predicted.as_ref().unwrap().basis, Basis::Measured);
        let sequence = session.open().unwrap();
        for _ in 0..steps {
            let run = Run { sequence, tokens: &[1], wanted: Wanted::Last };
            session.step(&[run]).unwrap();
        }
        let drops = session.judge();
        drop(session);
        (measures, drops)
    };
    assert_eq!(start(jumping, 1), (true, false), "one step says nothing");
    assert_eq!(start(jumping, 40), (false, true));
    let exact = bilayer_measure::timing::device;
    assert_eq!(start(exact, 40), (true, false), "measured again");
    assert_eq!(start(exact, 40), (false, false));
}

#[test]
fn seventy_billion_weights_on_a_card_of_24_gib() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&hollow(&folder, "llama-70b"), OpenOptions::default()).unwrap();
    let simulated_on = Some(simulation(DESKTOP, Execution::ScheduleOnly));
    let placing = Placing { simulated: simulated_on, ..Placing::default() };
    let settings = Settings { ctx_size: Some(2048), sequences: 2, placing, ..Settings::default() };
    let mut session = Session::new(&model, settings).unwrap();
    let layers = session.plan().gpu_layers;
    assert!((42..=48).contains(&layers), "{}", session.plan().map);
    // Every weight is read once, at the bandwidth of its device.
    let bytes = session.step_bytes(1);
    let roofline = bytes[0] as f64 / 65e6 + bytes[1] as f64 / 800e6;
    let [_, one] = simulated(&mut session);
    assert!((1.0..1.15).contains(&(one / roofline)), "{one} ms of at least {roofline} ms");
    let sequences = [session.open().unwrap(), session.open().unwrap()];
    let both = sequences.map(|sequence| Run { sequence, tokens: &[1], wanted: Wanted::Last });
    let began = session.clock().now();
    (0..8).for_each(|_| session.step(&both).map(|_| ()).unwrap());
    let two = session.clock().since(began).as_secs_f64() * 1e3 / 8.0;
    assert!(2.0 * one / two > 1.8, "two sequences take {two} ms a step, one {one} ms");
}

/// A session of the 70B model on the described machine, with measured times.
fn desktop_of_70b(model: &Model, folder: &TempDir, op_offload: OpOffload) -> Session {
    let placing = Placing {
        simulated: Some(simulation(DESKTOP, Execution::ScheduleOnly)),
        kept: Some(folder.path().to_owned()),
        op_offload,
        ..Placing::default()
    };
    let time_device: Option<TimeDevice> = Some(bilayer_measure::timing::device);
    let settings = Settings { ctx_size: Some(2560), placing, time_device, ..Settings::default() };
    Session::new(model, settings).unwrap()
}

/// Milliseconds of a prompt.
fn prompt_ms(session: &mut Session, tokens: usize) -> f64 {
    let sequence = session.open().unwrap();
    let began = session.clock().now();
    session.prefill(sequence, &vec![1; tokens], &mut |_| true).unwrap();
    let ms = session.clock().since(began).as_secs_f64() * 1e3;
    session.close(sequence);
    ms
}

#[test]
fn streaming_makes_prompts_of_70_billion_weights_fast() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&hollow(&folder, "llama-70b"), OpenOptions::default()).unwrap();
    let on = |op_offload| desktop_of_70b(&model, &folder, op_offload);
    let (mut streamed, mut plain) = (on(OpOffload::Auto), on(OpOffload::Never));
    let streaming = streamed.plan().streaming.clone().unwrap();
    assert!(plain.plan().streaming.is_none() && streamed.take_warnings().is_empty());
    let held = streamed.backends().nth(1).unwrap().held_bytes().unwrap();
    let planned = &streamed.plan().devices[1];
    assert_eq!(held, planned.used_bytes);
    assert!(held <= planned.budget_bytes);
    let (with, without) = (prompt_ms(&mut streamed, 2048), prompt_ms(&mut plain, 2048));
    assert!(without > 8.0 * with, "{with} ms with streaming, {without} ms without");
    for predicted in &streaming.prompts {
        let found = prompt_ms(&mut streamed, predicted.tokens);
        let ratio = predicted.streamed_ms / found;
        assert!((0.9..1.1).contains(&ratio), "{predicted:?}: {found} ms");
    }
    // Copies and kernels overlap: one after the other they would take longer.
    let copies = streaming.upload_bytes as f64 / 25e6;
    let step: f64 = streamed.step_bytes(1).iter().map(|&bytes| bytes as f64).sum();
    let kernels = step / 0.5625 * 2.0 * 2048.0 / 160e9;
    assert!(with < 0.9 * (copies + kernels), "{with} ms, {copies} and {kernels} ms apart");
    // The crossover is where it is predicted.
    let mut always = on(OpOffload::From(1));
    let (low, high) = (streaming.tokens_min / 2, streaming.tokens_min * 3 / 2);
    assert!(prompt_ms(&mut always, low) > prompt_ms(&mut plain, low), "{low} tokens");
    assert!(prompt_ms(&mut always, high) < prompt_ms(&mut plain, high), "{high} tokens");
}

#[test]
fn short_prompts_of_mixtures_copy_what_the_router_selects() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&hollow(&folder, "qwen3-30b-a3b"), OpenOptions::default()).unwrap();
    // A CPU that computes slowly, and a fast link.
    let machine = described((40.0, 0.05), &[(8.0, 400.0, 40.0, 25.0)]);
    let placing = Placing {
        simulated: Some(simulation(&machine, Execution::ScheduleOnly)),
        gpu_layers: Offload::Count(10),
        kept: Some(folder.path().to_owned()),
        ..Placing::default()
    };
    let settings = Settings {
        ctx_size: Some(1024),
        trace_events: Some(1 << 17),
        time_device: Some(bilayer_measure::timing::device),
        placing,
        ..Settings::default()
    };
    let mut session = Session::new(&model, settings).unwrap();
    let streaming = session.plan().streaming.clone().unwrap();
    let routed = streaming.routed.as_ref().unwrap();
    // A prompt of 512 tokens uses nearly all experts; of the few of a short one 8 of 128 each.
    let tokens = routed.tokens_max;
    assert!((streaming.tokens_min..256).contains(&tokens), "{routed:?}");
    let mut run = |tokens: usize| {
        session.trace_mut().unwrap().clear();
        let ms = prompt_ms(&mut session, tokens);
        let events = session.trace().unwrap().recorded().iter();
        let copied = events.filter(|event| event.what == What::Stream).map(|event| event.bytes);
        (ms, copied.sum::<u64>())
    };
    let (ms, copied) = run(tokens);
    let (bytes, time) = (routed.upload_bytes as f64 / copied as f64, routed.pass_ms.unwrap() / ms);
    assert!((0.95..1.05).contains(&bytes), "{bytes}");
    assert!((0.9..1.1).contains(&time), "{routed:?}: {ms} ms");
    // From there on all experts are copied, which takes about as long there.
    let (whole_ms, whole) = run(tokens + 8);
    assert_eq!(whole, streaming.upload_bytes);
    assert!(copied < whole && (0.95..1.1).contains(&(whole_ms / ms)), "{ms} and {whole_ms} ms");
    let least_ms = whole as f64 / 25e6;
    let (short_ms, _) = run(streaming.tokens_min);
    assert!(short_ms < least_ms, "{short_ms} ms, {least_ms} ms to copy everything");
}

/// Uses that fall with an expert's rank, as 1 / (rank + 4), in another order in each layer.
fn skewed(layers: u32, experts: usize) -> ExpertUses {
    let counts = |layer: u32| {
        let place = |expert: usize| (expert * 37 + layer as usize * 11) % experts;
        (0..experts).map(|expert| 1.0 / (place(expert) as f64 + 4.0)).collect()
    };
    let source = "a skewed text".to_owned();
    ExpertUses { source, layers: (0..layers).map(|layer| (layer, counts(layer))).collect() }
}

/// A mixture of 30B weights on a card of 24 GiB, of which the experts may use 4 GiB.
#[test]
fn resident_experts_are_faster_than_those_of_whole_layers() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&hollow(&folder, "qwen3-30b-a3b"), OpenOptions::default()).unwrap();
    let plain = Placing {
        simulated: Some(simulation(DESKTOP, Execution::ScheduleOnly)),
        gpu_layers: Offload::All,
        op_offload: OpOffload::Never,
        ..Placing::default()
    };
    let settings =
        |placing: Placing| Settings { ctx_size: Some(1024), placing, ..Settings::default() };
    // What is planned from the description is compared with a run: nothing is measured.
    let of = |placing: Placing| {
        let plan = placement::plan(&model, &settings(placing.clone()), None).unwrap();
        let mut session = Session::new(&model, settings(placing)).unwrap();
        assert!(session.take_warnings().is_empty());
        assert_eq!(session.plan().map, plan.map);
        let found = simulated(&mut session);
        (plan, found)
    };
    let cache = |bytes: u64| Placing {
        expert_cache: ExpertCache::Bytes(bytes),
        expert_uses: Some(skewed(48, 128)),
        ..plain.clone()
    };
    let mut off = Vec::new();
    let (plan, cached) = of(cache(4 << 30));
    off.extend(misses("4 GiB of experts", &plan, cached));
    let experts = plan.experts.clone().unwrap();
    assert!(experts.bytes <= 4 << 30 && experts.bytes > 4080 << 20, "{}", experts.bytes);
    assert_eq!(experts.layers.len(), 48);
    let known = plan.predicted.unwrap();
    // Whole layers that take as much memory: their experts are of so many layers.
    let per_layer =
        experts.bytes * 128 / experts.layers.iter().map(|l| l.resident as u64).sum::<u64>();
    let whole = (experts.bytes / per_layer) as u32;
    let (plan, layers) = of(Placing { cpu_moe_layers: 48 - whole, ..plain.clone() });
    off.extend(misses("whole layers", &plan, layers));
    let gain = layers[1] / cached[1];
    assert!(gain > 1.15, "{gain}: {} and {} ms a token", layers[1], cached[1]);
    assert!(known.decode_ms < plan.predicted.unwrap().decode_ms);
    // More memory finds more.
    let (plan, larger) = of(cache(8 << 30));
    off.extend(misses("8 GiB of experts", &plan, larger));
    assert!(plan.experts.unwrap().hit_rate > experts.hit_rate && larger[1] < cached[1]);
    assert!(off.is_empty(), "{} are off:\n{}", off.len(), off.join("\n"));
}

/// The answer with a drafter, if there is one, and its milliseconds on the session's clock.
fn answered(
    model: &Model,
    session: &mut Session,
    drafter: Option<&mut dyn Drafter>,
) -> (Vec<u32>, f64) {
    let (ids, statistics) = greedy::answer((model, session), &[5, 17, 300, 40], 65, drafter);
    (ids, statistics.generate.as_secs_f64() * 1e3)
}

/// A model with layers on a simulated GPU, and a draft model there.
struct Pair<'a> {
    models: [&'a Model; 2],
    machine: Simulation,
    gpu_layers: u32,
}

impl Pair<'_> {
    fn settings(&self, gpu_layers: Offload, kept: &TempDir) -> Settings<'static> {
        let placing = Placing {
            gpu_layers,
            simulated: Some(self.machine.clone()),
            kept: Some(kept.path().to_owned()),
            op_offload: OpOffload::Never,
            ..Placing::default()
        };
        Settings { outputs: Some(CHECKED_ROWS), trace_events: Some(1 << 14), ..settings(placing) }
    }

    /// The answer with drafts; its milliseconds, those of drafts beside steps, and predicted ones.
    fn answer(&self, bounds: Bounds) -> (Vec<u32>, [f64; 3]) {
        let [draft, model] = self.models;
        let kept = tempfile::tempdir().unwrap();
        let of_draft = || self.settings(Offload::All, &kept);
        let of_model = || self.settings(Offload::Count(self.gpu_layers), &kept);
        let mut drafter = DraftModel::new(draft, model, of_draft(), bounds).unwrap();
        let mut session = Session::new(model, of_model()).unwrap();
        let (ids, ms) = answered(model, &mut session, Some(&mut drafter));
        let events = session.trace().unwrap().recorded().iter();
        let beside: u64 = events.filter(|e| e.what == What::Beside).map(|e| e.ns).sum();
        drop(drafter);
        let counted = Acceptance::known(kept.path(), draft, model);
        let plan = |model, settings: Settings<'_>| placement::plan(model, &settings, None).unwrap();
        let token_ms = counted.token_ms(&plan(draft, of_draft()), &plan(model, of_model()));
        (ids, [ms, beside as f64 / 1e6, 64.0 * token_ms.unwrap()])
    }
}

#[test]
fn a_draft_model_drafts_while_the_cpu_computes() {
    let bounds = |draft_ahead| Bounds { draft_p_min: 0.0, draft_ahead, ..Bounds::default() };
    let same = small();
    let machine = described((20.0, 1.0), &[(1.0, 300.0, 5.0, 10.0)]);
    let machine = simulation(&machine, Execution::Compute);
    for gpu_layers in [0, 2] {
        let pair = Pair { models: [&same, &same], machine: machine.clone(), gpu_layers };
        let kept = tempfile::tempdir().unwrap();
        let settings = pair.settings(Offload::Count(gpu_layers), &kept);
        let (expected, _) = answered(&same, &mut Session::new(&same, settings).unwrap(), None);
        for draft_ahead in [false, true] {
            let (ids, [_, beside_ms, _]) = pair.answer(bounds(draft_ahead));
            assert_eq!(ids, expected, "{gpu_layers} layers, {draft_ahead}");
            assert_eq!(beside_ms > 0.01, draft_ahead, "{beside_ms}");
        }
    }
    // Where nothing is computed, all logits are equal, so the model accepts every draft.
    let folder = tempfile::tempdir().unwrap();
    let open = |name| Model::open(&hollow(&folder, name), OpenOptions::default()).unwrap();
    let (draft, model) = (open("llama-1b"), open("llama-8b"));
    for gpu_layers in [0, 12] {
        let machine = simulation(DESKTOP, Execution::ScheduleOnly);
        let pair = Pair { models: [&draft, &model], machine, gpu_layers };
        let [(_, between), (_, ahead)] = [false, true].map(|ahead| pair.answer(bounds(ahead)));
        for (when, [ms, _, predicted_ms]) in [("between steps", between), ("ahead", ahead)] {
            eprintln!(
                "{gpu_layers} layers, drafted {when}: {ms:.0} ms, {predicted_ms:.0} predicted"
            );
            let ratio = predicted_ms / ms;
            assert!((0.9..1.1).contains(&ratio), "{gpu_layers}: {ms} ms, {predicted_ms} predicted");
        }
        // Most drafts take no time of their own.
        let [(between_ms, none), (ahead_ms, beside_ms)] =
            [between, ahead].map(|[ms, beside_ms, _]| (ms, beside_ms));
        assert!(none < 0.01 && beside_ms > 40.0, "{none} and {beside_ms} ms beside");
        assert!(ahead_ms < between_ms - 0.7 * beside_ms, "{ahead_ms} of {between_ms} ms");
    }
}

#[test]
fn a_draft_model_is_weighed_against_layers() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name| Model::open(&hollow(&folder, name), OpenOptions::default()).unwrap();
    let (draft, model) = (open("llama-1b"), open("llama-70b"));
    let weighed = |counted: Acceptance| {
        let kept = tempfile::tempdir().unwrap();
        counted.record(kept.path(), &draft, &model);
        assert_eq!(Acceptance::known(kept.path(), &draft, &model), counted);
        let placing = Placing {
            simulated: Some(simulation(DESKTOP, Execution::ScheduleOnly)),
            kept: Some(kept.path().to_owned()),
            ..Placing::default()
        };
        let settings =
            || Settings { ctx_size: Some(2048), placing: placing.clone(), ..Settings::default() };
        weigh((&draft, &settings()), (&model, &settings())).unwrap()
    };
    let counted = |drafted, accepted| Acceptance { drafts: 100, drafted, accepted, ready: 0 };
    // Drafts of four tokens cost more on the CPU than the layers that the draft model displaces.
    let good = weighed(counted(400, 320)).unwrap();
    assert_eq!(good.gpu_layers, Offload::Auto, "{}", good.why);
    assert!(good.why.contains("3.2 draft tokens accepted per step"), "{}", good.why);
    // One token in ten steps does not.
    let poor = weighed(counted(10, 1)).unwrap();
    assert_eq!(poor.gpu_layers, Offload::Count(0), "{}", poor.why);
    // Too few drafts say nothing.
    assert_eq!(weighed(Acceptance { drafts: 9, drafted: 9, accepted: 9, ready: 0 }), None);
}

/// What `serve` writes to stderr until it listens.
fn notes_of_serve(command: &mut Command, place: &Place) -> String {
    let path = place.file("err.txt", "");
    let log = std::fs::File::create(&path).unwrap();
    let mut server = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let written = std::fs::read_to_string(path).unwrap();
    assert!(line.starts_with("listening on "), "{line}{written}");
    written
}

#[test]
fn run_and_serve_tell_why_a_draft_model_is_where_it_is() {
    let place = Place::new();
    place.file("m.toml", DESKTOP);
    for name in ["llama-1b", "llama-70b"] {
        place.run(&format!("synth --shape {name} --hollow {name}.gguf")).good();
    }
    let open = |name: &str| Model::open(&place.path().join(name), OpenOptions::default()).unwrap();
    let (draft, model) = (open("llama-1b.gguf"), open("llama-70b.gguf"));
    let flags = "-m llama-70b.gguf -md llama-1b.gguf --simulate m.toml --no-compute -c 2048";
    let notes = |accepted: Option<[u64; 2]>| {
        let kept = tempfile::tempdir().unwrap();
        if let Some([drafted, accepted]) = accepted {
            let counted = Acceptance { drafts: 100, drafted, accepted, ready: 0 };
            counted.record(kept.path(), &draft, &model);
        }
        let command = |line: &str| {
            let mut command = place.command(&format!("{line} {flags}"));
            command.env("BILAYER_CACHE", kept.path());
            command
        };
        let ran = ran(&mut command("run -no-cnv -p ab -n 1")).good();
        [ran.err, notes_of_serve(&mut command("serve --port 0 -np 1"), &place)]
    };
    let told = "draft tokens accepted per step so far";
    for written in notes(None) {
        assert!(!written.contains(told), "nothing is known: {written}");
    }
    for (accepted, shown, map) in
        [([400, 320], "3.2", "out:gpu 15-0:gpu"), ([40, 10], "0.1", "out:cpu 15-0:cpu")]
    {
        for written in notes(Some(accepted)) {
            let of_draft = |line: &str| line.strip_prefix("draft: ").map(str::to_owned);
            let lines: Vec<String> = written.lines().filter_map(of_draft).collect();
            let note = lines.iter().find(|line| line.contains(told)).expect(&written);
            let parts = ["note: ", " ms a token with the draft model on the GPU, ", shown];
            assert!(parts.iter().all(|part| note.contains(part)), "{note}");
            assert!(lines.contains(&format!("placement: {map}")), "{written}");
        }
    }
}

/// The numbers of a column of a profile's page.
fn cells(page: &str, name: &str) -> Vec<f64> {
    let cells = page.split("<data value=\"").filter_map(|cell| {
        let (value, rest) = cell.split_once("\" data-key=\"")?;
        rest.starts_with(&format!("{name}\"")).then(|| value.parse().unwrap())
    });
    cells.collect()
}

/// Whether numbers differ by no more than a share of themselves.
fn are_near(a: &[f64], b: &[f64], share: f64) -> bool {
    let mut pairs = a.iter().zip(b);
    a.len() == b.len() && pairs.all(|(a, b)| (a - b).abs() <= share * a.abs())
}

/// Prompts are read where the layers are, and with streamed weights where not all of them are on the card.
#[test]
fn a_profile_shows_prefill_with_and_without_streaming() {
    let place = Place::new();
    place.run("synth --shape llama-8b --layers 8 --vocab 4096 --hollow m.gguf").good();
    let profile = |gib: f64| {
        place.file("m.toml", described((65.0, 2.0), &[(gib, 800.0, 160.0, 25.0)]));
        let line = "profile -m m.gguf --simulate m.toml --no-compute -c 4096 -p 512 -n 4 -r 1";
        let printed = place.run(&format!("{line} --json")).json();
        let read =
            |name: &str| std::fs::read_to_string(place.path().join("profile").join(name)).unwrap();
        let written: serde_json::Value = serde_json::from_str(&read("profile.json")).unwrap();
        assert_eq!(written, printed);
        (printed, read("profile.html"))
    };
    // Room for all layers, and for some of them beside the slots of streamed ones.
    for (gib, all) in [(4.0, true), (0.75, false)] {
        let (document, page) = profile(gib);
        assert_eq!(document["streamed_prompt_tokens"], 512, "{document}");
        let points = document["points"].as_array().unwrap();
        let points: Vec<_> = points.iter().filter(|point| point["fits"] == true).collect();
        assert_eq!(points.len() == 10, all, "{document}");
        let [usual, predicted, streamed] =
            ["prefill_tps", "predicted_prefill_tps", "streamed_prefill_tps"].map(|name| {
                let numbers = points.iter().filter_map(|point| point[name].as_f64());
                let numbers: Vec<f64> = numbers.collect();
                assert!(are_near(&numbers, &cells(&page, name), 1e-9), "{name}: {document}");
                numbers
            });
        assert!(are_near(&usual, &predicted, 0.1), "{usual:?} {predicted:?}");
        assert!(usual[1..].is_sorted(), "more layers on the card are faster: {usual:?}");
        // The CPU alone streams nothing, and with all layers on the card nothing is left to stream; beside some of them there is
        // room for the slots.
        assert_eq!(usual.len(), points.len());
        let streams = if all { points.len() - 2 } else { 2 };
        assert_eq!(streamed.len(), streams, "{document}");
        assert!(streamed[0] > 10.0 * usual[0], "{streamed:?} {usual:?}");
        for point in points {
            let [usual, streamed] =
                ["prefill_tps", "streamed_prefill_tps"].map(|name| point[name].as_f64());
            assert!(streamed.is_none_or(|streamed| streamed > usual.unwrap()), "{point}");
        }
        assert!(page.contains("with streamed weights, 512 tokens"), "the chart's line");
    }
}

/// A card of two that is lost at a submit: the text is that of the CPU, and one warning tells where the layers are.
#[test]
fn a_program_goes_on_without_one_of_two_cards() {
    let place = Place::new();
    place.run("synth --layers 3 --type Q4_K_M m.gguf").good();
    let run = |flags: &str| {
        place.run(&format!("run -m m.gguf -p ab -n 12 --temp 0 --ignore-eos {flags}")).good()
    };
    let expected = run("-ngl 0").out;
    let two = described((50.0, 1.0), &[(24.0, 800.0, 100.0, 25.0); 2]);
    place.file("two.toml", format!("{two}lost_at = 6\n"));
    let ran = run("--simulate two.toml -ngl all -ts 1,1");
    assert_eq!(ran.out, expected);
    let warnings = ran.err.lines().filter(|line| line.contains("warning: "));
    let [warning] = warnings.collect::<Vec<_>>()[..] else { panic!("{ran:?}") };
    let map = "instead of out:gpu1 2:gpu1 1-0:gpu0 the placement is out:gpu";
    assert!(warning.contains(map), "{warning}");
}

#[test]
fn commands_run_on_a_simulated_machine() {
    let place = Place::new();
    place.file("m.toml", DESKTOP);
    place.run("synth --layers 3 --type Q4_K_M m.gguf").good();
    let answer = |flags: &str| {
        place.run(&format!("run -m m.gguf -p ab -n 6 --temp 0 --ignore-eos {flags}")).good()
    };
    let (cpu, gpu) = (answer("-ngl 0"), answer("--simulate m.toml -ngl all"));
    assert_eq!(cpu.out, gpu.out);
    assert!(gpu.err.contains("placement: out:gpu 2-0:gpu"), "{gpu:?}");
    // 70B on a card of 24 GiB: predicted, and gone through.
    place.run("synth --shape llama-70b --hollow 70b.gguf").good();
    let plan = place.run("plan -m 70b.gguf --simulate m.toml -c 4096 --json").json();
    let machine = place.run("plan -m 70b.gguf --machine m.toml -c 4096 --json").json();
    assert_eq!(plan["map"], machine["map"]);
    let layers = &plan["gpu_layers"];
    let line = format!(
        "bench -m 70b.gguf --simulate m.toml --no-compute -ngl {layers} -p 0 -n 8 -r 1 -o json"
    );
    let benched = place.run(&line).json();
    let (ms, predicted) = (
        1e3 / benched[0]["avg_ts"].as_f64().unwrap(),
        plan["predicted"]["decode_ms"].as_f64().unwrap(),
    );
    assert!((ms / predicted - 1.0).abs() < 0.05, "{ms} for {predicted} ms");
    // A number of layers is as fast with other numbers in the list as alone, and prompts are streamed as by `run`.
    let bench = |layers: &str| {
        let tests = "-p 512 -n 0 -r 1 --no-warmup -o json";
        let flags = format!("--simulate m.toml --no-compute -ngl {layers} {tests}");
        place.run(&format!("bench -m 70b.gguf {flags}")).json()[0].clone()
    };
    let (alone, among) = (bench("43"), bench("43,auto"));
    assert_eq!((&alone["n_gpu_layers"], &alone["avg_ts"]), (&43.into(), &among["avg_ts"]));
    assert!(alone["avg_ts"].as_f64().unwrap() > 300.0, "{alone}");
    assert_eq!(alone["cpu_info"], "16 cores, dual-channel DDR5-5600");
    for (flags, names) in [
        ("--no-compute", "--simulate"),
        ("--simulate none.toml", "none.toml"),
        ("--simulate m.gguf", "m.gguf"),
        ("--simulate m.toml -dev 3", "3"),
    ] {
        let wrong = place.run(&format!("run -m m.gguf -p ab -n 1 {flags}"));
        assert!(wrong.code != Some(0) && wrong.err.contains(names), "{flags}: {wrong:?}");
    }
}

#[test]
fn measurements_are_those_of_the_simulated_machine() {
    let place = Place::new();
    place.file("m.toml", DESKTOP);
    place.run("synth --layers 3 --type Q4_K_M m.gguf").good();
    // The memory of all GPUs.
    place.file("two.toml", described((50.0, 1.0), &[(24.0, 800.0, 100.0, 25.0); 2]));
    let flags = "-m m.gguf --simulate two.toml -ngl all -ts 1,1";
    let bench = place.run(&format!("bench {flags} -p 0 -n 2 -r 1 -o json")).json();
    let plan = place.run(&format!("plan {flags} -c 2 --json")).json();
    let used = |gpu: usize| plan["devices"][gpu]["used_bytes"].as_u64().unwrap();
    assert!(used(1) > 0 && used(2) > 0, "{plan}");
    assert_eq!(bench[0]["adapter_bytes"], used(1) + used(2));
    // Times are those of the machine, which are the same again.
    place.file("encoder.gguf", words::scorer("bert", &["good", "bad"]));
    let long = "abc ".repeat(100);
    place.file("cases.jsonl", format!("{{\"prompt\":\"ab\",\"exact\":\"\",\"max_tokens\":3}}\n{{\"prompt\":\"{long}\",\"exact\":\"\"}}\n"));
    place.file("labels.jsonl", "{\"prompt\":\"a\",\"label\":\"good\"}\n");
    for (model, cases) in [("m.gguf", "cases.jsonl"), ("encoder.gguf", "labels.jsonl")] {
        let line = format!(
            "evaluate -m {model} --data {cases} -c 64 --price-per-hour 1 --simulate m.toml --json"
        );
        let [first, again] = [(); 2].map(|()| place.run(&line).json()["models"][0].clone());
        for name in ["seconds", "case_ms", "first_token_ms"] {
            assert_eq!(first[name], again[name], "{model}: {name}");
        }
        let (outcomes, ms) = (first["outcomes"].as_array().unwrap(), &first["outcomes"][0]["ms"]);
        assert!(ms.as_f64().unwrap() > 0.0, "{first}");
        assert_eq!(
            first["case_ms"],
            serde_json::json!([ms, ms]),
            "without the one that did not run"
        );
        assert_eq!(first["prompt_tokens"], outcomes[0]["prompt_tokens"]);
        let seconds = first["seconds"].as_f64().unwrap();
        assert_eq!(first["cases_per_second"].as_f64().unwrap(), 1.0 / seconds);
        assert!(outcomes.get(1).is_none_or(|refused| refused["ms"].is_null()), "{first}");
    }
    let speed = || place.run("embed -m encoder.gguf --simulate m.toml a b").good().err;
    assert_eq!(speed(), speed());
    // An encoder reads texts together.
    let line = "bench -m encoder.gguf --simulate m.toml -p 8 -n 0 -np 1,4 -r 1 -o json";
    let rows = place.run(line).json();
    let speed = |row: usize| rows[row]["avg_ts"].as_f64().unwrap();
    assert!(speed(1) > 2.0 * speed(0), "{rows}");
}
