//! Qwen 3, dense: each head of queries and keys is normalized before RoPE.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, Norm, QkNorm, checkpoint, decoder, names, tiny,
};

const NAME: &str = "qwen3";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    // Heads wider than `width / heads`.
    tiny: || tiny::decoder(NAME, Norm::Rms, &[("attention.key_length", 32u32.into())]),
    names: &[names::ENDS, names::ATTENTION, names::QK_NORMS, names::GATED, names::NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Qwen3ForCausalLM", "Qwen3Model"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more: checkpoint::without_window,
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    Ok(Config { qk_norm: Some(QkNorm::Head), ..config })
}
