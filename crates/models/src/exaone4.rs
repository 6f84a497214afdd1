//! EXAONE 4: norms only after, normalized heads; the large model has a window in three layers of four and no RoPE in
//! the fourth.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, Name, Norm, NormAt, QkNorm, checkpoint,
    decoder, names, tiny,
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
            // Three local layers and a global one, spelled out.
            if draft.settings.get(checkpoint::PERIOD).is_some_and(|(_, given)| given == "LLLG") {
                return checkpoint::layer_kinds(draft, |layer| (layer + 1) % PERIOD != 0);
            }
            checkpoint::layers_in_turn(draft, PERIOD as u32)
        },
        absent: &[Absent::size("sliding_window", 4096)],
        ..Checkpoint::USUAL
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
    use serde_json::json;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Settings, draft};

    #[test]
    fn with_a_window_every_fourth_layer_is_global_and_without_rotation() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let local: Vec<_> = config.layers.iter().map(|layer| layer.window.is_some()).collect();
        assert_eq!(local, [true, true, true, false]);
        assert!(config.layers.iter().all(|layer| layer.window.is_some() == layer.rope.is_some()));
        let plain = changed(&ARCHITECTURE, &[("attention.sliding_window", 0u32.into())]).unwrap();
        assert!(plain.layers.iter().all(|layer| layer.window.is_none() && layer.rope.is_some()));
    }

    #[test]
    fn a_checkpoint_may_say_how_often_a_layer_is_global() {
        let windows = |period: serde_json::Value| -> Result<Vec<bool>, crate::Error> {
            let settings = json!({
                "architectures": ["Exaone4ForCausalLM"], "num_hidden_layers": 6, "hidden_size": 64,
                "max_position_embeddings": 128, "num_attention_heads": 4, "vocab_size": 99,
                "intermediate_size": 96, "sliding_window": 8, "sliding_window_pattern": period,
                "rms_norm_eps": 1e-5,
            });
            let (metadata, _) = draft(&ARCHITECTURE, Settings(&settings))?;
            let layers = (ARCHITECTURE.config)(&metadata)?.layers;
            Ok(layers.iter().map(|layer| layer.window.is_some()).collect())
        };
        for (period, expected) in [
            (json!(null), [true, true, true, false, true, true]),
            (json!(4), [true, true, true, false, true, true]),
            (json!(3), [true, true, false, true, true, false]),
            (json!(2), [true, false, true, false, true, false]),
            (json!("LLLG"), [true, true, true, false, true, true]),
        ] {
            assert_eq!(windows(period.clone()).unwrap(), expected, "{period}");
        }
        assert!(windows(json!("LG")).is_err());
    }
}
