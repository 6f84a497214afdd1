//! LFM2 and LFM2.5, dense: short convolutions, and attention in some layers.

use bilayer_gguf::{Metadata, Value};
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Field, Mixer, Name, Norm, QkNorm,
    Settings, checkpoint, decoder, limits, names, tiny,
};

const NAME: &str = "lfm2";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &mixed()),
    names: &[names::ENDS, NAMES, FEED_FORWARD],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Lfm2ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, FIELDS],
        more,
        absent: &[Absent::number("rotary_emb_base", 1e6)],
        ..Checkpoint::USUAL
    },
};

/// Keys of the smallest metadata: the second of three layers has attention.
pub(crate) fn mixed() -> [(&'static str, Value); 2] {
    [("shortconv.l_cache", 3u32.into()), ("attention.head_count_kv", vec![0u32, 2, 0].into())]
}

/// Embedding, mixers and norms.
pub(crate) const NAMES: &[Name] = &[
    Name::kept("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
    Name::kept("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
    Name::kept("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
    Name::kept("blk.{}.attn_output", "model.layers.{}.self_attn.out_proj"),
    Name::kept("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_layernorm"),
    Name::kept("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_layernorm"),
    Name::kept("blk.{}.shortconv.in_proj", "model.layers.{}.conv.in_proj"),
    Name::squeezed("blk.{}.shortconv.conv", "model.layers.{}.conv.conv"),
    Name::kept("blk.{}.shortconv.out_proj", "model.layers.{}.conv.out_proj"),
    Name::kept("blk.{}.attn_norm", "model.layers.{}.operator_norm"),
    Name::kept("blk.{}.ffn_norm", "model.layers.{}.ffn_norm"),
    Name::kept("token_embd_norm", "model.embedding_norm"),
];

/// A dense feed-forward.
pub(crate) const FEED_FORWARD: &[Name] = &[
    Name::kept("blk.{}.ffn_gate", "model.layers.{}.feed_forward.w1"),
    Name::kept("blk.{}.ffn_up", "model.layers.{}.feed_forward.w3"),
    Name::kept("blk.{}.ffn_down", "model.layers.{}.feed_forward.w2"),
];

/// Epsilon of norms, and the length of convolutions.
pub(crate) const FIELDS: &[Field] = &[
    Field::number("attention.layer_norm_rms_epsilon", &["norm_eps", "block_norm_eps"]),
    Field::size("shortconv.l_cache", &["conv_L_cache"]),
];

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    let width = feed_forward(draft)?;
    draft.set("feed_forward_length", width);
    mixers(draft)
}

/// Which layers have attention, and what all decoders have.
pub(crate) fn mixers(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("conv_bias", &[false.into()], "a bias of convolutions")?;
    let heads = draft.needed_size(&["num_key_value_heads"])?;
    let layers = draft.needed_size(&["num_hidden_layers"])?;
    let attends = attention_layers(draft.settings, layers)?;
    let heads: Vec<u32> = attends.iter().map(|&attends| heads * u32::from(attends)).collect();
    draft.set("attention.head_count_kv", heads);
    checkpoint::decoder(draft)
}

/// Which layers have attention: by their kinds, or by the indices that older checkpoints list instead.
fn attention_layers(settings: Settings<'_>, layers: u32) -> Result<Vec<bool>, Error> {
    if let Some(kinds) = checkpoint::kinds(settings, &["full_attention", "conv"])? {
        return Ok(kinds.iter().map(|&kind| kind == 0).collect());
    }
    let Some(listed) = settings.numbers("full_attn_idxs")? else {
        return Err(checkpoint::missing(&["layer_types", "full_attn_idxs"]));
    };
    Ok((0..layers).map(|layer| listed.contains(&(layer as f32))).collect())
}

/// The width of the feed-forward: two thirds of the given one, times a factor, rounded up, unless that is off.
fn feed_forward(draft: &Draft<'_>) -> Result<u32, Error> {
    let given = draft.needed_size(&["intermediate_size", "block_ff_dim"])?;
    let settings = draft.settings;
    if settings.flag(&["block_auto_adjust_ff_dim"])? == Some(false) {
        return Ok(given);
    }
    let factor = settings.number(&["block_ffn_dim_multiplier"])?.unwrap_or(1.0);
    let multiple = settings.size(&["block_multiple_of"])?.unwrap_or(256).max(1);
    let width = (f64::from(factor) * (2 * u64::from(given) / 3) as f64) as u32;
    Ok(width.div_ceil(multiple).saturating_mul(multiple))
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    read(&Keys { metadata, architecture: NAME })
}

/// The configuration without experts.
pub(crate) fn read(keys: &Keys<'_>) -> Result<Config, Error> {
    let taps = keys.size("shortconv.l_cache", 2..=limits::TAPS)?;
    let other = Mixer::ShortConv { taps };
    let config = Config::read_mixed(keys, Norm::Rms, Some(Pairs::Halves), other)?;
    Ok(Config { qk_norm: Some(QkNorm::Head), output_norm: "token_embd_norm", ..config })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;
    use serde_json::json;

    use super::{ARCHITECTURE, Mixer, tiny::changed};
    use crate::{Error, Outline, Settings, draft, record};

    #[test]
    fn layers_without_key_value_heads_are_convolutions() {
        let mixers = |config: crate::Config| -> Vec<Mixer> {
            config.layers.iter().map(|layer| layer.mixer).collect()
        };
        let conv = Mixer::ShortConv { taps: 3 };
        assert_eq!(mixers(changed(&ARCHITECTURE, &[]).unwrap()), [conv, Mixer::Attention, conv]);
        let cases = [
            ("shortconv.l_cache", 1u32.into()),
            ("shortconv.l_cache", 17u32.into()),
            ("attention.head_count_kv", vec![0u32, 3, 0].into()),
            ("attention.head_count_kv", vec![0u32, 2].into()),
        ];
        for case in cases {
            let error = changed(&ARCHITECTURE, std::slice::from_ref(&case)).unwrap_err();
            assert!(error.to_string().contains(case.0), "{error}");
        }
    }

    #[test]
    fn the_last_norm_may_have_the_usual_name() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        for (optional, expected) in [
            (&[][..], "token_embd_norm.weight"),
            (&["output_norm.weight"], "output_norm.weight"),
            (&["output_norm.weight", "token_embd_norm.weight"], "token_embd_norm.weight"),
        ] {
            let graph = record(&config, &Outline::new(Type::F32, optional)).unwrap();
            let known = ["token_embd_norm.weight", "output_norm.weight"];
            let names = graph.weights.iter().map(|weight| weight.name.as_str());
            assert_eq!(names.filter(|name| known.contains(name)).collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn widths_and_kinds_of_layers_are_those_of_the_checkpoint() {
        let of = |more: serde_json::Value| -> Result<_, Error> {
            let mut settings = json!({
                "architectures": ["Lfm2ForCausalLM"], "num_hidden_layers": 3, "hidden_size": 64,
                "max_position_embeddings": 128, "num_attention_heads": 4, "vocab_size": 99,
                "num_key_value_heads": 2, "norm_eps": 1e-5, "conv_L_cache": 3,
                "intermediate_size": 1000, "full_attn_idxs": [1],
            });
            settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let (metadata, _) = draft(&ARCHITECTURE, Settings(&settings))?;
            let config = (ARCHITECTURE.config)(&metadata)?;
            let attends = config.layers.iter().map(|layer| layer.mixer == Mixer::Attention);
            Ok((config.layers[0].feed_forward, attends.collect::<Vec<_>>()))
        };
        // Two thirds of 1000 is 666, which is rounded up to 768.
        assert_eq!(of(json!({})).unwrap(), (768, vec![false, true, false]));
        let kinds = json!({
            "layer_types": ["full_attention", "conv", "full_attention"],
            "block_ffn_dim_multiplier": 1.5, "block_multiple_of": 100,
        });
        assert_eq!(of(kinds).unwrap(), (1000, vec![true, false, true]));
        let plain = json!({ "block_auto_adjust_ff_dim": false });
        assert_eq!(of(plain).unwrap().0, 1000);
        for (bad, named) in [
            (json!({ "layer_types": ["conv", "mamba", "conv"] }), "layer_types"),
            (json!({ "full_attn_idxs": null }), "full_attn_idxs"),
            (json!({ "conv_bias": true }), "conv_bias"),
        ] {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
