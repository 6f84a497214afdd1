//! `cargo xtask mutants`: changes of the code that some test should notice, by cargo-mutants.
//!
//! The tests of a part's own crate run first, since they are built in seconds. If more mutants survive them than may, these
//! are tried again with the files of `tests/` that hold the part's promises, for which everything above the crate is built.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::record::Record;
use crate::target_folder;
use crate::tools::{self, Tool};

pub const USAGE: &str = "\
cargo xtask mutants PART [--share N]          each Nth mutant (1) of files, gguf, quant, text, scheduler, requests or cache";

const TOOL: Tool = Tool { name: "cargo-mutants", version: "27.1.0" };

/// A part of the code.
struct MutantPart {
    name: &'static str,
    package: &'static str,
    files: &'static str,
    /// Files of `tests/` that hold its promises.
    suite: &'static [&'static str],
}

const PARTS: &[MutantPart] = &[
    MutantPart {
        name: "files",
        package: "bilayer-files",
        files: "crates/files/src/**/*.rs",
        suite: &["faults", "hub"],
    },
    MutantPart {
        name: "gguf",
        package: "bilayer-gguf",
        files: "crates/gguf/src/**/*.rs",
        suite: &["faults", "convert"],
    },
    MutantPart {
        name: "quant",
        package: "bilayer-quant",
        files: "crates/quant/src/*.rs",
        suite: &["quantize", "kernels"],
    },
    MutantPart {
        name: "text",
        package: "bilayer-text",
        files: "crates/text/src/**/*.rs",
        suite: &["text", "reliability"],
    },
    MutantPart {
        name: "scheduler",
        package: "bilayer-scheduler",
        files: "crates/scheduler/src/**/*.rs",
        suite: &["plans", "simulated", "streaming"],
    },
    MutantPart {
        name: "requests",
        package: "bilayer-engine",
        files: "crates/engine/src/requests/**/*.rs",
        suite: &["server"],
    },
    MutantPart {
        name: "cache",
        package: "bilayer-engine",
        files: "crates/engine/src/session/c*.rs",
        suite: &["engine", "hybrid", "recurrent", "reliability"],
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
    let trial = Trial::ready(part)?;
    let (noticed, by_crate) = trial.by_crate(share)?;
    let tried = noticed + by_crate.len();
    if tried == 0 {
        bail!("there is no mutant in a share of one in {share}");
    }
    let (left, suite) = if is_too_many(by_crate.len(), tried) {
        let left = trial.by_suite(&by_crate)?;
        let more = by_crate.len() - left.len();
        (left, format!("{} of tests/ {more} more", part.suite.join(", ")))
    } else {
        (by_crate, "others were not needed".to_owned())
    };
    eprintln!("xtask: {name}: {} of {tried} survived; {}", left.len(), trial.out.display());
    for survivor in &left {
        eprintln!("  {survivor}");
    }
    let note = format!(
        "each {share}. mutant; the crate's own tests notice {noticed}, {suite}; {:.1} % survived, at most {:.0} % may",
        100.0 * left.len() as f64 / tried as f64,
        100.0 * SURVIVORS_MAX
    );
    let record = Record::new("mutants", name, tried as f64, "mutants")?;
    record.failed(left.len() as u64).note(note).append()?;
    if is_too_many(left.len(), tried) {
        bail!("{name}: {} of {tried} mutants survived", left.len());
    }
    Ok(())
}

/// Whether more mutants survived than may.
fn is_too_many(left: usize, tried: usize) -> bool {
    left as f64 > SURVIVORS_MAX * tried as f64
}

/// The mutants of a part, and where they are tried.
struct Trial {
    part: &'static MutantPart,
    /// The folder of the copies of the tree, and of what is built.
    folder: PathBuf,
    /// The folder of what comes out.
    out: PathBuf,
}

impl Trial {
    fn ready(part: &'static MutantPart) -> Result<Trial> {
        let folder = target_folder()?.join("mutants");
        std::fs::create_dir_all(&folder)?;
        // The copies find the shared data beside them, as the tree does.
        #[cfg(unix)]
        if let (Ok(shared), link) = (std::fs::canonicalize("../shared"), folder.join("shared"))
            && !link.exists()
        {
            std::os::unix::fs::symlink(shared, link)?;
        }
        let out = folder.join(part.name);
        if out.exists() {
            std::fs::remove_dir_all(&out)?;
        }
        Ok(Trial { part, folder, out })
    }

    /// cargo-mutants for the part's package.
    fn command(&self) -> Result<Command> {
        let mut mutants = Command::new(tools::ready(&TOOL)?);
        mutants.args(["mutants", "--package", self.part.package]);
        mutants.args(["--gitignore", "true", "--no-times", "--output"]).arg(&self.out);
        mutants.env("TMPDIR", &self.folder).env("CARGO_TARGET_DIR", self.folder.join("target"));
        Ok(mutants)
    }

    /// Tries each `share`th mutant with the crate's tests: how many these notice, and the others.
    fn by_crate(&self, share: u64) -> Result<(usize, BTreeSet<String>)> {
        let mut mutants = self.command()?;
        mutants.args(["--file", self.part.files]);
        mutants.args(["--shard", &format!("0/{share}"), "--sharding", "round-robin"]);
        finish(&mut mutants)?;
        let found = self.out.join("mutants.out");
        Ok((noticed(&found)?, survivors(&found)?))
    }

    /// Tries some mutants with the suite's files: those that these do not notice either.
    fn by_suite(&self, some: &BTreeSet<String>) -> Result<BTreeSet<String>> {
        let mut mutants = self.command()?;
        // Regular expressions do not choose among fields that are left out; files do.
        let files: BTreeSet<&str> = some.iter().filter_map(|name| name.split(':').next()).collect();
        mutants.args(files.iter().flat_map(|file| ["--file", file]));
        for name in some {
            mutants.args(["--re", &format!("^{}$", regex::escape(name))]);
        }
        mutants.args(["--", "--package", "bilayer"]);
        mutants.args(self.part.suite.iter().flat_map(|test| ["--test", test]));
        finish(&mut mutants)?;
        let left = survivors(&self.out.join("mutants.out"))?;
        Ok(left.intersection(some).cloned().collect())
    }
}

/// Waits for cargo-mutants. Mutants that survive or take too long are results, tests that fail without a change are not.
fn finish(mutants: &mut Command) -> Result<()> {
    let status = mutants.status().context("cargo-mutants could not be started")?;
    match status.code() {
        Some(0 | 2 | 3) => Ok(()),
        _ => bail!("cargo-mutants ended early: {status}"),
    }
}

/// How many mutants of a run a test noticed, or took too long for.
fn noticed(folder: &Path) -> Result<usize> {
    let path = folder.join("outcomes.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let outcomes: Value = serde_json::from_str(&text)?;
    let all = outcomes["outcomes"].as_array().into_iter().flatten();
    let noticed = all
        .filter(|outcome| outcome["summary"] == "CaughtMutant" || outcome["summary"] == "Timeout");
    Ok(noticed.count())
}

/// The mutants of a run that no test noticed.
fn survivors(folder: &Path) -> Result<BTreeSet<String>> {
    let path = folder.join("missed.txt");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::PARTS;

    #[test]
    fn the_files_of_a_part_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for part in PARTS {
            for test in part.suite {
                let paths = [format!("tests/{test}.rs"), format!("tests/{test}/main.rs")];
                assert!(paths.iter().any(|path| root.join(path).exists()), "{}: {test}", part.name);
            }
            let folder = part.files.split('*').next().unwrap_or_default();
            let folder = root.join(folder).parent().map(Path::to_owned).unwrap_or_default();
            assert!(folder.is_dir(), "{}: {}", part.name, folder.display());
        }
    }
}
