//! Nemotron 3 Nano: Nemotron-H whose feed-forwards are experts by sigmoid scores beside a shared one.

use bilayer_gguf::{Metadata, Value};
use bilayer_graph::Score;
use serde_json::Value as Json;

use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Error, Experts, Field, Mixer, Name, Norm, Settings,
    checkpoint, decoder, limits, mamba2, nemotron_h, tiny,
};

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
    names: NAMES,
    ignored: decoder::IGNORED,
    checkpoint: CHECKPOINT,
};

/// How checkpoints of either kind are converted.
pub(crate) const CHECKPOINT: Checkpoint = Checkpoint {
    classes: &["NemotronHForCausalLM"],
    activations: &[],
    fields: &[FIELDS, checkpoint::ROUTED],
    more,
    ..Checkpoint::USUAL
};

/// All tensors.
pub(crate) const NAMES: &[&[Name]] = &[mamba2::NAMES, MIXERS];

/// Those of attention and of feed-forwards.
const MIXERS: &[Name] = &[
    Name::kept("blk.{}.attn_q", "backbone.layers.{}.mixer.q_proj"),
    Name::kept("blk.{}.attn_k", "backbone.layers.{}.mixer.k_proj"),
    Name::kept("blk.{}.attn_v", "backbone.layers.{}.mixer.v_proj"),
    Name::kept("blk.{}.attn_output", "backbone.layers.{}.mixer.o_proj"),
    Name::kept("blk.{}.ffn_up", "backbone.layers.{}.mixer.up_proj"),
    Name::kept("blk.{}.ffn_down", "backbone.layers.{}.mixer.down_proj"),
    Name::kept("blk.{}.ffn_gate_inp", "backbone.layers.{}.mixer.gate"),
    Name::kept("blk.{}.exp_probs_b.bias", "backbone.layers.{}.mixer.gate.e_score_correction_bias"),
    Name::stacked("blk.{}.ffn_up_exps", "backbone.layers.{}.mixer.experts.{}.up_proj"),
    Name::stacked("blk.{}.ffn_down_exps", "backbone.layers.{}.mixer.experts.{}.down_proj"),
    Name::kept("blk.{}.ffn_up_shexp", "backbone.layers.{}.mixer.shared_experts.up_proj"),
    Name::kept("blk.{}.ffn_down_shexp", "backbone.layers.{}.mixer.shared_experts.down_proj"),
];

const FIELDS: &[Field] = &[
    Field::size("context_length", &["max_position_embeddings"]),
    Field::size("embedding_length", &["hidden_size"]),
    Field::size("attention.head_count", &["num_attention_heads"]),
    Field::size("vocab_size", &["vocab_size"]),
    Field::number("attention.layer_norm_epsilon", &["layer_norm_epsilon"]),
    Field::maybe_size("expert_count", &["n_routed_experts"]),
    Field::maybe_size("expert_used_count", &["num_experts_per_tok"]),
    Field::maybe_size("expert_feed_forward_length", &["moe_intermediate_size"]),
    Field::maybe_size(
        "expert_shared_feed_forward_length",
        &["moe_shared_expert_intermediate_size"],
    ),
    Field::flag("expert_weights_norm", &["norm_topk_prob"]),
    Field::size("ssm.conv_kernel", &["conv_kernel"]),
    Field::size("ssm.state_size", &["ssm_state_size"]),
    Field::size("ssm.group_count", &["n_groups"]),
    Field::size("ssm.time_step_rank", &["mamba_num_heads"]),
];

/// The kinds of layers, by letter.
const PATTERN: &str = "hybrid_override_pattern";
/// The kinds of layers, by name; it takes precedence.
const KINDS: &str = "layers_block_type";

/// The letter of each layer.
fn pattern(settings: Settings<'_>) -> Result<String, Error> {
    let Some((_, listed)) = settings.get(&[KINDS]) else {
        let pattern = settings.text(&[PATTERN])?.ok_or_else(|| checkpoint::missing(&[PATTERN]))?;
        return Ok(pattern.to_owned());
    };
    let letter = |kind: &Json| match kind.as_str()? {
        "mamba" | "linear_attention" => Some('M'),
        "attention" | "full_attention" => Some('*'),
        "mlp" => Some('-'),
        "moe" => Some('E'),
        _ => None,
    };
    let letters = listed.as_array().and_then(|kinds| kinds.iter().map(letter).collect());
    letters.ok_or_else(|| Error::Field {
        field: KINDS.to_owned(),
        expected: "a list of linear_attention, full_attention, mlp and moe".to_owned(),
        found: listed.to_string(),
    })
}

/// Refuses bounds on time steps. transformers has a lower one too; that of published models, 0.001, changes no result.
fn without_bounds(draft: &Draft<'_>) -> Result<(), Error> {
    mamba2::without_bounds(draft)?;
    for name in ["time_step_min", "mamba_dt_min"] {
        if draft.settings.number(&[name])?.is_some_and(|least| least > 0.001) {
            draft.refuse(name, &[], "a larger lower bound on time steps than 0.001")?;
        }
    }
    Ok(())
}

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    for bias in ["attention_bias", "mamba_proj_bias", "mlp_bias", "use_bias"] {
        draft.refuse(bias, &[false.into()], "biases")?;
    }
    draft.refuse("use_conv_bias", &[true.into()], "a convolution without a bias")?;
    draft.refuse("mlp_hidden_act", &["relu2".into()], "another activation than squared ReLU")?;
    draft.refuse("moe_latent_size", &[], "experts behind a projection")?;
    draft.refuse("n_group", &[1.into()], "groups of experts")?;
    without_bounds(draft)?;
    let heads = draft.needed_size(&["num_key_value_heads"])?;
    let pattern = pattern(draft.settings)?;
    let (dense, sparse) = ("intermediate_size", "moe_intermediate_size");
    let mut layers = Vec::new();
    for kind in pattern.chars() {
        layers.push(match kind {
            'M' => [0, 0],
            '*' => [heads, 0],
            '-' => [0, draft.needed_size(&[dense])?],
            'E' => [0, draft.needed_size(&[sparse])?],
            _ => {
                let expected = "a text of M, *, - and E".to_owned();
                let (field, found) = (PATTERN.to_owned(), pattern);
                return Err(Error::Field { field, expected, found });
            }
        });
    }
    if pattern.contains('E') && pattern.contains('-') {
        for name in [KINDS, PATTERN] {
            draft.refuse(name, &[], "dense feed-forwards beside experts")?;
        }
    }
    if !pattern.contains('E') {
        draft.set("expert_count", 0u32);
    }
    draft.set("block_count", layers.len() as u32);
    let [kv_heads, widths] = [0, 1].map(|i| layers.iter().map(|l| l[i]).collect::<Vec<u32>>());
    draft.set("attention.head_count_kv", kv_heads);
    draft.set("feed_forward_length", widths);
    draft.set("expert_gating_func", 2u32);
    let mamba = draft.needed_size(&["mamba_num_heads"])?;
    let inner = mamba.checked_mul(draft.needed_size(&["mamba_head_dim"])?);
    draft.set("ssm.inner_size", inner.unwrap_or(u32::MAX));
    let head_dim = draft.head_dim()?;
    draft.set("attention.key_length", head_dim);
    draft.set("attention.value_length", head_dim);
    draft.set("rope.dimension_count", head_dim);
    draft.set("rope.scaling.finetuned", Value::Bool(false));
    Ok(())
}

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
