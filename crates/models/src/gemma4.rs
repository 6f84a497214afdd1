//! Gemma 4: two sizes of heads, keys and values shared by the last layers, an embedding for each layer, and in some
//! models experts beside the feed-forward.

use bilayer_gguf::Metadata;
use bilayer_graph::{Activation, Pairs};
use serde_json::Value as Json;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Error, Experts, Field, Name, Norm, NormAt, QkNorm,
    Rotary, Settings, checkpoint, decoder, limits, names, tiny,
};

const NAME: &str = "gemma4";

/// The last layer of so many is global, where a file does not say.
const PERIOD: usize = 6;

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("block_count", 4u32.into()),
            ("attention.key_length", 32u32.into()),
            ("attention.value_length", 32u32.into()),
            ("attention.key_length_swa", 16u32.into()),
            ("attention.value_length_swa", 16u32.into()),
            ("attention.sliding_window", 5u32.into()),
            ("attention.sliding_window_pattern", vec![true, false, true, false].into()),
            ("attention.shared_kv_layers", 2u32.into()),
            ("embedding_length_per_layer_input", 8u32.into()),
            ("rope.freq_base", 1e6f32.into()),
            ("expert_count", 4u32.into()),
            ("expert_used_count", 2u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::QK_NORMS,
        names::GATED,
        &[
            Name::kept("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
            Name::kept("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
            Name::kept("blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
            Name::kept("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
            Name::kept("output_norm", "model.norm"),
            Name::kept("blk.{}.layer_output_scale.weight", "model.layers.{}.layer_scalar"),
        ],
        LAYER_EMBEDDING,
        MIXTURE,
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &[
            "Gemma4ForConditionalGeneration",
            "Gemma4UnifiedForConditionalGeneration",
            "Gemma4ForCausalLM",
        ],
        activations: &["gelu_pytorch_tanh"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::RMS,
            checkpoint::WINDOW,
            &[
                Field::maybe_number("final_logit_softcapping", &["final_logit_softcapping"]),
                Field::maybe_size("attention.shared_kv_layers", &["num_kv_shared_layers"]),
                Field::maybe_size("expert_count", &["num_experts"]),
                Field::maybe_size("expert_used_count", &["top_k_experts"]),
                Field::maybe_size("expert_feed_forward_length", &["moe_intermediate_size"]),
            ],
        ],
        more,
        ..Checkpoint::USUAL
    },
};

/// The embedding for each layer.
const LAYER_EMBEDDING: &[Name] = &[
    Name::kept("per_layer_token_embd", "model.embed_tokens_per_layer"),
    Name::kept("per_layer_model_proj", "model.per_layer_model_projection"),
    Name::kept("per_layer_proj_norm", "model.per_layer_projection_norm"),
    Name::kept("blk.{}.inp_gate", "model.layers.{}.per_layer_input_gate"),
    Name::kept("blk.{}.proj", "model.layers.{}.per_layer_projection"),
    Name::kept("blk.{}.post_norm", "model.layers.{}.post_per_layer_input_norm"),
];

/// Experts beside the feed-forward. A file has gate and up in one tensor; the others are those of random models.
const MIXTURE: &[Name] = &[
    Name::kept("blk.{}.ffn_gate_inp", "model.layers.{}.router.proj"),
    Name::kept("blk.{}.ffn_gate_inp.scale", "model.layers.{}.router.scale"),
    Name::kept("blk.{}.ffn_down_exps.scale", "model.layers.{}.router.per_expert_scale"),
    Name::kept("blk.{}.ffn_gate_up_exps.weight", "model.layers.{}.experts.gate_up_proj"),
    Name::kept("blk.{}.ffn_down_exps.weight", "model.layers.{}.experts.down_proj"),
    Name::stacked("blk.{}.ffn_gate_exps", "model.layers.{}.experts.{}.gate_proj"),
    Name::stacked("blk.{}.ffn_up_exps", "model.layers.{}.experts.{}.up_proj"),
    Name::kept("blk.{}.pre_ffw_norm_2", "model.layers.{}.pre_feedforward_layernorm_2"),
    Name::kept("blk.{}.post_ffw_norm_1", "model.layers.{}.post_feedforward_layernorm_1"),
    Name::kept("blk.{}.post_ffw_norm_2", "model.layers.{}.post_feedforward_layernorm_2"),
];

/// The kinds of layers, and what depends on them.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    // With "vision", the tokens of an image see one another; those of a text do not.
    let causal = [false.into(), "vision".into()];
    draft.refuse("use_bidirectional_attention", &causal, "bidirectional attention")?;
    let all = draft.settings;
    let local =
        checkpoint::local_layers(all)?.ok_or_else(|| checkpoint::missing(&["layer_types"]))?;
    draft.set("attention.sliding_window_pattern", local.clone());
    let head_dim = draft.head_dim()?;
    let own = of_global(all, &local)?;
    let global_dim = match own.head_dim {
        Some(dim) => dim,
        None => all.size(&["global_head_dim"])?.unwrap_or(head_dim),
    };
    for (kind, length) in [("", global_dim), ("_swa", head_dim)] {
        draft.set(&format!("attention.key_length{kind}"), length);
        draft.set(&format!("attention.value_length{kind}"), length);
        draft.set(&format!("rope.dimension_count{kind}"), length);
    }
    let heads = draft.needed_size(&["num_attention_heads"])?;
    let kv_heads = all.size(&["num_key_value_heads"])?.unwrap_or(heads);
    let global_heads = match (own.kv_heads, all.flag(&["attention_k_eq_v"])?) {
        (Some(heads), _) => heads,
        (None, Some(true)) => all.size(&["num_global_key_value_heads"])?.unwrap_or(kv_heads),
        (None, _) => kv_heads,
    };
    let each = local.iter().map(|&local| if local { kv_heads } else { global_heads });
    draft.set("attention.head_count_kv", each.collect::<Vec<u32>>());
    let inner = draft.needed_size(&["intermediate_size"])?;
    let is_wide = all.flag(&["use_double_wide_mlp"])?.unwrap_or(false);
    let shared = all.size(&["num_kv_shared_layers"])?.unwrap_or(0) as usize;
    let first = if is_wide { local.len().saturating_sub(shared) } else { local.len() };
    let inner = |layer| if layer < first { inner } else { inner.saturating_mul(2) };
    draft.set("feed_forward_length", (0..local.len()).map(inner).collect::<Vec<u32>>());
    let own = all.size(&["hidden_size_per_layer_input"])?.unwrap_or(0);
    draft.set("embedding_length_per_layer_input", own);
    if all.flag(&["enable_moe_block"])? != Some(true) {
        draft.set("expert_count", 0u32);
    }
    if all.number(&["final_logit_softcapping"])?.is_none() {
        // llama.cpp has a cap unless the file denies it.
        draft.set("final_logit_softcapping", 0f32);
    }
    rotation(draft, all, global_dim)
}

/// Sizes that global layers have for themselves.
#[derive(Clone, Copy, Default, PartialEq)]
struct OfGlobal {
    head_dim: Option<u32>,
    kv_heads: Option<u32>,
}

/// The sizes of global layers that `per_layer_config` has, by the number of the layer; all are the same.
///
/// # Errors
/// [`Error::Field`], [`Error::UnsupportedField`]: other sizes, other layers, or layers that differ.
fn of_global(all: Settings<'_>, local: &[bool]) -> Result<OfGlobal, Error> {
    const FIELD: &str = "per_layer_config";
    let Some(given) = all.part(FIELD) else { return Ok(OfGlobal::default()) };
    let mut found = vec![OfGlobal::default(); local.len()];
    let unsupported = || Error::UnsupportedField {
        field: FIELD.to_owned(),
        found: given.0.to_string(),
        feature: "another difference of layers than sizes of heads that all global layers share",
    };
    for (layer, fields) in given.0.as_object().into_iter().flatten() {
        let layer = layer.parse::<usize>().ok().and_then(|layer| found.get_mut(layer));
        let fields = fields.as_object().ok_or_else(unsupported)?;
        let known = ["head_dim", "num_key_value_heads"];
        if fields.keys().any(|field| !known.contains(&field.as_str())) {
            return Err(unsupported());
        }
        let [head_dim, kv_heads] =
            known.map(|field| fields.get(field).cloned().unwrap_or_default());
        let size = |value: Json| value.as_u64().and_then(|size| u32::try_from(size).ok());
        *layer.ok_or_else(unsupported)? =
            OfGlobal { head_dim: size(head_dim), kv_heads: size(kv_heads) };
    }
    let first = local.iter().position(|local| !local).map_or(OfGlobal::default(), |i| found[i]);
    let expected = |local: bool| if local { OfGlobal::default() } else { first };
    match local.iter().zip(&found).all(|(&local, &found)| found == expected(local)) {
        true => Ok(first),
        false => Err(unsupported()),
    }
}

/// The bases of both kinds of layers, and the divisors of global ones: pairs beyond a part of the head do not rotate.
fn rotation(draft: &mut Draft<'_>, all: Settings<'_>, global_dim: u32) -> Result<(), Error> {
    let rope =
        all.part("rope_parameters").ok_or_else(|| checkpoint::missing(&["rope_parameters"]))?;
    let part = |name| rope.part(name).ok_or_else(|| checkpoint::missing(&[name]));
    let (global, local) = (part("full_attention")?, part("sliding_attention")?);
    draft.set("rope.freq_base", global.number(&["rope_theta"])?.unwrap_or(1e6));
    draft.set("rope.freq_base_swa", local.number(&["rope_theta"])?.unwrap_or(10_000.0));
    for (rope, kind) in [(global, "proportional"), (local, "default")] {
        let found = rope.text(&["rope_type"])?.unwrap_or(kind);
        if found != kind {
            let (field, found) = ("rope_type".to_owned(), found.to_owned());
            let feature = "another rotation than the architecture's";
            return Err(Error::UnsupportedField { field, found, feature });
        }
    }
    let share = global.number(&["partial_rotary_factor"])?.unwrap_or(1.0);
    let pairs = global_dim as usize / 2;
    let rotated = ((share * global_dim as f32) as usize / 2).min(pairs);
    let divisors = (0..pairs).map(|pair| if pair < rotated { 1.0 } else { 1e30 });
    draft.make("rope_freqs.weight", divisors.collect());
    Ok(())
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    keys.size("attention.key_length", 1..=limits::WIDTH)?;
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    let own = keys.opt_size("embedding_length_per_layer_input", 0..=limits::WIDTH)?;
    let mut config = Config {
        embedding_scale: Some((config.width as f32).sqrt()),
        layer_embedding: own.filter(|&width| width > 0),
        activation: Activation::GeluTanh,
        norm_at: NormAt::Both,
        qk_norm: Some(QkNorm::Head),
        value_norm: true,
        attention_scale: 1.0,
        ..config
    };
    keys.size("attention.sliding_window", 1..=limits::CONTEXT)?;
    let head_dim = keys.size("attention.key_length_swa", 1..=limits::WIDTH)?;
    keys.size("attention.value_length_swa", head_dim..=head_dim)?;
    let local = Rotary::read_local(&keys, head_dim, Pairs::Halves)?;
    config.alternate(&keys, PERIOD, Some(local))?;
    let locals = config.layers.iter_mut().filter(|layer| layer.window.is_some());
    locals.for_each(|layer| layer.head_dim = head_dim);
    share(&keys, &mut config)?;
    let experts = Experts::read(&keys, Weights::Shares)?;
    config.with_experts(&keys, experts.map(|experts| Experts { beside: true, ..experts }))
}

/// The last layers read the keys and values of the last layer of their kind before them.
fn share(keys: &Keys<'_>, config: &mut Config) -> Result<(), Error> {
    let (name, count) = ("attention.shared_kv_layers", config.layers.len());
    let first = count - keys.opt_size(name, 0..=count - 1)?.unwrap_or(0);
    for i in first..count {
        let is_local = config.layers[i].window.is_some();
        let found = config.layers[..first].iter().rposition(|l| l.window.is_some() == is_local);
        let Some(other) = found else {
            let expected = "fewer, so that a layer of each kind has keys and values";
            return Err(keys.value(name, expected, count - first));
        };
        config.layers[i].kv_of = Some(other);
        let (heads, kv_heads) = (config.layers[i].heads, config.layers[other].kv_heads);
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!(
                "a divisor of the {heads} query heads of layer {i} in layer {other}, whose keys it reads"
            );
            return Err(keys.value("attention.head_count_kv", expected, kv_heads));
        }
        config.layers[i].kv_heads = kv_heads;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bilayer_graph::{Op, Window};
    use bilayer_quant::Type;
    use serde_json::json;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, Settings, draft, record};

    #[test]
    fn the_last_layers_read_the_last_of_their_kind() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let of: Vec<_> = config.layers.iter().map(|layer| layer.kv_of).collect();
        assert_eq!(of, [None, None, Some(0), Some(1)]);
        for (i, layer) in config.layers.iter().enumerate() {
            let (window, head_dim, base, factors) = match i % 2 {
                0 => (Some(Window::Last(5)), 16, 10_000.0, false),
                _ => (None, 32, 1e6, true),
            };
            let rope = layer.rope.unwrap();
            assert_eq!((layer.window, layer.head_dim, rope.dims), (window, head_dim, head_dim));
            assert_eq!((rope.base, rope.factors), (base, factors), "{i}");
        }
    }

    #[test]
    fn factors_of_experts_have_a_name_of_ollamas() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        for name in ["blk.1.ffn_down_exps.scale", "blk.1.ffn_gate_inp.per_expert_scale"] {
            let graph = record(&config, &Outline::new(Type::F32, &[name])).unwrap();
            let routes = graph.nodes.iter().filter_map(|node| match &node.op {
                Op::Route(route) => Some(route.factors.map(|id| graph.weight(id).name.as_str())),
                _ => None,
            });
            assert_eq!(routes.collect::<Vec<_>>(), [None, Some(name), None, None]);
        }
    }

    /// Of four layers the last two read the keys of the first two.
    #[test]
    fn shared_keys_have_a_divisor_of_the_heads_that_read_them() {
        let heads = |last: u32| {
            let each = [
                ("attention.head_count", vec![4, 4, last, 4].into()),
                ("attention.head_count_kv", vec![2u32, 2, 1, 2].into()),
            ];
            changed(&ARCHITECTURE, &each)
        };
        assert_eq!(heads(6).unwrap().layers[2].kv_heads, 2);
        let error = heads(3).unwrap_err().to_string();
        assert!(error.contains("gemma4.attention.head_count_kv"), "{error}");
    }

    #[test]
    fn odd_kinds_and_lengths_are_refused_by_key() {
        let cases = [
            ("attention.shared_kv_layers", 3u32.into()),
            ("attention.shared_kv_layers", 4u32.into()),
            ("attention.value_length_swa", 8u32.into()),
            ("attention.sliding_window", 0u32.into()),
            ("attention.sliding_window_pattern", vec![true, false].into()),
            ("rope.dimension_count_swa", 7u32.into()),
        ];
        for (name, value) in cases {
            let error = changed(&ARCHITECTURE, &[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(&format!("gemma4.{name}")), "{name}: {error}");
        }
    }

    #[test]
    fn sizes_of_global_layers_are_given_for_all_or_for_each() {
        let drafted = |more: &serde_json::Value| {
            let mut settings = json!({
                "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 3, "hidden_size": 64,
                "max_position_embeddings": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 16, "vocab_size": 99, "intermediate_size": 96, "rms_norm_eps": 1e-6, "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                "rope_parameters": {"full_attention": {}, "sliding_attention": {}},
                "use_bidirectional_attention": "vision", "attention_k_eq_v": true,
            });
            settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            draft(&ARCHITECTURE, Settings(&settings)).map(|(metadata, _)| metadata)
        };
        let all = json!({"global_head_dim": 32, "num_global_key_value_heads": 1});
        let own = json!({"head_dim": 32, "num_key_value_heads": 1});
        let each = json!({"per_layer_config": {"1": own, "2": own}});
        let (all, each) = (drafted(&all).unwrap(), drafted(&each).unwrap());
        assert!(all.iter().eq(each.iter()));
        assert_eq!(all.u32("gemma4.attention.key_length").unwrap(), 32);
        assert!(drafted(&json!({"per_layer_config": {"1": own}})).is_err());
    }
}
