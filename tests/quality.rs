//! The promise of quality figures: perplexity, divergence and importance agree with the reference executor on any
//! placement, and with llama.cpp's tools.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bilayer_cpu::level::Level;
use bilayer_engine::session::{Session, Settings};
use bilayer_gguf::{Array, File, Value};
use bilayer_graph::reference::Reference;
use bilayer_graph::{
    Backend, Exactness, Graph, Limits, Op, PAGE_TOKENS, Segment, SharedBytes, Span, StateSpan, Step,
};
use bilayer_measure::imatrix::{Collector, Scope};
use bilayer_measure::perplexity::{Logits, Windows, score, settings};
use bilayer_quant::Type;
use bilayer_scheduler::{Budget, Machine, Placement, place};

mod support {
    pub mod data;
    pub mod devices;
    pub mod gpu;
    pub mod model;
    pub mod program;
    pub mod words;
}

use support::data::shared;
use support::devices::{Call, Failing, Fault, Queued, Script, cpu};
use support::model::Model;
use support::program::{Place, Ran};
use support::words;

/// Tokens of a window.
const WINDOW: usize = 16;

/// Letters of the tiny vocabulary in arbitrary order: 90 tokens with the leading space.
const TEXT: &str =
    "thequickbrownfoxjumpsoverthelazydogPACKMYBOXwithfivedozenliquorjugs0123456789+-*/(){}[]!\n";

/// Every value of one window, computed by the reference executor.
struct Values {
    graph: Graph,
    rows: Vec<Vec<f32>>,
}

impl Values {
    fn new(model: &Model, tokens: &[u32]) -> Values {
        let graph = model.graph.clone();
        let (rows, pages) = (tokens.len(), tokens.len().div_ceil(PAGE_TOKENS));
        let limits = Limits {
            key_type: Type::F32,
            value_type: Type::F32,
            fuse: false,
            ..Limits::new(rows, pages)
        };
        let mut reference = Reference::new();
        for weight in &graph.weights {
            reference.load(weight, model.bytes(weight)).unwrap();
        }
        let nodes = 0..graph.nodes.len();
        let outputs = graph.nodes.iter().map(|node| node.op.out()).collect();
        let segment = Segment { graph: &graph, nodes, inputs: Vec::new(), outputs };
        let id = reference.compile(&segment, limits).unwrap();
        let span = Span { first_row: 0, rows: rows as u32, first_position: 0, first_page: 0 };
        let step = Step {
            tokens,
            spans: &[span],
            pages: &(0..pages as u32).collect::<Vec<_>>(),
            outputs: &(0..rows as u32).collect::<Vec<_>>(),
            states: &[StateSpan { first_row: 0, rows: rows as u32, from: None, to: 0 }],
            copies: &[],
            top_k: usize::MAX,
            exactness: Exactness::Fastest,
        };
        reference.submit(id, &step).unwrap();
        let mut values = vec![Vec::new(); graph.values.len()];
        for node in &graph.nodes {
            let value = node.op.out();
            let data = &mut values[value.0 as usize];
            data.resize(rows * graph.width(value), 0.0);
            reference.read(value, data).unwrap();
        }
        Values { graph, rows: values }
    }

    /// Logarithms of the probabilities after each token, `[tokens, vocab]`.
    fn ln_p(&self) -> Vec<Vec<f64>> {
        let logits = &self.rows[self.graph.logits.0 as usize];
        let vocab = self.graph.width(self.graph.logits);
        let normal = |row: &[f32]| {
            let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            row.iter().map(|&x| f64::from(x) - sum.ln()).collect()
        };
        logits.chunks_exact(vocab).map(normal).collect()
    }
}

/// The text's tokens in the tiny vocabulary, window after window, with the first of each replaced by `<s>`.
fn windows(bytes: &SharedBytes) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let model = bilayer_engine::Model::from_bytes("tiny", bytes.clone()).unwrap();
    let windows = Windows::of_text(&model, TEXT, WINDOW, Windows::ENCODE).unwrap();
    let own: Vec<Vec<u32>> = windows.tokens().chunks(WINDOW).map(<[u32]>::to_vec).collect();
    let mut run = own.clone();
    run.iter_mut().for_each(|window| window[0] = 1);
    // `<s>`, the leading space, 88 letters, without the final line break.
    assert_eq!((own.len(), own[0][..3].to_vec()), (5, vec![1, 3, 87]));
    (own, run)
}

/// For every scored token: the logarithms of the probabilities, and the token.
fn scored(bytes: &SharedBytes) -> Vec<(Vec<f64>, usize)> {
    let model = Model::new(File::from_bytes("tiny", bytes.clone()).unwrap());
    let (own, run) = windows(bytes);
    let mut rows = Vec::new();
    for (own, run) in own.iter().zip(&run) {
        let ln_p = Values::new(&model, run).ln_p();
        // Of 16 the logits 8 to 14 count, which predict the tokens 9 to 15.
        rows.extend((8..15).map(|place| (ln_p[place].clone(), own[place + 1] as usize)));
    }
    rows
}

/// The KL divergence of each scored row of `q` from that of `p`, nats.
fn divergences(p: &[(Vec<f64>, usize)], q: &[(Vec<f64>, usize)]) -> Vec<f64> {
    let kl = |p: &[f64], q: &[f64]| p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum();
    p.iter().zip(q).map(|((p, _), (q, _))| kl(p, q)).collect()
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

#[track_caller]
fn close(found: &serde_json::Value, expected: f64, most: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - expected).abs() <= most * expected.abs(), "{found} for {expected}");
}

/// The tiny model with logits multiplied by `scale`, since unscaled ones make most tokens impossible.
fn scaled(ty: Type, scale: f32) -> SharedBytes {
    words::tiny_with(ty, 1, &|name, values| rescale(name, values, scale))
}

/// As [`model`], with some weights changed.
fn changed(scale: f32) -> SharedBytes {
    words::tiny_with(Type::F32, 1, &|name, values| {
        rescale(name, values, scale);
        values.iter_mut().step_by(7).for_each(|x| *x *= 1.1);
    })
}

fn rescale(name: &str, values: &mut [f32], scale: f32) {
    if name == "output_norm.weight" {
        values.iter_mut().for_each(|x| *x *= scale);
    }
}

fn place_with(models: &[(&str, &SharedBytes)]) -> Place {
    let folder = Place::new();
    folder.file("text.txt", TEXT);
    for (name, bytes) in models {
        folder.file(name, bytes);
    }
    folder
}

/// Caches without rounding, so that only the order of sums differs from the reference.
const EXACT: &str = "-f text.txt -c 16 -ctk f32 -ctv f32 -ngl 0 --json";

#[test]
fn perplexity_agrees_with_the_reference_executor() {
    let bytes = scaled(Type::F32, 0.2);
    let rows = scored(&bytes);
    let nll: Vec<f64> = rows.iter().map(|(ln_p, token)| -ln_p[*token]).collect();
    let expected = mean(nll.iter().copied());
    let variance = mean(nll.iter().map(|nll| (nll - expected).powi(2)));
    let error = expected.exp() * (variance / (nll.len() - 1) as f64).sqrt();
    let place = place_with(&[("model.gguf", &bytes)]);
    // All windows in a step, one at a time, and steps that end within windows.
    for batches in ["", "-b 16", "-ub 5", "-b 40 -ub 9 -t 2"] {
        let found = place.run(&format!("perplexity -m model.gguf {EXACT} {batches}")).json();
        close(&found["perplexity"], expected.exp(), 1e-4);
        close(&found["perplexity_error"], error, 1e-3);
        assert_eq!((found["tokens"].as_u64(), found["windows"].as_u64()), (Some(35), Some(5)));
    }
    let first = place.run(&format!("perplexity -m model.gguf {EXACT} --chunks 1")).json();
    close(&first["perplexity"], mean(nll[..7].iter().copied()).exp(), 1e-5);
    let plain = place.run("perplexity -m model.gguf -f text.txt -c 16 -ngl 0").good().out;
    let last = plain.lines().last().unwrap();
    let pattern = r"^Final estimate: PPL = [0-9]+\.[0-9]{4} \+/- [0-9]+\.[0-9]{5}$";
    assert!(regex::Regex::new(pattern).unwrap().is_match(last), "{plain}");
}

#[test]
fn divergence_agrees_with_the_reference_executor() {
    // In floats, where kernels agree with the reference; others round activations, differently at each level.
    let (base, model) = (scaled(Type::F32, 0.2), changed(0.2));
    let place = place_with(&[("base.gguf", &base), ("model.gguf", &model)]);
    place.run(&format!("perplexity -m base.gguf {EXACT} --kl-base base.kld")).json();
    let (p, q) = (scored(&base), scored(&model));
    let pairs = || p.iter().zip(&q);
    let mut each = divergences(&p, &q);
    let best = |row: &[f64]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
    let top1 = mean(pairs().map(|((p, _), (q, _))| f64::from(u8::from(best(p) == best(q)))));
    let ratio = mean(pairs().map(|((p, token), (q, _))| p[*token] - q[*token])).exp();
    let expected = mean(each.iter().copied());
    assert!(expected > 1e-6, "the models differ: {expected}");
    each.sort_by(f64::total_cmp);
    for kl in ["--kl base.kld", "--kl-divergence-base base.kld --kl-divergence"] {
        let flags = "-ctk f32 -ctv f32 -ngl 0 --json";
        let found = place.run(&format!("perplexity -m model.gguf {flags} {kl}")).json();
        close(&found["kl_mean"], expected, 1e-2);
        close(&found["perplexity_ratio"], ratio, 1e-4);
        assert!((found["top1"].as_f64().unwrap() - top1).abs() < 0.02, "{found}");
        close(&found["base_perplexity"], mean(p.iter().map(|(p, t)| -p[*t])).exp(), 1e-4);
    }
    // The divergence from itself is the rounding of the file only: the top logit to half a step of 16 / 65535.
    let same = place.run("perplexity -m base.gguf -ctk f32 -ctv f32 -ngl 0 --kl base.kld --json");
    let same = same.json();
    assert!(same["kl_mean"].as_f64().unwrap().abs() < 1e-4, "{same}");
    assert_eq!((same["top1"].as_f64(), same["windows"].as_u64()), (Some(1.0), Some(5)));
    close(&same["perplexity_ratio"], 1.0, 1e-4);
}

#[test]
fn divergence_of_quantized_weights_stands_above_that_of_rounded_activations() {
    let (base, model) = (scaled(Type::F32, 0.2), scaled(Type::Q4_0, 0.2));
    let place = place_with(&[("base.gguf", &base), ("model.gguf", &model)]);
    place.run(&format!("perplexity -m base.gguf {EXACT} --kl-base base.kld")).json();
    let (p, q) = (scored(&base), scored(&model));
    let expected = mean(divergences(&p, &q).into_iter());
    assert!(expected > 1e-2, "the models differ: {expected}");
    let ratio = mean(p.iter().zip(&q).map(|((p, token), (q, _))| p[*token] - q[*token])).exp();
    let flags = "-ctk f32 -ctv f32 -ngl 0 --json --kl base.kld";
    let found = place.run(&format!("perplexity -m model.gguf {flags}")).json();
    // Kernels round activations to 8 bits, the reference does not; 0.011 apart with AVX2.
    close(&found["kl_mean"], expected, 0.1);
    close(&found["perplexity_ratio"], ratio, 1e-2);
}

/// Prompts with rounded weights: the demo model and a model of floats, whose rows are whole spans. At levels that gain
/// nothing by it, nothing changes.
#[test]
fn rounded_weights_of_prompts_stay_within_their_bounds() {
    let place = Place::new();
    let line = "ROMEO:\nBut soft, what light through yonder window breaks? It is the east.\n";
    place.file("text.txt", line.repeat(60));
    let flags = "-f text.txt -c 512 -ngl 0";
    place.run(&format!("perplexity {flags} --kl-base base.kld")).good();
    let kl = |level: &str, more: &str| {
        let line = format!("perplexity -ngl 0 --kl base.kld --cpu-level {level} --json {more}");
        place.run(&line).json()["kl_mean"].as_f64().unwrap()
    };
    for level in Level::available().filter(|level| *level >= Level::Avx2) {
        let (name, rounds) = (level.name(), matches!(level, Level::Avx512Vnni | Level::Avx512Bf16));
        let (kl, exact) = (kl(name, "--fast-prefill"), kl(name, ""));
        assert!(kl < 1e-3 && (kl != exact) == rounds, "{name}: {kl}, exactly {exact}");
    }
    place.file("short.txt", line.repeat(14));
    let verified = place.run("verify -f short.txt --fast-prefill --b cpu:scalar --json").json();
    assert!(verified["ok"] == true && verified["logits"]["kl"].as_f64() < Some(1e-3), "{verified}");
}

#[test]
fn divergence_of_exact_models_is_exact() {
    // Products in floats, so that only the file's rounding differs.
    let (base, model) = (scaled(Type::F32, 0.2), scaled(Type::F32, 0.25));
    let place = place_with(&[("base.gguf", &base), ("model.gguf", &model)]);
    place.run(&format!("perplexity -m base.gguf {EXACT} --kl-base base.kld")).json();
    let (p, q) = (scored(&base), scored(&model));
    let mut each = divergences(&p, &q);
    each.sort_by(f64::total_cmp);
    let flags = "-ctk f32 -ctv f32 -ngl 0 -ub 11 --json --kl base.kld";
    let found = place.run(&format!("perplexity -m model.gguf {flags}")).json();
    let expected = mean(each.iter().copied());
    assert!(expected > 1e-3, "{expected}");
    close(&found["kl_mean"], expected, 1e-2);
    close(&found["kl_max"], *each.last().unwrap(), 1e-2);
    close(&found["kl_p50"], each[17], 2e-2);
    // 0.99 of the way from the first to the last of 35.
    let p99 = 0.34 * each[33] + 0.66 * each[34];
    close(&found["kl_p99"], p99, 1e-2);
    assert_eq!(found["top1"].as_f64(), Some(1.0), "a scale changes no best token");
}

#[test]
fn base_logits_have_llama_cpps_form() {
    let bytes = scaled(Type::F32, 0.2);
    let place = place_with(&[("model.gguf", &bytes)]);
    place.run(&format!("perplexity -m model.gguf {EXACT} --kl-base base.kld")).json();
    let file = std::fs::read(place.path().join("base.kld")).unwrap();
    let (own, _) = windows(&bytes);
    assert_eq!(&file[..8], b"_logits_");
    let numbers: Vec<i32> =
        file[8..20 + 4 * 80].as_chunks().0.iter().map(|&b| i32::from_le_bytes(b)).collect();
    assert_eq!(numbers[..3], [16, 128, 5]);
    let tokens: Vec<i32> = own.iter().flatten().map(|&token| token as i32).collect();
    assert_eq!(numbers[3..], tokens, "as the text has them, without `<s>` in each window");
    let rows = &file[20 + 4 * 80..];
    // 35 rows of scale, least and 128 steps.
    assert_eq!(rows.len(), 35 * (8 + 2 * 128));
    for (row, (ln_p, _)) in rows.chunks_exact(8 + 2 * 128).zip(scored(&bytes)) {
        let float = |at: usize| f32::from_le_bytes(row[at..at + 4].try_into().unwrap());
        for (step, expected) in row[8..].as_chunks().0.iter().zip(ln_p) {
            let found = float(0) * f32::from(u16::from_le_bytes(*step)) + float(4);
            assert!((f64::from(found) - expected).abs() < 2e-4, "{found} for {expected}");
        }
    }
}

#[track_caller]
fn refused(ran: &Ran, code: i32, part: &str) {
    assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{ran:?}");
    let line = ran.err.lines().last().unwrap();
    assert!(line.starts_with("bilayer: ") && line.contains(part), "{ran:?}");
}

#[test]
fn texts_that_cannot_be_scored_are_refused() {
    let bytes = scaled(Type::F32, 0.2);
    let place = place_with(&[("model.gguf", &bytes)]);
    let run = |arguments: &str| place.run(&format!("{arguments} -m model.gguf -ngl 0"));
    run("perplexity -f text.txt -c 16 --kl-base base.kld").good();
    let base = std::fs::read(place.path().join("base.kld")).unwrap();
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = base.clone();
        change(&mut bytes);
        place.file("bad.kld", bytes);
        run("perplexity --kl bad.kld")
    };
    refused(&changed(&|bytes| bytes[0] = b'x'), 65, "no file of base logits");
    refused(&changed(&|bytes| bytes.truncate(7)), 74, "bad.kld: base logits cannot be read");
    refused(&changed(&|bytes| bytes.push(0)), 65, "where its header asks for");
    refused(&changed(&|bytes| bytes[8..12].fill(0xff)), 65, "tokens of a window is -1");
    refused(&changed(&|bytes| bytes[16..20].fill(0x7f)), 65, "where its header asks for");
    refused(&changed(&|bytes| bytes[12] = 127), 2, "compare models of one vocabulary");
    refused(&changed(&|bytes| bytes[21] = 1), 65, "is not in the vocabulary");
    refused(&changed(&|bytes| bytes[340..344].fill(0xff)), 65, "not finite");
    refused(&run("perplexity --kl base.kld -c 8"), 2, "give -c 16 or no -c");
    refused(&run("perplexity --kl none.kld"), 66, "none.kld");
    refused(&run("perplexity -f text.txt -c 48"), 2, "two windows of 48 need 96");
    refused(&run("perplexity -f text.txt -c 3"), 2, "ctx-size is 3; it must be at least 4");
    refused(&run("perplexity -f text.txt -c 16 --chunks 0"), 2, "'--chunks <N>': it must be");
    refused(&run("imatrix -f text.txt -c 16 --chunks 0"), 2, "'--chunks <N>': it must be");
    refused(&run("perplexity"), 2, "--file");
    refused(&run("perplexity -f text.txt -c 16 --kl-base none/base.kld"), 73, "none/base.kld");
    refused(&run("imatrix -f text.txt -c 16 --in-file model.gguf"), 65, "no importance matrix");
    assert_eq!(place.names(), ["bad.kld", "base.kld", "model.gguf", "text.txt"]);
}

#[test]
fn figures_agree_with_llama_cpp() {
    let (Some(folder), Some(text)) = (shared("stories260k"), shared("text/tinyshakespeare.txt"))
    else {
        return;
    };
    let text: String = std::fs::read_to_string(text).unwrap().chars().take(20_000).collect();
    let place = Place::new();
    place.file("text.txt", text);
    // The output of llama.cpp's perplexity tool for the same files.
    let figures = [("f32", 97.1525), ("f16", 97.1325), ("q8_0", 97.1327), ("q4_0", 98.8070)];
    for (ty, expected) in figures {
        let model = folder.join(format!("stories260k-{ty}.gguf"));
        let model = model.display();
        let flags = "-f text.txt -c 256 -ngl 0 --json";
        let found = place.run(&format!("perplexity -m {model} {flags}")).json();
        close(&found["perplexity"], expected, if ty == "q4_0" { 5e-3 } else { 1e-3 });
    }
}

// Importance matrices.

/// Sums `[matrices, cols]` and the number of rows in each.
#[derive(Clone)]
struct Expected {
    squares: Vec<f64>,
    counts: Vec<f64>,
}

impl Expected {
    fn add(&mut self, matrix: usize, row: &[f32]) {
        let sums = &mut self.squares[matrix * row.len()..][..row.len()];
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x).powi(2));
        self.counts[matrix] += 1.0;
    }
}

/// The sums of each tensor's inputs over all windows by the reference executor.
fn expected_sums(bytes: &SharedBytes) -> BTreeMap<String, Expected> {
    sums_of(bytes, &windows(bytes).1)
}

/// The reference sums over given windows.
fn sums_of(bytes: &SharedBytes, windows: &[Vec<u32>]) -> BTreeMap<String, Expected> {
    let model = Model::new(File::from_bytes("tiny", bytes.clone()).unwrap());
    let mut sums: BTreeMap<String, Expected> = BTreeMap::new();
    for tokens in windows {
        let Values { graph, rows } = Values::new(&model, tokens);
        let entry = |sums: &mut BTreeMap<String, Expected>, weight, matrices: usize| {
            let weight = graph.weight(weight);
            let squares = vec![0.0; matrices * weight.cols];
            let empty = Expected { squares, counts: vec![0.0; matrices] };
            sums.entry(weight.name.clone()).or_insert(empty);
            (weight.name.clone(), weight.cols)
        };
        for node in &graph.nodes {
            match &node.op {
                Op::MatMul { input, weight, .. } => {
                    let (name, cols) = entry(&mut sums, *weight, 1);
                    let sums = sums.get_mut(&name).unwrap();
                    rows[input.0 as usize].chunks_exact(cols).for_each(|row| sums.add(0, row));
                }
                Op::Experts(experts) => {
                    assert_eq!(experts.stack.len(), 1, "all in one tensor");
                    let (name, cols) = entry(&mut sums, experts.stack[0], graph.experts(experts));
                    let sums = sums.get_mut(&name).unwrap();
                    let [inputs, route] =
                        [experts.input, experts.route].map(|value| &rows[value.0 as usize]);
                    let used = graph.width(experts.route) / 2;
                    let own = graph.width(experts.input) / cols;
                    for token in 0..tokens.len() {
                        for slot in 0..used {
                            let row = token * own + slot % own;
                            let expert = route[token * 2 * used + used + slot] as usize;
                            sums.add(expert, &inputs[row * cols..][..cols]);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    sums
}

#[track_caller]
fn sums_are_close(name: &str, found: &[f64], expected: &[f64], most: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected.iter().copied().fold(0.0, f64::max);
    for (found, expected) in found.iter().zip(expected) {
        let off = (found - expected).abs();
        assert!(off <= most * largest, "{name}: {found} for {expected}");
    }
}

/// A tensor's values.
fn floats(file: &File, name: &str) -> Vec<f64> {
    let tensor = file.tensor(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(tensor.layout().ty(), Type::F32);
    let bytes = file.bytes(tensor);
    bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect()
}

fn check_file(path: &Path, expected: &BTreeMap<String, Expected>, times: f64) {
    let file = File::open(path).unwrap();
    assert_eq!(file.tensors().len(), 2 * expected.len());
    let multiplied = |values: &[f64]| values.iter().map(|x| times * x).collect::<Vec<f64>>();
    for (name, Expected { squares, counts }) in expected {
        let found = floats(&file, &format!("{name}.in_sum2"));
        sums_are_close(name, &found, &multiplied(squares), 1e-4);
        assert_eq!(floats(&file, &format!("{name}.counts")), multiplied(counts), "{name}");
    }
}

#[test]
fn importance_is_kept_per_expert() {
    for architecture in ["qwen2moe", "qwen3moe"] {
        let bytes = words::tiny_of(architecture);
        let place = place_with(&[("model.gguf", &bytes)]);
        let mut expected = expected_sums(&bytes);
        expected.retain(|name, _| name.starts_with("blk."));
        let down = &expected["blk.0.ffn_down_exps.weight"].counts;
        assert!(down.len() > 1 && down.iter().any(|&count| count != down[0]), "{down:?}");
        place.run(&format!("imatrix -m model.gguf {EXACT} -ub 7")).json();
        check_file(&place.path().join("imatrix.gguf"), &expected, 1.0);
    }
}

#[test]
fn importance_agrees_with_the_reference_executor() {
    let bytes = scaled(Type::F32, 0.2);
    let place = place_with(&[("model.gguf", &bytes)]);
    let all = expected_sums(&bytes);
    let mut layers = all.clone();
    layers.retain(|name, _| name.starts_with("blk."));
    assert!(all.len() == layers.len() + 1 && layers.contains_key("blk.1.ffn_down.weight"));
    for batches in ["", "-ub 5 -t 2"] {
        let found = place.run(&format!("imatrix -m model.gguf {EXACT} {batches}")).json();
        assert_eq!(
            (found["windows"].as_u64(), found["window_tokens"].as_u64()),
            (Some(5), Some(16))
        );
        check_file(&place.path().join("imatrix.gguf"), &layers, 1.0);
    }
    place.run(&format!("imatrix -m model.gguf {EXACT} --process-output -o all.gguf")).json();
    check_file(&place.path().join("all.gguf"), &all, 1.0);
    let file = File::open(&place.path().join("all.gguf")).unwrap();
    assert_eq!(file.metadata().str("general.type").unwrap(), "imatrix");
    assert_eq!(file.metadata().u32("imatrix.chunk_count").unwrap(), 5);
    assert_eq!(file.metadata().u32("imatrix.chunk_size").unwrap(), 16);
    let datasets = file.metadata().get("imatrix.datasets").unwrap();
    let Value::Array(Array::String(names)) = datasets else { panic!("{datasets:?}") };
    assert_eq!(names.iter().collect::<Vec<_>>(), ["text.txt"]);
}

#[test]
fn importance_of_several_texts_adds_up() {
    let bytes = scaled(Type::F32, 0.2);
    let place = place_with(&[("model.gguf", &bytes)]);
    place.run(&format!("imatrix -m model.gguf {EXACT} -o a.gguf")).json();
    let sum = place.run("imatrix --in-file a.gguf a.gguf -o both.gguf").good();
    assert!(sum.out.contains("over 10 windows of 16 tokens"), "{sum:?}");
    let mut layers = expected_sums(&bytes);
    layers.retain(|name, _| name.starts_with("blk."));
    check_file(&place.path().join("both.gguf"), &layers, 2.0);
    place.run(&format!("imatrix -m model.gguf {EXACT} --in-file both.gguf -o both.gguf")).json();
    check_file(&place.path().join("both.gguf"), &layers, 3.0);
}

/// Windows are independent: skipped ones have no effect, as if the text began after them.
#[test]
fn skipped_windows_are_as_if_the_text_lacked_them() {
    let bytes = scaled(Type::F32, 0.2);
    let place = place_with(&[("model.gguf", &bytes)]);
    let all = windows(&bytes).1;
    for (skipped, chunks, expected) in [(0, "", 0..5), (2, "", 2..5), (1, "--chunks 2", 1..3)] {
        let found = format!("imatrix -m model.gguf {EXACT} --from-chunk {skipped} {chunks}");
        let found = place.run(&found).json();
        assert_eq!(found["windows"], expected.len(), "{skipped} {chunks}");
        let mut sums = sums_of(&bytes, &all[expected]);
        sums.retain(|name, _| name.starts_with("blk."));
        check_file(&place.path().join("imatrix.gguf"), &sums, 1.0);
    }
    let none = place.run(&format!("imatrix -m model.gguf {EXACT} --from-chunk 5"));
    refused(&none, 2, "--from-chunk is 5, but the text has only 5 windows");
}

/// An interrupted run leaves the sums of whole windows beside the output, from which another goes on.
#[cfg(unix)]
#[test]
fn an_interrupted_importance_matrix_goes_on_where_it_ended() {
    use std::process::{Command, Stdio};

    let place = place_with(&[("model.gguf", &scaled(Type::F32, 0.2))]);
    let path = |name: &str| place.path().join(name);
    place.file("text.txt", TEXT.trim_end().repeat(200));
    let chunks =
        |name: &str| File::open(&path(name)).unwrap().metadata().u32("imatrix.chunk_count");
    place.run(&format!("imatrix -m model.gguf {EXACT} --chunks 2 -ofreq 1")).json();
    assert!(!path("imatrix.partial.gguf").exists(), "the output has it all");
    let mut command = place.command(&format!("imatrix -m model.gguf {EXACT} -ofreq 1"));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !path("imatrix.partial.gguf").exists() {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{said}");
    let done = chunks("imatrix.partial.gguf").unwrap();
    let advice = format!("give --in-file imatrix.partial.gguf, and --from-chunk {done}");
    assert!(said.contains(&advice), "{done}: {said}");
    assert_eq!(chunks("imatrix.gguf").unwrap(), 2, "the file of before");
    let anew = place.run(&format!("imatrix -m model.gguf {EXACT}"));
    refused(&anew, 2, "imatrix.partial.gguf has the sums of an interrupted run");
    let rest = format!("--in-file imatrix.partial.gguf --from-chunk {done}");
    let other = EXACT.replace("-c 16", "-c 8");
    assert_ne!(other, EXACT);
    let shorter = place.run(&format!("imatrix -m model.gguf {other} {rest}"));
    refused(&shorter, 2, "--from-chunk counts windows of 8 tokens, and those of --in-file have 16");
    // Without a partial file of its own, so that it removes the one that it goes on from.
    let rest = format!("{rest} -ofreq 1000");
    let count =
        place.run(&format!("imatrix -m model.gguf {EXACT} {rest}")).json()["windows"].clone();
    assert!(!path("imatrix.partial.gguf").exists(), "the output has its sums");
    place.run(&format!("imatrix -m model.gguf {EXACT} -o whole.gguf")).json();
    let [parts, whole] = ["imatrix.gguf", "whole.gguf"].map(|name| {
        let matrix = bilayer_convert::imatrix::Imatrix::open(&path(name)).unwrap();
        assert_eq!(count, matrix.chunk_count, "{name}");
        matrix.entries().map(|(name, entry)| (name.to_owned(), entry.clone())).collect::<Vec<_>>()
    });
    assert_eq!(parts.len(), whole.len());
    for ((name, part), (other, whole)) in parts.iter().zip(&whole) {
        assert_eq!((name, part.counts()), (other, whole.counts()));
        let is_close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
        assert!(part.sums().iter().zip(whole.sums()).all(is_close), "{name}");
    }
}

/// The names of special tokens in a text are those tokens on request.
#[test]
fn special_tokens_of_a_calibration_text_are_read_on_request() {
    let place = place_with(&[("model.gguf", &scaled(Type::F32, 0.2))]);
    place.file("text.txt", "ab</s>".repeat(40));
    let windows = |flags: &str| {
        let found = place.run(&format!("imatrix -m model.gguf {EXACT} {flags}")).json();
        found["windows"].as_u64().unwrap()
    };
    let (text, special) = (windows(""), windows("--parse-special"));
    assert!(special < text, "{special} of {text}");
}

// Placements.

/// A session of a model on a CPU and `other`, with the device of each part from the embedding to the head.
fn on(
    model: &bilayer_engine::Model,
    other: Box<dyn Backend>,
    devices: [usize; 5],
    settings: Settings<'static>,
) -> Session {
    let [embedding, layers @ .., output] = devices;
    let layers = layers.to_vec();
    let placement = Placement { embedding, layers, output, exceptions: Default::default() };
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
        Ok(place(graph, machine, budget, &placement)?)
    };
    Session::on(model, vec![cpu(1), other], &planner, settings).unwrap()
}

/// A CPU behind a queue, and a GPU if there is one.
fn others() -> Vec<(Box<dyn Backend>, f64)> {
    let mut others: Vec<(Box<dyn Backend>, f64)> =
        vec![(Box::new(Queued::new(cpu(1), Duration::ZERO)), 1e-4)];
    if let Some(gpu) = support::gpu::gpu() {
        others.push((Box::new(gpu), 1e-3));
    }
    others
}

#[test]
fn placement_changes_no_figure() {
    let bytes = scaled(Type::F32, 0.2);
    let model = bilayer_engine::Model::from_bytes("tiny", bytes.clone()).unwrap();
    let windows = Windows::of_text(&model, TEXT, WINDOW, Windows::ENCODE).unwrap();
    let nll = mean(scored(&bytes).iter().map(|(ln_p, token)| -ln_p[*token]));
    let sums = expected_sums(&bytes);
    let given = || Settings {
        threads: Some(1),
        ubatch_size: 12,
        cache_type_k: Type::F32,
        cache_type_v: Type::F32,
        placing: bilayer_engine::placement::Placing::cpu(),
        ..Settings::default()
    };
    for devices in [[0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [1; 5], [0, 0, 1, 0, 1]] {
        for (other, most) in others() {
            let wanted = settings(&windows, model.config().vocab, 64, given());
            let mut session = on(&model, other, devices, wanted);
            let report = score(&mut session, &windows, Logits::Scored, &mut |_| true);
            let found = report.unwrap().unwrap().estimate.nll().value;
            assert!((found - nll).abs() < most * nll, "{devices:?}: {found} for {nll}");
        }
        for (other, most) in others() {
            let mut collector = Collector::new(model.graph(), Scope::LayersAndHead);
            let mut session = on(&model, other, devices, collector.settings(WINDOW, given()));
            for window in 0..windows.count() {
                let run = windows.run(window);
                assert!(collector.window(&mut session, &run, &mut |_| true).unwrap());
            }
            let found: Vec<_> = collector.sums().collect();
            assert_eq!(found.len(), sums.len());
            for found in found {
                sums_are_close(found.name, found.squares, &sums[found.name].squares, most);
                assert_eq!(found.counts, [80], "{}: {devices:?}", found.name);
            }
        }
    }
}

/// A step that a GPU did not complete is run again on the CPU, and counts once.
#[test]
fn a_step_repeated_after_a_lost_gpu_counts_once() {
    let bytes = scaled(Type::F32, 0.2);
    let model = bilayer_engine::Model::from_bytes("tiny", bytes.clone()).unwrap();
    let windows = Windows::of_text(&model, TEXT, WINDOW, Windows::ENCODE).unwrap();
    let sums = expected_sums(&bytes);
    for (call, after) in [(Call::Submit, 2), (Call::Read, 9)] {
        let script = Script { call, after, fault: Fault::Lost };
        let other = Box::new(Failing::new(cpu(1), script));
        let mut collector = Collector::new(model.graph(), Scope::Layers);
        let given = Settings {
            threads: Some(1),
            ubatch_size: 7,
            placing: bilayer_engine::placement::Placing::cpu(),
            ..Settings::default()
        };
        let wanted = collector.settings(WINDOW, given);
        let mut session = on(&model, other, [0, 1, 0, 1, 1], wanted);
        for window in 0..windows.count() {
            collector.window(&mut session, &windows.run(window), &mut |_| true).unwrap();
        }
        assert_eq!(session.take_warnings().len(), 1, "{call:?}");
        for found in collector.sums() {
            // With 16-bit caches.
            sums_are_close(found.name, found.squares, &sums[found.name].squares, 1e-3);
            assert_eq!(found.counts, [80], "{}", found.name);
        }
    }
}

#[test]
fn the_work_stops_when_interrupted() {
    let bytes = scaled(Type::F32, 0.2);
    let model = bilayer_engine::Model::from_bytes("tiny", bytes).unwrap();
    let windows = Windows::of_text(&model, TEXT, WINDOW, Windows::ENCODE).unwrap();
    let given = Settings {
        threads: Some(1),
        placing: bilayer_engine::placement::Placing::cpu(),
        ..Settings::default()
    };
    let wanted = settings(&windows, model.config().vocab, 16, given);
    let mut session = Session::new(&model, wanted).unwrap();
    let mut calls = 0;
    let report = score(&mut session, &windows, Logits::Scored, &mut |_| {
        calls += 1;
        calls < 3
    });
    assert_eq!((report.unwrap(), calls), (None, 3));
}
