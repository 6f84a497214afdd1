//! StableLM 2 and 3B: layer norms, a part of each head rotated; in some models attention and feed-forward in parallel.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, FfnInput, Norm, checkpoint, decoder, names, tiny,
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
    names: &[names::ENDS, names::ATTENTION, names::GATED, names::NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::LAYER_NORM],
        more: |draft| {
            draft.refuse("qk_layernorm", &[false.into()], "a layer norm of queries and keys")?;
            let parallel = draft.settings.flag(&["use_parallel_residual"])?;
            draft.set("use_parallel_residual", parallel.unwrap_or(false));
            checkpoint::decoder(draft)
        },
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Layer, Some(Pairs::Halves))?;
    let ffn_input = match keys.opt_flag("use_parallel_residual")?.unwrap_or(false) {
        true => FfnInput::AttentionNorm,
        false => FfnInput::Attended,
    };
    Ok(Config { ffn_input, ..config })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, record};

    #[test]
    fn a_parallel_layer_has_one_norm() {
        for parallel in [true, false] {
            let config = changed(&ARCHITECTURE, &[("use_parallel_residual", parallel.into())]);
            let config = config.unwrap();
            assert_eq!(config.layers[0].rope.unwrap().dims, 4);
            let outline = Outline::new(Type::F32, &[]);
            record(&config, &outline).unwrap();
            let tensors = outline.tensors();
            let has = |name: &str| tensors.iter().any(|(known, _)| known == name);
            assert_eq!(has("blk.1.ffn_norm.bias"), !parallel);
            assert!(has("blk.1.attn_norm.bias"));
        }
    }
}
