//! Granite 4: Mamba 2 layers and attention without RoPE, or attention alone with it; experts beside a shared one or none;
//! Granite's factors.

use bilayer_gguf::{Metadata, Value};
use bilayer_graph::Pairs;

use crate::experts::Weights;
use crate::granite::{self, HALVES};
use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Error, Experts, Field, Mamba2, Mixer, Name, Norm,
    Settings, checkpoint, decoder, mamba2, names, tiny,
};

const NAME: &str = "granitehybrid";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.head_count_kv", vec![0u32, 2, 0].into()),
            ("attention.scale", 0.125f32.into()),
            ("embedding_scale", 6f32.into()),
            ("residual_scale", 0.5f32.into()),
            ("logit_scale", 4f32.into()),
            ("ssm.conv_kernel", 4u32.into()),
            ("ssm.state_size", 16u32.into()),
            ("ssm.group_count", 1u32.into()),
            ("ssm.time_step_rank", 4u32.into()),
            ("ssm.inner_size", 128u32.into()),
            ("expert_count", 4u32.into()),
            ("expert_used_count", 2u32.into()),
            ("expert_shared_feed_forward_length", 32u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[names::ENDS, names::ATTENTION_IN_PAIRS, names::NORMS, MAMBA, EXPERTS, HALVES],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["GraniteMoeHybridForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::RMS, FIELDS],
        more,
        other: as_granite,
        ..Checkpoint::USUAL
    },
};

/// A Mamba 2 mixer.
const MAMBA: &[Name] = &[
    Name::kept("blk.{}.ssm_in", "model.layers.{}.mamba.in_proj"),
    Name::squeezed("blk.{}.ssm_conv1d", "model.layers.{}.mamba.conv1d"),
    Name::kept("blk.{}.ssm_dt.bias", "model.layers.{}.mamba.dt_bias"),
    Name::decay("blk.{}.ssm_a", "model.layers.{}.mamba.A_log"),
    Name::column("blk.{}.ssm_d", "model.layers.{}.mamba.D"),
    Name::kept("blk.{}.ssm_norm", "model.layers.{}.mamba.norm"),
    Name::kept("blk.{}.ssm_out", "model.layers.{}.mamba.out_proj"),
];

/// The router, its experts and the shared one, which is the feed-forward of a model without experts ([`HALVES`]); gate and
/// up are halves of one matrix.
const EXPERTS: &[Name] = &[
    Name::kept("blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.router.layer"),
    Name::row_part("blk.{}.ffn_gate_exps", "model.layers.{}.block_sparse_moe.input_linear", 0, 2),
    Name::row_part("blk.{}.ffn_up_exps", "model.layers.{}.block_sparse_moe.input_linear", 1, 2),
    Name::kept("blk.{}.ffn_down_exps", "model.layers.{}.block_sparse_moe.output_linear"),
    Name::row_part("blk.{}.ffn_gate_shexp", "model.layers.{}.shared_mlp.input_linear", 0, 2),
    Name::row_part("blk.{}.ffn_up_shexp", "model.layers.{}.shared_mlp.input_linear", 1, 2),
    Name::kept("blk.{}.ffn_down_shexp", "model.layers.{}.shared_mlp.output_linear"),
];

const FIELDS: &[Field] = &[
    Field::maybe_size("expert_count", &["num_local_experts"]),
    Field::maybe_size("expert_used_count", &["num_experts_per_tok"]),
    Field::size("expert_shared_feed_forward_length", &["shared_intermediate_size"]),
    Field::number("attention.scale", &["attention_multiplier"]),
    Field::number("embedding_scale", &["embedding_multiplier"]),
    Field::number("residual_scale", &["residual_multiplier"]),
    Field::number("logit_scale", &["logits_scaling"]),
    Field::size("ssm.conv_kernel", &["mamba_d_conv"]),
    Field::size("ssm.state_size", &["mamba_d_state"]),
    Field::size("ssm.group_count", &["mamba_n_groups"]),
    Field::size("ssm.time_step_rank", &["mamba_n_heads"]),
];

/// [`crate::granite`] for a checkpoint of this class with its layers: attention that rotates, and no experts. llama.cpp's
/// converter names such models `granite`.
///
/// # Errors
/// [`Error::Field`].
fn as_granite(settings: Settings<'_>) -> Result<Option<&'static Architecture>, Error> {
    let is_dense = settings.size(&["num_local_experts"])?.unwrap_or(0) == 0;
    let rotates = settings.text(&["position_embedding_type"])? == Some("rope");
    let has_mamba = kinds(settings)?.is_none_or(|kinds| kinds.iter().any(|kind| kind % 2 == 0));
    Ok((is_dense && rotates && !has_mamba).then_some(&granite::ARCHITECTURE))
}

/// The kind of each layer, odd for attention; `None` if the checkpoint does not list them.
fn kinds(settings: Settings<'_>) -> Result<Option<Vec<usize>>, Error> {
    // Both names of each kind, the newer last.
    checkpoint::kinds(settings, &["mamba", "attention", "linear_attention", "full_attention"])
}

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    mamba2::without_bounds(draft)?;
    let rotates = draft.settings.text(&["position_embedding_type"])? == Some("rope");
    draft.refuse("mamba_conv_bias", &[true.into()], "a convolution without a bias")?;
    draft.refuse("mamba_proj_bias", &[false.into()], "biases of Mamba 2")?;
    draft.refuse("attention_bias", &[false.into()], "biases of attention")?;
    let is_dense = draft.settings.size(&["num_local_experts"])?.unwrap_or(0) == 0;
    let width = if is_dense { "shared_intermediate_size" } else { "intermediate_size" };
    draft.set("feed_forward_length", draft.needed_size(&[width])?);
    let heads = draft.needed_size(&["mamba_n_heads"])?;
    let inner = heads.checked_mul(draft.needed_size(&["mamba_d_head"])?);
    draft.set("ssm.inner_size", inner.unwrap_or(u32::MAX));
    let heads = draft.needed_size(&["num_key_value_heads"])?;
    let kinds = kinds(draft.settings)?.ok_or_else(|| checkpoint::missing(&["layer_types"]))?;
    let heads: Vec<u32> = kinds.iter().map(|&kind| heads * (kind % 2) as u32).collect();
    draft.set("attention.head_count_kv", heads);
    checkpoint::decoder(draft)?;
    draft.set("rope.scaling.finetuned", Value::Bool(rotates));
    Ok(())
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    // As llama.cpp: the key says whether attention rotates.
    let rotates = keys.opt_flag("rope.scaling.finetuned")?.unwrap_or(false);
    let other = Mixer::Mamba2(Mamba2::read(&keys)?);
    let pairs = rotates.then_some(Pairs::Interleaved);
    let config = Config::read_mixed(&keys, Norm::Rms, pairs, other)?;
    let experts = Experts::read(&keys, Weights::Shares)?;
    let experts = experts.map(|experts| experts.with_shared(&keys)).transpose()?;
    let logit_scale = Some(1.0 / keys.needed_positive("logit_scale")?);
    Config { logit_scale, biased: &["ssm_conv1d"], ..config }.with_experts(&keys, experts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ARCHITECTURE, Mamba2, Mixer, NAME, tiny::changed};
    use crate::{Settings, draft, of_checkpoint};

    #[test]
    fn layers_without_key_value_heads_are_mamba() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let sizes = Mamba2 { heads: 4, head_dim: 32, groups: 1, state_dim: 16, taps: 4 };
        let mamba = Mixer::Mamba2(sizes);
        let mixers: Vec<_> = config.layers.iter().map(|layer| layer.mixer).collect();
        assert_eq!(mixers, [mamba, Mixer::Attention, mamba]);
        let dense = changed(&ARCHITECTURE, &[("expert_count", 0u32.into())]).unwrap();
        assert!(dense.experts.is_none());
        for (rotates, key) in [(false, None), (false, Some(false)), (true, Some(true))] {
            let key = key.map(|key| ("rope.scaling.finetuned", key.into()));
            let config = changed(&ARCHITECTURE, key.as_slice()).unwrap();
            assert_eq!(config.layers[1].rope.is_some(), rotates);
        }
    }

    #[test]
    fn odd_sizes_are_refused_by_key() {
        let cases = [
            ("ssm.inner_size", 130u32.into()),
            ("ssm.group_count", 3u32.into()),
            ("ssm.group_count", 0u32.into()),
            ("ssm.state_size", 2048u32.into()),
            ("ssm.conv_kernel", 1u32.into()),
            ("ssm.time_step_rank", 0u32.into()),
            ("rope.scaling.finetuned", 1u32.into()),
        ];
        for case in cases {
            let error = changed(&ARCHITECTURE, std::slice::from_ref(&case)).unwrap_err();
            assert!(error.to_string().contains(case.0), "{error}");
        }
    }

    /// A checkpoint of the class with layers of `kinds`.
    fn settings(kinds: [&str; 3], positions: &str, experts: u32) -> serde_json::Value {
        json!({
            "architectures": ["GraniteMoeHybridForCausalLM"], "num_hidden_layers": 3, "hidden_size": 64,
            "max_position_embeddings": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
            "vocab_size": 99, "rms_norm_eps": 1e-5, "shared_intermediate_size": 96, "mamba_d_conv": 4,
            "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_d_head": 32,
            "attention_multiplier": 0.5, "embedding_multiplier": 2.0, "residual_multiplier": 0.5,
            "logits_scaling": 2.0, "layer_types": kinds, "position_embedding_type": positions,
            "time_step_limit": [0.0, {"__float__": "Infinity"}], "num_local_experts": experts,
        })
    }

    /// As llama.cpp's converter names them.
    #[test]
    fn models_without_mamba_and_experts_are_granite() {
        let attention = ["attention"; 3];
        for (kinds, positions, experts, expected) in [
            (attention, "rope", 0, "granite"),
            (["full_attention"; 3], "rope", 0, "granite"),
            (attention, "rope", 4, "granitehybrid"),
            (attention, "nope", 0, "granitehybrid"),
            (["attention", "mamba", "attention"], "rope", 0, "granitehybrid"),
        ] {
            let settings = settings(kinds, positions, experts);
            let architecture = of_checkpoint(Settings(&settings)).unwrap();
            assert_eq!(architecture.name, expected, "{kinds:?}, {positions}, {experts}");
        }
        let settings = settings(attention, "rope", 0);
        let of = |architecture: &'static crate::Architecture| {
            let (metadata, _) = draft(architecture, Settings(&settings)).unwrap();
            let config = (architecture.config)(&metadata).unwrap();
            crate::Config { architecture: NAME, biased: &[], ..config }
        };
        assert_eq!(of(of_checkpoint(Settings(&settings)).unwrap()), of(&ARCHITECTURE));
    }

    /// Both names of each kind of layer, and attention alone, which rotates.
    #[test]
    fn kinds_and_positions_are_those_of_the_checkpoint() {
        let config = |kinds: [&str; 3], positions: &str| {
            let settings = settings(kinds, positions, 0);
            let (metadata, _) = draft(&ARCHITECTURE, Settings(&settings)).unwrap();
            (ARCHITECTURE.config)(&metadata).unwrap()
        };
        let old = config(["mamba", "attention", "mamba"], "nope");
        assert_eq!(old, config(["linear_attention", "full_attention", "linear_attention"], "nope"));
        assert!(old.layers.iter().all(|layer| layer.rope.is_none()));
        let dense = config(["attention"; 3], "rope");
        let rotates = |layer: &crate::Layer| layer.rope.is_some_and(|rope| rope.dims == 16);
        assert!(dense.layers.iter().all(|l| l.mixer == Mixer::Attention && rotates(l)));
    }
}
