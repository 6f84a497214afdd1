//! Qwen 3.5 to 3.8 with experts in every layer beside a weighted shared one.

use bilayer_gguf::{Metadata, Value};

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, Experts, Field, Name, Norm, Shared,
    checkpoint, decoder, limits, names, qwen35, tiny,
};

const NAME: &str = "qwen35moe";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &mixed()),
    names: &[
        names::ENDS,
        qwen35::ATTENTION,
        qwen35::DELTA_NET,
        names::EXPERTS,
        STACKED,
        names::SHARED_EXPERT,
        qwen35::MTP,
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::RMS, qwen35::FIELDS, FIELDS],
        more: qwen35::more,
        absent: &[Absent::number("rope_pct", 0.25)],
        ..Checkpoint::USUAL
    },
};

/// Keys of the smallest metadata: experts, and the mixers of the dense one.
pub(crate) fn mixed() -> Vec<(&'static str, Value)> {
    let experts = [
        ("expert_count", 8u32.into()),
        ("expert_used_count", 3u32.into()),
        ("expert_feed_forward_length", 32u32.into()),
        ("expert_shared_feed_forward_length", 48u32.into()),
    ];
    [&experts[..], &qwen35::mixed()].concat()
}

/// Experts and the shared one.
pub(crate) const FIELDS: &[Field] = &[
    Field::size("expert_count", &["num_experts"]),
    Field::size("expert_used_count", &["num_experts_per_tok"]),
    Field::size("expert_feed_forward_length", &["moe_intermediate_size"]),
    Field::flag("expert_weights_norm", &["norm_topk_prob"]),
    Field::size("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
];

/// Experts that a checkpoint stores as one tensor.
const STACKED: &[Name] = &[
    Name::row_part("blk.{}.ffn_gate_exps.weight", "model.layers.{}.mlp.experts.gate_up_proj", 0, 2),
    Name::row_part("blk.{}.ffn_up_exps.weight", "model.layers.{}.mlp.experts.gate_up_proj", 1, 2),
    Name::kept("blk.{}.ffn_down_exps.weight", "model.layers.{}.mlp.experts.down_proj"),
];

fn config(metadata: &Metadata) -> Result<Config, Error> {
    read(&Keys { metadata, architecture: NAME })
}

/// The configuration with experts.
pub(crate) fn read(keys: &Keys<'_>) -> Result<Config, Error> {
    let config = qwen35::read(keys)?;
    let experts = match Experts::read(keys, Weights::Shares)? {
        None => None,
        Some(experts) => {
            let feed_forward = keys.size("expert_shared_feed_forward_length", 1..=limits::WIDTH)?;
            Some(Experts { shared: Some(Shared { feed_forward, weighed: true }), ..experts })
        }
    };
    config.with_experts(keys, experts)
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn every_layer_has_experts_and_a_shared_one() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        assert!(config.layers.iter().all(|layer| layer.experts));
        let experts = config.experts.unwrap();
        assert!(experts.normalise && experts.shared.unwrap().weighed);
    }
}
