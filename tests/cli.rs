//! The promise of the command line: the flags, JSON documents and exit codes of the contract, one line per error, no
//! partial files, and never a panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bilayer_cpu::level::Level;
use bilayer_gguf::{File, Metadata, NewTensor, to_bytes};
use bilayer_quant::Type;
use serde_json::{Value, json};

mod support {
    pub mod data;
    pub mod gpu;
    pub mod logits;
    pub mod model;
    pub mod npy;
    pub mod program;
    pub mod words;
}

use support::data::shared;
use support::logits::argmax;
use support::npy::npy;
use support::program::{Place, Ran, ran};
use support::words;

const COMMANDS: [&str; 21] = [
    "run",
    "serve",
    "bench",
    "evaluate",
    "cost",
    "embed",
    "rerank",
    "classify",
    "extract",
    "models",
    "inspect",
    "tokenize",
    "detokenize",
    "perplexity",
    "imatrix",
    "convert",
    "quantize",
    "prune",
    "synth",
    "completions",
    "man",
];

/// A place with `model.gguf`, random weights of a tiny model whose tokens are single letters.
fn place() -> Place {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::F32, 1));
    place
}

/// The keys of a document.
fn keys(document: &Value) -> Vec<&str> {
    document.as_object().unwrap().keys().map(String::as_str).collect()
}

fn ids(list: &Value) -> Vec<u32> {
    serde_json::from_value(list.clone()).unwrap()
}

// Commands on a tiny model.

#[test]
fn run_streams_an_answer_and_ends_with_placement_and_statistics() {
    let place = place();
    let ran = place.run("run -m model.gguf -p abc -n 8 --temp 0 -ngl 0").good();
    assert!(ran.out.ends_with('\n') && ran.out.len() > 4, "{ran:?}");
    let lines: Vec<&str> = ran.err.lines().collect();
    // The predicted time per token is printed if it is known.
    let lines: Vec<&str> = lines.into_iter().filter(|l| !l.starts_with("predicted ")).collect();
    let [opening, placement, statistics] = lines[..] else { panic!("{lines:?}") };
    assert!(opening.starts_with("tiny (") && opening.contains("parameters) on cpu"), "{opening}");
    assert_eq!(placement, "placement: out:cpu 2-0:cpu");
    let pattern = "^prompt: 5 tokens, [0-9]+ ms, [0-9.]+ tok/s \\| generate: 8 tokens, [0-9]+ ms, \
                   [0-9.]+ tok/s \\| cpu busy [0-9]+ % gpu busy 0 % crossing 0 %$";
    assert!(regex::Regex::new(pattern).unwrap().is_match(statistics), "{statistics}");
}

#[test]
fn run_and_its_document_have_the_keys_of_the_contract() {
    let place = place();
    let run = "run -m model.gguf -p abc -n 8 --seed 7 --json --logprobs 3";
    let document = place.run(run).json();
    let expected = [
        "text",
        "tokens",
        "prompt_tokens",
        "stop_reason",
        "seed",
        "model",
        "placement",
        "devices",
        "timings",
        "predicted_ms_per_token",
        "measured_ms_per_token",
        "logprobs",
    ];
    assert_eq!(keys(&document), expected);
    assert_eq!(keys(&document["placement"]), ["map", "gpu_layers", "adapter"]);
    let timings =
        ["load_ms", "first_token_ms", "prompt_ms", "prompt_tps", "generate_ms", "generate_tps"];
    assert_eq!(keys(&document["timings"]), timings);
    for timing in timings {
        assert!(document["timings"][timing].as_f64().unwrap() > 0.0, "{timing}");
    }
    let devices = document["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 1);
    assert_eq!(keys(&devices[0]), ["name", "busy_ms", "busy"]);
    assert!(devices[0]["busy_ms"].as_f64().unwrap() > 0.0, "{document}");
    assert!((0.5..=1.001).contains(&devices[0]["busy"].as_f64().unwrap()), "{document}");
    let prompt_alone = place.run("run -m model.gguf -p abc -n 0 --json").json();
    assert!(prompt_alone["devices"][0]["busy_ms"].as_f64() > Some(0.0), "{prompt_alone}");
    assert_eq!(document["seed"], 7);
    assert_eq!(document["placement"]["gpu_layers"], 0);
    assert_eq!(document["placement"]["adapter"], Value::Null);
    // <s>, then the letters from `!` = 4 on behind the space that SentencePiece puts first.
    assert_eq!(ids(&document["prompt_tokens"]), [1, 3, 68, 69, 70]);
    let (tokens, logprobs) = (ids(&document["tokens"]), document["logprobs"].as_array().unwrap());
    assert_eq!(tokens.len(), logprobs.len());
    for (token, entry) in tokens.iter().zip(logprobs) {
        assert_eq!(entry["id"], *token);
        let top: Vec<f64> = entry["top"].as_array().unwrap().iter().map(logprob).collect();
        assert!(top.len() == 3 && top.is_sorted_by(|a, b| a >= b), "{entry}");
        assert!(logprob(entry) <= top[0] && top[0] <= 0.0, "{entry}");
    }
}

fn logprob(entry: &Value) -> f64 {
    entry["logprob"].as_f64().unwrap()
}

/// A place with `encoder.gguf`, a classifier of three labels, and `reranker.gguf`, which gives one score.
fn encoders() -> Place {
    let place = place();
    place.file("encoder.gguf", words::scorer("bert", &["good", "bad", "neither"]));
    place.file("reranker.gguf", words::scorer("modern-bert", &["relevant"]));
    place
}

/// One JSON document per line.
fn documents(ran: &Ran) -> Vec<Value> {
    ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn embed_prints_one_vector_per_text_in_order() {
    let place = encoders();
    place.file("texts.txt", "a b c\nd\n\ne f\n");
    place.file("texts.jsonl", "\"a b c\"\n{\"text\": \"d\", \"id\": \"second\"}\n\"\"\n\"e f\"\n");
    let ran = place.run("embed -m encoder.gguf --normalize -f texts.txt").good();
    let lines = documents(&ran);
    assert_eq!(lines.len(), 4);
    // Other forms have the same vectors.
    let one = |line: &str| documents(&place.run(&format!("embed -m encoder.gguf {line}")).good());
    assert_eq!(one(r"-p a\nd").len(), 2);
    assert_eq!(one("-f texts.txt"), lines);
    let array = &one("--embd-output-format array -f texts.txt")[0];
    assert_eq!(array[1], lines[1]["embedding"]);
    let json = &one("--embd-output-format json+ -f texts.txt")[0];
    assert_eq!(json["data"][3]["embedding"], lines[3]["embedding"]);
    let same = json["cosineSimilarity"][2][2].as_f64().unwrap();
    assert!((same - 1.0).abs() < 1e-6, "{json}");
    let raw = one("--embd-normalize -1 -f texts.txt");
    let most = one("--embd-normalize 0 -f texts.txt");
    let largest = |line: &Value| {
        let row: Vec<f64> = serde_json::from_value(line["embedding"].clone()).unwrap();
        row.iter().fold(0.0, |most: f64, x| most.max(x.abs()))
    };
    assert!((largest(&most[0]) - 32760.0).abs() < 0.1 && largest(&raw[0]) < 100.0);
    place.file("one.txt", "a b c#d#e");
    assert_eq!(one("--embd-separator # -f one.txt").len(), 3);
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(keys(line), ["index", "embedding"]);
        assert_eq!(line["index"], at);
        let vector: Vec<f64> = serde_json::from_value(line["embedding"].clone()).unwrap();
        let length: f64 = vector.iter().map(|x| x * x).sum();
        assert!(vector.len() == 64 && (length - 1.0).abs() < 1e-5, "{length}");
    }
    assert!(ran.err.contains("4 texts, 14 tokens, "), "{}", ran.err);
    let named =
        documents(&place.run("embed -m encoder.gguf --normalize --jsonl texts.jsonl").good());
    assert_eq!((&named[1]["id"], named.len()), (&json!("second"), 4));
    assert!(named.iter().zip(&lines).all(|(a, b)| a["embedding"] == b["embedding"]));
    // One vector per token, including the special tokens around the text.
    let each = documents(&place.run("embed -m encoder.gguf --pooling none abc").good());
    assert_eq!(keys(&each[0]), ["index", "tokens", "embeddings"]);
    assert_eq!(ids(&each[0]["tokens"]), [1, 0, 2]);
    let cls = documents(&place.run("embed -m encoder.gguf --pooling cls abc").good());
    assert_eq!(cls[0]["embedding"], each[0]["embeddings"][0]);
}

#[test]
fn classify_and_rerank_score_texts() {
    let place = encoders();
    place.file(
        "pairs.jsonl",
        "{\"text\": \"a\", \"text_pair\": \"b\"}\n{\"text\": \"a\", \"text_pair\": \"c\"}\n",
    );
    let lines = documents(&place.run("classify -m encoder.gguf --jsonl pairs.jsonl").good());
    for line in &lines {
        assert_eq!(keys(line), ["index", "label", "score", "scores"]);
        let scores = line["scores"].as_array().unwrap();
        let labels: Vec<&str> = scores.iter().map(|s| s["label"].as_str().unwrap()).collect();
        assert_eq!(labels, ["good", "bad", "neither"]);
        let scores: Vec<f64> = scores.iter().map(|s| s["score"].as_f64().unwrap()).collect();
        assert!((scores.iter().sum::<f64>() - 1.0).abs() < 1e-5, "{scores:?}");
        let best = scores.iter().copied().fold(0.0, f64::max);
        assert_eq!(line["score"], best);
    }
    assert_ne!(lines[0]["scores"], lines[1]["scores"]);
    let ranked = |more: &str| {
        documents(&place.run(&format!("rerank -m reranker.gguf -q a {more} b c d e")).good())
    };
    let all = ranked("");
    let order: Vec<usize> =
        all.iter().map(|line| line["index"].as_u64().unwrap() as usize).collect();
    assert_eq!((keys(&all[0]), order), (vec!["index", "score"], vec![0, 1, 2, 3]));
    let mut sorted: Vec<f64> = all.iter().map(|line| line["score"].as_f64().unwrap()).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let best: Vec<f64> =
        ranked("--top-n 2").iter().map(|line| line["score"].as_f64().unwrap()).collect();
    assert_eq!(best, sorted[..2]);
}

#[test]
fn extract_prints_the_entities_of_each_text() {
    let place = place();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints/bert-tokens");
    place.run(&format!("convert {folder} --outfile tagger.gguf --outtype f32")).good();
    let text = "John Smith lives in Zürich. ".repeat(12);
    let lines = [json!({ "text": text, "id": 7 }), json!("x"), json!("")];
    place.file("texts.jsonl", lines.map(|line| format!("{line}\n")).concat());
    let ran = place.run("extract -m tagger.gguf --jsonl texts.jsonl -ngl 0").good();
    let found = documents(&ran);
    assert_eq!(
        (keys(&found[0]), keys(&found[1])),
        (vec!["index", "id", "entities"], vec!["index", "entities"])
    );
    assert_eq!((&found[0]["id"], &found[2]["entities"]), (&json!(7), &json!([])));
    let entities = found[0]["entities"].as_array().unwrap();
    assert!(entities.len() > 12, "{entities:?}");
    for entity in entities {
        let expected = ["label", "score", "text", "start", "end", "start_byte", "end_byte"];
        assert_eq!(keys(entity), expected);
        let number = |key: &str| entity[key].as_u64().unwrap() as usize;
        assert_eq!(entity["text"], text[number("start_byte")..number("end_byte")]);
        let chars: String = text.chars().take(number("end")).skip(number("start")).collect();
        assert_eq!(entity["text"], chars);
        assert!(["PER", "LOC"].contains(&entity["label"].as_str().unwrap()));
    }
    let per = documents(
        &place
            .run("extract -m tagger.gguf --ignore-labels O,LOC --aggregation first John -ngl 0")
            .good(),
    );
    assert!(per[0]["entities"].as_array().unwrap().iter().all(|entity| entity["label"] == "PER"));
    let each = "extract -m tagger.gguf --truncate --stride 3 --aggregation none --ignore-labels X -ngl 0 --jsonl texts.jsonl";
    let each = documents(&place.run(each).good());
    let count = each[0]["entities"].as_array().unwrap().len();
    assert_eq!(count, 38, "one for each token of the first window");
    place.file("encoder.gguf", words::scorer("bert", &["good", "bad"]));
    place.file("pairs.jsonl", "{\"text\": \"a\", \"text_pair\": \"b\"}\n");
    let cases = [
        ("extract -m encoder.gguf a", "scorer does not label tokens"),
        ("extract -m tagger.gguf --stride 38 a", "less than the 38 tokens of a window"),
        ("extract -m tagger.gguf --jsonl pairs.jsonl", "pairs.jsonl: line 1: `text_pair`"),
        ("rerank -m encoder.gguf -q a --jsonl pairs.jsonl", "pairs.jsonl: line 1: `text_pair`"),
        ("embed -m encoder.gguf --pooling rank a", "`rerank` prints the scores"),
        ("extract -m tagger.gguf --aggregation most a", "'most'"),
        ("classify -m tagger.gguf a", "labels each token"),
        ("rerank -m tagger.gguf -q a b", "labels each token"),
    ];
    for (line, message) in cases {
        let ran = place.run(line);
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert!(ran.err.contains(message) && ran.out.is_empty(), "{line}: {ran:?}");
    }
}

#[test]
fn encoder_commands_report_unsupported_uses() {
    let place = encoders();
    place.file("texts.txt", format!("a\n{}\n", "b ".repeat(300)));
    place.file("broken.jsonl", "\"a\"\n{\"words\": 1}\n");
    let cases = [
        ("embed -m encoder.gguf -f texts.txt", 75, "texts.txt: line 2: a text of 302 tokens"),
        ("embed -m encoder.gguf --jsonl broken.jsonl", 2, "broken.jsonl: line 2: expected"),
        ("embed -m model.gguf a", 2, "tiny generates text"),
        ("run -m encoder.gguf -p a", 2, "scorer is an encoder"),
        ("rerank -m encoder.gguf -q a b", 2, "the model gives 3 scores"),
        ("embed -m encoder.gguf --pooling some a", 2, "'some'"),
    ];
    for (line, code, message) in cases {
        let ran = place.run(line);
        assert_eq!(ran.code, Some(code), "{line}: {ran:?}");
        assert!(ran.err.contains(message) && ran.out.is_empty(), "{line}: {ran:?}");
    }
    let cut = place.run("embed -m encoder.gguf -f texts.txt --truncate").good();
    assert_eq!(cut.out.lines().count(), 2);
}

#[test]
fn inspect_lists_metadata_and_tensors() {
    let place = place();
    let bytes = words::tiny(Type::F32, 1);
    let file = File::from_bytes("tiny", bytes.clone()).unwrap();
    let document = place.run("inspect model.gguf --hash --json").json();
    let expected = [
        "architecture",
        "version",
        "parameters",
        "bytes",
        "gives",
        "sha256",
        "metadata",
        "tensors",
        "problems",
    ];
    assert_eq!(keys(&document), expected);
    assert_eq!(document["architecture"], "llama");
    assert_eq!(document["bytes"], bytes.len());
    assert_eq!(document["problems"], json!([]));
    assert_eq!(keys(&document["metadata"]).len(), file.metadata().len());
    assert_eq!(document["metadata"]["tokenizer.ggml.tokens"].as_array().unwrap().len(), 128);
    let tensors = document["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), file.tensors().len());
    for (listed, tensor) in tensors.iter().zip(file.tensors()) {
        let layout = tensor.layout();
        let expected = json!({
            "name": tensor.name(),
            "shape": layout.shape(),
            "type": "F32",
            "offset": layout.offset(),
            "bytes": layout.len_bytes(),
        });
        assert_eq!(*listed, expected);
    }
    if let Ok(output) = Command::new("sha256sum").arg(place.path().join("model.gguf")).output() {
        let sum = String::from_utf8_lossy(&output.stdout);
        assert_eq!(document["sha256"].as_str(), sum.split(' ').next());
    }
    assert!(place.run("inspect --json model.gguf").json().get("sha256").is_none());

    let listing = place.run("inspect -m model.gguf").good().out;
    for part in ["architecture  llama", "token_embd.weight", "128 x 64", "context       "] {
        assert!(listing.contains(part), "{part} in {listing}");
    }
    // The summary comes first.
    let summary: Vec<&str> = listing.lines().take_while(|line| !line.is_empty()).collect();
    assert!(summary.len() < 10 && summary.contains(&"runs: yes"), "{listing}");
    assert!(summary.contains(&"gives         text"), "{listing}");
    for (name, bytes, gives) in [
        ("scorer.gguf", words::scorer("bert", &["good", "bad"]), "scores: good, bad"),
        ("reranker.gguf", words::reranker("{query} {document}"), "scores: yes, no"),
        ("embedder.gguf", words::tiny_of("nomic-bert"), "embeddings, the mean of a text's rows"),
    ] {
        place.file(name, bytes);
        assert_eq!(place.run(&format!("inspect --json {name}")).json()["gives"], gives);
    }
}

#[test]
fn tokenize_and_detokenize_undo_each_other() {
    let place = place();
    let document = place.run("tokenize -m model.gguf --json a-b").json();
    assert_eq!(keys(&document), ["tokens", "pieces"]);
    assert_eq!(ids(&document["tokens"]), [1, 3, 68, 16, 69]);
    assert_eq!(document["pieces"], json!(["<s>", " ", "a", "-", "b"]));

    let table = place.run("tokenize -m model.gguf -p a --no-bos").good().out;
    assert_eq!(table, "      3  \" \"\n     68  \"a\"\n");
    assert_eq!(place.run("tokenize -m model.gguf -p a --ids").good().out, "[1,3,68]\n");
    let special = place.run("tokenize -m model.gguf --ids a</s>").good().out;
    assert_eq!(special, "[1,3,68,2]\n");
    let plain = place.run("tokenize -m model.gguf --ids a</s> --no-parse-special").good().out;
    assert_eq!(plain, "[1,3,68,31,18,86,33]\n");

    for (given, input) in [("1,68,69", ""), ("[1, 68, 69]", ""), ("", "[1,68 69]\n")] {
        let ran = place.run_with_input(&format!("detokenize -m model.gguf {given}"), input).good();
        assert_eq!(ran.out, "ab\n", "{given} {input}");
    }
    let document = place.run("detokenize -m model.gguf --json 68,69").json();
    assert_eq!(document, json!({ "tokens": [68, 69], "text": "ab" }));
}

#[test]
fn tokenize_reads_files_pipes_and_json_lines() {
    let place = place();
    place.file("text.txt", r"a\n");
    let escaped = place.run(r"tokenize -m model.gguf --ids --no-bos a\x62").good().out;
    assert_eq!(escaped, "[3,68,69]\n");
    let kept = place.run(r"tokenize -m model.gguf --ids --no-bos --no-escape a\n").good().out;
    assert_eq!(kept, "[3,68,63,81]\n");
    let file = place.run("tokenize -m model.gguf --ids --no-bos -f text.txt").good().out;
    assert_eq!(file, kept, "files are taken as they stand");
    let piped = place.run_with_input("tokenize -m model.gguf --ids --no-bos", r"a\n").good().out;
    assert_eq!(piped, kept);

    let lines = "\"a\"\n\n\"\\u0062\"\n";
    place.file("lines.jsonl", lines);
    let expected = "[1,3,68]\n[1,3,69]\n";
    let run = "tokenize -m model.gguf --jsonl";
    assert_eq!(place.run(&format!("{run} lines.jsonl")).good().out, expected);
    assert_eq!(place.run_with_input(&format!("{run} -"), lines).good().out, expected);
    place.file("bad.jsonl", "\"a\"\n{}\n");
    let bad = place.run(&format!("{run} bad.jsonl"));
    assert_eq!(bad.out, "[1,3,68]\n", "lines are answered as they come");
    check_failure(&Ran { out: String::new(), ..bad }, 2, "bad.jsonl: line 2: expected one JSON");
}

#[test]
fn pieces_that_are_not_characters_are_shown_byte_by_byte() {
    let Some(vocabulary) = shared("stories260k/stories260k-q8_0.gguf") else { return };
    let place = Place::new();
    let path = vocabulary.display();
    let table = place.run(&format!("tokenize -m {path} --no-bos 日")).good().out;
    // SentencePiece falls back to byte tokens: <0xE6><0x97><0xA5>.
    let bytes = "    233  \"\\xe6\"\n    154  \"\\x97\"\n    168  \"\\xa5\"\n";
    assert!(table.ends_with(bytes), "{table}");
}

#[test]
fn completions_and_manual_pages_cover_every_command() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.run(&format!("completions {shell}")).good().out;
        for part in COMMANDS.iter().chain(&["ubatch-size"]) {
            assert!(script.contains(part), "{shell}: {part}");
        }
        for short in ["ngl", "cnv", "ctk", "hf"] {
            let dash = if shell == "fish" { "-o " } else { "-" };
            assert!(script.contains(&format!("{dash}{short}")), "{shell}: -{short}");
        }
    }
    let page = place.run("man").good().out;
    assert!(page.contains(".TH bilayer 1") && page.contains("Exit codes"), "{page}");
    place.run("man --out pages").good();
    for command in COMMANDS {
        let path = place.path().join(format!("pages/bilayer-{command}.1"));
        let page = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains(&format!(".TH bilayer-{command} 1")), "{page}");
    }
    let run = std::fs::read_to_string(place.path().join("pages/bilayer-run.1")).unwrap();
    for short in ["\\-ub", "\\-ctk", "\\-ctv", "\\-fa"] {
        assert!(run.contains(short), "{short}");
    }
}

#[test]
fn help_is_as_recorded() {
    let place = Place::new();
    insta::assert_snapshot!("help", place.run("--help").good().out);
    for command in COMMANDS {
        let help = place.run(&format!("{command} --help")).good().out;
        insta::assert_snapshot!(format!("help_{command}"), help);
        let brief = place.run(&format!("{command} -h")).good().out;
        let is_short = help.lines().count() <= 46;
        assert!(brief.lines().count() <= 46 && (!is_short || brief == help), "{brief}");
        if command == "run" {
            insta::assert_snapshot!("help_brief_run", brief);
        }
    }
    let version = place.run("--version").good().out;
    let first = concat!(
        "^bilayer ",
        env!("CARGO_PKG_VERSION"),
        r" \((unknown|[0-9a-f]{9,40}), build [0-9]+\)\n"
    );
    assert!(regex::Regex::new(first).unwrap().is_match(&version), "{version}");
    for part in ["\nfeatures: ", "\ncpu:      ", "\ngpu:      "] {
        assert!(version.contains(part), "{version}");
    }
}

// Exit codes.

/// One line `bilayer: reason; next step`, nothing on stdout.
#[track_caller]
fn check_failure(ran: &Ran, code: i32, part: &str) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert_eq!(ran.out, "", "{ran:?}");
    let errors: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("bilayer: ")).collect();
    assert_eq!(errors.len(), 1, "{ran:?}");
    assert_eq!(ran.err.lines().last(), Some(errors[0]), "{ran:?}");
    assert!(errors[0].contains("; "), "no next step: {ran:?}");
    assert!(errors[0].contains(part), "`{part}` is not in {ran:?}");
    assert!(!ran.err.contains("panicked"), "{ran:?}");
}

/// A GGUF file with one tensor of a type that does not exist.
fn unknown_type() -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.push(b't');
    bytes.extend(1u32.to_le_bytes());
    bytes.extend(32u64.to_le_bytes());
    bytes.extend(99u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.resize(256, 0);
    bytes
}

/// The tiny model without one of its tensors.
fn incomplete() -> Vec<u8> {
    let file = File::from_bytes("tiny", words::tiny(Type::F32, 1)).unwrap();
    let kept = file.tensors().iter().filter(|tensor| tensor.name() != "blk.1.ffn_up.weight");
    let tensors = kept.map(|tensor| {
        let layout = tensor.layout();
        NewTensor::bytes(tensor.name(), layout.ty(), layout.shape(), file.bytes(tensor))
    });
    to_bytes(file.metadata(), tensors).unwrap().to_vec()
}

/// The tiny model as one of another architecture.
fn other_architecture() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "nonesuch");
    to_bytes(&metadata, []).unwrap().to_vec()
}

#[test]
fn bad_model_files_are_refused_by_every_command_that_reads_them() {
    let place = place();
    let whole = words::tiny(Type::F32, 1);
    place.file("empty.gguf", []);
    place.file("truncated.gguf", &whole[..whole.len() / 2]);
    place.file("header.gguf", &whole[..100]);
    place.file("text.gguf", "just some text\n");
    place.file("type.gguf", unknown_type());
    std::fs::create_dir(place.path().join("folder.gguf")).unwrap();
    let unreadable = [
        ("absent", 66, "no such file"),
        ("empty", 65, "empty.gguf"),
        ("truncated", 65, "it is incomplete or damaged"),
        ("header", 65, "it is incomplete or damaged"),
        ("text", 65, "not a GGUF file"),
        ("type", 65, "tensor t"),
        ("folder", 65, "found a folder"),
    ];
    for (name, code, part) in unreadable {
        for command in ["run -p a -m", "inspect", "tokenize -p a -m", "detokenize 1 -m"] {
            check_failure(&place.run(&format!("{command} {name}.gguf")), code, part);
        }
        check_failure(&place.run(&format!("run -p a --no-mmap -m {name}.gguf")), code, part);
    }
}

#[test]
fn files_that_are_not_models_are_listed_and_not_run() {
    let place = place();
    place.file("incomplete.gguf", incomplete());
    place.file("other.gguf", other_architecture());
    let mut cases = vec![
        (place.path().join("incomplete.gguf"), "tensor `blk.1.ffn_up.weight` is missing"),
        (place.path().join("other.gguf"), "architecture `nonesuch` is not supported"),
    ];
    if let Some(path) = shared("gguf-real/weightless-tiny.gguf") {
        cases.push((path, "key llama.attention.layer_norm_rms_epsilon: expected"));
    }
    for (path, part) in cases {
        let path = path.display();
        check_failure(&place.run(&format!("run -p a -m {path}")), 65, part);
        let ran = place.run(&format!("inspect --json {path}"));
        assert_eq!(ran.code, Some(65), "{ran:?}");
        let document: Value = serde_json::from_str(&ran.out).unwrap();
        let problems = document["problems"].as_array().unwrap();
        assert!(problems.iter().any(|p| p.as_str().unwrap().contains(part)), "{problems:?}");
        let listing = place.run(&format!("inspect {path}")).out;
        assert!(listing.contains("runs: no") && listing.contains(part), "{listing}");
    }
}

#[test]
fn malformed_files_end_as_their_manifest_says() {
    let Some(folder) = shared("gguf-malformed") else { return };
    let place = Place::new();
    let manifest = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&manifest).unwrap();
    for (name, entry) in manifest["files"].as_object().unwrap() {
        let path = folder.join(name);
        let ran = place.run(&format!("inspect {}", path.display()));
        match entry["expect"].as_str().unwrap() {
            // The file is listed, with what keeps it from running.
            "accept" => assert!(ran.out.contains("\nruns: no\n"), "{name}: {ran:?}"),
            "reject" => check_failure(&ran, 65, name),
            _ if ran.out.contains("\nruns: ") => {}
            _ => check_failure(&ran, 65, name),
        }
        check_failure(&place.run(&format!("run -p a -m {}", path.display())), 65, name);
    }
}

#[test]
fn invalid_command_lines_give_one_line_and_code_2() {
    let place = place();
    let cases = [
        ("run --tep 1", "has no flag --tep; --temp is similar"),
        ("run -sm row", "use layer, or none with -mg"),
        ("run -ts 0,0", "it must be shares such as 3,1"),
        ("run -ngl most", "it must be auto, all, a number of layers or a percentage"),
        ("run -ot ffn", "it must be PATTERN=DEVICE such as"),
        ("run -m model.gguf -p a -ngl 1 -ot (=cpu", "override-tensor is (; it must be a regular"),
        ("run --vram much", "it must be a size such as 24GiB"),
        ("verify -m model.gguf --b tpu", "it must be cpu, cpu:LEVEL, gpu or reference"),
        ("run --mmproj=1", "--mmproj is not supported; "),
        (
            "run -m model.gguf -p a -ngl 1 -dev 0,1 -sm none -mg 2",
            "main-gpu is 2; it must be below 2",
        ),
        ("run -m model.gguf -i", "-i is not supported; "),
        ("run -m model.gguf -cnv -no-cnv", "cannot be used with"),
        ("-m model.gguf -p a -xyz", "`bilayer run` has no flag -xyz; "),
        ("run --top-k many", "'many' for '--top-k <N>'"),
        ("run -fa maybe", "[possible values: on, off, auto]"),
        ("run -ctk q9", "it must be f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl"),
        ("run -p a -khad", "k-cache-hadamard is on with f16 keys; it must be off, or cache-type-k"),
        ("run -p a -f b", "cannot be used with"),
        ("run --seed -2", "'-2'"),
        ("run -n -3", "'-3'"),
        ("run --logprobs 2", "--json"),
        ("run -m model.gguf -p a --temp -1", "--temp is -1; it must be"),
        ("run -m model.gguf -p a --temp nan", "--temp is NaN; it must be"),
        ("run -m model.gguf -p a --top-p 2", "--top-p is 2; it must be"),
        ("serve -m model.gguf --port 0 --top-p 2", "--top-p is 2; it must be"),
        ("run -m model.gguf -p a --mirostat 3", "--mirostat is 3; it must be"),
        ("run -m model.gguf -p a -l 5", "--logit-bias is `5`; it must be TOKEN+BIAS"),
        ("run -m model.gguf -p a -l 128+1", "--logit-bias is 128; it must be"),
        ("run -m model.gguf -p a -t 100000", "threads is 100000; it must be"),
        ("run -m model.gguf -p a -c 16777217", "ctx-size is 16777217; it must be"),
        ("run -m model.gguf -p a -b 0", "is 0; it must be"),
        ("run -m model.gguf -p a -ub 0", "is 0; it must be"),
        ("run -m model.gguf -p a --cpu-level sse9", "sse9"),
        ("run -m model.gguf --tokens 1,128", "token 128 is not in the vocabulary of 128 tokens"),
        ("run -m model.gguf --tokens one", "'one'"),
        (r"run -m model.gguf -p \xff", "--no-escape"),
        ("detokenize -m model.gguf 128", "token 128 is not in the vocabulary"),
        ("detokenize -m model.gguf -1", "-1"),
        ("detokenize -m model.gguf x", "`x` is not a token id; "),
        ("inspect", "<PATH>"),
        ("inspect a b", "'b'"),
        ("completions csh", "csh"),
        ("synth", "<OUT>"),
        ("synth --shape llama-9b x.gguf", "`llama-9b` is no shape; known are tiny, llama-1b"),
        ("synth --type Q4_K_X x.gguf", "`Q4_K_X` is no type; known are F32"),
        ("synth --type I32 x.gguf", "weights are never stored as I32; "),
        ("synth --type COPY x.gguf", "--type COPY keeps the types of an existing file"),
        ("synth --heads 3 x.gguf", "heads is 3; it must be a divisor of the width 256"),
        ("synth --kv-heads 3 x.gguf", "kv-heads is 3; it must be a divisor of the 4 heads"),
        ("synth --layers 0 x.gguf", "layers is 0; it must be"),
        ("synth -t 100000 x.gguf", "threads is 100000; it must be at most 512"),
        ("synth --seed x x.gguf", "'x' for '--seed <N>'"),
        ("rum", "a similar subcommand exists: 'run'"),
    ];
    for (line, part) in cases {
        check_failure(&place.run(line), 2, part);
    }
    assert_eq!(place.names(), ["model.gguf"]);
}

#[test]
fn invalid_command_lines_of_prune_give_one_line_and_code_2() {
    let place = place();
    let cases = [
        ("prune model.gguf x.gguf", "--pattern"),
        ("prune model.gguf x.gguf --pattern 5:4", "kept weights per group, such as 16:64"),
        ("prune model.gguf x.gguf --pattern 2:4", "give --calibration FILE"),
        ("prune model.gguf x.gguf --target-kl 0.1", "give --calibration FILE"),
        ("prune model.gguf x.gguf --target-kl 0 --calibration t", "`0` is not above 0"),
        ("prune model.gguf x.gguf --target-speed 2 --calibration t", "give --type S4_N_64"),
        ("prune model.gguf x.gguf --pattern 2:4 --type S4_N_64", "names a family of types"),
        ("prune model.gguf x.gguf --drop-layers x", "`x` is neither auto, auto:KL"),
    ];
    for (line, part) in cases {
        check_failure(&place.run(line), 2, part);
    }
    assert_eq!(place.names(), ["model.gguf"]);
}

#[test]
fn missing_files_long_prompts_and_missing_levels_have_their_own_codes() {
    let place = place();
    place.file("latin1.txt", [b'a', 0xe9, b'b']);
    let unavailable = Level::ALL.into_iter().find(|level| !level.is_available());
    let level = unavailable.map(|level| format!("run -m model.gguf -p a --cpu-level {level}"));
    let cases = [
        ("run -m model.gguf -f absent.txt", 66, "absent.txt: cannot be read"),
        ("run -m model.gguf -f latin1.txt", 74, "not UTF-8 text from byte 1 on"),
        ("tokenize -m model.gguf -f absent.txt", 66, "absent.txt: cannot be read"),
        (
            "run -m model.gguf -c 4 -p abcdefgh",
            75,
            "10 tokens do not fit into the context of 4 tokens; use a larger context (-c)",
        ),
    ];
    for (line, code, part) in cases {
        check_failure(&place.run(line), code, part);
    }
    match level {
        Some(line) => check_failure(&place.run(&line), 69, "does not support level"),
        None => eprintln!("skipped: this CPU supports every level"),
    }
}

#[test]
fn logits_that_cannot_be_written_leave_no_file() {
    let place = place();
    std::fs::create_dir(place.path().join("folder.npy")).unwrap();
    let before = place.names();
    for path in ["absent/x.npy", "folder.npy", "model.gguf/x.npy"] {
        let ran = place.run(&format!("run -m model.gguf -p a -n 1 --logits {path}"));
        check_failure(&ran, 73, &format!("{path}: cannot be written"));
        assert_eq!(place.names(), before);
    }
    // The file is created first, and must be removed after an error.
    check_failure(&place.run("run -m model.gguf -c 1 -p abc --logits x.npy"), 75, "context");
    assert_eq!(place.names(), before);
    check_failure(&place.run("man --out model.gguf/pages"), 73, "model.gguf/pages");
}

#[test]
#[cfg(unix)]
fn logits_go_into_a_device_without_replacing_it() {
    let place = place();
    std::os::unix::fs::symlink("/dev/null", place.path().join("null")).unwrap();
    place.run("run -m model.gguf -p a -n 1 --logits null").good();
    assert!(std::fs::symlink_metadata(place.path().join("null")).unwrap().is_symlink());
    let ran = place.run("run -m model.gguf -p a -n 1 --logits /dev/full");
    if Path::new("/dev/full").exists() {
        assert_eq!(ran.code, Some(74), "{ran:?}");
    }
}

// Reference results of other programs.

#[derive(serde::Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(serde::Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    logits_last: Vec<f32>,
    argmax_each: Vec<u32>,
    greedy_ids: Vec<u32>,
}

impl Case {
    /// The prompt as `--tokens` takes it.
    fn list(&self) -> String {
        self.ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }
}

fn reference() -> Option<(Vec<Case>, String)> {
    let path = shared("stories260k/reference.json")?;
    let model = shared("stories260k/stories260k-f32.gguf")?;
    let reference: Reference =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    Some((reference.cases, model.display().to_string()))
}

#[test]
fn greedy_answers_are_the_reference_ones() {
    let Some((cases, model)) = reference() else { return };
    let place = Place::new();
    for case in &cases {
        let expected = &case.greedy_ids[case.ids.len()..];
        // An f16 cache changes logits by 0.008, enough for another choice somewhere in the last text.
        let exact = "-ctk f32 -ctv f32";
        let run = format!("run -m {model} {exact} --temp 0 -n {} --json", expected.len());
        let document = place.run(&format!("{run} --tokens {}", case.list())).json();
        assert_eq!(ids(&document["prompt_tokens"]), case.ids);
        assert_eq!(ids(&document["tokens"]), expected, "{:?}", case.text);
        // As text, with another batch size, without fused ops and without a memory map.
        let flags = ["-ub", "3", "-fa", "off", "--no-mmap", "--no-escape", "-p", &case.text];
        let document = ran(place.command(&run).args(flags)).json();
        assert_eq!(ids(&document["prompt_tokens"]), case.ids, "{:?}", case.text);
        assert_eq!(ids(&document["tokens"]), expected, "{:?}", case.text);
    }
    let case = &cases[0];
    for level in Level::available() {
        let run = format!("run -m {model} --cpu-level {level} --temp 0 -n 120 --json");
        let document = ran(place.command(&run).args(["-p", &case.text])).json();
        assert_eq!(ids(&document["tokens"]), case.greedy_ids[case.ids.len()..], "{level}");
    }
}

#[test]
fn logits_files_hold_the_reference_logits() {
    let Some((cases, model)) = reference() else { return };
    let place = Place::new();
    for case in cases {
        let ids = case.list();
        let kv = "-ctk f32 -ctv f32";
        for batch in ["-ub 512", "-ub 4", "-b 1"] {
            let run = format!("run -m {model} {kv} {batch} -n 0 --tokens {ids} --logits x.npy");
            place.run(&run).good();
            let (shape, values) = npy(&place.path().join("x.npy"));
            assert_eq!(shape, [case.ids.len(), 512]);
            let rows: Vec<&[f32]> = values.chunks(512).collect();
            let best: Vec<u32> = rows.iter().map(|row| argmax(row)).collect();
            assert_eq!(best, case.argmax_each, "{:?}", case.text);
            let pairs = rows[rows.len() - 1].iter().zip(&case.logits_last);
            let error = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(error < LOGIT_ERROR_MAX, "{:?} {batch}: {error}", case.text);
        }
    }
    assert_eq!(place.names(), ["x.npy"]);
}

/// Largest difference of a logit; logits lie within about 20. Most levels stay within 1e-5; AMX, which multiplies many
/// tokens as sums of bf16 products, reaches 1.3e-4.
const LOGIT_ERROR_MAX: f32 = 3e-4;

// Sources of prompts and ends of answers.

#[test]
fn prompts_come_from_flags_files_and_pipes() {
    let place = place();
    place.file("prompt.txt", "abc");
    let run = "run -m model.gguf -n 4 --temp 0 --json";
    let expected = place.run(&format!("{run} -p abc")).json();
    let others = [
        place.run(&format!("{run} -f prompt.txt")),
        place.run(&format!("{run} --tokens 1,3,68,69,70")),
        place.run_with_input(run, "abc"),
        place.run_with_input(&format!("{run} -f -"), "abc"),
        place.run(r"-m model.gguf -n 4 --temp 0 --json -p \x61bc"),
    ];
    for other in others {
        let other = other.json();
        for key in ["prompt_tokens", "tokens", "text"] {
            assert_eq!(other[key], expected[key], "{key}");
        }
    }
    let hyphen = place.run(&format!("{run} -p -n")).json();
    assert_eq!(ids(&hyphen["prompt_tokens"]), [1, 3, 16, 81]);
    let echo = place.run("run -m model.gguf -n 4 --temp 0 --echo -p abc").good().out;
    assert_eq!(echo, format!("abc{}\n", expected["text"].as_str().unwrap()));
}

/// A path that is no text is shown with a sign in place of its bytes.
#[test]
#[cfg(target_os = "linux")]
fn reports_name_files_whose_paths_are_no_text() {
    use std::os::unix::ffi::OsStrExt;

    let place = place();
    let name = |name: &[u8]| std::ffi::OsStr::from_bytes(name).to_owned();
    let folder = place.path().join(name(b"d\xff"));
    std::fs::create_dir(&folder).unwrap();
    std::fs::rename(place.path().join("model.gguf"), folder.join("model.gguf")).unwrap();
    let mut models = place.command("models --json --models-dir");
    let listed = ran(models.arg(&folder)).json();
    let path = listed["models"][0]["path"].as_str().unwrap();
    assert!(path.ends_with("d\u{fffd}/model.gguf"), "{path}");
    let checkpoint = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/train_demo/checkpoint");
    let mut convert = place.command(&format!("convert {checkpoint} --dry-run --json --outfile"));
    let made = ran(convert.arg(name(b"n\xff.gguf"))).json();
    assert_eq!(made["path"], "n\u{fffd}.gguf");
    std::fs::write(
        place.path().join(name(b"c\xff.jsonl")),
        r#"{"prompt": "ab", "exact": "c", "max_tokens": 1}"#,
    )
    .unwrap();
    let mut evaluate = place.command("evaluate --json -ngl 0 --data");
    let found = ran(evaluate.arg(name(b"c\xff.jsonl"))).json();
    assert_eq!(found["data"], "c\u{fffd}.jsonl");
}

/// A pipe may begin late; what is neither pipe nor file may never begin.
#[test]
#[cfg(unix)]
fn a_late_pipe_follows_the_prompt_and_an_idle_socket_is_named() {
    let place = place();
    let run = "run -m model.gguf -n 2 --temp 0 --json";
    let expected = place.run(&format!("{run} -p ab\\ncd")).json();
    let spawned = |stdin: Stdio| {
        let mut command = place.command(&format!("{run} -p ab"));
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut late = spawned(Stdio::piped());
    std::thread::sleep(Duration::from_millis(2500));
    let mut pipe = late.stdin.take().unwrap();
    pipe.write_all(b"cd\n").unwrap();
    drop(pipe);
    let late = Ran::new(&late.wait_with_output().unwrap());
    assert!(late.err.contains("waiting for standard input to end; press Ctrl-D"), "{late:?}");
    assert_eq!(late.json()["prompt_tokens"], expected["prompt_tokens"]);

    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let idle = spawned(Stdio::from(std::os::fd::OwnedFd::from(socket)));
    let idle = Ran::new(&idle.wait_with_output().unwrap());
    assert!(idle.err.contains("sent nothing within 0.4 s and is not read"), "{idle:?}");
    assert_ne!(idle.json()["prompt_tokens"], expected["prompt_tokens"]);
}

#[test]
fn the_demo_runs_without_arguments_or_input() {
    let place = Place::new();
    let null = place.run("").good();
    assert!(null.out.len() > 20, "{null:?}");
    assert!(null.err.contains("prompt: ") && null.err.contains("generate: 200 tokens"), "{null:?}");

    // An open pipe without a writer.
    let mut idle = place.command("run -n 4 --json");
    let idle = idle.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = idle.spawn().unwrap();
    let pipe = child.stdin.take();
    let idle = Ran::new(&child.wait_with_output().unwrap()).json();
    drop(pipe);
    let null = place.run("run -n 4 --json").json();
    assert_eq!(idle["prompt_tokens"], null["prompt_tokens"]);
    assert_eq!(ids(&null["tokens"]).len(), 4);
    let asked = place.run_with_input("-n 4 --json", "JULIET:").json();
    assert_ne!(asked["prompt_tokens"], null["prompt_tokens"]);

    #[cfg(unix)]
    {
        let mut shell = place.bare("sh");
        shell.args(["-c", "exec \"$0\" run -n 4 --json <&-", env!("CARGO_BIN_EXE_bilayer")]);
        assert_eq!(ran(&mut shell).json()["prompt_tokens"], null["prompt_tokens"]);
    }
}

#[test]
fn the_first_token_of_the_demo_comes_within_a_second_of_the_start() {
    if cfg!(debug_assertions) {
        eprintln!("note: measured with debug assertions");
    }
    let place = Place::new();
    let mut best = Duration::MAX;
    // The best of three, since the machine may be busy.
    for _ in 0..3 {
        let began = Instant::now();
        let mut command = place.command("");
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut first = [0];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        best = best.min(began.elapsed());
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(best < Duration::from_secs(1), "{best:?}");
}

#[test]
fn stop_texts_end_the_answer_and_are_not_part_of_it() {
    let place = place();
    let run = "run -m model.gguf -p abc --temp 0 --ignore-eos --json";
    let whole = place.run(&format!("{run} -n 12")).json();
    assert_eq!(whole["stop_reason"], "length");
    let text = whole["text"].as_str().unwrap();
    let stop: String = text.chars().skip(3).take(2).collect();
    let before = &text[..text.find(&stop).unwrap()];
    for flag in ["--stop", "-r"] {
        let mut command = place.command(&format!("{run} -n 12 --no-escape --stop neverseen"));
        let stopped = ran(command.args([flag, &stop])).json();
        assert_eq!(stopped["stop_reason"], "stop", "{text:?} {stop:?}");
        assert_eq!(stopped["text"], before);
    }
    let context = place.run(&format!("{run} -c 9")).json();
    assert_eq!(context["stop_reason"], "context");
    assert_eq!(ids(&context["tokens"]).len(), 9 - 5 + 1, "the last one is not run any more");
}

#[test]
fn a_seed_reproduces_its_answer_and_another_seed_gives_another() {
    let place = place();
    let run = "run -m model.gguf -p abc -n 24 --temp 1.5 --top-k 0 --top-p 1 --min-p 0 --json";
    let tokens = |seed: &str| {
        let document = place.run(&format!("{run} --seed {seed}")).json();
        (ids(&document["tokens"]), document["seed"].as_u64().unwrap())
    };
    let (first, seed) = tokens("1");
    assert_eq!(seed, 1);
    assert_eq!(tokens("1").0, first);
    assert_ne!(tokens("2").0, first);
    let (drawn, seed) = tokens("-1");
    assert_eq!(tokens(&seed.to_string()).0, drawn, "the seed that is reported gives the answer");
}

#[test]
fn logit_bias_forbids_and_forces_tokens() {
    let place = place();
    let run = "run -m model.gguf -p abc -n 6 --temp 0 --ignore-eos --json";
    let free = ids(&place.run(run).json()["tokens"]);
    let barred = ids(&place.run(&format!("{run} -l {}-inf", free[0])).json()["tokens"]);
    assert!(!barred.contains(&free[0]), "{free:?} {barred:?}");
    let forced = ids(&place.run(&format!("{run} --logit-bias 70+1000")).json()["tokens"]);
    assert_eq!(forced, [70; 6]);
}

// Settings.

#[test]
fn flags_override_variables_override_the_file_overrides_defaults() {
    let place = place();
    let run = "run -m model.gguf -p abc -c 12 --temp 0 --ignore-eos --json";
    let count = |variable: Option<&str>, flags: &str| {
        let mut command = place.command(&format!("{run} {flags}"));
        command.envs(variable.map(|value| ("LLAMA_ARG_N_PREDICT", value)));
        ids(&ran(&mut command).json()["tokens"]).len()
    };
    assert_eq!(count(None, ""), 8, "until the context is full");
    place.file("bilayer.toml", "n-predict = 2\n");
    assert_eq!(count(None, ""), 2);
    assert_eq!(count(Some("3"), ""), 3);
    assert_eq!(count(Some("3"), "-n 4"), 4);
    assert_eq!(count(None, "-n 4"), 4);

    let home = place.path().join(".config/bilayer");
    std::fs::create_dir_all(&home).unwrap();
    std::fs::write(home.join("bilayer.toml"), "n-predict = 5\n").unwrap();
    assert_eq!(count(None, ""), 2, "the working directory comes first");
    std::fs::remove_file(place.path().join("bilayer.toml")).unwrap();
    assert_eq!(count(None, ""), 5);
}

#[test]
fn the_settings_file_takes_every_type_of_value_and_serves_every_command() {
    let place = place();
    place.file(
        "bilayer.toml",
        "model = \"model.gguf\"\ntemp = 0.0\nstop = [\"neverseen\", \"norThis\"]\n\
         ignore-eos = true\nmlock = false\nn-predict = 3\nflash-attn = \"off\"\n",
    );
    let document = place.run("run -p abc --json").json();
    assert_eq!(document["model"], "model.gguf");
    assert_eq!(ids(&document["tokens"]).len(), 3);
    assert_eq!(place.run("tokenize --ids a").good().out, "[1,3,68]\n");
    place.run("inspect model.gguf").good();
    place.run("man").good();

    let broken = [
        // A list is text with commas where a flag is given once.
        ("threads = [1, 2]\n", "bilayer.toml: invalid value '1,2'"),
        ("tensor-split = [3, \"many\"]\n", "bilayer.toml: invalid value '3,many'"),
        ("temperature-of-the-room = 1\n", "no setting `temperature-of-the-room`"),
        ("prompt = \"hello\"\n", "`prompt` cannot be set in a file; give it as --prompt"),
        ("threads = \"many\"\n", "bilayer.toml: invalid value 'many'"),
        ("threads = { a = 1 }\n", "`threads` has a value of an unsupported type"),
        ("temp 1\n", "bilayer.toml: line 1: "),
    ];
    for (text, part) in broken {
        place.file("bilayer.toml", text);
        check_failure(&place.run("run -m model.gguf -p a"), 2, part);
    }
}

#[test]
fn a_flag_wins_over_what_excludes_it_elsewhere() {
    let place = place();
    place.file("t.jinja", "{{ messages[0].content }}");
    let run = "run -m model.gguf -st -p abc -n 2 --temp 0 -ngl 0";
    let plain = place.run(&format!("{run} --chat-template-file t.jinja")).good().out;
    let chat = place.run(&format!("{run} --chat-template chatml")).good().out;
    assert_ne!(plain, chat);
    let with = |variable: &str, value: &str, flags: &str| {
        let mut command = place.command(&format!("{run} {flags}"));
        ran(command.env(variable, value)).good().out
    };
    let file = "--chat-template-file t.jinja";
    assert_eq!(with("LLAMA_ARG_CHAT_TEMPLATE", "chatml", file), plain);
    assert_eq!(with("LLAMA_ARG_CHAT_TEMPLATE_FILE", "t.jinja", "--chat-template chatml"), chat);
    assert_eq!(with("LLAMA_ARG_CHAT_TEMPLATE", "chatml", ""), chat);
    place.file("bilayer.toml", "chat-template = \"chatml\"\n");
    assert_eq!(place.run(&format!("{run} {file}")).good().out, plain);
    assert_eq!(with("LLAMA_ARG_CHAT_TEMPLATE_FILE", "t.jinja", ""), plain, "before the file");
    let both = place.run(&format!("{run} {file} --chat-template chatml"));
    check_failure(&both, 2, "cannot be used with");
    // Flags of which one may be given.
    place.file("bilayer.toml", "json-schema-file = \"absent.json\"\n");
    let grammar = ["--grammar", "root ::= \"yes\""];
    let answer = ran(place.command("run -m model.gguf -p abc -n 4 -ngl 0").args(grammar)).good();
    assert!(answer.out.contains("yes"), "{answer:?}");
}

#[test]
fn variables_are_read_as_llama_cpp_reads_them_and_unknown_ones_named() {
    let place = place();
    let mut command = place.command("run -p abc --temp 0 --json");
    command.env("LLAMA_ARG_MODEL", "model.gguf").env("LLAMA_ARG_CTX_SIZE", "8");
    command.env("LLAMA_ARG_MLOCK", "0").env("LLAMA_ARG_NO_MMAP", "1");
    command.env("LLAMA_ARG_FLASH_ATTN", "enabled").env("LLAMA_ARG_POLL", "1");
    command.env("LLAMA_ARG_N_GPU_LAYERS", "0");
    let ran = ran(&mut command);
    assert!(ran.err.contains("note: LLAMA_ARG_POLL is set; "), "{ran:?}");
    assert_eq!(ran.err.matches("LLAMA_ARG_").count(), 1, "{ran:?}");
    let document = ran.json();
    assert_eq!(document["model"], "model.gguf");
    assert_eq!(document["stop_reason"], "context");
}

#[test]
fn numa_nodes_change_the_plan_and_no_token() {
    let place = place();
    let answer = |numa| {
        place.run(&format!("run -m model.gguf -p abc -n 8 --temp 0 -t 2 --json --numa {numa}"))
    };
    assert_eq!(answer("off").json()["text"], answer("2").json()["text"]);
    let plan = |numa| place.run(&format!("plan -m model.gguf -ngl 0 -t 3 --numa {numa}")).out;
    let [divided, whole] = [plan("2"), plan("off")];
    assert!(divided.contains("copied to 2 simulated NUMA nodes: node 0 "), "{divided}");
    assert!(divided.contains(", 2 threads; node 1 ") && !whole.contains("NUMA"), "{divided}");
    assert!(divided.contains(" --numa 2\n") && !whole.contains("--numa"), "{divided}");
    let alone = place.run("plan -m model.gguf -ngl 0 -t 1 --numa distribute").out;
    assert!(alone.contains("nothing is divided"), "{alone}");
    check_failure(&answer("isolate"), 2, "numactl --cpunodebind=0");
    check_failure(&answer("numactl"), 2, "are respected without it");
    check_failure(&answer("1"), 2, "off, distribute or a number");
}

#[test]
fn there_are_no_colours_or_bars_without_a_terminal() {
    let place = place();
    for line in ["run -m model.gguf -p abc -n 4", "run --help", "run --tep", "inspect model.gguf"] {
        let ran = place.run(line);
        let escapes = |text: &str| text.contains('\u{1b}') || text.contains('\r');
        assert!(!escapes(&ran.out) && !escapes(&ran.err), "{ran:?}");
    }
}

// Signals and closed pipes.

/// A long run, after it has printed its first text.
#[cfg(unix)]
fn endless(place: &Place) -> (std::process::Child, BufReader<std::process::ChildStdout>) {
    let mut command = place.command("run -m model.gguf -p abc -c 200000 --ignore-eos");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    assert!(!out.fill_buf().unwrap().is_empty());
    (child, out)
}

#[cfg(unix)]
fn interrupt(child: &std::process::Child) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
}

#[test]
#[cfg(unix)]
fn the_first_interrupt_ends_the_answer_with_its_statistics() {
    let place = place();
    let (child, mut out) = endless(&place);
    interrupt(&child);
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    let ran = Ran::new(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(text.ends_with('\n'), "{text:?}");
    let mut last = ran.err.lines().filter(|line| !line.starts_with("predicted "));
    assert!(last.next_back().unwrap().starts_with("prompt: 5 tokens"), "{ran:?}");
}

/// Whether a process handles SIGINT itself.
#[cfg(target_os = "linux")]
fn catches_interrupts(child: &std::process::Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    // SIGINT is signal 2, and bits count from signal 1.
    u64::from_str_radix(caught.trim(), 16).unwrap() & 0b10 != 0
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupt_before_the_answer_ends_the_process() {
    let place = place();
    let mut command = place.command("run -m model.gguf");
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let pipe = child.stdin.take();
    // The handler is installed before the process waits for its prompt.
    let began = Instant::now();
    while !catches_interrupts(&child) {
        assert!(began.elapsed() < Duration::from_secs(20), "no handler");
        std::thread::sleep(Duration::from_millis(5));
    }
    interrupt(&child);
    let status = child.wait().unwrap();
    drop(pipe);
    assert_eq!(status.code(), Some(130), "{status:?}");
}

/// The file is read into memory, which takes seconds.
#[test]
#[cfg(target_os = "linux")]
fn a_signal_during_a_load_ends_the_process_with_its_code() {
    let place = Place::new();
    place.run("synth --shape llama-1b --hollow large.gguf").good();
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let mut command = place.command("run -m large.gguf --no-mmap -dev none -p a -n 1");
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let reads = || {
            let files = std::fs::read_dir(format!("/proc/{}/fd", child.id())).unwrap();
            let mut paths = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
            paths.any(|path| path.ends_with("large.gguf"))
        };
        let began = Instant::now();
        while !(reads() && catches_interrupts(&child)) {
            assert!(began.elapsed() < Duration::from_secs(20), "the file is not read");
            std::thread::sleep(Duration::from_millis(2));
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let ran = Ran::new(&child.wait_with_output().unwrap());
        assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(code), "", ""));
    }
}

#[test]
#[cfg(unix)]
fn a_request_to_terminate_has_its_own_exit_code() {
    let place = place();
    for (signal, code) in [("-TERM", 143), ("-HUP", 129)] {
        let (child, out) = endless(&place);
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        drop(std::thread::spawn(move || out.lines().for_each(drop)));
        let ran = Ran::new(&child.wait_with_output().unwrap());
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.err.lines().any(|line| line.starts_with("prompt: 5 tokens")), "{ran:?}");
    }
}

#[test]
#[cfg(unix)]
fn an_interrupted_prompt_counts_the_tokens_that_were_run() {
    let place = place();
    place.file("long.txt", "a".repeat(60_000));
    let line = "run -m model.gguf -f long.txt -c 100000 -ub 64 -b 64 --prompt-cache p.kv";
    let mut command = place.command(line);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("tiny (") {
        line.clear();
        assert!(err.read_line(&mut line).unwrap() > 0);
    }
    std::thread::sleep(Duration::from_millis(300));
    interrupt(&child);
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    let counted = regex::Regex::new("prompt: ([0-9]+) tokens").unwrap();
    let tokens: usize = counted.captures(&rest).unwrap()[1].parse().unwrap();
    assert!(tokens < 60_000 && tokens.is_multiple_of(64), "{rest}");
    assert_eq!(place.path().join("p.kv").exists(), tokens > 0, "{rest}");
}

#[test]
#[cfg(unix)]
fn a_closed_pipe_ends_the_run_quietly() {
    let place = place();
    let (child, out) = endless(&place);
    drop(out);
    let ran = Ran::new(&child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(74), "{ran:?}");
    assert!(!ran.err.contains("panicked") && !ran.err.contains("bilayer: "), "{ran:?}");

    for line in
        ["inspect model.gguf", "--help", "man", "completions bash", "tokenize -m model.gguf a"]
    {
        let mut shell = place.bare("bash");
        let script = format!("\"$0\" {line} | true; exit ${{PIPESTATUS[0]}}");
        let ran = self::ran(shell.args(["-c", &script, env!("CARGO_BIN_EXE_bilayer")]));
        // `true` may or may not exit before these few bytes are written.
        assert!(matches!(ran.code, Some(0 | 74)) && ran.err.is_empty(), "{line}: {ran:?}");
    }
}

#[test]
#[cfg(unix)]
fn closed_streams_do_not_panic() {
    let place = place();
    let program = env!("CARGO_BIN_EXE_bilayer");
    let code = |script: &str| ran(place.bare("bash").args(["-c", script, program])).code;
    assert_eq!(code("\"$0\" run -m model.gguf -p a -n 4 2>&-"), Some(0));
    assert_eq!(code("\"$0\" run -m model.gguf -p a -n 4 2>/dev/full"), Some(0));
    assert_eq!(code("\"$0\" run --tep 2>/dev/full"), Some(2));
    // A log that cannot be written is said once.
    let ran = place.run("run -m model.gguf -p a -n 4 --log-file /dev/full").good();
    assert_eq!(ran.err.matches("/dev/full").count(), 1, "{ran:?}");
    assert_eq!(code("\"$0\" run -m model.gguf -p a -n 4 >/dev/full 2>/dev/null"), Some(74));
    assert_eq!(code("\"$0\" inspect model.gguf >/dev/full 2>/dev/null"), Some(74));
    assert_eq!(code("\"$0\" --help >/dev/full 2>/dev/null"), Some(74));
}

// Random models.

#[test]
fn synth_makes_models_that_run() {
    let place = Place::new();
    for (ty, matrices) in [("Q4_K_M", "Q4_K"), ("F16", "F16"), ("IQ2_XS --pure", "IQ2_XS")] {
        let line = format!("synth --layers 3 --type {ty} --seed 5 --json x.gguf");
        let document = place.run(&line).json();
        let names = ["path", "shape", "type", "seed", "tensors", "parameters", "bytes", "mb_per_s"];
        for name in names {
            assert!(keys(&document).contains(&name), "{name} in {document}");
        }
        let listed = place.run("inspect --json x.gguf").json();
        assert_eq!(listed["problems"], json!([]), "{ty}");
        assert_eq!(listed["parameters"], document["parameters"], "{ty}");
        let tensors = listed["tensors"].as_array().unwrap();
        assert!(tensors.iter().any(|tensor| tensor["type"] == matrices), "{ty}: {tensors:?}");
        let run = "run -m x.gguf --tokens 65,66,300 -n 4 --temp 0 --logits l.npy --json";
        assert_eq!(ids(&place.run(run).json()["tokens"]).len(), 4, "{ty}");
        let (shape, values) = npy(&place.path().join("l.npy"));
        assert_eq!(shape, [3, 512], "{ty}");
        assert!(values.iter().all(|value| value.is_finite()), "{ty}");
    }
    assert_eq!(place.names(), ["l.npy", "x.gguf"]);
}

#[test]
fn synth_gives_the_same_bytes_for_the_same_seed() {
    let place = Place::new();
    let made = |line: &str| {
        let ran = place.run(&format!("synth {line} x.gguf")).good();
        assert!(ran.out.starts_with("x.gguf: tiny Q4_K_M, 1312000 parameters"), "{ran:?}");
        std::fs::read(place.path().join("x.gguf")).unwrap()
    };
    let first = made("--seed 7 -t 1");
    assert!(first == made("--seed 7 -t 2"), "the threads matter");
    assert!(first != made("--seed 8"), "the seed does not");
}

#[test]
#[cfg(unix)]
fn an_interrupted_synth_leaves_no_file() {
    let place = Place::new();
    // Large enough to be interrupted midway, small enough for any disk.
    let mut command = place.command("synth --shape llama-1b x.gguf");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while place.names().is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    interrupt(&child);
    let ran = Ran::new(&child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.out.as_str()), (Some(130), ""), "{ran:?}");
    assert!(place.names().is_empty(), "{:?}", place.names());
}

#[test]
fn the_help_of_synth_lists_every_shape() {
    let help = Place::new().run("synth --help").good().out;
    for shape in bilayer_convert::synth::Shape::all() {
        assert!(help.contains(shape.name), "{}", shape.name);
    }
}

#[test]
fn a_hollow_70b_is_planned_and_listed() {
    let place = Place::new();
    let line = "synth --shape llama-70b --hollow --json 70b.gguf";
    let document = place.run(line).json();
    assert_eq!(document["parameters"], 70_553_706_560u64);
    let length = std::fs::metadata(place.path().join("70b.gguf")).unwrap().len();
    // The size of the published file of this type except its vocabulary: 42.52 GB.
    assert!((42_500_000_000..42_530_000_000).contains(&length), "{length}");
    let plan = place.run("plan -m 70b.gguf --vram 24GiB -c 4096 --json").json();
    let layers = plan["gpu_layers"].as_u64().unwrap();
    assert!((40..50).contains(&layers), "{layers}");
    let listed = place.run("inspect 70b.gguf").good().out;
    assert!(listed.contains("Q6_K") && listed.contains("runs: yes"), "{listed}");
}

#[test]
#[cfg(unix)]
fn synth_leaves_no_partial_file() {
    let place = place();
    let before = std::fs::read(place.path().join("model.gguf")).unwrap();
    std::fs::create_dir(place.path().join("folder")).unwrap();
    std::os::unix::fs::symlink("/dev/full", place.path().join("full")).unwrap();
    for (path, part) in [
        ("absent/x.gguf", "absent/x.gguf: cannot"),
        ("folder", "found a folder"),
        ("full", "found a pipe or device"),
        ("model.gguf/x", "model.gguf/x: cannot"),
    ] {
        check_failure(&place.run(&format!("synth {path}")), 73, part);
    }
    // Limits files to 64 blocks of 512 or 1024 bytes, depending on the shell.
    let script = "trap '' XFSZ; ulimit -f 64; \"$0\" synth model.gguf";
    let mut shell = place.bare("bash");
    let ran = ran(shell.args(["-c", script, env!("CARGO_BIN_EXE_bilayer")]));
    check_failure(&ran, 74, "cannot write it");
    assert_eq!(place.names(), ["folder", "full", "model.gguf"]);
    assert!(std::fs::read(place.path().join("model.gguf")).unwrap() == before);
}

// Placement.

#[test]
fn plan_prints_the_placement_and_its_flags() {
    let place = place();
    let document = place.run("plan -m model.gguf --vram 24GiB -c 64 --json").json();
    let names = ["gpu_layers", "max_gpu_layers", "fits", "output", "layers", "devices", "flags"];
    for name in names {
        assert!(keys(&document).contains(&name), "{name} in {document}");
    }
    // Three layers and the head.
    assert_eq!((&document["gpu_layers"], &document["max_gpu_layers"]), (&4.into(), &4.into()));
    assert_eq!(document["map"], "out:gpu 2-0:gpu");
    assert_eq!(document["flags"], "-ngl 4 -c 64 -ctk f16 -ctv f16 -ub 512");
    let rounded = place.run("plan -ngl 0 -c 64 -ctk q4_0 -khad --json").json();
    assert_eq!(rounded["flags"], "-ngl 0 -c 64 -ctk q4_0 -khad -ctv f16 -ub 512");
    let used = |device: &Value| {
        let parts =
            ["weight_bytes", "kv_bytes", "state_bytes", "activation_bytes", "staging_bytes"];
        parts.iter().map(|part| device[part].as_u64().unwrap()).sum::<u64>()
    };
    for device in document["devices"].as_array().unwrap() {
        assert_eq!(device["used_bytes"], used(device), "{device}");
    }

    let half = place.run("plan -m model.gguf --vram 1GiB -ngl 50% --json").json();
    assert_eq!(half["map"], "out:gpu 2:gpu 1-0:cpu");
    let pinned = place.run("plan -m model.gguf --vram 1GiB -ngl all -ot blk.1.*ffn=cpu --json");
    assert_eq!(pinned.json()["map"], "out:gpu 2:gpu 1:gpu+cpu 0:gpu");
    let cache = place.run("plan -m model.gguf --vram 1GiB -ngl 2 -nkvo --json").json();
    assert_eq!(cache["map"], "out:gpu 2:gpu+cpu 1-0:cpu");
    let none = place.run("plan -m model.gguf -ngl 0 --json").json();
    assert_eq!(none["map"], "out:cpu 2-0:cpu");

    let text = place.run("plan -m model.gguf --vram 1GiB -ngl 3").good().out;
    let opening = "fits: 3 layers on GPUs; 4 would fit\nspeed: ";
    assert!(text.starts_with(opening), "{text}");
    assert!(text.lines().nth(2).unwrap().starts_with("flags: -ngl 3"), "{text}");
    assert!(text.contains("out:gpu 2-1:gpu 0:cpu"), "{text}");
    let alone = place.run("plan -m model.gguf -ngl 0").good().out;
    assert!(alone.starts_with("fits: all layers on the CPU\nspeed: "), "{alone}");
}

/// Predictions for a described machine: one full context is read for each token, and a type is as large as `quantize` makes it.
#[test]
fn plan_says_which_types_meet_a_target() {
    let place = Place::new();
    place.run("synth --shape llama-1b --type F16 --hollow 1b.gguf").good();
    place.file(
        "slow.toml",
        "[cpu]\nname = \"slow\"\nmemory = \"16GiB\"\nread_gbps = 20\ntops = 1\n",
    );
    let plan = "plan -m 1b.gguf --machine slow.toml --json";
    let asked = |line: &str, target: &str| ran(place.command(line).args(["--for", target]));
    let found = asked(&format!("{plan} --types Q8_0,Q4_K_M"), "20 tok/s at 4k, p50 3 s").json();
    assert_eq!(found["target"]["context"], 4096);
    assert_eq!(found["target"]["first_token"], json!({ "percentile": 50.0, "ms": 3000.0 }));
    let candidates = found["candidates"].as_array().unwrap();
    let names: Vec<&str> = candidates.iter().map(|c| c["type"].as_str().unwrap()).collect();
    assert_eq!(names, ["F16", "Q8_0", "Q4_K_M"]);
    let number = |value: &Value| value.as_f64().unwrap();
    let whole = place.run(&format!("{plan} -c 4096")).json();
    let kv_ms = number(&whole["devices"][0]["kv_bytes"]) / 20e6;
    let decode_ms = number(&whole["predicted"]["decode_ms"]);
    let rate = number(&candidates[0]["rate"]);
    assert!(kv_ms > 1.0 && (rate * (decode_ms + kv_ms) / 1e3 - 1.0).abs() < 1e-9, "{found}");
    let per_token = number(&whole["predicted"]["prefill_ms_per_token"]);
    for candidate in candidates {
        // Half of the context is longer than the prompt of the prediction, so attention takes more.
        let first = number(&candidate["first_token_ms"]);
        assert!(first > per_token * 2048.0 && first < per_token * 2048.0 * 1.3, "{candidate}");
        let meets = number(&candidate["rate"]) >= 20.0 && first <= 3000.0;
        assert_eq!((&candidate["meets"], candidate["why"].is_null()), (&json!(meets), meets));
    }
    let sizes: Vec<f64> = candidates.iter().map(|c| number(&c["bytes"])).collect();
    let rates: Vec<f64> = candidates.iter().map(|c| number(&c["rate"])).collect();
    assert!(sizes.is_sorted_by(|a, b| a > b) && rates.is_sorted_by(|a, b| a < b), "{found}");
    let dry = place.run("quantize 1b.gguf out.gguf Q4_K_M --dry-run --json").json();
    let size = number(&dry["bytes"]);
    assert!((sizes[2] / size - 1.0).abs() < 1e-3, "{} of {size}", sizes[2]);
    let text = asked("plan -m 1b.gguf --machine slow.toml", "1 ms per token").good().out;
    assert!(text.contains("F16 (file)") && text.contains("nothing meets the target"), "{text}");
    let card = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/machines/rtx-4090.toml");
    let card = format!("plan -m 1b.gguf --machine {card} --json --types Q8_0");
    let found = asked(&card, "9 tok/s").json();
    let layers: Vec<&Value> =
        found["candidates"].as_array().unwrap().iter().map(|c| &c["gpu_layers"]).collect();
    assert_eq!(layers[0], 0);
    assert!(layers.len() >= 4 && layers[1].as_u64() > Some(0), "{layers:?}");
    // The file is larger than the memory: its speed is that of the disk.
    place.file(
        "small.toml",
        "[cpu]\nname = \"small\"\nmemory = \"2GiB\"\nread_gbps = 20\ntops = 1\n",
    );
    let small = "plan -m 1b.gguf --machine small.toml --json --types Q4_K_M";
    let found = asked(small, "1 tok/s at 512").json();
    let [file, smaller] = [0, 1].map(|at| &found["candidates"][at]);
    assert!(file["rate"].is_null() && file["meets"] == false, "{found}");
    assert!(file["why"].as_str().is_some_and(|why| why.contains("again and again")), "{found}");
    assert_eq!(smaller["meets"], true, "{found}");
    for (types, target, reason) in [
        ("Q8_0", "p95 1 parsec", "`p95 1 parsec`"),
        ("Q8_0", "at 4k", "a speed or a time"),
        ("Q9_K", "1 tok/s", "Q9_K"),
    ] {
        let ran = asked(&format!("{plan} --types {types}"), target);
        assert!(ran.code == Some(2) && ran.err.contains(reason), "{target}: {ran:?}");
    }
    let ran = place.run(&format!("{plan} --types Q8_0"));
    assert!(ran.code == Some(2) && ran.err.contains("--for"), "{ran:?}");
}

/// Without a head, texts go to the label whose examples they are most similar to.
#[test]
fn classify_routes_texts_by_similarity() {
    let place = encoders();
    let lines = [("a b", "first"), ("x y", "second"), ("a c", "first")];
    let lines = lines.map(|(text, label)| format!("{}\n", json!({ "text": text, "label": label })));
    place.file("examples.jsonl", lines.concat());
    let classify = "classify -m encoder.gguf -ngl 0";
    let asked =
        |flags: &str, text: &str| ran(place.command(&format!("{classify} {flags}")).arg(text));
    let found = documents(&asked("--examples examples.jsonl", "x y").good());
    assert_eq!(keys(&found[0]), ["index", "label", "score", "scores"]);
    assert_eq!(found[0]["label"], "second");
    assert!((found[0]["score"].as_f64().unwrap() - 1.0).abs() < 1e-5, "{found:?}");
    // The direction of a label is the mean of its examples'.
    place.file("texts.txt", "a b\na c\nx y\n");
    let embedded = documents(&place.run("embed -m encoder.gguf -ngl 0 -f texts.txt").good());
    let vectors: Vec<Vec<f64>> = embedded
        .iter()
        .map(|line| serde_json::from_value(line["embedding"].clone()).unwrap())
        .collect();
    let sum: Vec<f64> = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a + b).collect();
    let length = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    let cosine = sum.iter().zip(&vectors[2]).map(|(a, b)| a * b).sum::<f64>() / length;
    let score = found[0]["scores"][0]["score"].as_f64().unwrap();
    assert!((score - cosine).abs() < 1e-5, "{score}, not {cosine}");
    let by_name = documents(&asked("--labels x,a", "a").good());
    assert_eq!(by_name[0]["label"], "a");
    let none = documents(&asked("--labels abc --at-least 1", "x y").good());
    assert_eq!((&none[0]["label"], keys(&none[0])), (&Value::Null, keys(&found[0])));
    place.file("broken.jsonl", "{\"text\": \"a\"}\n");
    place.file("empty.jsonl", "\n");
    for (flags, reason) in [
        ("--examples broken.jsonl a", "broken.jsonl: line 1: expected an object"),
        ("--examples empty.jsonl a", "empty.jsonl"),
        ("--at-least 0.5 a", "--labels or --examples"),
        ("--labels a --at-least 2 a", "from -1 to 1"),
        ("--labels a --examples empty.jsonl a", "cannot be used with"),
    ] {
        let ran = place.run(&format!("{classify} {flags}"));
        assert!(ran.code == Some(2) && ran.err.contains(reason), "{flags}: {ran:?}");
    }
}

/// With short and long flags, and with the flags that a plan prints.
#[test]
fn experts_are_placed_by_flags() {
    let place = Place::new();
    place.file("moe.gguf", words::tiny_of("gpt-oss"));
    let map = |flags: &str| {
        let line = format!("plan -m moe.gguf --vram 1GiB -ngl all {flags} --json");
        let document = place.run(&line).json();
        (document["map"].as_str().unwrap().to_owned(), document["flags"].to_string())
    };
    let all = "out:gpu 2-0:gpu+cpu";
    for flag in ["-cmoe", "--cpu-moe", "-ncmoe 3", "--n-cpu-moe 9", "-ot _exps=cpu"] {
        assert_eq!(map(flag).0, all, "{flag}");
    }
    assert_eq!(map("-ncmoe 1").0, "out:gpu 2-1:gpu 0:gpu+cpu");
    assert_eq!(map("-ot blk.2.*_exps=cpu").0, "out:gpu 2:gpu+cpu 1-0:gpu");
    assert!(map("-ncmoe 1").1.contains("-ncmoe 1"), "{}", map("-ncmoe 1").1);
    assert_eq!(map("").0, "out:gpu 2-0:gpu");
}

#[test]
fn flags_that_change_nothing_are_named() {
    let place = place();
    place.file("moe.gguf", words::tiny_of("gpt-oss"));
    let run = "run -m model.gguf -p a -n 1 -ngl 0";
    let cases = [
        ("-ot blk.77=cpu", "no tensor of the model matches `blk.77`"),
        (
            "-ot ffn=CUDA0 -dev none",
            "no GPU is in use, so tensors that match `ffn` stay on the CPU",
        ),
        ("-cmoe", "cpu-moe has no effect: the model has no experts"),
        ("--n-cpu-moe 2", "cpu-moe has no effect: the model has no experts"),
        ("--chat-template-kwargs {\"a\":1}", "the chat template is ignored"),
        ("--control-vector-layer-range 1 2", "has no effect without a control vector"),
    ];
    for (flags, note) in cases {
        let ran = place.run(&format!("{run} {flags}")).good();
        assert!(ran.err.contains(note), "{flags}: {ran:?}");
    }
    for line in [format!("{run} -ot ffn=cpu"), run.replace("model", "moe") + " -cmoe"] {
        let ran = place.run(&line).good();
        assert!(!ran.err.contains("no effect") && !ran.err.contains("matches"), "{line}: {ran:?}");
    }
    check_failure(&place.run(&format!("{run} --chat-template-kwargs garbage")), 2, "JSON object");
    let missing = place.run("run -m model.gguf -p a -dev CUDA0");
    check_failure(&missing, 69, "CUDA0");
}

#[test]
fn a_completion_shifts_its_context_when_asked() {
    let place = place();
    let run = "run -m model.gguf -p abc -c 64 -n 200 --ignore-eos --temp 0";
    let full = place.run(run).good();
    assert!(full.err.contains("the context of 64 tokens is full; "), "{full:?}");
    for keep in ["", "--keep 2", "--keep -1"] {
        let shifted = place.run(&format!("{run} --context-shift {keep}")).good();
        assert!(shifted.err.contains("generate: 200 tokens"), "{shifted:?}");
        assert!(shifted.err.contains("went on without the oldest tokens"), "{shifted:?}");
        assert!(shifted.out.starts_with(full.out.trim_end()), "{shifted:?}");
    }
}

#[test]
fn impossible_placements_have_their_exit_codes() {
    let place = place();
    let missing = place.run("run -m model.gguf -p a -dev nothing-of-this-name");
    check_failure(&missing, 69, "no GPU `nothing-of-this-name`");
    // The tiny model needs some 200 KiB; the output head alone more than 40.
    let full = place.run("plan -m model.gguf --vram 120KiB --fit-target 0 -ngl all -c 64 -ub 8");
    check_failure(&full, 75, "-ngl ");
    let auto =
        place.run("plan -m model.gguf --vram 120KiB --fit-target 0 -c 64 -ub 8 --json").json();
    let most = auto["max_gpu_layers"].as_u64().unwrap();
    assert!(most < 4, "{auto}");
    assert!(full.err.contains(&format!("-ngl {most} fits")) || most == 0, "{full:?} {auto}");
    // A CPU whose memory is full: the weights are read in the file's map, but caches need room.
    place.file("m.toml", "[cpu]\nname = \"c\"\nmemory = \"1MiB\"\nread_gbps = 20\ntops = 1\n");
    for context in [64, 16384] {
        for line in ["plan -m model.gguf", "run -m model.gguf -p a -n 1"] {
            let ran = place.run(&format!("{line} --simulate m.toml -c {context}"));
            match context {
                64 => drop(ran.good()),
                _ => check_failure(&ran, 75, "cpu has room for 1.00 MiB but would hold "),
            }
        }
    }
}

#[test]
fn devices_are_listed_with_their_features() {
    let place = place();
    let document = place.run("devices --json").json();
    for name in ["level", "threads", "read_gbps", "numa"] {
        assert!(!document["cpu"][name].is_null(), "{document}");
    }
    let adapters = document["adapters"].as_array().unwrap();
    for adapter in adapters {
        for name in ["name", "backend", "kind", "memory_bytes", "unified", "features"] {
            assert!(!adapter[name].is_null(), "{name} in {adapter}");
        }
    }
    let listed = place.run("run --list-devices").good().out;
    assert_eq!(listed.lines().count(), adapters.len().max(1), "{listed}");
    assert!(place.run("devices").good().out.starts_with("cpu"));
}

#[test]
fn verify_compares_op_by_op() {
    let place = place();
    let line = "verify -m model.gguf --a reference --b cpu:scalar --tokens 1,3,68,69 --json";
    let document = place.run(line).json();
    for name in ["ok", "ops", "first_bad", "logits", "tokens"] {
        assert!(keys(&document).contains(&name), "{name} in {document}");
    }
    assert_eq!((&document["ok"], &document["first_bad"]), (&true.into(), &Value::Null));
    assert!(document["ops"].as_array().unwrap().len() > 30, "{document}");
    assert_eq!(document["logits"]["top1"], 1.0);
    let text = place.run("verify -m model.gguf --b cpu:scalar -p abc --logits l.npy").good().out;
    assert!(text.contains("ok: every op is within its bound"), "{text}");
    assert!(place.names().contains(&"l.npy".to_owned()));
    // There is nothing to say of a GPU that nobody asked for.
    for flags in ["-ngl 0", "-dev none"] {
        let ran = place.run(&format!("verify -m model.gguf -p abc {flags}")).good();
        assert!(ran.out.starts_with("reference against cpu"), "{ran:?}");
        assert_eq!(ran.err, "", "{flags}");
    }
    // Tokens that are named are all compared; of a text, as many as fit.
    let refused = place.run("verify -m model.gguf --b cpu:scalar --tokens 1,3,68,69 -c 3");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.err.contains("--tokens has 4 tokens; the limit is 3"), "{refused:?}");
    let line = "verify -m model.gguf --b cpu:scalar -p abcdefgh -c 3 --json";
    let cut = place.run(line).good();
    assert!(cut.err.contains("note: the first 3 of "), "{cut:?}");
    let document: Value = serde_json::from_str(&cut.out).unwrap();
    assert_eq!(document["tokens"].as_array().unwrap().len(), 3);
}

/// A difference is a result: the report is complete, and the exit code is that of `cmp`. Here one activation is so large
/// that the others of its block become 0 in eight bits, and its own weights are 0.
#[test]
fn verify_exits_with_1_if_it_finds_a_difference() {
    let place = Place::new();
    let outlier = |name: &str, values: &mut [f32]| match name {
        "output_norm.weight" => values[0] = 1e6,
        "token_embd.weight" => values.iter_mut().step_by(64).for_each(|weight| *weight = 0.0),
        _ => {}
    };
    place.file("model.gguf", words::tiny_with(Type::Q8_0, 1, &outlier));
    let line = "verify -m model.gguf --a reference --b cpu:scalar --tokens 1,3,68,69";
    let ran = place.run(&format!("{line} --json"));
    let document: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(document["ok"], false, "{document}");
    assert_eq!(document["first_bad"]["op"], "matmul result_output", "{document}");
    assert_eq!((ran.code, ran.err.as_str()), (Some(1), ""));
    let ran = place.run(line);
    assert!(ran.out.contains("not ok: the first op out of its bound"), "{ran:?}");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for page in ["--help", "verify --help", "man"] {
        assert!(place.run(page).good().out.contains(" 1 "), "{page} lists no exit code 1");
    }
}

/// Encoders have no logits: their embeddings or scores are compared.
#[test]
fn verify_compares_embeddings_or_scores_of_encoders() {
    let place = place();
    place.file("scorer.gguf", words::scorer("bert", &["good", "bad"]));
    let scored = place.run("verify -m scorer.gguf --a reference --b cpu:scalar -p abc").good().out;
    assert!(scored.contains("\nscores: nmse ") && !scored.contains("KL"), "{scored}");
    place.file("encoder.gguf", words::scorer("nomic-bert", &[]));
    let line = "verify -m encoder.gguf --a reference --b cpu:scalar -p abc";
    let document = place.run(&format!("{line} --json --logits e.npy")).json();
    let least = document["embeddings"]["cosine_min"].as_f64().unwrap();
    assert!(least > 0.999_999 && document["logits"].is_null(), "{document}");
    let text = place.run(line).good().out;
    assert!(text.contains("\nembeddings: nmse ") && !text.contains("KL"), "{text}");
}

#[test]
fn a_software_adapter_runs_offloaded_layers() {
    let place = place();
    if support::gpu::gpu().is_none() {
        return;
    }
    let ids_of = |more: &str| {
        let line = format!("run -m model.gguf -p abc -n 24 --temp 0 --json {more}");
        let document = place.run(&line).json();
        (ids(&document["tokens"]), document["placement"].clone())
    };
    let (expected, _) = ids_of("-ngl 0");
    for (count, map) in
        [("1", "out:gpu 2-0:cpu"), ("50%", "out:gpu 2:gpu 1-0:cpu"), ("all", "out:gpu 2-0:gpu")]
    {
        let (found, placement) = ids_of(&format!("-dev software -ngl {count}"));
        assert_eq!(placement["map"], map, "-ngl {count}");
        assert!(!placement["adapter"].is_null());
        assert_eq!(found, expected, "-ngl {count}");
    }
    let verified =
        place.run("verify -m model.gguf -dev software --tokens 1,3,68,69,70 --json").json();
    assert_eq!(verified["ok"], true, "{verified}");

    // Named twice, it counts as two GPUs.
    let (found, placement) = ids_of("-dev software,software -ngl all -ts 1,1");
    assert_eq!(placement["map"], "out:gpu1 2:gpu1 1-0:gpu0");
    assert_eq!(placement["adapters"].as_array().unwrap().len(), 2);
    assert_eq!(found, expected, "on two GPUs");
    let line = "run -m model.gguf -p abc -n 8 --json -dev software,software -ngl all -ts 1,1";
    let devices = place.run(line).json()["devices"].as_array().unwrap().clone();
    assert_eq!(devices.len(), 3);
    for gpu in &devices[1..] {
        assert!(gpu["name"].is_string() && gpu["busy_ms"].as_f64().unwrap() > 0.0, "{gpu}");
    }
    let (_, placement) = ids_of("-dev software,software -ngl 2 -sm none -mg 1");
    assert_eq!(placement["map"], "out:gpu 2:gpu 1-0:cpu");
}

/// Experts with biases. Which of them are resident depends on what earlier runs have counted.
#[test]
fn experts_on_a_software_adapter_and_the_cpu_write_the_text_of_the_cpu() {
    let place = Place::new();
    place.file("moe.gguf", words::tiny_of("gpt-oss"));
    if support::gpu::gpu().is_none() {
        return;
    }
    let run = |more: &str| {
        let flags = "--temp 0 --repeat-penalty 2 --ignore-eos -n 100 -c 256 --json";
        place.run(&format!("run -m moe.gguf -p abc {flags} {more}")).json()
    };
    let expected = run("-ngl 0");
    let found = run("-dev software -ngl all --expert-cache 160KiB");
    assert_eq!(ids(&found["tokens"]), ids(&expected["tokens"]));
    let (experts, bytes) = (&found["experts"], found["experts"]["bytes"].as_u64().unwrap());
    let hit_rate = experts["hit_rate"].as_f64().unwrap();
    assert!(hit_rate > 0.0 && hit_rate < 1.0 && bytes <= 160 << 10, "{experts}");
    let plan = "plan -m moe.gguf --vram 1GiB -ngl all --expert-cache 160KiB --json";
    assert_eq!(place.run(plan).json()["experts"]["bytes"], bytes);
    // Room for experts of one layer, of which alone something is learned.
    let small = "--expert-cache 60KiB";
    for more in [small, small, "--expert-cache 160KiB"] {
        let found = run(&format!("-dev software -ngl all {more}"));
        assert_eq!(ids(&found["tokens"]), ids(&expected["tokens"]), "{more}");
    }
    // A GPU that holds nothing gets what is streamed.
    place.file("plain.gguf", words::tiny_of("llama"));
    let run = |flags: &str| {
        let text = "abcdefghij".repeat(4);
        place.run(&format!("run -m plain.gguf -p {text} -n 8 --temp 0 --json {flags}")).json()
    };
    let found = run("-dev software,software -ngl all -ts 0,1 -ot attn_q=cpu -opo");
    assert_eq!(ids(&found["tokens"]), ids(&run("-ngl 0")["tokens"]));
}

#[cfg(unix)]
mod terminal {
    use rexpect::session::{Options, spawn_with_options};

    use super::*;

    /// All that a command writes to a terminal of 120 columns.
    fn written(place: &Place, arguments: &str) -> String {
        let mut command = place.bare("sh");
        command.args(["-c", "stty cols 120 rows 50; exec \"$0\" \"$@\""]);
        command.arg(env!("CARGO_BIN_EXE_bilayer")).args(arguments.split(' '));
        // A machine that was never measured.
        command.env("BILAYER_CACHE", place.path().join("kept"));
        command.env("TERM", "xterm").stdin(Stdio::inherit());
        let options = Options::new().timeout_ms(Some(120_000)).strip_ansi_escape_codes(false);
        let read = spawn_with_options(command, options).unwrap().exp_eof().unwrap();
        // Each character is a byte.
        String::from_utf8(read.chars().map(|byte| byte as u8).collect()).unwrap()
    }

    /// The lines that a terminal shows in the end.
    fn shown(written: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for line in written.split('\n') {
            // A bar is drawn over itself: the cursor returns and the line is cleared.
            let mut cells: Vec<char> = Vec::new();
            for (number, part) in line.trim_end_matches('\r').split('\r').enumerate() {
                let part = match part.strip_prefix("\x1b[2K") {
                    Some(rest) => {
                        cells.clear();
                        rest
                    }
                    None => part,
                };
                assert!(!part.contains('\x1b'), "part {number} of {line:?}");
                let drawn: Vec<char> = part.chars().collect();
                let rest = cells.get(drawn.len()..).unwrap_or_default().to_vec();
                cells = [drawn, rest].concat();
            }
            lines.push(cells.into_iter().collect());
        }
        lines
    }

    #[test]
    fn bars_tell_what_is_known_and_leave_nothing_behind() {
        let place = place();
        place.file("text.txt", "once upon a time there was a word ".repeat(40));
        let runs = [
            "bench -m model.gguf -p 8 -n 4 -r 2 --device none",
            "perplexity -m model.gguf -f text.txt -c 64 --device none",
            "verify -m model.gguf --device none",
            "run -m model.gguf -p abc -n 4 --device none",
        ];
        for run in runs {
            let written = written(&place, run);
            assert!(written.contains('░'), "{run} draws a bar: {written:?}");
            for nothing in ["0 B/0 B", " 0/0 ", "XDG_RUNTIME_DIR"] {
                assert!(!written.contains(nothing), "{run}: {nothing} in {written:?}");
            }
            let exact = |word: &str| {
                let (number, unit) = word.rsplit_once('/').unwrap_or_default();
                let decimals = number.rsplit_once('.').map_or("", |(_, decimals)| decimals);
                unit.starts_with('s') && decimals.len() > 2
            };
            assert!(!written.split_whitespace().any(exact), "{run}: {written:?}");
            for line in shown(&written) {
                assert!(!line.contains(['░', '█']) && !line.contains(" left"), "{run}: {line:?}");
                assert!(!line.contains("measuring this machine"), "{run}: {line:?}");
            }
        }
    }
}
