//! GLM 4.5 to 4.7: leading dense layers, then experts by sigmoid scores beside a shared one; half of each head rotated.

use bilayer_gguf::Metadata;
use bilayer_graph::{Pairs, Score};

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Experts, Name, Norm, QkNorm,
    checkpoint, decoder, names, tiny,
};

const NAME: &str = "glm4moe";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("rope.dimension_count", 8u32.into()),
            ("leading_dense_block_count", 1u32.into()),
            ("expert_count", 8u32.into()),
            ("expert_used_count", 3u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
            ("expert_shared_count", 1u32.into()),
            ("expert_weights_scale", 1.5f32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::QK_NORMS,
        names::GATED,
        names::EXPERTS,
        names::SHARED_EXPERTS,
        names::MTP,
        &[
            names::SELECTION_BIAS,
            Name::kept("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
            Name::kept("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
            Name::kept("output_norm", "model.norm"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Glm4MoeForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            checkpoint::EXPERTS,
            checkpoint::ROUTED,
        ],
        more,
        absent: &[Absent::number("rope_pct", 0.5)],
        ..Checkpoint::USUAL
    },
};

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.set("expert_gating_func", 2u32);
    checkpoint::decoder(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    let experts = Experts::read(&keys, Weights::Shares)?;
    let experts =
        experts.map(|e| e.scored(&keys, Score::Sigmoid).with_shared(&keys)).transpose()?;
    Config { ffn_norm: "post_attention_norm", qk_norm: Some(QkNorm::HeadIfAny), ..config }
        .with_experts(&keys, experts)
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Score;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::Shared;

    #[test]
    fn the_first_layer_is_dense_and_the_scores_are_sigmoids() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let sparse: Vec<_> = config.layers.iter().map(|layer| layer.experts).collect();
        assert_eq!(sparse, [false, true, true]);
        let experts = config.experts.unwrap();
        assert_eq!((experts.score, experts.scale, experts.normalise), (Score::Sigmoid, 1.5, true));
        assert_eq!(experts.shared, Some(Shared { feed_forward: 32, weighed: false }));
        let softmax = changed(&ARCHITECTURE, &[("expert_gating_func", 1u32.into())]).unwrap();
        assert_eq!(softmax.experts.unwrap().score, Score::Softmax);
    }

    #[test]
    fn blocks_that_predict_further_tokens_are_no_layers() {
        let more = [("block_count", 4u32.into()), ("nextn_predict_layers", 1u32.into())];
        assert_eq!(changed(&ARCHITECTURE, &more).unwrap().layers.len(), 3);
        let all = [("nextn_predict_layers", 3u32.into())];
        let error = changed(&ARCHITECTURE, &all).unwrap_err().to_string();
        assert!(error.contains("glm4moe.nextn_predict_layers"), "{error}");
    }
}
