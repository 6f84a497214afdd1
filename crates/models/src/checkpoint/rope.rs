//! A checkpoint's RoPE settings: `rope_parameters` in newer checkpoints, `rope_theta` and `rope_scaling` in
//! older ones.

use std::fmt::Display;

use super::{Draft, Settings, missing, unexpected};
use crate::{Error, Llama3, rope::long_factor};

/// Names of the base frequency of global layers, by family and age.
const BASE: &[&str] = &["rope_theta", "global_rope_theta", "rotary_emb_base"];
/// Names of the base frequency of local layers.
const LOCAL_BASE: &[&str] = &["rope_local_base_freq", "local_rope_theta"];

/// Where YaRN's ramp begins and ends. No GGUF key says it: it is fixed for each architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ramp {
    /// At whole pairs: the ends are rounded outward (`truncate`).
    Whole,
    /// Between pairs, where the formula puts them.
    Between,
}

/// Writes the keys `rope.*` and, if frequencies have individual divisors, their tensors.
pub(crate) fn rope(draft: &mut Draft<'_>) -> Result<(), Error> {
    rope_by(draft, Ramp::Whole)
}

/// Writes the keys `rope.*` of an architecture whose YaRN ramp is `ramp`.
pub(crate) fn rope_by(draft: &mut Draft<'_>, ramp: Ramp) -> Result<(), Error> {
    let all = draft.settings;
    let new = all.part("rope_parameters");
    // If local and global layers have different RoPE, each kind has an object of its own.
    let full = new.map(|new| new.part("full_attention").unwrap_or(new));
    let local = new.and_then(|new| new.part("sliding_attention"));
    let base = match full.map(|full| full.number(BASE)).transpose()?.flatten() {
        Some(base) => base,
        None => all.number(BASE)?.unwrap_or(10_000.0),
    };
    draft.set("rope.freq_base", base);
    let local_base = match local {
        Some(local) => local.number(BASE)?,
        None => all.number(LOCAL_BASE)?,
    };
    if let Some(local) = local.filter(|local| kind(*local).is_ok_and(|kind| kind != "default")) {
        let found = kind(local)?;
        return Err(unsupported(
            "rope_type",
            found,
            "RoPE scaling in layers with a sliding window",
        ));
    }
    if let Some(base) = local_base {
        draft.set("rope.freq_base_swa", base);
    }
    let partial = ["partial_rotary_factor", "rotary_emb_fraction", "rotary_pct", "rope_pct"];
    let part = match full.map(|full| full.number(&partial)).transpose()?.flatten() {
        Some(part) => part,
        None => all.number(&partial)?.unwrap_or(1.0),
    };
    let dims = (draft.head_dim()? as f32 * part) as u32;
    draft.set("rope.dimension_count", dims);
    let scaling = full.filter(|full| kind(*full).is_ok_and(|kind| kind != "default"));
    match scaling.or_else(|| all.part("rope_scaling")) {
        Some(scaling) => {
            let is_whole = scaling.flag(&["truncate"])?.unwrap_or(true);
            if kind(scaling)? == "yarn" && is_whole != (ramp == Ramp::Whole) {
                let feature = "another ramp of YaRN than the architecture's";
                return Err(unsupported("truncate", is_whole, feature));
            }
            scaled(draft, scaling, base, dims)
        }
        None => Ok(()),
    }
}

fn unsupported(field: &str, found: impl Display, feature: &'static str) -> Error {
    Error::UnsupportedField { field: field.to_owned(), found: found.to_string(), feature }
}

fn kind(scaling: Settings<'_>) -> Result<&str, Error> {
    Ok(scaling.text(&["rope_type", "type"])?.unwrap_or("default"))
}

fn scaled(draft: &mut Draft<'_>, scaling: Settings<'_>, base: f32, dims: u32) -> Result<(), Error> {
    let needed = |name: &'static str| scaling.number(&[name])?.ok_or_else(|| missing(&[name]));
    match kind(scaling)? {
        "default" => {}
        "linear" => {
            draft.set("rope.scaling.type", "linear");
            draft.set("rope.scaling.factor", needed("factor")?);
        }
        "yarn" => {
            let factor = needed("factor")?;
            draft.set("rope.scaling.type", "yarn");
            draft.set("rope.scaling.factor", factor);
            let context = original_context(draft, scaling)?;
            draft.set("rope.scaling.original_context_length", context);
            for (key, name) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
                if let Some(turns) = scaling.number(&[name])? {
                    draft.set(&format!("rope.scaling.{key}"), turns);
                }
            }
            let own = |times: f32| 0.1 * times * factor.max(1.0).ln() + 1.0;
            let parts = [scaling.number(&["mscale"])?, scaling.number(&["mscale_all_dim"])?];
            let whole = match (scaling.number(&["attention_factor"])?, parts) {
                (None, [Some(of), Some(over)]) if of * over != 0.0 => Some(own(of) / own(over)),
                (whole, _) => whole,
            };
            // The checkpoint gives the full factor; GGUF stores it relative to YaRN's own 0.1 ln(factor) + 1.
            if let Some(whole) = whole {
                draft.set("rope.scaling.attn_factor", whole / own(1.0));
            }
        }
        "llama3" => {
            let rule = Llama3 {
                factor: needed("factor")?,
                low_freq_factor: needed("low_freq_factor")?,
                high_freq_factor: needed("high_freq_factor")?,
                original_context: original_context(draft, scaling)? as usize,
            };
            let values = rule.factors(base, dims as usize);
            draft.make("rope_freqs.weight", values);
        }
        // A larger base at every length, unlike the rule of that name (Hunyuan).
        "dynamic" if scaling.0.get("alpha").is_some() => {
            let (alpha, dims) = (f64::from(needed("alpha")?), f64::from(dims));
            let base = f64::from(base) * alpha.powf(dims / (dims - 2.0));
            draft.set("rope.freq_base", base as f32);
        }
        "longrope" | "su" => return long(draft, scaling),
        other => {
            let known = "default, linear, yarn, llama3 or longrope";
            let found = serde_json::Value::from(other);
            return Err(unexpected("rope_type", known, &found));
        }
    }
    Ok(())
}

/// The context in training, in tokens: the field beside the object, which transformers prefers, or else the object's, or else
/// the whole context.
fn original_context(draft: &Draft<'_>, scaling: Settings<'_>) -> Result<u32, Error> {
    let field = "original_max_position_embeddings";
    if let Some(context) = draft.settings.size(&[field])? {
        return Ok(context);
    }
    match scaling.size(&[field])? {
        Some(context) => Ok(context),
        None => draft.needed_size(&["max_position_embeddings"]),
    }
}

/// LongRoPE: two lists of divisors, the context up to which the short one applies, and the factor on cosine and sine: the
/// checkpoint's, or else what the extension of the context implies.
fn long(draft: &mut Draft<'_>, scaling: Settings<'_>) -> Result<(), Error> {
    for (name, field) in
        [("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor")]
    {
        let values = scaling.numbers(field)?.ok_or_else(|| missing(&[field]))?;
        draft.make(name, values);
    }
    let original = original_context(draft, scaling)?;
    draft.set("rope.scaling.type", "longrope");
    draft.set("rope.scaling.original_context_length", original);
    let whole = match (scaling.number(&["attention_factor"])?, scaling.number(&["factor"])?) {
        (Some(whole), _) => whole,
        (None, Some(times)) => long_factor(times, original as f32),
        (None, None) => {
            let context = draft.needed_size(&["max_position_embeddings"])?;
            long_factor(context as f32 / original as f32, original as f32)
        }
    };
    draft.set("rope.scaling.attn_factor", whole);
    Ok(())
}

#[cfg(test)]
mod tests {
    use bilayer_gguf::Metadata;
    use serde_json::{Value as Json, json};

    use crate::{Error, Scaling, Settings, draft, of_checkpoint};

    /// The metadata of a checkpoint of `class` with LongRoPE, and the number of tensors computed.
    fn long(class: &str, scaling: &Json, more: &Json) -> Result<(Metadata, usize), Error> {
        let mut config = json!({
            "architectures": [class], "num_hidden_layers": 2, "hidden_size": 64, "max_position_embeddings": 256,
            "num_attention_heads": 4, "vocab_size": 99, "intermediate_size": 96, "rms_norm_eps": 1e-5,
            "rope_scaling": {"rope_type": "longrope", "long_factor": vec![1.0; 8], "short_factor": vec![2.0; 8]},
        });
        config["rope_scaling"]
            .as_object_mut()
            .unwrap()
            .extend(scaling.as_object().unwrap().clone());
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let settings = Settings(&config);
        let (metadata, made) = draft(of_checkpoint(settings)?, settings)?;
        Ok((metadata, made.len()))
    }

    /// Four times 64 tokens: sqrt(1 + ln 4 / ln 64) = sqrt(4/3); eight times: sqrt(1 + ln 8 / ln 64) = sqrt(3/2).
    #[test]
    fn longrope_is_named_with_its_context_and_factor() {
        const FIELD: &str = "original_max_position_embeddings";
        for class in ["LlamaForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM"] {
            // What is neither beside the object nor in it: the class's default, or the whole context.
            let absent = if class.starts_with("Phi3") { 4096 } else { 256 };
            let inner = if class.starts_with("Phi3") { 4096 } else { 64 };
            for (scaling, more, original, factor) in [
                (json!({}), json!({FIELD: 64}), 64, (4f32 / 3.0).sqrt()),
                (json!({FIELD: 32}), json!({FIELD: 64}), 64, (4f32 / 3.0).sqrt()),
                (json!({"factor": 8.0}), json!({FIELD: 64}), 64, 1.5f32.sqrt()),
                (json!({"factor": 1.0}), json!({FIELD: 64}), 64, 1.0),
                (json!({"factor": 8.0, "attention_factor": 1.25}), json!({FIELD: 64}), 64, 1.25),
                (json!({FIELD: 64, "attention_factor": 1.0}), json!({}), inner, 1.0),
                (json!({}), json!({}), absent, 1.0),
            ] {
                let (metadata, made) = long(class, &scaling, &more).unwrap();
                assert_eq!(made, 2, "{class}");
                let architecture = metadata.str("general.architecture").unwrap();
                let config = (crate::find(architecture).unwrap().config)(&metadata).unwrap();
                let rope = config.layers[1].rope.unwrap();
                assert_eq!(rope.scaling, Scaling::Long { original_context: original }, "{class}");
                let error = (rope.magnitude() - factor).abs();
                assert!(error < 1e-6, "{class}, {scaling}: {}", rope.magnitude());
            }
        }
    }
}
