//! The promise of the documentation: every command runs as written, every link leads to a file, the README is short.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bilayer_quant::Type;
use regex::Regex;

mod support {
    pub mod model;
    pub mod program;
    pub mod words;
}

use support::program::{Place, copy, ran};
use support::words;

/// Lines that the README may have (STYLE.md).
const README_LINES_MAX: usize = 150;

/// Commands that install, build or download, which are not run.
const NOT_RUN: &[&str] =
    &["cargo install ", "cargo xtask ", "cargo build ", "cc ", "git clone ", "cd ", "pip install "];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A Markdown page: its path relative to the root, and its text.
struct Page {
    path: PathBuf,
    text: String,
}

/// Every page below `folder`, in order.
fn pages_below(folder: &str) -> Vec<Page> {
    let mut pages = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(page(path.strip_prefix(root()).unwrap()));
            }
        }
    }
    pages.sort_by(|a, b| a.path.cmp(&b.path));
    pages
}

fn page(path: &Path) -> Page {
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    Page { path: path.to_owned(), text }
}

/// The README and the guide.
fn guide() -> Vec<Page> {
    let mut pages = vec![page(Path::new("README.md"))];
    pages.extend(pages_below("docs"));
    pages
}

/// Every page except those in `target` and in other projects' folders.
fn every_page() -> Vec<Page> {
    let folders = ["docs", "crates", "shaders", "benches", "tests", "examples"];
    let mut pages = vec![page(Path::new("README.md"))];
    pages.extend(folders.iter().flat_map(|folder| pages_below(folder)));
    pages
}

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
fn commands_are_found_in_fenced_blocks() {
    let text =
        "```sh\n# no\na b \\\n  c\n\nd\n```\ntext\n```rust\nlet e = 1;\n```\n```sh\nf\n```\n";
    assert_eq!(commands(text), ["a b    c", "d", "f"]);
}

/// A folder with the files that the pages mention, in which nothing runs but to make it.
fn files() -> Place {
    let place = Place::new();
    place.file("model.gguf", words::tiny(Type::Q8_0, 1));
    // Rows of 256 weights, as the K types have them.
    place.run("synth --shape tiny --type F16 model-f16.gguf").good();
    place.file("draft.gguf", words::tiny(Type::Q4_0, 1));
    place.file("encoder.gguf", words::scorer("bert", &["good", "bad"]));
    place.file("reranker.gguf", words::scorer("bert", &["relevant"]));
    place.file("prompt.txt", "Once upon a time");
    place.file("text.txt", "Once upon a time there was a king. ".repeat(12));
    let request = |url: &str, body: &str| {
        format!("{{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"{url}\",\"body\":{body}}}\n")
    };
    let prompt = "{\"prompt\":\"Once\",\"max_tokens\":4}";
    place.file("requests.jsonl", request("/v1/completions", prompt));
    place.file("texts.jsonl", request("/v1/classify", "{\"input\":\"Once\"}"));
    place.file("cases.jsonl", "{\"prompt\":\"ROMEO:\\n\",\"regex\":\"^\",\"max_tokens\":8}\n");
    let label = |label: &str| format!("{{\"prompt\":\"A day.\",\"label\":\"{label}\"}}\n");
    place.file("labels.jsonl", label("good") + &label("bad"));
    place.file("examples.jsonl", "{\"text\":\"It crashes.\",\"label\":\"technical\"}\n");
    place.file("tickets.jsonl", "\"My invoice is wrong.\"\n");
    place.file("reports.jsonl", "{\"text\":\"Ada Lovelace was born in London.\",\"id\":1}\n");
    place.file("sentences.txt", "A cat.\nA dog.\n");
    place.file("questions.txt", "Hello\nWhy?\n");
    let model = bilayer_gguf::File::open(&place.path().join("model.gguf")).unwrap();
    let width = model.tensor("token_embd.weight").unwrap().layout().shape()[1] as usize;
    place.file("control.gguf", words::control_vector(width, &[1, 2]));
    place.file("tools.json", "[{\"name\": \"now\", \"parameters\": {\"type\": \"object\"}}]");
    let earlier = place.run("bench -m model.gguf -p 8 -n 4 -r 1 -o json").good().out;
    place.file("earlier.json", earlier);
    place.file("adapter.gguf", words::adapter(&place.path().join("model.gguf"), 4));
    for (folder, to) in [
        ("examples/machines", "examples/machines"),
        ("examples/deploy", "examples/deploy"),
        ("examples/train_demo/checkpoint", "examples/train_demo/checkpoint"),
        ("tests/checkpoints/options-llama", "base"),
        ("tests/checkpoints/lora", "adapter"),
        ("tests/checkpoints/bert-tokens", "bert-base-NER"),
    ] {
        let to = place.path().join(to);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        copy(&root().join(folder), &to);
    }
    place
}

/// Runs the commands of a page one after the other in a copy of `files`, except those that contain one of `left_out`; returns
/// those that failed.
fn run_page(page: &Page, files: &Path, left_out: &[&str]) -> Vec<String> {
    let programs = Path::new(env!("CARGO_BIN_EXE_bilayer")).parent().unwrap();
    let searched = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths(
        std::iter::once(programs.to_owned()).chain(std::env::split_paths(&searched)),
    );
    let (path, place) = (path.unwrap(), Place::new());
    copy(files, place.path());
    let mut failed = Vec::new();
    for command in commands(&page.text) {
        if NOT_RUN.iter().any(|prefix| command.starts_with(prefix)) {
            continue;
        }
        let script = command.replace("cargo run --release --", "bilayer");
        let script = script.replace("cargo run --release", "bilayer");
        if left_out.iter().any(|part| script.contains(part)) {
            continue;
        }
        let ran = ran(place.bare("sh").args(["-e", "-c", &script]).env("PATH", &path));
        let prints = !ran.out.is_empty() || !ran.err.is_empty();
        if !script.contains("bilayer") || ran.code != Some(0) || !prints {
            failed.push(format!("{}: {command}: {ran:?}", page.path.display()));
        }
    }
    failed
}

#[test]
fn every_command_of_the_guide_runs() {
    let list = Place::new().run("devices --json").json();
    let has_adapter = list["adapters"].as_array().is_some_and(|adapters| !adapters.is_empty());
    let required = std::env::var("BILAYER_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(has_adapter || !required, "an adapter is required");
    let left_out: &[&str] = if has_adapter { &[] } else { &["-dev software"] };
    let mut pages = guide();
    pages.retain(|page| !commands(&page.text).is_empty());
    let count: usize = pages.iter().map(|page| commands(&page.text).len()).sum();
    assert!(count >= 20, "{count} commands were found");
    // Long pages first, so that none is left for the end.
    pages.sort_by_key(|page| commands(&page.text).len());
    let files = files();
    let (waiting, failed) = (Mutex::new(pages), Mutex::new(Vec::new()));
    let next = || waiting.lock().unwrap().pop();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(8) {
            scope.spawn(|| {
                while let Some(page) = next() {
                    failed.lock().unwrap().extend(run_page(&page, files.path(), left_out));
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} commands fail:\n{}", failed.len(), failed.join("\n"));
}

/// A plan depends only on the model's shapes and the described machine, so the README can show what is printed.
#[test]
fn the_plan_in_the_readme_is_what_is_printed() {
    let text = page(Path::new("README.md")).text;
    let (_, after) = text.split_once("bilayer plan -m 70b.gguf").unwrap();
    let (_, shown) = after.split_once("```text\n").unwrap();
    let (shown, _) = shown.split_once("\n```").unwrap();
    let place = Place::new();
    let machines = root().join("examples/machines").display().to_string();
    let mut printed = String::new();
    for command in commands(&text).iter().filter(|command| command.contains("70b.gguf")) {
        let arguments = command.strip_prefix("bilayer ").unwrap();
        printed = place.run(&arguments.replace("examples/machines", &machines)).good().out;
    }
    let printed: Vec<_> = printed.lines().collect();
    let absent: Vec<_> = shown.lines().filter(|line| !printed.contains(line)).collect();
    assert!(absent.is_empty() && shown.lines().count() >= 3, "{absent:#?}\n{printed:#?}");
}

#[test]
fn the_readme_is_short() {
    let lines = page(Path::new("README.md")).text.lines().count();
    assert!(
        lines <= README_LINES_MAX,
        "README.md has {lines} lines, the limit is {README_LINES_MAX}"
    );
}

/// The link targets of a page: Markdown links and images, `src` and `srcset` of HTML, outside fenced blocks.
fn targets(text: &str) -> Vec<String> {
    let fences = Regex::new(r"(?ms)^```.*?^```$").unwrap();
    let links = Regex::new(r#"\]\(([^)\s]+)\)|\b(?:src|srcset|href)="([^"]+)""#).unwrap();
    let prose = fences.replace_all(text, "");
    let found = links.captures_iter(&prose);
    found.map(|hit| hit.get(1).or(hit.get(2)).unwrap().as_str().to_owned()).collect()
}

#[test]
fn links_are_found() {
    let text =
        "[a](b.md#c) ![d](e.svg)\n```text\n[f](g)\n```\n<img src=\"h.svg\"> [i](https://j)\n";
    assert_eq!(targets(text), ["b.md#c", "e.svg", "h.svg", "https://j"]);
}

/// Files that a crate's README names in backticks, relative to its `src`, its folder or the root; patterns left out.
#[test]
fn crate_readmes_name_files_that_exist() {
    let named = Regex::new(r"`([A-Za-z0-9_./-]+(?:\.rs|/))`").unwrap();
    let mut broken = Vec::new();
    for page in pages_below("crates") {
        let folder = root().join(page.path.parent().unwrap());
        let folders = [folder.join("src"), folder, root().to_owned()];
        for hit in named.captures_iter(&page.text) {
            if !folders.iter().any(|folder| folder.join(&hit[1]).exists()) {
                broken.push(format!("{}: {}", page.path.display(), &hit[1]));
            }
        }
    }
    assert!(broken.is_empty(), "no such files:\n{}", broken.join("\n"));
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let fences = Regex::new(r"(?ms)^```.*?^```$").unwrap();
    let prose = fences.replace_all(text, "");
    let headings = prose.lines().filter_map(|line| line.strip_prefix('#'));
    let slug = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(slug).collect()
}

#[test]
fn every_link_leads_to_a_file() {
    let mut broken = Vec::new();
    for page in every_page() {
        let folder = page.path.parent().unwrap();
        for target in targets(&page.text) {
            if target.starts_with("https://") || target.starts_with("http://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let path = if file.is_empty() { page.path.clone() } else { folder.join(file) };
            let path = root().join(path);
            let is_there = path.exists()
                && (anchor.is_empty()
                    || anchors(&std::fs::read_to_string(&path).unwrap()).contains(anchor));
            if !is_there {
                broken.push(format!("{}: {target}", page.path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links to nowhere:\n{}", broken.join("\n"));
}

#[test]
fn the_table_of_contents_has_every_page_once() {
    let summary = page(Path::new("docs/SUMMARY.md"));
    let listed = targets(&summary.text);
    for page in pages_below("docs") {
        let name = page.path.strip_prefix("docs").unwrap().to_string_lossy().into_owned();
        let count = listed.iter().filter(|target| **target == name).count();
        let expected = usize::from(name != "SUMMARY.md");
        assert_eq!(count, expected, "docs/SUMMARY.md lists {name} {count} times");
    }
}
