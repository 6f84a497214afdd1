//! The promise of speculative decoding: draft tokens change the speed of an answer, never the answer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::ops::Range;

use bilayer_cpu::gemm::gemm;
use bilayer_cpu::level::Level;
use bilayer_engine::generate::speculate::{
    Acceptance, Bounds, CHECKED_ROWS, Draft, DraftModel, DraftSettings, Drafted, Drafter, Drafts,
    Lookup, Source, Text,
};
use bilayer_engine::generate::{Generation, Request, Statistics, Stop};
use bilayer_engine::placement::{self, Execution, Placing, Simulation};
use bilayer_engine::sampling::{Candidate, Mirostat, Options, Sampler, Xtc};
use bilayer_engine::session::SequenceId;
use bilayer_engine::session::{Run, Session, Settings, Wanted};
use bilayer_engine::{Error, Model, OpenOptions, SharedBytes};
use bilayer_graph::Backend;
use bilayer_quant::Type;
use bilayer_scheduler::{Machine, Offload, Placement, place};
use tempfile::TempDir;

mod support {
    pub mod checkpoint;
    pub mod data;
    pub mod devices;
    pub mod gpu;
    pub mod greedy;
    pub mod logits;
    pub mod model;
    pub mod program;
    pub mod words;
}

#[path = "drafts/faults.rs"]
mod faults;
#[path = "drafts/mtp.rs"]
mod mtp;

use support::data::shared;
use support::program::Place;
use support::words;

static DEMO: &[u8] = include_bytes!("../crates/cli/assets/demo.gguf");

fn tiny(ty: Type, seed: u64) -> Model {
    Model::from_bytes("tiny", words::tiny(ty, seed)).unwrap()
}

fn settings() -> Settings<'static> {
    let outputs = Some(CHECKED_ROWS);
    Settings {
        threads: Some(1),
        ctx_size: Some(256),
        outputs,
        placing: bilayer_engine::placement::Placing::cpu(),
        ..Settings::default()
    }
}

fn session(model: &Model) -> Session {
    Session::new(model, settings()).unwrap()
}

fn draft_model(draft: &Model, model: &Model, bounds: Bounds) -> DraftModel {
    DraftModel::new(draft, model, settings(), bounds).unwrap()
}

/// A machine with a GPU that computes.
fn simulated() -> Option<Simulation> {
    let machine = "[cpu]\nname = \"c\"\nmemory = \"1GiB\"\nread_gbps = 9\ntops = 1\n\
                   [gpu]\nname = \"g\"\nmemory = \"1GiB\"\nread_gbps = 99\ntops = 9\n";
    Some(Simulation::described(machine, Execution::Compute).unwrap())
}

/// A draft model on a simulated GPU, which drafts while the CPU computes.
fn ahead(draft: &Model, model: &Model, kept: &TempDir, bounds: Bounds) -> DraftModel {
    let placing = Placing {
        gpu_layers: Offload::All,
        margin_bytes: vec![0],
        simulated: simulated(),
        kept: Some(kept.path().to_owned()),
        ..Placing::default()
    };
    DraftModel::new(draft, model, Settings { placing, ..settings() }, bounds).unwrap()
}

/// Rules for the model's tensors are not the draft model's, and its memory is not the model's.
#[test]
fn a_source_of_drafts_is_placed_before_its_model() {
    let (draft, model) = (tiny(Type::Q8_0, 1), tiny(Type::Q8_0, 2));
    let own = || {
        let placing = Placing {
            gpu_layers: Offload::Count(0),
            overrides: vec![("attn".to_owned(), 0)],
            margin_bytes: vec![0],
            simulated: simulated(),
            ..Placing::default()
        };
        Settings {
            threads: Some(1),
            ctx_size: Some(0),
            sequences: 2,
            placing,
            ..Settings::default()
        }
    };
    let open = |source, bounds, of: &Model| {
        let (gpu_layers, drafted) = (Offload::All, Drafted::ONE);
        Drafts::open(&DraftSettings { source, bounds, gpu_layers, drafted }, of, own())
    };
    let bounds = Bounds { draft_max: 20, ..Bounds::default() };
    let drafts = open(Source::Model(&draft), bounds, &model).unwrap();
    let beside = drafts.beside(own());
    let session = drafts.session().unwrap();
    assert!(!session.plan().map.contains("cpu"), "{}", session.plan().map);
    assert_eq!((session.context(), session.limits().sequences), (draft.config().context, 1));
    let used: Vec<u64> = session.plan().devices.iter().map(|device| device.used_bytes).collect();
    assert!(used[1] > 0);
    assert_eq!((beside.placing.taken_bytes, beside.outputs), (used, Some(21)));
    assert_eq!(beside.placing.overrides, own().placing.overrides);

    let lookup = open(Source::Lookup, Bounds::default(), &model).unwrap();
    assert!(lookup.session().is_none());
    let beside = lookup.beside(own());
    assert_eq!((beside.placing.taken_bytes, beside.outputs), (Vec::new(), Some(8)));

    let many = Bounds { draft_max: 65, ..Bounds::default() };
    let unlikely = Bounds { draft_p_min: f32::NAN, ..Bounds::default() };
    for (source, bounds, part) in [
        (Source::Mtp, Bounds::default(), "multi-token prediction"),
        (Source::Lookup, many, "draft-max is 65; it must be between 1 and 64"),
        (Source::Lookup, unlikely, "draft-p-min is NaN; it must be between 0 and 1"),
    ] {
        let error = open(source, bounds, &model).err().expect("an error").to_string();
        assert!(error.contains(part), "{error}");
    }
}

fn some(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| 3 + ((i * 31 + seed * 17 + i * i * 7) % 120) as u32).collect()
}

fn greedy() -> Options {
    Options { temperature: 0.0, ..Options::default() }
}

#[derive(Debug, PartialEq)]
struct Answer {
    ids: Vec<u32>,
    text: String,
    stop: Stop,
    /// Tokens of the sequence afterwards.
    held: Vec<u32>,
}

fn generate(
    (model, session): (&Model, &mut Session),
    options: &Options,
    request: Request<'_>,
    drafter: Option<&mut dyn Drafter>,
) -> (Answer, Statistics) {
    let sequence = session.open().unwrap();
    generate_on(sequence, (model, session), options, request, drafter)
}

/// Answers after the tokens that the sequence holds, and closes it.
fn generate_on(
    sequence: SequenceId,
    (model, session): (&Model, &mut Session),
    options: &Options,
    request: Request<'_>,
    drafter: Option<&mut dyn Drafter>,
) -> (Answer, Statistics) {
    let (vocab, context) = (session.vocab(), session.context());
    let sampler = Sampler::new(options.clone(), vocab, context).unwrap();
    let mut generation = Generation::new(model, session, sequence, sampler, request).unwrap();
    if let Some(drafter) = drafter {
        generation = generation.with_drafter(drafter).unwrap();
    }
    let (mut ids, mut text) = (Vec::new(), String::new());
    while let Some(token) = generation.next().unwrap() {
        ids.push(token.id);
        text.push_str(&token.text);
    }
    text.push_str(&generation.finish());
    let (stop, statistics) = (generation.stop().unwrap(), generation.statistics());
    drop(generation);
    let held = session.tokens(sequence).to_vec();
    session.close(sequence);
    (Answer { ids, text, stop, held }, statistics)
}

/// Drafts arbitrary tokens, mostly wrong, sometimes the right ones.
struct Oracle {
    answer: Vec<u32>,
    prompt: usize,
}

impl Drafter for Oracle {
    fn begin(&mut self, _: &Options) -> Result<(), Error> {
        Ok(())
    }

    fn draft(&mut self, text: Text<'_>, most: usize, draft: &mut Draft) -> Result<(), Error> {
        let done = text.len() - self.prompt;
        for at in done..done + most.min(1 + done % 9) {
            let is_right = at % 5 != 3 && at < self.answer.len();
            draft.push(if is_right { self.answer[at] } else { 3 + (at as u32 * 7) % 100 });
        }
        Ok(())
    }
}

/// The available models, with a name.
fn models() -> Vec<(String, Model)> {
    let mut models = vec![("demo".to_owned(), demo())];
    for (ty, seed) in [(Type::F32, 7), (Type::F16, 8), (Type::Q8_0, 9)] {
        models.push((format!("tiny {ty}"), tiny(ty, seed)));
    }
    for (folder, files) in [
        (
            "stories260k",
            &["stories260k-f32", "stories260k-f16", "stories260k-q8_0", "stories260k-q4_0"][..],
        ),
        (
            "quant/llama-256",
            &[
                "q8_0",
                "q4_0",
                "q2_k",
                "q3_k_m",
                "q4_k_m",
                "q5_k_m",
                "q6_k",
                "iq4_nl",
                "iq4_xs",
                "mxfp4_moe",
                "tq2_0",
            ],
        ),
    ] {
        let Some(folder) = shared(folder) else { continue };
        for file in files {
            let path = folder.join(format!("{file}.gguf"));
            models.push(((*file).to_owned(), Model::open(&path, OpenOptions::default()).unwrap()));
        }
    }
    models
}

fn demo() -> Model {
    Model::from_bytes("demo", SharedBytes::from_static(DEMO)).unwrap()
}

/// Greedy answers rely on this: when draft tokens are verified, the CPU computes a row with the same bits alone and among
/// others.
#[test]
fn rows_verified_together_have_the_bits_of_single_ones() {
    let levels: Vec<Level> = Level::available().collect();
    let tokens = some(2 * CHECKED_ROWS + 1, 3);
    for (name, model) in models() {
        for &level in &levels {
            let settings = Settings { cpu_level: Some(level), sequences: 2, ..settings() };
            let mut session = Session::new(&model, settings).unwrap();
            let mut rows = |chunk: usize| {
                let sequence = session.open().unwrap();
                let mut rows = Vec::new();
                for tokens in tokens.chunks(chunk) {
                    let run = Run { sequence, tokens, wanted: Wanted::Verified };
                    rows.extend(session.step(&[run]).unwrap().iter().map(|x| x.to_bits()));
                }
                session.close(sequence);
                rows
            };
            let single = rows(1);
            for chunk in [2, 3, 5, CHECKED_ROWS] {
                assert!(rows(chunk) == single, "{name}, {level}: {chunk} rows");
            }
        }
    }
}

/// The smallest number of rows for which any of a model's matrices has matrix kernels.
fn least_of_matrix_kernels(model: &Model, level: Level) -> usize {
    let matrices = model.graph().weights.iter().filter(|weight| !weight.is_vector());
    matrices.map(|w| gemm(w.ty, w.cols, level).tokens_min).min().unwrap()
}

/// Exactness is a field of the step and not inferred from its shape: a prompt of five tokens takes the prefill kernels
/// wherever these are faster, and its rows have the bits of a longer prompt's.
#[test]
fn a_short_prompt_takes_the_prefill_kernels() {
    const SHORT: usize = 5;
    let tokens = some(CHECKED_ROWS, 3);
    let mut checked = 0;
    for (name, model) in models() {
        for level in Level::available() {
            let matrices = || model.graph().weights.iter().filter(|weight| !weight.is_vector());
            let is_faster = matrices().all(|w| gemm(w.ty, w.cols, level).tokens_min <= SHORT);
            let settings = Settings { cpu_level: Some(level), ..settings() };
            let mut session = Session::new(&model, settings).unwrap();
            let mut row = |count: usize, wanted| {
                let sequence = session.open().unwrap();
                let run = Run { sequence, tokens: &tokens[..count], wanted };
                let rows = session.step(&[run]).unwrap().to_vec();
                session.close(sequence);
                rows.into_iter().map(f32::to_bits).take(session.vocab()).collect::<Vec<u32>>()
            };
            let (exact, alone) = (row(SHORT, Wanted::Verified), row(1, Wanted::All));
            assert!(
                exact == alone,
                "{name}, {level}: verified rows are not those of single tokens"
            );
            let least = least_of_matrix_kernels(&model, level);
            let fewer = row(least - 1, Wanted::All);
            assert!(fewer == exact, "{name}, {level}: {least} - 1 tokens take the dot kernels");
            if is_faster {
                checked += 1;
                assert!(row(SHORT, Wanted::All) != exact, "{name}, {level}: decode kernels");
            }
        }
    }
    eprintln!("{checked} pairs of a model and a level have matrix kernels for {SHORT} tokens");
    assert!(checked > 0);
}

/// Rows verified together far into a text, where attention splits the pages of a sequence: at position 512 for the first
/// time, and at 1024. Windows begin at another page for each 32nd row, and sixteen query heads per key head leave a tile four
/// rows.
#[test]
fn rows_far_into_a_text_have_the_bits_of_single_ones() {
    let window = ("attention.sliding_window", 530);
    let of_heads = [("attention.head_count", 16), ("attention.head_count_kv", 1)];
    let of = |sizes: &[(&str, u32)]| {
        Model::from_bytes("tiny", words::tiny_of_sizes("llama", sizes)).unwrap()
    };
    let cases = [
        ("as they are", tiny(Type::F16, 4), 499),
        ("as they are, later", tiny(Type::F16, 4), 1010),
        ("with a window", of(&[window]), 1010),
        ("with many heads per key head", of(&of_heads), 499),
        ("with both", of(&[window, of_heads[0], of_heads[1]]), 1010),
    ];
    for (name, model, len) in cases {
        let settings = Settings { ctx_size: Some(1152), ..settings() };
        let mut session = Session::new(&model, settings).unwrap();
        let (start, tokens) = (some(len, 1), some(40, 2));
        let mut rows = |chunk: usize| {
            let sequence = session.open().unwrap();
            session.prefill(sequence, &start, &mut |_| true).unwrap();
            let mut rows = Vec::new();
            for tokens in tokens.chunks(chunk) {
                let run = Run { sequence, tokens, wanted: Wanted::Verified };
                rows.extend(session.step(&[run]).unwrap().iter().map(|x| x.to_bits()));
            }
            session.close(sequence);
            rows
        };
        let single = rows(1);
        for chunk in 2..=CHECKED_ROWS {
            assert!(rows(chunk) == single, "{name}: {chunk} rows");
        }
    }
}

/// One token each of several texts: a few have the bits of single ones; more may take other kernels.
#[test]
fn texts_answered_together_get_the_answers_of_single_ones() {
    let tokens = some(6, 5);
    for (name, model) in models() {
        let settings = Settings { sequences: CHECKED_ROWS, ..settings() };
        let mut session = Session::new(&model, settings).unwrap();
        // The last rows of `count` texts of the same tokens, each with its own start.
        let mut rows = |texts: Range<usize>| {
            let ids: Vec<SequenceId> = texts.clone().map(|_| session.open().unwrap()).collect();
            let mut rows = Vec::new();
            for at in 0..tokens.len() {
                let turned: Vec<[u32; 1]> =
                    texts.clone().map(|text| [tokens[(at + text) % tokens.len()]]).collect();
                let runs: Vec<Run<'_>> = std::iter::zip(&ids, &turned)
                    .map(|(&sequence, tokens)| Run { sequence, tokens, wanted: Wanted::Last })
                    .collect();
                rows = session.step(&runs).unwrap().to_vec();
            }
            ids.into_iter().for_each(|id| session.close(id));
            rows
        };
        let alone: Vec<f32> = (0..CHECKED_ROWS).flat_map(|text| rows(text..text + 1)).collect();
        let width = alone.len() / CHECKED_ROWS;
        let least = least_of_matrix_kernels(&model, Level::detect());
        for count in [2, 4, 5, CHECKED_ROWS] {
            let (found, alone) = (rows(0..count), &alone[..count * width]);
            if count < least {
                assert!(found == alone, "{name}: {count} texts");
            }
            let squares =
                |values: &mut dyn Iterator<Item = f32>| values.map(|x| x * x).sum::<f32>();
            let off = squares(&mut found.iter().zip(alone).map(|(a, b)| a - b))
                / squares(&mut alone.iter().copied());
            // Activations of IQ4_XS have a scale for each 32 alone, and one for 256 together (1.9e-2 measured).
            assert!(off.sqrt() < 0.02, "{name}: {count} texts are off by {}", off.sqrt());
        }
    }
}

#[test]
fn greedy_answers_are_those_without_drafts() {
    let other = tiny(Type::F32, 8);
    for (name, model) in models() {
        let mut session = session(&model);
        // A repeated part, so that lookup finds drafts.
        let prompt = [some(6, 1), some(9, 2), some(6, 1)].concat();
        let is_tiny = name.starts_with("tiny");
        for (predict, stop) in [(Some(1), ""), (Some(60), ""), (Some(40), "e"), (None, "")] {
            let stops = if stop.is_empty() { Vec::new() } else { vec![stop.to_owned()] };
            let ignore_eos = predict.is_none();
            let request = || Request {
                predict,
                stops: stops.clone().into(),
                ignore_eos,
                ..Request::new(&prompt)
            };
            let (plain, spent) = generate((&model, &mut session), &greedy(), request(), None);
            assert_eq!((spent.drafted, spent.steps + 1), (0, plain.ids.len()));
            let bounds = Bounds { draft_p_min: 0.0, ..Bounds::default() };
            let mut drafters: Vec<(&str, Box<dyn Drafter>)> = vec![
                ("lookup", Box::new(Lookup::new(Bounds::default()))),
                ("itself", Box::new(draft_model(&model, &model, bounds))),
                ("oracle", Box::new(Oracle { answer: plain.ids.clone(), prompt: prompt.len() })),
            ];
            if is_tiny {
                drafters.push(("other", Box::new(draft_model(&other, &model, bounds))));
            }
            for (who, mut drafter) in drafters {
                let (found, spent) =
                    generate((&model, &mut session), &greedy(), request(), Some(drafter.as_mut()));
                assert_eq!(found, plain, "{name}, {predict:?}, {stop:?}: {who}");
                assert!(spent.accepted <= spent.drafted);
                // Each step makes one token besides the accepted drafts, unless a draft ends the answer.
                let ahead = spent.steps + 1 + spent.accepted - plain.ids.len();
                assert!(ahead <= usize::from(predict.is_some()), "{name}: {who}: {spent:?}");
                // With quantized weights a prompt's kernels round activations more finely than those of a token, so that a
                // draft model which computes some tokens in other steps may decide near ties differently.
                if who == "itself" && plain.stop == Stop::Length {
                    let is_same = spent.accepted == spent.drafted;
                    let is_float = name.ends_with("f32") || name.ends_with("f16");
                    let rounds_twice = !is_float && spent.accepted > 0;
                    assert!(is_same || rounds_twice, "{name}: {predict:?} {stop:?}: {spent:?}");
                }
                if who == "oracle" && predict.is_none() {
                    assert!(spent.accepted > 50 && spent.accepted + 20 < spent.drafted);
                }
            }
        }
    }
}

/// Lookup drafts have probability 1, so that sampling uses the same random numbers as without drafts.
#[test]
fn a_seed_gives_the_same_text_with_lookup() {
    let model = tiny(Type::F32, 7);
    let prompt = [some(6, 1), some(9, 2), some(6, 1)].concat();
    for seed in 0..5 {
        let xtc = Some(Xtc { probability: 0.3, threshold: 0.1 });
        let options = Options { seed, xtc, ..Options::default() };
        let request = || Request { predict: Some(80), ignore_eos: true, ..Request::new(&prompt) };
        let mut lookup = Lookup::new(Bounds::default());
        let (plain, _) = generate((&model, &mut session(&model)), &options, request(), None);
        let (found, spent) =
            generate((&model, &mut session(&model)), &options, request(), Some(&mut lookup));
        assert_eq!(found, plain, "seed {seed}");
        assert!(spent.drafted > 0);
    }
}

/// A repetitive text, for which lookup pays.
#[test]
fn lookup_drafts_repetitive_texts() {
    let model = tiny(Type::F32, 7);
    let prompt = some(12, 4);
    let request = || Request { ignore_eos: true, ..Request::new(&prompt) };
    let mut lookup = Lookup::new(Bounds::default());
    let (answer, spent) =
        generate((&model, &mut session(&model)), &greedy(), request(), Some(&mut lookup));
    assert_eq!(answer.stop, Stop::Context);
    assert!(spent.accepted * 2 > spent.drafted && spent.steps * 3 < answer.ids.len(), "{spent:?}");
}

/// Outcomes of three tokens, each with its count.
type Counts = BTreeMap<Vec<u32>, f64>;

fn counts(
    model: &Model,
    prompt: &[u32],
    options: &Options,
    seeds: std::ops::Range<u64>,
    mut drafter: Option<&mut dyn Drafter>,
) -> (Counts, Statistics) {
    // All answers begin with the same token.
    let mut session = Session::new(model, Settings { sequences: 2, ..settings() }).unwrap();
    let (last, before) = prompt.split_last().unwrap();
    let begun = session.open().unwrap();
    session.prefill(begun, before, &mut |_| true).unwrap();
    let (mut counts, mut all) = (Counts::new(), Statistics::default());
    for seed in seeds {
        let options = Options { seed, ..options.clone() };
        let request = Request {
            predict: Some(5),
            ignore_eos: true,
            ..Request::new(std::slice::from_ref(last))
        };
        let sequence = session.fork(begun).unwrap();
        let drafter: Option<&mut dyn Drafter> = match &mut drafter {
            Some(drafter) => Some(&mut **drafter),
            None => None,
        };
        let (answer, spent) =
            generate_on(sequence, (model, &mut session), &options, request, drafter);
        *counts.entry(answer.ids[1..4].to_vec()).or_default() += 1.0;
        all.drafted += spent.drafted;
        all.accepted += spent.accepted;
    }
    (counts, all)
}

/// Pearson's test that two samples of equal size have the same distribution, as a normal deviate (Wilson and Hilferty
/// 1931). Rare outcomes are merged.
fn deviations(a: &Counts, b: &Counts) -> f64 {
    let mut cells: Vec<(f64, f64)> = Vec::new();
    let mut rare = (0.0, 0.0);
    for outcome in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
        let count = |counts: &Counts| counts.get(outcome).copied().unwrap_or(0.0);
        let cell = (count(a), count(b));
        if cell.0 + cell.1 < 10.0 {
            rare = (rare.0 + cell.0, rare.1 + cell.1);
        } else {
            cells.push(cell);
        }
    }
    if rare.0 + rare.1 >= 10.0 {
        cells.push(rare);
    }
    let statistic: f64 = cells.iter().map(|(a, b)| (a - b).powi(2) / (a + b)).sum();
    let freedom = (cells.len() - 1) as f64;
    let spread = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Reports a distribution that its draft was not drawn from.
struct Liar {
    token: u32,
}

impl Drafter for Liar {
    fn begin(&mut self, _: &Options) -> Result<(), Error> {
        Ok(())
    }

    fn draft(&mut self, _: Text<'_>, _: usize, draft: &mut Draft) -> Result<(), Error> {
        let chance = |id, p| Candidate { id, logit: 0.0, p };
        draft.push_drawn(self.token, &[chance(self.token, 0.1), chance(self.token ^ 1, 0.9)]);
        Ok(())
    }
}

/// A model with several likely tokens everywhere; models of one seed differ by the factor on a part of each layer.
fn undecided(seed: u64, factor: f32) -> Model {
    let bytes = words::tiny_with(Type::F32, seed, &|name, values| {
        let factor = match name {
            "output_norm.weight" => 0.4,
            name if name.contains("ffn_up") => factor,
            _ => 1.0,
        };
        values.iter_mut().for_each(|value| *value *= factor);
    });
    Model::from_bytes("undecided", bytes).unwrap()
}

/// The number of times each answer is given.
const ANSWERS: u64 = 1000;

#[test]
fn sampled_answers_have_the_distribution_without_drafts() {
    let model = undecided(7, 1.0);
    // An unrelated draft model, and a similar one.
    let (other, near) = (undecided(8, 1.0), undecided(7, 0.7));
    let plain =
        Options { temperature: 1.0, top_k: 5, top_p: 1.0, min_p: 0.0, ..Options::default() };
    let chains = [
        ("top-k", plain.clone()),
        ("top-p", Options { top_k: 0, temperature: 1.5, top_p: 0.8, ..plain.clone() }),
        ("penalty", Options { repeat_penalty: 1.5, presence_penalty: 0.5, ..plain.clone() }),
        ("xtc", Options { xtc: Some(Xtc { probability: 0.5, threshold: 0.1 }), ..plain.clone() }),
        (
            "mirostat",
            Options {
                mirostat: Some(Mirostat { version: 2, tau: 3.0, eta: 0.2 }),
                ..plain.clone()
            },
        ),
    ];
    let prompt = [some(5, 1), some(5, 2), some(5, 1)].concat();
    let sure =
        |draft_min| Bounds { draft_p_min: 0.3, draft_min, draft_max: 2, ..Bounds::default() };
    let check = &|name: &str, options: Options| {
        let (expected, _) = counts(&model, &prompt, &options, 0..ANSWERS, None);
        let (again, _) = counts(&model, &prompt, &options, ANSWERS..2 * ANSWERS, None);
        let off = deviations(&expected, &again);
        assert!(expected.len() > 10 && off < 4.0, "{name}: {off} standard deviations");
        let kept = tempfile::tempdir().unwrap();
        let mut drafters: Vec<(&str, Box<dyn Drafter>)> = vec![
            ("other", Box::new(draft_model(&other, &model, sure(2)))),
            ("near", Box::new(draft_model(&near, &model, sure(0)))),
            ("likely", Box::new(Oracle { answer: likely(&expected), prompt: prompt.len() })),
            ("ahead", Box::new(ahead(&near, &model, &kept, Bounds { draft_max: 1, ..sure(1) }))),
        ];
        for (who, drafter) in &mut drafters {
            let seeds = 2 * ANSWERS..3 * ANSWERS;
            let (found, spent) = counts(&model, &prompt, &options, seeds, Some(drafter.as_mut()));
            let off = deviations(&expected, &found);
            assert!(off < 4.0, "{name}, {who}: {off} standard deviations");
            assert!(
                spent.accepted > 100 && spent.accepted < spent.drafted,
                "{name} {who} {spent:?}"
            );
        }
        drop(drafters);
        let counted = Acceptance::known(kept.path(), &near, &model);
        assert!(counted.ready > 50, "{name}: {counted:?}");
    };
    std::thread::scope(|scope| {
        for (name, options) in chains {
            scope.spawn(move || check(name, options));
        }
    });
}

/// The most frequent outcome, without its first token.
fn likely(counts: &Counts) -> Vec<u32> {
    let best = counts.iter().max_by(|a, b| a.1.total_cmp(b.1)).unwrap().0;
    [&[0], &best[..]].concat()
}

/// Checks that the test above can fail.
#[test]
fn a_drafter_with_a_wrong_distribution_is_detected() {
    let model = undecided(7, 1.0);
    let options = Options { temperature: 1.0, top_k: 5, ..Options::default() };
    let prompt = some(9, 1);
    let (expected, _) = counts(&model, &prompt, &options, 0..ANSWERS, None);
    let mut liar = Liar { token: likely(&expected)[1] };
    let (found, _) = counts(&model, &prompt, &options, ANSWERS..2 * ANSWERS, Some(&mut liar));
    let off = deviations(&expected, &found);
    assert!(off > 8.0, "{off} standard deviations");
}

#[test]
fn another_vocabulary_is_refused() {
    let (a, b) = (tiny(Type::F32, 7), demo());
    let refused = DraftModel::new(&b, &a, settings(), Bounds::default()).err().unwrap();
    let text = refused.to_string();
    assert!(matches!(refused, Error::Vocabularies { .. }), "{text}");
    assert!(text.contains("demo cannot draft for tiny: it has "), "{text}");
}

/// The model gets the GPU memory that the draft model leaves, even if the driver still reports all of it as free.
#[test]
fn both_models_together_fit_the_adapter() {
    let (draft, model) = (tiny(Type::F32, 1), tiny(Type::F32, 2));
    let machine = |bytes: u64| {
        let cpu = bilayer_cpu::Cpu::new(Default::default()).unwrap();
        let gpu = bilayer_graph::Facts::offload("gpu", "a GPU for tests", bytes);
        Machine::new(vec![cpu.facts().clone(), gpu])
    };
    let placing =
        || Placing { gpu_layers: Offload::All, margin_bytes: vec![0], ..Placing::default() };
    let with = |placing| Settings { placing, ..settings() };
    let plan = |model: &Model, placing, bytes| {
        placement::plan(model, &with(placing), Some(machine(bytes)))
    };
    let needed = plan(&draft, placing(), 1 << 40).unwrap().devices[1].used_bytes;
    let first = plan(&draft, placing(), 2 * needed).unwrap();
    let beside = |bytes| placing().beside(&first, vec![bytes]);
    let second = plan(&model, beside(2 * needed), 2 * needed).unwrap();
    assert_eq!(second.devices[1].used_bytes, needed);
    // What the driver tells later does not matter.
    assert_eq!(plan(&model, beside(2 * needed), needed).unwrap().map, second.map);
    let short = 2 * needed - 1;
    assert!(plan(&model, beside(short), short).is_err());
    let auto = Placing { gpu_layers: Offload::Auto, ..beside(short) };
    let used = plan(&model, auto, short).unwrap().devices[1].used_bytes;
    assert!(used + needed <= short, "{used}");
    // The host and a GPU that shares its memory have room for all that both models need, or for a byte less.
    let shared = |bytes: u64| {
        let mut machine = machine(1 << 40);
        machine.devices[0].memory_bytes = bytes;
        machine.devices[1].uses_host_memory = true;
        machine
    };
    let plan = |placing, bytes| {
        placement::plan(&model, &with(placing), Some(shared(bytes))).map(|plan| plan.devices)
    };
    let [host, _] = &second.devices[..] else { panic!("two devices") };
    let room = first.devices[0].used_bytes + 2 * needed + host.used_bytes - host.weight_bytes;
    assert_eq!(plan(beside(1 << 40), room).unwrap()[1].used_bytes, needed);
    assert!(plan(beside(1 << 40), room - 1).is_err());
}

/// On a GPU the order of sums differs between single and batched rows, so near ties may flip. The test checks that drafts
/// are used, and that the answers are those of the CPU unless a tie is near.
#[test]
fn drafts_are_verified_on_a_gpu() {
    let Some(gpu) = support::gpu::gpu() else { return };
    let model = demo();
    let backends: Vec<Box<dyn Backend>> =
        vec![Box::new(bilayer_cpu::Cpu::new(Default::default()).unwrap()), Box::new(gpu)];
    let planner = |graph: &bilayer_graph::Graph, machine: &_, budget: &_| {
        Ok(place(
            graph,
            machine,
            budget,
            &Placement::offload(graph.layers(), graph.layers() + 1, 0, 1),
        )?)
    };
    let mut session = Session::on(&model, backends, &planner, settings()).unwrap();
    let prompt = some(20, 3);
    let request = || Request { predict: Some(60), ignore_eos: true, ..Request::new(&prompt) };
    let (plain, _) = generate((&model, &mut session), &greedy(), request(), None);
    let bounds = Bounds { draft_p_min: 0.0, ..Bounds::default() };
    let mut itself = draft_model(&model, &model, bounds);
    let (found, spent) = generate((&model, &mut session), &greedy(), request(), Some(&mut itself));
    assert_eq!(found, plain);
    assert!(spent.accepted * 10 > spent.drafted * 9, "{spent:?}");
}

#[test]
fn the_program_drafts() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::F32, 7));
    place.file("draft.gguf", words::tiny(Type::Q8_0, 7));
    let answer = |flags: &str| {
        let ran = place.run(&format!(
            "run -m model.gguf -p abcabcabc -n 40 --temp 0 -ngl 0 --ignore-eos {flags}"
        ));
        assert_eq!(ran.code, Some(0), "{flags}: {}", ran.err);
        (ran.out, ran.err)
    };
    let (plain, err) = answer("");
    assert!(!err.contains("drafted"), "{err}");
    for flags in [
        "--lookup",
        "--lookup --draft-max 3 --draft-min 2",
        "-md draft.gguf -ngld 0",
        "-md draft.gguf --draft 4 --draft-p-min 0 -ngld 0",
    ] {
        let (out, err) = answer(flags);
        assert_eq!(out, plain, "{flags}");
        assert!(err.contains(" | drafted: ") && err.contains(" tokens/step"), "{flags}: {err}");
        let (out, _) = answer(&format!("{flags} --json"));
        let document: serde_json::Value = serde_json::from_str(&out).unwrap();
        let speculation = &document["speculation"];
        let number = |key: &str| speculation[key].as_u64().unwrap();
        assert!(number("accepted") > 0 && number("accepted") <= number("drafted"), "{speculation}");
        assert_eq!(number("steps") + number("accepted") + 1, 40, "{speculation}");
    }
    let messages = "one\ntwo two two\nthree three\n";
    let chat = |flags: &str| {
        let flags =
            format!("run -m model.gguf -cnv --chat-template chatml -n 20 --temp 0 -ngl 0 {flags}");
        place.run_with_input(&flags, messages).good().out
    };
    let plain = chat("");
    assert!(plain.lines().count() >= 3, "{plain}");
    assert_eq!(chat("--lookup"), plain);
    assert_eq!(chat("-md draft.gguf -ngld 0"), plain);
}

#[test]
fn the_program_refuses_what_makes_no_sense() {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::F32, 7));
    for (flags, code, words) in [
        ("-md model.gguf -ngld 0", 2, "cannot draft for demo: it has 128 tokens"),
        ("-md none.gguf", 66, "none.gguf: no such file"),
        ("-md model.gguf --lookup", 2, "--lookup"),
        ("--lookup --draft-max 0", 2, "--draft-max"),
        ("--draft mtp", 2, "llama.nextn_predict_layers"),
        ("--draft mtp --lookup", 2, "--lookup"),
        ("--draft tmp", 2, "--draft"),
        ("--lookup --draft-p-min 2", 2, "between 0 and 1"),
    ] {
        let ran = place.run(&format!("run -p a -n 2 -ngl 0 {flags}"));
        assert_eq!(ran.code, Some(code), "{flags}: {}", ran.err);
        assert!(ran.err.contains(words), "{flags}: {}", ran.err);
    }
}
