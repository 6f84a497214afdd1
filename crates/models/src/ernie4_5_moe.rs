//! ERNIE 4.5 with experts: softmax scores with a bias for the choice, after leading dense layers, beside shared experts.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Experts, Field, Name, Norm, checkpoint,
    decoder, names, tiny,
};

const NAME: &str = "ernie4_5-moe";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("block_count", 4u32.into()),
            ("leading_dense_block_count", 1u32.into()),
            ("interleave_moe_layer_step", 2u32.into()),
            ("expert_count", 8u32.into()),
            ("expert_used_count", 3u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
            ("expert_shared_count", 2u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::GATED,
        names::EXPERTS,
        names::SHARED_EXPERTS,
        names::NORMS,
        &[Name::squeezed(
            "blk.{}.exp_probs_b.bias",
            "model.layers.{}.mlp.moe_statics.e_score_correction_bias",
        )],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Ernie4_5_MoeForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            &[
                Field::size("expert_count", &["moe_num_experts"]),
                Field::size("expert_used_count", &["moe_k"]),
                Field::size("expert_feed_forward_length", &["moe_intermediate_size"]),
                Field::maybe_size("expert_shared_count", &["moe_num_shared_experts"]),
                Field::maybe_size("leading_dense_block_count", &["moe_layer_start_index"]),
                Field::maybe_size("interleave_moe_layer_step", &["moe_layer_interval"]),
            ],
        ],
        more,
        absent: &[Absent::number("rotary_emb_base", 5e5)],
        ..Checkpoint::USUAL
    },
};

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    let last = draft.needed_size(&["num_hidden_layers"])?.saturating_sub(1);
    let ends = [(-1).into(), last.into()];
    draft.refuse("moe_layer_end_index", &ends, "dense layers after those with experts")?;
    let shared = draft.settings.size(&["moe_num_shared_experts"])?.unwrap_or(0);
    let width = draft.needed_size(&["moe_intermediate_size"])?;
    draft.set("expert_shared_feed_forward_length", width.saturating_mul(shared));
    checkpoint::decoder(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Interleaved))?;
    let experts = Experts::read(&keys, Weights::Shares)?;
    let experts = experts.map(|experts| experts.with_shared(&keys)).transpose()?;
    config.with_experts(&keys, experts)?.interleaved(&keys)
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, tiny::changed};

    #[test]
    fn experts_come_in_steps_after_dense_layers() {
        let sparse = |more: &[(&str, bilayer_gguf::Value)]| -> Vec<bool> {
            let config = changed(&ARCHITECTURE, more).unwrap();
            config.layers.iter().map(|layer| layer.experts).collect()
        };
        assert_eq!(sparse(&[]), [false, true, false, true]);
        let every = [("interleave_moe_layer_step", 1u32.into())];
        assert_eq!(sparse(&every), [false, true, true, true]);
        let late = [("leading_dense_block_count", 2u32.into())];
        assert_eq!(sparse(&late), [false, false, false, true]);
    }
}
