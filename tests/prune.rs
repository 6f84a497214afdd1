//! Pruned files have the pattern that was asked for, and bad input is refused by name and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use bilayer_convert::mix::Mix;
use bilayer_convert::prune::{Method, Pattern, Prune, Pruned, Source, compare};
use bilayer_convert::synth::{Shape, Synth};
use bilayer_convert::{Calibration, Error};
use bilayer_engine::{Model, open_file};
use bilayer_gguf::{File, Metadata};
use bilayer_quant::Type;

/// A small Llama of one type with rows of 256 and more, and its metadata.
fn model(ty: Type) -> (Model, Metadata) {
    let synth = Synth::new(Shape::find("tiny").unwrap(), Mix::pure(ty).unwrap());
    let file = File::from_bytes("tiny", synth.to_bytes().unwrap()).unwrap();
    let metadata = file.metadata().clone();
    (Model::new(file).unwrap(), metadata)
}

fn text() -> String {
    (0..400).map(|i| format!("word {} of {} and ", i * 7919 % 97, i % 13)).collect()
}

fn prune(method: Method, pattern: &str, ty: Option<Type>) -> Prune {
    let pattern = pattern.parse().unwrap();
    Prune { method, pattern, ty, requantize: false, threads: Some(2) }
}

fn run(prune: &Prune, of: &(Model, Metadata), text: &str, out: &Path) -> Result<Pruned, Error> {
    let calibration = Calibration { text, window_len: 32, windows: 2 };
    let source = Source { model: &of.0, metadata: &of.1 };
    prune.write(source, Some(&calibration), out, &mut |_, _| ControlFlow::Continue(()))
}

/// The values of all matrices of layers.
fn matrices(file: &File) -> BTreeMap<String, (usize, Vec<f32>)> {
    let tensors = file.tensors().iter().filter(|tensor| {
        let name = tensor.name();
        name.starts_with("blk.") && !name.contains("norm") && name.ends_with("weight")
    });
    let values = tensors.map(|tensor| {
        let layout = tensor.layout();
        let mut values = vec![0.0; layout.elements() as usize];
        layout.ty().dequantize(&file.bytes(tensor), &mut values).unwrap();
        (tensor.name().to_owned(), (layout.cols() as usize, values))
    });
    values.collect()
}

#[test]
fn every_method_and_type_keeps_the_pattern() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pruned.gguf");
    let (source, text) = (model(Type::F16), text());
    let model = &source.0;
    let before = matrices(model.file());
    for (method, pattern, ty) in [
        (Method::Magnitude, "0.5", None),
        (Method::Magnitude, "8:64", Some(Type::S8_8_64)),
        (Method::Wanda, "16:64", Some(Type::S4_16_64)),
        (Method::Wanda, "2:4", None),
        (Method::SparseGpt, "16:64", Some(Type::S8_16_64)),
        (Method::SparseGpt, "0.75", Some(Type::Q8_0)),
    ] {
        let prune = prune(method, pattern, ty);
        let pruned = run(&prune, &source, &text, &out).unwrap();
        let share = match prune.pattern {
            Pattern::Groups { keep, of } => 1.0 - keep as f64 / of as f64,
            Pattern::Share(share) => share,
        };
        let file = open_file(&out).unwrap();
        let after = matrices(&file);
        assert_eq!((pruned.matrices, after.len()), (before.len(), before.len()), "{pattern}");
        for (name, (cols, values)) in &after {
            let of = match prune.pattern {
                Pattern::Groups { of, .. } => of,
                Pattern::Share(_) if method == Method::SparseGpt => 128,
                Pattern::Share(_) => *cols,
            };
            let keep = (of as f64 * (1.0 - share)).round() as usize;
            for (index, group) in values.chunks(of).enumerate() {
                let kept = group.iter().filter(|w| **w != 0.0).count();
                assert!(kept <= keep, "{name} {method:?} {pattern}: {kept} of {of} kept");
                if method == Method::Magnitude && ty.is_none() {
                    largest(&before[name].1[index * of..][..of], group);
                }
            }
        }
        let zeros = pruned.zeros as f64 / pruned.weights as f64;
        assert!((share - 1e-9..share + 0.01).contains(&zeros), "{pattern}: {zeros}");
        // Embedding, head and norms are those of the model before.
        for tensor in model.file().tensors().iter().filter(|t| !after.contains_key(t.name())) {
            let copy = file.tensor(tensor.name()).unwrap();
            assert!(model.file().bytes(tensor) == file.bytes(copy), "{}", tensor.name());
        }
        Model::new(file).unwrap();
    }
}

/// Exactly the largest weights are kept, unchanged.
fn largest(before: &[f32], after: &[f32]) {
    let kept = after.iter().filter(|w| **w != 0.0).map(|w| w.abs());
    let least = kept.fold(f32::INFINITY, f32::min);
    for (before, after) in before.iter().zip(after) {
        assert!(if *after == 0.0 { before.abs() <= least } else { before == after });
    }
}

#[test]
fn both_models_are_scored() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pruned.gguf");
    let (source, text) = (model(Type::F16), text());
    run(&prune(Method::Magnitude, "0.5", None), &source, &text, &out).unwrap();
    let after = Model::new(open_file(&out).unwrap()).unwrap();
    let text = Calibration { text: &text, window_len: 32, windows: 2 };
    let told = &mut |_, _| ControlFlow::Continue(());
    let scores = compare(&source.0, &after, &text, None, told).unwrap();
    assert!(scores.before > 1.0 && scores.after > 1.0 && scores.kl > 1e-4, "{scores:?}");
}

#[test]
fn bad_input_is_named_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pruned.gguf");
    let (plain, text) = (model(Type::F16), text());
    let refused = |prune: &Prune, source: &(Model, Metadata), text: &str, part: &str| {
        let error = run(prune, source, text, &out).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{error}");
    };
    let wanda = prune(Method::Wanda, "2:4", None);
    refused(&prune(Method::Magnitude, "2:7", None), &plain, &text, "not whole groups of 7");
    let dense = prune(Method::Magnitude, "32:64", Some(Type::S4_16_64));
    refused(&dense, &plain, &text, "S4_16_64 needs the pattern 16:64 or fewer of 64, not 32:64");
    refused(&wanda, &plain, "", "the text has");
    refused(&wanda, &plain, "short", "two windows of 32 need 64");
    refused(&wanda, &model(Type::Q8_0), &text, "is quantized already, to Q8_0");
    refused(&prune(Method::Wanda, "2:4", Some(Type::I32)), &plain, &text, "I32");
    // A weight that is not finite makes the activations so.
    let tensor = plain.0.file().tensors().iter().find(|t| t.name().ends_with("ffn_up.weight"));
    let tensor = tensor.unwrap();
    let mut bytes = plain.0.file().bytes(tensor).to_vec();
    bytes[..2].copy_from_slice(&[0, 0x7e]);
    let broken = plain.0.with_tensor(tensor.name(), Type::F16, bytes.into()).unwrap();
    let broken = (broken, plain.1.clone());
    refused(&wanda, &broken, &text, "not finite");
    refused(
        &prune(Method::Magnitude, "2:4", None),
        &broken,
        &text,
        "ffn_up.weight: weight 0 is NaN",
    );
    let source = Source { model: &plain.0, metadata: &plain.1 };
    let stopped = prune(Method::Magnitude, "2:4", None)
        .write(source, None, &out, &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn methods_and_patterns_are_parsed() {
    assert_eq!("16:64".parse(), Ok(Pattern::Groups { keep: 16, of: 64 }));
    assert_eq!("0.5".parse(), Ok(Pattern::Share(0.5)));
    for wrong in ["", "1", "-0.1", "5:4", "0:4", "a:b", "nan"] {
        assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
    }
    for (method, name) in Method::ALL {
        assert_eq!(name.parse(), Ok(method));
    }
    assert!("random".parse::<Method>().is_err());
}
