//! The promise of encoders: the vectors of the original code, whatever the batch and the placement.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use std::path::Path;

use bilayer_cpu::level::Level;
use bilayer_engine::encode::extract::{Aggregation, Options as Extraction};
use bilayer_engine::encode::pair::Relevance;
use bilayer_engine::encode::{Encoder, Excess, Input, normalize};
use bilayer_engine::session::{Overlap, Purpose, Session, Settings, Warning};
use bilayer_engine::{Adapters, Cancel, Error, Model};
use bilayer_gguf::{File, Metadata, MetadataOverride, NewTensor, to_bytes};
use bilayer_graph::reference::Reference;
use bilayer_graph::{Backend, Graph};
use bilayer_models::Pooling;
use bilayer_quant::Type;
use bilayer_scheduler::{Budget, Machine, Placement, place};
use bilayer_text::Encode;
use serde::Deserialize;
use serde_json::Value;

mod support {
    pub mod checkpoint;
    pub mod data;
    pub mod devices;
    pub mod folder;
    pub mod gpu;
    pub mod model;
    pub mod program;
    pub mod runner;
    pub mod words;
}

use support::checkpoint;
use support::data::shared;
use support::devices::{Call, Failing, Fault, Script, cpu};
use support::folder::Folder;
use support::program::{Place, copy};
use support::runner::{Chunk, IN_ORDER, LIMITS, Runner};
use support::words;

fn gpu() -> Option<Box<dyn Backend>> {
    support::gpu::gpu().map(|gpu| Box::new(gpu) as Box<dyn Backend>)
}

/// The CPU, and the GPU if there is one.
fn devices() -> Vec<(&'static str, Box<dyn Backend>)> {
    let gpu = gpu().map(|gpu| ("gpu", gpu));
    std::iter::once(("cpu", cpu(2))).chain(gpu).collect()
}

fn settings(purpose: Purpose) -> Settings<'static> {
    Settings {
        purpose,
        sequences: 32,
        ctx_size: Some(256),
        placing: bilayer_engine::placement::Placing::cpu(),
        ..Settings::default()
    }
}

/// The model on devices, placed as given.
fn placed(
    model: &Model,
    backends: Vec<Box<dyn Backend>>,
    placement: &Placement,
    settings: Settings<'_>,
) -> Encoder {
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
        Ok(place(graph, machine, budget, placement)?)
    };
    Encoder::over(Session::on(model, backends, &planner, settings).unwrap()).unwrap()
}

fn alone(model: &Model, backend: Box<dyn Backend>, settings: Settings<'_>) -> Encoder {
    placed(model, vec![backend], &Placement::single(model.graph().layers(), 0), settings)
}

/// The rows of each text `[rows, width]`, with as many texts per step as fit.
fn rows(encoder: &mut Encoder, inputs: &[Input<'_>]) -> Vec<Vec<f32>> {
    let tokens: Vec<Vec<u32>> =
        inputs.iter().map(|&input| encoder.tokens(input, Excess::Truncate).unwrap()).collect();
    let mut all = Vec::new();
    let inputs = tokens.into_iter().map(Ok::<_, Error>);
    let mut each = |number: usize, _: &[u32], rows: &[f32]| {
        assert_eq!(number, all.len(), "answers come in the order of the texts");
        all.push(rows.to_vec());
        Ok(())
    };
    encoder.run(inputs, &mut each).unwrap();
    all
}

fn text(text: &str) -> Input<'_> {
    Input { text, pair: None }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[derive(Deserialize)]
struct Recorded {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    embedding_f16w: Vec<f32>,
    hidden_first: Vec<f32>,
    hidden_last: Vec<f32>,
}

/// The shared sentence encoder with its recorded answers.
fn minilm() -> Option<(std::path::PathBuf, Vec<Case>)> {
    let folder = shared("all-minilm-l6-v2")?;
    let text = std::fs::read_to_string(folder.join("reference.json")).unwrap();
    let Recorded { cases } = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 24);
    Some((folder.join("model"), cases))
}

fn checkpoint(folder: &Path, ty: Type) -> Model {
    Model::from_bytes("minilm", checkpoint::bytes(folder, ty)).unwrap()
}

#[test]
fn sentences_get_the_vectors_of_the_original_code() {
    let Some((folder, cases)) = minilm() else { return };
    let inputs: Vec<Input<'_>> = cases.iter().map(|case| text(&case.text)).collect();
    // W8A8 here is rounded to nearest, as by `quantize` without a calibration text.
    let of_types =
        [(Type::F32, 0.9999), (Type::F16, 0.9999), (Type::Q8_0, 0.999), (Type::W8A8, 0.995)];
    for (ty, least) in of_types {
        let model = checkpoint(&folder, ty);
        // On a software adapter floats of both widths take as long as each other and run the same kernels.
        for (name, backend) in
            devices().into_iter().filter(|(name, _)| ty != Type::F32 || *name == "cpu")
        {
            // With 8-bit activations the cosine to llama.cpp's vectors is 0.9984; AMX keeps 16 bits for many rows.
            let rounds = ty == Type::Q8_0 && name == "cpu" && Level::detect() != Level::Amx;
            let least = if rounds { 0.9985 } else { least };
            let mut encoder = alone(&model, backend, settings(Purpose::Embed(None)));
            for case in &cases {
                let ids = encoder.tokens(text(&case.text), Excess::Truncate).unwrap();
                assert_eq!(ids, case.ids, "{:?}", case.text);
            }
            let packed = rows(&mut encoder, &inputs);
            let mut worst = 1.0_f64;
            for (case, row) in cases.iter().zip(&packed) {
                let found = cosine(row, &case.embedding_f16w);
                worst = worst.min(found);
                assert!(found >= least, "{ty} on {name}: {found} of {:?}", case.text);
            }
            // A text alone gives the same vector as in a batch. Few rows run on other kernels, which round activations in
            // other groups.
            let same_least = if ty.block_weights > 1 { 0.999 } else { 0.999_999 };
            for (at, case) in [0, 20, 21, 23].map(|at| (at, &cases[at])) {
                let single = rows(&mut encoder, &inputs[at..=at]);
                let found = cosine(&single[0], &case.embedding_f16w);
                assert!(found >= least, "{ty} on {name}, alone: {found} of {:?}", case.text);
                let same = cosine(&single[0], &packed[at]);
                assert!(same >= same_least, "{ty} on {name}: {same} of {:?}", case.text);
                worst = worst.min(found);
            }
            eprintln!("{ty} on {name}: {worst} at least");
        }
    }
}

/// The longest text and the scaling are those of the Sentence Transformers folder.
#[test]
fn embed_follows_the_modules_of_the_checkpoint() {
    let Some((folder, cases)) = minilm() else { return };
    let place = Place::new();
    place.run(&format!("convert {} --outtype f16 --outfile own.gguf", folder.display())).good();
    let bare = place.path().join("bare");
    copy(&folder, &bare);
    let modules = std::fs::read_to_string(folder.join("modules.json")).unwrap();
    let mut modules: Vec<Value> = serde_json::from_str(&modules).unwrap();
    assert!(modules.pop().unwrap()["type"].as_str().unwrap().ends_with(".Normalize"));
    std::fs::write(bare.join("modules.json"), serde_json::to_vec(&modules).unwrap()).unwrap();
    place.run("convert bare --outtype f16 --outfile bare.gguf").good();

    // The reference has 256 tokens of a longer text.
    let long = cases.last().unwrap();
    assert_eq!(long.ids.len(), 256);
    place.file("long.txt", long.text.replace('\n', " "));
    let embed = |model: &str, more: &str| -> Vec<f32> {
        let line = format!("embed -m {model} -f long.txt --truncate -ngl 0 {more}");
        let document: Value = place.run(&line).json();
        serde_json::from_value(document["embedding"].clone()).unwrap()
    };
    let length = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>().sqrt();
    let own = embed("own.gguf", "");
    assert!(cosine(&own, &long.embedding_f16w) > 0.9999 && (length(&own) - 1.0).abs() < 1e-4);
    let bare = embed("bare.gguf", "");
    assert!(cosine(&bare, &own) > 0.9999 && (length(&bare) - 1.0).abs() > 1e-2);
    assert!((length(&embed("bare.gguf", "--embd-normalize 2")) - 1.0).abs() < 1e-4);
    let refused = place.run("embed -m own.gguf -f long.txt -ngl 0");
    assert!(refused.code != Some(0) && refused.err.contains("256"), "{refused:?}");

    // Vectors of several poolings side by side.
    let path = place.path().join("bare/1_Pooling/config.json");
    let mut pooling: Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    pooling["pooling_mode_cls_token"] = true.into();
    std::fs::write(&path, pooling.to_string()).unwrap();
    let refused = place.run("convert bare --outtype f16 --outfile both.gguf");
    assert!(refused.code != Some(0) && refused.err.contains("several poolings"), "{refused:?}");
}

#[test]
fn rows_are_pooled_as_asked() {
    let Some((folder, cases)) = minilm() else { return };
    let model = checkpoint(&folder, Type::F16);
    let inputs: Vec<Input<'_>> = cases[..6].iter().map(|case| text(&case.text)).collect();
    let by = |pooling| {
        rows(&mut alone(&model, cpu(2), settings(Purpose::Embed(Some(pooling)))), &inputs)
    };
    let [each, mean, first, last] =
        [Pooling::None, Pooling::Mean, Pooling::Cls, Pooling::Last].map(by);
    for (at, case) in cases[..6].iter().enumerate() {
        let all: Vec<&[f32]> = each[at].chunks_exact(384).collect();
        assert_eq!(all.len(), case.ids.len());
        let mut sum = vec![0.0; 384];
        all.iter().for_each(|row| sum.iter_mut().zip(*row).for_each(|(sum, x)| *sum += x));
        for (found, expected) in
            [(&mean, sum.as_slice()), (&first, all[0]), (&last, all[all.len() - 1])]
        {
            assert!(cosine(&found[at], expected) > 0.999_999, "{:?}", case.text);
        }
        let near = |row: &[f32], expected: &[f32]| {
            row.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 5e-3)
        };
        assert!(near(&first[at], &case.hidden_first), "{:?}", case.text);
        assert!(near(&last[at], &case.hidden_last), "{:?}", case.text);
    }
}

#[test]
fn every_cut_gives_the_vectors_of_the_whole() {
    let Some((folder, cases)) = minilm() else { return };
    let Some(_) = gpu() else { return };
    let model = checkpoint(&folder, Type::F16);
    let layers = model.graph().layers();
    let inputs: Vec<Input<'_>> = cases[..8].iter().map(|case| text(&case.text)).collect();
    for (count, overlap) in
        (1..=layers + 1).step_by(2).map(|count| (count, Overlap::Auto)).chain([(4, Overlap::Off)])
    {
        let placement = Placement::offload(layers, count, 0, 1);
        let settings = Settings { overlap, ..settings(Purpose::Embed(None)) };
        let mut encoder = placed(&model, vec![cpu(2), gpu().unwrap()], &placement, settings);
        for (case, row) in cases.iter().zip(rows(&mut encoder, &inputs)) {
            let found = cosine(&row, &case.embedding_f16w);
            assert!(found >= 0.9999, "{count} layers on the GPU: {found} of {:?}", case.text);
        }
    }
}

/// If a GPU is lost between texts, the CPU continues.
#[test]
fn a_lost_gpu_changes_no_vector() {
    let model = scorer("modern-bert", &["relevant"]);
    let texts: Vec<String> = (0..40).map(|n| "a b c d ".repeat(1 + n % 9)).collect();
    let inputs: Vec<Input<'_>> = texts.iter().map(|one| text(one)).collect();
    let small =
        || Settings { ubatch_size: 64, ctx_size: Some(64), ..settings(Purpose::Embed(None)) };
    let expected = rows(&mut alone(&model, cpu(2), small()), &inputs);
    let script = Script { call: Call::Submit, after: 3, fault: Fault::Lost };
    let failing = Box::new(Failing::new(cpu(2), script));
    let placement = Placement::offload(model.graph().layers(), 2, 0, 1);
    let mut encoder = placed(&model, vec![cpu(2), failing], &placement, small());
    for (found, expected) in rows(&mut encoder, &inputs).iter().zip(&expected) {
        assert!(cosine(found, expected) > 0.999_999);
    }
    let warnings = encoder.session_mut().take_warnings();
    assert!(matches!(warnings[..], [Warning::Moved { tokens: 0, .. }]), "{warnings:?}");
}

/// Encoders have no KV cache: keys and values are activations.
#[test]
fn a_plan_has_no_cache_but_activations_for_a_step() {
    let model = scorer("bert", &["relevant"]);
    let settings = settings(Purpose::Own);
    let plan = bilayer_engine::placement::plan(&model, &settings, None).unwrap();
    let device = &plan.devices[0];
    // 512 tokens and one more page per text, four heads of 16, keys and values in f32.
    let scratch = 2 * 4 * 64 * 32 * (512 / 32 + 32);
    assert_eq!(device.kv_bytes, 0);
    assert!(device.activation_bytes > scratch, "{plan}");
}

#[test]
fn a_text_that_is_too_long_is_refused_or_cut() {
    let Some((folder, _)) = minilm() else { return };
    let model = checkpoint(&folder, Type::F16);
    let encoder = alone(&model, cpu(2), Settings { ctx_size: Some(8), ..settings(Purpose::Own) });
    let long = text("one two three four five six seven");
    let refused = encoder.tokens(long, Excess::Refuse);
    assert!(matches!(refused, Err(Error::TooLong { tokens: 9, context: 8 })), "{refused:?}");
    let cut = encoder.tokens(long, Excess::Truncate).unwrap();
    assert_eq!((cut.len(), cut[0], cut[7]), (8, 101, 102), "what is around a text stays");
    let too_many = Session::new(&model, Settings { ctx_size: Some(513), ..settings(Purpose::Own) });
    let message = too_many.err().unwrap().to_string();
    assert!(message.contains("learned no more positions"), "{message}");
}

/// A random model of an architecture with a head and a vocabulary of letters.
fn scorer(architecture: &str, labels: &[&str]) -> Model {
    Model::from_bytes(architecture, words::scorer(architecture, labels)).unwrap()
}

#[derive(Deserialize)]
struct Small {
    cases: Vec<SmallCase>,
}

#[derive(Deserialize)]
struct SmallCase {
    ids: Vec<u32>,
    /// `[tokens, width]`.
    hidden: Vec<f32>,
    scores: Option<Vec<f32>>,
    /// Pooled by the mean and projected, to length 1.
    embedding: Option<Vec<f32>>,
}

/// Small random checkpoints read by their name tables: every row and score as computed by transformers, or by the papers'
/// formulas where it has no class, for a text longer than any window, a short one, and a pair with token types, in one step.
#[test]
fn small_checkpoints_give_the_rows_and_scores_of_the_original_code() {
    let folders = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints"));
    for name in [
        "bert",
        "eurobert",
        "gemma-embedding",
        "jina-bert",
        "jina-bert-code",
        "jina-bert-reranker",
        "modern-bert",
        "nomic-bert",
        "options-modern-bert",
        "t5-encoder",
        "t5-encoder-gated",
        "umt5-encoder",
    ] {
        let folder = folders.join(name);
        let text = std::fs::read_to_string(folder.join("reference.json")).unwrap();
        let Small { cases } = serde_json::from_str(&text).unwrap();
        let whole = support::model::Model::new(checkpoint::gguf(&folder));
        let each = support::model::Model::new(checkpoint::gguf(&folder));
        let each = each.changed(|config| {
            let encoder = config.encoder.as_mut().unwrap();
            (encoder.scores, encoder.pooling) = (false, Pooling::None);
        });
        let tokens: Vec<&[u32]> = cases.iter().map(|case| case.ids.as_slice()).collect();
        for (device, backend) in devices().into_iter().chain([("reference", oracle())]) {
            let found = packed(&each, backend, &tokens, &|span| span.collect());
            let expected = cases.iter().flat_map(|case| case.hidden.iter().copied());
            assert_near(&found, &expected.collect::<Vec<_>>(), &format!("{name} on {device}"));
        }
        for (at, case) in cases.iter().enumerate() {
            let Some(embedding) = &case.embedding else { continue };
            for (device, backend) in devices().into_iter().chain([("reference", oracle())]) {
                let mut found = packed(&whole, backend, &tokens[at..=at], &|s| vec![s.end - 1]);
                normalize(&mut found);
                assert_near(&found, embedding, &format!("embedding of {name} on {device}"));
            }
        }
        let Some(pooling) =
            whole.config.encoder.as_ref().filter(|e| e.scores).map(|e| e.head.pooling)
        else {
            continue;
        };
        for (device, backend) in devices().into_iter().chain([("reference", oracle())]) {
            let found = packed(&whole, backend, &tokens, &|span| match pooling {
                Pooling::Mean => vec![span.end - 1],
                _ => vec![span.start],
            });
            let expected = cases.iter().flat_map(|case| case.scores.clone().unwrap());
            assert_near(
                &found,
                &expected.collect::<Vec<_>>(),
                &format!("scores of {name} on {device}"),
            );
        }
    }
}

/// A decoder whose file says that tokens see later ones: with the layers of EuroBERT it has EuroBERT's rows.
#[test]
fn decoders_that_see_both_sides_are_encoders() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints/eurobert"));
    let file = checkpoint::gguf(folder);
    let renamed = |pooling: Option<u32>| {
        let mut metadata = Metadata::new();
        for (key, value) in file.metadata().iter() {
            metadata.set(&key.replace("eurobert.", "qwen2."), value.clone());
        }
        metadata.set("general.architecture", "qwen2");
        if let Some(pooling) = pooling {
            metadata.set("qwen2.pooling_type", pooling);
        }
        let tensors = file.tensors().iter().map(|tensor| {
            let (layout, bytes) = (tensor.layout(), file.bytes(tensor).to_vec());
            NewTensor::bytes(tensor.name(), Type::F32, layout.shape(), bytes)
        });
        // It has biases besides.
        let is_biased = |name: &str| {
            ["q", "k", "v"].iter().any(|x| name.ends_with(&format!("attn_{x}.weight")))
        };
        let biased = file.tensors().iter().filter(|tensor| is_biased(tensor.name()));
        let biases = biased.map(|tensor| {
            let name = tensor.name().replace(".weight", ".bias");
            NewTensor::zeros(&name, Type::F32, &tensor.layout().shape()[..1])
        });
        let bytes = to_bytes(&metadata, tensors.chain(biases).collect::<Vec<_>>()).unwrap();
        File::from_bytes("qwen2", bytes).unwrap()
    };
    let error = bilayer_models::read(&renamed(None)).unwrap_err().to_string();
    assert!(error.contains("qwen2.attention.causal"), "{error}");
    let model = support::model::Model::new(renamed(Some(1)));
    assert!(model.graph.caches.is_empty() && model.graph.takes_whole_sequences());
    let model = model.changed(|config| config.encoder.as_mut().unwrap().pooling = Pooling::None);
    let text = std::fs::read_to_string(folder.join("reference.json")).unwrap();
    let Small { cases } = serde_json::from_str(&text).unwrap();
    for (number, case) in cases.iter().enumerate() {
        for (device, backend) in devices() {
            let found = packed(&model, backend, &[&case.ids], &|span| span.collect());
            assert_near(&found, &case.hidden, &format!("text {number} on {device}"));
        }
    }
}

#[derive(Deserialize)]
struct Scored {
    cases: Vec<ScoredCase>,
}

#[derive(Deserialize)]
struct ScoredCase {
    ids: Vec<u32>,
    scores: Vec<f32>,
    cls_normalised: Vec<f32>,
    hidden_first: Vec<f32>,
    hidden_last: Vec<f32>,
}

/// XLM-RoBERTa, whose positions begin after the padding token's number: first and last row and score of each text, one of
/// them as long as the model takes.
#[test]
fn xlm_roberta_gives_the_rows_and_scores_of_the_original_code() {
    let Some(folder) = shared("arch-tiny/xlm-roberta") else { return };
    let text = std::fs::read_to_string(folder.join("reference.json")).unwrap();
    let Scored { cases } = serde_json::from_str(&text).unwrap();
    let whole = support::model::Model::new(checkpoint::gguf(&folder));
    assert_eq!((whole.config.architecture, whole.config.context), ("bert", 128));
    let each = support::model::Model::new(checkpoint::gguf(&folder)).changed(|config| {
        let encoder = config.encoder.as_mut().unwrap();
        (encoder.scores, encoder.pooling) = (false, Pooling::None);
    });
    for (at, case) in cases.iter().enumerate() {
        for (device, backend) in devices().into_iter().chain([("reference", oracle())]) {
            let what = format!("text {at} on {device}");
            let ends = |span: std::ops::Range<u32>| vec![span.start, span.end - 1];
            let mut rows = packed(&each, backend, &[&case.ids], &ends);
            let last = rows.split_off(whole.config.width);
            assert_near(&rows, &case.hidden_first, &what);
            assert_near(&last, &case.hidden_last, &what);
            normalize(&mut rows);
            assert_near(&rows, &case.cls_normalised, &what);
        }
        for (device, backend) in devices().into_iter().chain([("reference", oracle())]) {
            let score = packed(&whole, backend, &[&case.ids], &|span| vec![span.start]);
            assert_near(&score, &case.scores, &format!("score of text {at} on {device}"));
        }
    }
}

#[derive(Deserialize)]
struct Tagged {
    stride: usize,
    cases: Vec<TaggedCase>,
}

#[derive(Deserialize)]
struct TaggedCase {
    text: String,
    ids: Vec<u32>,
    /// `[tokens, labels]`, with the special tokens.
    logits: Vec<Vec<f32>>,
    /// By the name of the aggregation.
    #[serde(flatten)]
    entities: std::collections::HashMap<String, Value>,
}

#[derive(Debug, Deserialize)]
struct TaggedEntity {
    label: String,
    score: f32,
    start: usize,
    end: usize,
}

/// What the pipeline found, without white space around it and entities of nothing else, and with the `marks` on the last
/// letter, which its offsets lose with the accents.
fn as_we_mark(
    text: &str,
    marks: std::ops::Range<char>,
    found: Vec<TaggedEntity>,
) -> Vec<TaggedEntity> {
    let text: Vec<char> = text.chars().collect();
    let adjusted = found.into_iter().map(|mut entity| {
        let is_mark = |at: usize| text.get(at).is_some_and(|c| marks.contains(c));
        while is_mark(entity.end) {
            entity.end += 1;
        }
        while entity.start < entity.end && text[entity.start].is_whitespace() {
            entity.start += 1;
        }
        while entity.start < entity.end && text[entity.end - 1].is_whitespace() {
            entity.end -= 1;
        }
        entity
    });
    adjusted.filter(|entity| entity.start < entity.end).collect()
}

/// Token classifiers of transformers with words (WordPiece) and without (byte pairs): ids, logits and the entities of each
/// aggregation, of texts with accents, emoji and ideographs and of one longer than the context.
#[test]
fn entities_are_those_of_the_original_code() {
    let folders = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints"));
    let accents = '\u{300}'..'\u{370}';
    let names = [
        ("bert-tokens", accents.clone()),
        ("roberta-tokens", 'a'..'a'),
        ("modern-bert-tokens", accents.clone()),
        ("eurobert-tokens", accents),
    ];
    for (name, marks) in names {
        let folder = folders.join(name);
        let text = std::fs::read_to_string(folder.join("reference.json")).unwrap();
        let Tagged { stride, cases } = serde_json::from_str(&text).unwrap();
        let model = checkpoint(&folder, Type::F32);
        let texts: Vec<&str> = cases.iter().map(|case| case.text.as_str()).collect();
        let backends = if name == "bert-tokens" { devices() } else { vec![("cpu", cpu(2))] };
        for (device, backend) in backends {
            let settings = Settings { ctx_size: None, ..settings(Purpose::Score) };
            let mut encoder = alone(&model, backend, settings);
            assert!(encoder.labels_tokens() && encoder.text_labels().is_err());
            let short: Vec<&TaggedCase> =
                cases.iter().filter(|case| case.ids.len() <= 40).collect();
            assert_eq!(short.len(), cases.len() - 1);
            let inputs: Vec<Input<'_>> = short.iter().map(|case| self::text(&case.text)).collect();
            for (case, row) in short.iter().zip(rows(&mut encoder, &inputs)) {
                let ids = encoder.tokens(self::text(&case.text), Excess::Refuse).unwrap();
                assert_eq!(ids, case.ids, "{name}: {:?}", case.text);
                assert_near(&row, &case.logits.concat(), &format!("{name} on {device}"));
            }
            let mut count = 0;
            for (how, aggregation) in Aggregation::ALL {
                let options =
                    Extraction { aggregation, stride: Some(stride), ..Extraction::default() };
                let extractor = encoder.extractor(options).unwrap();
                let documents = texts.iter().map(|text| extractor.document(text, Excess::Refuse));
                let documents: Vec<_> = documents.collect::<Result<_, _>>().unwrap();
                assert!(documents.last().unwrap().windows().len() > 1);
                let mut each = |number: usize, found: Vec<_>| {
                    let case: &TaggedCase = &cases[number];
                    let expected = serde_json::from_value(case.entities[how].clone()).unwrap();
                    let expected = as_we_mark(&case.text, marks.clone(), expected);
                    let what = format!("{name} on {device}, {how}: {:?}", case.text);
                    assert_eq!(found.len(), expected.len(), "{what}: {found:?}, {expected:?}");
                    for (found, expected) in found.iter().zip(&expected) {
                        let found: &bilayer_engine::encode::extract::Entity = found;
                        let place = (found.chars.start, found.chars.end);
                        let wanted = (expected.label.as_str(), (expected.start, expected.end));
                        assert_eq!((found.label.as_str(), place), wanted, "{what}");
                        assert!((found.score - expected.score).abs() < 1e-3, "{what}: {found:?}");
                        assert_eq!(case.text[found.bytes.clone()], found.text, "{what}");
                    }
                    count += found.len();
                    Ok::<_, Error>(())
                };
                encoder.extract(&extractor, &documents, &mut each).unwrap();
            }
            assert!(count > 100, "{count}");
        }
    }
}

#[test]
fn windows_and_heads_that_do_not_fit_are_reported() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints/bert-tokens"));
    let model = checkpoint(folder, Type::F32);
    let settings = || Settings { ctx_size: Some(8), ..settings(Purpose::Score) };
    let mut encoder = alone(&model, cpu(2), settings());
    let with = |stride| Extraction { stride: Some(stride), ..Extraction::default() };
    let refused = encoder.extractor(with(6)).unwrap_err().to_string();
    assert!(refused.contains("stride") && refused.contains("6 tokens of a window"), "{refused}");
    let extractor = encoder.extractor(with(0)).unwrap();
    let long = "a ".repeat(20);
    let document = extractor.document(&long, Excess::Refuse).unwrap();
    let lengths: Vec<usize> = document.windows().iter().map(|window| window.ids.len()).collect();
    let tokens = extractor.tokens(&long).unwrap().len();
    assert_eq!(extractor.windows(tokens), (lengths.len(), lengths.iter().sum()));
    assert_eq!(lengths, [8, 8, 8, 4]);
    let cut = extractor.document(&long, Excess::Truncate).unwrap();
    assert_eq!(cut.windows().len(), 1);
    let none = extractor.document("", Excess::Refuse).unwrap();
    assert_eq!(none.windows()[0].ids.len(), 2);
    let mut found = Vec::new();
    let mut each = |_, entities: Vec<_>| {
        found.push(entities.len());
        Ok::<_, Error>(())
    };
    encoder.extract(&extractor, &[none, cut], &mut each).unwrap();
    assert_eq!(found[0], 0);
    let scorer = scorer("bert", &["good", "bad"]);
    let encoder = alone(&scorer, cpu(2), self::settings(Purpose::Score));
    let refused = encoder.extractor(Extraction::default()).unwrap_err().to_string();
    assert!(refused.contains("does not label tokens"), "{refused}");
}

fn oracle() -> Box<dyn Backend> {
    Box::new(Reference::new())
}

/// The output rows of texts in one step.
fn packed(
    model: &support::model::Model,
    backend: Box<dyn Backend>,
    texts: &[&[u32]],
    wanted: &dyn Fn(std::ops::Range<u32>) -> Vec<u32>,
) -> Vec<f32> {
    let mut runner = Runner::single(model, backend, LIMITS).unwrap();
    let (mut runs, mut outputs, mut first) = (Vec::new(), Vec::new(), 0);
    for (at, &tokens) in texts.iter().enumerate() {
        runs.push(Chunk { tokens, first_position: 0, pages: &IN_ORDER[4 * at..] });
        outputs.extend(wanted(first..first + tokens.len() as u32));
        first += tokens.len() as u32;
    }
    runner.step(&runs, &outputs, &[]).unwrap()
}

/// Expected values are printed with six decimals and come from f32 sums.
#[track_caller]
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = found.iter().zip(expected).map(|(f, e)| square(f - e)).sum();
    let error = (off / expected.iter().map(|&e| square(e)).sum::<f64>()).sqrt();
    assert!(error < 5e-5, "{what}: error {error:e}");
}

#[test]
fn heads_score_texts_and_pairs_alike_everywhere() {
    for (architecture, labels) in [
        ("bert", &["good", "bad", "neither"][..]),
        ("modern-bert", &["relevant"]),
        ("nomic-bert", &["a", "b"]),
    ] {
        let model = scorer(architecture, labels);
        let inputs = [
            text("a b c"),
            Input { text: "a b", pair: Some("c d e f") },
            Input { text: "a b c", pair: Some("d e f") },
            text("a b c d e f"),
        ];
        let mut oracle = alone(&model, Box::new(Reference::new()), settings(Purpose::Score));
        assert_eq!(oracle.labels(), labels);
        let expected = rows(&mut oracle, &inputs);
        for (at, one) in expected.iter().enumerate() {
            assert_eq!(one.len(), labels.len());
            assert!(
                expected[..at].iter().all(|other| other != one),
                "{architecture}: {expected:?}"
            );
        }
        let placement = Placement::offload(model.graph().layers(), 2, 0, 1);
        let mut cut =
            vec![("cpu and reference", vec![cpu(2), Box::new(Reference::new())], placement)];
        for (name, backend) in devices() {
            cut.push((name, vec![backend], Placement::single(model.graph().layers(), 0)));
        }
        for (name, backends, placement) in cut {
            let mut encoder = placed(&model, backends, &placement, settings(Purpose::Score));
            for (found, expected) in rows(&mut encoder, &inputs).iter().zip(&expected) {
                let near = found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-3);
                assert!(near, "{architecture} on {name}: {found:?}, expected {expected:?}");
            }
        }
        // The input of the head is the embedding.
        let mut under = alone(&model, cpu(2), settings(Purpose::Embed(Some(Pooling::Cls))));
        assert_eq!(rows(&mut under, &inputs)[0].len(), 64);
    }
}

#[test]
fn a_pair_is_two_texts_between_the_tokens_around_them() {
    let model = scorer("bert", &["relevant"]);
    let encoder = alone(&model, cpu(2), settings(Purpose::Score));
    let tokens = |text, pair| encoder.tokens(Input { text, pair }, Excess::Refuse).unwrap();
    let [first, second] = ["a b", "c"].map(|text| tokens(text, None));
    assert_eq!(tokens("a b", Some("c")), [&first[..], &second[1..]].concat());
}

#[test]
fn a_cancel_ends_the_work_between_batches() {
    let model = scorer("bert", &["relevant"]);
    let mut encoder = alone(&model, cpu(2), Settings { sequences: 2, ..settings(Purpose::Score) });
    let cancel = Cancel::new();
    encoder.set_cancel(&cancel);
    let tokens = encoder.tokens(text("a b"), Excess::Refuse).unwrap();
    // The first batch, of two inputs, has been run when the fourth is asked for.
    let inputs = (0..6).map(|number| {
        if number == 3 {
            cancel.cancel();
        }
        Ok::<_, Error>(tokens.clone())
    });
    let mut done = 0;
    let ended = encoder.run(inputs, &mut |_, _, _| {
        done += 1;
        Ok(())
    });
    assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
    assert_eq!(done, 2);
}

#[test]
fn unsupported_uses_of_a_model_are_errors() {
    let encoder = scorer("bert", &["good", "bad"]);
    let bare = {
        let Some((folder, _)) = minilm() else { return };
        checkpoint(&folder, Type::F16)
    };
    let score = |model: &Model| Encoder::new(model, settings(Purpose::Score)).map(|_| ());
    assert!(score(&encoder).is_ok());
    assert!(matches!(score(&bare), Err(Error::NoHead { .. })));
    let decoder = Model::from_bytes("llama", words::tiny(Type::F32, 1));
    let refused = Encoder::new(&decoder.unwrap(), settings(Purpose::Embed(None))).err();
    assert!(matches!(refused, Some(Error::NoEncoder { .. })), "{refused:?}");
}

#[test]
fn normalization_keeps_the_direction() {
    let mut row = [1.0, 2.0, -2.0];
    normalize(&mut row);
    assert!(cosine(&row, &[1.0, 2.0, -2.0]) > 0.999_999 && (row[0] - 1.0 / 3.0).abs() < 1e-6);
}

#[derive(Deserialize)]
struct OfDecoder {
    cases: Vec<DecoderCase>,
}

#[derive(Deserialize)]
struct DecoderCase {
    ids: Vec<u32>,
    logits_last: Vec<f32>,
}

/// A decoder whose folder says that it scores pairs does so by the original code's logits of one or two tokens, whether its
/// output matrix is the embedding or another one.
#[test]
fn rerankers_of_decoders_score_by_the_logits_of_the_original_code() {
    let folders = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints"));
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    for (name, yes, no) in [
        ("options-qwen3", 9, Some(23)),
        ("options-qwen3", 31, None),
        ("options-smollm3", 9, Some(5)),
    ] {
        let folder = Folder::copy(&folders.join(name));
        folder.score_by(yes, no, template);
        let text = std::fs::read_to_string(folder.path().join("reference.json")).unwrap();
        let OfDecoder { cases } = serde_json::from_str(&text).unwrap();
        let model = support::model::Model::new(checkpoint::gguf(folder.path()));
        for (device, backend) in devices().into_iter().chain([("reference", oracle())]) {
            let texts: Vec<&[u32]> = cases.iter().map(|case| case.ids.as_slice()).collect();
            let found = packed(&model, backend, &texts, &|span| vec![span.end - 1]);
            let tokens = || [Some(yes), no].into_iter().flatten();
            let logits =
                |case: &DecoderCase| tokens().map(|id| case.logits_last[id as usize]).collect();
            let expected: Vec<f32> = cases.iter().flat_map::<Vec<f32>, _>(logits).collect();
            assert_near(&found, &expected, &format!("{name} on {device}"));
        }
    }
}

/// A reranker made of a decoder reads a pair in its template, in which what the texts spell is no special token, and which is
/// whole however long the document is.
#[test]
fn pairs_of_a_reranker_are_in_its_template() {
    let template = "a {query}: {document}!</s>b<s>";
    let model = Model::from_bytes("reranker", words::reranker(template)).unwrap();
    let own = || Settings {
        ctx_size: Some(24),
        cache_type_k: Type::F32,
        cache_type_v: Type::F32,
        ..settings(Purpose::Score)
    };
    let encoder = alone(&model, cpu(2), own());
    let spelled = |text: &str| {
        let options = Encode { add_special: false, parse_special: true };
        model.tokenizer().encode(text, options).unwrap()
    };
    let (long, longer) = ("c".repeat(15), "e".repeat(50));
    let tokens = |text, pair| encoder.tokens(Input { text, pair: Some(pair) }, Excess::Truncate);
    assert_eq!(tokens("c d", "e").unwrap(), spelled("a c d: e!</s>b<s>"));
    let found = tokens("</s>", "{query}").unwrap();
    let counts = [1, 2].map(|id| found.iter().filter(|&&token| token == id).count());
    assert_eq!((counts, found.len()), ([1, 1], 21));
    // Of a text alone nothing is in the template.
    let alone = encoder.tokens(text("c d"), Excess::Refuse).unwrap();
    assert_eq!(model.tokenizer().decode(&alone), "c d");
    // What the template has behind the document is left, and the query wherever it is.
    for (template, begins, ends) in [
        (template, "a c d: eee", "!</s> b<s>"),
        ("{document} of {query}</s>", "eee", " of c d</s>"),
        ("<s>{query} {query}: {document} it?", "<s> c d c d: eee", " it?"),
    ] {
        let model = Model::from_bytes("reranker", words::reranker(template)).unwrap();
        let encoder = self::alone(&model, cpu(2), own());
        let input = Input { text: "c d", pair: Some(&longer) };
        let cut = encoder.tokens(input, Excess::Truncate).unwrap();
        let piece = |&id: &u32| model.tokenizer().piece(id).unwrap();
        let shown = String::from_utf8(cut.iter().flat_map(piece).copied().collect()).unwrap();
        let shown = shown.trim_start();
        assert!(shown.starts_with(begins) && shown.ends_with(ends), "{template}: {shown}");
        assert_eq!(cut.len(), 24, "{template}");
    }
    for template in ["{query}", "{document} {document} {query}", ""] {
        let model = Model::from_bytes("reranker", words::reranker(template)).unwrap();
        let error = Encoder::new(&model, own()).map(drop).unwrap_err().to_string();
        assert!(error.contains("tokenizer.chat_template.rerank"), "{error}");
    }
    let refused = tokens(&long, "e").unwrap_err();
    assert!(matches!(refused, Error::QueryTooLong { .. }), "{refused}");

    // The labels are those of the last row.
    let rows_of = |config: &mut bilayer_models::Config| {
        let encoder = config.encoder.as_mut().unwrap();
        assert_eq!((encoder.scores, encoder.head.pooling), (true, Pooling::Last));
        encoder.head.pooling = Pooling::None;
    };
    let file = File::from_bytes("reranker", words::reranker(template)).unwrap();
    let each = support::model::Model::new(file).changed(rows_of);
    let ids = tokens("c d", "e").unwrap();
    let scores = Runner::single(&each, oracle(), LIMITS).unwrap().prefill(&ids).unwrap();
    let last = &scores[scores.len() - 2..];
    let mut encoder = encoder;
    let found = rows(&mut encoder, &[Input { text: "c d", pair: Some("e") }]);
    assert_near(&found[0], last, "scores");
    let relevance = Relevance::of(encoder.labels()).unwrap();
    let expected = 1.0 / (1.0 + (last[1] - last[0]).exp());
    assert!((relevance.score(&found[0]) - expected).abs() < 1e-4, "{relevance:?}");
    assert_eq!(relevance.score(&found[0]), relevance.probability(&found[0]));
}

/// Decoders end below their heads: the rows of texts are those that the reference executor computes for each text alone, in
/// one step or several, on one device or two. The last of the texts is longer than a step.
#[test]
fn decoders_embed_alike_everywhere() {
    for architecture in ["llama", "lfm2", "deepseek2", "qwen3next"] {
        let bytes = words::tiny_of(architecture);
        for pooling in [Pooling::Last, Pooling::Mean, Pooling::None] {
            let what = format!("{architecture}, {pooling:?}");
            let key = [pooling.of_decoder()];
            let file = || File::from_bytes(architecture, bytes.clone()).unwrap();
            let model = Model::adapted(file(), &key, Adapters::default()).unwrap();
            let lens = [3, 1, 20, 40, 7, 90];
            let mut random = support::model::Random(5);
            let texts: Vec<Vec<u32>> =
                lens.map(|len| random.tokens(len, model.config().vocab)).to_vec();
            let mut rows = support::model::Model::new(file().overridden(&key).unwrap());
            rows = rows.changed(|config| {
                config.encoder.as_mut().unwrap().pooling = Pooling::None;
            });
            let width = rows.config.width;
            let expected = texts.iter().map(|tokens| {
                let mut runner = Runner::single(&rows, oracle(), LIMITS).unwrap();
                let rows = runner.prefill(tokens).unwrap();
                match pooling {
                    Pooling::None => rows,
                    Pooling::Last => rows[rows.len() - width..].to_vec(),
                    _ => {
                        let all = rows.chunks_exact(width);
                        let sums = (0..width).map(|at| all.clone().map(|row| row[at]).sum::<f32>());
                        sums.map(|sum| sum / tokens.len() as f32).collect()
                    }
                }
            });
            let expected: Vec<Vec<f32>> = expected.collect();
            let settings = || Settings {
                ubatch_size: 32,
                sequences: 3,
                overlap: Overlap::Always,
                cache_type_k: Type::F32,
                cache_type_v: Type::F32,
                ..settings(Purpose::Embed(Some(pooling)))
            };
            let layers = model.graph().layers();
            let single = || Placement::single(layers, 0);
            let mut places = vec![
                ("cpu", vec![cpu(2)], single()),
                ("cpu and reference", vec![cpu(2), oracle()], Placement::offload(layers, 1, 0, 1)),
            ];
            places.extend(gpu().map(|gpu| ("gpu", vec![gpu], single())));
            for (place, backends, placement) in places {
                let mut encoder = placed(&model, backends, &placement, settings());
                let whole = pooling != Pooling::Last;
                assert_eq!(encoder.step_limits().1, if whole { 256 } else { 32 }, "{what}");
                let mut found = Vec::new();
                let inputs = texts.iter().cloned().map(Ok::<_, Error>);
                encoder
                    .run(inputs, &mut |_, _, rows| {
                        found.push(rows.to_vec());
                        Ok(())
                    })
                    .unwrap();
                for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    assert_near(found, expected, &format!("{what}, text {number} on {place}"));
                }
                assert_eq!(found.len(), texts.len(), "{what} on {place}");
            }
        }
    }
}

/// A text without tokens is an error before any step, and a long one ends when its client no longer waits.
#[test]
fn texts_without_tokens_and_without_a_reader_end() {
    let key =
        [Pooling::Last.of_decoder(), MetadataOverride::new("tokenizer.ggml.add_bos_token", false)];
    let file = File::from_bytes("llama", words::tiny(Type::F32, 1)).unwrap();
    let model = Model::adapted(file, &key, Adapters::default()).unwrap();
    let own = Settings { ubatch_size: 16, ..settings(Purpose::Embed(None)) };
    let mut encoder = alone(&model, cpu(2), own);
    let empty = encoder.tokens(text(""), Excess::Refuse);
    assert!(matches!(empty, Err(Error::NoTokens)), "{empty:?}");
    let mut count = 0;
    let inputs = [vec![], vec![4, 5]].into_iter().map(Ok::<_, Error>);
    let ran = encoder.run(inputs, &mut |_, _, _| {
        count += 1;
        Ok(())
    });
    assert!(matches!(ran, Err(Error::NoTokens)) && count == 0, "{ran:?}, {count}");
    let mut steps = 0;
    let long = std::iter::once(Ok::<_, Error>(vec![5; 100]));
    let ended = encoder.run_while(long, &mut |_, _, _| panic!("it has ended"), &mut || {
        steps += 1;
        steps < 4
    });
    assert!(matches!(ended, Err(Error::Interrupted)) && steps == 4, "{ended:?}, {steps}");
    let again = rows(&mut encoder, &[text("a b")]);
    assert_eq!(again[0].len(), model.config().width);
}
