//! Command R, Command R+ and Aya: attention and feed-forward in parallel on one layer norm, RoPE in every layer; in some models
//! a layer norm of each head of queries and keys.

use bilayer_gguf::Metadata;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, Name, Norm, QkNorm, checkpoint, cohere2,
    decoder, names, tiny,
};

const NAME: &str = "command-r";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::LayerGain, &[("logit_scale", 0.5f32.into())]),
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::GATED,
        cohere2::NORMS,
        &[
            Name::kept("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
            Name::kept("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["CohereForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::LAYER_NORM,
            cohere2::LOGITS,
        ],
        more: checkpoint::decoder,
        absent: &[Absent::number("rotary_emb_base", 5e5)],
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let config = cohere2::shared(&Keys { metadata, architecture: NAME })?;
    Ok(Config { qk_norm: Some(QkNorm::LayerOfHeadIfAny), ..config })
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, tiny::changed};
    use crate::FfnInput;

    #[test]
    fn all_layers_rotate_and_see_everything() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        assert!(config.layers.iter().all(|l| l.window.is_none() && l.rope.is_some()));
        assert_eq!((config.ffn_input, config.logit_scale), (FfnInput::AttentionNorm, Some(0.5)));
        let error = changed(&ARCHITECTURE, &[("logit_scale", 0f32.into())]).unwrap_err();
        assert!(error.to_string().contains("command-r.logit_scale"), "{error}");
    }
}
