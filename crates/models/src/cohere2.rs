//! Command R7B and Command A: attention and feed-forward in parallel on one layer norm; every fourth layer global and
//! without RoPE.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, FfnInput, Field, Name, Norm, checkpoint,
    decoder, limits, names, tiny,
};

const NAME: &str = "cohere2";

/// The last layer of so many is global.
const PERIOD: usize = 4;

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("block_count", 4u32.into()),
            ("attention.sliding_window", 5u32.into()),
            ("logit_scale", 0.5f32.into()),
        ];
        tiny::decoder(NAME, Norm::LayerGain, &more)
    },
    names: &[names::ENDS, names::ATTENTION, names::GATED, NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Cohere2ForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::LAYER_NORM,
            checkpoint::WINDOW,
            LOGITS,
        ],
        more: |draft| {
            checkpoint::decoder(draft)?;
            checkpoint::layers_in_turn(draft, PERIOD as u32)
        },
        absent: &[Absent::size("sliding_window", 4096)],
        ..Checkpoint::USUAL
    },
};

/// The one norm of a layer, and that before the head.
pub(crate) const NORMS: &[Name] = &[
    Name::kept("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    Name::kept("output_norm", "model.norm"),
];

/// The factor on the logits.
pub(crate) const LOGITS: &[Field] = &[Field::number("logit_scale", &["logit_scale"])];

/// What Cohere's models share: adjacent pairs in RoPE, one norm for both parts of a layer, scaled logits.
pub(crate) fn shared(keys: &Keys<'_>) -> Result<Config, Error> {
    let config = Config::read(keys, Norm::LayerGain, Some(Pairs::Interleaved))?;
    Ok(Config {
        ffn_input: FfnInput::AttentionNorm,
        logit_scale: Some(keys.needed_positive("logit_scale")?),
        ..config
    })
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let mut config = shared(&keys)?;
    keys.size("attention.sliding_window", 1..=limits::CONTEXT)?;
    let rope = config.layers[0].rope;
    config.layers.iter_mut().for_each(|layer| layer.rope = None);
    config.alternate(&keys, PERIOD, rope)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Window;
    use bilayer_quant::Type;
    use serde_json::json;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Outline, Settings, draft, record};

    #[test]
    fn every_fourth_layer_is_global_and_without_rotation() {
        let config = changed(&ARCHITECTURE, &[("block_count", 5u32.into())]).unwrap();
        for (i, layer) in config.layers.iter().enumerate() {
            let window = (i != 3).then_some(Window::Last(5));
            assert_eq!((layer.window, layer.rope.is_some()), (window, i != 3));
        }
        let error = changed(&ARCHITECTURE, &[("attention.sliding_window", 0u32.into())]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("cohere2.attention.sliding_window"), "{error}");
    }

    #[test]
    fn a_layer_has_one_norm() {
        let outline = Outline::new(Type::F32, &[]);
        record(&changed(&ARCHITECTURE, &[]).unwrap(), &outline).unwrap();
        let tensors = outline.tensors();
        let mut names = tensors.iter().map(|(name, _)| name.as_str());
        assert!(names.clone().any(|name| name == "blk.3.attn_norm.weight"));
        assert!(!names.any(|name| name.contains("ffn_norm") || name.contains("attn_norm.bias")));
    }

    #[test]
    fn a_checkpoint_may_say_how_often_a_layer_is_global() {
        let windows = |period: serde_json::Value| -> Result<Vec<bool>, crate::Error> {
            let settings = json!({
                "architectures": ["Cohere2ForCausalLM"], "num_hidden_layers": 6, "hidden_size": 64,
                "max_position_embeddings": 128, "num_attention_heads": 4, "vocab_size": 99,
                "intermediate_size": 96, "sliding_window": 8, "sliding_window_pattern": period,
                "layer_norm_eps": 1e-5, "logit_scale": 0.5,
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
        ] {
            assert_eq!(windows(period.clone()).unwrap(), expected, "{period}");
        }
    }
}
