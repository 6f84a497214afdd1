//! Nemotron-H, dense: each layer is Mamba 2, attention without RoPE, or a feed-forward with squared ReLU. Names of tensors and
//! checkpoints are those of both kinds.

use bilayer_gguf::{Metadata, Value};
use bilayer_graph::Activation;
use serde_json::Value as Json;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Error, FeedForward, Field, Mamba2, Mixer, Name, Norm,
    Settings, checkpoint, decoder, limits, mamba2, tiny,
};

const NAME: &str = "nemotron_h";

/// Entry in the table of architectures. Checkpoints of the class become files of the other one, which reads models without
/// experts too.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &mixed()),
    names: NAMES,
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint { classes: &[], ..CHECKPOINT },
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

/// Keys of the smallest metadata: attention, Mamba 2 and a feed-forward.
pub(crate) fn mixed() -> Vec<(&'static str, Value)> {
    vec![
        ("attention.head_count_kv", vec![2u32, 0, 0].into()),
        ("feed_forward_length", vec![0u32, 0, 96].into()),
        ("ssm.conv_kernel", 4u32.into()),
        ("ssm.state_size", 16u32.into()),
        ("ssm.group_count", 2u32.into()),
        ("ssm.time_step_rank", 4u32.into()),
        ("ssm.inner_size", 128u32.into()),
    ]
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    keys.refuse("expert_count", "experts in files of the dense architecture")?;
    read(&keys)
}

/// The configuration without experts.
pub(crate) fn read(keys: &Keys<'_>) -> Result<Config, Error> {
    keys.refuse("rope.scaling.finetuned", "RoPE beside Mamba 2")?;
    // Without it every layer would have attention.
    let blocks = keys.size("block_count", 1..=limits::LAYERS)?;
    keys.each("attention.head_count_kv", blocks, 0..=limits::HEADS)?;
    let config = Config::read_mixed(keys, Norm::Rms, None, Mixer::Mamba2(Mamba2::read(keys)?))?;
    let mut layers = config.layers;
    for (number, layer) in layers.iter_mut().enumerate().filter(|(_, l)| l.feed_forward > 0) {
        if layer.kv_heads > 0 {
            let expected = format!("0 in layer {number}, which has attention");
            return Err(keys.value("feed_forward_length", expected, layer.feed_forward));
        }
        layer.mixer = Mixer::None;
    }
    Ok(Config {
        layers,
        ffn_norm: "attn_norm",
        feed_forward: FeedForward::Plain,
        activation: Activation::SquaredRelu,
        biased: &["ssm_conv1d"],
        ..config
    })
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, Mixer, tiny::changed};

    #[test]
    fn each_layer_is_one_thing() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let [first, second, third] = &config.layers[..] else { panic!("three layers") };
        assert_eq!((first.mixer, first.feed_forward), (Mixer::Attention, 0));
        assert!(matches!(second.mixer, Mixer::Mamba2(sizes) if sizes.groups == 2));
        assert_eq!((third.mixer, third.feed_forward), (Mixer::None, 96));
        let both = [("feed_forward_length", vec![96u32, 0, 96].into())];
        let error = changed(&ARCHITECTURE, &both).unwrap_err().to_string();
        assert!(error.contains("nemotron_h.feed_forward_length"), "{error}");
    }
}
