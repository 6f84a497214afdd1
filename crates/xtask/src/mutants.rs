//! `cargo xtask mutants`: changes of the code that some test should notice, by cargo-mutants.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::record::Record;
use crate::tools::{self, Tool};

pub const USAGE: &str = "\
cargo xtask mutants PART [--minutes N]        mutants of gguf, quant, text, scheduler, requests or cache";

const TOOL: Tool = Tool { name: "cargo-mutants", version: "27.1.0" };

/// A part of the code: its name, its crate, its files.
const PARTS: &[(&str, &str, &str)] = &[
    ("gguf", "bilayer-gguf", "crates/gguf/src/**/*.rs"),
    ("quant", "bilayer-quant", "crates/quant/src/*.rs"),
    ("text", "bilayer-text", "crates/text/src/**/*.rs"),
    ("scheduler", "bilayer-scheduler", "crates/scheduler/src/**/*.rs"),
    ("requests", "bilayer-engine", "crates/engine/src/requests/**/*.rs"),
    ("cache", "bilayer-engine", "crates/engine/src/session/c*.rs"),
];

/// Share of mutants that may survive.
const SURVIVORS_MAX: f64 = 0.1;

/// Runs the mutants of a part until the time is over, and records how many survived.
pub fn run(args: &[String]) -> Result<()> {
    let (part, minutes) = match args {
        [part] => (part, 600.0),
        [part, flag, minutes] if flag == "--minutes" => {
            (part, minutes.parse::<f64>().context("--minutes needs a number")?)
        }
        _ => bail!("which part?\n{USAGE}"),
    };
    let known = PARTS.iter().find(|(name, ..)| name == part);
    let (name, package, files) = known.with_context(|| format!("no part `{part}`\n{USAGE}"))?;
    let out = std::env::temp_dir().join(format!("bilayer-mutants-{name}"));
    let seconds = format!("{:.0}s", 60.0 * minutes);
    // In an order of chance, so that a run that ends early has seen all files.
    let mut mutants = Command::new("timeout");
    mutants.args(["--signal=INT", &seconds]).arg(tools::ready(&TOOL)?);
    mutants.args(["mutants", "--package", package]);
    mutants.args(["--file", files, "--shuffle", "--no-times", "--output"]).arg(&out);
    // Mutants that survive, or time that is over, are results too.
    let _ = mutants.status().context("cargo-mutants could not be started")?;
    let counts = counts(&out.join("mutants.out"))?;
    let (tried, survived) = (counts[0] + counts[1], counts[1]);
    if tried == 0 {
        bail!("no mutant was tried in {minutes} minutes");
    }
    let share = survived as f64 / tried as f64;
    eprintln!("xtask: {name}: {survived} of {tried} mutants survived; {}", out.display());
    let note =
        format!("{:.1} % survived, at most {:.0} % may", 100.0 * share, 100.0 * SURVIVORS_MAX);
    Record::new("mutants", name, tried as f64, "mutants")?.failed(survived).note(note).append()
}

/// Mutants that were noticed (by a test or by a time-out), and those that were not.
fn counts(folder: &Path) -> Result<[u64; 2]> {
    let path = folder.join("outcomes.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let outcomes: Value = serde_json::from_str(&text)?;
    let of = |summary: &str| {
        let all = outcomes["outcomes"].as_array().into_iter().flatten();
        all.filter(|outcome| outcome["summary"] == summary).count() as u64
    };
    Ok([of("CaughtMutant") + of("Timeout"), of("MissedMutant")])
}
