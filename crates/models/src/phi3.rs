//! Phi 3, 3.5 and 4: fused queries, keys and values, fused gate and up; LongRoPE beyond 4096 tokens.

use bilayer_gguf::Metadata;
use bilayer_graph::Pairs;

use crate::keys::Keys;
use crate::rope::long_factor;
use crate::{
    Absent, Architecture, Checkpoint, Config, Error, FeedForward, Name, Norm, Scaling, checkpoint,
    decoder, limits, names, tiny,
};

const NAME: &str = "phi3";

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [("rope.scaling.original_context_length", 64u32.into())];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::NORMS,
        &[
            Name::kept("blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj"),
            Name::kept("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
            Name::kept("blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"),
            Name::kept("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"),
        ],
    ],
    ignored: decoder::IGNORED,
    checkpoint: Checkpoint {
        classes: &["Phi3ForCausalLM"],
        activations: &["silu"],
        fields: &[checkpoint::SIZES, checkpoint::FEED_FORWARD, checkpoint::RMS, checkpoint::WINDOW],
        more: checkpoint::decoder,
        absent: &[Absent::size("original_max_position_embeddings", 4096)],
        ..Checkpoint::USUAL
    },
};

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    keys.refuse("expert_count", "a mixture of experts")?;
    let mut config = Config::read(&keys, Norm::Rms, Some(Pairs::Halves))?;
    // Files of llama.cpp's converter do not name the scaling; it applies if the context is longer than the original one.
    let original = keys.opt_size("rope.scaling.original_context_length", 1..=limits::CONTEXT)?;
    let (context, is_named) = (config.context, keys.has("rope.scaling.type"));
    if let Some(original_context) = original.filter(|&original| context > original) {
        for rope in config.layers.iter_mut().filter_map(|layer| layer.rope.as_mut()) {
            match rope.scaling {
                Scaling::Long { .. } => {}
                Scaling::None if !is_named => rope.scaling = Scaling::Long { original_context },
                // The user chose another.
                _ => continue,
            }
            if !keys.has("rope.scaling.attn_factor") {
                let original = original_context as f32;
                rope.attn_factor *= long_factor(context as f32 / original, original);
            }
        }
    }
    Ok(Config { qkv_in_one: true, feed_forward: FeedForward::GatedInOne, ..config })
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, Config, Scaling, tiny::changed};
    use crate::{Outline, record};

    /// The factor lists that a recording requests.
    fn lists(config: &Config) -> Vec<String> {
        let outline = Outline::new(Type::F32, &[]);
        record(config, &outline).unwrap();
        let names = outline.tensors().into_iter().map(|(name, _)| name);
        names.filter(|name| name.starts_with("rope_")).collect()
    }

    #[test]
    fn the_context_decides_between_the_lists_of_factors() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        assert_eq!(lists(&config), ["rope_factors_long.weight"]);
        let session = |context| Config { context, ..config.clone() };
        assert_eq!(lists(&session(65)), ["rope_factors_long.weight"]);
        assert_eq!(lists(&session(64)), ["rope_factors_short.weight"]);
    }

    #[test]
    fn the_factor_of_a_longer_context_is_told_or_computed() {
        // Four times 64 tokens: √(1 + ln 4 / ln 64) = √(4/3).
        let rope = |changes: &[_]| changed(&ARCHITECTURE, changes).unwrap().layers[0].rope.unwrap();
        assert!((rope(&[]).magnitude() - (4f32 / 3.0).sqrt()).abs() < 1e-6);
        assert_eq!(rope(&[("rope.scaling.attn_factor", 1.5f32.into())]).magnitude(), 1.5);
    }

    #[test]
    fn another_scaling_replaces_longrope() {
        let rope = |changes: &[_]| changed(&ARCHITECTURE, changes).unwrap().layers[0].rope.unwrap();
        let linear = Scaling::Linear { factor: 4.0 };
        for (kind, expected) in
            [(None, linear), (Some("linear"), linear), (Some("none"), Scaling::None)]
        {
            let kind = kind.map(|kind| ("rope.scaling.type", kind.into()));
            let changes = [("rope.scaling.factor", 4f32.into())].into_iter().chain(kind);
            let rope = rope(&changes.collect::<Vec<_>>());
            assert_eq!((rope.scaling, rope.magnitude()), (expected, 1.0));
        }
        let longrope = ("rope.scaling.type", "longrope".into());
        assert_eq!(rope(&[longrope]), rope(&[]));
        let doubled = rope(&[("rope.scaling.attn_multiplier", 2f32.into())]);
        assert_eq!(doubled.magnitude(), 2.0 * rope(&[]).magnitude());
    }

    #[test]
    fn a_context_as_trained_has_no_lists() {
        let same = [("rope.scaling.original_context_length", 256u32.into())];
        let config = changed(&ARCHITECTURE, &same).unwrap();
        assert_eq!(config.layers[0].rope.unwrap().scaling, Scaling::None);
        assert!(lists(&config).is_empty());
    }

    #[test]
    fn matrices_are_rows_of_one() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let graph = record(&config, &Outline::new(Type::F32, &[])).unwrap();
        let parts = |name: &str| {
            let weights = graph.weights.iter().filter(|weight| weight.name == name);
            weights.map(|weight| (weight.first_row, weight.rows, weight.cols)).collect::<Vec<_>>()
        };
        assert_eq!(parts("blk.0.attn_qkv.weight"), [(0, 64, 64), (64, 32, 64), (96, 32, 64)]);
        assert_eq!(parts("blk.2.ffn_up.weight"), [(0, 96, 64), (96, 96, 64)]);
    }
}
