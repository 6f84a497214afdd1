//! Qwen 3 Next and Qwen 3 Coder Next: Qwen 3.5 with experts, whose heads of values stay beside their key's head.

use bilayer_gguf::Metadata;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Mixer, Name, Norm, OfKeyHeads, Tiled,
    checkpoint, decoder, names, qwen35, qwen35moe, tiny,
};

const NAME: &str = "qwen3next";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &qwen35moe::mixed()),
    names: &[
        names::ENDS,
        qwen35::ATTENTION,
        DELTA_NET,
        names::EXPERTS,
        names::SHARED_EXPERT,
        qwen35::MTP,
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Qwen3NextForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::RMS, qwen35::FIELDS, qwen35moe::FIELDS],
        more,
        absent: &[Absent::number("rope_pct", 0.25)],
        ..Checkpoint::USUAL
    },
};

/// A gated delta net, of which a checkpoint holds the rows of each head of keys together.
const DELTA_NET: &[Name] = &[
    Name::of_key_heads("blk.{}.attn_qkv", DELTA_IN, OfKeyHeads::Mixed),
    Name::of_key_heads("blk.{}.attn_gate", DELTA_IN, OfKeyHeads::Gate),
    Name::kept("blk.{}.ssm_ba", "model.layers.{}.linear_attn.in_proj_ba"),
    Name::tiled("blk.{}.ssm_a", "model.layers.{}.linear_attn.A_log", Tiled::Decay),
    Name::kept("blk.{}.ssm_dt.bias", "model.layers.{}.linear_attn.dt_bias"),
    Name::squeezed("blk.{}.ssm_conv1d", "model.layers.{}.linear_attn.conv1d"),
    Name::kept("blk.{}.ssm_norm", "model.layers.{}.linear_attn.norm"),
    Name::kept("blk.{}.ssm_out", "model.layers.{}.linear_attn.out_proj"),
];

const DELTA_IN: &str = "model.layers.{}.linear_attn.in_proj_qkvz";

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("decoder_sparse_step", &[1.into()], "experts in some layers only")?;
    draft.refuse("mlp_only_layers", &[Vec::<u32>::new().into()], "layers without experts")?;
    qwen35::more(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let mut config = qwen35moe::read(&Keys { metadata, architecture: NAME })?;
    for layer in &mut config.layers {
        if let Mixer::DeltaNet(sizes) = &mut layer.mixer {
            sizes.neighbours = sizes.value_heads / sizes.key_heads;
            sizes.rates_in_one = true;
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, Mixer, tiny::changed};

    #[test]
    fn heads_of_values_are_neighbours() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        assert!(config.layers.iter().all(|layer| layer.experts));
        let Mixer::DeltaNet(sizes) = config.layers[0].mixer else { panic!("a delta net") };
        assert_eq!((sizes.neighbours, sizes.rates_in_one), (2, true));
        assert_eq!(config.layers[1].mixer, Mixer::Attention);
    }
}
