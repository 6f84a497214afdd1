//! MiniMax M2: queries and keys normalized as rows, a part of each head rotated, experts by sigmoid scores.

use bilayer_gguf::Metadata;
use bilayer_graph::{Pairs, Score};

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Experts, Field, Name, Norm, QkNorm,
    checkpoint, decoder, names, tiny,
};

const NAME: &str = "minimax-m2";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("rope.dimension_count", 8u32.into()),
            ("expert_count", 8u32.into()),
            ("expert_used_count", 3u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::QK_NORMS,
        &[
            Name::kept("blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.gate"),
            Name::kept(
                "blk.{}.exp_probs_b.bias",
                "model.layers.{}.block_sparse_moe.e_score_correction_bias",
            ),
            Name::stacked("blk.{}.ffn_gate_exps", "model.layers.{}.block_sparse_moe.experts.{}.w1"),
            Name::stacked("blk.{}.ffn_down_exps", "model.layers.{}.block_sparse_moe.experts.{}.w2"),
            Name::stacked("blk.{}.ffn_up_exps", "model.layers.{}.block_sparse_moe.experts.{}.w3"),
        ],
        names::NORMS,
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["MiniMaxM2ForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            &[
                Field::size("expert_count", &["num_local_experts"]),
                Field::size("expert_used_count", &["num_experts_per_tok"]),
                Field::size("expert_feed_forward_length", &["intermediate_size"]),
            ],
        ],
        more,
        absent: &[Absent::number("rotary_emb_base", 5e6)],
        ..Checkpoint::USUAL
    },
};

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("use_qk_norm", &[true.into()], "queries and keys without norms")?;
    draft.refuse("qk_norm_type", &["per_layer".into()], "norms of each head")?;
    draft.set("expert_gating_func", 2u32);
    checkpoint::decoder(draft)?;
    if let Some(dims) = draft.settings.size(&["rotary_dim"])? {
        draft.set("rope.dimension_count", dims);
    }
    Ok(())
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    let experts = Experts::read(&keys, Weights::Shares)?;
    let experts = experts.map(|experts| experts.scored(&keys, Score::Sigmoid));
    Config { qk_norm: Some(QkNorm::Row), ..config }.with_experts(&keys, experts)
}

#[cfg(test)]
mod tests {
    use bilayer_graph::Score;

    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn scores_are_sigmoids_whose_weights_are_shares() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let experts = config.experts.unwrap();
        assert_eq!((experts.score, experts.normalise), (Score::Sigmoid, true));
        assert_eq!((config.layers[0].head_dim, config.layers[0].rope.unwrap().dims), (16, 8));
    }
}
