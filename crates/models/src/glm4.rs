//! GLM 4 and Z1, dense: norms before and after both parts of a layer, half of each head rotated.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, FeedForward, Name, Norm, NormAt, checkpoint,
    decoder, names, tiny,
};

const NAME: &str = "glm4";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &[("rope.dimension_count", 8u32.into())]),
    names: &[
        names::ENDS,
        names::ATTENTION,
        &[
            Name::kept("blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"),
            Name::kept("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"),
            Name::kept("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
            Name::kept("blk.{}.post_attention_norm", "model.layers.{}.post_self_attn_layernorm"),
            Name::kept("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
            Name::kept("blk.{}.post_ffw_norm", "model.layers.{}.post_mlp_layernorm"),
            Name::kept("output_norm", "model.norm"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Glm4ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more: checkpoint::decoder,
        absent: &[Absent::number("rope_pct", 0.5)],
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Interleaved))?;
    Ok(Config { norm_at: NormAt::Both, feed_forward: FeedForward::GatedInOne, ..config })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, record};

    #[test]
    fn half_of_a_head_rotates_and_both_parts_have_two_norms() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        assert_eq!((config.layers[0].head_dim, config.layers[0].rope.unwrap().dims), (16, 8));
        let outline = Outline::new(Type::F32, &[]);
        record(&config, &outline).unwrap();
        let tensors = outline.tensors();
        let shape = |name: &str| tensors.iter().find(|(n, _)| n == name).map(|(_, e)| &e.shape[..]);
        assert_eq!(shape("blk.0.ffn_up.weight"), Some(&[192, 64][..]));
        for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            assert!(shape(&format!("blk.2.{norm}.weight")).is_some(), "{norm}");
        }
    }
}
