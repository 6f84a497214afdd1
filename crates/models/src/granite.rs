//! Granite 3, dense, and Granite 4 without Mamba and experts: Llama with scales on embedding, residual and attention and a divisor of the logits.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, Field, Name, Norm, checkpoint, decoder, names, tiny,
};

const NAME: &str = "granite";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.scale", 0.125f32.into()),
            ("embedding_scale", 6f32.into()),
            ("residual_scale", 0.5f32.into()),
            ("logit_scale", 4f32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[names::ENDS, names::ATTENTION_IN_PAIRS, names::GATED, names::NORMS, HALVES],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["GraniteForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::RMS,
            &[
                Field::size(
                    "feed_forward_length",
                    &["shared_intermediate_size", "intermediate_size"],
                ),
                Field::number("attention.scale", &["attention_multiplier"]),
                Field::number("embedding_scale", &["embedding_multiplier"]),
                Field::number("residual_scale", &["residual_multiplier"]),
                Field::number("logit_scale", &["logits_scaling"]),
            ],
        ],
        more: checkpoint::decoder,
        ..Checkpoint::USUAL
    },
};

/// The feed-forward of Granite 4 without experts; gate and up are halves of one matrix.
pub(crate) const HALVES: &[Name] = &[
    Name::row_part("blk.{}.ffn_gate", "model.layers.{}.shared_mlp.input_linear", 0, 2),
    Name::row_part("blk.{}.ffn_up", "model.layers.{}.shared_mlp.input_linear", 1, 2),
    Name::kept("blk.{}.ffn_down", "model.layers.{}.shared_mlp.output_linear"),
];

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    keys.refuse("expert_count", "a mixture of experts")?;
    // As llama.cpp: the key says whether attention rotates.
    let rotates = keys.opt_flag("rope.scaling.finetuned")?.unwrap_or(true);
    let config = Config::read(&keys, Norm::Rms, rotates.then_some(Pairs::Interleaved))?;
    let divisor = keys.needed_positive("logit_scale")?;
    Ok(Config { logit_scale: Some(1.0 / divisor), ..config })
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn attention_rotates_unless_the_file_denies_it() {
        for (key, rotates) in [(None, true), (Some(true), true), (Some(false), false)] {
            let key = key.map(|key| ("rope.scaling.finetuned", key.into()));
            let config = changed(&ARCHITECTURE, key.as_slice()).unwrap();
            assert!(config.layers.iter().all(|layer| layer.rope.is_some() == rotates), "{key:?}");
        }
    }

    #[test]
    fn logits_are_divided() {
        let config = changed(&ARCHITECTURE, &[("logit_scale", 8f32.into())]).unwrap();
        assert_eq!(config.logit_scale, Some(0.125));
        for odd in [0f32, -1.0, f32::NAN] {
            let error = changed(&ARCHITECTURE, &[("logit_scale", odd.into())]).unwrap_err();
            assert!(error.to_string().contains("granite.logit_scale"), "{error}");
        }
    }
}
