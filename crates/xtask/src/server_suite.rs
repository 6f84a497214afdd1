//! `cargo xtask llama-server-suite`: runs llama.cpp's own tests of llama-server, unmodified, against `bilayer serve`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{compare, status, venv};

pub const USAGE: &str = "\
cargo xtask llama-server-suite [--control LLAMA_SERVER] [-- PYTEST ARGS]
                              run llama.cpp's tests of llama-server against this program, on small models made from
                              ../shared/data; --control runs another server on the same models";

/// The package whose source archive has the tests, and its version.
const VERSION: &str = "0.3.36";

/// Test files in scope. The others test images, routers, proxies, tools, LoRA and drafts of llama-server.
const FILES: &[&str] = &[
    "basic",
    "chat_completion",
    "completion",
    "ctx_shift",
    "embedding",
    "ignore_eos",
    "tokenize",
    "template",
    "rerank",
    "metrics",
    "security",
    "compat_anthropic",
    "compat_oai_responses",
    "slot_save",
    "infill",
    "kv_keep_only_active",
    "tool_call",
];

/// Tests that are not meant to pass, each with its reason.
const MISSES: &str = include_str!("server_suite/misses.txt");

/// What makes the tests find our program and models.
const SHIM: &str = include_str!("server_suite/shim.py");
const PLUGIN: &str = include_str!("server_suite/bilayer_plugin.py");
const SETUP: &str = include_str!("server_suite/setup.py");

/// Runs the suite and compares its failures with the list of known ones.
pub fn run(args: &[String]) -> Result<()> {
    let (own, pytest) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &args[..0]),
    };
    let control = match own {
        [] => None,
        [flag, path] if flag == "--control" => Some(PathBuf::from(path)),
        _ => bail!("{USAGE}"),
    };
    let bilayer = compare::build()?;
    let folder = Path::new("target/llama-server-suite");
    std::fs::create_dir_all(folder)?;
    let folder = folder.canonicalize()?;
    for (name, text) in [("shim.py", SHIM), ("bilayer_plugin.py", PLUGIN), ("setup.py", SETUP)] {
        std::fs::write(folder.join(name), text)?;
    }
    let python = venv::ready(&folder.join("venv"), &[])?;
    let shared = Path::new("../shared/data");
    if !shared.exists() {
        bail!("../shared/data is not there: the tests need its small models");
    }
    status(
        Command::new(&python)
            .arg(folder.join("setup.py"))
            .args([folder.as_os_str(), bilayer.as_os_str(), shared.canonicalize()?.as_os_str()])
            .arg(VERSION),
    )?;
    let tests = std::fs::read_to_string(folder.join("tests.path"))?;
    let files = FILES.iter().map(|name| format!("unit/test_{name}.py"));
    let report = folder.join("report.txt");
    let mut run = Command::new(&python);
    run.current_dir(tests.trim()).args(["-m", "pytest", "-p", "bilayer_plugin", "-q", "-n", "1"]);
    run.args(["-m", "not slow", "--timeout", "60", "--tb", "short"]).args(files).args(pytest);
    run.env("PYTHONPATH", format!("{}:.", folder.display())).env("BILAYER_REPORT", &report);
    run.env("LLAMA_SERVER_BIN_PATH", folder.join("shim.py")).env("XDG_RUNTIME_DIR", &folder);
    run.env("BILAYER", control.as_deref().unwrap_or(&bilayer)).env("MODELS", folder.join("models"));
    run.env("IS_CONTROL", if control.is_some() { "1" } else { "" });
    // Failures are judged below, by the list.
    let _ = run.status().context("pytest could not be started")?;
    let found = outcomes(&std::fs::read_to_string(&report)?);
    let (text, new) = verdict(&found, &misses(MISSES));
    std::io::stdout().write_all(text.as_bytes())?;
    match (found.is_empty(), new) {
        (true, _) => bail!("no test ran"),
        // What another server misses is a finding, not a failure.
        (false, 1..) if control.is_none() => bail!("{new} failures are not on the list"),
        _ => Ok(()),
    }
}

/// Outcomes by test: `passed`, `failed` or `skipped`.
fn outcomes(report: &str) -> BTreeMap<String, String> {
    let pairs = report.lines().filter_map(|line| line.split_once('\t'));
    pairs.map(|(outcome, test)| (test.to_owned(), outcome.to_owned())).collect()
}

/// Parts of test names with reasons: `PART: REASON`, a line each.
fn misses(list: &str) -> Vec<(&str, &str)> {
    list.lines().filter_map(|line| line.split_once(": ")).collect()
}

/// The summary, and the number of failures that are not on the list.
fn verdict(found: &BTreeMap<String, String>, misses: &[(&str, &str)]) -> (String, usize) {
    let count = |outcome: &str| found.values().filter(|found| *found == outcome).count();
    let (passed, failed) = (count("passed"), count("failed"));
    let mut text = format!("{passed} passed, {failed} failed, {} skipped\n", count("skipped"));
    let mut new = 0;
    for (test, _) in found.iter().filter(|(_, outcome)| *outcome == "failed") {
        match misses.iter().find(|(part, _)| test.contains(part)) {
            Some((_, reason)) => text += &format!("known: {test}: {reason}\n"),
            None => {
                text += &format!("new: {test}\n");
                new += 1;
            }
        }
    }
    (text, new)
}

#[cfg(test)]
mod tests {
    use super::{MISSES, misses, outcomes, verdict};

    #[test]
    fn failures_are_known_or_new() {
        let report =
            "passed\tunit/a.py::one\nfailed\tunit/a.py::two[x]\nfailed\tunit/b.py::three\n";
        let found = outcomes(report);
        let (text, new) = verdict(&found, &misses("a.py::two: images\n"));
        assert!(text.starts_with("1 passed, 2 failed, 0 skipped\n"), "{text}");
        assert!(
            text.contains("known: unit/a.py::two[x]: images") && text.contains("new: unit/b.py")
        );
        assert_eq!(new, 1);
        assert_eq!(verdict(&found, &misses("two: a\nthree: b\n")).1, 0);
    }

    #[test]
    fn every_known_failure_has_a_reason() {
        assert!(misses(MISSES).len() > 5);
        for line in MISSES.lines() {
            assert!(line.split_once(": ").is_some_and(|(_, reason)| reason.len() > 10), "{line}");
        }
    }
}
