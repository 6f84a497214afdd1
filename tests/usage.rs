//! What a newcomer types: names of models from elsewhere, `-` as a file, files that are missing, wrong variables.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use bilayer_gguf::{Metadata, to_bytes};
use serde_json::Value;

mod support {
    pub mod model;
    pub mod program;
    pub mod words;
}

use support::program::{Place, Ran, ran};
use support::words;

/// One line with the reason, nothing on stdout.
#[track_caller]
fn refused(ran: &Ran, code: i32, part: &str) {
    assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{ran:?}");
    assert!(ran.err.contains(part), "{ran:?}");
}

#[test]
fn a_file_to_write_is_not_standard_output() {
    let place = Place::new();
    place.file("in.jsonl", "{}\n");
    let before = place.names();
    let lines = [
        "batch in.jsonl -",
        "run -p a -n 1 --logits -",
        "run -p a -n 1 --trace -",
        "run -p a -n 1 --prompt-cache -",
        "run -p a -n 1 --log-file -",
        "imatrix -f in.jsonl -o -",
        "quantize in.gguf - Q8_0",
        "convert folder --outfile -",
        "synth -",
        "perplexity -f in.jsonl --kl-base -",
    ];
    for line in lines {
        refused(&place.run(line), 2, "is -, but files are not written to standard output");
    }
    refused(&place.run("batch - out.jsonl"), 2, "IN cannot be standard input");
    assert_eq!(place.names(), before);
}

#[test]
fn files_that_are_missing_or_cannot_be_written_have_their_codes() {
    let place = Place::new();
    place.file("in.jsonl", "{\"custom_id\": \"1\"}\n");
    let cases = [
        ("batch in.jsonl absent/out.jsonl", 73, "absent/out.jsonl.journal: cannot be written"),
        ("batch absent.jsonl out.jsonl", 66, "absent.jsonl: cannot be read"),
        (
            "run -p a -n 1 --prompt-cache absent/x.kv",
            73,
            "absent/x.kv: cannot be written: the folder absent",
        ),
        ("convert absent", 66, "absent: no such folder"),
        (
            "run --model absent -p a",
            66,
            "absent: no such file; give the path of a .gguf file, or ollama:",
        ),
        ("run -p a -n 1 --lora absent.gguf", 66, "absent.gguf: no such file; give the path"),
        ("run -p a -n 1 --log-file absent/x.log", 73, "absent/x.log: cannot be written"),
    ];
    for (line, code, part) in cases {
        let ran = place.run(line);
        refused(&ran, code, part);
        assert!(!ran.err.contains("-m"), "{ran:?}");
    }
    assert_eq!(place.names(), ["in.jsonl"]);
    place.run("run -p a -n 1 -ngl 0 --log-file messages.log").good();
    let log = std::fs::read_to_string(place.path().join("messages.log")).unwrap();
    assert!(log.contains("generate: 1 token,"), "{log}");
}

#[test]
fn a_name_of_a_model_is_no_prompt() {
    let place = Place::new();
    let ran = place.run("run llama3.2 -n 1 -ngl 0");
    refused(
        &ran,
        2,
        "`llama3.2` may be meant as the name of a model; -m ollama:llama3.2 runs a model that ollama",
    );
    assert!(ran.err.contains("-hf ORG/REPO") && ran.err.contains("give it with -p"), "{ran:?}");
    let note = "no model is given, so the demo model continues";
    for word in ["once", "H2O", "COVID-19", "UTF-8", "3rd", "v1.0", "GPT-4"] {
        let ran = place.run(&format!("run {word} -n 1 -ngl 0")).good();
        assert!(ran.err.contains(note), "{ran:?}");
    }
    for prompt in ["-p llama3.2", "2024"] {
        let ran = place.run(&format!("run {prompt} -n 1 -ngl 0")).good();
        assert!(!ran.err.contains("name of a model"), "{ran:?}");
    }
    refused(&place.run("run mistral"), 2, "`mistral` may be meant as the name of a model");
    let parrot = "run parrot -n 1 -ngl 0";
    assert!(place.run(parrot).good().err.contains(note));
    let store = place.path().join(".ollama/models");
    let manifest = store.join("manifests/registry.ollama.ai/library/parrot");
    std::fs::create_dir_all(&manifest).unwrap();
    std::fs::create_dir_all(store.join("blobs")).unwrap();
    let digest = "a".repeat(64);
    std::fs::write(
        store.join(format!("blobs/sha256-{digest}")),
        words::scorer("bert", &["a", "b"]),
    )
    .unwrap();
    let layers = format!(
        r#"{{"schemaVersion": 2, "layers": [{{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{digest}"}}]}}"#
    );
    std::fs::write(manifest.join("latest"), layers).unwrap();
    refused(&place.run(parrot), 2, "run it with -m ollama:parrot");
    refused(&place.run("chat"), 2, "`bilayer chat` is not a command; `bilayer run -cnv` chats");
    let offline = |line: &str| ran_offline(&place, line);
    refused(&offline("run llama3.2:1b"), 66, "no such file; `bilayer models` lists");
    refused(&offline("pull llama3.2"), 2, "`bilayer pull` is not a command; `bilayer run -hf");
}

#[test]
fn flags_of_llama_cpp_say_where_their_setting_is() {
    let place = Place::new();
    let keep = "--keep is not supported; a request sets `n_keep`";
    refused(&place.run("serve --keep -1 --context-shift"), 2, keep);
    let plain = place.run("run -p a -n 4 -ngl 0 --temp 0").good().out;
    assert_eq!(place.run("run -p a -n 4 -ngl 0 --temp 0 --grammar=").good().out, plain);
}

fn ran_offline(place: &Place, line: &str) -> Ran {
    ran(place.command(line).env("HF_HUB_OFFLINE", "1"))
}

#[test]
fn the_version_is_also_a_document() {
    let place = Place::new();
    let document: Value = place.run("version --json").json();
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    for key in ["commit", "build", "target", "features", "cpu", "gpus"] {
        assert!(document.get(key).is_some(), "{key} in {document}");
    }
    assert!(place.run("version").good().out.starts_with("bilayer "));
    refused(&place.run("version extra"), 2, "extra");
}

/// Messages are in one line, without escapes of quotes and line breaks that are the program's own.
#[test]
fn texts_of_the_program_are_not_escaped() {
    let place = Place::new();
    place.run("synth --shape minilm-l6 --layers 1 encoder.gguf").good();
    let inspected = place.run("inspect encoder.gguf").good().out;
    assert!(inspected.contains("embeddings, the mean of a text's rows\n"), "{inspected}");
    for (text, part) in [
        ("[cpu]\nname = \"a\"\n\n[gpu\n", "machine.toml: line 4: unclosed table, expected `]`"),
        ("[cpu]\nnme = \"a\"\n", "machine.toml: line 2: unknown field `nme`, expected one of"),
    ] {
        place.file("machine.toml", text);
        let ran = place.run("plan --machine machine.toml");
        refused(&ran, 2, part);
        assert!(!ran.err.contains("\\n"), "{ran:?}");
    }
}

#[test]
fn a_wrong_value_of_a_variable_names_it() {
    let place = Place::new();
    let with = |line: &str, variable: &str| ran(place.command(line).env(variable, "abc"));
    let part = "LLAMA_ARG_CTX_SIZE: invalid value 'abc' for '--ctx-size <N>'";
    refused(&with("run -p a", "LLAMA_ARG_CTX_SIZE"), 2, part);
    let part = "LLAMA_ARG_MLOCK: invalid value 'abc' for '--mlock'";
    refused(&with("run -p a", "LLAMA_ARG_MLOCK"), 2, part);
    let part = "bilayer: invalid value 'abc' for '--ctx-size <N>'";
    refused(&with("run -p a -c abc", "LLAMA_ARG_CTX_SIZE"), 2, part);
}

#[test]
fn json_lines_may_begin_with_a_byte_order_mark_and_labels_are_not_empty() {
    let place = Place::new();
    place.file("encoder.gguf", words::scorer("bert", &["good", "bad"]));
    place.file("in.jsonl", "\u{feff}\"a\"\n\"b\"\n");
    let lines = |ran: Ran| ran.good().out.lines().count();
    assert_eq!(lines(place.run("tokenize --jsonl in.jsonl")), 2);
    assert_eq!(lines(place.run("embed -m encoder.gguf --jsonl in.jsonl")), 2);
    place.file("examples.jsonl", "\u{feff}{\"text\": \"a\", \"label\": \"x\"}\n");
    let line = "classify -m encoder.gguf a --examples examples.jsonl";
    assert_eq!(lines(place.run(line)), 1);
    let line = "classify -m encoder.gguf a --labels billing,,x";
    refused(&place.run(line), 2, "a label is empty");
    place.file("examples.jsonl", "{\"text\": \"a\", \"label\": \" \"}\n");
    let line = "classify -m encoder.gguf a --examples examples.jsonl";
    refused(&place.run(line), 2, "examples.jsonl: line 1: the label is empty");
}

#[test]
fn a_server_that_cannot_load_its_model_gives_the_advice_once() {
    let place = Place::new();
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "nonesuch");
    place.file("other.gguf", to_bytes(&metadata, []).unwrap());
    for line in ["run -p a -m other.gguf", "serve --port 0 -m other.gguf"] {
        let ran = place.run(line);
        refused(&ran, 65, "; use a model of a supported one");
        assert!(!ran.err.contains("; ;"), "{ran:?}");
    }
}

#[test]
fn devices_are_listed_by_every_command_that_uses_them_whatever_else_is_given() {
    let place = Place::new();
    // Free memory changes meanwhile.
    let free = regex::Regex::new(r" \([^()]* free\)").unwrap();
    let listing = |line: &str| {
        let ran = place.run(&format!("{line} --list-devices")).good();
        free.replace_all(&ran.out, "").into_owned()
    };
    let listed = listing("run");
    for line in [
        "serve -m absent.gguf",
        "batch in.jsonl out.jsonl -m absent.gguf",
        "bench -m absent.gguf",
        "evaluate --data absent.jsonl -m absent.gguf",
        "perplexity -m absent.gguf",
        "plan -m absent.gguf",
        "embed -m absent.gguf a",
    ] {
        assert_eq!(listing(line), listed, "{line}");
    }
    assert!(place.names().is_empty(), "{:?}", place.names());
}
