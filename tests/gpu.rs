//! The promises specific to the GPU backend: no GPU objects are created on the token path, memory is counted and shared
//! where possible, and a run survives the loss of the device.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use std::sync::Arc;
use std::time::Duration;

use bilayer_convert::mix::Mix;
use bilayer_convert::synth::{Shape, Sizes, Synth};
use bilayer_cpu::Cpu;
use bilayer_engine::Model;
use bilayer_engine::placement::Placing;
use bilayer_engine::session::{Run, Session, Settings, Wanted, Warning};
use bilayer_gguf::OpenOptions;
use bilayer_gpu::{Gpu, Opened};
use bilayer_graph::{Backend, Exactness, Graph, Holding, Limits, Segment, Span, Step};
use bilayer_quant::Type;
use bilayer_scheduler::{Budget, Machine, Offload, OpOffload, Placement, place};

#[path = "../crates/xtask/src/gpu_offline/dispatches.rs"]
mod dispatches;
mod support {
    pub mod data;
    pub mod gpu;
    pub mod model;
    pub mod words;
}

use support::data::shared;
use support::words;

const LIMITS: Limits = Limits { sequences: 2, page_entries: 8, states: 0, ..Limits::new(8, 4) };

/// Loads all of a model on a backend and compiles it whole.
fn load(gpu: &mut Gpu, model: &Model) -> bilayer_graph::SegmentId {
    load_with(gpu, model, LIMITS)
}

fn load_with(gpu: &mut Gpu, model: &Model, limits: Limits) -> bilayer_graph::SegmentId {
    let graph = model.graph();
    let weights: Vec<_> = graph.weights.iter().collect();
    let mapped: Vec<_> = weights.iter().filter_map(|weight| model.mapped(weight)).collect();
    gpu.reserve(&Holding { weights: &weights, mapped: &mapped, ..Holding::default() }).unwrap();
    for weight in weights {
        let tensor = model.file().tensor(&weight.name).unwrap();
        let bytes = model.file().bytes(tensor).slice(weight.range_in_tensor());
        gpu.load(weight, bytes).unwrap();
    }
    let nodes = 0..graph.nodes.len();
    let outputs = vec![graph.logits];
    gpu.compile(&Segment { graph, nodes, inputs: Vec::new(), outputs }, limits).unwrap()
}

/// The logits after each of `tokens`, fed one at a time.
fn logits(
    gpu: &mut Gpu,
    segment: bilayer_graph::SegmentId,
    model: &Model,
    tokens: &[u32],
) -> Vec<f32> {
    let graph = model.graph();
    let width = graph.width(graph.logits);
    let mut all = Vec::new();
    for (position, token) in tokens.iter().enumerate() {
        let first_position = position as u32;
        let span = Span { first_row: 0, rows: 1, first_position, first_page: 0 };
        let step = Step {
            tokens: &[*token],
            spans: &[span],
            pages: &[2, 1],
            outputs: &[0],
            states: &[],
            copies: &[],
            top_k: usize::MAX,
            exactness: Exactness::Fastest,
        };
        gpu.submit(segment, &step).unwrap();
        let mut row = vec![f32::NAN; width];
        gpu.read(graph.logits, &mut row).unwrap();
        all.extend(row);
    }
    all
}

#[test]
fn no_gpu_objects_are_created_on_the_token_path() {
    // A separate device, so that objects of other tests are not counted.
    let Some(opened) = support::gpu::apart() else { return };
    let mut gpu = opened.backend();
    let model = Model::from_bytes("tiny", words::tiny(Type::Q8_0, 3)).unwrap();
    let segment = load(&mut gpu, &model);
    let before = gpu.created();
    logits(&mut gpu, segment, &model, &(3..43).collect::<Vec<u32>>());
    assert_eq!(gpu.created(), before, "buffers, pipelines and bind groups are made when compiling");
    assert!(before.pipelines > 5 && before.buffers > 5 && before.bind_groups > 5, "{before:?}");
}

/// Steps that are timed op by op are recorded one at a time.
#[test]
fn the_next_step_is_recorded_while_the_device_computes() {
    let model = Model::from_bytes("tiny", words::tiny(Type::Q8_0, 3)).unwrap();
    let tokens: Vec<u32> = (3..73).collect();
    let run = |timings| {
        let mut gpu = support::gpu::gpu()?;
        let segment = load_with(&mut gpu, &model, Limits { timings, ..LIMITS });
        let found = logits(&mut gpu, segment, &model, &tokens);
        Some((found, gpu.steps_recorded_ahead()))
    };
    let Some((expected, none)) = run(true) else { return };
    let (found, ahead) = run(false).unwrap();
    assert_eq!(found, expected);
    assert_eq!(none, 0);
    assert!(ahead > tokens.len() / 2, "{ahead} of {} steps", tokens.len());
}

/// A decoder's token has the dispatches with which `cargo xtask gpu-offline` predicts it and that `docs/internals/gpu.md` lists.
#[test]
fn a_token_has_the_dispatches_that_are_predicted() {
    if support::gpu::as_hardware().is_none() {
        return;
    }
    let count = |layers: u32, mix: &str| {
        let mut gpu = support::gpu::as_hardware().unwrap();
        let (width, ffn, vocab) = (Some(256), Some(512), Some(1000));
        let sizes =
            Sizes { layers: Some(layers), width, heads: Some(4), ffn, vocab, ..Sizes::default() };
        let shape = Shape::find("llama-8b").unwrap().with(sizes).unwrap();
        let bytes = Synth::new(shape, Mix::find(mix).unwrap()).to_bytes().unwrap();
        let model = Model::from_bytes("llama", bytes).unwrap();
        let segment = load(&mut gpu, &model);
        logits(&mut gpu, segment, &model, &[5]);
        gpu.dispatches(segment)
    };
    for layers in [2, 3] {
        // The wanted rows of the last layer's attention have no quantization: it takes a dispatch, which a matrix of less than
        // 8 MB is not worth.
        let alike = dispatches::LAYER * layers as usize + dispatches::OTHERS - 1;
        assert_eq!(count(layers, "Q8_0"), alike, "{layers} layers");
        // The last layer's values are of Q6_K.
        assert_eq!(count(layers, "Q4_K_M"), alike + dispatches::OTHER_VALUES, "{layers} layers");
    }
    let (least, most) = (dispatches::LAYER, dispatches::LAYER + dispatches::OTHER_VALUES);
    let told = format!("This makes {least} or {most} dispatches.");
    assert!(include_str!("../docs/internals/gpu.md").contains(&told), "{told}");
}

#[test]
fn memory_in_use_is_counted() {
    let Some(mut gpu) = support::gpu::gpu() else { return };
    assert_eq!(gpu.bytes(), 0);
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 3)).unwrap();
    load(&mut gpu, &model);
    let weights: u64 = model.graph().weights.iter().map(bilayer_gpu::device_bytes).sum();
    assert!(gpu.bytes() > weights && gpu.bytes() < 3 * weights, "{} of {weights}", gpu.bytes());
    gpu.reserve(&Holding::default()).unwrap();
    assert_eq!(gpu.bytes(), 0, "another plan begins with nothing");
}

/// A file of a type that shaders read without conversion gives the same bits mapped and read into memory, and the mapped
/// one takes no device memory. A software adapter copies it: a file that is truncated would end the process.
#[test]
fn mapped_weights_are_read_in_place() {
    let Some(folder) = shared("quant/llama-256") else { return };
    let path = folder.join("q4_k_m.gguf");
    let mut found = Vec::new();
    let plain = Model::open(&path, OpenOptions::default()).unwrap();
    let Some(mut software) = support::gpu::gpu().filter(|gpu| gpu.device().caps().software) else {
        return;
    };
    load(&mut software, &plain);
    assert_eq!(software.mapped_bytes(), 0);
    for map in [true, false] {
        let Some(mut gpu) = support::gpu::as_hardware() else { return };
        if !gpu.device().caps().unified {
            eprintln!("skipped: the adapter has memory of its own");
            return;
        }
        let options = OpenOptions { map, ..OpenOptions::default() };
        let model = Model::open(&path, options).unwrap();
        let segment = load(&mut gpu, &model);
        let matrices = model.graph().weights.iter().filter(|weight| weight.ty == Type::Q4_K);
        let matrices: u64 = matrices.map(|weight| weight.bytes() as u64).sum();
        assert!(matrices > 0);
        found.push((
            gpu.mapped_bytes(),
            gpu.bytes(),
            logits(&mut gpu, segment, &model, &[1, 40, 200, 7]),
        ));
        assert_eq!(gpu.mapped_bytes(), if map { matrices } else { 0 }, "mapped: {map}");
        // Those of a layer stay where they are while the others are released.
        let first: Vec<_> = model.graph().weights.iter().filter(|of| of.layer == Some(0)).collect();
        gpu.reserve(&Holding { weights: &first, ..Holding::default() }).unwrap();
        let kept = first.iter().filter(|weight| map && weight.ty == Type::Q4_K);
        assert_eq!(gpu.mapped_bytes(), kept.map(|weight| weight.bytes() as u64).sum::<u64>());
        gpu.reserve(&Holding::default()).unwrap();
        assert_eq!((gpu.mapped_bytes(), gpu.bytes()), (0, 0));
    }
    let [(mapped, bytes, logits), (_, copied, others)] = &found[..] else { panic!() };
    assert_eq!(logits, others);
    assert!(copied - bytes >= *mapped, "{mapped} bytes are counted once: {bytes} and {copied}");
}

/// A session whose layers are on a device of its own, since other tests continue to use theirs.
fn on_device(model: &Model, opened: &Opened) -> Session {
    on_devices(model, &[opened], &Placement::offload(model.graph().layers(), 3, 0, 1))
}

/// A session on the CPU and devices of its own.
fn on_devices(model: &Model, opened: &[&Opened], placement: &Placement) -> Session {
    let cpu = bilayer_cpu::Options { threads: Some(1), ..Default::default() };
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Cpu::new(cpu).unwrap())];
    backends.extend(opened.iter().map(|opened| -> Box<dyn Backend> { Box::new(opened.backend()) }));
    let planner =
        |graph: &Graph, machine: &_, budget: &_| Ok(place(graph, machine, budget, placement)?);
    let settings = Settings {
        threads: Some(1),
        ctx_size: Some(128),
        placing: Placing::cpu(),
        ..Settings::default()
    };
    Session::on(model, backends, &planner, settings).unwrap()
}

/// Streamed layers with rows of 96 elements, which kernels read to the end of 128: attention and the experts' networks are
/// programs of different shapes in one memory.
#[test]
fn programs_with_memory_in_common_read_zeros_beyond_their_rows() {
    let sizes = Sizes {
        layers: Some(3),
        width: Some(96),
        heads: Some(4),
        kv_heads: Some(2),
        head_dim: Some(32),
        ffn: Some(128),
        vocab: Some(512),
        ..Sizes::default()
    };
    let shape = Shape::find("qwen3-30b-a3b").unwrap().with(sizes).unwrap();
    let bytes = Synth::new(shape, Mix::pure(Type::Q8_0).unwrap()).to_bytes().unwrap();
    let model = Model::from_bytes("padded", bytes).unwrap();
    // Short prompts have programs of their own, and find what those of long ones left.
    let lengths = (1..6).flat_map(|seed| [150, 40, 6].map(|length| (seed, length)));
    let prompts: Vec<Vec<u32>> = lengths
        .map(|(seed, length)| (0..length).map(|i| (i * 37 + seed * 101 + length) % 500).collect())
        .collect();
    let logits = |gpu: Gpu, gpu_layers| -> Vec<f32> {
        let cpu = bilayer_cpu::Options { threads: Some(1), ..Default::default() };
        let backends: Vec<Box<dyn Backend>> = vec![Box::new(Cpu::new(cpu).unwrap()), Box::new(gpu)];
        let placing = Placing { gpu_layers, op_offload: OpOffload::From(2), ..Placing::default() };
        let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
            placing.plan(graph, machine, budget)
        };
        let settings = Settings { threads: Some(1), ctx_size: Some(1024), ..Settings::default() };
        let mut session = Session::on(&model, backends, &planner, settings).unwrap();
        assert_eq!(session.plan().streaming.is_some(), gpu_layers != Offload::All);
        let mut all = Vec::new();
        for prompt in &prompts {
            let sequence = session.open().unwrap();
            all.extend(session.prefill(sequence, prompt, &mut |_| true).unwrap().unwrap());
            session.close(sequence);
        }
        all
    };
    let [Some(streaming), Some(whole)] = [support::gpu::gpu(), support::gpu::gpu()] else { return };
    let found = logits(streaming, Offload::Count(1));
    let expected = logits(whole, Offload::All);
    let squares = |row: &mut dyn Iterator<Item = f32>| row.map(|x| x * x).sum::<f32>();
    let off = squares(&mut found.iter().zip(&expected).map(|(a, b)| a - b))
        / squares(&mut expected.iter().copied());
    assert!(off < 1e-4, "{off}");
}

/// The greedy text after a prompt, with `each` called after each token, the warnings, and the placement in the end.
fn text(session: &mut Session, each: &dyn Fn(usize)) -> (Vec<u32>, Vec<Warning>, String) {
    let prompt: Vec<u32> = (0..40).map(|i| 3 + (i * 37) % 100).collect();
    let sequence = session.open().unwrap();
    let best = |row: &[f32]| (0..row.len()).fold(0, |b, i| if row[i] > row[b] { i } else { b });
    let row = session.prefill(sequence, &prompt, &mut |_| true).unwrap().unwrap();
    let mut tokens = vec![best(row) as u32];
    while tokens.len() < 64 {
        each(tokens.len());
        let run = Run { sequence, tokens: &tokens[tokens.len() - 1..], wanted: Wanted::Last };
        tokens.push(best(session.step(&[run]).unwrap()) as u32);
    }
    (tokens, session.take_warnings(), session.plan().map.clone())
}

/// The answer continues unchanged.
#[test]
fn a_lost_device_is_replaced_by_the_cpu() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 5)).unwrap();
    let text = |lost_after: Option<usize>| {
        let opened = support::gpu::apart().unwrap();
        let destroy = |tokens| {
            if lost_after == Some(tokens) {
                opened.device().destroy();
            }
        };
        text(&mut on_device(&model, &opened), &destroy)
    };
    let (expected, warnings, _) = text(None);
    assert!(warnings.is_empty(), "{warnings:?}");
    for after in [1, 30] {
        let (found, warnings, map) = text(Some(after));
        assert_eq!(found, expected, "lost after {after} tokens");
        assert!(matches!(warnings[..], [Warning::Moved { .. }]), "{warnings:?}");
        assert_eq!(map, "out:cpu 2-0:cpu");
    }
}

/// One of two is lost in the middle of an answer: its layers are planned over the other one and the CPU, and so again when
/// that one is lost, too.
#[test]
fn a_lost_device_is_replaced_by_the_other_one_and_the_cpu() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 5)).unwrap();
    // The first layer stays on the CPU.
    let placement = Placement::split(model.graph().layers(), 0, &[(1, 1), (2, 2)]);
    let alone = Settings { placing: Placing::cpu(), ..Settings::default() };
    let (expected, ..) = text(&mut Session::new(&model, alone).unwrap(), &|_| ());
    let (other, cpu) = ("the placement is out:gpu 2-1:gpu 0:cpu", "all runs on the CPU");
    // After how many tokens which one is lost, and what the warning says.
    for losses in [&[(20, 0, other)][..], &[(20, 1, other), (40, 0, cpu)]] {
        let opened = [(); 2].map(|()| support::gpu::apart().unwrap());
        let mut session = on_devices(&model, &opened.each_ref(), &placement);
        assert_eq!(session.plan().map, "out:gpu1 2:gpu1 1:gpu0 0:cpu");
        let (found, warnings, _) = text(&mut session, &|tokens| {
            let lost = losses.iter().filter(|(after, ..)| *after == tokens);
            lost.for_each(|(_, device, _)| opened[*device].device().destroy());
        });
        assert_eq!(found, expected, "{losses:?}");
        assert_eq!(warnings.len(), losses.len(), "{warnings:?}");
        for (warning, (.., now)) in warnings.iter().zip(losses) {
            let is_named = warning.to_string().contains(now);
            assert!(is_named && matches!(warning, Warning::Moved { .. }), "{warning}");
        }
    }
}

/// A command buffer that the driver gives up without a report, as Metal's does through wgpu 30, while a prompt is read: in the
/// step that has results, and in one before it, which has none.
#[test]
fn a_command_buffer_that_fails_silently_does_not_change_the_answer() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 5)).unwrap();
    let prompt: Vec<u32> = (0..80).map(|i| 3 + (i * 37) % 100).collect();
    let logits = |fails_at: Option<usize>| {
        let opened = support::gpu::apart().unwrap();
        let mut session = on_device(&model, &opened);
        let sequence = session.open().unwrap();
        for (at, tokens) in prompt.chunks(40).enumerate() {
            if fails_at == Some(at) && !opened.device().fail_next() {
                return None;
            }
            let wanted = if at == 0 { Wanted::None } else { Wanted::Last };
            session.step(&[Run { sequence, tokens, wanted }]).unwrap();
        }
        let run = Run { sequence, tokens: &[9], wanted: Wanted::Last };
        let logits = session.step(&[run]).unwrap().to_vec();
        Some((logits, session.take_warnings(), session.plan().map.clone()))
    };
    let (expected, warnings, _) = logits(None).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    for step in [0, 1] {
        let Some((found, warnings, map)) = logits(Some(step)) else {
            eprintln!("skipped: the device reports its failures");
            return;
        };
        let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-3, "{step}: {furthest}");
        assert!(format!("{warnings:?}").contains("did not complete 1 of"), "{step}: {warnings:?}");
        assert_eq!(map, "out:cpu 2-0:cpu", "{step}: {warnings:?}");
    }
}

/// A driver's compiler that takes a kernel of the probe, and none of the model's with subgroup operations.
#[test]
fn kernels_that_the_driver_rejects_are_replaced_by_simpler_ones() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 5)).unwrap();
    let logits_on = |opened: Opened, rejected: Option<&'static str>| {
        rejected.inspect(|text| opened.device().reject(text));
        let mut session = on_device(&model, &opened);
        let sequence = session.open().unwrap();
        let run = Run { sequence, tokens: &[9, 4, 7], wanted: Wanted::Last };
        let logits = session.step(&[run]).unwrap().to_vec();
        (logits, session.take_warnings(), session.plan().map.clone())
    };
    let logits = |rejected| logits_on(support::gpu::apart().unwrap(), rejected);
    let (expected, _, map) = logits(None);
    let emitting = support::gpu::as_hardware_without_subgroups().unwrap();
    let rejected = "made_squares";
    for (part, result) in [
        ("subgroupAdd", logits(Some("subgroupAdd"))),
        // Products that compute what a norm after them needs.
        (rejected, logits_on(emitting, Some(rejected))),
    ] {
        let (found, warnings, same) = result;
        let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-3, "{part}: {furthest}");
        assert_eq!(same, map, "{part}: the layers stay on the GPU");
        assert!(!warnings.is_empty(), "{part}");
        for warning in &warnings {
            let Warning::Simplified { reason, .. } = warning else { panic!("{warnings:?}") };
            assert!(reason.contains(part), "{reason}");
        }
    }
    // Without any kernel the CPU computes.
    let (found, warnings, map) = logits(Some("@compute"));
    let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest < 1e-3, "{furthest}");
    assert!(format!("{warnings:?}").contains("@compute"), "{warnings:?}");
    assert_eq!(map, "out:cpu 2-0:cpu", "{warnings:?}");
}

/// A kernel that does not end: while weights are loaded, while nothing runs, and while a sequence is saved.
#[test]
fn a_device_that_hangs_is_replaced_by_the_cpu() {
    if support::gpu::gpu().is_none() {
        return;
    }
    let model = Model::from_bytes("tiny", words::tiny(Type::F32, 5)).unwrap();
    let prompt: Vec<u32> = (0..40).map(|i| 3 + (i * 37) % 100).collect();
    let logits = |hangs: &str| {
        let opened = support::gpu::apart().unwrap();
        let device = Arc::clone(opened.device());
        let hang = |moment: &str| {
            if hangs == moment {
                device.hang(Duration::from_millis(30));
            }
        };
        hang("load");
        let mut session = on_device(&model, &opened);
        let sequence = session.open().unwrap();
        session.prefill(sequence, &prompt, &mut |_| true).unwrap();
        hang("save");
        let saved = session.save(sequence);
        if hangs == "save" {
            let error = saved.expect_err("the device is waited for").to_string();
            assert!(error.contains("it finished nothing in"), "{error}");
        } else {
            assert_eq!(saved.unwrap().tokens(), prompt);
        }
        let run = Run { sequence, tokens: &[9], wanted: Wanted::Last };
        let logits = session.step(&[run]).unwrap().to_vec();
        (logits, session.take_warnings(), session.plan().map.clone())
    };
    let (expected, warnings, _) = logits("never");
    assert!(warnings.is_empty(), "{warnings:?}");
    for moment in ["load", "save"] {
        let (found, warnings, map) = logits(moment);
        let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-3, "{moment}: {furthest}");
        assert!(!warnings.is_empty(), "{moment}");
        assert_eq!(map, "out:cpu 2-0:cpu", "{moment}: {warnings:?}");
    }
}
