//! Qwen 3 MoE: Qwen 3 with experts in every layer and normalized weights.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, Experts, Norm, QkNorm, checkpoint, decoder, names,
    tiny,
};

const NAME: &str = "qwen3moe";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.key_length", 32u32.into()),
            ("expert_count", 8u32.into()),
            ("expert_used_count", 3u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[names::ENDS, names::ATTENTION, names::QK_NORMS, names::EXPERTS, names::NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Qwen3MoeForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            checkpoint::EXPERTS,
        ],
        more: |draft| {
            // The default of its configuration class; a GGUF file without the key means true.
            if draft.settings.flag(&["norm_topk_prob"])?.is_none() {
                draft.set("expert_weights_norm", false);
            }
            checkpoint::all_sparse(draft)
        },
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let experts = Experts::read(&keys, Weights::Shares)?;
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    Config { qk_norm: Some(QkNorm::Head), ..config }.with_experts(&keys, experts)
}
