//! Pruned files have the pattern that was asked for, patterns and layers are chosen by what they cost, a pruned checkpoint
//! keeps its pattern on the way to a quantized file, and bad input is refused by name and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use bilayer_convert::convert::{Convert, check_back, write_back};
use bilayer_convert::mix::Mix;
use bilayer_convert::prune::drop::{self, Dropped};
use bilayer_convert::prune::job::{Job, Step};
use bilayer_convert::prune::ratios::{Goal, PatternCosts, SparseFamily};
use bilayer_convert::prune::{Method, Pattern, Prune, Pruned, Source, compare, journal_of};
use bilayer_convert::quantize::Quantize;
use bilayer_convert::synth::{Shape, Synth};
use bilayer_convert::{Calibration, Error};
use bilayer_engine::layers::{Layers, Then};
use bilayer_engine::placement::Placing;
use bilayer_engine::session::{Run, Session, Settings, Wanted};
use bilayer_engine::{Model, open_file};
use bilayer_gguf::{File, Metadata};
use bilayer_quant::Type;

mod support {
    pub mod data;
    pub mod model;
    pub mod program;
}

use support::data::shared;
use support::program::Place;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/train_demo/checkpoint");

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
    Prune { method, pattern, ty, rules: Vec::new(), requantize: false, threads: Some(2) }
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
        let share = prune.pattern.zeros();
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
        assert!(zeros >= share - 1e-9, "{pattern}: {zeros}");
        let written = after.values().flat_map(|(_, values)| values).filter(|w| **w == 0.0).count();
        assert_eq!(pruned.zeros, written as u64, "{pattern}: zeros are counted after rounding");
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
    for ty in [Type::Q4_1, Type::Q4_K, Type::IQ4_NL] {
        let part = format!("{ty} cannot hold zeros");
        refused(&prune(Method::Magnitude, "0.5", Some(ty)), &plain, &text, &part);
    }
    // A weight that is not finite makes the activations so.
    let tensor = plain.0.file().tensors().iter().find(|t| t.name().ends_with("ffn_up.weight"));
    let tensor = tensor.unwrap();
    let mut bytes = plain.0.file().bytes(tensor).to_vec();
    bytes[..2].copy_from_slice(&[0, 0x7e]);
    let broken = plain.0.with_tensor(tensor.name(), Type::F16, bytes.into()).unwrap();
    let broken = (broken, plain.1.clone());
    refused(&wanda, &broken, &text, "not finite");
    // A gain that is not finite makes the activations so.
    let norm = "blk.1.attn_norm.weight";
    let mut gains = plain.0.file().bytes(plain.0.file().tensor(norm).unwrap()).to_vec();
    gains[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let odd = plain.0.with_tensor(norm, Type::F32, gains.into()).unwrap();
    let odd = (odd, plain.1.clone());
    for method in [Method::Wanda, Method::SparseGpt] {
        refused(&prune(method, "2:4", None), &odd, &text, "what blk.1.attn_k.weight is multiplied");
    }
    refused(
        &prune(Method::Magnitude, "2:4", None),
        &broken,
        &text,
        "ffn_up.weight: weight 0 is NaN",
    );
}

/// Runs that are stopped at the n-th call, and whose journal may have lost its end, go on until the file is complete: with the
/// bytes of an undisturbed run, and nothing pruned twice.
#[test]
fn an_interrupted_run_goes_on_by_its_journal() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (plain, text) = (model(Type::F16), text());
    let source = Source { model: &plain.0, metadata: &plain.1 };
    let calibration = Calibration { text: &text, window_len: 32, windows: 2 };
    let dense = Type::F16;
    for (method, ty) in [
        (Method::Magnitude, Some(Type::S4_16_64)),
        (Method::Wanda, None),
        (Method::SparseGpt, Some(Type::Q8_0)),
    ] {
        let prune = prune(method, "16:64", ty.or(Some(dense)));
        let undisturbed = run(&prune, &plain, &text, &at("whole.gguf")).unwrap();
        let (out, journal) = (at("resumed.gguf"), journal_of(&at("resumed.gguf")));
        let (mut stops, mut calls, mut is_cut) = (0, 0, false);
        let done = loop {
            let mut left = 3 + stops;
            let done = prune.write(source, Some(&calibration), &out, &mut |_, _| {
                (left, calls) = (left - 1, calls + 1);
                if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            let Err(error) = done else { break done.unwrap() };
            assert!(matches!(error, Error::Interrupted), "{error}");
            assert!(!out.exists());
            stops += 1;
            // What a killed process leaves of the matrix that it was writing. Before the input is read there is no journal.
            let bytes = fs::read(&journal).unwrap_or_default();
            if !is_cut && bytes.len() > 4000 {
                fs::write(&journal, &bytes[..bytes.len() - 100]).unwrap();
                is_cut = true;
            }
            assert!(stops < 200, "{method:?}: the run goes on");
        };
        assert!(stops > 3 && done.resumed > 0 && is_cut, "{stops} {done:?}");
        assert_eq!(Pruned { resumed: 0, ..done }, undisturbed);
        assert!(fs::read(&out).unwrap() == fs::read(at("whole.gguf")).unwrap(), "{method:?}");
        fs::remove_file(&out).unwrap();
        assert!(!journal.exists());
    }
}

#[test]
fn a_run_that_fails_keeps_its_finished_matrices() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pruned.gguf");
    let (plain, text) = (model(Type::F16), text());
    let source = Source { model: &plain.0, metadata: &plain.1 };
    let calibration = Calibration { text: &text, window_len: 32, windows: 2 };
    let wanda = prune(Method::Wanda, "2:4", None);
    let mut left = 12;
    let failed = wanda.write(source, Some(&calibration), &out, &mut |_, _| {
        left -= 1;
        if left == 0 {
            // The finished file cannot be put in its place.
            fs::create_dir(&out).unwrap();
        }
        ControlFlow::Continue(())
    });
    assert!(matches!(failed, Err(Error::File(_))), "{failed:?}");
    assert!(journal_of(&out).exists());
    fs::remove_dir(&out).unwrap();
    let done = run(&wanda, &plain, &text, &out).unwrap();
    assert_eq!(done.resumed, done.matrices);
    assert!(!journal_of(&out).exists());
}

#[test]
fn the_journal_of_another_run_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pruned.gguf");
    let (plain, text) = (model(Type::F16), text());
    let (wanda, calibration) = (
        prune(Method::Wanda, "2:4", None),
        Calibration { text: &text, window_len: 32, windows: 2 },
    );
    let source = Source { model: &plain.0, metadata: &plain.1 };
    let mut left = 12;
    let stopped = wanda.write(source, Some(&calibration), &out, &mut |_, _| {
        left -= 1;
        if left > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    let refused = |prune: &Prune, of: &(Model, Metadata), text: &str, part: &str| {
        let error = run(prune, of, text, &out).unwrap_err().to_string();
        let start = format!("{} ", journal_of(&out).display());
        assert!(error.starts_with(&start) && error.contains(part), "{error}");
    };
    refused(&wanda, &model(Type::BF16), &text, "another input file");
    let mut other = plain.1.clone();
    other.set("llama.attention.layer_norm_rms_epsilon", 0.5f32);
    refused(&wanda, &(plain.0.clone(), other), &text, "another input file");
    // A weight anywhere.
    let name = "blk.1.ffn_up.weight";
    let mut bytes = plain.0.file().bytes(plain.0.file().tensor(name).unwrap()).to_vec();
    let place = bytes.len() / 3;
    bytes[place] ^= 1;
    let other = plain.0.with_tensor(name, Type::F16, bytes.into()).unwrap();
    refused(&wanda, &(other, plain.1.clone()), &text, "another input file");
    refused(&prune(Method::Wanda, "1:4", None), &plain, &text, "another method, pattern or type");
    refused(&wanda, &plain, &text[1..], "another calibration text");
    assert!(!out.exists());
    assert!(run(&wanda, &plain, &text, &out).is_ok(), "its own run goes on");
    fs::write(journal_of(&out), "a letter\n").unwrap();
    refused(&wanda, &plain, &text, "is no journal of `prune`");
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

/// The smallest metadata of an architecture, for models that take and return token ids.
fn without_words(architecture: &bilayer_models::Architecture) -> Metadata {
    let mut metadata = (architecture.tiny)();
    metadata.set("tokenizer.ggml.model", "no_vocab");
    metadata
}

/// Layer by layer, every architecture computes what a session computes at once.
#[test]
fn layers_one_by_one_are_the_model() {
    for architecture in bilayer_models::all() {
        let name = architecture.name;
        let metadata = without_words(architecture);
        let bytes = support::model::random_bytes(&metadata, Type::F32, &[], 5, &|_, _| ());
        let model = Model::from_bytes(name, bytes).unwrap();
        let vocab = model.config().vocab;
        let mut random = support::model::Random(9);
        let texts = [random.tokens(7, vocab), random.tokens(4, vocab)];
        let mut layers = Layers::new(&model, texts.to_vec(), Some(1)).unwrap();
        let last = layers.result(layers.len() - 1);
        let mut found = vec![Vec::new(); texts.len()];
        while layers.next_layer() < layers.len() {
            let count = layers.len();
            let place = layers.next_layer();
            // Looking at a layer twice changes nothing.
            for then in [Then::Repeat, Then::Advance] {
                let each = &mut |text: usize, values: &bilayer_engine::layers::LayerValues<'_>| {
                    if place + 1 == count {
                        found[text] = values.get(last).unwrap().to_vec();
                    }
                    true
                };
                assert!(layers.run(&model, &[last], then, each).unwrap());
            }
        }
        let settings = Settings {
            threads: Some(1),
            ctx_size: Some(7),
            outputs: Some(7),
            fuse: false,
            watched: vec![last],
            placing: Placing::cpu(),
            ..Settings::default()
        };
        let mut session = Session::new(&model, settings).unwrap();
        for (tokens, found) in texts.iter().zip(&found) {
            let sequence = session.open().unwrap();
            session.step(&[Run { sequence, tokens, wanted: Wanted::All }]).unwrap();
            let expected = session.watched(last).unwrap();
            let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert_eq!(found.len(), expected.len(), "{name}");
            for (a, b) in found.iter().zip(expected) {
                assert!((a - b).abs() <= 1e-4 * most, "{name}: {a} and {b}");
            }
            session.close(sequence);
        }
    }
}

#[test]
fn patterns_are_chosen_by_what_they_cost() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pruned.gguf");
    let (source, text) = (model(Type::F16), text());
    let calibration = Calibration { text: &text, window_len: 32, windows: 2 };
    let both = (Source { model: &source.0, metadata: &source.1 }, &calibration);
    let told = &mut |_, _| ControlFlow::Continue(());
    let plain = prune(Method::Wanda, "0", None);
    let family: SparseFamily = "S8_N_64".parse().unwrap();
    let measured = PatternCosts::measure(&plain, Some(family), &source.0, &calibration, told);
    let measured = measured.unwrap();
    let again = PatternCosts::measure(&plain, Some(family), &source.0, &calibration, told).unwrap();
    assert_eq!(measured, again, "the same input gives the same choice");
    assert_eq!(measured.matrices.len(), matrices(source.0.file()).len());
    // Sparser patterns are smaller and worse.
    for matrix in &measured.matrices {
        let sparse = matrix.candidates.iter().filter(|c| !matches!(c.pattern, Pattern::Share(_)));
        let sparse: Vec<_> = sparse.map(|candidate| candidate.choice).collect();
        assert!(sparse.len() == 6 && sparse.is_sorted_by(|a, b| a.bytes < b.bytes));
        assert!(sparse.is_sorted_by(|a, b| a.damage >= b.damage), "{matrix:?}");
    }
    let mut before = 0.0;
    for times in [2.0, 3.0] {
        let goal = Goal::Speed(times);
        let (pruned, chosen, _) = measured.write(&plain, goal, both, &out, told).unwrap();
        assert!(measured.speed(&chosen) >= times);
        let expected: f64 = chosen.iter().map(|chosen| chosen.kl).sum();
        assert!(expected > before, "{times} times: {expected} after {before}");
        before = expected;
        let file = open_file(&out).unwrap();
        for chosen in &chosen {
            let ty = file.tensor(&chosen.rule.tensor).unwrap().layout().ty();
            assert_eq!(ty, chosen.rule.ty.unwrap_or(Type::F16));
        }
        assert_eq!(pruned.matrices, chosen.len());
    }
    let error = measured.write(&plain, Goal::Speed(1e3), both, &out, told).unwrap_err().to_string();
    assert!(error.contains("--target-speed: 1000 times is out of reach"), "{error}");
    // Half of the weights in every matrix are worse than what the goal allows.
    let shares = PatternCosts::measure(&plain, None, &source.0, &calibration, told).unwrap();
    let target = 0.02;
    let goal = Goal::Kl(target);
    let (pruned, chosen, kl) = shares.write(&plain, goal, both, &out, told).unwrap();
    assert!(kl.unwrap() <= target && pruned.zeros > 0, "{kl:?} {pruned:?}");
    let patterns: Vec<String> = chosen.iter().map(|c| c.rule.pattern.to_string()).collect();
    assert!(patterns.iter().any(|pattern| *pattern != patterns[0]), "{patterns:?}");
    let after = Model::new(open_file(&out).unwrap()).unwrap();
    let scores = compare(&source.0, &after, &calibration, Some(2), told).unwrap();
    assert!((scores.kl - kl.unwrap()).abs() < 1e-4, "{scores:?} {kl:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    assert!("S4_16_64".parse::<SparseFamily>().is_err());
}

#[test]
fn layers_are_removed_by_what_they_change() {
    let metadata = without_words(bilayer_models::all()[0]);
    // The second layer adds nothing to the hidden state.
    let silent = |name: &str, values: &mut [f32]| {
        if name == "blk.1.attn_output.weight" || name == "blk.1.ffn_down.weight" {
            values.fill(0.0);
        }
    };
    let bytes = support::model::random_bytes(&metadata, Type::F32, &[], 5, &silent);
    let model = Model::from_bytes("tiny", bytes).unwrap();
    let source = Source { model: &model, metadata: &metadata };
    let tokens: Vec<u32> = (0..64).map(|i| i * 7 % model.config().vocab as u32).collect();
    let all = model.config().layers.len();
    assert!(all >= 2, "{all}");
    let told = &mut |_, _| ControlFlow::Continue(());
    // Without a vocabulary there is no text; with one the choice needs it.
    let error = Dropped::Count(1).choose(source, None, Some(1), told).unwrap_err().to_string();
    assert!(error.contains("--drop-layers: this needs a calibration text"), "{error}");
    let error = Dropped::Listed(vec![all]).choose(source, None, Some(1), told).unwrap_err();
    assert!(error.to_string().contains(&format!("there is no layer {all}")), "{error}");
    let chosen = Dropped::Listed(vec![1]).choose(source, None, Some(1), told).unwrap();
    let cut = drop::without(source, &chosen.layers).unwrap();
    assert!(cut.tensor(&format!("blk.{}.attn_q.weight", all - 1)).is_none());
    let cut = Model::new(cut).unwrap();
    assert_eq!(cut.config().layers.len(), all - 1);
    let logits = |model: &Model| {
        let settings = Settings {
            threads: Some(1),
            ctx_size: Some(64),
            outputs: Some(64),
            placing: Placing::cpu(),
            ..Settings::default()
        };
        let mut session = Session::new(model, settings).unwrap();
        let sequence = session.open().unwrap();
        session.step(&[Run { sequence, tokens: &tokens, wanted: Wanted::All }]).unwrap().to_vec()
    };
    assert!(logits(&model) == logits(&cut), "a layer that adds nothing is not missed");
}

#[test]
fn the_layer_that_changes_least_is_found_and_the_file_written() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("pruned.gguf");
    let (plain, text) = (model(Type::F16), text());
    // The first layer's products are small.
    let mut quiet = plain.0.clone();
    for name in ["blk.0.attn_output.weight", "blk.0.ffn_down.weight"] {
        let bytes = vec![0; quiet.file().tensor(name).unwrap().layout().len_bytes() as usize];
        quiet = quiet.with_tensor(name, Type::F16, bytes.into()).unwrap();
    }
    let source = Source { model: &quiet, metadata: &plain.1 };
    let calibration = Calibration { text: &text, window_len: 32, windows: 2 };
    let told = &mut |_, _| ControlFlow::Continue(());
    let auto = Dropped::Auto { kl: 0.01 };
    let choice = auto.choose(source, Some(&calibration), Some(2), told).unwrap();
    assert_eq!(choice.layers, [0]);
    assert!(choice.blocks[0].angle < 1e-6, "{choice:?}");
    let count = Dropped::Count(1).choose(source, Some(&calibration), Some(2), told).unwrap();
    assert_eq!(count, choice);
    let none = Dropped::Auto { kl: 1e-9 };
    let loud = Source { model: &plain.0, metadata: &plain.1 };
    assert!(none.choose(loud, Some(&calibration), Some(2), told).unwrap().layers.is_empty());
    let error = Dropped::Count(2).choose(source, Some(&calibration), Some(2), told).unwrap_err();
    assert!(error.to_string().contains("2 of 2 layers"), "{error}");
    // Together with a pattern.
    let cut = drop::without(source, &choice.layers).unwrap();
    let metadata = cut.metadata().clone();
    let cut = (Model::new(cut).unwrap(), metadata);
    let pruned = run(&prune(Method::SparseGpt, "16:64", None), &cut, &text, &out).unwrap();
    assert_eq!(pruned.matrices, matrices(plain.0.file()).len() / 2);
    assert_eq!(Model::new(open_file(&out).unwrap()).unwrap().config().layers.len(), 1);
}

/// A model that cannot lose layers is refused before the text is looked at.
#[test]
fn layers_that_cannot_go_are_refused_before_the_text_runs() {
    let metadata = without_words(bilayer_models::find("gemma4").unwrap());
    let bytes = support::model::random_bytes(&metadata, Type::F32, &[], 5, &|_, _| ());
    let model = Model::from_bytes("tiny", bytes).unwrap();
    let source = Source { model: &model, metadata: &metadata };
    let calibration = Calibration { text: "", window_len: 32, windows: 2 };
    let told = &mut |_, _| ControlFlow::Continue(());
    for dropped in [Dropped::Count(1), Dropped::Auto { kl: 0.1 }] {
        let refused = dropped.choose(source, Some(&calibration), Some(1), told).unwrap_err();
        assert!(matches!(refused, Error::Model(_)), "{refused}");
    }
}

/// A small mixture of experts and a small encoder.
fn place() -> Place {
    let place = Place::new();
    let sizes = "--layers 2 --width 64 --heads 2 --ffn 64 --vocab 320 --type F32";
    place.run(&format!("synth --shape qwen3-30b-a3b --kv-heads 1 {sizes} moe.gguf")).good();
    place.run(&format!("synth --shape minilm-l6 {sizes} encoder.gguf")).good();
    place.file("text.txt", text());
    place.file("lines.txt", "one line\nanother line\na third line of words\n".repeat(4));
    place
}

#[test]
fn routers_keep_their_weights_and_types() {
    let place = place();
    place.run("prune moe.gguf out.gguf --pattern 0.5 --method magnitude --type F16").good();
    let [before, after] = ["moe.gguf", "out.gguf"].map(|name| open(&place, name));
    let mut routers = 0;
    for tensor in before.tensors() {
        let (name, other) = (tensor.name(), after.tensor(tensor.name()).unwrap());
        if name.contains("ffn_gate_inp.weight") {
            routers += 1;
            assert!(before.bytes(tensor) == after.bytes(other), "{name}");
        } else if name.contains("_exps") {
            assert_eq!(other.layout().ty(), Type::F16, "{name}");
        }
    }
    assert_eq!(routers, 2);
}

fn open(place: &Place, name: &str) -> File {
    File::open(&place.path().join(name)).unwrap()
}

/// A type that a matrix's rows do not fit is refused in the name of both.
#[test]
fn types_that_rows_do_not_fit_are_refused_by_name() {
    let place = place();
    let names = place.names();
    for ty in ["S4_16_64", "S8_32_64"] {
        let keep = &ty[3..5];
        let line = format!("--pattern {keep}:64 --method magnitude --type {ty}");
        let ran = place.run(&format!("prune encoder.gguf x.gguf {line}"));
        let part = format!(".weight: rows of 64 are not a multiple of {ty}'s block of 256");
        assert!(ran.code == Some(2) && ran.err.contains(&part), "{ran:?}");
        assert!(ran.err.contains("blk.0."), "{ran:?}");
        assert_eq!(place.names(), names, "{line}");
    }
}

/// What compares predictions is refused for encoders by its flag, and what does not works.
#[test]
fn encoders_have_no_divergence_of_predictions() {
    let place = place();
    let names = place.names();
    let text = "--calibration lines.txt -c 32 --chunks 4";
    for (line, flag) in [
        ("prune encoder.gguf x.gguf --target-kl 0.1", "--target-kl"),
        ("prune encoder.gguf x.gguf --target-speed 2 --type S8_N_64", "--target-speed"),
        ("prune encoder.gguf x.gguf --drop-layers auto", "--drop-layers auto"),
        ("prune encoder.gguf x.gguf --pattern 0.5 --test text.txt", "--test"),
        ("quantize encoder.gguf x.gguf --target-bpw 8", "--target-bpw"),
    ] {
        let ran = place.run(&format!("{line} {text}"));
        let part = format!("encoder.gguf: {flag}: needs a model that predicts tokens");
        assert!(ran.code == Some(2) && ran.err.contains(&part), "{ran:?}");
        assert_eq!(place.names(), names, "{line}");
    }
    place.file("line.txt", "one line of many words and of more words\n");
    let ran = place.run("prune encoder.gguf x.gguf --pattern 0.5 --calibration line.txt");
    let part = "line.txt: the text has too few lines (1)";
    assert!(ran.code == Some(2) && ran.err.contains(part), "{ran:?}");
    for line in ["--pattern 0.5", "--drop-layers 1"] {
        place.run(&format!("prune encoder.gguf x.gguf {line} {text}")).good();
    }
    assert_eq!(open(&place, "x.gguf").metadata().u32("bert.block_count").unwrap(), 1);
}

/// Options without an effect, and texts and names that do not fit, are refused before the work, in the name of the right file.
#[test]
fn options_without_effect_are_refused_and_files_named() {
    let place = place();
    place.run("synth --type F32 in.gguf").good();
    place.file("short.txt", "too short");
    let text = "--calibration text.txt -c 32 --chunks 4";
    let names = place.names();
    for (line, part) in [
        (format!("--drop-layers 0, --method sparsegpt {text}"), "--method sparsegpt: no weights"),
        (
            format!("--drop-layers 0, --method sparsegpt --type Q6_K {text}"),
            "--method sparsegpt: no weights are removed, and Q6_K is no type for GPTQ; give --pattern, or --type with one of",
        ),
        (format!("--drop-layers 0, --method sparsegpt --type F16 {text}"), "F16 is no type for"),
        (format!("--pattern 0 --method sparsegpt {text}"), "F32 is no type for GPTQ"),
        (format!("--drop-layers 0, --method wanda {text}"), "--method wanda: no weights"),
        (format!("--drop-layers 0, {text}"), "--calibration: nothing is chosen by a text"),
        ("--pattern 0.5 --calibration short.txt".into(), "short.txt: the text has "),
        (format!("--pattern 0.5 {text} --test short.txt"), "short.txt: the text has "),
        ("--pattern 0.5 --method magnitude --test short.txt".into(), "short.txt: the text has "),
        (
            "--pattern 0.5 --method magnitude --type Q4_K_M".into(),
            "`Q4_K_M` is no type of a single",
        ),
        ("--pattern 0.5 --method magnitude --type COPY".into(), "written are F32, F16, BF16"),
    ] {
        let ran = place.run(&format!("prune in.gguf x.gguf {line}"));
        assert!(ran.code == Some(2) && ran.err.contains(part), "{ran:?}");
        assert_eq!(place.names(), names, "{line}");
    }
    // Without a pattern, SparseGPT is GPTQ.
    place
        .run(&format!(
            "prune in.gguf gptq.gguf --drop-layers 0, --method sparsegpt --type Q8_0 {text}"
        ))
        .good();
    place.run("prune in.gguf plain.gguf --drop-layers 0, --type Q8_0").good();
    let name = "blk.0.ffn_up.weight";
    let of = |file: &str| {
        let file = open(&place, file);
        let tensor = file.tensor(name).unwrap();
        (tensor.layout().ty(), file.bytes(tensor))
    };
    assert_eq!((of("gptq.gguf").0, of("plain.gguf").0), (Type::Q8_0, Type::Q8_0));
    assert!(of("gptq.gguf").1 != of("plain.gguf").1);
    assert!(open(&place, "plain.gguf").metadata().get("general.size_label").is_none());
}

#[test]
fn the_checkpoint_is_written_before_the_models_are_scored() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let told = &mut |_, _| ControlFlow::Continue(());
    Convert::default().plan(Path::new(DEMO)).unwrap().write(&at("dense.gguf"), told).unwrap();
    let (input, out, checkpoint, text) =
        (at("dense.gguf"), at("out.gguf"), at("checkpoint"), text());
    let job = Job {
        test: Some(Calibration { text: &text, window_len: 32, windows: 2 }),
        checkpoint: Some((Path::new(DEMO), &checkpoint)),
        ..Job::new(&input, &out, prune(Method::Magnitude, "0.5", None))
    };
    let stopped = job.run(&mut |step, _, _| match step {
        Step::Scoring => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(Error::Interrupted)), "{stopped:?}");
    assert!(out.exists() && checkpoint.join("model.safetensors").exists());
}

/// The way of a pruned checkpoint: its zeros are those of the pruned file, and stay through conversion and quantizing.
#[test]
fn a_pruned_checkpoint_keeps_its_pattern() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let told = &mut |_, _| ControlFlow::Continue(());
    let mut convert = |checkpoint: &Path, name: &str| {
        Convert::default().plan(checkpoint).unwrap().write(&at(name), told).unwrap();
        open_file(&at(name)).unwrap()
    };
    let dense = convert(Path::new(DEMO), "dense.gguf");
    let metadata = dense.metadata().clone();
    let dense = (Model::new(dense).unwrap(), metadata);
    let magnitude = prune(Method::Magnitude, "16:64", None);
    run(&magnitude, &dense, "", &at("pruned.gguf")).unwrap();
    let pruned = open_file(&at("pruned.gguf")).unwrap();
    let expected = matrices(&pruned);
    write_back(Path::new(DEMO), &pruned, &at("checkpoint")).unwrap();
    let back = convert(&at("checkpoint"), "back.gguf");
    for tensor in pruned.tensors() {
        let other = back.tensor(tensor.name()).unwrap();
        assert!(pruned.bytes(tensor) == back.bytes(other), "{}", tensor.name());
    }
    assert!(at("checkpoint").join("tokenizer.json").exists());
    for name in ["S4_16_64", "S8_16_64"] {
        let quantize = Quantize::new(Mix::find(name).unwrap());
        quantize.plan(&back, None).unwrap().write(&at("sparse.gguf"), told).unwrap();
        let sparse = matrices(&open_file(&at("sparse.gguf")).unwrap());
        for (name, (_, values)) in &expected {
            let kept = values.iter().zip(&sparse[name].1).enumerate();
            let most = values.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (place, (before, after)) in kept {
                assert!(*before != 0.0 || *after == 0.0, "{name}: zero {place} became {after}");
                assert!((before - after).abs() <= most / 6.0, "{name} {place}: {before} {after}");
            }
        }
    }
    // A file of another model, and a folder that exists.
    let other = model(Type::F16);
    let error = write_back(Path::new(DEMO), other.0.file(), &at("new")).unwrap_err().to_string();
    assert!(error.contains("tensor blk.0.") && error.contains("of another checkpoint"), "{error}");
    let error = write_back(Path::new(DEMO), &pruned, &at("checkpoint")).unwrap_err().to_string();
    assert!(error.contains("exists already"), "{error}");
    // Both are found before the work.
    for (file, out) in [(other.0.file(), "new"), (dense.0.file(), "checkpoint")] {
        assert!(check_back(Path::new(DEMO), file, &at(out)).is_err());
    }
    check_back(Path::new(DEMO), dense.0.file(), &at("new")).unwrap();
    let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with('.')).collect();
    assert!(left.is_empty() && !at("new").exists(), "{left:?}");
}

/// Checkpoints whose matrices conversion changes beyond the order of their rows: heads of delta nets, in rows and columns.
const NO_WAY_BACK: [&str; 2] = ["qwen35", "qwen35-moe"];

/// The way back of every architecture, whatever its checkpoint makes of several matrices.
#[test]
fn every_checkpoint_takes_all_pruned_matrices_or_is_refused() {
    let Some(all) = shared("arch-tiny") else { return };
    let told = &mut |_, _| ControlFlow::Continue(());
    let mut refused = Vec::new();
    for entry in fs::read_dir(all).unwrap() {
        let checkpoint = entry.unwrap().path();
        if !checkpoint.is_dir() {
            continue;
        }
        let name = checkpoint.file_name().unwrap().to_string_lossy().into_owned();
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mut convert = |checkpoint: &Path, out: &str| {
            let convert = Convert { no_vocab: true, ..Convert::default() };
            convert.plan(checkpoint).unwrap().write(&at(out), told).unwrap();
            open_file(&at(out)).unwrap()
        };
        let dense = convert(&checkpoint, "dense.gguf");
        let metadata = dense.metadata().clone();
        let dense = (Model::new(dense).unwrap(), metadata);
        if let Err(error) = check_back(&checkpoint, dense.0.file(), &at("checkpoint")) {
            assert!(error.to_string().contains("tensor blk."), "{name}: {error}");
            refused.push(name);
            continue;
        }
        run(&prune(Method::Magnitude, "0.5", None), &dense, "", &at("pruned.gguf")).unwrap();
        let pruned = open_file(&at("pruned.gguf")).unwrap();
        write_back(&checkpoint, &pruned, &at("checkpoint")).unwrap();
        let back = convert(&at("checkpoint"), "back.gguf");
        assert_eq!(pruned.tensors().len(), back.tensors().len(), "{name}");
        for tensor in pruned.tensors() {
            let other = back.tensor(tensor.name()).unwrap();
            assert!(pruned.bytes(tensor) == back.bytes(other), "{name}: {}", tensor.name());
        }
    }
    refused.sort();
    assert_eq!(refused, NO_WAY_BACK);
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_reported_before_pruning() {
    let place = Place::new();
    place.run(&format!("convert {DEMO} --outfile dense.gguf")).good();
    fs::create_dir(place.path().join("there")).unwrap();
    let names = place.names();
    let prune = "prune dense.gguf pruned.gguf --method magnitude --pattern 0.5";
    let ran = place.run(&format!("{prune} --checkpoint {DEMO} --checkpoint-out there"));
    assert!(ran.code != Some(0) && ran.err.contains("there: it exists already"), "{ran:?}");
    let within = format!("{DEMO}/../{}/pruned", DEMO.rsplit('/').next().unwrap());
    let ran = place.run(&format!("{prune} --checkpoint {DEMO} --checkpoint-out {within}"));
    assert!(ran.code != Some(0) && ran.err.contains("would be within the checkpoint"), "{ran:?}");
    assert_eq!(place.names(), names);
}
