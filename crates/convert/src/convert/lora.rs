//! Converts an adapter (LoRA) that PEFT wrote.

use std::path::Path;

use bilayer_gguf::Metadata;
use bilayer_models::{Architecture, Change, Config, translate};
use bilayer_quant::Type;
use serde_json::Value;

use super::tensors::{Planned, SourceTensor, Tensors, one};
use super::{Convert, Described, Plan, config, described};
use crate::Error;
use crate::checkpoint::{Checkpoint, Shards};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// What PEFT puts before the names of the model's own tensors.
const PREFIX: &str = "base_model.model.";

impl Convert {
    /// Reads the adapter in the folder `adapter` for the checkpoint in `base`, of which only `config.json` is needed. Instead of
    /// a quantized [`outtype`](Convert::outtype) it gets F16.
    ///
    /// # Errors
    /// Those of [`Convert::plan`]; an adapter that does more than adding products of low rank.
    pub fn plan_lora(&self, base: &Path, adapter: &Path) -> Result<Plan, Error> {
        let base = Checkpoint::described(base, "config.json")?;
        let mut checkpoint = Checkpoint::described(adapter, CONFIG)?;
        checkpoint.shards = Shards::one(&checkpoint, WEIGHTS)?;
        let Described { architecture, metadata: mut of_base, .. } = described(&base, None)?;
        of_base.set("tokenizer.ggml.model", "no_vocab");
        let config = config(&base, &of_base)?;
        let alpha = alpha(&checkpoint)?;
        // Matrices of low rank are small, and read as floats.
        let outtype = self.outtype.unwrap_or(Type::F32);
        let outtype = if outtype.block_weights == 1 { outtype } else { Type::F16 };
        let tensors = tensors(&checkpoint, architecture, &config, outtype)?;
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", architecture.name);
        metadata.set("general.type", "adapter");
        let folder = adapter.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = self.name.clone().or(folder);
        metadata.set("general.name", name.unwrap_or_else(|| "adapter".to_owned()));
        metadata.set("adapter.type", "lora");
        metadata.set("adapter.lora.alpha", alpha);
        Ok(Plan { checkpoint, metadata, tensors, outtype, threads: self.threads })
    }
}

/// The numerator of the adapter's factor, after checking that it does nothing else.
fn alpha(checkpoint: &Checkpoint) -> Result<f32, Error> {
    let settings = checkpoint.settings().0;
    let wrong = |reason: &str| checkpoint.wrong(CONFIG, reason);
    let is_absent = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::String(text) => text == "none",
        Value::Bool(true) | Value::Number(_) => false,
    };
    if settings["peft_type"] != "LORA" {
        return Err(wrong("`peft_type` is not LORA; only low-rank adapters can be converted"));
    }
    for key in [
        "use_dora",
        "bias",
        "modules_to_save",
        "alpha_pattern",
        "lora_bias",
        "alora_invocation_tokens",
        "layer_replication",
        "use_qalora",
        "kasa_config",
    ] {
        if !is_absent(&settings[key]) {
            return Err(wrong(&format!(
                "`{key}` is {}; merge such an adapter into the checkpoint and convert that",
                settings[key]
            )));
        }
    }
    // These start from a part of the base that is taken out of it; PEFT writes `true` when it saves them as plain LoRA.
    let start = settings["init_lora_weights"].as_str().unwrap_or_default();
    let changes_base = ["pissa", "olora", "corda", "loftq", "lora_ga"];
    if changes_base.iter().any(|name| start.to_ascii_lowercase().starts_with(name)) {
        let advice = "save it with `path_initial_model_for_weight_conversion`, or merge it";
        return Err(wrong(&format!(
            "`init_lora_weights` is {start}, which changes the base model; {advice}"
        )));
    }
    let number = |key: &str| {
        let number = settings[key].as_f64().filter(|number| *number > 0.0 && number.is_finite());
        number.ok_or_else(|| wrong(&format!("`{key}` must be a number above 0")))
    };
    let (rank, alpha) = (number("r")?, number("lora_alpha")?);
    // The factor is alpha / rank there, and alpha / sqrt(rank) here.
    let is_root = settings["use_rslora"].as_bool().unwrap_or(false);
    if is_root && !is_absent(&settings["rank_pattern"]) {
        return Err(wrong("`rank_pattern` with `use_rslora`: the factors differ between matrices"));
    }
    Ok((if is_root { alpha * rank.sqrt() } else { alpha }) as f32)
}

/// The tensors under the names of the matrices that they adapt.
fn tensors(
    checkpoint: &Checkpoint,
    architecture: &'static Architecture,
    config: &Config,
    ty: Type,
) -> Result<Tensors, Error> {
    let mut tensors = Vec::new();
    for (name, stored) in checkpoint.shards.tensors() {
        // PEFT adds the model's own embedding and head if one of them is adapted.
        if name.contains(".base_layer.") {
            continue;
        }
        let part = SourceTensor { name: name.clone(), stored: stored.clone() };
        let own = name.strip_prefix(PREFIX).unwrap_or(name);
        let parts = [(".lora_A.weight", "lora_a"), (".lora_B.weight", "lora_b")];
        let found = parts.iter().find_map(|(end, to)| Some((own.strip_suffix(end)?, *to)));
        let Some((of, to)) = found else {
            return Err(
                part.wrong("it is no matrix of low rank; merge the adapter and convert that")
            );
        };
        let places = translate(architecture.names, &format!("{of}.weight"));
        let [place] = &places[..] else {
            return Err(part.wrong(&format!(
                "architecture {} has no matrix for it of its own",
                architecture.name
            )));
        };
        if place.expert.is_some() || place.name == "token_embd.weight" {
            return Err(part.wrong("experts and embeddings are not adapted"));
        }
        // The rows of the model's matrix are those of B; PEFT's matrices are never transposed.
        let change = match (to, place.by.change) {
            ("lora_a", _) | (_, Change::Transposed) => Change::None,
            (_, change @ (Change::None | Change::Interleaved | Change::Regrouped)) => change,
            _ => return Err(part.wrong("the rows of its matrix are rearranged in the model")),
        };
        let name = format!("{}.{to}", place.name);
        let planned = one(name, part, change, config)?;
        tensors.push(Planned { ty, ..planned });
    }
    if tensors.is_empty() {
        return Err(checkpoint.wrong(WEIGHTS, "has no tensors"));
    }
    Ok(Tensors::parts(tensors))
}
