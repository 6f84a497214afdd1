//! The promise of the documentation: every command runs as written, programs are compiled, requests are accepted, every link
//! leads to a file, the README is short.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]
#![allow(clippy::print_stdout, reason = "the program of the README prints")]

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use bilayer_quant::Type;
use regex::Regex;
use serde_json::{Value, json};

#[path = "programs/eight_lines.rs"]
mod eight_lines;
mod support {
    pub mod model;
    pub mod program;
    pub mod required;
    pub mod words;
}

use support::program::{Place, Ran, copy, ran};
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
    let top = ["README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let mut pages = Vec::from(top.map(|name| page(Path::new(name))));
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
    // Without a head and without prompts, as all-MiniLM-L6-v2.
    let shape = "--shape minilm-l6 --layers 1 --width 64 --heads 2 --ffn 128 --vocab 300";
    place.run(&format!("synth {shape} --type F16 encoder.gguf")).good();
    for name in ["classifier.gguf", "embeddinggemma.gguf"] {
        place.file(name, words::scorer("bert", &["good", "bad"]));
    }
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

/// Writes a `curl` into `folder` that fails if the server refuses, as `curl` alone does not.
fn strict_curl(folder: &Path) {
    let searched = std::env::var_os("PATH").unwrap();
    let mut found = std::env::split_paths(&searched).map(|folder| folder.join("curl"));
    let Some(curl) = found.find(|path| path.is_file()) else { return };
    let script = format!("#!/bin/sh\nexec '{}' --fail-with-body \"$@\"\n", curl.display());
    let path = folder.join("curl");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// The script with a free port in place of each one that a server is told to listen on.
fn on_free_ports(script: &str) -> String {
    let given = Regex::new(r"--port (\d+)").unwrap();
    let mut script = script.to_owned();
    let ports: BTreeSet<String> =
        given.captures_iter(&script).map(|port| port[1].to_owned()).collect();
    for port in ports {
        // Dropped, so that the server can have it.
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let is_port = Regex::new(&format!(r"\b{port}\b")).unwrap();
        script = is_port.replace_all(&script, free.to_string()).into_owned();
    }
    script
}

/// A shell's run of a command; what it started in the background ends with it.
fn run_script(script: &str, place: &Place, path: &OsStr) -> Ran {
    let ends = if script.contains(" & ") { "trap 'kill $! 2> /dev/null || :' EXIT; " } else { "" };
    let script = format!("{ends}{}", on_free_ports(script));
    ran(place.bare("sh").args(["-e", "-c", &script]).env("PATH", path))
}

#[test]
fn a_request_that_is_refused_fails_the_command_and_ends_its_server() {
    let (tools, place) = (tempfile::tempdir().unwrap(), Place::new());
    strict_curl(tools.path());
    let programs = Path::new(env!("CARGO_BIN_EXE_bilayer")).parent().unwrap();
    let path = path_with([tools.path(), programs]);
    let serving = page(Path::new("docs/serving.md")).text;
    let command = commands(&serving).into_iter().find(|line| line.contains("/v1/completions"));
    let command = command.unwrap();
    assert_eq!(run_script(&command, &place, &path).code, Some(0));
    // `sh` would not return while the server runs, since it holds the pipe of standard error.
    let wrong = command.replace("\"max_tokens\": 0", "\"max_tokens\": \"no number\"");
    assert_ne!(wrong, command);
    let ran = run_script(&wrong, &place, &path);
    assert!(ran.code == Some(22) && ran.out.contains("max_tokens"), "{ran:?}");
}

/// `PATH` with these folders before the others.
fn path_with(folders: [&Path; 2]) -> OsString {
    let searched = std::env::var_os("PATH").unwrap();
    let folders = folders.into_iter().map(Path::to_owned);
    std::env::join_paths(folders.chain(std::env::split_paths(&searched))).unwrap()
}

/// Runs the commands of a page one after the other in a copy of `files`, except those that contain one of `left_out`; returns
/// those that failed.
fn run_page(page: &Page, files: &Path, left_out: &[&str]) -> Vec<String> {
    let programs = Path::new(env!("CARGO_BIN_EXE_bilayer")).parent().unwrap();
    let (tools, place) = (tempfile::tempdir().unwrap(), Place::new());
    strict_curl(tools.path());
    let path = path_with([tools.path(), programs]);
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
        let ran = run_script(&script, &place, &path);
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
    if !has_adapter {
        support::required::skip("commands with a GPU: no adapter");
    }
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

/// The fenced blocks of a language.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let begin = format!("```{language}\n");
    let blocks = text.split(&begin).skip(1);
    blocks.map(|block| block.split_once("```").unwrap().0).collect()
}

/// The requests of a page as paths and bodies: lines of batches, what `curl` sends, and tools, which are those of a chat.
fn requests(text: &str) -> Vec<(String, String)> {
    let mut requests = Vec::new();
    for block in blocks(text, "json") {
        for line in block.lines().filter(|line| line.contains("\"url\"")) {
            let request: Value = serde_json::from_str(line).unwrap();
            let url = request["url"].as_str().unwrap();
            requests.push((url.to_owned(), request["body"].to_string()));
        }
        if block.starts_with('[') {
            let tools: Value = serde_json::from_str(block).unwrap();
            let body = json!({ "messages": [{ "role": "user", "content": "a" }], "tools": tools });
            requests.push(("/v1/chat/completions".to_owned(), body.to_string()));
        }
    }
    let sent = Regex::new(r"http://[^/\s]+(/\S*)\s+-d '([^']*)'").unwrap();
    for command in commands(text) {
        let sent = sent.captures_iter(&command);
        requests.extend(sent.map(|sent| (sent[1].to_owned(), sent[2].to_owned())));
    }
    requests
}

#[test]
fn requests_of_the_guide_are_accepted() {
    let model = root().join("crates/cli/assets/demo.gguf");
    let model = bilayer_engine::Model::open(&model, bilayer_engine::OpenOptions::default());
    let model = model.unwrap();
    let mut paths = Vec::new();
    for page in guide() {
        for (path, body) in requests(&page.text) {
            let checked = bilayer_server::check(&path, body.as_bytes(), &model);
            assert_eq!(checked, Ok(()), "{}: {path} {body}", page.path.display());
            paths.push(path);
        }
    }
    paths.sort();
    let chats = ["/v1/chat/completions"; 2];
    let completions = ["/v1/completions"; 2];
    assert_eq!(paths, [&["/completion"], &chats[..], &completions[..]].concat());
}

/// The README and the guide have one program in Rust, which is compiled here.
#[test]
fn programs_in_rust_are_compiled() {
    let _: fn() -> Result<(), bilayer::Error> = eight_lines::run;
    let source = include_str!("programs/eight_lines.rs").replace("\n    ", "\n");
    let mut pages = Vec::new();
    for page in every_page() {
        for block in blocks(&page.text, "rust") {
            assert!(source.contains(block), "{}:\n{block}", page.path.display());
            pages.push(page.path.display().to_string());
        }
    }
    assert_eq!(pages, ["README.md", "docs/library.md"]);
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
    assert!(is_shown(shown, &printed) && shown.lines().count() >= 6, "{shown}\n{printed}");
}

/// Whether lines are those that were printed but for some that `[...]` stands for.
fn is_shown(shown: &str, printed: &str) -> bool {
    let mut rest = printed;
    let mut begins = true;
    for piece in format!("{}\n", shown.trim_end()).split("[...]\n") {
        let found = if begins { rest.starts_with(piece).then_some(0) } else { rest.find(piece) };
        let Some(at) = found else { return false };
        rest = &rest[at + piece.len()..];
        begins = false;
    }
    rest.trim().is_empty() || shown.ends_with("[...]")
}

#[test]
fn lines_are_left_out_only_where_marked() {
    let printed = "a\nb\n\nc\nd\n";
    for (shown, is_true) in [
        ("a\nb\n\nc\nd", true),
        ("a\n[...]\nd", true),
        ("[...]\nc\n[...]", true),
        ("a\nc\nd", false),
        ("a\nb", false),
        ("b\n[...]", false),
        ("a\n[...]\nb\nd", false),
    ] {
        assert_eq!(is_shown(shown, printed), is_true, "{shown}");
    }
}

/// The page of the server names every path and every metric of ours that the server has.
#[test]
fn the_page_of_the_server_has_its_paths_and_metrics() {
    let source = |name: &str| page(&Path::new("crates/server/src").join(name)).text;
    let names = |pattern: &str, source: &str| -> BTreeSet<String> {
        let pattern = Regex::new(pattern).unwrap();
        pattern.captures_iter(source).map(|found| found[1].replace('*', "")).collect()
    };
    let paths = names("\"(/[^\"\\s]+)\"", &source("endpoints.rs"));
    let metrics =
        names("\"(bilayer:[a-z0-9_]+)\"", &(source("metrics.rs") + &source("api/info.rs")));
    assert!(paths.len() > 30 && metrics.len() > 10, "{paths:?} {metrics:?}");
    let text = page(Path::new("docs/serving.md")).text;
    let absent = |name: &&String| !text.contains(&format!("`{name}`"));
    let absent: Vec<_> = paths.iter().chain(&metrics).filter(absent).collect();
    assert!(absent.is_empty(), "{absent:#?}");
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
