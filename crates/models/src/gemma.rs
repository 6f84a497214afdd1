//! Gemma: a GELU gate, a scaled embedding, norm gains stored in the checkpoint as gain - 1.

use bilayer_gguf::Metadata;
use bilayer_graph::{Activation, Pairs};

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, Name, Norm, checkpoint, decoder, names, tiny,
};

const NAME: &str = "gemma";

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
            Name::one_more("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
            Name::one_more("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
            Name::one_more("output_norm", "model.norm"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["GemmaForCausalLM"],
        activations: &["gelu_pytorch_tanh", "gelu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more: checkpoint::causal,
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    Ok(Config {
        embedding_scale: Some((config.width as f32).sqrt()),
        activation: Activation::GeluTanh,
        ..config
    })
}
