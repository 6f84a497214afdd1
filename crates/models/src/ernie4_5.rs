//! ERNIE 4.5, dense: Llama whose checkpoints rotate interleaved pairs.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, Norm, checkpoint, decoder, names, tiny,
};

const NAME: &str = "ernie4_5";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &[]),
    names: &[names::ENDS, names::ATTENTION, names::GATED, names::NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more: checkpoint::decoder,
        absent: &[Absent::number("rotary_emb_base", 5e5)],
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    Config::read(&keys, Norm::Rms, Some(Pairs::Interleaved))
}
