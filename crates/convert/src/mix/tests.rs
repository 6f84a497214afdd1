//! Compares the rules with the choices of llama.cpp's quantizer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bilayer_quant::Type;

use super::{Facts, Mix};
use crate::synth::{Shape, Sizes, tensors};

/// The shape of a recorded line.
fn shape(name: &str) -> Shape {
    if name != "even" {
        return Shape::find(name).unwrap();
    }
    let sizes = Sizes {
        layers: Some(30),
        width: Some(2048),
        heads: Some(32),
        kv_heads: Some(32),
        ffn: Some(5632),
        ..Sizes::default()
    };
    Shape::find("llama-8b").unwrap().with(sizes).unwrap()
}

/// Whether `layers` (`0-3,7`, empty for all) names `layer`.
fn covers(layers: &str, layer: usize) -> bool {
    layers.is_empty()
        || layers.split(',').any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (first.parse().unwrap()..=last.parse().unwrap()).contains(&layer)
        })
}

/// The type of a tensor in a line's entries `stem=TYPE@layers+TYPE@layers`.
fn recorded(entries: &[&str], name: &str) -> Type {
    let stem = name.strip_suffix(".weight").unwrap();
    let (layer, stem) = match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, stem)) => (layer.parse().unwrap(), stem),
        None => (0, stem),
    };
    let types =
        |name: &str| entries.iter().find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
    let found = types(stem).into_iter().flat_map(|types| types.split('+')).find_map(|ty| {
        let (ty, layers) = ty.split_once('@').unwrap_or((ty, ""));
        covers(layers, layer).then_some(ty)
    });
    bilayer_quant::by_name(found.or(types("rest")).unwrap()).unwrap()
}

#[test]
fn every_mix_is_as_recorded() {
    let mut compared = std::collections::HashSet::new();
    let lines = include_str!("recorded.txt").lines().filter(|line| !line.starts_with('#'));
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[0].strip_suffix("+imatrix").unwrap_or(words[0]);
        let (shape, mix) = (shape(name), Mix::find(words[1]).unwrap());
        compared.insert(mix.name);
        let facts = Facts {
            layers: shape.layers as usize,
            heads: shape.heads as usize,
            kv_heads: shape.kv_heads as usize,
            experts: shape.experts.map_or(0, |experts| experts.count as usize),
            tied: shape.tied || name == "minilm-l6",
            importance: name != words[0],
        };
        for tensor in tensors::listed(&shape) {
            let found = mix.tensor(&tensor.name, &tensor.shape, &facts).unwrap_or(Type::F32);
            let vector = tensor.shape.len() == 1;
            let expected = if vector { Type::F32 } else { recorded(&words[2..], &tensor.name) };
            assert_eq!(found, expected, "{} in {line}", tensor.name);
        }
    }
    // Floats, and what is no mix of llama.cpp.
    let others = ["F32", "F16", "BF16", "NVFP4", "COPY"];
    let missing: Vec<_> = Mix::all()
        .iter()
        .filter(|m| !compared.contains(m.name) && !others.contains(&m.name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn names_find_mixes_then_types_and_refuse_what_holds_no_weights() {
    assert_eq!(Mix::find("q4_k_m").unwrap().file_type, Some(15));
    let pure = Mix::find("Q4_K").unwrap();
    assert!(pure.pure && pure.base == Type::Q4_K);
    for (ty, number) in [
        (Type::Q4_K, Some(15)),
        (Type::MXFP4, Some(38)),
        (Type::IQ2_S, Some(28)),
        (Type::W8A8, None),
    ] {
        assert_eq!(Mix::pure(ty).unwrap().file_type, number, "{ty}");
    }
    assert_eq!(Mix::find("Q4_K_S").unwrap().purely().unwrap().file_type, Some(14));
    let facts =
        Facts { layers: 2, heads: 4, kv_heads: 2, experts: 8, tied: true, importance: false };
    for name in ["token_embd.weight", "blk.0.attn_v.weight", "blk.1.ffn_down_exps.weight"] {
        assert_eq!(pure.tensor(name, &[8, 256], &facts), Some(Type::Q4_K));
        // Rows of 96 weights are not whole blocks of 256, and rows of 100 not whole blocks of 32.
        assert_eq!(pure.tensor(name, &[8, 96], &facts), Some(Type::Q5_0));
        assert_eq!(pure.tensor(name, &[8, 100], &facts), Some(Type::F16));
        assert_eq!(Mix::find("F16").unwrap().tensor(name, &[8, 100], &facts), Some(Type::F16));
    }
    assert_eq!(pure.tensor("blk.0.attn_norm.weight", &[256], &facts), None);
    for name in ["Q4_K_XL", "", "I8", "F64"] {
        let message = Mix::find(name).unwrap_err().to_string();
        assert!(message.contains(name) && message.len() > 40, "{message}");
    }
    for part in ["Q4_K_M", "NVFP4", "IQ1_S"] {
        assert!(Mix::names().contains(part), "{}", Mix::names());
    }
    assert!(!Mix::names().contains("I8"), "{}", Mix::names());
}
