//! Resident experts: the answers of the CPU, whichever experts are on the device, while they are exchanged, and when it
//! fails.

use bilayer_engine::session::{EXCHANGES, REVIEW_STEPS};
use bilayer_gguf::File;
use bilayer_graph::reference::Reference;
use bilayer_quant::Type;
use bilayer_scheduler::{ExpertCache, ExpertUses, mixtures};

use super::*;

/// A mixture of three layers whose 32 experts have biases.
fn biased() -> Model {
    let sizes = [("vocab_size", 1000), ("context_length", 2048), ("expert_count", 32)];
    let bytes = support::words::tiny_of_sizes("gpt-oss", &sizes);
    Model::from_bytes("biased", bytes).unwrap()
}

/// A mixture of three layers whose 32 experts have factors.
fn factored() -> Model {
    let sizes = [("vocab_size", 1000), ("context_length", 2048), ("expert_count", 32)];
    let plain =
        File::from_bytes("plain", support::words::tiny_of_sizes("qwen3moe", &sizes)).unwrap();
    let optional: Vec<String> = ["gate", "up", "down"]
        .iter()
        .flat_map(|name| (0..3).map(move |layer| format!("blk.{layer}.ffn_{name}_exps.scale")))
        .collect();
    let optional: Vec<&str> = optional.iter().map(String::as_str).collect();
    let raised = |name: &str, values: &mut [f32]| {
        if name.ends_with(".scale") {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
    };
    let metadata = plain.metadata();
    let bytes = support::model::random_bytes(metadata, Type::F32, &optional, 7, &raised);
    Model::from_bytes("factored", bytes).unwrap()
}

/// A cache for a share of all experts.
fn share(model: &Model, share: f64) -> ExpertCache {
    let graph = model.graph();
    let mixtures = mixtures(graph);
    let weights = mixtures.iter().flat_map(|mixture| mixture.weights(graph));
    let bytes: usize = weights.map(|id| graph.weight(id).bytes()).sum();
    ExpertCache::Bytes((bytes as f64 * share) as u64)
}

/// Placements of layers, and what they stream.
fn placings(model: &Model) -> Vec<Placing> {
    let plain = Placing { op_offload: OpOffload::Never, ..Placing::default() };
    let few = Placing { expert_cache: share(model, 0.3), ..plain };
    vec![
        Placing { gpu_layers: Offload::All, ..few.clone() },
        Placing { gpu_layers: Offload::Count(0), ..few.clone() },
        Placing { gpu_layers: Offload::Count(2), ..few.clone() },
        Placing { gpu_layers: Offload::All, cpu_moe_layers: 2, ..few.clone() },
        Placing { gpu_layers: Offload::All, op_offload: STREAMED, ..few.clone() },
        Placing { gpu_layers: Offload::Count(1), op_offload: OpOffload::From(8), ..few.clone() },
        Placing { gpu_layers: Offload::All, expert_cache: share(model, 1.0), ..few },
    ]
}

/// The logits of the prompt of [`greedy`] and of a text after it.
fn forced(session: &mut Session, text: &[u32]) -> Vec<Vec<f32>> {
    resumed(session, text, 0)
}

/// The logits of [`forced`] from token `from` of the text on, the tokens before it as part of the prompt.
fn resumed(session: &mut Session, text: &[u32], from: usize) -> Vec<Vec<f32>> {
    let sequence = session.open().unwrap();
    let said = text[..from].iter().copied();
    let prompt: Vec<u32> = some(ROWS, 6).into_iter().chain(said).collect();
    let last = session.prefill(sequence, &prompt, &mut |_| true).unwrap().unwrap();
    let mut rows = vec![last.to_vec()];
    for &token in &text[from..] {
        let run = Run { sequence, tokens: &[token], wanted: Wanted::Last };
        rows.push(session.step(&[run]).unwrap().to_vec());
    }
    session.close(sequence);
    rows
}

/// Prompt and greedy answer.
fn greedy(session: &mut Session, steps: usize) -> Vec<Vec<f32>> {
    let sequence = session.open().unwrap();
    let prompt = session.prefill(sequence, &some(ROWS, 6), &mut |_| true).unwrap().unwrap();
    let mut rows = vec![prompt.to_vec()];
    for _ in 0..steps {
        let token = best(&rows[rows.len() - 1..])[0];
        let run = Run { sequence, tokens: &[token], wanted: Wanted::Last };
        rows.push(session.step(&[run]).unwrap().to_vec());
    }
    session.close(sequence);
    rows
}

#[test]
fn resident_experts_give_the_bits_of_the_cpu() {
    for model in [mixture(), biased(), factored()] {
        let expected = conversation(&mut alone(&model), LONG);
        for placing in placings(&model) {
            let mut session = placed(&model, cpu_as_gpu(), settings(), &placing);
            let experts = session.plan().experts.clone().unwrap();
            let layers = if placing.cpu_moe_layers == 2 { 2 } else { 3 };
            assert_eq!(experts.layers.len(), layers);
            assert_eq!(session.plan().devices[1].expert_bytes, experts.bytes);
            let found = conversation(&mut session, LONG);
            assert!(found == expected, "{placing:?}: bits differ: {:e}", error(&found, &expected));
            assert_eq!(session.take_warnings(), []);
            let hits = session.expert_hits().unwrap();
            assert!(hits.routed > 0 && hits.resident > 0, "{hits:?}");
            let is_whole = placing.expert_cache == share(&model, 1.0);
            assert_eq!(hits.resident == hits.routed, is_whole, "{hits:?}");
        }
    }
}

#[test]
fn experts_are_exchanged_for_those_that_are_used_and_answers_stay() {
    [mixture(), biased(), factored()].iter().for_each(experts_are_exchanged);
}

fn experts_are_exchanged(model: &Model) {
    let steps = 6 * REVIEW_STEPS as usize;
    let expected = greedy(&mut alone(model), steps);
    let placing = Placing { gpu_layers: Offload::All, ..placings(model)[0].clone() };
    let mut session = placed(model, cpu_as_gpu(), settings(), &placing);
    let found = greedy(&mut session, steps);
    assert!(found == expected, "bits differ: {:e}", error(&found, &expected));
    let hits = session.expert_hits().unwrap();
    assert!(hits.exchanged > 0, "{hits:?}");
    assert!(hits.exchanged <= (EXCHANGES * steps) as u64, "{hits:?}");
    // Repeated, the text finds more of its experts resident.
    let before = hits;
    let again = greedy(&mut session, REVIEW_STEPS as usize);
    assert!(again == expected[..again.len()]);
    let after = session.expert_hits().unwrap();
    let now = (after.resident - before.resident) as f64 / (after.routed - before.routed) as f64;
    let chance = session.plan().experts.as_ref().unwrap().hit_rate;
    assert!(now > chance + 0.1, "{now} of {chance}");
    // Layers that move keep what is resident.
    let moved = Placing { gpu_layers: Offload::Count(1), ..placing };
    let planner =
        |graph: &Graph, machine: &Machine, budget: &Budget| moved.plan(graph, machine, budget);
    session.place(&planner).unwrap();
    let again = greedy(&mut session, 8);
    assert!(again == expected[..again.len()]);
    assert_eq!(session.take_warnings(), []);
}

#[test]
fn residents_are_chosen_by_counts() {
    let model = mixture();
    // The last experts of each layer are used most.
    let counts: Vec<f64> = (0..32).map(|expert| if expert < 24 { 1.0 } else { 21.0 }).collect();
    let layers = (0..3).map(|layer| (layer, counts.clone())).collect();
    let uses = ExpertUses { source: "counts".to_owned(), layers };
    let placing = Placing {
        gpu_layers: Offload::All,
        expert_cache: share(&model, 0.25),
        expert_uses: Some(uses),
        op_offload: OpOffload::Never,
        ..Placing::default()
    };
    let settings = Settings { placing: placing.clone(), ..settings() };
    let mut session = placed(&model, cpu_as_gpu(), settings, &placing);
    let experts = session.plan().experts.clone().unwrap();
    for choice in &experts.choices {
        let mut residents = choice.residents.clone();
        residents.sort_unstable();
        assert_eq!(residents, (24..32).collect::<Vec<u32>>());
    }
    assert!((experts.hit_rate - 168.0 / 192.0).abs() < 1e-6, "{}", experts.hit_rate);
    // Given counts are kept to.
    greedy(&mut session, 2 * REVIEW_STEPS as usize);
    assert_eq!(session.expert_hits().unwrap().exchanged, 0);
}

#[test]
fn a_device_that_fails_with_residents_does_not_change_the_answer() {
    let model = mixture();
    let steps = REVIEW_STEPS as usize + 16;
    let expected = greedy(&mut alone(&model), steps);
    let text = &best(&expected)[..steps];
    // A fault makes a prompt of what was said, which rounds otherwise than its tokens did one by one.
    let usual = error(&resumed(&mut alone(&model), text, steps / 2), &expected[steps / 2..]);
    let placing = Placing { gpu_layers: Offload::All, ..placings(&model)[0].clone() };
    let calls = [Call::Load, Call::Compile, Call::Submit, Call::Read, Call::Write, Call::Exchange];
    for (call, fault) in
        calls.into_iter().flat_map(|call| [Fault::Lost, Fault::OutOfMemory].map(|f| (call, f)))
    {
        for after in [0, 130] {
            let device = Failing::new(cpu_as_gpu(), Script { call, after, fault });
            let failed = device.failed.clone();
            let mut session = placed(&model, Box::new(device), settings(), &placing);
            let found = forced(&mut session, text);
            let what = format!("{call:?} {fault:?} after {after}");
            let off = error(&found, &expected);
            assert!(off < 2.0 * usual, "{what}: error {off:e}, {usual:e} of a prompt");
            let warnings = session.take_warnings();
            assert_eq!(*failed.lock().unwrap(), !warnings.is_empty(), "{what}: {warnings:?}");
        }
    }
}

/// The first, the second or the third matrix of the first expert: the step has succeeded, and nothing is routed to the slot.
#[test]
fn a_device_that_refuses_an_expert_keeps_the_others() {
    let model = mixture();
    let steps = REVIEW_STEPS as usize + 16;
    let expected = greedy(&mut alone(&model), steps);
    let text = &best(&expected)[..steps];
    let placing = Placing { gpu_layers: Offload::All, ..placings(&model)[0].clone() };
    let usual = {
        let mut session = placed(&model, cpu_as_gpu(), settings(), &placing);
        error(&forced(&mut session, text), &expected)
    };
    let loaded = {
        let never = Script { call: Call::Exchange, after: usize::MAX, fault: Fault::Refused };
        let device = Failing::new(cpu_as_gpu(), never);
        let exchanges = device.exchanges.clone();
        placed(&model, Box::new(device), settings(), &placing);
        *exchanges.lock().unwrap()
    };
    for after in [0, 1, 2].map(|matrix| loaded + matrix) {
        let script = Script { call: Call::Exchange, after, fault: Fault::Refused };
        let device = Failing::new(cpu_as_gpu(), script);
        let failed = device.failed.clone();
        let mut session = placed(&model, Box::new(device), settings(), &placing);
        let found = forced(&mut session, text);
        assert!(*failed.lock().unwrap(), "after {after}");
        let off = error(&found, &expected);
        assert!(off <= 2.0 * usual, "after {after}: error {off:e}, {usual:e} with all exchanges");
        assert!(matches!(session.take_warnings()[..], [Warning::NotExchanged { .. }]), "{after}");
        assert_eq!(session.expert_hits().unwrap().exchanged, 0);
    }
}

#[test]
fn a_device_without_room_for_residents_keeps_its_layers() {
    let model = mixture();
    let expected = best(&greedy(&mut alone(&model), 8));
    let placing = Placing { gpu_layers: Offload::All, ..placings(&model)[0].clone() };
    let of = |fault| {
        let script = Script { call: Call::Load, after: 0, fault };
        let device = Box::new(Failing::new(cpu_as_gpu(), script));
        placed(&model, device, settings(), &placing)
    };
    let mut session = of(Fault::OutOfMemory);
    assert!(matches!(session.take_warnings()[..], [Warning::NotCached { .. }]));
    assert_eq!(session.plan().experts, None);
    assert!(session.plan().map.starts_with("out:gpu 2-0:gpu+cpu"), "{}", session.plan().map);
    assert_eq!(best(&greedy(&mut session, 8)), expected);
    // One that is lost keeps nothing.
    let mut session = of(Fault::Lost);
    let warnings = session.take_warnings();
    let is_moved = matches!(warnings[..], [Warning::NotCached { .. }, Warning::Reduced { .. }]);
    assert!(is_moved, "{warnings:?}");
    assert_eq!(best(&greedy(&mut session, 8)), expected);
}

/// Nanoseconds in which segments of both devices run, and in which those of the second do.
fn together(events: &[Event]) -> (u64, u64) {
    let of = |lane: usize| {
        events.iter().filter(move |event| event.what == What::Segment && event.lane == lane)
    };
    let (mut both, mut all) = (0, 0);
    for event in of(2) {
        all += event.ns;
        let beside = of(1).map(|other| {
            let (start, end) =
                (event.start_ns.max(other.start_ns), event.end_ns().min(other.end_ns()));
            end.saturating_sub(start)
        });
        both += beside.sum::<u64>();
    }
    (both, all)
}

#[test]
fn both_devices_compute_a_layers_experts_at_once() {
    let model = mixture();
    let placing = placings(&model)[0].clone();
    let traced = || Settings { trace_events: Some(1 << 14), ..settings() };
    // Each submit takes five milliseconds, in which the CPU is done with its experts.
    let device = Box::new(Queued::new(cpu(1), Duration::from_millis(5)));
    let mut session = placed(&model, device, traced(), &placing);
    greedy(&mut session, 3);
    let order: Vec<usize> = session.plan().segments.iter().map(|segment| segment.device).collect();
    assert!(order.windows(3).any(|devices| devices == [1, 1, 0]), "{order:?}");
    let (both, _) = together(session.trace().unwrap().recorded());
    assert!(both > 0, "the CPU waits while the device computes");
    // With residents on the CPU's side of the cut nothing overlaps.
    let apart = Placing { expert_cache: ExpertCache::Off, cpu_moe_layers: 3, ..placing };
    let device = Box::new(Queued::new(cpu(1), Duration::from_millis(5)));
    let mut session = placed(&model, device, traced(), &apart);
    greedy(&mut session, 3);
    let (without, _) = together(session.trace().unwrap().recorded());
    assert!(without * 4 < both, "{without} of {both} ns");
}

/// The reference executor on both sides, and its answers beside those of the CPU.
#[test]
fn the_reference_has_residents_too() {
    let model = biased();
    let steps = REVIEW_STEPS as usize + 8;
    let reference = || Box::new(Reference::new()) as Box<dyn Backend>;
    let on = |backends: Vec<Box<dyn Backend>>, placing: &Placing| {
        let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
            placing.plan(graph, machine, budget)
        };
        Session::on(&model, backends, &planner, settings()).unwrap()
    };
    let expected = greedy(&mut on(vec![reference()], &Placing::cpu()), steps);
    let device = Box::new(Queued::new(reference(), Duration::ZERO));
    let mut session = on(vec![reference(), device], &placings(&model)[0]);
    let found = greedy(&mut session, steps);
    assert!(found == expected, "bits differ: {:e}", error(&found, &expected));
    assert!(session.expert_hits().unwrap().exchanged > 0);
    let mut session = placed(&model, cpu_as_gpu(), settings(), &placings(&model)[0]);
    let found = forced(&mut session, &best(&expected)[..steps]);
    assert!(session.expert_hits().unwrap().exchanged > 0);
    let off = error(&found, &expected);
    assert!(off < MODEL_BOUND, "error {off:e}");
}

/// As in `tests/models.rs`, for weights of F32.
const MODEL_BOUND: f64 = 1e-4;

/// Matrices in parts are many dispatches, which take long with the large experts.
#[test]
fn a_gpu_with_resident_experts_gives_the_answers_of_the_cpu() {
    a_gpu_with_resident_experts(&mixture(), &PROVED[..1]);
    a_gpu_with_resident_experts(&biased(), &PROVED);
    a_gpu_with_resident_experts(&factored(), &PROVED[..1]);
}

fn a_gpu_with_resident_experts(model: &Model, variants: &[&str]) {
    let expected = conversation(&mut alone(model), 2);
    for (name, opened) in support::gpu::opened().filter(|(name, _)| variants.contains(name)) {
        let on = |placing: &Placing| {
            let mut session = placed(model, Box::new(opened.backend()), settings(), placing);
            let found = conversation(&mut session, 2);
            assert_eq!(session.take_warnings(), [], "{name}");
            found
        };
        // Its kernels round otherwise than the CPU's, with residents no more than without.
        let all = Placing {
            gpu_layers: Offload::All,
            op_offload: OpOffload::Never,
            ..Placing::default()
        };
        let whole = on(&all);
        let usual = error(&whole, &expected);
        for placing in placings(model) {
            let found = on(&placing);
            assert_eq!(best(&found), best(&expected), "{name} {placing:?}");
            let off = error(&found, &expected);
            assert!(off < 2.0 * usual, "{name}: error {off:e}, {usual:e} without residents");
            // With all experts in slots it is the whole mixture on the GPU.
            if placing.expert_cache == share(model, 1.0) {
                let off = error(&found, &whole);
                assert!(off < 1e-3, "{name}: error {off:e} to the whole mixture");
            }
        }
        // While experts are exchanged, on the CPU's text: with random weights long texts part by rounding alone.
        let steps = 2 * REVIEW_STEPS as usize;
        let text = greedy(&mut alone(model), steps);
        let mut session =
            placed(model, Box::new(opened.backend()), settings(), &placings(model)[0]);
        let found = forced(&mut session, &best(&text)[..steps]);
        assert!(session.expert_hits().unwrap().exchanged > 0);
        let mut plain = placed(model, Box::new(opened.backend()), settings(), &all);
        let whole = forced(&mut plain, &best(&text)[..steps]);
        let late = REVIEW_STEPS as usize..;
        let usual = error(&whole[late.clone()], &text[late.clone()]);
        let off = error(&found[late.clone()], &text[late]);
        assert!(off < 2.0 * usual, "{name}: error {off:e} after exchanges, {usual:e} without");
    }
}

#[test]
fn what_cannot_be_resident_is_refused_by_name() {
    let model = mixture();
    let plan = |model: &Model, placing: &Placing| {
        let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
            placing.plan(graph, machine, budget)
        };
        let made = Session::on(model, vec![cpu(1), cpu_as_gpu()], &planner, settings());
        made.err().unwrap().to_string()
    };
    let plain = Placing { gpu_layers: Offload::All, ..Placing::default() };
    let auto = Placing { expert_cache: ExpertCache::Auto, ..plain.clone() };
    let dense = Model::from_bytes("six", {
        let shape = Shape::find("tiny").unwrap();
        Synth::new(shape, Mix::find("Q4_K_M").unwrap()).to_bytes().unwrap()
    });
    let found = plan(&dense.unwrap(), &auto);
    assert_eq!(found, "expert-cache is auto; it must be 0: the model has no experts");
    let layers = (0..3).map(|layer| (layer, vec![1.0; 8])).collect();
    let uses = ExpertUses { source: "other.imatrix".to_owned(), layers };
    let found = plan(&model, &Placing { expert_uses: Some(uses), ..auto });
    let expected = "expert-counts is other.imatrix with 8 in layer 0; it must be counts of 32 experts in layer 0";
    assert_eq!(found, expected);
    let few = placings(&model)[0].clone();
    let used = placed(&model, cpu_as_gpu(), settings(), &few).plan().devices[1].used_bytes;
    let large = Placing {
        expert_cache: share(&model, 1.0),
        vram_bytes: vec![used],
        margin_bytes: vec![0],
        ..few
    };
    let found = plan(&model, &large);
    assert!(found.contains("--expert-cache ") && found.ends_with("MiB fits"), "{found}");
}
