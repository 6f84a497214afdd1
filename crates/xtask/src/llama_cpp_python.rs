//! `cargo xtask llama-cpp-python`: runs llama-cpp-python's own tests on the package's drop-in for its `Llama`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{compare, python, status, venv};

pub const USAGE: &str = "\
cargo xtask llama-cpp-python [--bilayer PROGRAM] [--wheel FILE]
                              run llama-cpp-python's own tests (of its source package on PyPI) on the drop-in, all that need
                              no other weights than ours (in target/llama-cpp-python; --wheel takes a ready wheel)";

/// The version whose tests run.
const VERSION: &str = "0.3.36";

/// What the tests use beside the wheel.
const PACKAGES: &[&str] =
    &["maturin>=1.16,<2", "pytest>=8,<10", "numpy>=1.24", "scipy>=1.11", "jinja2>=3.1"];

/// The plugin that puts the drop-in in the place of llama-cpp-python.
const PLUGIN: &str = include_str!("llama_cpp_python/bilayer_peer.py");

/// Tests that are known to fail, each with the reason after a `#`.
const MISSES: &str = include_str!("llama_cpp_python/misses.txt");

/// The share of the tests that must pass.
const BAR: f64 = 0.9;

/// Fetches, installs, tests, compares.
pub fn run(args: &[String]) -> Result<()> {
    let (mut bilayer, mut wheel) = (None, None);
    for pair in args.chunks(2) {
        match pair {
            [flag, value] if flag == "--bilayer" => bilayer = Some(Path::new(value)),
            [flag, value] if flag == "--wheel" => wheel = Some(value.as_str()),
            other => bail!("{}: unknown; usage:\n{USAGE}", other.join(" ")),
        }
    }
    let bilayer = compare::program(bilayer)?;
    let folder = std::path::absolute("target/llama-cpp-python")?;
    std::fs::create_dir_all(&folder)?;
    let interpreter = venv::ready(&folder.join("venv"), PACKAGES)?;
    python::install(&interpreter, &folder, wheel, "release")?;
    let source = source(&interpreter, &folder)?;
    std::fs::write(folder.join("bilayer_peer.py"), PLUGIN)?;
    let outcomes = folder.join("outcomes.json");
    if outcomes.exists() {
        std::fs::remove_file(&outcomes)?;
    }
    let mut tests = Command::new(&interpreter);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "bilayer_peer", "tests"]);
    tests.current_dir(source).env("PYTHONPATH", &folder).env("OUTCOMES", &outcomes);
    tests.env("DEMO", std::path::absolute("crates/cli/assets/demo.gguf")?);
    if let Some(encoder) = python::encoder(&bilayer, &folder)? {
        tests.env("ENCODER", encoder);
    }
    // The exit status says only that a test failed, which is expected; the outcomes say which.
    tests.status().with_context(|| format!("{tests:?} could not be started"))?;
    let text = std::fs::read_to_string(&outcomes).context("pytest did not reach its end")?;
    let (line, is_good) = verdict(&serde_json::from_str(&text)?, &misses());
    eprintln!("{line}");
    if !is_good {
        bail!("the result is not the expected one");
    }
    Ok(())
}

/// The unpacked source package.
fn source(interpreter: &Path, folder: &Path) -> Result<PathBuf> {
    let source = folder.join(format!("llama_cpp_python-{VERSION}"));
    if !source.exists() {
        let mut pip = Command::new(interpreter);
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps"]);
        pip.args(["--no-binary", "llama-cpp-python", "--dest"]).arg(folder);
        status(pip.arg(format!("llama-cpp-python=={VERSION}")))?;
        let package = folder.join(format!("llama_cpp_python-{VERSION}.tar.gz"));
        status(Command::new("tar").arg("-xzf").arg(package).arg("-C").arg(folder))?;
    }
    Ok(source)
}

/// The names of the tests that are known to fail.
fn misses() -> Vec<&'static str> {
    let names = MISSES.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    names.filter(|name| !name.is_empty()).collect()
}

/// A line about the outcomes by test, and whether they are the expected ones and enough.
fn verdict(outcomes: &BTreeMap<String, String>, misses: &[&str]) -> (String, bool) {
    let named = |outcome: &str| {
        let found = outcomes.iter().filter(|(_, found)| *found == outcome);
        found.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
    };
    let (passed, failed, skipped) = (named("passed"), named("failed"), named("skipped"));
    let ran = passed.len() + failed.len();
    let share = passed.len() as f64 / ran.max(1) as f64;
    let line = format!(
        "{} of {ran} tests pass ({:.0} %), {} need other weights; misses: {}",
        passed.len(),
        100.0 * share,
        skipped.len(),
        failed.join(", ")
    );
    (line, failed == misses && share >= BAR)
}

#[cfg(test)]
mod tests {
    use super::{misses, verdict};

    #[test]
    fn only_the_known_misses_are_good() {
        let outcomes = |failed: usize| {
            let row = |at: usize| {
                let outcome = if at < failed { "failed" } else { "passed" };
                (format!("test_{at:02}"), outcome.to_owned())
            };
            (0..13).map(row).chain([("test_x".to_owned(), "skipped".to_owned())]).collect()
        };
        let (line, is_good) = verdict(&outcomes(1), &["test_00"]);
        assert!(is_good && line.starts_with("12 of 13 tests pass (92 %), 1 need"), "{line}");
        assert!(!verdict(&outcomes(1), &[]).1 && !verdict(&outcomes(0), &["test_00"]).1);
        assert!(!verdict(&outcomes(2), &["test_00", "test_01"]).1);
        assert!(!misses().is_empty());
    }
}
