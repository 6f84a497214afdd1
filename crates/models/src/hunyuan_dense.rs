//! Hunyuan, dense: queries and keys normalized after rotation.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, Name, Norm, QkNorm, checkpoint, decoder, names, tiny,
};

const NAME: &str = "hunyuan-dense";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &[]),
    names: &[names::ENDS, names::ATTENTION, NORMS, names::GATED, names::NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["HunYuanDenseV1ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more: checkpoint::decoder,
        ..Checkpoint::USUAL
    },
};

/// Norms of queries and keys.
pub(crate) const NORMS: &[Name] = &[
    Name::kept("blk.{}.attn_q_norm", "model.layers.{}.self_attn.query_layernorm"),
    Name::kept("blk.{}.attn_k_norm", "model.layers.{}.self_attn.key_layernorm"),
];

fn config(metadata: &Metadata) -> Result<Config, Error> {
    read(&Keys { metadata, architecture: NAME })
}

/// What the family shares.
pub(crate) fn read(keys: &Keys<'_>) -> Result<Config, Error> {
    let config = Config::read(keys, Norm::Rms, Some(Pairs::Halves))?;
    Ok(Config { qk_norm: Some(QkNorm::HeadAfterRope), ..config })
}
