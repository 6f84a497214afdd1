//! Seed-OSS: Llama with biases on q, k and v, by default.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, Name, Norm, checkpoint, decoder, names, tiny,
};

const NAME: &str = "seed_oss";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &[]),
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::GATED,
        &[
            Name::kept("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
            Name::kept("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
            Name::kept("output_norm", "model.norm"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["SeedOssForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more: checkpoint::decoder,
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    Ok(Config { ffn_norm: "post_attention_norm", ..config })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, record};

    #[test]
    fn the_norm_before_the_feed_forward_has_the_name_of_one_after() {
        let outline = Outline::new(Type::F32, &["blk.0.attn_k.bias"]);
        record(&changed(&ARCHITECTURE, &[]).unwrap(), &outline).unwrap();
        let tensors = outline.tensors();
        let names: Vec<_> = tensors.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"blk.1.post_attention_norm.weight"), "{names:?}");
        assert!(names.contains(&"blk.0.attn_k.bias") && !names.contains(&"blk.1.ffn_norm.weight"));
    }
}
