//! Mamba 2: a recurrence in every layer, no attention and no feed-forward.

use bilayer_gguf::Metadata;
use serde_json::json;

use crate::keys::Keys;
use crate::{
    Architecture, Checkpoint, Config, Draft, Error, Field, Mamba2, Mixer, Name, Norm, decoder,
    limits, tiny,
};

const NAME: &str = "mamba2";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("feed_forward_length", 0u32.into()),
            ("attention.head_count", 0u32.into()),
            ("attention.head_count_kv", 0u32.into()),
            ("ssm.conv_kernel", 4u32.into()),
            ("ssm.state_size", 16u32.into()),
            ("ssm.group_count", 2u32.into()),
            ("ssm.time_step_rank", 4u32.into()),
            ("ssm.inner_size", 128u32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[NAMES],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Mamba2ForCausalLM"],
        activations: &["silu"],
        fields: &[FIELDS],
        more,
        ..Checkpoint::USUAL
    },
};

/// What every model with these mixers has.
pub(crate) const NAMES: &[Name] = &[
    Name::kept("token_embd", "backbone.embeddings"),
    Name::kept("output", "lm_head"),
    Name::kept("output_norm", "backbone.norm_f"),
    Name::kept("blk.{}.attn_norm", "backbone.layers.{}.norm"),
    Name::kept("blk.{}.ssm_in", "backbone.layers.{}.mixer.in_proj"),
    Name::squeezed("blk.{}.ssm_conv1d", "backbone.layers.{}.mixer.conv1d"),
    Name::kept("blk.{}.ssm_dt.bias", "backbone.layers.{}.mixer.dt_bias"),
    Name::decay("blk.{}.ssm_a", "backbone.layers.{}.mixer.A_log"),
    Name::column("blk.{}.ssm_d", "backbone.layers.{}.mixer.D"),
    Name::grouped("blk.{}.ssm_norm", "backbone.layers.{}.mixer.norm"),
    Name::kept("blk.{}.ssm_out", "backbone.layers.{}.mixer.out_proj"),
];

const FIELDS: &[Field] = &[
    Field::size("block_count", &["num_hidden_layers", "n_layer"]),
    Field::size("embedding_length", &["hidden_size", "d_model"]),
    Field::size("vocab_size", &["vocab_size"]),
    Field::number("attention.layer_norm_rms_epsilon", &["layer_norm_epsilon", "rms_norm_eps"]),
    Field::size("ssm.conv_kernel", &["conv_kernel"]),
    Field::size("ssm.state_size", &["state_size"]),
    Field::size("ssm.group_count", &["n_groups"]),
    Field::size("ssm.time_step_rank", &["num_heads"]),
];

/// Tokens of context in files, as llama.cpp's converter writes it: checkpoints have no limit.
const CONTEXT: u32 = 1 << 20;

/// Refuses bounds on time steps. Those of published models, 0 and infinity, change nothing, since softplus is positive.
pub(crate) fn without_bounds(draft: &Draft<'_>) -> Result<(), Error> {
    let infinity = json!({"__float__": "Infinity"});
    let off = [json!([0.0, infinity]), json!([0, infinity])];
    draft.refuse("time_step_limit", &off, "a bound on time steps")
}

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    without_bounds(draft)?;
    draft.refuse("use_bias", &[false.into()], "biases of projections")?;
    draft.refuse("use_conv_bias", &[true.into()], "a convolution without a bias")?;
    let inner = draft.needed_size(&["num_heads"])?.checked_mul(draft.needed_size(&["head_dim"])?);
    draft.set("ssm.inner_size", inner.unwrap_or(u32::MAX));
    draft.set(
        "context_length",
        draft.settings.size(&["max_position_embeddings"])?.unwrap_or(CONTEXT),
    );
    draft.set("feed_forward_length", 0u32);
    draft.set("attention.head_count", 0u32);
    Ok(())
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let blocks = keys.size("block_count", 1..=limits::LAYERS)?;
    for key in ["attention.head_count", "attention.head_count_kv", "feed_forward_length"] {
        keys.opt_each(key, blocks, 0..=0)?;
    }
    let mamba = Mixer::Mamba2(Mamba2::read(&keys)?);
    let config = Config::read_mixed(&keys, Norm::Rms, None, mamba)?;
    Ok(Config { biased: &["ssm_conv1d"], ..config })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, Mamba2, Mixer, tiny::changed};
    use crate::{Outline, record};

    #[test]
    fn every_layer_is_a_recurrence() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let sizes = Mamba2 { heads: 4, head_dim: 32, groups: 2, state_dim: 16, taps: 4 };
        assert!(config.layers.iter().all(|layer| layer.mixer == Mixer::Mamba2(sizes)));
        assert!(config.layers.iter().all(|layer| layer.feed_forward == 0));
    }

    #[test]
    fn a_bias_of_the_fused_projection_is_refused() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let outline = Outline::new(Type::F32, &["blk.1.ssm_in.bias"]);
        let error = record(&config, &outline).unwrap_err().to_string();
        assert!(error.contains("blk.1.ssm_in.bias"), "{error}");
    }

    #[test]
    fn attention_and_odd_sizes_are_refused_by_key() {
        let cases = [
            ("attention.head_count", 4u32.into()),
            ("attention.head_count_kv", vec![0u32, 2, 0].into()),
            ("feed_forward_length", 96u32.into()),
            ("ssm.inner_size", 130u32.into()),
            ("ssm.group_count", 3u32.into()),
        ];
        for case in cases {
            let error = changed(&ARCHITECTURE, std::slice::from_ref(&case)).unwrap_err();
            assert!(error.to_string().contains(case.0), "{error}");
        }
    }
}
