//! `cargo xtask agreement`: whether this program, the Python package gguf and llama.cpp open the same changed model files.
//!
//! The directory as this program reads it is compared with gguf, which reads no more; configuration, vocabulary and graph with
//! llama.cpp, which loads the whole file. Every difference must have a cause of the table.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::record::Record;
use crate::{compare, output, target_folder, test_program, venv};

mod causes;

use causes::{Cause, Difference};

pub const USAGE: &str = "\
cargo xtask agreement [--mutations N] [--seed N]
                              have gguf-py and llama.cpp (in target/peer) open N (10000) changed small model files, compare with
                              this program, and record how many differ by which cause; a difference without one fails";

/// The Python package.
const GGUF: &str = "gguf==0.19.0";

const SCRIPT: &str = include_str!("agreement/peers.py");

/// Files that are on disk at a time.
const CHUNK: usize = 500;

/// What this program and another say of a file: `good`, or why not.
#[derive(Debug)]
struct Mutant {
    number: usize,
    architecture: String,
    what: String,
    directory: String,
    model: String,
    gguf: Verdict,
    llama: Verdict,
}

/// Another reader's answer.
#[derive(Debug, Default)]
struct Verdict {
    /// `good`, `bad`, `crash` or `slow`.
    word: String,
    reason: String,
}

impl Verdict {
    fn is_good(&self) -> bool {
        self.word == "good"
    }
}

/// What is counted.
#[derive(Debug, Default)]
struct Counts {
    files: usize,
    same_directory: usize,
    same_model: usize,
    /// Files that only this program opens, and that only this program refuses.
    alone: [usize; 2],
    by_cause: BTreeMap<&'static str, usize>,
    crashes: BTreeMap<&'static str, usize>,
    unexplained: Vec<String>,
}

impl Counts {
    fn add(&mut self, mutant: &Mutant) {
        let [directory, model] = [&mutant.directory, &mutant.model].map(|said| said == "good");
        let (gguf, llama) = (mutant.gguf.is_good(), mutant.llama.is_good());
        self.files += 1;
        self.same_directory += usize::from(directory == gguf);
        self.same_model += usize::from(model == llama);
        self.alone[0] += usize::from(model && !gguf && !llama);
        self.alone[1] += usize::from(!model && gguf && llama);
        for (name, verdict) in [("gguf", &mutant.gguf), ("llama.cpp", &mutant.llama)] {
            let ended = ["crash", "slow"].contains(&verdict.word.as_str());
            *self.crashes.entry(name).or_default() += usize::from(ended);
        }
        let ours = if directory { &mutant.model } else { &mutant.directory };
        if directory != gguf {
            let reason = if gguf { &mutant.directory } else { &mutant.gguf.reason };
            self.explain(
                mutant,
                if gguf { Difference::Refused } else { Difference::OnlyHere },
                reason,
            );
        }
        // A directory that is refused is counted once.
        if model != llama && (directory || !gguf) {
            let reason = if llama { ours } else { &mutant.llama.reason };
            self.explain(
                mutant,
                if llama { Difference::Refused } else { Difference::OnlyHere },
                reason,
            );
        }
    }

    fn explain(&mut self, mutant: &Mutant, difference: Difference, reason: &str) {
        match causes::of(difference, reason) {
            Some(Cause { why, .. }) => *self.by_cause.entry(why).or_default() += 1,
            None => self.unexplained.push(format!(
                "{}.gguf ({}, {}): {difference:?}: {reason}",
                mutant.number, mutant.architecture, mutant.what
            )),
        }
    }

    /// Records every count, also of causes that no file had.
    fn record(&self, note: &str) -> Result<()> {
        let append = |name: &str, count: usize, failed: usize| {
            Record::new("agreement", name, count as f64, "files")?
                .failed(failed as u64)
                .note(note)
                .append()
        };
        append("all", self.files, self.unexplained.len())?;
        append("all: directory as in gguf", self.same_directory, 0)?;
        append("all: model as in llama.cpp", self.same_model, 0)?;
        append("all: opened by this program alone", self.alone[0], 0)?;
        append("all: refused by this program alone", self.alone[1], 0)?;
        for (name, count) in &self.crashes {
            append(&format!("all: end {name}'s process or take 10 s"), *count, 0)?;
        }
        for (difference, why) in causes::names() {
            let count = self.by_cause.get(why).copied().unwrap_or(0);
            append(&format!("{}: {why}", difference.heading()), count, 0)?;
        }
        Ok(())
    }
}

/// Compares, prints and records.
pub fn run(args: &[String]) -> Result<()> {
    let (mut mutations, mut seed) = (10_000, 1);
    for pair in args.chunks(2) {
        let number = || -> Result<usize> {
            let value = pair.get(1).with_context(|| format!("{} needs a number", pair[0]))?;
            value.parse().with_context(|| format!("{} needs a number", pair[0]))
        };
        match pair[0].as_str() {
            "--mutations" => mutations = number()?,
            "--seed" => seed = number()?,
            other => bail!("what is `{other}`?\n{USAGE}"),
        }
    }
    let readers = Readers::ready()?;
    let mut counts = Counts::default();
    for first in (0..mutations).step_by(CHUNK) {
        for mutant in readers.compare(first, CHUNK.min(mutations - first), seed)? {
            counts.add(&mutant);
        }
        eprintln!("xtask: {} files, {} without a cause", counts.files, counts.unexplained.len());
    }
    crate::say(&format!("{counts:#?}"))?;
    counts.record(&format!("seed {seed}"))?;
    if !counts.unexplained.is_empty() {
        bail!("{} differences have no cause in agreement/causes.rs", counts.unexplained.len());
    }
    Ok(())
}

/// The other readers, and the folder of the files.
struct Readers {
    /// The program of the test that makes files and reads them.
    test: String,
    folder: PathBuf,
    script: PathBuf,
    gguf: PathBuf,
    llama: PathBuf,
}

impl Readers {
    fn ready() -> Result<Readers> {
        let folder = target_folder()?.join("agreement");
        std::fs::create_dir_all(folder.join("files"))?;
        let script = folder.join("peers.py");
        std::fs::write(&script, SCRIPT)?;
        let gguf = venv::ready(&folder.join("venv"), &[GGUF])?;
        let llama = compare::llama_cpp()?;
        let test = test_program(&["--workspace"], "reliability")?;
        Ok(Readers { test, folder: folder.join("files"), script, gguf, llama })
    }

    /// Makes files and asks all readers.
    fn compare(&self, first: usize, count: usize, seed: usize) -> Result<Vec<Mutant>> {
        let mut test = Command::new(&self.test);
        test.args(["changed_files_for_other_readers", "--ignored", "--nocapture"]);
        test.env("BILAYER_TEST_FOLDER", &self.folder);
        test.env("BILAYER_TEST_FIRST", first.to_string());
        test.env("BILAYER_TEST_MUTATIONS", count.to_string());
        let printed = output(test.env("BILAYER_TEST_SEED", seed.to_string()))?;
        let ask = |python: &Path, reader: &str| {
            let mut peers = Command::new(python);
            peers.arg(&self.script).arg(reader).arg(&self.folder);
            peers.args([first.to_string(), count.to_string()]).stdout(Stdio::piped());
            peers.spawn().with_context(|| format!("{} could not be started", python.display()))
        };
        let asked = [ask(&self.gguf, "gguf")?, ask(&self.llama, "llama.cpp")?];
        let mut answers = Vec::new();
        for child in asked {
            let ran = child.wait_with_output()?;
            if !ran.status.success() {
                bail!("{} failed", self.script.display());
            }
            answers.push(verdicts(&String::from_utf8_lossy(&ran.stdout))?);
        }
        let ours = printed.lines().filter_map(|line| line.strip_prefix("mutant\t"));
        let mutants = ours.map(|line| mutant(line, &mut answers)).collect::<Result<Vec<_>>>()?;
        if mutants.len() != count {
            bail!("the test printed {} of {count} files", mutants.len());
        }
        for number in first..first + count {
            std::fs::remove_file(self.folder.join(format!("{number}.gguf")))?;
        }
        Ok(mutants)
    }
}

/// The answers of one reader by file.
fn verdicts(printed: &str) -> Result<BTreeMap<usize, Verdict>> {
    let read = |line: &str| {
        let mut parts = line.splitn(3, '\t').map(str::to_owned);
        let number = parts.next()?.parse().ok()?;
        Some((number, Verdict { word: parts.next()?, reason: parts.next()? }))
    };
    printed.lines().map(|line| read(line).with_context(|| format!("no answer: {line}"))).collect()
}

fn mutant(line: &str, answers: &mut [BTreeMap<usize, Verdict>]) -> Result<Mutant> {
    let parts: Vec<&str> = line.split('\t').collect();
    let &[number, architecture, what, directory, model] = &parts[..] else {
        bail!("not a line of a file: {line}");
    };
    let number = number.parse()?;
    let mut answer = |of: usize| {
        answers[of].remove(&number).with_context(|| format!("no answer for {number}.gguf"))
    };
    let [architecture, what, directory, model] =
        [architecture, what, directory, model].map(str::to_owned);
    Ok(Mutant { number, architecture, what, directory, model, gguf: answer(0)?, llama: answer(1)? })
}
