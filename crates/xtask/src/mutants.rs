//! `cargo xtask mutants`: changes of the code that some test should notice, by cargo-mutants.
//!
//! The tests of a part's own crate run first, since they are built in seconds. What they do not notice is tried again with
//! the files of `tests/` that hold the part's promises, for which everything above the crate is built.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::record::Record;
use crate::tools::{self, Tool};

pub const USAGE: &str = "\
cargo xtask mutants PART [--share N]          each Nth mutant (1) of gguf, quant, text, scheduler, requests or cache";

const TOOL: Tool = Tool { name: "cargo-mutants", version: "27.1.0" };

/// A part of the code.
struct Part {
    name: &'static str,
    package: &'static str,
    files: &'static str,
    /// Files of `tests/` that hold its promises.
    suite: &'static [&'static str],
}

const PARTS: &[Part] = &[
    Part {
        name: "gguf",
        package: "bilayer-gguf",
        files: "crates/gguf/src/**/*.rs",
        suite: &["gguf", "faults"],
    },
    Part {
        name: "quant",
        package: "bilayer-quant",
        files: "crates/quant/src/*.rs",
        suite: &["quant", "quantize"],
    },
    Part {
        name: "text",
        package: "bilayer-text",
        files: "crates/text/src/**/*.rs",
        suite: &["text", "reply"],
    },
    Part {
        name: "scheduler",
        package: "bilayer-scheduler",
        files: "crates/scheduler/src/**/*.rs",
        suite: &["plans", "simulated", "streaming"],
    },
    Part {
        name: "requests",
        package: "bilayer-engine",
        files: "crates/engine/src/requests/**/*.rs",
        suite: &["requests", "server"],
    },
    Part {
        name: "cache",
        package: "bilayer-engine",
        files: "crates/engine/src/session/c*.rs",
        suite: &["engine", "hybrid", "recurrent"],
    },
];

/// Share of mutants that may survive.
const SURVIVORS_MAX: f64 = 0.1;

/// Runs mutants of a part, and records how many survived.
pub fn run(args: &[String]) -> Result<()> {
    let (name, share) = match args {
        [name] => (name, 1),
        [name, flag, share] if flag == "--share" => {
            (name, share.parse::<u64>().context("--share needs a number")?)
        }
        _ => bail!("which part?\n{USAGE}"),
    };
    let part = PARTS.iter().find(|part| part.name == name);
    let part = part.with_context(|| format!("no part `{name}`\n{USAGE}"))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = std::path::absolute(Path::new(&target).join("mutants"))?;
    // Copies of the tree are made here, and find the shared data beside them as the tree does.
    std::fs::create_dir_all(&folder)?;
    #[cfg(unix)]
    if let (Ok(shared), link) = (std::fs::canonicalize("../shared"), folder.join("shared"))
        && !link.exists()
    {
        std::os::unix::fs::symlink(shared, link)?;
    }
    let out = folder.join(name);
    let mutants = || -> Result<Command> {
        let mut command = Command::new(tools::ready(&TOOL)?);
        command.args(["mutants", "--package", part.package, "--file", part.files]);
        command.args(["--shard", &format!("0/{share}"), "--sharding", "round-robin"]);
        command.args(["--gitignore", "true", "--no-times", "--output"]).arg(&out);
        command.env("TMPDIR", &folder).env("CARGO_TARGET_DIR", folder.join("target"));
        Ok(command)
    };
    if out.exists() {
        std::fs::remove_dir_all(&out)?;
    }
    // Mutants that survive are a result, too.
    let _ = mutants()?.status().context("cargo-mutants could not be started")?;
    let by_crate = Counts::of(&out.join("mutants.out"))?;
    let mut by_suite = Counts::default();
    if by_crate.survived > 0 {
        let tests = part.suite.iter().flat_map(|test| ["--test", test]);
        let mut again = mutants()?;
        again.args(["--iterate", "--test-package", "bilayer", "--"]).args(tests);
        let _ = again.status().context("cargo-mutants could not be started")?;
        by_suite = Counts::of(&out.join("mutants.out"))?;
    }
    let tried = by_crate.noticed + by_crate.survived;
    if tried == 0 {
        bail!("there is no mutant in a share of one in {share}");
    }
    let survivors = 100.0 * by_suite.survived as f64 / tried as f64;
    eprintln!("xtask: {name}: {} of {tried} survived; {}", by_suite.survived, out.display());
    let note = format!(
        "each {share}. mutant; the crate's own tests notice {}, {} of tests/ {} more; {survivors:.1} % survived, at most \
         {:.0} % may",
        by_crate.noticed,
        part.suite.join(", "),
        by_suite.noticed,
        100.0 * SURVIVORS_MAX
    );
    let record = Record::new("mutants", name, tried as f64, "mutants")?;
    record.failed(by_suite.survived).note(note).append()
}

/// Mutants of a run.
#[derive(Default)]
struct Counts {
    /// By a test, or by its taking too long.
    noticed: u64,
    survived: u64,
}

impl Counts {
    fn of(folder: &Path) -> Result<Counts> {
        let path = folder.join("outcomes.json");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let outcomes: Value = serde_json::from_str(&text)?;
        let of = |summary: &str| {
            let all = outcomes["outcomes"].as_array().into_iter().flatten();
            all.filter(|outcome| outcome["summary"] == summary).count() as u64
        };
        Ok(Counts { noticed: of("CaughtMutant") + of("Timeout"), survived: of("MissedMutant") })
    }
}
