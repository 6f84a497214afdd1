//! EXAONE 4: norms only after, normalized heads; the large model has a window in three layers of four and no RoPE in
//! the fourth.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, Name, Norm, NormAt, QkNorm, checkpoint, decoder,
    names, tiny,
};

const NAME: &str = "exaone4";

/// The last layer of so many is global in models with a window.
const PERIOD: usize = 4;

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [("block_count", 4u32.into()), ("attention.sliding_window", 5u32.into())];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::QK_NORMS,
        names::GATED,
        &[
            Name::kept("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
            Name::kept("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
            Name::kept("output_norm", "model.norm"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Exaone4ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS, checkpoint::WINDOW],
        more: |draft| {
            checkpoint::decoder(draft)?;
            if draft.settings.size(&["sliding_window"])?.is_none() {
                return Ok(());
            }
            checkpoint::layer_kinds(draft, |layer| (layer + 1) % PERIOD != 0)
        },
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    let mut config = Config { norm_at: NormAt::After, qk_norm: Some(QkNorm::Head), ..config };
    if config.layers[0].window.is_some() {
        let rope = config.layers[0].rope;
        config.layers.iter_mut().for_each(|layer| layer.rope = None);
        config.alternate(&keys, PERIOD, rope)?;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn with_a_window_every_fourth_layer_is_global_and_without_rotation() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let local: Vec<_> = config.layers.iter().map(|layer| layer.window.is_some()).collect();
        assert_eq!(local, [true, true, true, false]);
        assert!(config.layers.iter().all(|layer| layer.window.is_some() == layer.rope.is_some()));
        let plain = changed(&ARCHITECTURE, &[("attention.sliding_window", 0u32.into())]).unwrap();
        assert!(plain.layers.iter().all(|layer| layer.window.is_none() && layer.rope.is_some()));
    }
}
