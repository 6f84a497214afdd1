//! The promise that a plan gives placement and memory use before anything is loaded.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use bilayer_engine::placement::Placing;
use bilayer_gguf::Metadata;
use bilayer_graph::{Facts, Graph, OpKind};
use bilayer_models::Outline;
use bilayer_quant::Type;
use bilayer_scheduler::{
    Budget, Error, Excess, ExpertCache, ExpertUses, Machine, Offload, OpOffload, Placement, Plan,
    Request, offload, place, plan,
};
use insta::assert_snapshot;

const GIB: u64 = 1 << 30;

fn host(memory_bytes: u64) -> Facts {
    Facts::host("a device for tests", memory_bytes)
}

fn gpu(memory_bytes: u64) -> Facts {
    Facts::offload("gpu", "a device for tests", memory_bytes)
}

fn machine(memory_bytes: u64) -> Machine {
    Machine::new(vec![host(memory_bytes)])
}

/// The smallest model of the first architecture, F32, its head tied.
fn tiny() -> Graph {
    let architecture = bilayer_models::all()[0];
    let config = (architecture.config)(&(architecture.tiny)()).unwrap();
    bilayer_models::record(&config, &Outline::new(Type::F32, &[])).unwrap()
}

/// Llama 3.1 8B in Q4_K: a header, no weights.
fn eight_billion() -> Graph {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    let sizes = [
        ("vocab_size", 128_256),
        ("context_length", 131_072),
        ("embedding_length", 4096),
        ("block_count", 32),
        ("feed_forward_length", 14_336),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 8),
    ];
    for (name, size) in sizes {
        metadata.set(&format!("llama.{name}"), size as u32);
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    metadata.set("llama.rope.freq_base", 500_000f32);
    let config = bilayer_models::config(&metadata).unwrap();
    let outline = Outline::new(Type::Q4_K, &["output.weight", "rope_freqs.weight"]);
    bilayer_models::record(&config, &outline).unwrap()
}

const BUDGET: Budget = Budget {
    context: 8192,
    states: 2,
    tokens: 512,
    outputs: 1,
    key_type: Type::F16,
    value_type: Type::F16,
    margin_bytes: GIB,
};

#[test]
fn a_tiny_model_on_one_device() {
    let budget = Budget { context: 256, tokens: 32, outputs: 2, margin_bytes: 0, ..BUDGET };
    let plan = plan(&tiny(), &machine(GIB), &budget).unwrap();
    assert_snapshot!("tiny_cpu", plan);

    let [device] = plan.devices.as_slice() else { panic!("one device") };
    // A layer: norms 2 x 64; q, o 64 x 64; k, v 32 x 64; gate, up, down 96 x 64; four bytes each.
    let layer = 4 * (2 * 64 + 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64);
    // The embedding, 128 x 64, is also the head; the last norm.
    assert_eq!(device.weight_bytes, 3 * layer + 4 * (128 * 64 + 64));
    // 256 tokens, 3 layers, 32 keys and 32 values of two bytes.
    assert_eq!(device.kv_bytes, 256 * 3 * (32 + 32) * 2);
    // For 32 rows: queries, keys and values side by side, the outputs of gate and up, the residual, and one temporary value
    // of the same width; and logits of two rows, whose memory is not reused.
    assert_eq!(device.activation_bytes, 4 * (32 * (128 + 96 + 64 + 64) + 2 * 128));
    // Logits of two rows.
    assert_eq!(device.staging_bytes, 2 * 128 * 4);
    for plan in &plan.layers {
        assert_eq!((plan.weight_bytes, plan.kv_bytes), (layer, 256 * (32 + 32) * 2));
    }
}

/// The smallest model of an architecture after changes to its keys.
fn changed(architecture: &str, changes: &[(&str, u32)]) -> Graph {
    let architecture = bilayer_models::find(architecture).unwrap();
    let mut metadata = (architecture.tiny)();
    for &(name, value) in changes {
        metadata.set(&format!("{}.{name}", architecture.name), value);
    }
    let config = (architecture.config)(&metadata).unwrap();
    bilayer_models::record(&config, &Outline::new(Type::F16, &[])).unwrap()
}

/// DeepSeek V3 caches 512 + 64 elements per token and layer (DeepSeek-AI 2024, section 2.1.1: d_c + d_h^R), where keys and
/// values of its 128 heads of 128 would be 32768.
#[test]
fn latent_attention_caches_one_row_for_all_heads() {
    let sizes = [
        ("attention.head_count", 8),
        ("attention.kv_lora_rank", 512),
        ("attention.key_length_mla", 192),
        ("attention.value_length_mla", 128),
        ("rope.dimension_count", 64),
    ];
    let graph = changed("deepseek2", &sizes);
    // F16, and blocks of 32 in 34 bytes; values have no bytes of their own.
    for (ty, row_bytes) in [(Type::F16, 1152), (Type::Q8_0, 612)] {
        let budget = Budget { key_type: ty, value_type: Type::F32, ..BUDGET };
        let plan = plan(&graph, &machine(16 * GIB), &budget).unwrap();
        assert_eq!(plan.devices[0].kv_bytes, 8192 * 3 * row_bytes, "{ty}");
    }
}

/// A model without attention takes as much memory for a token of context as for a million.
#[test]
fn a_model_of_recurrences_has_no_cache() {
    let graph = changed("mamba2", &[]);
    let of = |context| {
        let budget = Budget { context, ..BUDGET };
        plan(&graph, &machine(16 * GIB), &budget).unwrap().devices[0].clone()
    };
    let (short, long) = (of(32), of(1 << 20));
    assert_eq!((short.kv_bytes, short.used_bytes), (0, long.used_bytes));
    // Two slots of three layers: 4 heads of 32 rows of 16, and three rows of 128 + 2 groups of 16 twice.
    assert_eq!(short.state_bytes, 2 * 3 * 4 * (4 * 32 * 16 + 3 * (128 + 2 * 2 * 16)));
    // No room for them: refused before loading.
    let budget = Budget { states: 1 << 20, ..BUDGET };
    let error = plan(&graph, &machine(GIB), &budget).unwrap_err().to_string();
    assert!(error.contains("states"), "{error}");
}

#[test]
fn eight_billion_weights_on_one_device() {
    let plan = plan(&eight_billion(), &machine(16 * GIB), &BUDGET).unwrap();
    assert_snapshot!("8b_cpu", plan);

    let [device] = plan.devices.as_slice() else { panic!("one device") };
    // Q4_K: 144 bytes for 256 weights.
    let matrices = |weights: u64| weights / 256 * 144;
    let layer = matrices(4096 * (4096 + 1024 + 1024 + 4096 + 3 * 14_336)) + 2 * 4096 * 4;
    let ends = 2 * matrices(128_256 * 4096) + 4096 * 4 + 64 * 4;
    assert_eq!(device.weight_bytes, 32 * layer + ends);
    assert_eq!(device.weight_bytes, 4_517_937_408);
    // 8192 tokens, 32 layers, 8 heads of 128 keys and as many values in F16: a GiB.
    assert_eq!(device.kv_bytes, GIB);
    // The outputs of gate and up, in the memory of queries, keys and values; the residual, and one temporary value of the
    // same width; the logits.
    assert_eq!(device.activation_bytes, 4 * (512 * (14_336 + 2 * 4096) + 128_256));
    assert_eq!(device.staging_bytes, 128_256 * 4);
    let parts =
        [device.weight_bytes, device.kv_bytes, device.activation_bytes, device.staging_bytes];
    assert_eq!(device.used_bytes, parts.iter().sum::<u64>());
    assert_eq!(device.budget_bytes, 15 * GIB);

    let segments = &plan.segments;
    assert_eq!(segments.len(), 1);
    assert_eq!(segments[0].nodes, 0..eight_billion().nodes.len());
    assert_eq!((segments[0].inputs.len(), segments[0].outputs.as_slice()), (0, &[plan.logits][..]));
}

#[test]
fn eight_billion_weights_on_two_devices() {
    let graph = eight_billion();
    let devices = vec![host(16 * GIB), gpu(6 * GIB)];
    let machine = Machine::new(devices);
    let placement = Placement::offload(graph.layers(), 21, 0, 1);
    let plan = place(&graph, &machine, &BUDGET, &placement).unwrap();
    assert_snapshot!("8b_cpu_gpu_21", plan);

    // Twelve layers and the embedding on one device, twenty and the head on the other; the RoPE factors on both.
    let layer = plan.layers[0].weight_bytes - 64 * 4;
    let table = 128_256 * 4096 / 256 * 144;
    assert_eq!(plan.devices[0].weight_bytes, 12 * layer + table + 64 * 4);
    assert_eq!(plan.devices[1].weight_bytes, 20 * layer + table + 64 * 4 + 4096 * 4);
    let both = plan.devices[0].kv_bytes + plan.devices[1].kv_bytes;
    assert_eq!((plan.devices[0].kv_bytes, both), (GIB * 12 / 32, GIB));
    // One value is transferred: the hidden state after layer 11.
    let [first, second] = plan.segments.as_slice() else { panic!("two segments") };
    assert_eq!(first.outputs, second.inputs);
    assert_eq!(graph.nodes[first.nodes.end - 1].label(), "layer 11 l_out");
    assert_eq!(first.outputs, [graph.nodes[first.nodes.end - 1].op.out()]);
    assert_eq!(plan.devices[0].staging_bytes, 512 * 4096 * 4);
}

#[test]
fn plans_that_do_not_fit_are_refused_with_the_difference() {
    let graph = eight_billion();
    let error = plan(&graph, &machine(6 * GIB), &BUDGET).unwrap_err();
    assert_snapshot!("8b_does_not_fit", error);
    let Error::DoesNotFit { what: Excess { used_bytes, budget_bytes, .. }, .. } = error else {
        panic!("{error}")
    };
    assert_eq!(budget_bytes, 5 * GIB);
    // One byte makes the difference.
    let room = |budget_bytes| plan(&graph, &machine(budget_bytes + GIB), &BUDGET);
    assert!(room(used_bytes).is_ok());
    assert!(room(used_bytes - 1).is_err());
}

#[test]
fn numbers_of_a_hostile_file_do_not_overflow() {
    let budget = Budget { context: usize::MAX / 64, ..BUDGET };
    let error = plan(&eight_billion(), &machine(u64::MAX - 1), &budget).unwrap_err();
    assert!(
        matches!(&error, Error::DoesNotFit { what, .. } if what.used_bytes == u64::MAX),
        "{error}"
    );
}

#[test]
fn a_device_gets_only_ops_it_can_run() {
    let graph = eight_billion();
    let mut machine = machine(16 * GIB);
    machine.devices[0].ops.retain(|&op| op != OpKind::Attend);
    let error = plan(&graph, &machine, &BUDGET).unwrap_err().to_string();
    assert_eq!(error, "cpu cannot run attend (`layer 0 attn`); place it on another device");

    machine.devices[0].ops.push(OpKind::Attend);
    machine.devices[0].types.retain(|&ty| ty != Type::Q4_K);
    let error = plan(&graph, &machine, &BUDGET).unwrap_err().to_string();
    let expected =
        "cpu cannot run embed with weights of Q4_K (`token_embd`); place it on another device";
    assert_eq!(error, expected);

    machine.devices.clear();
    assert_eq!(plan(&graph, &machine, &BUDGET), Err(Error::NoDevice));
}

#[test]
fn a_plan_has_its_documented_keys_as_json() {
    let plan = plan(&tiny(), &machine(GIB), &Budget::default()).unwrap();
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["map"], "out:cpu 2-0:cpu");
    assert_eq!(json["output"], "cpu");
    let keys = ["index", "device", "weight_bytes", "kv_bytes", "state_bytes"];
    assert!(keys.iter().all(|key| !json["layers"][2][key].is_null()), "{json}");
    let keys = [
        "name",
        "budget_bytes",
        "used_bytes",
        "weight_bytes",
        "kv_bytes",
        "state_bytes",
        "activation_bytes",
        "staging_bytes",
    ];
    assert!(keys.iter().all(|key| !json["devices"][0][key].is_null()), "{json}");
    let outputs = &json["segments"][0]["outputs"];
    assert_eq!(outputs[0], plan.logits.0, "{outputs}");
}

/// A catalog of tensors of any shape asked for, in the type that a mix gives them.
struct Mix(fn(&str) -> Option<Type>);

impl bilayer_graph::Catalog for Mix {
    fn find(&self, name: &str) -> Option<bilayer_graph::Entry> {
        self.find_as(name, &[])
    }

    fn find_as(&self, name: &str, expected: &[u64]) -> Option<bilayer_graph::Entry> {
        Some(bilayer_graph::Entry { ty: (self.0)(name)?, shape: expected.to_vec() })
    }
}

/// Layers of the 70B Llamas.
const LAYERS: usize = 80;

/// Q4_K_M as llama.cpp mixes it for a Llama of 70B: more bits for the head, and for the values and the down projection of
/// the most sensitive layers.
fn q4_k_m(name: &str) -> Option<Type> {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok());
    let more = |i: usize| !(LAYERS / 8..7 * LAYERS / 8).contains(&i) || (i - LAYERS / 8) % 3 == 2;
    let more = layer.is_some_and(more);
    Some(match name {
        _ if name.contains("_norm.") => Type::F32,
        _ if ["bias", "rope_freqs", "_norm_2.", "layer_output_scale", ".scale"]
            .iter()
            .any(|part| name.contains(part)) =>
        {
            return None;
        }
        "output.weight" => Type::Q6_K,
        _ if name.contains("ffn_down") && more => Type::Q6_K,
        _ if name.contains("attn_v") && more => Type::Q6_K,
        // Eight query heads share a key-value head: the value matrix is small and gets one more bit in every layer.
        _ if name.contains("attn_v") => Type::Q5_K,
        _ => Type::Q4_K,
    })
}

fn seventy_billion() -> Graph {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    let sizes = [
        ("vocab_size", 128_256),
        ("context_length", 131_072),
        ("embedding_length", 8192),
        ("block_count", LAYERS),
        ("feed_forward_length", 28_672),
        ("attention.head_count", 64),
        ("attention.head_count_kv", 8),
    ];
    for (name, size) in sizes {
        metadata.set(&format!("llama.{name}"), size as u32);
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    metadata.set("llama.rope.freq_base", 500_000f32);
    let config = bilayer_models::config(&metadata).unwrap();
    bilayer_models::record(&config, &Mix(q4_k_m)).unwrap()
}

/// A plan of 70 billion weights for a card of 24 GiB and a host of 64.
fn seventy_on_a_card(context: usize, request: &Request) -> Result<Plan, Error> {
    let devices = vec![host(64 * GIB), gpu(24 * GIB)];
    let budget = Budget { context, ..BUDGET };
    offload(&seventy_billion(), &Machine::new(devices), &budget, request)
}

#[test]
fn seventy_billion_weights_on_a_card_of_24_gib() {
    let graph = seventy_billion();
    // The size of llama.cpp's file: 42.5 GB.
    assert!((42.3e9..42.8e9).contains(&(graph.weight_bytes() as f64)), "{}", graph.weight_bytes());

    let plan = seventy_on_a_card(4096, &Request::default()).unwrap();
    assert_snapshot!("70b_card_auto", plan);
    // The head and 42 to 44 layers.
    assert!((43..=45).contains(&plan.gpu_layers), "{}", plan.map);
    assert_eq!((plan.output.as_str(), plan.embedding.as_str()), ("gpu", "cpu"));
    assert_eq!(plan.gpu_layers, plan.max_gpu_layers);

    let long = seventy_on_a_card(32_768, &Request::default()).unwrap();
    assert!(long.gpu_layers < plan.gpu_layers - 5, "{} and {}", long.map, plan.map);

    // One more layer does not fit, and the error names the largest number that does.
    let count = |count| Request { offload: Offload::Count(count), ..Request::default() };
    let error = seventy_on_a_card(4096, &count(plan.gpu_layers + 1)).unwrap_err();
    assert!(error.to_string().contains(&format!("-ngl {} fits", plan.gpu_layers)), "{error}");
    let same = seventy_on_a_card(4096, &count(plan.gpu_layers)).unwrap();
    assert_eq!((&same.map, same.devices[1].used_bytes), (&plan.map, plan.devices[1].used_bytes));
    assert!(
        seventy_on_a_card(4096, &Request { offload: Offload::All, ..Request::default() }).is_err()
    );
}

/// A host and two cards of different sizes.
fn two_cards() -> Machine {
    Machine::new(vec![host(64 * GIB), gpu(24 * GIB), gpu(12 * GIB)])
}

#[test]
fn seventy_billion_weights_on_two_cards() {
    let graph = seventy_billion();
    let of = |request: &Request| {
        offload(&graph, &two_cards(), &Budget { context: 4096, ..BUDGET }, request)
    };
    let plan = of(&Request::default()).unwrap();
    assert_snapshot!("70b_two_cards_auto", plan);
    // About as many as fit on the first alone, now without the head, and half as many on the second.
    let alone = seventy_on_a_card(4096, &Request::default()).unwrap().gpu_layers;
    let parts: Vec<u32> = plan.devices.iter().map(|device| device.parts).collect();
    assert_eq!((parts.iter().sum::<u32>(), parts[1] + parts[2]), (81, plan.gpu_layers));
    assert!((alone..=alone + 4).contains(&parts[1]), "{parts:?}");
    assert!((alone / 2 - 3..=alone / 2).contains(&parts[2]), "{parts:?}");
    assert_eq!((plan.output.as_str(), plan.embedding.as_str()), ("gpu1", "cpu"));
    // As many as fit, with no device over its budget.
    assert!(of(&Request { offload: Offload::All, ..Request::default() }).is_err());
    assert!(plan.devices.iter().all(|device| device.used_bytes <= device.budget_bytes));

    // Shares are met exactly, or refused.
    let shares = |count, shares: &[f64]| Request {
        offload: Offload::Count(count),
        shares: shares.to_vec(),
        ..Request::default()
    };
    let asked = of(&shares(40, &[3.0, 1.0])).unwrap();
    assert_eq!(asked.map, "out:gpu1 79-71:gpu1 70-41:gpu0 40-0:cpu");
    let first = of(&shares(40, &[1.0])).unwrap();
    assert_eq!(first.map, "out:gpu0 79-41:gpu0 40-0:cpu");
    let error = of(&shares(60, &[1.0, 1.0])).unwrap_err();
    let Error::DoesNotFit { what, largest: Some(largest) } = &error else { panic!("{error}") };
    assert!(what.device == "gpu1" && (36..48).contains(largest), "{error}");
    assert!(of(&shares(*largest, &[1.0, 1.0])).is_ok());
}

/// Described machines: read bandwidth and compute of a card decide how many layers it gets.
#[test]
fn auto_places_layers_by_speed() {
    let graph = eight_billion();
    let described = |mut facts: Facts, read_gbps, tops| {
        (facts.read_gbps, facts.tops) = (Some(read_gbps), Some(tops));
        facts
    };
    let of = |first_bytes: u64, second: (f64, f64)| {
        let devices = vec![
            described(host(64 * GIB), 60.0, 0.5),
            described(gpu(first_bytes), 900.0, 80.0),
            described(gpu(24 * GIB), second.0, second.1),
        ];
        let mut machine = Machine::new(devices);
        machine.times = bilayer_scheduler::Times::estimated(&graph, &machine);
        offload(&graph, &machine, &BUDGET, &Request::default()).unwrap()
    };
    // A card much slower than the host gets nothing, whether or not the other holds all layers.
    assert_eq!(of(24 * GIB, (30.0, 0.02)).map, "out:gpu0 31-0:gpu0");
    let rest = of(4 * GIB, (30.0, 0.02));
    assert!(rest.devices[0].parts > 0 && rest.devices[2].parts == 0, "{}", rest.map);
    // A card slower than the other takes the layers that do not fit there, and the host none.
    let both = of(4 * GIB, (400.0, 40.0));
    assert_eq!((both.devices[0].parts, both.gpu_layers), (0, 33), "{}", both.map);
    assert!(both.devices[1].parts >= rest.devices[1].parts - 1, "{}", both.map);
    // Two equal cards share, since prefill keeps both busy.
    let alike = of(24 * GIB, (900.0, 80.0));
    assert!(alike.devices[1..].iter().all(|gpu| gpu.parts >= 15), "{}", alike.map);
}

#[test]
fn requests_name_devices_by_number() {
    let graph = tiny();
    let machine = Machine::new(vec![host(GIB), gpu(GIB), gpu(GIB)]);
    let budget = Budget { context: 256, tokens: 32, margin_bytes: 0, ..BUDGET };
    let of = |placing: &Placing| placing.plan(&graph, &machine, &budget);
    let half = Placing { tensor_split: vec![1.0, 1.0], ..Placing::default() };
    assert_eq!(of(&half).unwrap().map, "out:gpu1 2:gpu1 1-0:gpu0");

    let named = |device| vec![("blk.1.ffn_up".to_owned(), device)];
    let pinned = of(&Placing { overrides: named(2), ..half.clone() }).unwrap();
    assert_eq!(pinned.map, "out:gpu1 2:gpu1 1:gpu0+gpu1 0:gpu0");
    let too_far = of(&Placing { overrides: named(3), ..half.clone() }).unwrap_err();
    assert!(too_far.to_string().contains("blk.1.ffn_up=gpu2"), "{too_far}");
    let long = of(&Placing { tensor_split: vec![1.0; 3], ..half.clone() }).unwrap_err();
    assert!(long.to_string().contains("tensor-split"), "{long}");
    let main = of(&Placing { main_gpu: Some(1), ..half.clone() }).unwrap();
    assert!(main.notes.iter().any(|note| note.contains("main-gpu")), "{:?}", main.notes);

    // Memory is counted device by device.
    let sizes = Placing { vram_bytes: vec![1 << 20, GIB], margin_bytes: vec![0, 1 << 10], ..half };
    let plan = of(&Placing { tensor_split: Vec::new(), ..sizes }).unwrap();
    let budgets: Vec<u64> = plan.devices[1..].iter().map(|device| device.budget_bytes).collect();
    assert_eq!(budgets, [1 << 20, GIB - (1 << 10)]);

    // Ops that one of them lacks stay on the host.
    let mut machine = machine.clone();
    machine.devices[2].ops.retain(|&op| op != OpKind::Gate);
    let request = Request { shares: vec![1.0, 1.0], ..Request::default() };
    let plan = offload(&graph, &machine, &budget, &request).unwrap();
    assert_eq!(plan.map, "out:gpu1 2:gpu1+cpu 1-0:gpu0");
    let note = "gate stays on the host: gpu1 cannot run it";
    assert!(plan.notes.iter().any(|found| found == note), "{:?}", plan.notes);
}

#[test]
fn requests_place_parts_tensors_and_caches() {
    let graph = tiny();
    let devices = vec![host(GIB), gpu(GIB)];
    let machine = Machine::new(devices);
    let budget = Budget { context: 256, tokens: 32, margin_bytes: 0, ..BUDGET };
    let of = |request: &Request| offload(&graph, &machine, &budget, request).unwrap();
    let cases = [
        (Offload::Auto, "out:gpu 2-0:gpu"),
        (Offload::All, "out:gpu 2-0:gpu"),
        (Offload::Count(0), "out:cpu 2-0:cpu"),
        (Offload::Count(2), "out:gpu 2:gpu 1-0:cpu"),
        (Offload::Count(99), "out:gpu 2-0:gpu"),
        (Offload::Percent(50), "out:gpu 2:gpu 1-0:cpu"),
    ];
    for (offload, map) in cases {
        assert_eq!(of(&Request { offload, ..Request::default() }).map, map, "{offload:?}");
    }

    let named = |part: &str, side| {
        let weights = graph.weights.iter().filter(|weight| weight.name.contains(part));
        weights.map(|weight| (weight.id, side)).collect::<Vec<_>>()
    };
    let pins = named("blk.1.ffn_up", 0);
    let plan = of(&Request { offload: Offload::All, pins, ..Request::default() });
    assert_eq!(plan.map, "out:gpu 2:gpu 1:gpu+cpu 0:gpu");
    let pins = named("blk.0.ffn_down", 1);
    let plan = of(&Request { offload: Offload::Count(0), pins, ..Request::default() });
    assert_eq!(plan.map, "out:cpu 2-1:cpu 0:cpu+gpu");

    // The cache stays with attention on the host; the matrices move.
    let all = Request { offload: Offload::All, ..Request::default() };
    let plan = of(&Request { cache_on_host: true, ..all.clone() });
    assert_eq!(plan.devices[1].kv_bytes, 0);
    assert_eq!(plan.devices[1].weight_bytes, of(&all).devices[1].weight_bytes);

    // Ops and types that a device lacks stay on the host, and the plan says so.
    let mut machine = machine.clone();
    machine.devices[1].ops.retain(|&op| op != OpKind::Gate);
    let plan = offload(&graph, &machine, &budget, &all).unwrap();
    assert!(plan.notes.iter().any(|note| note.contains("gate stays on the host")), "{plan:?}");
    assert_eq!(plan.map, "out:gpu 2-0:gpu+cpu");
}

/// Mixtral 8x7B in Q4_K: a header, no weights.
fn eight_by_seven_billion() -> Graph {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    let sizes = [
        ("vocab_size", 32_000),
        ("context_length", 32_768),
        ("embedding_length", 4096),
        ("block_count", 32),
        ("feed_forward_length", 14_336),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 8),
        ("expert_count", 8),
        ("expert_used_count", 2),
    ];
    for (name, size) in sizes {
        metadata.set(&format!("llama.{name}"), size as u32);
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let config = bilayer_models::config(&metadata).unwrap();
    bilayer_models::record(&config, &Outline::new(Type::Q4_K, &["output.weight"])).unwrap()
}

#[test]
fn resident_experts_are_counted_and_refused_beyond_the_memory() {
    let graph = eight_by_seven_billion();
    let machine = Machine::new(vec![host(64 * GIB), gpu(12 * GIB)]);
    let of = |cache: ExpertCache, offload_to: Offload| {
        let counts: Vec<f64> = (1..=8).map(|rank| 1.0 / f64::from(rank)).collect();
        let layers = (0..32).map(|layer| (layer, counts.clone())).collect();
        let placing = Placing {
            gpu_layers: offload_to,
            expert_cache: cache,
            expert_uses: Some(ExpertUses { source: "counts of a text".to_owned(), layers }),
            op_offload: OpOffload::Never,
            ..Placing::default()
        };
        offload(&graph, &machine, &BUDGET, &placing.request(&graph).unwrap())
    };
    let plan = of(ExpertCache::Bytes(6 * GIB), Offload::All).unwrap();
    assert_snapshot!("mixtral_experts_resident", plan);
    let experts = plan.experts.as_ref().unwrap();
    let card = &plan.devices[1];
    assert_eq!(card.expert_bytes, experts.bytes);
    assert!(experts.bytes <= 6 * GIB && card.used_bytes > experts.bytes + card.weight_bytes);
    // The first of each layer is used most: 1 of 2.72 of the counts.
    assert!(experts.layers.iter().all(|layer| (2..=3).contains(&layer.resident)));
    let document = serde_json::to_value(&plan).unwrap();
    assert_eq!(document["experts"]["bytes"], experts.bytes);
    assert_eq!(document["experts"]["layers"][0]["experts"], 8);
    // What is left is taken, and more is refused with that.
    let most = of(ExpertCache::Auto, Offload::All).unwrap();
    let bytes = most.experts.as_ref().unwrap().bytes;
    assert!(bytes > experts.bytes && most.devices[1].used_bytes <= most.devices[1].budget_bytes);
    let error = of(ExpertCache::Bytes(20 * GIB), Offload::All).unwrap_err();
    let Error::CacheDoesNotFit { largest, .. } = error else { panic!("{error}") };
    assert!(largest >= bytes / 20 * 19, "{largest} of {bytes}");
    assert!(of(ExpertCache::Bytes(largest), Offload::All).is_ok());
    assert!(error.to_string().contains("--expert-cache"), "{error}");
    // Without room for anything nothing is split.
    let none = of(ExpertCache::Bytes(1000), Offload::All);
    assert_eq!(none.unwrap().experts, None);
}

#[test]
fn experts_are_placed_with_the_ops_that_combine_them() {
    let graph = eight_by_seven_billion();
    // The experts alone are 24 GiB; the rest of each layer fits on a small card.
    let mut machine = Machine::new(vec![host(64 * GIB), gpu(6 * GIB)]);
    let of = |machine: &Machine, placing: &Placing| {
        offload(&graph, machine, &BUDGET, &placing.request(&graph).unwrap())
    };
    let all = Placing { gpu_layers: Offload::All, ..Placing::default() };
    assert!(matches!(of(&machine, &all), Err(Error::DoesNotFit { .. })));
    let apart = Placing { cpu_moe_layers: u32::MAX, ..all.clone() };
    let plan = of(&machine, &apart).unwrap();
    assert_snapshot!("mixtral_experts_on_cpu", plan);
    let names = |layer: u32, side: usize| {
        let nodes = graph.nodes.iter().enumerate().filter(|(_, n)| n.layer == Some(layer));
        let exceptions = &plan.placement.exceptions;
        let mine = nodes.filter(|(n, _)| exceptions.get(n).copied().unwrap_or(1) == side);
        mine.map(|(_, node)| node.name).collect::<Vec<_>>().join(" ")
    };
    let moved = "ffn_moe_gate ffn_moe_up ffn_moe_act ffn_moe_down ffn_moe_out";
    let stays = "attn_norm attn_q attn_k attn_v attn_q_rope attn_k_rope attn attn_out ffn_inp \
        ffn_norm ffn_moe_logits ffn_moe_topk l_out";
    assert_eq!((names(3, 0).as_str(), names(3, 1).as_str()), (moved, stays));

    // The first layers only, and by name.
    machine.devices[1].memory_bytes = 48 * GIB;
    let some = of(&machine, &Placing { cpu_moe_layers: 2, ..all.clone() }).unwrap();
    assert_eq!(some.map, "out:gpu 31-2:gpu 1-0:gpu+cpu");
    let overrides = vec![("blk.7.ffn_.*_exps".to_owned(), 0)];
    let named = of(&machine, &Placing { overrides, ..all.clone() }).unwrap();
    assert_eq!(named.map, "out:gpu 31-8:gpu 7:gpu+cpu 6-0:gpu");

    // If a card lacks routed products, all experts stay on the host, and the plan says so.
    machine.devices[1].ops.retain(|&op| op != OpKind::Experts);
    let small = of(&machine, &all).unwrap();
    assert!(small.notes.iter().any(|note| note.contains("experts stays on the host")), "{small:?}");
    assert_eq!(small.placement, plan.placement);
}

#[test]
fn a_token_reads_the_experts_it_is_routed_to() {
    let graph = eight_by_seven_billion();
    let mut fast = host(64 * GIB);
    (fast.read_gbps, fast.tops) = (Some(100.0), Some(1.0));
    let times = bilayer_scheduler::Times::estimated(&graph, &Machine::new(vec![fast])).unwrap();
    let layer = times.devices[0].layers[0];
    // Activations come on top, which are few beside such matrices.
    let is_near = |found: f64, expected: f64| (1.0..1.01).contains(&(found / expected));
    // Attention 4096 x (4096 + 1024 + 1024 + 4096) and the router; experts 3 x 14,336 x 4096 each; 144 bytes for 256.
    let ms = |weights: f64| weights / 256.0 * 144.0 / 100e6;
    let (rest, expert) = (4096.0 * (2.0 * 5120.0 + 8.0), 3.0 * 14_336.0 * 4096.0);
    assert!(is_near(layer.decode_ms, ms(rest + 2.0 * expert)), "{layer:?}");
    // Eight tokens routed to two of eight experts each skip an expert with probability (6/8)^8. Each of the others has fewer than
    // three of them, and takes longer to read; attention takes longer to compute.
    let read = 8.0 * (1.0 - 0.75f64.powi(8));
    let batch = ms(read * expert) + 2.0 * 8.0 * rest / 1e9;
    assert!(is_near(layer.batch_ms.unwrap(), batch), "{layer:?}");
    // Attention: four operations for each element of the queries and each of 256 positions on average.
    let prefill = (2.0 * (rest + 2.0 * expert) + 4.0 * 4096.0 * 256.0) / 1e9;
    assert!(is_near(layer.prefill_ms.unwrap(), prefill), "{layer:?}");
}

#[test]
fn converted_types_count_at_their_converted_size() {
    let graph = eight_billion();
    let mut card = gpu(64 * GIB);
    let bytes = |card: &Facts| {
        let machine = Machine::new(vec![host(64 * GIB), card.clone()]);
        let request = Request { offload: Offload::All, ..Request::default() };
        offload(&graph, &machine, &BUDGET, &request).unwrap().devices[1].weight_bytes
    };
    let stored = bytes(&card);
    card.converted = vec![(Type::Q4_K, Type::F16)];
    // 16 bits instead of 4.5; norms and RoPE factors are unchanged.
    assert!((3.5..3.56).contains(&(bytes(&card) as f64 / stored as f64)));
}
