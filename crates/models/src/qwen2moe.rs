//! Qwen 1.5 and 2 MoE: Qwen 2 with experts in every layer, unnormalized weights, and a weighted shared expert.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Error, Experts, Field, Norm, Shared, checkpoint, decoder,
    limits, names, tiny,
};

const NAME: &str = "qwen2moe";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("expert_count", 6u32.into()),
            ("expert_used_count", 2u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
            ("expert_shared_feed_forward_length", 64u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[names::ENDS, names::ATTENTION, names::EXPERTS, names::SHARED_EXPERT, names::NORMS],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Qwen2MoeForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            checkpoint::EXPERTS,
            &[Field::size(
                "expert_shared_feed_forward_length",
                &["shared_expert_intermediate_size"],
            )],
        ],
        more: |draft| {
            draft.refuse("qkv_bias", &[true.into()], "attention without biases")?;
            checkpoint::all_sparse(draft)
        },
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    let experts = match Experts::read(&keys, Weights::Scores)? {
        None => None,
        Some(experts) => {
            let feed_forward = keys.size("expert_shared_feed_forward_length", 1..=limits::WIDTH)?;
            let shared = Some(Shared { feed_forward, weighed: true });
            Some(Experts { shared, ..experts })
        }
    };
    Config { biased: &["attn_q", "attn_k", "attn_v"], ..config }.with_experts(&keys, experts)
}
