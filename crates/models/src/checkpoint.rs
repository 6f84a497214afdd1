//! From a checkpoint's `config.json` to GGUF metadata: fields from a table, the rest in each architecture's
//! file.

use bilayer_gguf::{Array, Metadata, Value};
use serde_json::Value as Json;

use crate::config::MTP_COUNT;
use crate::{Architecture, Error};

mod absent;
mod rope;
mod settings;

pub use absent::Absent;
pub(crate) use rope::{Ramp, rope, rope_by};
pub use settings::Settings;
use settings::unexpected;

/// How an architecture's checkpoints are converted.
#[derive(Debug)]
pub struct Checkpoint {
    /// Class names listed in `architectures` of `config.json`.
    pub classes: &'static [&'static str],
    /// Accepted values of the activation field, as named by transformers.
    pub activations: &'static [&'static str],
    /// Fields and their metadata keys, in groups.
    pub fields: &'static [&'static [Field]],
    /// Values of fields that checkpoints leave out.
    pub absent: &'static [Absent],
    /// Conversion that the table of fields cannot express.
    pub more: fn(&mut Draft<'_>) -> Result<(), Error>,
    /// The other architecture that some checkpoints of these classes have.
    pub other: fn(Settings<'_>) -> Result<Option<&'static Architecture>, Error>,
}

impl Checkpoint {
    /// What most architectures have.
    pub(crate) const USUAL: Checkpoint = Checkpoint {
        classes: &[],
        activations: &["silu"],
        fields: &[],
        absent: &[],
        more: decoder,
        other: |_| Ok(None),
    };
}

/// A field of `config.json` and its metadata key.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// The key, without the architecture's name.
    key: &'static str,
    /// Its names; the first one present is used.
    names: &'static [&'static str],
    kind: FieldType,
    needed: bool,
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldType {
    /// A whole number.
    Size,
    Number,
    Flag,
}

impl Field {
    /// A required count or length.
    pub(crate) const fn size(key: &'static str, names: &'static [&'static str]) -> Self {
        Field { key, names, kind: FieldType::Size, needed: true }
    }

    /// An optional count or length.
    pub(crate) const fn maybe_size(key: &'static str, names: &'static [&'static str]) -> Self {
        Field { key, names, kind: FieldType::Size, needed: false }
    }

    /// A required number.
    pub(crate) const fn number(key: &'static str, names: &'static [&'static str]) -> Self {
        Field { key, names, kind: FieldType::Number, needed: true }
    }

    /// An optional number.
    pub(crate) const fn maybe_number(key: &'static str, names: &'static [&'static str]) -> Self {
        Field { key, names, kind: FieldType::Number, needed: false }
    }

    /// An optional flag.
    pub(crate) const fn flag(key: &'static str, names: &'static [&'static str]) -> Self {
        Field { key, names, kind: FieldType::Flag, needed: false }
    }
}

/// Fields of every transformer; older families use GPT-2's names.
pub(crate) const SIZES: &[Field] = &[
    Field::size("block_count", &["num_hidden_layers", "n_layer"]),
    Field::size("context_length", &["max_position_embeddings", "n_positions"]),
    Field::size("embedding_length", &["hidden_size", "n_embd"]),
    Field::size("attention.head_count", &["num_attention_heads", "n_head"]),
    Field::maybe_size("attention.head_count_kv", &["num_key_value_heads"]),
    Field::size("vocab_size", &["vocab_size"]),
];

/// Width of the feed-forward.
pub(crate) const FEED_FORWARD: &[Field] =
    &[Field::size("feed_forward_length", &["intermediate_size", "n_inner"])];

/// Epsilon of RMS norms.
pub(crate) const RMS: &[Field] =
    &[Field::number("attention.layer_norm_rms_epsilon", &["rms_norm_eps"])];

/// Epsilon of layer norms.
pub(crate) const LAYER_NORM: &[Field] = &[Field::number(
    "attention.layer_norm_epsilon",
    &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"],
)];

/// Sliding window of local layers.
pub(crate) const WINDOW: &[Field] =
    &[Field::maybe_size("attention.sliding_window", &["sliding_window"])];

/// Routed experts.
pub(crate) const EXPERTS: &[Field] = &[
    Field::size("expert_count", &["num_experts", "num_local_experts", "n_routed_experts"]),
    Field::size("expert_used_count", &["num_experts_per_tok"]),
    Field::size("expert_feed_forward_length", &["moe_intermediate_size"]),
    Field::flag("expert_weights_norm", &["norm_topk_prob"]),
];

/// Leading dense layers, shared experts, groups, and the factor on the experts' weights.
pub(crate) const ROUTED: &[Field] = &[
    Field::maybe_size("leading_dense_block_count", &["first_k_dense_replace"]),
    Field::maybe_size("expert_shared_count", &["n_shared_experts"]),
    Field::maybe_size("expert_group_count", &["n_group"]),
    Field::maybe_size("expert_group_used_count", &["topk_group"]),
    Field::maybe_number("expert_weights_scale", &["routed_scaling_factor"]),
];

/// Latent attention.
pub(crate) const LATENT: &[Field] = &[
    Field::maybe_size("attention.q_lora_rank", &["q_lora_rank"]),
    Field::size("attention.kv_lora_rank", &["kv_lora_rank"]),
    Field::size("attention.value_length_mla", &["v_head_dim"]),
];

/// Names of the activation field; the first one present is used.
const ACTIVATION: &[&str] = &["hidden_activation", "hidden_act", "activation_function"];

/// A tensor that no checkpoint contains, computed from `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// GGUF's name.
    pub name: String,
    /// Its values, a vector.
    pub values: Vec<f32>,
}

/// GGUF metadata under construction.
#[derive(Debug)]
pub struct Draft<'j> {
    architecture: &'static str,
    /// The checkpoint's configuration.
    pub settings: Settings<'j>,
    /// The metadata written so far.
    pub metadata: Metadata,
    /// Tensors computed from the configuration.
    pub made: Vec<Made>,
}

impl Draft<'_> {
    /// Sets the architecture's own key `name`.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.metadata.set(&format!("{}.{name}", self.architecture), value);
    }

    /// Whether the architecture's own key `name` is set.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.metadata.get(&format!("{}.{name}", self.architecture)).is_some()
    }

    /// Adds a tensor that no checkpoint contains.
    pub(crate) fn make(&mut self, name: impl Into<String>, values: Vec<f32>) {
        self.made.push(Made { name: name.into(), values });
    }

    /// The head dimension: its own field, or the width divided by the number of heads.
    ///
    /// # Errors
    /// A field is absent or has the wrong type.
    pub fn head_dim(&self) -> Result<u32, Error> {
        if let Some(dim) = self.settings.size(&["head_dim"])? {
            return Ok(dim);
        }
        let heads = self.needed_size(&["num_attention_heads", "n_head"])?;
        Ok(self.needed_size(&["hidden_size", "n_embd"])? / heads.max(1))
    }

    /// A required count or length.
    ///
    /// # Errors
    /// [`Error::MissingField`], [`Error::Field`].
    pub fn needed_size(&self, names: &[&'static str]) -> Result<u32, Error> {
        self.settings.size(names)?.ok_or_else(|| missing(names))
    }

    /// Refuses a feature that this architecture's code does not implement: a field that is neither absent nor
    /// `off`.
    ///
    /// # Errors
    /// [`Error::UnsupportedField`].
    pub(crate) fn refuse(
        &self,
        name: &'static str,
        off: &[Json],
        feature: &'static str,
    ) -> Result<(), Error> {
        match self.settings.get(&[name]) {
            Some((_, value)) if !off.contains(value) => Err(Error::UnsupportedField {
                field: name.to_owned(),
                found: value.to_string(),
                feature,
            }),
            _ => Ok(()),
        }
    }

    /// Refuses each of `switches` that is set: the field's name and the feature that it turns on.
    ///
    /// # Errors
    /// [`Error::UnsupportedField`].
    pub(crate) fn refuse_all(
        &self,
        switches: &[(&'static str, &'static str)],
    ) -> Result<(), Error> {
        let off = [false.into()];
        switches.iter().try_for_each(|&(name, feature)| self.refuse(name, &off, feature))
    }

    /// Sets the key of a field of the table.
    fn field(&mut self, field: &Field) -> Result<(), Error> {
        let value: Option<Value> = match field.kind {
            FieldType::Size => self.settings.size(field.names)?.map(Value::from),
            FieldType::Number => self.settings.number(field.names)?.map(Value::from),
            FieldType::Flag => self.settings.flag(field.names)?.map(Value::from),
        };
        match value {
            Some(value) => self.set(field.key, value),
            None if field.needed => return Err(missing(field.names)),
            None => {}
        }
        Ok(())
    }
}

/// The error for a field that is absent under all its names.
pub(crate) fn missing(names: &[&'static str]) -> Error {
    Error::MissingField { names: names.join("` or `") }
}

/// The architecture of a checkpoint, from the class that its `config.json` names.
///
/// # Errors
/// [`Error::MissingField`], [`Error::Field`]; [`Error::UnknownClass`], which lists the known ones.
pub fn of_checkpoint(settings: Settings<'_>) -> Result<&'static Architecture, Error> {
    let field = "architectures";
    let (_, list) = settings.get(&[field]).ok_or_else(|| missing(&[field]))?;
    let class = list.as_array().and_then(|list| list.first()).and_then(|class| class.as_str());
    let class = class.ok_or_else(|| unexpected(field, "a list of one class", list))?;
    let known = crate::all().iter().find(|known| known.checkpoint.classes.contains(&class));
    let known = *known.ok_or_else(|| Error::UnknownClass { class: class.to_owned() })?;
    Ok((known.checkpoint.other)(settings)?.unwrap_or(known))
}

/// The metadata of a file of `architecture`, and the tensors that no checkpoint contains. Absent fields have the values of
/// [`Checkpoint::absent`].
///
/// # Errors
/// A field is absent, has the wrong type, or requests an unsupported feature; each error names it.
pub fn draft(
    architecture: &'static Architecture,
    settings: Settings<'_>,
) -> Result<(Metadata, Vec<Made>), Error> {
    let filled = absent::filled(settings, architecture.checkpoint.absent);
    let (name, settings) = (architecture.name, Settings(&filled));
    let mut draft =
        Draft { architecture: name, settings, metadata: Metadata::new(), made: Vec::new() };
    draft.metadata.set("general.architecture", name);
    let checkpoint = &architecture.checkpoint;
    if let Some((field, value)) = settings.get(ACTIVATION)
        && !checkpoint.activations.iter().any(|known| value == known)
    {
        return Err(unexpected(field, &checkpoint.activations.join(" or "), value));
    }
    checkpoint.fields.iter().copied().flatten().try_for_each(|field| draft.field(field))?;
    (checkpoint.more)(&mut draft)?;
    // Of decoders made into embedding models, whose code has no class of its own.
    if draft.settings.0["is_causal"] == false {
        draft.set("attention.causal", false);
    }
    Ok((draft.metadata, draft.made))
}

/// Adds blocks for multi-token prediction to the metadata of a decoder: they count as blocks, and have attention.
pub fn add_mtp_blocks(metadata: &mut Metadata, architecture: &Architecture, count: usize) {
    let key = |name: &str| format!("{}.{name}", architecture.name);
    let Ok(Some(layers)) = metadata.opt_usize(&key("block_count")) else { return };
    let blocks = layers.saturating_add(count).try_into().unwrap_or(u32::MAX);
    metadata.set(&key("block_count"), blocks);
    metadata.set(&key(MTP_COUNT), count as u32);
    let recurrent = key("attention.recurrent_layers");
    if let Some(Value::Array(Array::Bool(flags))) = metadata.get(&recurrent) {
        let mut flags = flags.clone();
        flags.resize(flags.len() + count, false);
        metadata.set(&recurrent, flags);
    }
}

/// Fields of decoders: head dimension and RoPE.
pub(crate) fn decoder(draft: &mut Draft<'_>) -> Result<(), Error> {
    decoder_by(draft, Ramp::Whole)
}

/// Fields of decoders whose YaRN ramp is `ramp`.
pub(crate) fn decoder_by(draft: &mut Draft<'_>, ramp: Ramp) -> Result<(), Error> {
    let head_dim = draft.head_dim()?;
    draft.set("attention.key_length", head_dim);
    draft.set("attention.value_length", head_dim);
    rope_by(draft, ramp)
}

/// A decoder whose family has sliding windows, which this architecture's code does not support.
pub(crate) fn without_window(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("use_sliding_window", &[false.into()], "a window in some layers")?;
    decoder(draft)
}

/// A decoder with experts in every layer.
pub(crate) fn all_sparse(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("decoder_sparse_step", &[1.into()], "experts in some layers only")?;
    draft.refuse("mlp_only_layers", &[Json::Array(Vec::new())], "layers without experts")?;
    without_window(draft)
}

/// Attention scores scaled by a length that may differ from the head dimension. The key is always written, since files without
/// it have the scale that the number of layers implies.
pub(crate) fn scale_of_scores(draft: &mut Draft<'_>) -> Result<(), Error> {
    let length = match draft.settings.number(&["query_pre_attn_scalar"])? {
        Some(length) => length,
        None => draft.head_dim()? as f32,
    };
    draft.set("attention.scale", 1.0 / length.sqrt());
    Ok(())
}

/// The form of GELU, where it is another than `usual`, which files of the architecture imply.
pub(crate) fn gelu(draft: &mut Draft<'_>, usual: &str) -> Result<(), Error> {
    let form = draft.settings.text(ACTIVATION)?.unwrap_or(usual);
    if (form == "gelu") != (usual == "gelu") {
        draft.set("hidden_activation", form);
    }
    Ok(())
}

/// A causal decoder; bidirectional attention is refused.
pub(crate) fn causal(draft: &mut Draft<'_>) -> Result<(), Error> {
    let feature = "bidirectional attention";
    draft.refuse("use_bidirectional_attention", &[false.into()], feature)?;
    decoder(draft)
}

/// Names of the number of layers of which the last is global.
pub(crate) const PERIOD: &[&str] = &["sliding_window_pattern", "_sliding_window_pattern"];

/// Which layers have a sliding window: those that the checkpoint lists, or all but the last of each `PERIOD`, which is
/// `usual` if it is absent.
pub(crate) fn layers_in_turn(draft: &mut Draft<'_>, usual: u32) -> Result<(), Error> {
    let period = draft.settings.size(PERIOD)?.unwrap_or(usual).max(1);
    if period != usual {
        draft.set("attention.sliding_window_pattern", period);
    }
    layer_kinds(draft, |layer| !(layer + 1).is_multiple_of(period as usize))
}

/// Which layers have a sliding window, if the checkpoint lists the layers' types. A list equal to `usual`, which the
/// architecture implies by the layer's index, needs no key.
pub(crate) fn layer_kinds(
    draft: &mut Draft<'_>,
    usual: impl Fn(usize) -> bool,
) -> Result<(), Error> {
    let Some(local) = local_layers(draft.settings)? else { return Ok(()) };
    if local.iter().enumerate().any(|(layer, &local)| local != usual(layer)) {
        draft.set("attention.sliding_window_pattern", local);
    }
    Ok(())
}

/// Which layers have a sliding window; `None` if the checkpoint does not list the layers' types.
///
/// # Errors
/// [`Error::Field`] if a layer is of another type.
pub(crate) fn local_layers(settings: Settings<'_>) -> Result<Option<Vec<bool>>, Error> {
    let kinds = kinds(settings, &["full_attention", "sliding_attention"])?;
    Ok(kinds.map(|kinds| kinds.into_iter().map(|kind| kind == 1).collect()))
}

/// The kind of each layer, as its index in `known`; `None` if the checkpoint does not list the layers' types.
///
/// # Errors
/// [`Error::Field`] if a layer is of another type.
pub(crate) fn kinds(settings: Settings<'_>, known: &[&str]) -> Result<Option<Vec<usize>>, Error> {
    let Some((field, listed)) = settings.get(&["layer_types"]) else { return Ok(None) };
    let kind = |kind: &Json| known.iter().position(|known| kind.as_str() == Some(known));
    let kinds = listed.as_array().and_then(|kinds| kinds.iter().map(kind).collect());
    let expected = format!("a list of {}", known.join(" and "));
    kinds.map(Some).ok_or_else(|| unexpected(field, &expected, listed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Settings, draft, of_checkpoint};
    use crate::all;

    fn settings() -> serde_json::Value {
        json!({
            "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64,
            "max_position_embeddings": 128, "num_attention_heads": 4, "vocab_size": 99,
            "intermediate_size": 96, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        })
    }

    #[test]
    fn classes_are_of_one_architecture_each() {
        let classes: Vec<_> = all().iter().flat_map(|known| known.checkpoint.classes).collect();
        for class in &classes {
            assert_eq!(classes.iter().filter(|other| *other == class).count(), 1, "{class}");
        }
    }

    #[test]
    fn absent_and_odd_fields_are_named() {
        let cases = [
            ("hidden_size", json!(null), "`hidden_size` or `n_embd` is missing"),
            ("hidden_size", json!("wide"), "`hidden_size`: expected a whole number"),
            ("hidden_size", json!(-1), "`hidden_size`: expected a whole number"),
            ("rms_norm_eps", json!([]), "`rms_norm_eps`: expected a number"),
            ("hidden_act", json!("gelu"), "`hidden_act`: expected silu"),
            ("architectures", json!([]), "`architectures`: expected a list of one class"),
            ("architectures", json!(["Mamba"]), "`Mamba`"),
            ("rope_scaling", json!({"type": "dynamic", "factor": 2.0}), "\"dynamic\""),
            ("rope_scaling", json!({"type": "linear"}), "`factor` is missing"),
        ];
        for (field, value, expected) in cases {
            let mut settings = settings();
            settings[field] = value.clone();
            let settings = Settings(&settings);
            let error = of_checkpoint(settings).and_then(|known| draft(known, settings).map(drop));
            let message = error.unwrap_err().to_string();
            assert!(message.contains(expected), "{field} = {value}: {message}");
        }
    }

    /// transformers computes YaRN's factor on attention as m(mscale) / m(mscale_all_dim) with m(x) = 0.1 x ln(factor) + 1 if both
    /// are given and not 0, and as m(1) otherwise. GGUF stores it relative to m(1), which is 1.1386294 for a factor of 4.
    #[test]
    fn mscale_of_yarn_sets_the_attention_factor() {
        let cases = [
            (json!({}), None),
            (json!({"mscale": 0.707, "mscale_all_dim": 1.0}), Some(0.846_919)),
            (json!({"mscale": 1.0, "mscale_all_dim": 1.0}), Some(0.878_248_9)),
            (json!({"mscale": 0.707}), None),
            (json!({"mscale": 0.707, "mscale_all_dim": 0.0}), None),
            (json!({"attention_factor": 1.5}), Some(1.317_373_3)),
            (
                json!({"attention_factor": 1.5, "mscale": 0.7, "mscale_all_dim": 1}),
                Some(1.317_373_3),
            ),
        ];
        for (more, expected) in cases {
            let mut settings = settings();
            let mut yarn = json!({"rope_type": "yarn", "factor": 4.0});
            yarn.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            settings["rope_scaling"] = yarn;
            let settings = Settings(&settings);
            let (metadata, _) = draft(of_checkpoint(settings).unwrap(), settings).unwrap();
            assert_eq!(metadata.f32("llama.rope.scaling.factor").unwrap(), 4.0);
            let found = metadata.f32("llama.rope.scaling.attn_factor").ok();
            assert_eq!(found.is_some(), expected.is_some(), "{more}: {found:?}");
            if let (Some(found), Some(expected)) = (found, expected) {
                assert!((found - expected).abs() < 1e-6_f32, "{more}: {found}, not {expected}");
            }
        }
    }

    #[test]
    fn both_forms_of_rotation_are_read() {
        let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}});
        let new = json!({
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0},
        });
        for form in [old, new] {
            let mut settings = settings();
            let object = settings.as_object_mut().unwrap();
            object.extend(form.as_object().unwrap().clone());
            let settings = Settings(&settings);
            let (metadata, _) = draft(of_checkpoint(settings).unwrap(), settings).unwrap();
            assert_eq!(metadata.f32("llama.rope.freq_base").unwrap(), 5e5);
            assert_eq!(metadata.str("llama.rope.scaling.type").unwrap(), "linear");
            assert_eq!(metadata.f32("llama.rope.scaling.factor").unwrap(), 4.0);
            assert_eq!(metadata.u32("llama.rope.dimension_count").unwrap(), 16);
        }
    }
}
