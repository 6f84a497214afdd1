//! LFM2 and LFM2.5 with experts by sigmoid scores after the first dense layers.

use bilayer_gguf::Metadata;
use bilayer_graph::Score;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Experts, Field, Name, Norm, checkpoint,
    decoder, lfm2, names, tiny,
};

const NAME: &str = "lfm2moe";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let experts = [
            ("leading_dense_block_count", 1u32.into()),
            ("expert_count", 8u32.into()),
            ("expert_used_count", 2u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &[&experts[..], &lfm2::mixed()].concat())
    },
    names: &[names::ENDS, lfm2::NAMES, lfm2::FEED_FORWARD, EXPERTS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Lfm2MoeForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            lfm2::FIELDS,
            checkpoint::EXPERTS,
            checkpoint::ROUTED,
            DENSE,
        ],
        more,
        absent: &[Absent::number("rotary_emb_base", 1e6)],
        ..Checkpoint::USUAL
    },
};

/// The router and its experts.
const EXPERTS: &[Name] = &[
    Name::kept("blk.{}.ffn_gate_inp", "model.layers.{}.feed_forward.gate"),
    Name::kept("blk.{}.exp_probs_b.bias", "model.layers.{}.feed_forward.expert_bias"),
    Name::stacked("blk.{}.ffn_gate_exps", "model.layers.{}.feed_forward.experts.{}.w1"),
    Name::stacked("blk.{}.ffn_up_exps", "model.layers.{}.feed_forward.experts.{}.w3"),
    Name::stacked("blk.{}.ffn_down_exps", "model.layers.{}.feed_forward.experts.{}.w2"),
];

/// The first layers, which are dense.
const DENSE: &[Field] = &[Field::maybe_size("leading_dense_block_count", &["num_dense_layers"])];

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.set("expert_gating_func", 2u32);
    lfm2::mixers(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let experts = Experts::read(&keys, Weights::Shares)?;
    let experts = experts.map(|experts| experts.scored(&keys, Score::Sigmoid));
    lfm2::read(&keys)?.with_experts(&keys, experts)
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, Score, tiny::changed};

    #[test]
    fn experts_follow_the_dense_layers() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let sparse: Vec<_> = config.layers.iter().map(|layer| layer.experts).collect();
        assert_eq!(sparse, [false, true, true]);
        let experts = config.experts.unwrap();
        assert_eq!((experts.score, experts.normalise), (Score::Sigmoid, true));
    }
}
