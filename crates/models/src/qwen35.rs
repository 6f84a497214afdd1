//! Qwen 3.5 to 3.8, dense: gated delta nets, and gated attention with partial rotary in every fourth layer.

use bilayer_gguf::{Metadata, Value};
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, AttentionGate, Checkpoint, Config, DeltaNet, Draft, Error, Field, Mixer,
    Name, Norm, QkNorm, Tiled, checkpoint, decoder, limits, names, tiny,
};

const NAME: &str = "qwen35";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || tiny::decoder(NAME, Norm::Rms, &mixed()),
    names: &[names::ENDS, names::GATED, ATTENTION, DELTA_NET, MTP],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS, FIELDS],
        more,
        absent: &[Absent::number("rope_pct", 0.25)],
        ..Checkpoint::USUAL
    },
};

/// Keys of the smallest metadata: the second of three layers has attention.
pub(crate) fn mixed() -> Vec<(&'static str, Value)> {
    vec![
        ("full_attention_interval", 2u32.into()),
        ("rope.dimension_count", 8u32.into()),
        ("ssm.conv_kernel", 4u32.into()),
        ("ssm.state_size", 16u32.into()),
        ("ssm.group_count", 2u32.into()),
        ("ssm.time_step_rank", 4u32.into()),
        ("ssm.inner_size", 64u32.into()),
    ]
}

/// Attention and norms.
pub(crate) const ATTENTION: &[Name] = &[
    Name::kept("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
    Name::kept("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
    Name::kept("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
    Name::kept("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
    Name::one_more("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
    Name::one_more("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
    Name::one_more("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    Name::one_more("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
    Name::one_more("output_norm", "model.norm"),
];

/// A block for multi-token prediction, besides its layer.
pub(crate) const MTP: &[Name] = &[
    Name::kept("blk.{}.nextn.eh_proj", "model.layers.{}.eh_proj"),
    Name::one_more("blk.{}.nextn.enorm", "model.layers.{}.enorm"),
    Name::one_more("blk.{}.nextn.hnorm", "model.layers.{}.hnorm"),
    Name::one_more("blk.{}.nextn.shared_head_norm", "model.layers.{}.shared_head.norm"),
];

/// A gated delta net.
pub(crate) const DELTA_NET: &[Name] = &[
    Name::tiled("blk.{}.attn_qkv", "model.layers.{}.linear_attn.in_proj_qkv", Tiled::Rows),
    Name::tiled("blk.{}.attn_gate", "model.layers.{}.linear_attn.in_proj_z", Tiled::Rows),
    Name::tiled("blk.{}.ssm_alpha", "model.layers.{}.linear_attn.in_proj_a", Tiled::Rows),
    Name::tiled("blk.{}.ssm_beta", "model.layers.{}.linear_attn.in_proj_b", Tiled::Rows),
    Name::tiled("blk.{}.ssm_a", "model.layers.{}.linear_attn.A_log", Tiled::Decay),
    Name::tiled("blk.{}.ssm_dt.bias", "model.layers.{}.linear_attn.dt_bias", Tiled::Rows),
    Name::tiled("blk.{}.ssm_conv1d", "model.layers.{}.linear_attn.conv1d", Tiled::Rows),
    Name::kept("blk.{}.ssm_norm", "model.layers.{}.linear_attn.norm"),
    Name::tiled("blk.{}.ssm_out", "model.layers.{}.linear_attn.out_proj", Tiled::Columns),
];

/// Sizes of delta nets.
pub(crate) const FIELDS: &[Field] = &[
    Field::size("ssm.conv_kernel", &["linear_conv_kernel_dim"]),
    Field::size("ssm.state_size", &["linear_key_head_dim"]),
    Field::size("ssm.group_count", &["linear_num_key_heads"]),
    Field::size("ssm.time_step_rank", &["linear_num_value_heads"]),
    Field::maybe_size("full_attention_interval", &["full_attention_interval"]),
];

/// Which layers have attention, and what all decoders have.
pub(crate) fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("attention_bias", &[false.into()], "biases of attention")?;
    draft.refuse("attn_output_gate", &[true.into()], "attention without a gate")?;
    let heads = draft.needed_size(&["linear_num_value_heads"])?;
    let inner = heads.checked_mul(draft.needed_size(&["linear_value_head_dim"])?);
    draft.set("ssm.inner_size", inner.unwrap_or(u32::MAX));
    if let Some(kinds) = checkpoint::kinds(draft.settings, &["full_attention", "linear_attention"])?
    {
        let recurrent: Vec<bool> = kinds.into_iter().map(|kind| kind == 1).collect();
        draft.set("attention.recurrent_layers", recurrent);
    }
    let rope = draft.settings.part("rope_parameters");
    if let Some(sections) = rope.map(|rope| rope.numbers("mrope_section")).transpose()?.flatten() {
        // Pairs that rotate by time, height and width; all three positions of a text are equal.
        let mut sections: Vec<i32> = sections.into_iter().map(|pairs| pairs as i32).collect();
        sections.resize(4, 0);
        draft.set("rope.dimension_sections", sections);
    }
    checkpoint::decoder(draft)
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    read(&Keys { metadata, architecture: NAME })
}

/// The configuration without experts.
pub(crate) fn read(keys: &Keys<'_>) -> Result<Config, Error> {
    let delta_net = Mixer::DeltaNet(DeltaNet::read(keys)?);
    // Files of ollama list the key-value heads of each layer, 0 in delta nets.
    let config = Config::read_mixed(keys, Norm::Rms, Some(Pairs::Halves), delta_net)?;
    let period = keys.opt_size("full_attention_interval", 1..=limits::LAYERS)?.unwrap_or(4);
    let blocks = keys.size("block_count", 1..=limits::LAYERS)?;
    let recurrent = keys.flags_or_period("attention.recurrent_layers", blocks, period)?;
    let mut layers = config.layers;
    for (layer, recurrent) in layers.iter_mut().zip(recurrent) {
        if recurrent {
            (layer.mixer, layer.kv_heads) = (delta_net, 0);
        } else if layer.kv_heads == 0 {
            let expected = "at least 1 in layers with attention";
            return Err(keys.value("attention.head_count_kv", expected, 0));
        }
    }
    Ok(Config {
        layers,
        ffn_norm: "post_attention_norm",
        qk_norm: Some(QkNorm::Head),
        attention_gate: Some(AttentionGate::WithQueries),
        ..config
    })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, DeltaNet, Mixer, tiny::changed};
    use crate::{Outline, record};

    #[test]
    fn layers_are_delta_nets_by_period_or_list() {
        let mixers = |changes: &[_]| -> Vec<Mixer> {
            let config = changed(&ARCHITECTURE, changes).unwrap();
            config.layers.iter().map(|layer| layer.mixer).collect()
        };
        let sizes = DeltaNet {
            key_heads: 2,
            value_heads: 4,
            head_dim: 16,
            taps: 4,
            neighbours: 1,
            rates_in_one: false,
        };
        let net = Mixer::DeltaNet(sizes);
        assert_eq!(mixers(&[]), [net, Mixer::Attention, net]);
        let list = ("attention.recurrent_layers", vec![false, true, true].into());
        assert_eq!(mixers(&[list]), [Mixer::Attention, net, net]);
    }

    #[test]
    fn files_of_ollama_list_the_heads_of_layers_and_name_the_step_otherwise() {
        let config = |heads: [u32; 3]| {
            changed(&ARCHITECTURE, &[("attention.head_count_kv", heads.to_vec().into())])
        };
        let usual = changed(&ARCHITECTURE, &[]).unwrap();
        assert_eq!(config([0, 2, 0]).unwrap(), usual);
        let error = config([2, 0, 2]).unwrap_err().to_string();
        assert!(error.contains("qwen35.attention.head_count_kv"), "{error}");
        let names = |optional: &[&str]| {
            let outline = Outline::new(Type::F32, optional);
            record(&usual, &outline).unwrap();
            let names = outline.tensors().into_iter().map(|(name, _)| name);
            names.filter(|name| name.contains("ssm_dt")).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["blk.0.ssm_dt.bias", "blk.2.ssm_dt.bias"]);
        assert_eq!(names(&["blk.0.ssm_dt"]), ["blk.0.ssm_dt", "blk.2.ssm_dt.bias"]);
    }

    #[test]
    fn odd_sizes_are_refused_by_key() {
        let cases = [
            ("ssm.inner_size", 60u32.into()),
            ("ssm.group_count", 3u32.into()),
            ("ssm.group_count", 0u32.into()),
            ("ssm.state_size", 2048u32.into()),
            ("ssm.conv_kernel", 17u32.into()),
            ("full_attention_interval", 0u32.into()),
            ("attention.recurrent_layers", vec![true, false].into()),
        ];
        for case in cases {
            let error = changed(&ARCHITECTURE, std::slice::from_ref(&case)).unwrap_err();
            assert!(error.to_string().contains(case.0), "{error}");
        }
    }
}
