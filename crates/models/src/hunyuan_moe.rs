//! Hunyuan with experts: softmax scores, beside a shared expert as wide as the others.

use bilayer_gguf::Metadata;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Error, Experts, Name, Norm, checkpoint, decoder,
    hunyuan_dense, names, tiny,
};

const NAME: &str = "hunyuan-moe";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("expert_count", 4u32.into()),
            ("expert_used_count", 2u32.into()),
            ("expert_shared_feed_forward_length", 48u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        hunyuan_dense::NORMS,
        names::NORMS,
        &[
            Name::kept("blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate.wg"),
            Name::stacked("blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.{}.gate_proj"),
            Name::stacked("blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.{}.up_proj"),
            Name::stacked("blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.{}.down_proj"),
            Name::kept("blk.{}.ffn_gate_shexp", "model.layers.{}.mlp.shared_mlp.gate_proj"),
            Name::kept("blk.{}.ffn_up_shexp", "model.layers.{}.mlp.shared_mlp.up_proj"),
            Name::kept("blk.{}.ffn_down_shexp", "model.layers.{}.mlp.shared_mlp.down_proj"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["HunYuanMoEV1ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS],
        more,
        ..Checkpoint::USUAL
    },
};

/// Sizes of experts are numbers, or lists of one number a layer.
fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    for (key, field) in [("expert_count", "num_experts"), ("expert_used_count", "moe_topk")] {
        let size = draft.settings.size_of_each(field)?;
        draft.set(key, size.ok_or_else(|| checkpoint::missing(&[field]))?);
    }
    let width = draft.needed_size(&["intermediate_size"])?;
    let of_expert = draft.settings.size_of_each("moe_intermediate_size")?.unwrap_or(width);
    draft.set("expert_feed_forward_length", of_expert);
    let shared = draft.settings.size_of_each("num_shared_expert")?.unwrap_or(1);
    draft.set("expert_shared_feed_forward_length", width.saturating_mul(shared));
    checkpoint::decoder(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let experts = Experts::read(&keys, Weights::Shares)?;
    let experts = experts.map(|experts| experts.with_shared(&keys)).transpose()?;
    hunyuan_dense::read(&keys)?.with_experts(&keys, experts)
}
