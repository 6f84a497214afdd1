//! Compares the rules with the choices of llama.cpp's quantizer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use bilayer_gguf::{File, NewTensor, to_bytes};
use bilayer_models::{Architecture, Outline};
use bilayer_quant::Type;

use super::{Facts, Mix, W8A8_COLS, attention, fitting, misfit, takes_importance};
use crate::quantize::Quantize;
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
        let listed = tensors::listed(&shape);
        let facts = Facts {
            attention: attention(listed.iter().map(|tensor| tensor.name.as_str())),
            is_falcon: false,
            layers: shape.layers as usize,
            heads: shape.heads as usize,
            kv_heads: shape.kv_heads as usize,
            experts: shape.experts.map_or(0, |experts| experts.count as usize),
            tied: shape.tied || name == "minilm-l6",
            importance: name != words[0],
        };
        for tensor in listed {
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

fn plain_facts(layers: usize) -> Facts {
    Facts {
        layers,
        heads: 1,
        kv_heads: 1,
        experts: 0,
        attention: (0..layers).collect(),
        is_falcon: false,
        tied: false,
        importance: false,
    }
}

/// The layers in which a tensor has each type, as in the recorded lines.
fn by_layer(mix: &str, stem: &str, facts: &Facts, layers: impl Iterator<Item = usize>) -> String {
    let mix = Mix::find(mix).unwrap();
    let types = layers.map(|layer| {
        let ty = mix.tensor(&format!("blk.{layer}.{stem}.weight"), &[512, 512], facts).unwrap();
        format!("{layer}:{ty}")
    });
    types.collect::<Vec<_>>().join(" ")
}

/// Source: `llama-quant.cpp`, which counts the values of attention as they come.
#[test]
fn layers_without_attention_do_not_count_for_its_values() {
    let layers = [2, 5, 8, 10, 12, 14];
    let names: Vec<String> =
        layers.iter().rev().map(|l| format!("blk.{l}.attn_v.weight")).collect();
    let others = ["blk.0.attn_norm.weight", "blk.1.ffn_down.weight", "output.weight"];
    let attention = attention(names.iter().map(String::as_str).chain(others));
    assert_eq!(attention, layers);
    let facts = Facts { attention, ..plain_facts(16) };
    for (mix, expected) in [
        ("Q4_K_M", "2:Q4_K 5:Q4_K 8:Q6_K 10:Q4_K 12:Q4_K 14:Q6_K"),
        ("Q4_K_S", "2:Q5_K 5:Q5_K 8:Q5_K 10:Q5_K 12:Q4_K 14:Q4_K"),
        ("Q3_K_M", "2:Q5_K 5:Q5_K 8:Q4_K 10:Q4_K 12:Q4_K 14:Q4_K"),
    ] {
        assert_eq!(by_layer(mix, "attn_v", &facts, layers.into_iter()), expected, "{mix}");
    }
    let down = by_layer("Q4_K_M", "ffn_down", &facts, [0, 4, 5, 14].into_iter());
    assert_eq!(down, "0:Q6_K 4:Q6_K 5:Q4_K 14:Q6_K");
}

/// Source: `llama-quant.cpp`.
#[test]
fn falcon_has_rules_of_its_own() {
    let facts = Facts { is_falcon: true, ..plain_facts(32) };
    let layers = || [0, 1, 2, 6, 7, 28].into_iter();
    for (mix, down, output) in [
        ("Q2_K", "0:Q3_K 1:Q3_K 2:Q3_K 6:Q3_K 7:Q3_K 28:Q3_K", "Q2_K"),
        ("Q3_K_M", "0:Q5_K 1:Q5_K 2:Q4_K 6:Q4_K 7:Q3_K 28:Q4_K", "Q3_K"),
        ("Q3_K_L", "0:Q4_K 1:Q4_K 2:Q4_K 6:Q4_K 7:Q4_K 28:Q4_K", "Q4_K"),
        ("Q4_K_S", "0:Q4_K 1:Q4_K 2:Q4_K 6:Q4_K 7:Q4_K 28:Q4_K", "Q4_K"),
        ("Q4_K_M", "0:Q6_K 1:Q6_K 2:Q5_K 6:Q5_K 7:Q4_K 28:Q5_K", "Q4_K"),
        ("Q5_K_M", "0:Q6_K 1:Q6_K 2:Q6_K 6:Q6_K 7:Q5_K 28:Q6_K", "Q5_K"),
    ] {
        assert_eq!(by_layer(mix, "ffn_down", &facts, layers()), down, "{mix}");
        let found = by_layer(mix, "attn_output", &facts, 7..8);
        assert_eq!(found, format!("7:{output}"), "{mix}");
        let mix = Mix::find(mix).unwrap();
        assert_eq!(mix.tensor("output.weight", &[512, 512], &facts), Some(Type::Q8_0));
    }
    let pure = Mix::find("Q4_K_M").unwrap().purely().unwrap();
    assert_eq!(pure.tensor("output.weight", &[512, 512], &facts), Some(Type::Q4_K));
}

#[test]
fn facts_are_those_of_the_file() {
    for is_falcon in [true, false] {
        let is_kind = |it: &&&Architecture| bilayer_models::has_falcon_mixes(it.name) == is_falcon;
        let architecture = bilayer_models::all().iter().find(is_kind).unwrap().name;
        let head = if is_falcon { Type::Q8_0 } else { Type::Q6_K };
        let mut metadata = (bilayer_models::find(architecture).unwrap().tiny)();
        metadata.set(&format!("{architecture}.embedding_length"), 256u32);
        let config = bilayer_models::config(&metadata).unwrap();
        let outline = Outline::new(Type::F16, &["output.weight"]);
        bilayer_models::record(&config, &outline).unwrap();
        let tensors = outline.tensors().into_iter();
        let tensors: Vec<_> =
            tensors.map(|(name, entry)| NewTensor::zeros(&name, entry.ty, &entry.shape)).collect();
        let file = File::from_bytes(architecture, to_bytes(&metadata, tensors).unwrap()).unwrap();
        let quantize = Quantize::new(Mix::find("Q4_K_M").unwrap());
        let plan = quantize.plan(&file, None).unwrap();
        let is_head = |name: &str| name == "output.weight" || name == "token_embd.weight";
        let found = plan.tensors().iter().rfind(|tensor| is_head(&tensor.name)).unwrap();
        assert_eq!(found.to, head, "{architecture}");
    }
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
    let facts = Facts { heads: 4, kv_heads: 2, experts: 8, tied: true, ..plain_facts(2) };
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

#[test]
fn rows_whose_sums_would_overflow_are_not_w8a8() {
    assert_eq!(fitting(Type::W8A8, W8A8_COLS), Type::W8A8);
    assert_eq!(fitting(Type::W8A8, W8A8_COLS + 32), Type::Q8_0);
    assert_eq!(fitting(Type::W8A8, 48), Type::F16);
    let reason = misfit(Type::W8A8, W8A8_COLS + 32).unwrap();
    assert!(reason.contains("65568 are longer than 65536"), "{reason}");
    assert_eq!(misfit(Type::Q8_0, W8A8_COLS + 32), None);
    let most = 255 * 127 * i64::try_from(W8A8_COLS).unwrap();
    assert!(i32::try_from(most).is_ok() && i32::try_from(most + most / 8).is_err());
}

#[test]
fn types_take_importance_whose_bytes_it_changes() {
    let cols = 4096;
    // A large weight in every block that matters little.
    let of_large =
        |i: usize, large: f32, other: f32| if i.is_multiple_of(32) { large } else { other };
    let value = |i: usize| (i as f32 * i as f32 * 0.37).sin() * of_large(i, 1.0, 0.11);
    let values: Vec<f32> = (0..cols).map(value).collect();
    let importance: Vec<f32> =
        (0..cols).map(|i| of_large(i, 1e-3, 1.0 + (i * 7919 % 97) as f32)).collect();
    for ty in bilayer_quant::all().iter().filter(|ty| ty.quantize.is_some()) {
        let made = |importance: Option<&[f32]>| {
            let mut bytes = vec![0; ty.row_bytes(cols).unwrap()];
            ty.quantize(&values, importance, &mut bytes).unwrap();
            bytes
        };
        assert_eq!(made(None) != made(Some(&importance)), takes_importance(*ty), "{ty}");
    }
}
