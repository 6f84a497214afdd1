//! Tests of weights of all types, sizes of all shapes, and vocabularies of all sizes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::HashSet;
use std::ops::ControlFlow;

use bilayer_gguf::{File, Metadata};
use bilayer_quant::Type;

use super::blocks::{LINES, Put};
use super::tensors::{self, Spread};
use super::weights::Weights;
use super::{Shape, Sizes, Synth, words};
use crate::mix::Mix;

/// Types usable for weights.
fn types() -> impl Iterator<Item = Type> {
    bilayer_quant::all().iter().copied().filter(|ty| Mix::pure(*ty).is_ok())
}

#[test]
fn every_type_of_blocks_has_its_line_and_every_line_names_planes() {
    for ty in types().filter(|ty| ty.block_weights > 1 && ty.has_lone_blocks()) {
        assert_eq!(LINES.iter().filter(|line| line.ty == ty).count(), 1, "{ty}");
    }
    for line in &LINES {
        let puts = line.puts.iter().map(|put| match *put {
            Put::Half { plane, .. } | Put::AnySign { plane } => plane,
            Put::Bytes { plane } | Put::Quarters { plane } => plane,
        });
        for plane in puts.chain(line.codes.map(|(plane, _)| plane)) {
            assert!(!line.plane(plane).is_empty(), "{}: {plane}", line.ty);
        }
    }
}

#[test]
fn weights_of_every_type_are_finite_and_spread_as_requested() {
    for ty in types() {
        for deviation in [1.0, 0.022, 0.0005] {
            let spread = Spread { centre: 0.0, deviation };
            let weights = Weights::new("a", (ty, 512), spread, 3).unwrap();
            let mut bytes = vec![0; 128 * ty.row_bytes(512).unwrap()];
            weights.fill(0, &mut bytes);
            let mut values = vec![0.0f32; 65_536];
            ty.dequantize(&bytes, &mut values).unwrap();
            assert!(values.iter().all(|value| value.is_finite()), "{ty}");
            let count = values.len() as f32;
            let mean = values.iter().sum::<f32>() / count;
            let found = (values.iter().map(|value| value * value).sum::<f32>() / count).sqrt();
            // A few hundred blocks, so the sample varies by a few percent.
            assert!((found / deviation - 1.0).abs() < 0.08, "{ty}: {found} for {deviation}");
            assert!(mean.abs() < 0.05 * deviation, "{ty}: mean {mean} for {deviation}");
        }
    }
}

#[test]
fn plain_types_have_the_centre_too() {
    let spread = Spread { centre: 1.0, deviation: 0.05 };
    let weights = Weights::new("norm", (Type::F32, 10_000), spread, 0).unwrap();
    let mut bytes = vec![0; 4 * 10_000];
    weights.fill(0, &mut bytes);
    let mut values = vec![0.0f32; 10_000];
    Type::F32.dequantize(&bytes, &mut values).unwrap();
    let mean = values.iter().sum::<f32>() / 10_000.0;
    assert!((mean - 1.0).abs() < 0.003, "{mean}");
    assert!(values.iter().all(|value| (0.5..1.5).contains(value)));
    assert!(Weights::new("norm", (Type::I8, 64), spread, 0).is_err());
}

#[test]
fn bytes_depend_on_seed_and_name_and_not_on_threads() {
    // The embedding exceeds one buffer of chunks; RoPE factors are not random.
    let sizes = Sizes {
        layers: Some(2),
        vocab: Some(24_000),
        width: Some(512),
        heads: Some(8),
        ffn: Some(512),
        ..Sizes::default()
    };
    let shape = Shape::find("llama-1b").unwrap().with(sizes).unwrap();
    let synth = Synth::new(shape, Mix::find("Q5_K_M").unwrap());
    let bytes = synth.to_bytes().unwrap();
    let folder = std::env::temp_dir();
    for threads in [1, 3] {
        let path = folder.join(format!("synth-test-{}-{threads}.gguf", std::process::id()));
        let mut told = Vec::new();
        let made = Synth { threads: Some(threads), ..synth.clone() }
            .write(&path, &mut |done, total| {
                told.push((done, total));
                ControlFlow::Continue(())
            })
            .unwrap();
        let written = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(written == bytes, "{threads} threads make other bytes");
        assert_eq!(told.last(), Some(&(made.bytes, made.bytes)));
        assert!(told.is_sorted() && told.len() > made.tensors, "{told:?}");
    }
    let other = Synth { seed: 1, ..synth }.to_bytes().unwrap();
    assert_eq!(other.len(), bytes.len());
    let file = File::from_bytes("a", bytes).unwrap();
    let other = File::from_bytes("b", other).unwrap();
    let data = |file: &File, name: &str| file.bytes(file.tensor(name).unwrap()).to_vec();
    for name in ["blk.0.attn_q.weight", "blk.0.attn_norm.weight"] {
        assert_ne!(data(&file, name), data(&other, name), "{name}");
    }
    assert_ne!(data(&file, "blk.0.attn_q.weight"), data(&file, "blk.1.attn_q.weight"));
    let factors = Shape::find("llama-1b").unwrap().rope_factors().unwrap();
    assert_eq!((factors[0], factors[31]), (1.0, 32.0));
}

#[test]
fn what_is_stopped_leaves_nothing() {
    let folder = std::env::temp_dir().join(format!("synth-stop-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let synth = Synth::new(Shape::find("tiny").unwrap(), Mix::find("F16").unwrap());
    let stopped = synth.write(&folder.join("x.gguf"), &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(crate::Error::Interrupted)));
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir(&folder).unwrap();
}

/// Sources: the publishers' model cards (Mixtral: 46.7 B, Qwen3: 30.5 B, DeepSeek V2 Lite: 15.7 B, LFM2: 1.17 B, MiniLM without its
/// pooler).
#[test]
fn shapes_have_as_many_parameters_as_their_models() {
    let expected = [
        ("llama-1b", 1_235_814_432),
        ("llama-8b", 8_030_261_312),
        ("llama-70b", 70_553_706_560),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("deepseek-lite", 15_706_484_224),
        ("lfm2-1b", 1_170_340_608),
        ("qwen35-4b", 4_205_751_296),
        ("mamba2-1b", 1_343_757_312),
        ("minilm-l6", 22_565_376),
    ];
    for (name, expected) in expected {
        let needed = tensors::needed(&Shape::find(name).unwrap()).unwrap();
        let found: u64 = needed.iter().map(|tensor| tensor.shape.iter().product::<u64>()).sum();
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(Shape::all().len(), 1 + expected.len());
}

#[test]
fn what_an_architecture_records_is_what_is_listed() {
    for shape in Shape::all() {
        let sorted = |mut list: Vec<tensors::Tensor>| {
            list.sort_by(|a, b| a.name.cmp(&b.name));
            list
        };
        let needed = sorted(tensors::needed(shape).unwrap());
        assert_eq!(needed, sorted(tensors::listed(shape)), "{}", shape.name);
    }
}

#[test]
fn sizes_follow_each_other_and_impossible_ones_are_named() {
    let tiny = Shape::find("tiny").unwrap();
    let with = |sizes: Sizes| tiny.with(sizes).map_err(|error| error.to_string());
    let wide = with(Sizes { width: Some(1024), heads: Some(16), ..Sizes::default() }).unwrap();
    assert_eq!((wide.head_dim, wide.kv_heads), (64, 8));
    let odd = with(Sizes { heads: Some(1), ..Sizes::default() }).unwrap();
    assert_eq!((odd.head_dim, odd.kv_heads), (256, 1));
    let experts = Shape::find("mixtral-8x7b").unwrap();
    let experts = experts.with(Sizes { ffn: Some(64), ..Sizes::default() }).unwrap();
    assert_eq!(experts.experts.unwrap().ffn, 64);
    let bad = [
        (Sizes { heads: Some(3), ..Sizes::default() }, "heads is 3"),
        (Sizes { heads: Some(0), ..Sizes::default() }, "heads is 0"),
        (Sizes { kv_heads: Some(3), ..Sizes::default() }, "kv-heads is 3"),
        (Sizes { head_dim: Some(7), ..Sizes::default() }, "head-dim is 7"),
        (Sizes { layers: Some(0), ..Sizes::default() }, "layers is 0"),
        (Sizes { vocab: Some(258), ..Sizes::default() }, "vocab is 258"),
        (Sizes { layers: Some(u32::MAX), ..Sizes::default() }, "layers is 4294967295"),
    ];
    for (sizes, part) in bad {
        let message = with(sizes).unwrap_err();
        assert!(message.contains(part), "{message}");
    }
    let encoder = Shape::find("minilm-l6").unwrap();
    assert!(encoder.with(Sizes { kv_heads: Some(6), ..Sizes::default() }).is_err());
    assert!(encoder.with(Sizes { head_dim: Some(64), ..Sizes::default() }).is_err());
}

#[test]
fn words_are_as_many_as_requested_and_all_different() {
    for (shape, size) in [
        ("tiny", 259),
        ("tiny", 512),
        ("tiny", 600_000),
        ("llama-8b", 128_256),
        ("minilm-l6", 30_522),
    ] {
        let mut metadata = Metadata::new();
        words::add(&mut metadata, Shape::find(shape).unwrap().family, size);
        let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap();
        let different: HashSet<&str> = tokens.iter().collect();
        assert_eq!((tokens.len(), different.len()), (size, size), "{shape}");
        let types = metadata.opt_i32s("tokenizer.ggml.token_type").unwrap().unwrap();
        assert_eq!(types.len(), size, "{shape}");
        let merges = metadata.opt_strings("tokenizer.ggml.merges").unwrap();
        for merge in merges.into_iter().flat_map(|merges| merges.iter()) {
            let (left, right) = merge.split_once(' ').unwrap();
            let made = format!("{left}{right}");
            assert!(
                [left, right, &made].into_iter().all(|part| different.contains(part)),
                "{merge}"
            );
        }
    }
}
