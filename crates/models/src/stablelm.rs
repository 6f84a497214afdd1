//! StableLM 2 and 3B: layer norms, a part of each head rotated; in some models attention and feed-forward in parallel, and
//! a layer norm of each head of queries and keys.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, FfnInput, Name, Norm, QkNorm, checkpoint,
    decoder, names, tiny,
};

const NAME: &str = "stablelm";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [("rope.dimension_count", 4u32.into()), ("use_parallel_residual", true.into())];
        tiny::decoder(NAME, Norm::Layer, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::GATED,
        names::NORMS,
        // A vector for each head.
        &[
            Name::stacked("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_layernorm.norms.{}"),
            Name::stacked("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_layernorm.norms.{}"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::LAYER_NORM],
        more: |draft| {
            let parallel = draft.settings.flag(&["use_parallel_residual"])?;
            draft.set("use_parallel_residual", parallel.unwrap_or(false));
            checkpoint::decoder(draft)
        },
        absent: &[Absent::number("rope_pct", 0.25)],
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Layer, Some(Pairs::Halves))?;
    // llama.cpp's converter writes `use_parallel_residual` = true of checkpoints that do not say, which are not parallel.
    Ok(Config {
        ffn_input: FfnInput::AttendedIfNormed,
        qk_norm: Some(QkNorm::LayerOfHeadIfAny),
        ..config
    })
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Op;
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, record};

    /// Whatever the key says.
    #[test]
    fn layers_without_a_norm_before_the_feed_forward_are_parallel() {
        for parallel in [true, false] {
            let config = changed(&ARCHITECTURE, &[("use_parallel_residual", parallel.into())]);
            let config = config.unwrap();
            assert_eq!(config.layers[0].rope.unwrap().dims, 4);
            let outline = Outline::new(Type::F32, &["blk.1.ffn_norm.weight"]);
            let graph = record(&config, &outline).unwrap();
            let tensors = outline.tensors();
            let has = |name: &str| tensors.iter().any(|(known, _)| known == name);
            for (layer, is_parallel) in [(0, true), (1, false), (2, true)] {
                assert!(has(&format!("blk.{layer}.attn_norm.bias")));
                assert_eq!(has(&format!("blk.{layer}.ffn_norm.bias")), !is_parallel, "{layer}");
            }
            let norms = graph.nodes.iter().filter(|node| matches!(node.op, Op::LayerNorm { .. }));
            assert_eq!(norms.count(), 5);
        }
    }
}
