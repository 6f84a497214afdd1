//! SmolLM 3: Llama without RoPE in every fourth layer.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Norm, checkpoint, decoder, names, tiny,
};

const NAME: &str = "smollm3";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &[("block_count", 4u32.into())]),
    names: &[names::ENDS, names::ATTENTION_IN_PAIRS, names::GATED, names::NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["SmolLM3ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more,
        absent: &[Absent::number("rotary_emb_base", 2e6)],
        ..Checkpoint::USUAL
    },
};

/// Refuses checkpoints with another choice, since GGUF does not say which layers use RoPE.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    let usual = [4.into()];
    draft.refuse("no_rope_layer_interval", &usual, "another choice of layers without RoPE")?;
    let layers = draft.needed_size(&["num_hidden_layers"])?;
    let usual: serde_json::Value = (1..=layers).map(|layer| u8::from(layer % 4 != 0)).collect();
    draft.refuse("no_rope_layers", &[usual], "another choice of layers without RoPE")?;
    checkpoint::without_window(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let mut config = Config::read(&keys, Norm::Rms, Some(Pairs::Interleaved))?;
    config.layers.iter_mut().skip(3).step_by(4).for_each(|layer| layer.rope = None);
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn every_fourth_layer_is_without_rotation() {
        let config = changed(&ARCHITECTURE, &[("block_count", 9u32.into())]).unwrap();
        let turning: Vec<_> = config.layers.iter().map(|layer| layer.rope.is_some()).collect();
        assert_eq!(turning, [true, true, true, false, true, true, true, false, true]);
    }
}
