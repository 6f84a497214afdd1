//! OLMo 2 and 3: norms only on the outputs of attention and feed-forward; queries and keys normalized as rows.
//!
//! OLMo 3 has a sliding window in three of four layers, and extends the context only in the fourth.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, Name, Norm, NormAt, QkNorm, Rotary, Scaling,
    checkpoint, decoder, names, tiny,
};

const NAME: &str = "olmo2";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.sliding_window", 5u32.into()),
            ("attention.sliding_window_pattern", vec![true, false, true].into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::ATTENTION,
        names::QK_NORMS,
        names::GATED,
        &[
            Name::kept("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm"),
            Name::kept("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm"),
            Name::kept("output_norm", "model.norm"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS, checkpoint::WINDOW],
        more: |draft| {
            checkpoint::decoder(draft)?;
            checkpoint::layer_kinds(draft, |layer| (layer + 1) % 4 != 0)
        },
        absent: &[
            Absent::number("rotary_emb_base", 5e5).of("Olmo3ForCausalLM"),
            Absent::size("sliding_window", 4096).of("Olmo3ForCausalLM"),
        ],
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    let mut config = Config { norm_at: NormAt::After, qk_norm: Some(QkNorm::Row), ..config };
    // Early files of OLMo 3 have YaRN's whole factor, `0.1 ln(factor) + 1`, where others have one relative to it.
    let given = keys.positive_or_zero("rope.scaling.attn_factor")?;
    for rope in config.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
        let own = rope.scaling.magnitude();
        if given.is_some_and(|given| (given - own).abs() < 1e-4) {
            rope.attn_factor /= own;
        }
    }
    if config.layers[0].window.is_some() {
        let base = keys.positive("rope.freq_base_swa")?;
        let trained = |rope: Rotary| {
            let base = base.unwrap_or(rope.base);
            Rotary { base, scaling: Scaling::None, attn_factor: 1.0, ..rope }
        };
        config.alternate(&keys, 4, config.layers[0].rope.map(trained))?;
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::{ARCHITECTURE, Scaling, tiny::changed};
    use bilayer_graph::Window;

    #[test]
    fn a_window_leaves_every_fourth_layer_its_view_and_its_stretched_context() {
        let yarn = [
            ("block_count", 4u32.into()),
            ("attention.sliding_window_pattern", 4u32.into()),
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", 8f32.into()),
            ("rope.scaling.attn_factor", 1.2f32.into()),
        ];
        let config = changed(&ARCHITECTURE, &yarn).unwrap();
        let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
        let local = Some(Window::Last(5));
        assert_eq!(windows, [local, local, local, None]);
        let rope = |layer: usize| config.layers[layer].rope.unwrap();
        assert_eq!((rope(2).scaling, rope(2).attn_factor), (Scaling::None, 1.0));
        assert!(matches!(rope(3).scaling, Scaling::Yarn { .. }), "{:?}", rope(3));
        assert_eq!(rope(3).attn_factor, 1.2);
    }

    /// 0.1 ln 8 + 1 = 1.2079442, the factor of OLMo 3's checkpoints: as llama.cpp's converter writes it, as it wrote it at
    /// first, and as ours does, relative to YaRN's own.
    #[test]
    fn the_factor_of_olmo_3_is_whole_in_all_forms_of_its_files() {
        for (name, value) in [
            ("yarn_attn_factor", 1.207_944_2f32),
            ("attn_factor", 1.207_944_2),
            ("attn_factor", 1.0),
        ] {
            let key = format!("rope.scaling.{name}");
            let yarn = [
                ("rope.scaling.type", "yarn".into()),
                ("rope.scaling.factor", 8f32.into()),
                (key.as_str(), value.into()),
            ];
            let config = changed(&ARCHITECTURE, &yarn).unwrap();
            let magnitudes = [0, 1].map(|layer| config.layers[layer].rope.unwrap().magnitude());
            assert_eq!(magnitudes[0], 1.0, "{name}");
            assert!((magnitudes[1] - 1.207_944_2).abs() < 1e-6, "{name} {value}: {magnitudes:?}");
        }
    }

    #[test]
    fn a_pattern_of_another_length_is_refused() {
        let two = [("attention.sliding_window_pattern", vec![true, false].into())];
        let error = changed(&ARCHITECTURE, &two).unwrap_err().to_string();
        assert!(error.contains("olmo2.attention.sliding_window_pattern"), "{error}");
    }

    #[test]
    fn without_a_window_all_layers_are_alike() {
        let config = changed(&ARCHITECTURE, &[("attention.sliding_window", 0u32.into())]).unwrap();
        assert!(config.layers.iter().all(|layer| *layer == config.layers[0]));
    }
}
