//! `cargo xtask quality-table`: measures the quality of each quantization type and mix on one model, as a table.

use std::cell::RefCell;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

pub const USAGE: &str = "\
cargo xtask quality-table [--types NAMES] [--windows 40] [-c 256] [--bilayer PROGRAM] [--write] MODEL TEXT
                              quantize the model (an F32 file, or a checkpoint's folder) to every mix, with and without
                              importance, to measured mixes of the same sizes, and to W8A8 by activations; calibrate on
                              the first half of the text, score the last tenth; --types W8A8,Q8_0 takes only these;
                              --write puts the table of all into docs/performance.md";

/// The types; those with `true` also get a measured mix of equal size.
const TYPES: &[(&str, bool)] = &[
    ("F16", false),
    ("BF16", false),
    ("Q8_0", false),
    ("W8A8", false),
    ("Q6_K", false),
    ("Q5_K_M", true),
    ("Q5_K_S", false),
    ("Q5_1", false),
    ("Q5_0", false),
    ("Q4_K_M", true),
    ("Q4_K_S", false),
    ("Q4_1", false),
    ("Q4_0", false),
    ("IQ4_NL", false),
    ("IQ4_XS", false),
    ("MXFP4", false),
    ("Q3_K_L", false),
    ("Q3_K_M", true),
    ("Q3_K_S", false),
    ("Q2_K", false),
    ("IQ3_M", false),
    ("IQ3_S", false),
    ("IQ3_XS", false),
    ("IQ3_XXS", false),
    ("IQ2_M", false),
    ("IQ2_S", false),
    ("IQ2_XS", false),
    ("IQ2_XXS", false),
    ("IQ1_M", false),
    ("IQ1_S", false),
    ("TQ2_0", false),
    ("TQ1_0", false),
    ("NVFP4", false),
];

/// Types that are made only with importance.
const WEIGHTED: &[&str] = &["IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"];

/// Types without a search in their blocks: importance changes nothing.
const UNWEIGHTED: &[&str] = &["F16", "BF16", "Q8_0", "W8A8"];

/// The type that is also made by activations, and the flags for that.
const BY_ACTIVATIONS: (&str, &[&str]) =
    ("W8A8", &["--smooth auto", "--gptq", "--smooth auto --gptq"]);

/// The inputs and outputs of a measurement.
struct Work {
    bilayer: PathBuf,
    model: PathBuf,
    folder: PathBuf,
    window: String,
    windows: String,
    types: Vec<(&'static str, bool)>,
    /// The printed lines.
    lines: RefCell<String>,
}

/// Measures and prints.
pub fn run(args: &[String]) -> Result<()> {
    let (mut windows, mut window) = ("40".to_owned(), "256".to_owned());
    let (mut bilayer, mut write, mut types) = (None, false, TYPES.to_vec());
    let mut files = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().cloned().with_context(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--windows" => windows = value()?,
            "-c" => window = value()?,
            "--types" => types = some(&value()?)?,
            "--bilayer" => bilayer = Some(PathBuf::from(value()?)),
            "--write" => write = true,
            flag if flag.starts_with('-') => bail!("no flag `{flag}`\n{USAGE}"),
            file => files.push(PathBuf::from(file)),
        }
    }
    let [model, text] = &files[..] else { bail!("a model and a text\n{USAGE}") };
    if write && types.len() < TYPES.len() {
        bail!("--write: the table is that of all types; leave out --types");
    }
    let folder = std::path::absolute("target/quality")?;
    std::fs::create_dir_all(&folder)?;
    let bilayer = super::compare::program(bilayer.as_deref())?;
    let (model, lines) = (model.clone(), RefCell::default());
    let mut work = Work { bilayer, model, folder, window, windows, types, lines };
    if work.model.is_dir() {
        work.model = work.converted()?;
    }
    work.split(text)?;
    work.table()?;
    if write {
        crate::rewrite(Path::new(crate::PERFORMANCE), "quality-table", |_| work.lines.take())?;
    }
    Ok(())
}

/// The types of a list of names, in the order of the table.
fn some(names: &str) -> Result<Vec<(&'static str, bool)>> {
    let names: Vec<&str> = names.split(',').collect();
    let is_known = |name: &&&str| TYPES.iter().any(|(known, _)| known == *name);
    if let Some(unknown) = names.iter().find(|name| !is_known(name)) {
        let all: Vec<&str> = TYPES.iter().map(|(name, _)| *name).collect();
        bail!("--types {unknown}: not one of {}", all.join(", "));
    }
    Ok(TYPES.iter().copied().filter(|(name, _)| names.contains(name)).collect())
}

impl Work {
    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Converts the checkpoint losslessly.
    fn converted(&self) -> Result<PathBuf> {
        let (from, to) = (self.model.display().to_string(), self.file("model-f32.gguf"));
        self.json(&["convert", &from, "--outfile", &to, "--outtype", "f32"])?;
        Ok(PathBuf::from(to))
    }

    /// Runs the program and parses its JSON output.
    fn json(&self, arguments: &[&str]) -> Result<Value> {
        let output = Command::new(&self.bilayer).args(arguments).arg("--json").output()?;
        if !output.status.success() {
            bail!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).with_context(|| format!("{arguments:?}"))
    }

    /// Splits the text: the first half for calibration, the last tenth for scoring.
    fn split(&self, text: &Path) -> Result<()> {
        let text = std::fs::read_to_string(text).context("the text")?;
        let at = |place: usize| (place..=text.len()).find(|&place| text.is_char_boundary(place));
        let half = at(text.len() / 2).unwrap_or_default();
        let tenth = at(text.len() / 10 * 9).unwrap_or_default();
        std::fs::write(self.file("calibration.txt"), &text[..half])?;
        std::fs::write(self.file("test.txt"), &text[tenth..])?;
        Ok(())
    }

    fn table(&self) -> Result<()> {
        let (model, imatrix) = (self.model.display().to_string(), self.file("imatrix.gguf"));
        let (calibration, test) = (self.file("calibration.txt"), self.file("test.txt"));
        let base = self.file("base.kld");
        let text = ["-c", &self.window, "--chunks", &self.windows, "-ngl", "0"];
        let with = |first: &[&str], more: &[&str]| -> Vec<String> {
            first.iter().chain(more).map(|&part| part.to_owned()).collect()
        };
        let go = |arguments: Vec<String>| {
            self.json(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
        };
        go(with(
            &["imatrix"],
            &[&["-m", &model, "-f", &calibration, "-o", &imatrix], &text[..]].concat(),
        ))?;
        let scored = go(with(
            &["perplexity"],
            &[&["-m", &model, "-f", &test, "--kl-base", &base], &text[..]].concat(),
        ))?;
        self.say(
            "| type | importance | bits a weight | MB | perplexity | KL, mean | KL, p99 | same best token, % |",
        )?;
        self.say("|---|---|---|---|---|---|---|---|")?;
        let bytes = std::fs::metadata(&self.model)?.len();
        let perplexity = scored["perplexity"].as_f64().unwrap_or_default();
        self.say(&format!(
            "| F32 | | 32.00 | {:.2} | {perplexity:.4} | 0 | 0 | 100 |",
            bytes as f64 / 1e6
        ))?;
        let on_text = ["--calibration", &calibration, "-c", &self.window];
        for &(ty, measured) in &self.types {
            for importance in ["", "yes"] {
                if importance.is_empty() && WEIGHTED.contains(&ty) {
                    continue;
                }
                let both = ["--imatrix", imatrix.as_str()];
                let weighted = if importance == "yes" { &both[..] } else { &[] };
                let made = self.quantized(&[&[ty], weighted].concat())?;
                let before = self.row(ty, importance, &made)?;
                if measured {
                    let target = format!("{:.6}", made["bpw"].as_f64().context("bpw")?);
                    let asked = [&["--target-bpw", &target], &on_text[..], weighted].concat();
                    let made = self.quantized(&asked)?;
                    let name = format!("`--target-bpw`, size of {ty}");
                    let after = self.row(&name, importance, &made)?;
                    eprintln!("{ty} {importance}: KL {before:.5} -> {after:.5}");
                }
                if UNWEIGHTED.contains(&ty) {
                    break;
                }
            }
            let (by_activations, ways) = BY_ACTIVATIONS;
            for way in ways.iter().filter(|_| ty == by_activations) {
                let flags: Vec<&str> = way.split(' ').collect();
                let windows = ["--chunks", &self.windows];
                let made =
                    self.quantized(&[&[ty], &flags[..], &on_text[..], &windows[..]].concat())?;
                self.row(&format!("{ty} `{way}`"), "", &made)?;
            }
        }
        Ok(())
    }

    /// Quantizes the model; returns the report.
    fn quantized(&self, arguments: &[&str]) -> Result<Value> {
        let (model, out) = (self.model.display().to_string(), self.file("out.gguf"));
        self.json(&[&["quantize", &model, &out], arguments].concat())
    }

    /// Scores a model and prints its row; returns its mean divergence.
    fn row(&self, name: &str, importance: &str, made: &Value) -> Result<f64> {
        let (out, base) = (self.file("out.gguf"), self.file("base.kld"));
        let found = self.json(&["perplexity", "-m", &out, "--kl", &base, "-ngl", "0"])?;
        let number = |document: &Value, key: &str| {
            document[key].as_f64().with_context(|| format!("no {key} in {document}"))
        };
        let mb = std::fs::metadata(&out)?.len() as f64 / 1e6;
        let kl = number(&found, "kl_mean")?;
        self.say(&format!(
            "| {name} | {} | {:.3} | {mb:.2} | {:.4} | {kl:.5} | {:.4} | {:.2} |",
            importance,
            number(made, "bpw")?,
            number(&found, "perplexity")?,
            number(&found, "kl_p99")?,
            100.0 * number(&found, "top1")?,
        ))?;
        Ok(kl)
    }

    /// Prints a line of the table at once, since the next one takes a while.
    fn say(&self, line: &str) -> Result<()> {
        *self.lines.borrow_mut() += &format!("{line}\n");
        writeln!(std::io::stdout(), "{line}").context("standard output")
    }
}

#[cfg(test)]
mod tests {
    use super::some;

    #[test]
    fn some_types_are_taken_in_the_order_of_the_table() {
        let taken = some("W8A8,Q8_0").expect("both are known");
        assert_eq!(taken, [("Q8_0", false), ("W8A8", false)]);
        let error = some("Q8_0,Q9").expect_err("one is not").to_string();
        assert!(error.starts_with("--types Q9: not one of F16, BF16, Q8_0, "), "{error}");
    }
}
