//! Muse Glimmer: a gate on attention, a normed embedding, norms after both parts with an epsilon of their own; every
//! fourth layer global and without RoPE.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Architecture, AttentionGate, Checkpoint, Config, Draft, Error, Field, Name, Norm, NormAt,
    QkNorm, checkpoint, decoder, limits, names, tiny,
};

const NAME: &str = "muse-glimmer";

/// The last layer of so many is global.
const PERIOD: usize = 4;
/// Epsilon of the norms after attention and feed-forward; files do not say it.
const OUTPUT_EPS: f32 = 1e-8;

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("block_count", 4u32.into()),
            ("attention.sliding_window", 5u32.into()),
            ("logit_scale", 0.5f32.into()),
            ("final_logit_softcapping", 20f32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION_IN_PAIRS,
        names::QK_NORMS, // which are made of a setting
        names::GATED,
        &[
            Name::kept("blk.{}.attn_gate", "model.layers.{}.self_attn.gate_proj"),
            Name::one_more("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
            Name::one_more(
                "blk.{}.post_attention_norm",
                "model.layers.{}.post_attention_layernorm",
            ),
            Name::one_more("blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"),
            Name::one_more("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
            Name::kept("output_norm", "model.norm"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["MuseGlimmerForConditionalGeneration", "MuseGlimmerForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            checkpoint::WINDOW,
            &[
                Field::number("logit_scale", &["output_multiplier"]),
                Field::maybe_number("final_logit_softcapping", &["final_logit_softcapping"]),
            ],
        ],
        more,
        ..Checkpoint::USUAL
    },
};

/// The norms of queries and keys have no gains in a checkpoint: those of queries are one factor.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("post_norm_eps", &[1e-8.into()], "another epsilon of the norms after")?;
    checkpoint::decoder(draft)?;
    checkpoint::layer_kinds(draft, |layer| (layer + 1) % PERIOD != 0)?;
    let factor = draft.settings.number(&["qk_scale_factor"])?.unwrap_or(1.0);
    let head_dim = draft.head_dim()? as usize;
    for layer in 0..draft.needed_size(&["num_hidden_layers"])? {
        for (stem, gain) in [("attn_q_norm", factor), ("attn_k_norm", 1.0)] {
            draft.make(format!("blk.{layer}.{stem}.weight"), vec![gain; head_dim]);
        }
    }
    Ok(())
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Interleaved))?;
    keys.size("attention.sliding_window", 1..=limits::CONTEXT)?;
    let mut config = Config {
        embedding_norm: true,
        norm_at: NormAt::Both,
        output_norm_eps: OUTPUT_EPS,
        qk_norm: Some(QkNorm::Head),
        attention_gate: Some(AttentionGate::Alone),
        logit_scale: keys.positive("logit_scale")?,
        ..config
    };
    let rope = config.layers[0].rope;
    config.layers.iter_mut().for_each(|layer| layer.rope = None);
    config.alternate(&keys, PERIOD, rope)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Window;

    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn every_fourth_layer_is_global_and_the_norms_after_have_their_epsilon() {
        let config = changed(&ARCHITECTURE, &[("block_count", 5u32.into())]).unwrap();
        for (i, layer) in config.layers.iter().enumerate() {
            let window = (i != 3).then_some(Window::Last(5));
            assert_eq!((layer.window, layer.rope.is_some()), (window, i != 3), "{i}");
        }
        assert_eq!((config.norm_eps, config.output_norm_eps), (1e-5, 1e-8));
        let error = changed(&ARCHITECTURE, &[("attention.sliding_window", 0u32.into())]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("muse-glimmer.attention.sliding_window"), "{error}");
    }
}
