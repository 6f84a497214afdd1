//! The promise that models compute what the original code computes, however the tokens are fed and the layers placed.
//!
//! A backend under test is a row of [`BACKENDS`]; every test walks the table.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use std::path::{Path, PathBuf};

use bilayer_convert::smooth::{Before, Folded, Smoothed};
use bilayer_cpu::level::Level;
use bilayer_cpu::numa::Numa;
use bilayer_cpu::{Cpu, Options};
use bilayer_engine::placement::Placing;
use bilayer_gguf::{Metadata, MetadataOverride};
use bilayer_graph::reference::Reference;
use bilayer_graph::{Activation, Backend, Error, Limits, PageCopy, Pairs};
use bilayer_measure::links::links;
use bilayer_models::{
    Architecture, AttentionGate, Config, FfnInput, Layer, Mixer, Norm, NormAt, Outline, Pooling,
    QkNorm, Scaling, Settings, of_checkpoint,
};
use bilayer_quant::Type;
use bilayer_scheduler::{Budget, Machine, Offload, Placement, offload};
use serde::Deserialize;
use serde_json::json;

mod support {
    pub mod checkpoint;
    pub mod data;
    pub mod devices;
    pub mod gpu;
    pub mod latent;
    pub mod logits;
    pub mod model;
    pub mod runner;
}

#[path = "cuts/real.rs"]
mod cuts;

use support::checkpoint;
use support::data::shared;
use support::latent;
use support::logits::argmax;
use support::model::{Model, Random};
use support::runner::{Chunk, IN_ORDER, LIMITS, Runner, all};

/// A backend under test.
struct Tested {
    name: &'static str,
    make: fn() -> Box<dyn Backend>,
    /// Bound on [`error`] against exact arithmetic on matrices of a type.
    error_max: fn(Type) -> f32,
    /// Bound on [`error`] between two ways to feed the same tokens to matrices of a type.
    same_max: fn(Type) -> f32,
}

const BACKENDS: &[Tested] = &[
    Tested {
        name: "reference",
        make: || Box::new(Reference::new()),
        // Expected logits are printed with five decimals, which alone makes 4e-6, and come from f32 sums.
        error_max: |_| 1e-5,
        same_max: |_| 0.0,
    },
    Tested {
        name: "cpu",
        make: || Box::new(Cpu::new(Options { threads: Some(2), ..Default::default() }).unwrap()),
        // On AMX tiles a float weight is two bf16 numbers, within 3 * 2^-16 (1.1e-5 measured on logits).
        error_max: |ty| cpu_error_max(ty).max(4.6e-5),
        same_max: |ty| cpu_same_max(ty).max(4.6e-5),
    },
    Tested {
        name: "cpu scalar",
        make: || {
            let level = Some(Level::Scalar);
            Box::new(Cpu::new(Options { threads: Some(1), level, ..Default::default() }).unwrap())
        },
        error_max: cpu_error_max,
        same_max: cpu_same_max,
    },
    Tested {
        name: "gpu",
        make: || Box::new(support::gpu::gpu().unwrap()),
        error_max: cpu_error_max,
        same_max: cpu_same_max,
    },
];

/// The rows of [`BACKENDS`] that this machine can run.
fn backends() -> impl Iterator<Item = &'static Tested> {
    BACKENDS.iter().filter(|tested| tested.name != "gpu" || support::gpu::gpu().is_some())
}

/// Floats meet float activations, quantized weights meet activations quantized to eight bits: 1.7e-2 measured, and 2.3e-2
/// of ternary weights, which leave weaker logits of a model that was not trained for them.
fn cpu_error_max(ty: Type) -> f32 {
    if ty.block_weights == 1 { 1e-5 } else { 0.025 }
}

/// One token and many run on different kernels, which sum floats in different orders (7e-7 measured) and may round
/// activations in runs of different lengths (1.1e-2 measured).
fn cpu_same_max(ty: Type) -> f32 {
    if ty.block_weights == 1 { 3e-6 } else { 0.02 }
}

/// √(Σ(found - expected)² / Σ expected²).
fn error(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = found.iter().zip(expected).map(|(f, e)| square(f - e)).sum();
    let whole: f64 = expected.iter().map(|&e| square(e)).sum();
    (off / whole).sqrt() as f32
}

#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], bound: f32, what: &str) {
    let error = error(found, expected);
    assert!(error <= bound, "{what}: error {error:e}, the bound is {bound:e}");
}

/// Asserts that each row's best token is the expected one, or loses to it by less than `bound` of the row's
/// root mean square: a near tie may fall either way.
#[track_caller]
fn assert_best(logits: &[f32], expected: &[u32], bound: f32, what: &str) {
    let vocab = logits.len() / expected.len();
    for (t, (row, &expected)) in logits.chunks_exact(vocab).zip(expected).enumerate() {
        let best = row[argmax(row) as usize];
        let rms = (row.iter().map(|x| x * x).sum::<f32>() / vocab as f32).sqrt();
        let behind = (best - row[expected as usize]) / rms;
        assert!(behind <= bound, "{what}: row {t}: token {expected} is {behind} behind the best");
    }
}

/// `count` tokens after `prompt`, each the best, fed one at a time.
fn greedy(runner: &mut Runner<'_>, prompt: &[u32], count: usize) -> Vec<u32> {
    let vocab = runner.vocab();
    let logits = runner.prefill(prompt).unwrap();
    let mut tokens = vec![argmax(&logits[logits.len() - vocab..])];
    while tokens.len() < count {
        let first_position = prompt.len() + tokens.len() - 1;
        let run = Chunk { tokens: &tokens[tokens.len() - 1..], first_position, pages: &IN_ORDER };
        tokens.push(argmax(&runner.step(&[run], &[0], &[]).unwrap()));
    }
    tokens
}

#[derive(Deserialize)]
struct Cases {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    #[serde(default)]
    ids: Vec<u32>,
    argmax_each: Vec<u32>,
    logits_first: Option<Vec<f32>>,
    logits_last: Vec<f32>,
    #[serde(default, alias = "greedy_ids")]
    greedy: Vec<u32>,
}

fn cases(path: &Path) -> Vec<Case> {
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str::<Cases>(&text).unwrap().cases
}

/// Runs `ids` and compares first and last logits and every row's best token.
fn check_case(runner: &mut Runner<'_>, ids: &[u32], case: &Case, bound: f32, what: &str) {
    let vocab = runner.vocab();
    let logits = runner.prefill(ids).unwrap();
    if let Some(first) = &case.logits_first {
        assert_close(&logits[..vocab], first, bound, &format!("{what}, first logits"));
    }
    let last = &logits[logits.len() - vocab..];
    assert_close(last, &case.logits_last, bound, &format!("{what}, last logits"));
    assert_best(&logits, &case.argmax_each, 4.0 * bound, what);
}

/// Checkpoints of the shared data or our own, and the architecture of their class.
const CHECKPOINTS: &[(&str, &str)] = &[
    ("llama", "llama"),
    ("llama-256", "llama"),
    ("llama3-rope", "llama"),
    ("mistral-swa", "llama"),
    ("cohere2", "cohere2"),
    ("command-r", "command-r"),
    ("deepseek2", "deepseek2"),
    ("deepseek3", "deepseek2"),
    ("ernie4_5-moe", "ernie4_5-moe"),
    ("gemma2", "gemma2"),
    ("gemma3", "gemma3"),
    ("gpt2", "gpt2"),
    ("gemma4", "gemma4"),
    ("gemma4-moe", "gemma4"),
    ("glm4-moe", "glm4moe"),
    ("granite", "granite"),
    ("granite-hybrid", "granitehybrid"),
    ("hunyuan-dense", "hunyuan-dense"),
    ("hunyuan-moe", "hunyuan-moe"),
    ("lfm2", "lfm2"),
    ("lfm2-moe", "lfm2moe"),
    ("llama4", "llama4"),
    ("mamba2", "mamba2"),
    ("ministral3", "mistral3"),
    ("muse-glimmer", "muse-glimmer"),
    ("nemotron-h", "nemotron_h_moe"),
    ("olmo2", "olmo2"),
    ("phi3", "phi3"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3-moe", "qwen3moe"),
    ("qwen3-next", "qwen3next"),
    ("qwen35", "qwen35"),
    ("qwen35-moe", "qwen35moe"),
    ("stablelm", "stablelm"),
    ("starcoder2", "starcoder2"),
    ("gpt-oss", "gpt-oss"),
];

/// The checkpoints that are ours or in the shared data, each with its architecture.
fn checkpoints() -> impl Iterator<Item = (&'static str, PathBuf, &'static str)> {
    let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints"));
    CHECKPOINTS.iter().filter_map(move |&(name, architecture)| {
        let own = own.join(name);
        let folder = if own.exists() { own } else { shared(&format!("arch-tiny/{name}"))? };
        Some((name, folder, architecture))
    })
}

#[test]
fn checkpoints_give_the_logits_of_the_original_code() {
    for (name, folder, architecture) in checkpoints() {
        let model = Model::new(checkpoint::gguf(&folder));
        assert_eq!(model.config.architecture, architecture, "{name}");
        for backend in backends() {
            let what = format!("{name} on {}", backend.name);
            let bound = (backend.error_max)(Type::F32);
            let mut runner = Runner::single(&model, (backend.make)(), LIMITS).unwrap();
            for case in cases(&folder.join("reference.json")) {
                check_case(&mut runner, &case.ids, &case, bound, &what);
                let found = greedy(&mut runner, &case.ids, case.greedy.len());
                assert_eq!(found, case.greedy, "{what}: greedy tokens");
            }
        }
    }
}

/// A decoder whose file says how rows are pooled ends before its head: the head's product of its rows are the logits of the
/// original code.
#[test]
fn rows_of_decoders_that_embed_are_those_below_the_head() {
    for (name, folder, architecture) in checkpoints() {
        let last = MetadataOverride::new("{arch}.pooling_type", 3u32);
        let model = Model::new(checkpoint::gguf(&folder).overridden(&[last]).unwrap());
        let model = model.changed(|config| {
            let encoder = config.encoder.as_mut().unwrap();
            assert_eq!((encoder.pooling, encoder.is_causal), (Pooling::Last, true), "{name}");
            encoder.pooling = Pooling::None;
        });
        assert!(!model.graph.weights.iter().any(|weight| weight.name == "output.weight"));
        let (config, file) = (&model.config, &model.file);
        let floats = |name: &str| {
            let bytes = file.bytes(file.tensor(name)?);
            Some(bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect())
        };
        let table = ["output.weight", "token_embd.weight"].into_iter().find_map(floats);
        let table: Vec<f32> = table.unwrap();
        let bias: Vec<f32> = floats("output.bias").unwrap_or_else(|| vec![0.0; config.vocab]);
        let logit = |row: &[f32], (weights, bias): (&[f32], &f32)| {
            let sum: f64 =
                row.iter().zip(weights).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
            let scaled = (sum as f32 + bias) * config.logit_scale.unwrap_or(1.0);
            config.logit_softcap.map_or(scaled, |cap| cap * (scaled / cap).tanh())
        };
        for backend in &BACKENDS[..2] {
            let what = format!("{name} ({architecture}) on {}", backend.name);
            let bound = (backend.error_max)(Type::F32);
            let mut runner = Runner::single(&model, (backend.make)(), LIMITS).unwrap();
            for case in cases(&folder.join("reference.json")) {
                let rows = runner.prefill(&case.ids).unwrap();
                assert_eq!(rows.len(), case.ids.len() * config.width, "{what}");
                let head = |row| {
                    table.chunks_exact(config.width).zip(&bias).map(move |out| logit(row, out))
                };
                let logits: Vec<f32> = rows.chunks_exact(config.width).flat_map(head).collect();
                let end = &logits[logits.len() - config.vocab..];
                assert_close(end, &case.logits_last, bound, &what);
                assert_best(&logits, &case.argmax_each, 4.0 * bound, &what);
            }
        }
    }
}

/// Checkpoints with the supported switches of their configuration inverted, and the architecture of their class.
const OPTIONS: &[(&str, &str)] = &[
    ("options-llama", "llama"),
    ("options-mixtral", "llama"),
    ("options-deepseek2", "deepseek2"),
    ("options-gemma", "gemma"),
    ("options-gemma2", "gemma2"),
    ("options-gemma3", "gemma3"),
    ("options-granite", "granite"),
    ("options-olmo2", "olmo2"),
    ("options-olmo3", "olmo2"),
    ("options-qwen2-moe", "qwen2moe"),
    ("options-qwen3", "qwen3"),
    ("options-qwen3-moe", "qwen3moe"),
    ("options-smollm3", "smollm3"),
];

/// Unusual biases, a separate or tied head, other layers with a window, unnormalized expert weights: the logits are those
/// of the original code.
#[test]
fn options_of_a_checkpoint_are_honoured() {
    let own = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints"));
    for &(name, architecture) in OPTIONS {
        let folder = own.join(name);
        let model = Model::new(checkpoint::gguf(&folder));
        assert_eq!(model.config.architecture, architecture, "{name}");
        let bound = (BACKENDS[0].error_max)(Type::F32);
        let mut runner = Runner::single(&model, Box::new(Reference::new()), LIMITS).unwrap();
        for case in cases(&folder.join("reference.json")) {
            check_case(&mut runner, &case.ids, &case, bound, name);
        }
    }
}

/// A field of a class, the value to set, and the required value.
type Switch = (&'static str, &'static str, serde_json::Value);

/// The switches of `config.json` of which one position is not supported. Ignoring them would change the model.
fn refused_switches() -> Vec<Switch> {
    let (on, off) = (json!(true), json!(false));
    let yarn = |truncate: serde_json::Value| json!({"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "truncate": truncate});
    let local = json!({
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    });
    let mut switches = vec![
        ("GPT2LMHeadModel", "scale_attn_by_inverse_layer_idx", on.clone()),
        ("GPT2LMHeadModel", "scale_attn_weights", off.clone()),
        ("GPT2LMHeadModel", "add_cross_attention", on.clone()),
        ("GptOssForCausalLM", "attention_bias", off.clone()),
        ("GptOssForCausalLM", "rope_parameters", yarn(on.clone())),
        ("LlamaForCausalLM", "rope_parameters", yarn(off.clone())),
        ("Gemma3ForCausalLM", "rope_parameters", local.clone()),
        ("Gemma3ForCausalLM", "attn_logit_softcapping", json!(50.0)),
        ("Olmo3ForCausalLM", "rope_parameters", local),
        ("Starcoder2ForCausalLM", "use_bias", off.clone()),
        ("Qwen2MoeForCausalLM", "qkv_bias", off.clone()),
        ("Qwen2MoeForCausalLM", "mlp_only_layers", json!([1])),
        ("Qwen3MoeForCausalLM", "decoder_sparse_step", json!(2)),
        ("SmolLM3ForCausalLM", "no_rope_layer_interval", json!(2)),
        ("SmolLM3ForCausalLM", "no_rope_layers", json!([1, 0, 1, 0])),
        ("GPTNeoXForCausalLM", "attention_bias", off.clone()),
        ("FalconForCausalLM", "alibi", on.clone()),
        ("FalconForCausalLM", "bias", on.clone()),
        ("FalconForCausalLM", "parallel_attn", off.clone()),
        ("DeepseekV2ForCausalLM", "scoring_func", json!("sigmoid")),
        ("DeepseekV2ForCausalLM", "norm_topk_prob", on.clone()),
        ("DeepseekV2ForCausalLM", "moe_layer_freq", json!(2)),
        ("DeepseekV3ForCausalLM", "topk_method", json!("greedy")),
        ("DeepseekV3ForCausalLM", "rope_interleave", off.clone()),
        ("MiniMaxM2ForCausalLM", "use_qk_norm", off.clone()),
        ("Mistral3ForConditionalGeneration", "sliding_window", json!(8)),
        ("Llama4ForCausalLM", "no_rope_layers", json!([1, 0, 1, 0])),
        ("Llama4ForCausalLM", "attn_temperature_tuning", off.clone()),
        ("Llama4ForCausalLM", "use_qk_norm", off),
        ("MuseGlimmerForCausalLM", "post_norm_eps", json!(1e-5)),
        ("Cohere2ForCausalLM", "layer_types", json!(["full_attention", "mamba"])),
        ("Gemma4ForCausalLM", "layer_types", json!(["full_attention", "mamba"])),
        ("Gemma4ForCausalLM", "use_bidirectional_attention", json!("all")),
        ("Gemma4ForCausalLM", "per_layer_config", json!({"0": {"head_dim": 8}})),
        ("Gemma4ForCausalLM", "per_layer_config", json!({"1": {"sliding_window": 8}})),
        ("Gemma4ForCausalLM", "per_layer_config", json!({"2": {"head_dim": 8}})),
    ];
    for class in ["GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"] {
        switches.push((class, "use_bidirectional_attention", on.clone()));
    }
    for class in
        ["Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"]
    {
        switches.push((class, "use_sliding_window", on.clone()));
    }
    switches.extend(refused_of_encoders());
    switches.extend(refused_of_recurrences());
    switches
}

/// Those of encoders.
fn refused_of_encoders() -> Vec<Switch> {
    let (on, off) = (json!(true), json!(false));
    let mut switches = vec![
        ("BertModel", "is_decoder", on.clone()),
        ("BertModel", "add_cross_attention", on.clone()),
        ("BertModel", "position_embedding_type", json!("relative_key")),
        ("ModernBertModel", "norm_bias", on.clone()),
        ("ModernBertForSequenceClassification", "classifier_pooling", json!("cls")),
        ("ModernBertForSequenceClassification", "classifier_activation", json!("relu")),
        ("NomicBertModel", "scale_attn_weights", off.clone()),
        ("JinaBertModel", "position_embedding_type", json!("absolute")),
        ("JinaBertModel", "feed_forward_type", json!("reglu")),
        ("JinaBertModel", "emb_pooler", json!("cls")),
        ("JinaBertModel", "is_decoder", on.clone()),
    ];
    let of_nomic = [
        "causal",
        "prenorm",
        "parallel_block",
        "use_rms_norm",
        "rotary_emb_interleaved",
        "scale_attn_by_inverse_layer_idx",
    ];
    switches.extend(of_nomic.map(|field| ("NomicBertModel", field, on.clone())));
    switches
}

/// Those of classes whose layers carry a state: mechanisms that are unknown, and odd patterns of layers.
fn refused_of_recurrences() -> Vec<Switch> {
    vec![
        ("Mamba2ForCausalLM", "use_bias", json!(true)),
        ("Mamba2ForCausalLM", "use_conv_bias", json!(false)),
        ("Mamba2ForCausalLM", "time_step_limit", json!([0.1, {"__float__": "Infinity"}])),
        ("Qwen3NextForCausalLM", "mlp_only_layers", json!([1])),
        ("Qwen3NextForCausalLM", "decoder_sparse_step", json!(2)),
        ("Qwen3NextForCausalLM", "layer_types", json!(["full_attention", "mamba"])),
        ("Qwen3_5ForCausalLM", "layer_types", json!(["full_attention", "kimi_delta"])),
        ("Qwen3_5ForCausalLM", "attn_output_gate", json!(false)),
        ("NemotronHForCausalLM", "hybrid_override_pattern", json!("MX*")),
        ("NemotronHForCausalLM", "hybrid_override_pattern", json!("ME-*")),
        ("NemotronHForCausalLM", "layers_block_type", json!(["mamba", "delta"])),
        ("NemotronHForCausalLM", "layers_block_type", json!(["moe", "mlp"])),
        ("NemotronHForCausalLM", "moe_latent_size", json!(8)),
        ("NemotronHForCausalLM", "time_step_limit", json!([0.0, 0.9])),
        ("NemotronHForCausalLM", "time_step_min", json!(0.3)),
        ("GraniteMoeHybridForCausalLM", "layer_types", json!(["mamba", "delta"])),
        ("GraniteMoeHybridForCausalLM", "time_step_limit", json!([0.0, 0.9])),
    ]
}

/// Fields that a class whose layers carry a state needs besides.
fn of_recurrences(class: &str) -> serde_json::Value {
    match class {
        "Mamba2ForCausalLM" => json!({
            "layer_norm_epsilon": 1e-5, "conv_kernel": 4, "state_size": 8, "n_groups": 1, "num_heads": 4, "head_dim": 8,
        }),
        "Qwen3NextForCausalLM" | "Qwen3_5ForCausalLM" => json!({
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 8, "linear_num_key_heads": 2,
            "linear_num_value_heads": 4, "linear_value_head_dim": 8,
        }),
        "NemotronHForCausalLM" => json!({
            "layer_norm_epsilon": 1e-5, "conv_kernel": 4, "ssm_state_size": 8, "n_groups": 1, "mamba_num_heads": 4,
            "mamba_head_dim": 8, "num_key_value_heads": 2, "hybrid_override_pattern": "M*-",
        }),
        "GraniteMoeHybridForCausalLM" => json!({
            "mamba_d_conv": 4, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_d_head": 8,
            "num_key_value_heads": 2, "shared_intermediate_size": 24, "attention_multiplier": 0.5,
            "embedding_multiplier": 2.0, "residual_multiplier": 0.5, "logits_scaling": 2.0,
            "layer_types": ["mamba", "attention", "mamba", "mamba"],
        }),
        _ => json!({}),
    }
}

#[test]
fn switches_that_are_not_supported_are_refused_by_name() {
    let sizes = json!({
        "num_hidden_layers": 4, "max_position_embeddings": 64, "hidden_size": 32, "n_embd": 32, "num_attention_heads": 4,
        "vocab_size": 16, "intermediate_size": 48, "rms_norm_eps": 1e-5, "layer_norm_eps": 1e-5, "sliding_window": 8,
        "final_logit_softcapping": 30.0, "num_experts": 4, "num_experts_per_tok": 2,
        "num_local_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24, "local_attention": 8,
        "classifier_pooling": "mean", "logit_scale": 0.25, "intermediate_size_mlp": 48, "interleave_moe_layer_step": 1,
        "output_multiplier": 1.0, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16,
        "feed_forward_type": "geglu",
    });
    for (class, field, value) in refused_switches() {
        let mut config = sizes.clone();
        config["architectures"] = json!([class]);
        if class == "Gemma2ForCausalLM" {
            config["attn_logit_softcapping"] = json!(50.0);
        }
        if class == "Mistral3ForConditionalGeneration" {
            config["sliding_window"] = json!(null);
        }
        let more = of_recurrences(class).as_object().cloned().unwrap_or_default();
        config.as_object_mut().unwrap().extend(more);
        if class == "Gemma4ForCausalLM" {
            config["layer_types"] = json!(["sliding_attention", "full_attention"]);
            config["rope_parameters"] = json!({"full_attention": {}, "sliding_attention": {}});
        }
        let draft = |config: &serde_json::Value| {
            let settings = Settings(config);
            bilayer_models::draft(of_checkpoint(settings)?, settings).map(drop)
        };
        draft(&config).unwrap_or_else(|error| panic!("{class}: {error}"));
        config[field] = value.clone();
        let error = draft(&config).expect_err(&format!("{class} takes {field} = {value}"));
        // For nested fields the inner one is named.
        let inner = value.get("truncate").map(|_| "truncate");
        let inner = inner.or_else(|| value.get("sliding_attention").map(|_| "rope_type"));
        let name = inner.unwrap_or(field);
        let message = error.to_string();
        assert!(message.contains(&format!("`{name}`")), "{class}, {field} = {value}: {message}");
    }
}

/// A way to take a feature out of a configuration.
type Less = (&'static str, fn(&mut Config));

const LESS: &[Less] = &[
    ("window", |config| config.layers.iter_mut().for_each(|layer| layer.window = None)),
    ("rotation", |config| config.layers.iter_mut().for_each(|layer| layer.rope = None)),
    ("rotation of its own", |config| {
        let last = config.layers.last().unwrap().rope;
        let fits = |layer: &Layer| last.filter(|rope| rope.dims <= layer.head_dim);
        config.layers.iter_mut().for_each(|layer| layer.rope = fits(layer));
    }),
    ("halves", |config| {
        let ropes = config.layers.iter_mut().filter_map(|layer| layer.rope.as_mut());
        ropes.for_each(|rope| rope.pairs = Pairs::Interleaved);
    }),
    ("positions", |config| config.positions = None),
    ("norms after", |config| {
        if config.norm_at == NormAt::Both {
            config.norm_at = NormAt::Before;
        }
    }),
    ("norms of queries and keys", |config| {
        if config.qk_norm != Some(QkNorm::HeadIfAny) {
            config.qk_norm = None;
        }
    }),
    ("means", |config| config.norm = Norm::Rms),
    ("activation", |config| config.activation = Activation::Silu),
    ("scale of scores", |config| {
        if config.layers.iter().any(|layer| layer.kv_heads > 0) {
            config.attention_scale *= 0.5;
        }
    }),
    ("neighbours", |config| {
        config.layers.iter_mut().for_each(|layer| {
            if let Mixer::DeltaNet(sizes) = &mut layer.mixer {
                sizes.neighbours = 1;
            }
        });
    }),
    ("cap of scores", |config| config.attention_softcap = None),
    ("sinks", |config| config.attention_sinks = false),
    ("ramp between pairs", |config| {
        let ropes = config.layers.iter_mut().filter_map(|layer| layer.rope.as_mut());
        ropes.for_each(|rope| {
            if let Scaling::Yarn { whole_pairs, .. } = &mut rope.scaling {
                *whole_pairs = true;
            }
        });
    }),
    ("scale of the embedding", |config| config.embedding_scale = None),
    ("scale of the residual", |config| config.residual_scale = None),
    ("scale of logits", |config| config.logit_scale = None),
    ("cap of logits", |config| config.logit_softcap = None),
    ("second expert", |config| {
        config.experts.iter_mut().for_each(|experts| experts.used = 1);
    }),
    ("groups of experts", |config| {
        config.experts.iter_mut().for_each(|experts| experts.groups = None);
    }),
    ("parallel parts", |config| {
        if config.ffn_input == FfnInput::AttentionNorm {
            config.ffn_input = FfnInput::Attended;
            config.ffn_norm = "attn_norm";
        }
    }),
    ("gate of attention", |config| {
        config.attention_gate = config.attention_gate.filter(|gate| *gate != AttentionGate::Alone);
    }),
    // Where some layers have no projection of values, the keys' is normalized in its place.
    ("norm of values", |config| config.value_norm &= config.layer_embedding.is_none()),
    ("norm of the embedding", |config| config.embedding_norm = false),
    ("embedding of layers", |config| config.layer_embedding = None),
    ("growth of queries", |config| {
        config.layers.iter_mut().for_each(|layer| layer.temperature = None);
    }),
    ("shared expert", |config| {
        config.experts.iter_mut().for_each(|experts| experts.shared = None);
    }),
    ("weight at the input", |config| {
        config.experts.iter_mut().for_each(|experts| experts.weighed_input = false);
    }),
    ("normal weights", |config| {
        config.experts.iter_mut().for_each(|experts| experts.normalise = false);
    }),
];

/// Removing any feature takes a checkpoint's model out of the bounds tested above.
#[test]
fn every_feature_of_a_checkpoint_matters() {
    let seen = 3.0 * (BACKENDS[0].error_max)(Type::F32);
    let (mut found, mut unused) = (0, LESS.iter().map(|(feature, _)| *feature).collect::<Vec<_>>());
    for (name, folder, _) in checkpoints() {
        found += 1;
        let case = cases(&folder.join("reference.json")).pop().unwrap();
        for (feature, change) in LESS {
            let whole = Model::new(checkpoint::gguf(&folder));
            let config = whole.config.clone();
            let less = whole.changed(*change);
            if less.config == config {
                continue;
            }
            unused.retain(|other| other != feature);
            let mut runner = Runner::single(&less, Box::new(Reference::new()), LIMITS).unwrap();
            let logits = runner.prefill(&case.ids).unwrap();
            let last = &logits[logits.len() - less.config.vocab..];
            let error = error(last, &case.logits_last);
            assert!(error > seen, "{name} without its {feature}: error {error:e}");
        }
    }
    assert!(found < CHECKPOINTS.len() || unused.is_empty(), "no checkpoint has {unused:?}");
}

/// Files of one trained model, and bounds on the difference of their logits from those of the exact weights: the
/// reference's (5.0e-4, 7.1e-3, 0.107) plus a third.
const STORIES: &[(&str, f32)] = &[
    ("stories260k-f32.gguf", 0.0),
    ("stories260k-f16.gguf", 7e-4),
    ("stories260k-q8_0.gguf", 0.01),
    ("stories260k-q4_0.gguf", 0.15),
];

#[test]
fn stories_give_the_logits_of_their_exact_weights() {
    let Some(folder) = shared("stories260k") else { return };
    for (name, of_type) in STORIES {
        let model = Model::open(&folder.join(name));
        for backend in backends() {
            let what = format!("{name} on {}", backend.name);
            let bound = of_type + (backend.error_max)(model.matrix_type());
            let mut runner = Runner::single(&model, (backend.make)(), LIMITS).unwrap();
            for case in cases(&folder.join("reference.json")) {
                check_case(&mut runner, &case.ids, &case, bound, &what);
            }
        }
    }
}

#[test]
fn a_story_is_told_to_its_end() {
    let Some(folder) = shared("stories260k") else { return };
    let model = Model::open(&folder.join("stories260k-f32.gguf"));
    for backend in backends() {
        let mut runner = Runner::single(&model, (backend.make)(), LIMITS).unwrap();
        for case in cases(&folder.join("reference.json")) {
            // The list starts with the prompt.
            let told = &case.greedy[case.ids.len()..];
            assert_eq!(greedy(&mut runner, &case.ids, told.len()), told, "{}", backend.name);
        }
    }
}

#[derive(Deserialize)]
struct Quantized {
    files: std::collections::BTreeMap<String, Cases>,
}

#[test]
fn every_quantization_gives_the_logits_of_its_weights() {
    let (Some(folder), Some(ids)) = (shared("quant/llama-256"), shared("arch-tiny/llama-256"))
    else {
        return;
    };
    let ids = cases(&ids.join("reference.json"));
    let text = std::fs::read_to_string(folder.join("reference.json")).unwrap();
    let quantized: Quantized = serde_json::from_str(&text).unwrap();
    assert_eq!(quantized.files.len(), 13);
    for (name, expected) in &quantized.files {
        let model = Model::open(&folder.join(name));
        for backend in backends() {
            let what = format!("{name} on {}", backend.name);
            let bound = (backend.error_max)(model.matrix_type());
            let mut runner = Runner::single(&model, (backend.make)(), LIMITS).unwrap();
            for (case, ids) in expected.cases.iter().zip(&ids) {
                check_case(&mut runner, &ids.ids, case, bound, &what);
            }
        }
    }
}

/// A random model of an architecture's smallest metadata with additions.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    /// The type of its matrices.
    ty: Type,
    /// Optional tensors it has.
    optional: &'static [&'static str],
    /// Sets keys of the architecture by the given prefix.
    change: fn(&mut Metadata, &str),
}

const SMALLEST: Variant =
    Variant { name: "smallest", ty: Type::F32, optional: &[], change: |_, _| {} };

const LONG_HEADS: Variant = Variant {
    name: "long heads",
    change: |metadata, name| {
        metadata.set(&format!("{name}.attention.key_length"), 32u32);
        metadata.set(&format!("{name}.attention.value_length"), 32u32);
        metadata.set(&format!("{name}.rope.dimension_count"), 16u32);
    },
    ..SMALLEST
};

const VARIANTS: &[Variant] = &[
    SMALLEST,
    LONG_HEADS,
    Variant { name: "half", ty: Type::F16, ..SMALLEST },
    Variant { name: "eight bits", ty: Type::Q8_0, ..SMALLEST },
    Variant { name: "four bits", ty: Type::Q4_0, ..SMALLEST },
    Variant { name: "untied", optional: &["output.weight"], ..SMALLEST },
    Variant {
        name: "biases",
        optional: &["blk.0.attn_q.bias", "blk.1.attn_output.bias", "blk.2.ffn_up.bias"],
        ..SMALLEST
    },
    Variant { name: "factors", optional: &["rope_freqs.weight"], ..SMALLEST },
    Variant {
        name: "window",
        change: |metadata, name| {
            metadata.set(&format!("{name}.attention.sliding_window"), 5u32);
        },
        ..SMALLEST
    },
    Variant {
        name: "slopes",
        change: |metadata, name| {
            metadata.set(&format!("{name}.attention.max_alibi_bias"), 8f32);
        },
        ..SMALLEST
    },
    Variant {
        name: "yarn",
        change: |metadata, name| {
            metadata.set(&format!("{name}.rope.scaling.type"), "yarn");
            metadata.set(&format!("{name}.rope.scaling.factor"), 4f32);
            metadata.set(&format!("{name}.rope.scaling.original_context_length"), 64u32);
        },
        ..SMALLEST
    },
    EXPERTS,
    Variant {
        name: "factors of matrices",
        optional: &[
            "token_embd.scale",
            "blk.0.attn_q.scale",
            "blk.0.ffn_gate_exps.scale",
            "blk.1.ffn_up_exps.scale",
            "blk.2.ffn_down_exps.scale",
        ],
        ..EXPERTS
    },
    Variant {
        name: "experts apart, and scored otherwise",
        optional: &[
            "blk.0.ffn_gate.0.weight",
            "blk.0.ffn_up.0.weight",
            "blk.1.ffn_down.0.weight",
            "blk.1.exp_probs_b.bias",
            "blk.2.ffn_up_exps.bias",
        ],
        change: |metadata, name| {
            (EXPERTS.change)(metadata, name);
            metadata.set(&format!("{name}.expert_feed_forward_length"), 40u32);
            metadata.set(&format!("{name}.expert_gating_func"), 2u32);
            metadata.set(&format!("{name}.expert_weights_norm"), false);
            metadata.set(&format!("{name}.expert_weights_scale"), 1.5f32);
        },
        ..SMALLEST
    },
];

const BUDGET: Budget = Budget {
    context: 64,
    states: 2,
    tokens: 64,
    outputs: 64,
    key_type: Type::F32,
    value_type: Type::F32,
    margin_bytes: 0,
};

/// Keys that make a Mixtral of a Llama.
const EXPERTS: Variant = Variant {
    name: "experts",
    change: |metadata, name| {
        metadata.set(&format!("{name}.expert_count"), 4u32);
        metadata.set(&format!("{name}.expert_used_count"), 2u32);
    },
    ..SMALLEST
};

fn random(architecture: &Architecture, variant: &Variant) -> Model {
    let mut metadata = (architecture.tiny)();
    (variant.change)(&mut metadata, architecture.name);
    Model::random(&metadata, variant.ty, variant.optional, 7)
}

/// The cases of a test: splitting steps and layers depends on backends, not on architectures.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    /// The smallest model of the first architecture.
    All,
    /// Its variants.
    Some,
    /// The smallest model of every other architecture.
    Few,
}

/// A random model on a backend, and tokens that fill more than two pages.
struct Setting<'a> {
    extent: Extent,
    backend: &'a Tested,
    model: &'a Model,
    tokens: &'a [u32],
    /// The logits of all tokens by the reference.
    expected: &'a [f32],
    what: &'a str,
    same_max: f32,
}

/// Calls `check` for every backend and architecture: the first in all variants, which are features of the decoder
/// that all share, every other with the features of its own smallest metadata.
fn for_each_random(check: impl Fn(Setting<'_>)) {
    for (place, architecture) in bilayer_models::all().iter().enumerate() {
        let variants = if place == 0 { VARIANTS } else { &[SMALLEST] };
        for variant in variants {
            let extent = match (place, variant.name == SMALLEST.name) {
                (0, true) => Extent::All,
                (0, false) => Extent::Some,
                _ => Extent::Few,
            };
            let model = &random(architecture, variant);
            let tokens = &Random(11).tokens(70, model.config.vocab);
            let reference = Runner::single(model, Box::new(Reference::new()), LIMITS);
            let expected = &reference.unwrap().prefill(tokens).unwrap();
            for backend in backends() {
                let what = &format!("{} {} on {}", architecture.name, variant.name, backend.name);
                let same_max = (backend.same_max)(variant.ty);
                check(Setting { extent, backend, model, tokens, expected, what, same_max });
            }
        }
    }
}

/// A promise about a runner of a setting, which has the logits of all tokens at once.
type Promise = fn(&Setting<'_>, &mut Runner<'_>, &[f32]);

/// What holds of every model on every backend. One runner keeps them all, so none may depend on what ran before.
const PROMISES: &[Promise] = &[
    the_logits_are_those_of_the_reference,
    a_prompt_in_pieces_is_the_prompt_at_once,
    only_output_rows_are_returned,
    sequences_in_one_step_do_not_see_each_other,
    it_does_not_matter_which_pages_a_sequence_has,
    a_copied_page_carries_a_shared_prefix,
];

#[test]
fn every_backend_keeps_every_promise() {
    for_each_random(|setting| {
        let backend = (setting.backend.make)();
        let mut runner = Runner::single(setting.model, backend, LIMITS).unwrap();
        let whole = runner.prefill(setting.tokens).unwrap();
        for promise in PROMISES {
            promise(&setting, &mut runner, &whole);
        }
    });
}

/// Rows of matrices are multiplied by threads of other nodes, from other memory, to the same bits. Debug builds check that
/// each chunk of a matrix reads the memory of its own node only.
#[test]
fn numa_nodes_give_the_bits_of_one() {
    let all = bilayer_models::all().iter().enumerate();
    for (architecture, variant) in all.flat_map(|(place, architecture)| {
        let variants = if place == 0 { VARIANTS } else { &[SMALLEST] };
        variants.iter().map(move |variant| (architecture, variant))
    }) {
        let model = &random(architecture, variant);
        let tokens = &Random(11).tokens(70, model.config.vocab);
        let logits = |numa, threads| {
            let options = Options { threads: Some(threads), numa, ..Default::default() };
            let cpu = Cpu::new(options).unwrap();
            assert_eq!(cpu.facts().copies_weights, numa != Numa::Off);
            let mut runner = Runner::single(model, Box::new(cpu), LIMITS).unwrap();
            let mut logits = runner.prefill(&tokens[..68]).unwrap();
            for position in 68..70 {
                let tokens = &tokens[position..=position];
                let run = Chunk { tokens, first_position: position, pages: &IN_ORDER };
                logits.extend(runner.step(&[run], &[0], &[]).unwrap());
            }
            logits
        };
        let what = format!("{} {}", architecture.name, variant.name);
        assert!(logits(Numa::Off, 2) == logits(Numa::Simulate(2), 3), "{what}");
    }
}

fn the_logits_are_those_of_the_reference(setting: &Setting<'_>, _: &mut Runner<'_>, whole: &[f32]) {
    let &Setting { backend, model, tokens, expected, what, .. } = setting;
    assert_close(whole, expected, (backend.error_max)(model.matrix_type()), what);
    // A model whose output does not depend on its input would pass everything here.
    let width = expected.len() / tokens.len();
    assert!(error(&expected[width..2 * width], &expected[..width]) > 0.1, "{what}: indifferent");
}

#[test]
fn variants_differ() {
    let tokens = Random(11).tokens(70, 64);
    let mut seen: Vec<(Vec<f32>, &str)> = Vec::new();
    for variant in VARIANTS {
        let model = random(bilayer_models::all()[0], variant);
        let mut runner = Runner::single(&model, Box::new(Reference::new()), LIMITS).unwrap();
        let logits = runner.prefill(&tokens).unwrap();
        let last = logits[logits.len() - model.config.vocab..].to_vec();
        for (other, name) in &seen {
            assert!(error(&last, other) > 1e-4, "{} changes nothing over {name}", variant.name);
        }
        seen.push((last, variant.name));
    }
}

fn a_prompt_in_pieces_is_the_prompt_at_once(
    setting: &Setting<'_>,
    runner: &mut Runner<'_>,
    whole: &[f32],
) {
    let &Setting { extent, model, tokens, what, same_max, .. } = setting;
    if model.config.encoder.is_some() {
        return;
    }
    // Each way is taken again and again until the tokens end.
    let ways: &[&[usize]] = match extent {
        Extent::All => &[&[1], &[2], &[3], &[7], &[31], &[32], &[33], &[64]],
        Extent::Some => &[&[1, 33, 2, 31, 3], &[64, 1]],
        Extent::Few => &[&[7, 1, 32]],
    };
    for way in ways {
        let mut pieces = Vec::new();
        let mut rest = tokens;
        for &size in way.iter().cycle() {
            let (piece, later) = rest.split_at(size.min(rest.len()));
            let first_position = tokens.len() - rest.len();
            let run = Chunk { tokens: piece, first_position, pages: &IN_ORDER };
            pieces.extend(runner.step(&[run], &all(piece.len()), &[]).unwrap());
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        assert_close(&pieces, whole, same_max, &format!("{what}, pieces of {way:?}"));
    }
}

fn only_output_rows_are_returned(setting: &Setting<'_>, runner: &mut Runner<'_>, whole: &[f32]) {
    let &Setting { model, tokens, what, same_max, .. } = setting;
    let vocab = runner.vocab();
    let run = Chunk { tokens, first_position: 0, pages: &IN_ORDER };
    let some = runner.step(&[run], &[3, 32, 69], &[]).unwrap();
    let picked: Vec<f32> =
        [3, 32, 69].iter().flat_map(|&r| &whole[r * vocab..][..vocab]).copied().collect();
    assert_close(&some, &picked, same_max, what);
    if model.config.encoder.is_some() {
        return;
    }
    // A part of a prompt without output rows still fills the cache.
    let (start, end) = tokens.split_at(40);
    let first = Chunk { tokens: start, first_position: 0, pages: &IN_ORDER };
    assert!(runner.step(&[first], &[], &[]).unwrap().is_empty(), "{what}");
    let second = Chunk { tokens: end, first_position: 40, pages: &IN_ORDER };
    let last = runner.step(&[second], &[29], &[]).unwrap();
    assert_close(&last, &picked[2 * vocab..], same_max, what);
}

fn sequences_in_one_step_do_not_see_each_other(
    setting: &Setting<'_>,
    runner: &mut Runner<'_>,
    whole: &[f32],
) {
    let &Setting { model, tokens, what, same_max, .. } = setting;
    let vocab = runner.vocab();
    let other = Random(13).tokens(45, model.config.vocab);
    let alone = runner.prefill(&other).unwrap();
    let (low, high) = (&IN_ORDER[..8], &IN_ORDER[8..]);
    if model.config.encoder.is_some() {
        let runs = [
            Chunk { tokens, first_position: 0, pages: high },
            Chunk { tokens: &other, first_position: 0, pages: low },
        ];
        let both = runner.step(&runs, &all(115), &[]).unwrap();
        assert_close(&both, &[whole, &alone].concat(), same_max, what);
        return;
    }
    // The first has 33 tokens when the second joins; then both run in one step twice.
    let start = Chunk { tokens: &tokens[..33], first_position: 0, pages: low };
    let mut first = runner.step(&[start], &all(33), &[]).unwrap();
    let mut second = Vec::new();
    for (a, b) in [((33, 34), (0, 40)), ((34, 70), (40, 45))] {
        let runs = [
            Chunk { tokens: &tokens[a.0..a.1], first_position: a.0, pages: low },
            Chunk { tokens: &other[b.0..b.1], first_position: b.0, pages: high },
        ];
        let rows = a.1 - a.0 + b.1 - b.0;
        let logits = runner.step(&runs, &all(rows), &[]).unwrap();
        let (a, b) = logits.split_at((a.1 - a.0) * vocab);
        first.extend_from_slice(a);
        second.extend_from_slice(b);
    }
    assert_close(&first, whole, same_max, what);
    assert_close(&second, &alone, same_max, what);
}

fn it_does_not_matter_which_pages_a_sequence_has(
    setting: &Setting<'_>,
    runner: &mut Runner<'_>,
    whole: &[f32],
) {
    let &Setting { tokens, what, same_max, .. } = setting;
    for pages in [[2, 1, 0], [15, 0, 7]] {
        let run = Chunk { tokens, first_position: 0, pages: &pages };
        let logits = runner.step(&[run], &all(tokens.len()), &[]).unwrap();
        assert_close(&logits, whole, same_max, &format!("{what}, {pages:?}"));
    }
}

fn a_copied_page_carries_a_shared_prefix(
    setting: &Setting<'_>,
    runner: &mut Runner<'_>,
    whole: &[f32],
) {
    let &Setting { model, tokens, what, same_max, .. } = setting;
    // A state has no pages: tests/recurrent.rs forks sequences that have one.
    if model.config.encoder.is_some() || !model.graph.states.is_empty() {
        return;
    }
    let vocab = runner.vocab();
    let mut other = tokens.to_vec();
    other[40..].reverse();
    let alone = runner.prefill(&other).unwrap();
    // 40 tokens in common: page 0 is shared, page 1 copied to 4 before it is written.
    runner.prefill(tokens).unwrap();
    let run = Chunk { tokens: &other[40..], first_position: 40, pages: &[0, 4, 5] };
    let copies = [PageCopy { from: 1, to: 4 }];
    let logits = runner.step(&[run], &all(30), &copies).unwrap();
    assert_close(&logits, &alone[40 * vocab..], same_max, what);
    // The first sequence is unchanged.
    let run = Chunk { tokens: &tokens[69..], first_position: 69, pages: &IN_ORDER };
    let last = runner.step(&[run], &[0], &[]).unwrap();
    assert_close(&last, &whole[69 * vocab..], same_max, what);
}

#[test]
fn every_cut_gives_the_logits_of_the_whole() {
    for_each_random(|Setting { extent, backend, model, tokens, what, same_max, .. }| {
        let (tokens, next) = (&tokens[..40], &tokens[39..40]);
        let mut whole = Runner::single(model, (backend.make)(), LIMITS).unwrap();
        let expected = whole.prefill(tokens).unwrap();
        let layers = model.config.layers.len();
        let reference: fn() -> Box<dyn Backend> = || Box::new(Reference::new());
        let partners = [
            (backend.make, same_max, "with its like"),
            (reference, (backend.error_max)(model.matrix_type()), "with the reference"),
        ];
        // Each bit is the device of a part: embedding, head, layers.
        for (bits, (partner, bound, with)) in
            (0..1usize << (layers + 2)).flat_map(|bits| partners.map(|partner| (bits, partner)))
        {
            let device = |part: usize| (bits >> part) & 1;
            let placement = Placement {
                embedding: device(0),
                output: device(1),
                layers: (0..layers).map(|layer| device(layer + 2)).collect(),
                exceptions: Default::default(),
            };
            let mut parts = vec![placement.embedding];
            parts.extend(&placement.layers);
            parts.push(placement.output);
            let segments = parts.chunk_by(|a, b| a == b).count();
            // How parts are joined does not depend on their contents, so one variant suffices for alternating devices.
            let wanted = match extent {
                Extent::All => true,
                Extent::Some => segments == 2 && with == "with the reference",
                Extent::Few => {
                    segments == 2 && parts[1] != parts[2] && with == "with the reference"
                }
            };
            if !wanted {
                continue;
            }
            let backends = vec![(backend.make)(), partner()];
            let mut runner = Runner::placed(model, backends, &placement, LIMITS).unwrap();
            assert_eq!(runner.segments(), segments);
            // A prompt and one more token, so that the caches of both devices are read.
            let mut found;
            if model.config.encoder.is_some() {
                found = runner.prefill(tokens).unwrap();
            } else {
                found = runner.prefill(&tokens[..39]).unwrap();
                let run = Chunk { tokens: next, first_position: 39, pages: &IN_ORDER };
                found.extend(runner.step(&[run], &[0], &[]).unwrap());
            }
            assert_close(&found, &expected, bound, &format!("{what} {with}, {placement:?}"));
        }
    });
}

/// Experts on one device and the rest of their layers on the other, as requests place them.
#[test]
fn experts_apart_from_their_layers_give_the_logits_of_the_whole() {
    let llama = bilayer_models::all()[0];
    let models = [
        random(llama, &EXPERTS),
        random(bilayer_models::find("qwen2moe").unwrap(), &SMALLEST),
        random(bilayer_models::find("gpt-oss").unwrap(), &SMALLEST),
        random(bilayer_models::find("qwen3moe").unwrap(), &SMALLEST),
    ];
    for (model, backend) in models.iter().flat_map(|model| backends().map(move |b| (model, b))) {
        let tokens = Random(11).tokens(40, model.config.vocab);
        let mut whole = Runner::single(model, (backend.make)(), LIMITS).unwrap();
        let expected = whole.prefill(&tokens).unwrap();
        let facts = Reference::new().facts().clone();
        let machine = Machine::new(vec![facts.clone(), facts]);
        let gpu_layers = Offload::All;
        let cases = [
            (Placing { cpu_moe_layers: 99, gpu_layers, ..Placing::default() }, 3),
            (Placing { cpu_moe_layers: 1, gpu_layers, ..Placing::default() }, 1),
            (
                Placing {
                    overrides: vec![("_exps".to_owned(), 1)],
                    gpu_layers: Offload::Count(0),
                    ..Placing::default()
                },
                3,
            ),
            // Only some of an expert's matrices.
            (
                Placing {
                    overrides: vec![("1.ffn_(up|down)_exps".to_owned(), 0)],
                    gpu_layers,
                    ..Placing::default()
                },
                1,
            ),
        ];
        for (placing, layers) in cases {
            let request = placing.request(&model.graph).unwrap();
            let plan = offload(&model.graph, &machine, &BUDGET, &request).unwrap();
            let apart = plan.map.matches('+').count();
            assert!((1..=layers).contains(&apart), "{}: {request:?}", plan.map);
            for (ours, with) in [(1, "host"), (0, "device")] {
                let mut devices: Vec<Box<dyn Backend>> =
                    vec![Box::new(Reference::new()), Box::new(Reference::new())];
                devices[ours] = (backend.make)();
                let mut runner = Runner::placed(model, devices, &plan.placement, LIMITS).unwrap();
                let mut found = runner.prefill(&tokens[..39]).unwrap();
                let run = Chunk { tokens: &tokens[39..], first_position: 39, pages: &IN_ORDER };
                found.extend(runner.step(&[run], &[0], &[]).unwrap());
                let bound = (backend.error_max)(model.matrix_type());
                let what = format!("{} with the reference as {with}: {}", backend.name, plan.map);
                assert_close(&found, &expected, bound, &what);
            }
        }
    }
}

#[test]
fn narrow_caches_change_the_logits_slightly() {
    let model = random(bilayer_models::all()[0], &LONG_HEADS);
    let tokens = Random(11).tokens(70, model.config.vocab);
    for backend in backends() {
        let logits = |key_type, value_type| {
            let limits = Limits { key_type, value_type, ..LIMITS };
            let mut runner = Runner::single(&model, (backend.make)(), limits).unwrap();
            runner.prefill(&tokens).unwrap()
        };
        let exact = logits(Type::F32, Type::F32);
        let cases = [
            (Type::F16, Type::F16, 5e-4),
            (Type::F16, Type::Q8_0, 0.01),
            (Type::Q8_0, Type::Q8_0, 0.01),
            (Type::BF16, Type::BF16, 5e-3),
            // Steps are 8 and 16 times as large as those of Q8_0.
            (Type::Q5_1, Type::Q5_0, 0.08),
            (Type::Q4_1, Type::Q4_0, 0.16),
            (Type::Q4_0, Type::IQ4_NL, 0.16),
        ];
        for (key_type, value_type, bound) in cases {
            let error = error(&logits(key_type, value_type), &exact);
            let what = format!("{} with keys {key_type}, values {value_type}", backend.name);
            assert!(error > 1e-6 && error < bound, "{what}: error {error:e}");
        }
    }
}

/// A channel of keys is ten times as large, and that of the queries as small, so that exact logits remain as they are.
#[test]
fn large_channels_of_keys_are_rounded_less_after_the_transform() {
    let mut metadata = (bilayer_models::all()[0].tiny)();
    (LONG_HEADS.change)(&mut metadata, bilayer_models::all()[0].name);
    let width = bilayer_models::config(&metadata).unwrap().width;
    let model = |factor: f32| {
        let scale = |name: &str, values: &mut [f32]| {
            let factor = match name.rsplit('.').nth(1) {
                Some("attn_k") => factor,
                Some("attn_q") => 1.0 / factor,
                _ => return,
            };
            // Elements from 16 on are not rotated.
            let rows = values.chunks_exact_mut(width).skip(20).step_by(32);
            rows.flatten().for_each(|x| *x *= factor);
        };
        let bytes = support::model::random_bytes(&metadata, Type::F32, &[], 7, &scale);
        Model::new(bilayer_gguf::File::from_bytes("large channels", bytes).unwrap())
    };
    let (even, large) = (model(1.0), model(10.0));
    let tokens = Random(11).tokens(70, even.config.vocab);
    for backend in backends() {
        let logits = |model: &Model, key_type, hadamard_keys| {
            let limits = Limits { key_type, hadamard_keys, ..LIMITS };
            let mut runner = Runner::single(model, (backend.make)(), limits).unwrap();
            runner.prefill(&tokens).unwrap()
        };
        let exact = logits(&even, Type::F32, false);
        assert_close(&logits(&large, Type::F32, false), &exact, 1e-5, backend.name);
        for key_type in [Type::Q8_0, Type::Q4_0] {
            let [plain, transformed] =
                [false, true].map(|on| error(&logits(&large, key_type, on), &exact));
            let what = format!("{} with keys {key_type}: {plain:e} {transformed:e}", backend.name);
            assert!(transformed > 1e-6 && transformed < 0.6 * plain, "{what}");
        }
    }
}

/// The matrices and biases of values that can be divided in the three layers of some architectures: none where values are in
/// the keys, normalized, or multiplied with a gate after attention.
const DIVIDED_VALUES: &[(&str, usize)] = &[
    ("llama", 3),
    ("qwen2", 6),
    ("gptneox", 6),
    ("bert", 6),
    ("deepseek2", 0),
    ("gemma4", 0),
    ("muse-glimmer", 0),
    ("qwen35", 0),
];

/// Inputs whose channels are divided where they are computed, and multiplied again where they are read, give the logits that
/// they had, in every architecture: each one's graph says which they are.
#[test]
fn inputs_that_are_divided_give_the_logits_they_had() {
    let mut expected = DIVIDED_VALUES.to_vec();
    for architecture in bilayer_models::all() {
        let name = architecture.name;
        let [model, same] = [(); 2].map(|()| random(architecture, &SMALLEST));
        let inputs = links(&model.graph).into_iter().map(|link| {
            // From a quarter to four, another one for each channel.
            let factor = |column| (2.0 * (link.repeats.channel(column) as f32 * 1.7).sin()).exp2();
            let factors = (0..link.matrices[0].cols).map(factor).collect();
            Folded { link, alpha: Some(0.5), factors, outliers: Vec::new(), errors: [0.0; 2] }
        });
        let smoothed = Smoothed { inputs: inputs.collect() };
        let of_values =
            |tensor: &&str| tensor.contains(".attn_v.") || tensor.contains(".attn_qkv.");
        let befores = smoothed.inputs.iter().map(|input| &input.link.before);
        let count = befores.flat_map(Before::tensors).filter(of_values).count();
        expected.retain(|known| *known != (name, count));
        let divided = Model::new(smoothed.apply(same.file).unwrap());
        let tokens = Random(11).tokens(40, model.config.vocab);
        let logits = |model: &Model| {
            let runner = Runner::single(model, Box::new(Reference::new()), LIMITS);
            runner.unwrap().prefill(&tokens).unwrap()
        };
        assert_close(&logits(&divided), &logits(&model), 1e-5, name);
    }
    assert!(expected.is_empty(), "{expected:?}");
}

#[test]
fn what_is_not_a_cache_type_is_refused_at_load() {
    let model = random(bilayer_models::all()[0], &SMALLEST);
    for backend in backends() {
        let limits = Limits { key_type: Type::Q4_K, ..LIMITS };
        let refused = Runner::single(&model, (backend.make)(), limits);
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "{}", backend.name);
    }
}

#[test]
fn recording_uses_exactly_the_tensors_of_a_real_file() {
    let Some(folder) = shared("stories260k") else { return };
    let model = Model::open(&folder.join("stories260k-f32.gguf"));
    let outline = Outline::new(Type::F32, &[]);
    bilayer_models::record(&model.config, &outline).unwrap();
    let mut asked: Vec<_> =
        outline.tensors().into_iter().map(|(name, entry)| (name, entry.shape)).collect();
    let tensors = model.file.tensors().iter();
    let mut there: Vec<_> =
        tensors.map(|t| (t.name().to_owned(), t.layout().shape().to_vec())).collect();
    asked.sort();
    there.sort();
    assert_eq!(asked, there);
}

#[test]
fn a_file_by_an_early_converter_runs() {
    let Some(folder) = shared("gguf-real") else { return };
    let model = Model::open(&folder.join("llama-2-tiny-random.gguf"));
    let tokens = Random(5).tokens(40, model.config.vocab);
    let mut reference = Runner::single(&model, Box::new(Reference::new()), LIMITS).unwrap();
    let expected = reference.prefill(&tokens).unwrap();
    for backend in backends() {
        let mut runner = Runner::single(&model, (backend.make)(), LIMITS).unwrap();
        let bound = (backend.error_max)(model.matrix_type());
        assert_close(&runner.prefill(&tokens).unwrap(), &expected, bound, backend.name);
    }
}

/// `attn_kv_b` of early files becomes `attn_k_b` and `attn_v_b`: those of a new file bit for bit where it holds floats;
/// of a quantized one, values keep their type.
#[test]
fn keys_and_values_in_one_tensor_are_split() {
    for name in ["deepseek3", "deepseek2"] {
        let Some((_, folder, _)) = checkpoints().find(|(known, ..)| *known == name) else {
            continue;
        };
        let whole = checkpoint::gguf(&folder);
        let ids = &cases(&folder.join("reference.json"))[0].ids;
        let logits = |file: bilayer_gguf::File| {
            let model = Model::new(bilayer_models::split_keys_and_values(file).unwrap());
            let mut runner = Runner::single(&model, Box::new(Reference::new()), LIMITS).unwrap();
            runner.prefill(ids).unwrap()
        };
        let early = latent::keys_and_values_in_one(&whole, Type::F32);
        assert!(bilayer_models::read(&early).is_ok(), "{name} is known before it is split");
        assert!(logits(early) == logits(whole), "{name}");
        let whole = checkpoint::gguf(&folder);
        let rank = whole.metadata().usize("deepseek2.attention.kv_lora_rank").unwrap();
        if !rank.is_multiple_of(Type::Q8_0.block_weights) {
            continue;
        }
        let narrow = || latent::keys_and_values_in_one(&whole, Type::Q8_0);
        let split = bilayer_models::split_keys_and_values(narrow()).unwrap();
        let of = |name: &str| split.tensor(name).unwrap().layout().ty();
        let types = ["attn_k_b", "attn_v_b"].map(|part| of(&format!("blk.0.{part}.weight")));
        assert_eq!(types, [Type::F16, Type::Q8_0], "{name}");
        let off = error(&logits(narrow()), &logits(checkpoint::gguf(&folder)));
        assert!(off < 0.05, "{name}: {off}");
    }
}

#[test]
fn incomplete_models_are_refused_and_the_missing_tensor_named() {
    let Some(folder) = shared("gguf-real") else { return };
    let file = bilayer_gguf::File::open(&folder.join("weightless-tiny.gguf")).unwrap();
    let message = bilayer_models::read(&file).err().unwrap().to_string();
    assert!(message.contains("blk.0.") || message.contains("key "), "{message}");
}
