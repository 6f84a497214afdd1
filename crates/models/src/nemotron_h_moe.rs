//! Nemotron 3 Nano: Nemotron-H whose feed-forwards are experts by sigmoid scores beside a shared one.

use bilayer_gguf::Metadata;
use bilayer_graph::Score;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{Architecture, Config, Error, Experts, Mixer, Norm, decoder, limits, nemotron_h, tiny};

const NAME: &str = "nemotron_h_moe";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let experts = [
            ("expert_count", 8u32.into()),
            ("expert_used_count", 3u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
            ("expert_shared_feed_forward_length", 48u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &[&experts[..], &nemotron_h::mixed()].concat())
    },
    names: nemotron_h::NAMES,
    ignored: decoder::IGNORED,
    checkpoint: nemotron_h::CHECKPOINT,
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    keys.refuse("moe_latent_size", "experts behind a projection")?;
    let config = nemotron_h::read(&keys)?;
    if keys.opt_size("expert_count", 0..=limits::EXPERTS)?.is_some_and(|count| count > 0) {
        // The other width is a list, one for each layer.
        keys.size("expert_feed_forward_length", 1..=limits::WIDTH)?;
    }
    let Some(experts) = Experts::read(&keys, Weights::Shares)? else { return Ok(config) };
    let experts = experts.scored(&keys, Score::Sigmoid).with_shared(&keys)?;
    let mut layers = config.layers;
    layers.iter_mut().for_each(|layer| layer.experts = layer.mixer == Mixer::None);
    Ok(Config { layers, experts: Some(experts), ..config })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ARCHITECTURE, tiny::changed};
    use crate::{Settings, draft};

    #[test]
    fn layers_without_a_mixer_have_experts() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let sparse: Vec<_> = config.layers.iter().map(|layer| layer.experts).collect();
        assert_eq!(sparse, [false, false, true]);
        let dense = changed(&ARCHITECTURE, &[("expert_count", 0u32.into())]).unwrap();
        assert!(dense.experts.is_none() && dense.layers.iter().all(|layer| !layer.experts));
    }

    #[test]
    fn layers_are_listed_by_name_or_letter() {
        let drafted = |field: &str, layers: serde_json::Value| {
            let settings = json!({
                "architectures": ["NemotronHForCausalLM"], "max_position_embeddings": 64, "hidden_size": 32,
                "num_attention_heads": 4, "vocab_size": 16, "intermediate_size": 48, "layer_norm_epsilon": 1e-5,
                "conv_kernel": 4, "ssm_state_size": 8, "n_groups": 1, "mamba_num_heads": 4, "mamba_head_dim": 8,
                "num_key_value_heads": 2, field: layers,
            });
            draft(&ARCHITECTURE, Settings(&settings)).unwrap().0
        };
        let letters = drafted("hybrid_override_pattern", json!("M*-"));
        for names in [
            json!(["linear_attention", "full_attention", "mlp"]),
            json!(["mamba", "attention", "mlp"]),
        ] {
            let named = drafted("layers_block_type", names);
            assert!(named.iter().eq(letters.iter()));
        }
    }
}
