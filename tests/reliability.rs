//! The promise of reliability: outputs never replace inputs, small files cannot ask for much, a file that changes in use is
//! an error with its place, and no writer leaves half a file.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]
#![allow(clippy::print_stdout, reason = "counts are shown")]
#![cfg_attr(
    not(target_os = "linux"),
    allow(dead_code, unused_imports, reason = "signals and limits are tested on Linux")
)]

use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bilayer_engine::placement::Placing;
use bilayer_engine::session::{Progress, Run, Session, Settings, Wanted};
use bilayer_engine::{Error, Model, OpenOptions};
use bilayer_gguf::{Array, File, Metadata, NewTensor, to_bytes};
use bilayer_quant::Type;
use serde_json::json;

#[path = "agreement/files.rs"]
mod agreement;
#[cfg(target_os = "linux")]
#[path = "in_use/files.rs"]
mod changes;
#[path = "fuzz/src/targets.rs"]
mod targets;

mod support {
    pub mod disk;
    pub mod folder;
    pub mod model;
    pub mod program;
    pub mod tried;
}

use support::disk::with_disk;
use support::folder::Folder;
use support::model::{Random, random_bytes};
use support::program::{Place, Ran, ran};
use support::tried::Tried;

/// A model of a megabyte, texts, and the folder of a checkpoint.
fn place() -> Place {
    let place = Place::new();
    place
        .run("synth --layers 4 --width 128 --heads 4 --vocab 512 --context 256 --type F16 in.gguf")
        .good();
    place.file("text.txt", "once upon a time there was a small machine ".repeat(200));
    place.file("short.txt", "once upon a time ".repeat(8));
    let (from, to) = (Folder::tiny(), place.path().join("checkpoint"));
    std::fs::create_dir(&to).unwrap();
    for name in from.names() {
        std::fs::copy(from.path().join(&name), to.join(&name)).unwrap();
    }
    place
}

fn names_the_reason(ran: &Ran, code: i32, part: &str) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    let lines: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("bilayer: ")).collect();
    assert!(lines.len() == 1 && lines[0].contains(part), "{part} in {ran:?}");
}

// ---- Outputs and inputs -------------------------------------------------------------------------

#[test]
#[cfg(unix)]
fn outputs_never_replace_inputs() {
    let place = place();
    let path = |name: &str| place.path().join(name);
    std::os::unix::fs::symlink(path("in.gguf"), path("soft.gguf")).unwrap();
    std::fs::hard_link(path("in.gguf"), path("hard.gguf")).unwrap();
    place.file("part-00001-of-00002.gguf", "1");
    place.file("part-00002-of-00002.gguf", "2");
    let before = std::fs::read(path("in.gguf")).unwrap();
    let text = std::fs::read(path("text.txt")).unwrap();
    let mut lines = vec![
        "run -m part-00001-of-00002.gguf -p a -n 1 --logits part-00002-of-00002.gguf".to_owned(),
        "perplexity -m in.gguf -f text.txt --kl-base text.txt".to_owned(),
        "imatrix -m in.gguf -f text.txt -o text.txt".to_owned(),
        "quantize in.gguf text.txt Q8_0 --imatrix text.txt".to_owned(),
        "quantize in.gguf new.gguf --tensor-type-file text.txt --tensor-types-out text.txt \
         --target-bpw 5 --calibration text.txt"
            .to_owned(),
    ];
    for link in ["in.gguf", "soft.gguf", "hard.gguf", "./in.gguf"] {
        lines.extend([
            format!("run -m in.gguf -p a -n 1 --logits {link}"),
            format!("run -m in.gguf -p a -n 1 --trace {link}"),
            format!("perplexity -m in.gguf -f text.txt --kl-base {link}"),
            format!("imatrix -m in.gguf -f text.txt -o {link}"),
            format!("bench -m in.gguf --trace {link}"),
            format!("profile -m in.gguf --trace {link}"),
            format!("verify -m in.gguf -p a --logits {link}"),
            format!("quantize in.gguf {link} Q8_0"),
            format!("evaluate -m small=in.gguf --data text.txt --html {link}"),
            format!("batch --add-model x=in.gguf text.txt {link} --overwrite"),
            format!("batch --models-dir . text.txt {link} --overwrite"),
            format!("run -p a -n 1 --lora-scaled in.gguf:0.5 --logits {link}"),
            format!("run -p a -n 1 --control-vector-scaled in.gguf:0.5 --logits {link}"),
        ]);
    }
    lines.push(
        "prune soft.gguf checkpoint/model.safetensors --pattern 0.5 --method magnitude \
         --checkpoint checkpoint --checkpoint-out new"
            .to_owned(),
    );
    // A name in another program's store, whose file is known once it is found.
    let (digest, store) = ("0".repeat(64), path(".ollama/models"));
    let manifest = store.join("manifests/registry.ollama.ai/library/m/latest");
    std::fs::create_dir_all(store.join("blobs")).unwrap();
    std::fs::create_dir_all(manifest.parent().unwrap()).unwrap();
    std::fs::hard_link(path("in.gguf"), store.join(format!("blobs/sha256-{digest}"))).unwrap();
    let kind = "application/vnd.ollama.image.model";
    let layer = json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": 1});
    std::fs::write(manifest, json!({"schemaVersion": 2, "layers": [layer]}).to_string()).unwrap();
    lines.push("run -m ollama:m -p a -n 1 --logits in.gguf".to_owned());
    for line in &lines {
        names_the_reason(&place.run(line), 2, "input and output are the same file");
        assert!(std::fs::read(path("in.gguf")).unwrap() == before, "{line}");
        assert!(std::fs::read(path("text.txt")).unwrap() == text, "{line}");
        assert!(std::fs::read(path("part-00002-of-00002.gguf")).unwrap() == b"2", "{line}");
    }
    for line in ["batch text.txt new --audit ./new", "bench -m in.gguf --trace new --log-file new"]
    {
        names_the_reason(&place.run(line), 2, "are the same file; give each its own name");
    }
    // A prompt may be the name of a file.
    place.run("run -m in.gguf -p text.txt -n 1 --device none --logits text.txt").good();
    place.file("text.txt", &text);
    // The same file under --kl-base and --kl-divergence is read.
    let read = place.run("perplexity -m in.gguf --kl-base text.txt --kl-divergence");
    names_the_reason(&read, 65, "text.txt");
}

// ---- Sizes that a file declares -----------------------------------------------------------------

/// Runs the program with at most `kib` of address space.
fn limited(place: &Place, kib: u64, arguments: &str) -> Ran {
    let script = format!("ulimit -v {kib}; exec \"$0\" {arguments}");
    ran(place.bare("bash").args(["-c", &script, env!("CARGO_BIN_EXE_bilayer")]))
}

#[test]
#[cfg(target_os = "linux")]
fn small_files_cannot_ask_for_much_memory_or_time() {
    let place = Place::new();
    let mut layers = Metadata::new();
    layers.set("general.architecture", "llama");
    layers.set("llama.block_count", u32::MAX);
    layers.set("llama.attention.head_count", 4u32);
    layers.set("llama.attention.head_count_kv", 4u32);
    let tensor = NewTensor::zeros("blk.0.attn_q.weight", Type::F32, &[2, 32]);
    place.file("layers.gguf", to_bytes(&layers, [tensor]).unwrap());
    let mut ids = Metadata::new();
    ids.set("general.architecture", "llama");
    ids.set("llama.vocab_size", 1u32 << 24);
    ids.set("tokenizer.ggml.model", "no_vocab");
    place.file("ids.gguf", to_bytes(&ids, []).unwrap());
    let gibibyte = 1 << 20;
    let lines = [
        ("quantize layers.gguf out.gguf Q8_0", "key llama.block_count: expected at most"),
        ("tokenize -m ids.gguf -p a", "key llama.vocab_size: expected at most"),
        ("detokenize -m ids.gguf 1", "key llama.vocab_size: expected at most"),
    ];
    for (line, part) in lines {
        let began = Instant::now();
        names_the_reason(&limited(&place, gibibyte, line), 65, part);
        assert!(began.elapsed() < Duration::from_secs(10), "{line}: {:?}", began.elapsed());
    }
    let shown = limited(&place, gibibyte, "inspect ids.gguf");
    assert_eq!(shown.code, Some(65), "{shown:?}");
    assert!(shown.out.contains("llama.vocab_size: expected at most 262304"), "{shown:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn templates_run_within_limits() {
    let place = place();
    let templates = [
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}".to_owned(),
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
            .to_owned(),
        "{{ '%99999999999d'|format(1) }}".to_owned(),
        format!("{{{{ 1{} }}}}", "+1".repeat(21_000)),
    ];
    for template in &templates {
        place.file("hostile.jinja", template);
        let line = "run -m in.gguf -st -p Hello -n 1 --chat-template-file hostile.jinja";
        names_the_reason(&limited(&place, 4 << 20, line), 2, "chat template");
    }
}

// ---- Every byte ---------------------------------------------------------------------------------

/// Opens a file as all commands do: directory, vocabulary, configuration and graph. Returns whether it is a model.
fn is_model(bytes: Vec<u8>) -> bool {
    let Ok(file) = File::from_bytes("mutant", bytes.into()) else { return false };
    let has_words = bilayer_engine::vocabulary(file.metadata())
        .is_ok_and(|vocabulary| bilayer_text::Tokenizer::new(vocabulary).is_ok());
    has_words && bilayer_models::read(&file).is_ok()
}

/// Cuts, flipped bits, how many of the latter are still models, and the longest time of one.
struct Mutants(usize, usize, usize, Duration);

fn mutants_of(name: &str) -> Mutants {
    let architecture = bilayer_models::all().iter().find(|it| it.name == name).unwrap();
    let mut metadata = (architecture.tiny)();
    let vocab = metadata.usize(&format!("{name}.vocab_size")).unwrap();
    metadata.set("tokenizer.ggml.model", "llama");
    metadata.set("tokenizer.ggml.tokens", words(vocab));
    metadata.set("tokenizer.ggml.scores", Array::F32(vec![0.5; vocab]));
    metadata.set("tokenizer.chat_template", "{{ messages[0].content }}");
    let whole = random_bytes(&metadata, Type::F16, &[], 1, &|_, _| ()).to_vec();
    assert!(is_model(whole.clone()), "{name}");
    let file = File::from_bytes(name, whole.clone().into()).unwrap();
    let data = file.tensors().iter().map(|tensor| tensor.layout().offset()).min().unwrap() as usize;
    let mut mutants = Mutants(0, 0, 0, Duration::ZERO);
    // Data is cut at some places; header, metadata and directory at every byte.
    for end in (0..data).chain((data..whole.len()).step_by(997)) {
        assert!(!is_model(whole[..end].to_vec()), "{name} of {end} bytes");
        mutants.0 += 1;
    }
    for bit in 0..8 * data {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let began = Instant::now();
        mutants.2 += usize::from(is_model(bytes));
        mutants.3 = mutants.3.max(began.elapsed());
        mutants.1 += 1;
    }
    mutants
}

#[test]
fn every_cut_and_bit_of_six_models_gives_a_model_or_an_error() {
    let names = ["llama", "qwen3", "gemma2", "phi3", "bert", "gpt-oss"];
    let all: Vec<Mutants> = std::thread::scope(|scope| {
        let threads = names.map(|name| scope.spawn(move || mutants_of(name)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (name, Mutants(cuts, flips, accepted, slowest)) in names.iter().zip(all) {
        println!("{name}: {cuts} cuts, {flips} bits, {accepted} still models; at most {slowest:?}");
        assert!(slowest < Duration::from_secs(2), "{name}: {slowest:?}");
    }
}

/// Tokens of a SentencePiece vocabulary of a given size.
fn words(count: usize) -> Array {
    let word = |id: usize| match id {
        0 => "<unk>".to_owned(),
        1 => "<s>".to_owned(),
        2 => "</s>".to_owned(),
        id => format!("w{id}"),
    };
    Array::String((0..count).map(word).collect())
}

#[test]
fn hostile_inputs_of_every_kind_end() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let mut replayed = 0;
    for (name, target) in targets::TARGETS {
        for folder in ["seeds", "findings"] {
            let Ok(entries) = std::fs::read_dir(root.join(folder).join(name)) else { continue };
            for entry in entries {
                target(&std::fs::read(entry.unwrap().path()).unwrap());
                replayed += 1;
            }
        }
        // And what no fuzzer needs to find.
        for input in [&[][..], &[0], &[0xff; 64]] {
            target(input);
        }
    }
    println!("{replayed} inputs replayed");
    assert!(replayed > 0);
}

/// Inputs of a target that differ from seeds in some bytes.
struct Mutations {
    seeds: Vec<Vec<u8>>,
    random: Random,
}

impl Mutations {
    fn next(&mut self) -> Vec<u8> {
        let which = self.random.below(self.seeds.len());
        let mut bytes = self.seeds[which].clone();
        for _ in 0..1 + self.random.below(6) {
            let (at, value) = (self.random.below(bytes.len() + 1), self.random.below(256) as u8);
            let len = self.random.below(16).min(bytes.len() - at);
            match self.random.below(8) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, value),
                2 => drop(bytes.drain(at..at + len)),
                3 => bytes.extend_from_within(at..at + len),
                4 => {
                    let other = self.random.below(self.seeds.len());
                    let from = self.random.below(self.seeds[other].len() + 1);
                    bytes.truncate(at);
                    bytes.extend_from_slice(&self.seeds[other][from..]);
                }
                _ if at == bytes.len() => bytes.push(value),
                5 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff, b'9', b'"', b'['][usize::from(value % 8)],
                6 => bytes[at] ^= 1 << (value % 8),
                _ => bytes[at] = value,
            }
        }
        bytes.truncate(1 << 14);
        bytes
    }
}

/// A few changed copies of the seeds of every target, always the same; `BILAYER_TEST_MUTATIONS` sets how many, and
/// `BILAYER_TEST_SEED` gives others. An input that panics is kept in the target folder.
#[test]
fn changed_seeds_of_every_kind_end() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = number("BILAYER_TEST_MUTATIONS").unwrap_or(60);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let mut failed = Vec::new();
    for (name, target) in targets::TARGETS {
        if std::env::var("BILAYER_TEST_TARGET").is_ok_and(|only| only != *name) {
            continue;
        }
        let folders = ["seeds", "findings"].map(|folder| root.join(folder).join(name));
        let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
        let mut seeds: Vec<Vec<u8>> =
            files.map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
        seeds.sort();
        assert!(!seeds.is_empty(), "{name} has no seeds");
        let mut inputs =
            Mutations { seeds, random: Random(number("BILAYER_TEST_SEED").unwrap_or(1)) };
        let (began, mut slowest, mut done) = (Instant::now(), Duration::ZERO, 0);
        let mut panicked = false;
        while done < count && !panicked {
            let input = inputs.next();
            done += 1;
            let start = Instant::now();
            panicked = std::panic::catch_unwind(|| target(&input)).is_err();
            if panicked {
                let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("finding-{name}"));
                std::fs::write(&kept, &input).unwrap();
                failed.push(kept);
            }
            slowest = slowest.max(start.elapsed());
        }
        let seconds = began.elapsed().as_secs_f64();
        let result = if panicked { ", FAILED" } else { "" };
        println!("mutated {name}: {done} inputs in {seconds:.1} s, at most {slowest:?}{result}");
    }
    assert!(failed.is_empty(), "panics, with inputs in {failed:?}");
}

// ---- What SECURITY.md says ----------------------------------------------------------------------

/// Checks that every test that a page names exists; returns how many it names.
fn named_tests_exist(page: &str) -> usize {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names: Vec<(&str, &str)> =
        page.split('`').filter_map(|part| part.split_once(".rs::")).collect();
    for (file, test) in &names {
        let source = std::fs::read_to_string(root.join(format!("{file}.rs"))).unwrap();
        let source = source.replace("#[tokio::test]", "#[test]");
        let is_test = source.split("#[test]").skip(1).any(|test_and_rest| {
            let head = test_and_rest.split('{').next().unwrap_or_default();
            head.contains(&format!("fn {test}("))
        });
        assert!(is_test, "{file}.rs has no test {test}");
    }
    names.len()
}

#[test]
fn security_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("SECURITY.md")).unwrap();
    assert!(named_tests_exist(&page) > 20);
    // Every promise has one.
    let promises = page.split("## What is out of scope").next().unwrap_or_default();
    for promise in promises.split("\n- **").skip(1) {
        assert!(promise.contains(".rs::"), "no test holds: {promise}");
    }
}

/// Twenty faults at five moments, each with tests that exist, or a reason why there is none.
#[test]
fn the_matrix_of_faults_is_whole() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/internals/faults.md");
    let page = std::fs::read_to_string(path).unwrap();
    named_tests_exist(&page);
    let faults: Vec<&str> = page.split("\n## ").skip(1).collect();
    assert_eq!(faults.len(), 20);
    let mut automated = 0;
    for fault in faults {
        let rows = fault.lines().filter(|line| line.starts_with("| ")).skip(1);
        let cells: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
        let moments: Vec<&str> = cells.iter().map(|cell| cell[0]).collect();
        assert_eq!(moments, ["| load", "| idle", "| prefill", "| decode", "| save"], "{fault}");
        for cell in cells {
            let shown = cell[2].trim_end_matches(" |");
            let is_automated = shown.contains(".rs::");
            assert!(is_automated || ["not automated", "cannot occur"].contains(&shown), "{cell:?}");
            automated += usize::from(is_automated);
        }
    }
    println!("{automated} of 100 cells are shown by a test");
    assert!(automated >= 80, "{automated}");
}

// ---- Files that change under us -----------------------------------------------------------------

/// Starts a long answer and waits for its first bytes.
fn decoding(place: &Place, flags: &str) -> std::process::Child {
    let line =
        format!("run -m in.gguf -p once -n 4000 --ignore-eos -c 8192 -t 1 --device none {flags}");
    let mut command = place.command(&line);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut byte = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    child
}

fn shorten(path: &Path, len: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_model_truncated_in_use_is_an_error_with_file_and_offset() {
    let place = place();
    let whole = std::fs::read(place.path().join("in.gguf")).unwrap();
    let (rounds, mut named) = (10, 0);
    for round in 0..rounds {
        let path = place.file("in.gguf", &whole);
        let mut child = decoding(&place, "");
        // Something else must read the pipe, or the program waits.
        let mut out = child.stdout.take().unwrap();
        let drained = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        shorten(&path, (whole.len() * round / rounds) as u64);
        let ran = Ran::new(&child.wait_with_output().unwrap());
        drained.join().unwrap().unwrap();
        names_the_reason(&ran, 74, "in.gguf: ");
        named += usize::from(ran.err.contains("in.gguf: byte "));
    }
    println!("{named} of {rounds} named the byte; the others noticed the change before they read");
    // Overwritten in place: noticed by its time.
    let path = place.file("in.gguf", &whole);
    let mut child = decoding(&place, "");
    let mut out = child.stdout.take().unwrap();
    let drained = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    std::fs::write(&path, vec![0; whole.len()]).unwrap();
    names_the_reason(&Ran::new(&child.wait_with_output().unwrap()), 74, "in.gguf: ");
    drained.join().unwrap().unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn a_model_that_was_read_or_replaced_is_immune() {
    let place = place();
    let whole = std::fs::read(place.path().join("in.gguf")).unwrap();
    let line = "run -m in.gguf -p once -n 400 --ignore-eos -t 1 --device none -s 1";
    let expected = place.run(line).good().out;
    for flags in ["--no-mmap", ""] {
        let path = place.file("in.gguf", &whole);
        let mut command = place.command(&format!("{line} {flags}"));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        match flags {
            "" => {
                std::fs::write(place.path().join("new"), "other").unwrap();
                std::fs::rename(place.path().join("new"), &path).unwrap();
            }
            _ => shorten(&path, 100),
        }
        let ran = Ran::new(&child.wait_with_output().unwrap()).good();
        assert_eq!(String::from_utf8_lossy(&first) + ran.out.as_str(), expected);
    }
}

/// A session on the CPU, of which `told` hears while it is prepared.
fn opened(
    model: &Model,
    told: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Session, Error> {
    let settings = Settings {
        threads: Some(1),
        ctx_size: Some(256),
        ubatch_size: 16,
        placing: Placing::cpu(),
        progress: Some(told),
        ..Settings::default()
    };
    Session::new(model, settings)
}

/// One that can be opened.
fn session(model: &Model, told: &mut dyn FnMut(Progress) -> ControlFlow<()>) -> Session {
    opened(model, told).unwrap()
}

/// A prompt of so many tokens.
fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| 3 + i * 7 % 500).collect()
}

/// The logits after a prompt of several micro-batches; after the first of them, `meanwhile` is called.
fn prompted(session: &mut Session, meanwhile: &mut dyn FnMut()) -> Result<Vec<f32>, Error> {
    let sequence = session.open().unwrap();
    let prompt = prompt(96);
    let mut calls = 0;
    let logits = session.prefill(sequence, &prompt, &mut |_| {
        calls += 1;
        if calls == 1 {
            meanwhile();
        }
        true
    });
    let logits = logits.map(|logits| logits.unwrap().to_vec());
    assert!(calls > 3, "the prompt has several micro-batches");
    assert_eq!(session.len(sequence), if logits.is_ok() { prompt.len() } else { 0 });
    session.close(sequence);
    logits
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_changes_in_the_middle_of_a_prompt_is_an_error() {
    let place = place();
    let path = place.path().join("in.gguf");
    let whole = std::fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x40;
    let changes: [(&str, &dyn Fn()); 2] = [
        ("in.gguf: byte ", &|| shorten(&path, 4096)),
        ("in.gguf: ", &|| std::fs::write(&path, &flipped).unwrap()),
    ];
    for (named, change) in changes {
        std::fs::write(&path, &whole).unwrap();
        let model = Model::open(&path, OpenOptions::default()).unwrap();
        let mut session = session(&model, &mut |_| ControlFlow::Continue(()));
        prompted(&mut session, &mut || ()).unwrap();
        let error = prompted(&mut session, &mut || change()).unwrap_err();
        assert!(matches!(error, Error::File(_)), "{error}");
        assert!(error.to_string().contains(named), "{named}: {error}");
    }
}

/// A save copies what a sequence has, and reads no weights: their file may have become shorter, or be another one.
#[test]
#[cfg(target_os = "linux")]
fn a_save_does_not_depend_on_the_file_of_the_model() {
    let place = place();
    let path = place.path().join("in.gguf");
    let whole = std::fs::read(&path).unwrap();
    let prompt = prompt(40);
    let next = |session: &mut Session, sequence| {
        let run = [Run { sequence, tokens: &[5], wanted: Wanted::Last }];
        session.step(&run).unwrap().to_vec()
    };
    let replace = || {
        place.file("new", "other");
        std::fs::rename(place.path().join("new"), &path).unwrap();
    };
    let changes: [&dyn Fn(); 3] = [&|| (), &|| shorten(&path, 0), &replace];
    let mut expected = None;
    for change in changes {
        std::fs::write(&path, &whole).unwrap();
        let model = Model::open(&path, OpenOptions::default()).unwrap();
        let mut changed = session(&model, &mut |_| ControlFlow::Continue(()));
        let sequence = changed.open().unwrap();
        changed.prefill(sequence, &prompt, &mut |_| true).unwrap();
        change();
        let saved = changed.save(sequence).unwrap();
        std::fs::write(&path, &whole).unwrap();
        let model = Model::open(&path, OpenOptions::default()).unwrap();
        let mut again = session(&model, &mut |_| ControlFlow::Continue(()));
        let sequence = again.restore(&saved).unwrap();
        let found = (saved, next(&mut again, sequence));
        assert!(*expected.get_or_insert_with(|| found.clone()) == found);
    }
}

/// A load reads the beginning of every tensor, each of which cannot be read in turn.
#[test]
#[cfg(target_os = "linux")]
fn a_disk_that_fails_while_a_model_is_loaded_is_an_error_with_file_and_offset() {
    let place = place();
    let path = place.path().join("in.gguf");
    let file = File::open(&path).unwrap();
    assert!(file.tensors().len() > 30);
    for tensor in file.tensors() {
        let begin = tensor.layout().offset();
        let model = Model::open(&path, OpenOptions::default()).unwrap();
        model.file().break_page(begin).unwrap();
        let Err(error) = opened(&model, &mut |_| ControlFlow::Continue(())) else {
            panic!("{} is loaded", tensor.name())
        };
        assert!(matches!(error, Error::File(_)), "{error}");
        let error = error.to_string();
        let offset = error.split("in.gguf: byte ").nth(1).and_then(|rest| rest.split(' ').next());
        let offset: u64 = offset.and_then(|offset| offset.parse().ok()).expect(&error);
        assert!(offset.abs_diff(begin) < 4096, "{error} instead of {begin}");
    }
    // Without a failure there is no error.
    let model = Model::open(&path, OpenOptions::default()).unwrap();
    opened(&model, &mut |_| ControlFlow::Continue(())).unwrap();
}

/// The file keeps its length, but a page of it cannot be read.
#[test]
#[cfg(target_os = "linux")]
fn a_disk_that_fails_under_a_running_model_is_an_error_with_file_and_offset() {
    let place = place();
    let path = place.path().join("in.gguf");
    let middle = std::fs::metadata(&path).unwrap().len() / 2;
    let kept = Model::open(&path, OpenOptions::default()).unwrap();
    let mut unaffected = session(&kept, &mut |_| ControlFlow::Continue(()));
    let expected = prompted(&mut unaffected, &mut || ()).unwrap();
    for moment in ["prefill", "decode"] {
        let model = Model::open(&path, OpenOptions::default()).unwrap();
        let mut session = session(&model, &mut |_| ControlFlow::Continue(()));
        let fail = || model.file().break_page(middle).unwrap();
        let error = match moment {
            "prefill" => prompted(&mut session, &mut || fail()).unwrap_err(),
            _ => {
                assert!(prompted(&mut session, &mut || ()).unwrap() == expected);
                let sequence = session.open().unwrap();
                session.prefill(sequence, &[3, 4, 5], &mut |_| true).unwrap();
                let run = Run { sequence, tokens: &[6], wanted: Wanted::Last };
                session.step(&[run]).unwrap();
                fail();
                session.step(&[run]).map(drop).unwrap_err()
            }
        };
        assert!(matches!(error, Error::File(_)), "{moment}: {error}");
        let place = error.to_string();
        let offset = place.split("in.gguf: byte ").nth(1).and_then(|rest| rest.split(' ').next());
        let offset: u64 = offset.and_then(|offset| offset.parse().ok()).expect(&place);
        assert!(offset.abs_diff(middle) < 4096, "{moment}: {place} instead of {middle}");
        assert!(
            prompted(&mut unaffected, &mut || ()).unwrap() == expected,
            "another model goes on"
        );
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_file_that_is_replaced_is_used_as_it_was_opened() {
    let place = place();
    place.run("synth --layers 4 --width 128 --heads 4 --vocab 512 --seed 3 other.gguf").good();
    let [path, other] = ["in.gguf", "other.gguf"].map(|name| place.path().join(name));
    let whole = std::fs::read(&path).unwrap();
    let answer = |moment: &str| {
        std::fs::write(place.path().join("next"), &whole).unwrap();
        std::fs::rename(place.path().join("next"), &path).unwrap();
        let replace = || {
            std::fs::copy(&other, place.path().join("next")).unwrap();
            std::fs::rename(place.path().join("next"), &path).unwrap();
        };
        let model = Model::open(&path, OpenOptions::default()).unwrap();
        let mut is_loaded = false;
        let mut session = session(&model, &mut |_| {
            if moment == "load" && !std::mem::replace(&mut is_loaded, true) {
                replace();
            }
            ControlFlow::Continue(())
        });
        if moment == "idle" {
            prompted(&mut session, &mut || ()).unwrap();
            replace();
        }
        let is_prefill = moment == "prefill";
        let logits =
            prompted(&mut session, &mut || is_prefill.then(replace).unwrap_or(())).unwrap();
        let is_replaced = std::fs::read(&path).unwrap() != whole;
        assert_eq!(is_replaced, moment != "never", "{moment}");
        logits
    };
    let expected = answer("never");
    for moment in ["load", "idle", "prefill"] {
        assert!(answer(moment) == expected, "{moment}");
    }
}

// ---- Writers ------------------------------------------------------------------------------------

/// Commands that write `out`, by name, each with what it needs in [`place`]. Batches, downloads and the server's slots have
/// tests of their own.
const WRITERS: [(&str, &str); 9] = [
    ("convert", "convert checkpoint --outfile OUT"),
    ("prune", "prune in.gguf OUT --pattern 0.5 --method magnitude"),
    ("synth", "synth --layers 4 --width 128 --heads 4 --vocab 512 --type F16 OUT"),
    ("quantize", "quantize in.gguf OUT Q8_0 1"),
    ("gptq", "quantize in.gguf OUT Q8_0 1 --gptq --calibration text.txt --chunks 2 -c 64"),
    ("imatrix", "imatrix -m in.gguf -f text.txt -c 64 --chunks 2 --device none -o OUT"),
    (
        "base logits",
        "perplexity -m in.gguf -f text.txt -c 64 --chunks 2 --device none --kl-base OUT",
    ),
    ("logits", "run -m in.gguf -f short.txt -n 1 --device none --logits OUT"),
    ("trace", "run -m in.gguf -p once -n 4 --device none --trace OUT"),
];

/// Those that are killed as well, but take long, read what they replace or write a folder.
const OTHERS: [(&str, &str); 4] = [
    (
        "patterns by divergence",
        "prune in.gguf OUT --target-kl 0.5 --calibration text.txt --chunks 1 -c 64",
    ),
    ("prompt cache", "run -m in.gguf -f short.txt -n 1 --device none --prompt-cache OUT"),
    ("chat", "run -m in.gguf -cnv -n 2 --device none --chat-template chatml"),
    ("profile", "profile -m in.gguf -p 4 -n 2 -r 1 --device none --out folder"),
];

/// Names that the folder has beside `before`, without the output.
fn strays(place: &Place, before: &[String]) -> Vec<String> {
    place.names().into_iter().filter(|name| name != "out" && !before.contains(name)).collect()
}

/// The command of a writer.
fn writer(place: &Place, line: &str) -> std::process::Command {
    let mut command = place.command(&line.replace("OUT", "out"));
    if line.contains("-cnv") {
        command.stdin(std::fs::File::open(place.path().join("chat.txt")).unwrap());
    }
    command
}

/// Kills every writer at moments spread over its run; `BILAYER_TEST_KILLS` sets how many of each.
#[test]
#[cfg(unix)]
fn a_killed_writer_leaves_the_old_file_and_the_next_one_cleans_up() {
    let kills = std::env::var("BILAYER_TEST_KILLS").ok().and_then(|text| text.parse().ok());
    let (kills, place) = (kills.unwrap_or(2), place());
    place.file("chat.txt", "once\n/save out\n/exit\n");
    std::fs::create_dir(place.path().join("folder")).unwrap();
    place.run("run -m in.gguf -p twice -n 1 --device none --prompt-cache old").good();
    let old = std::fs::read(place.path().join("old")).unwrap();
    let (mut killed, mut random) = (0, Random(7));
    for (name, line) in WRITERS.into_iter().chain(OTHERS) {
        let tried = Tried::new(format!("writer {name}"));
        let out = if name == "profile" { "folder/profile.json" } else { "out" };
        let read = || std::fs::read(place.path().join(out)).unwrap();
        let folder = || place.names_in("folder");
        let before = place.names();
        place.file(out, &old);
        let began = Instant::now();
        ran(&mut writer(&place, line)).good();
        let (mut whole, complete, charts) = (began.elapsed(), read(), folder());
        let (mut runs, mut ended, mut olds, mut drafts) = (0, 0, 0, 0);
        while ended < kills && runs < 4 * kills {
            runs += 1;
            place.file(out, &old);
            let mut command = writer(&place, line);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(whole.mul_f64(random.below(1000) as f64 / 1000.0));
            child.kill().unwrap();
            if child.wait().unwrap().success() {
                whole = whole.mul_f64(0.9);
                continue;
            }
            ended += 1;
            let found = read();
            olds += usize::from(found == old);
            // Traces and profiles have times.
            let is_json = serde_json::from_slice::<serde_json::Value>(&found).is_ok();
            let is_whole = found == old || found == complete || is_json;
            assert!(is_whole, "{line}: {} bytes", found.len());
            drafts += strays(&place, &before).len() + folder().len() - charts.len();
        }
        ran(&mut writer(&place, line)).good();
        assert_eq!(strays(&place, &before), Vec::<String>::new(), "{line}");
        assert_eq!(folder(), charts, "{line}");
        std::fs::remove_file(place.path().join(out)).unwrap();
        tried.done(&format!(
            "{ended} of {runs} runs ended by the signal, {olds} left the old file, {drafts} drafts seen"
        ));
        killed += ended;
    }
    assert!(killed > 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_at_any_size_leaves_the_old_file() {
    let place = place();
    let mut full = 0;
    for (_, writer) in WRITERS {
        let line = writer.replace("OUT", "disk/out.gguf");
        for kib in [4, 8, 16, 40, 80, 160, 320, 640] {
            let script = format!(
                "\"$0\" {line} > /dev/null; code=$?; head -c 3 disk/out.gguf; \
                 echo; ls -A disk; exit $code"
            );
            let Some(ran) = with_disk(&place, kib << 10, &script) else { return };
            if ran.code == Some(0) {
                continue;
            }
            assert!(matches!(ran.code, Some(73 | 74)), "{line} on {kib} KiB: {ran:?}");
            assert_eq!(ran.out, "old\nout.gguf\n", "{line} on {kib} KiB: {ran:?}");
            full += 1;
        }
    }
    println!("{full} runs met a full disk");
    assert!(full > 0);
}

/// A file beyond the limit of the process is an error, as on a full disk, and leaves nothing.
#[test]
#[cfg(target_os = "linux")]
fn a_file_beyond_the_limit_of_the_process_is_an_error() {
    let place = place();
    let before = place.names();
    let script = "ulimit -f 64; \"$0\" quantize in.gguf out.gguf q8_0";
    let program = env!("CARGO_BIN_EXE_bilayer");
    let ran = ran(place.bare("bash").args(["-c", script, program]));
    names_the_reason(&ran, 74, "out.gguf: ");
    assert_eq!(place.names(), before);
}

/// Times that a load has measured are kept for the next one if there is room, and else measured again.
#[test]
#[cfg(target_os = "linux")]
fn a_load_needs_no_room_on_the_disk() {
    let place = place();
    let line = "run -m in.gguf -p once -n 8 --ignore-eos --temp 0 -c 512 -t 1 --device none";
    let expected = place.run(line).good().out;
    let on_disk = |before: &str| {
        let script = format!(
            "{before}; BILAYER_CACHE=disk/kept \"$0\" {line} --remeasure; code=$?; \
             find disk -name 'times-*' >&2; exit $code"
        );
        Some(with_disk(&place, 64 << 10, &script)?.good())
    };
    let Some(full) = on_disk("cat /dev/zero > disk/other 2> /dev/null") else { return };
    let roomy = on_disk("true").unwrap();
    assert_eq!([&full.out, &roomy.out], [&expected; 2]);
    let note = "disk/kept: measured times cannot be kept: No space left on device";
    assert!(full.err.contains(note) && !full.err.contains("times-"), "{full:?}");
    assert!(!roomy.err.contains(note) && roomy.err.contains("disk/kept/times-"), "{roomy:?}");
}

/// A prompt and its answer need no room: what would be kept for the next start is left out.
#[test]
#[cfg(target_os = "linux")]
fn an_answer_needs_no_room_on_the_disk() {
    let place = place();
    let line = "run -m in.gguf -f short.txt -n 8 --ignore-eos --temp 0 -c 512 -t 1 --device none";
    let expected = place.run(line).good().out;
    let script = format!(
        "rm disk/out.gguf; cat /dev/zero > disk/other 2> /dev/null; \
         HOME=disk TMPDIR=disk BILAYER_CACHE=disk/kept \"$0\" {line}; code=$?; ls -A disk >&2; exit $code"
    );
    let Some(ran) = with_disk(&place, 64 << 10, &script) else { return };
    let ran = ran.good();
    assert_eq!(ran.out, expected);
    assert_eq!(ran.err.lines().last(), Some("other"), "{ran:?}");
    // What is asked for does.
    for flag in ["--logits", "--trace"] {
        let script =
            format!("\"$0\" {line} {flag} disk/out > /dev/null; code=$?; ls -A disk; exit $code");
        let Some(ran) = with_disk(&place, 8 << 10, &script) else { return };
        names_the_reason(&ran, 74, "disk/out: cannot be written: ");
        assert_eq!(ran.out, "out.gguf\n", "{ran:?}");
    }
}
