//! The promise of the README: every command it shows runs, as it stands there.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::path::Path;

use bilayer_quant::Type;

mod support {
    pub mod model;
    pub mod program;
    pub mod words;
}

use support::program::{Place, ran};
use support::words;

const README: &str = include_str!("../README.md");
const MACHINE: &str = include_str!("../examples/machines/rtx-4090.toml");

/// What a reader does before or after; a test has it done already, or is a part of it.
const DONE_ELSEWHERE: &[&str] =
    &["cargo install --path .", "cargo xtask test", "git clone ", "cd "];

/// The lines of the fenced blocks marked `sh`, continued lines joined, comments left out.
fn commands(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut fence: Option<&str> = None;
    for line in text.replace("\\\n", " ").lines() {
        let line = line.trim();
        match (line.strip_prefix("```"), fence) {
            (Some(language), None) => fence = Some(if language == "sh" { "sh" } else { "other" }),
            (Some(_), Some(_)) => fence = None,
            (None, Some("sh")) if !line.is_empty() && !line.starts_with('#') => {
                commands.push(line.to_owned());
            }
            _ => {}
        }
    }
    commands
}

#[test]
fn commands_are_found_where_they_stand() {
    let text =
        "```sh\n# no\na b \\\n  c\n\nd\n```\ntext\n```rust\nlet e = 1;\n```\n```sh\nf\n```\n";
    assert_eq!(commands(text), ["a b    c", "d", "f"]);
}

#[test]
fn every_command_of_the_readme_runs() {
    let commands = commands(README);
    assert!(commands.len() >= 5, "{commands:?}");
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::Q8_0, 1));
    place.file("draft.gguf", words::tiny(Type::Q4_0, 1));
    place.file("prompt.txt", "Once upon a time");
    place.file("encoder.gguf", words::scorer("bert", &["good", "bad"]));
    place.file("reranker.gguf", words::scorer("bert", &["relevant"]));
    place.file("sentences.txt", "A cat.\nA dog.\n");
    std::fs::create_dir_all(place.path().join("examples/machines")).unwrap();
    place.file("examples/machines/rtx-4090.toml", MACHINE);
    let checkpoint = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/train_demo/checkpoint");
    std::fs::create_dir_all(place.path().join("examples/train_demo/checkpoint")).unwrap();
    for entry in std::fs::read_dir(checkpoint).unwrap() {
        let path = entry.unwrap().path();
        let to =
            place.path().join("examples/train_demo/checkpoint").join(path.file_name().unwrap());
        std::fs::copy(path, to).unwrap();
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_bilayer")).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(programs.to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let path = path.unwrap();
    for command in commands {
        if DONE_ELSEWHERE.iter().any(|done| command.starts_with(done)) {
            continue;
        }
        let script = command.replace("cargo run --release --", "bilayer");
        let script = script.replace("cargo run --release", "bilayer");
        assert!(script.contains("bilayer"), "a command that no test knows: {command}");
        let ran = ran(place.bare("sh").args(["-e", "-c", &script]).env("PATH", &path));
        assert_eq!(ran.code, Some(0), "{command}: {ran:?}");
        assert!(!ran.out.is_empty(), "{command} prints nothing");
    }
}
