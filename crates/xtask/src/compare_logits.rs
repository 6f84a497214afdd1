//! `cargo xtask compare-logits`: compares this program's logits of small checkpoints with llama.cpp's and with recorded ones.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{cargo, compare, output, status, target_folder};

pub const USAGE: &str = "\
cargo xtask compare-logits [--into FILE] [CHECKPOINT ...]
                              convert small checkpoints (all of ../shared/data/arch-tiny and tests/checkpoints) to F32 and
                              F16, run them here and in llama.cpp (in target/peer), and print at how many positions both
                              have the same best token; --into puts the table between the marks of a file if the bar is met";

/// The folders whose checkpoints are compared if none is named.
const FOLDERS: [&str; 2] = ["../shared/data/arch-tiny", "tests/checkpoints"];

const TYPES: [&str; 2] = ["F32", "F16"];

const SCRIPT: &str = include_str!("compare_logits/peer.py");

/// Two different best tokens are a tie if both programs have them within this part of the standard deviation of the row.
const TIE: f32 = 5e-3;

/// The share of positions that must have the same best token.
const BAR: f64 = 0.99;

/// Checkpoints that llama.cpp does not open, one a line.
const REFUSED: &str = include_str!("compare_logits/refused.txt");

const HEAD: &str = "\
| checkpoint | type | positions | same token | of which ties | largest difference | here as transformers | llama.cpp as transformers |
|---|---|---|---|---|---|---|---|
";

/// A case of a checkpoint's `reference.json`.
struct Case {
    ids: String,
    /// The best token after each, computed by transformers.
    best: Vec<usize>,
}

/// Why a checkpoint is not compared.
enum Refusal {
    /// This program does not convert it.
    Here(String),
    /// llama.cpp does not open it.
    Peer(String),
    /// llama.cpp fails otherwise.
    Stopped(String),
}

impl Refusal {
    /// Whether it is one that is expected of the checkpoint of that name.
    fn is_known(&self, name: &str) -> bool {
        matches!(self, Refusal::Peer(_)) && REFUSED.lines().any(|line| line == name)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Here(reason) => write!(f, "not converted: {reason}"),
            Refusal::Peer(reason) => write!(f, "llama.cpp: {reason}"),
            Refusal::Stopped(reason) => write!(f, "llama.cpp stops: {reason}"),
        }
    }
}

/// What both programs made of a checkpoint.
#[derive(Debug, Default, PartialEq)]
struct Agreement {
    positions: usize,
    /// Positions with the same best token, ties included.
    same: usize,
    ties: usize,
    /// The largest difference of two logits, in standard deviations of the row.
    largest: f32,
    /// Positions at which each program has the token of transformers: this program, llama.cpp.
    as_recorded: [usize; 2],
}

impl Agreement {
    /// Adds rows `[positions, vocab]` of both programs.
    fn add(&mut self, ours: &[f32], theirs: &[f32], recorded: &[usize]) -> Result<()> {
        let vocab = theirs.len() / recorded.len();
        if ours.len() != theirs.len() || vocab * recorded.len() != theirs.len() || vocab == 0 {
            bail!("{} and {} logits of {} tokens", ours.len(), theirs.len(), recorded.len());
        }
        let rows = ours.chunks_exact(vocab).zip(theirs.chunks_exact(vocab));
        for ((ours, theirs), &recorded) in rows.zip(recorded) {
            if ours.iter().chain(theirs).any(|x| !x.is_finite()) {
                bail!("a logit is not finite");
            }
            let (a, b, spread) = (best(ours), best(theirs), deviation(theirs));
            let is_near = |row: &[f32]| (row[a] - row[b]).abs() <= TIE * spread;
            let is_tie = a != b && is_near(ours) && is_near(theirs);
            let apart = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            self.positions += 1;
            self.same += usize::from(a == b || is_tie);
            self.ties += usize::from(is_tie);
            self.largest = self.largest.max(apart / spread);
            for (count, found) in self.as_recorded.iter_mut().zip([a, b]) {
                *count += usize::from(found == recorded);
            }
        }
        Ok(())
    }

    /// Whether positions were compared and the bar is met, or transformers agrees with this program where llama.cpp does not.
    fn is_good(&self) -> bool {
        let [ours, theirs] = self.as_recorded;
        let is_near = self.same as f64 >= BAR * self.positions as f64;
        self.positions > 0 && (is_near || (ours == self.positions && theirs < ours))
    }
}

fn best(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, at| if row[at] > row[best] { at } else { best })
}

fn deviation(row: &[f32]) -> f32 {
    let count = row.len() as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
    ((squares / count).sqrt() as f32).max(f32::MIN_POSITIVE)
}

/// Compares and prints.
pub fn run(args: &[String]) -> Result<()> {
    let (mut into, mut folders) = (None, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--into" => into = Some(PathBuf::from(args.next().context("--into needs a value")?)),
            flag if flag.starts_with('-') => bail!("no flag `{flag}`\n{USAGE}"),
            folder => folders.push(PathBuf::from(folder)),
        }
    }
    if let Some(file) = &into {
        // Fails before measuring if the file has no marks.
        crate::rewrite(file, "compare-logits", str::to_owned)?;
    }
    if folders.is_empty() {
        folders = checkpoints()?;
    }
    let work = Work::ready()?;
    let (mut table, mut compared, mut bad) = (HEAD.to_owned(), 0, Vec::new());
    for folder in &folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let Some(cases) = cases(folder)? else {
            eprintln!("xtask: {name} is no decoder with recorded tokens");
            continue;
        };
        for ty in TYPES {
            eprintln!("xtask: {name} in {ty}");
            match work.compare(folder, ty, &cases)? {
                Ok(found) => {
                    compared += 1;
                    writeln!(table, "| {name} | {ty} | {}", row(&found))?;
                    if !found.is_good() {
                        bad.push(format!("{name} in {ty}"));
                    }
                }
                Err(refusal) => {
                    writeln!(table, "| {name} | | {refusal} | | | | | |")?;
                    if !refusal.is_known(&name) {
                        bad.push(format!("{name}, which has no logits ({refusal})"));
                    }
                    break;
                }
            }
        }
    }
    crate::say(table.trim_end())?;
    verdict(compared, &bad)?;
    if let Some(file) = &into {
        crate::rewrite(file, "compare-logits", |_| table)?;
    }
    Ok(())
}

/// # Errors
/// Some checkpoints are `bad`, or none was `compared`.
fn verdict(compared: usize, bad: &[String]) -> Result<()> {
    if !bad.is_empty() {
        bail!("below {BAR} of the positions, or not compared: {}", bad.join(", "));
    }
    if compared == 0 {
        bail!("no checkpoint was compared");
    }
    Ok(())
}

/// All folders with a checkpoint, by name.
fn checkpoints() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        let entries = std::fs::read_dir(folder).with_context(|| folder.to_owned())?;
        for entry in entries {
            found.push(entry?.path());
        }
    }
    found.retain(|path| path.join("config.json").is_file());
    found.sort();
    Ok(found)
}

/// The recorded cases of a decoder; `None` of other models.
fn cases(folder: &Path) -> Result<Option<Vec<Case>>> {
    let path = folder.join("reference.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let reference: Value = serde_json::from_str(&text)?;
    let numbers = |list: &Value| -> Option<Vec<usize>> {
        list.as_array()?.iter().map(|number| Some(number.as_u64()? as usize)).collect()
    };
    let case = |case: &Value| {
        let ids: Vec<String> = numbers(&case["ids"])?.iter().map(usize::to_string).collect();
        Some(Case { ids: ids.join(","), best: numbers(&case["argmax_each"])? })
    };
    Ok(reference["cases"].as_array().context("no cases")?.iter().map(case).collect())
}

/// The end of a row of the table.
fn row(found: &Agreement) -> String {
    let Agreement { positions, same, ties, largest, as_recorded: [ours, theirs] } = found;
    format!("{positions} | {same} | {ties} | {largest:.1e} | {ours} | {theirs} |")
}

/// The programs and the folder of their files.
struct Work {
    folder: PathBuf,
    bilayer: PathBuf,
    ours: PathBuf,
    python: PathBuf,
    script: PathBuf,
}

impl Work {
    fn ready() -> Result<Work> {
        let built = ["build", "--locked", "--bin", "bilayer", "--example", "logits_of_ids"];
        status(cargo().args(built))?;
        let target = target_folder()?;
        let folder = target.join("compare-logits");
        std::fs::create_dir_all(&folder)?;
        let script = folder.join("peer.py");
        std::fs::write(&script, SCRIPT)?;
        Ok(Work {
            folder,
            bilayer: target.join("debug/bilayer"),
            ours: target.join("debug/examples/logits_of_ids"),
            python: compare::llama_cpp()?,
            script,
        })
    }

    /// Converts a checkpoint and runs its cases in both programs. The inner error is what the table says of a checkpoint
    /// that one of them refuses.
    fn compare(
        &self,
        folder: &Path,
        ty: &str,
        cases: &[Case],
    ) -> Result<Result<Agreement, Refusal>> {
        let model = self.folder.join("model.gguf");
        let mut convert = Command::new(&self.bilayer);
        convert.arg("convert").arg(folder).args(["--no-vocab", "--quiet", "--outtype", ty]);
        if let Err(error) = output(convert.arg("--outfile").arg(&model)) {
            return Ok(Err(Refusal::Here(last_line(&error.to_string()))));
        }
        let rows = |who: &str, at: usize| self.folder.join(format!("{who}-{at}.f32"));
        let mut peer = Command::new(&self.python);
        peer.arg(&self.script).arg(&model);
        for (at, case) in cases.iter().enumerate() {
            peer.arg(&case.ids).arg(rows("peer", at));
            output(Command::new(&self.ours).arg(&model).arg(&case.ids).arg(rows("ours", at)))?;
        }
        let ran = peer.output().context("python could not be started")?;
        let said = String::from_utf8_lossy(&ran.stderr);
        match ran.status.code() {
            Some(0) => {}
            Some(3) => return Ok(Err(Refusal::Peer(last_line(&said)))),
            _ => return Ok(Err(Refusal::Stopped(last_line(&said)))),
        }
        let mut found = Agreement::default();
        for (at, case) in cases.iter().enumerate() {
            found.add(&floats(&rows("ours", at))?, &floats(&rows("peer", at))?, &case.best)?;
        }
        Ok(Ok(found))
    }
}

/// What follows the last colon but one in the last line of a message, as a cell of a table.
fn last_line(text: &str) -> String {
    let line = text.trim().lines().last().unwrap_or("no reason given").replace('|', "/");
    let parts: Vec<&str> = line.split(": ").collect();
    parts[parts.len().saturating_sub(2)..].join(": ")
}

fn floats(path: &Path) -> Result<Vec<f32>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let (numbers, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        bail!("{}: not a whole number of floats", path.display());
    }
    Ok(numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::{Agreement, Refusal, verdict};

    #[test]
    fn only_refusals_of_llama_cpp_that_are_listed_are_no_fault() {
        let peer = Refusal::Peer("key not found".to_owned());
        assert!(peer.is_known("options-gemma") && !peer.is_known("options-llama"));
        for other in [Refusal::Here, Refusal::Stopped] {
            assert!(!other("no tensor".to_owned()).is_known("options-gemma"));
        }
        assert_eq!(peer.to_string(), "llama.cpp: key not found");
    }

    #[test]
    fn a_run_that_compares_nothing_fails() {
        assert!(verdict(1, &[]).is_ok() && verdict(0, &[]).is_err());
        assert!(verdict(1, &["options-llama in F16".to_owned()]).is_err());
        assert!(!Agreement::default().is_good());
    }

    #[test]
    fn a_tie_must_be_near_in_both_programs() {
        let mut found = Agreement::default();
        let ours = [1.0, 3.0, -2.0, 3.001, 3.0, -2.0, 3.001, 3.0, -2.0];
        let theirs = [1.0, 3.0, -2.0, 3.0, 3.001, -2.0, 2.0, 3.0, -2.0];
        found.add(&ours, &theirs, &[1, 1, 1]).unwrap();
        assert_eq!((found.positions, found.same, found.ties), (3, 2, 1));
        assert_eq!(found.as_recorded, [1, 3]);
        assert!(found.largest > 0.4 && found.largest < 0.5 && !found.is_good(), "{found:?}");
        assert!(found.add(&ours, &theirs[..6], &[1, 1, 1]).is_err());
        assert!(found.add(&[f32::NAN], &[0.0], &[0]).is_err());
    }

    #[test]
    fn a_difference_from_llama_cpp_is_no_fault_where_transformers_agrees_with_us() {
        let found =
            |as_recorded| Agreement { positions: 10, same: 5, as_recorded, ..Agreement::default() };
        assert!(
            found([10, 5]).is_good() && !found([9, 10]).is_good() && !found([10, 10]).is_good()
        );
        assert!(Agreement { same: 10, ..found([0, 0]) }.is_good());
    }
}
