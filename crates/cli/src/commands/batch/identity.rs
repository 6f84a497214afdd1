//! What the answers of a batch depend on beside its requests: models, adapters and settings.
//!
//! A journal with the answers of other models or settings is not continued. What changes no more than the rounding of
//! activations, such as the placement of layers and the number of threads, is left out: it may be what an interruption was
//! about.

use bilayer_engine::open_file;
use bilayer_files::hash::{Sha256, hex, sha256};
use bilayer_gguf::File;
use bilayer_server::config::Config;
use serde_json::{Map, Value, json};

use crate::args;
use crate::commands::{inspect, serve};
use crate::demo::{self, Source};
use crate::failure::Failure;

/// The adapters with their strengths, and the settings that change answers, by the names of their flags.
pub fn settings(args: &args::Batch, config: &Config) -> Result<Map<String, Value>, Failure> {
    let args::Serving { requests, offer, model, sampling, .. } = &args.serving;
    let samplers = sampling.numbers.options().ok().and_then(|options| options.samplers);
    let samplers = samplers.map(|samplers| samplers.names().collect::<Vec<_>>());
    let template = config.models.first().and_then(|offer| offer.chat_template.as_ref());
    let overrides = model.metadata.overrides();
    let parallel = (!requests.is_unified()).then_some(config.slots);
    let mut settings = Map::new();
    for (name, text) in sampling.numbers.values() {
        settings.insert(name.to_owned(), json!(text));
    }
    let others = [
        ("adapters", adapters(args)?),
        ("cache-type-k", json!(model.cache_type_k.name)),
        ("cache-type-v", json!(model.cache_type_v.name)),
        ("chat-template", json!(template.map(|text| hex(sha256(text))))),
        ("chat-template-kwargs", json!(config.template_variables)),
        ("context-shift", json!(requests.context_shift)),
        ("ctx-size", json!(model.ctx_size)),
        ("deterministic", json!(requests.deterministic)),
        ("dry-sequence-breaker", json!(sampling.dry_sequence_breaker)),
        ("embedding", json!(offer.embedding)),
        ("fast-prefill", json!(model.fast_prefill)),
        ("k-cache-hadamard", json!(model.k_cache_hadamard)),
        ("logit-bias", json!(sampling.logit_bias)),
        ("lora-init-without-apply", json!(offer.lora_init_without_apply)),
        ("n-predict", json!(config.defaults.predict)),
        ("override-kv", json!((!overrides.is_empty()).then(|| format!("{overrides:?}")))),
        ("parallel", json!(parallel)),
        ("pooling", json!(offer.pooling.map(|pooling| format!("{pooling:?}").to_lowercase()))),
        ("reasoning-format", json!(config.splits_reasoning)),
        ("reranking", json!(offer.reranking)),
        ("samplers", json!(samplers)),
        ("seed", json!(config.defaults.seed)),
    ];
    settings.extend(others.map(|(name, value)| (name.to_owned(), value)));
    Ok(settings)
}

/// The adapters, each with its hash and strength.
fn adapters(args: &args::Batch) -> Result<Value, Failure> {
    let lora = &args.serving.model.lora;
    let layers = lora.control_vector_layer_range.as_ref().map(|of| [*of.start(), *of.end()]);
    let mut adapters = Vec::new();
    for (path, scale) in lora.all() {
        let whole = inspect::hash(&open_file(path)?)?;
        adapters.push(json!({ "lora": whole, "scale": scale }));
    }
    for (path, scale) in lora.control_vectors() {
        let whole = inspect::hash(&open_file(path)?)?;
        adapters.push(json!({ "control-vector": whole, "scale": scale, "layers": layers }));
    }
    Ok(Value::Array(adapters))
}

/// A hash of each model, in their order; none of one that cannot be opened, which is reported when it is loaded.
pub fn models(args: &args::Batch) -> Result<Value, Failure> {
    let mut models = Vec::new();
    for (_, path) in serve::models(&args.serving)? {
        models.push(match path {
            Some(path) => open_file(&path).ok().and_then(|file| sampled(&file)),
            None => sampled(demo::open(&Source::plain(None))?.file()),
        });
    }
    Ok(json!(models))
}

/// A hash of a file's metadata and directory, and of samples of each tensor: models that differ anywhere else alone are
/// rare, and a whole file may take minutes to read. `None` if the file changes meanwhile.
fn sampled(file: &File) -> Option<String> {
    let tensors: Vec<_> = file.tensors().iter().map(|tensor| file.bytes(tensor)).collect();
    let mut hasher = Sha256::new();
    for map in file.maps() {
        let map_start = map.as_ptr().addr();
        let firsts =
            tensors.iter().filter_map(|tensor| tensor.as_ptr().addr().checked_sub(map_start));
        let header = firsts.filter(|&first| first <= map.len()).min().unwrap_or(map.len());
        hasher.update(&map[..header]);
    }
    for (_, parts) in file.samples() {
        parts.for_each(|part| hasher.update(part));
    }
    file.check_unchanged().ok()?;
    Some(hex(hasher.finish()))
}
