//! Qwen 2 and 2.5 and models distilled into them: Llama's layer with biases on queries, keys and values.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{Architecture, Checkpoint, Config, Error, Norm, checkpoint, decoder, names, tiny};

const NAME: &str = "qwen2";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &[]),
    names: &[names::ENDS, names::ATTENTION, names::GATED, names::NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Qwen2ForCausalLM", "Qwen2Model"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more: checkpoint::without_window,
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    Ok(Config { biased: &["attn_q", "attn_k", "attn_v"], ..config })
}
