//! `cargo xtask compare-onnx`: sentences a second of a BERT encoder here and in onnxruntime's int8, pair by pair.
//!
//! Ours is the whole command: tokenizing, pooling and printing vectors count, loading does not (the time of a run with few
//! texts is subtracted from that of one with many). onnxruntime is timed twice: given token ids, of which it makes hidden states,
//! and given the same sentences as ours, of which it makes vectors with Hugging Face's tokenizers.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::report::median;
use crate::{output, status, venv};

pub const USAGE: &str = "\
cargo xtask compare-onnx [--rounds 3] [--batch 8] [--seconds 1] [--threads 2] [--levels avx512vnni,avx2] [--types W8A8,Q8_0]
                       [--calibration TEXT] [--bilayer PROGRAM] [CHECKPOINT]
                              time an encoder (default: ../shared/data/all-minilm-l6-v2/model) at 16, 128 and 384 tokens
                              here and in onnxruntime's int8 (PyPI, in target/onnx) in turn; print ratios to its rates from
                              token ids to hidden states and from sentences to vectors, and the least
                              cosine between each program's vectors and those of float weights. With a text of one
                              passage a line, weights are rounded by GPTQ on it";

/// Where models and onnxruntime are kept.
const FOLDER: &str = "target/onnx";

const PACKAGES: &[&str] = &["numpy", "onnx", "onnxruntime", "tokenizers"];

const PEER: &str = "crates/xtask/src/compare_onnx/peer.py";

/// Tokens of a text, with both special ones.
const LENGTHS: [usize; 3] = [16, 128, 384];

struct Options {
    rounds: usize,
    batch: String,
    seconds: f64,
    threads: String,
    levels: Vec<String>,
    types: Vec<String>,
    calibration: Option<String>,
    bilayer: PathBuf,
    checkpoint: PathBuf,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut options = Options {
            rounds: 3,
            batch: "8".into(),
            seconds: 1.0,
            threads: "2".into(),
            levels: list("avx512vnni,avx2"),
            types: list("W8A8,Q8_0"),
            calibration: None,
            bilayer: "target/release/bilayer".into(),
            checkpoint: "../shared/data/all-minilm-l6-v2/model".into(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
                "--seconds" => options.seconds = value()?.parse().context("--seconds")?,
                "--batch" => options.batch = value()?.clone(),
                "--threads" => options.threads = value()?.clone(),
                "--levels" => options.levels = list(value()?),
                "--types" => options.types = list(value()?),
                "--calibration" => options.calibration = Some(value()?.clone()),
                "--bilayer" => options.bilayer = value()?.into(),
                flag if flag.starts_with('-') => anyhow::bail!("no flag `{flag}`\n{USAGE}"),
                folder => options.checkpoint = folder.into(),
            }
        }
        ensure!(options.rounds > 0, "--rounds must be at least 1");
        Ok(options)
    }
}

/// Compares and prints.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let folder = Path::new(FOLDER);
    std::fs::create_dir_all(folder)?;
    let python = venv::ready(&folder.join("venv"), PACKAGES)?;
    let models = models(&options, folder)?;
    let ids = checks(&options, &models[0].1, folder)?;
    let texts = sentences(&options, folder)?;
    let mut peer = Value::Null;
    let mut out = std::io::stdout();
    writeln!(
        out,
        "| tokens | type | level | ours, sentences/s | onnxruntime int8, from ids | ratios, pair by pair | from sentences | ratios |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|---|")?;
    for length in LENGTHS {
        let (mut from_ids, mut from_texts) = (Vec::new(), Vec::new());
        let cases: Vec<_> = models[1..]
            .iter()
            .flat_map(|model| options.levels.iter().map(move |level| (model, level)))
            .collect();
        let mut ours = vec![Vec::new(); cases.len()];
        for _ in 0..options.rounds {
            peer =
                peer_run(&options, &python, folder, length, [&ids, &texts].map(PathBuf::as_path))?;
            let rate = |of: &str| {
                peer[of][length.to_string()].as_f64().with_context(|| format!("the peer's {of}"))
            };
            let rate_of_ids = rate("rates")?;
            from_ids.push(rate_of_ids);
            from_texts.push(rate("text_rates")?);
            for (((_, model), level), rates) in cases.iter().zip(&mut ours) {
                rates.push(rate_of(&options, model, level, length, folder, rate_of_ids)?);
            }
        }
        for (((ty, _), level), rates) in cases.iter().zip(&ours) {
            let beside = |theirs: &[f64]| {
                let ratios = rates.iter().zip(theirs).map(|(ours, theirs)| ours / theirs);
                let ratios: Vec<String> = ratios.map(|ratio| format!("{ratio:.2}")).collect();
                format!("{:.0} | {}", median(theirs), ratios.join(" "))
            };
            let (ids, texts) = (beside(&from_ids), beside(&from_texts));
            writeln!(
                out,
                "| {length} | {ty} | {level} | {:.0} | {ids} | {texts} |",
                median(rates)
            )?;
        }
    }
    writeln!(out, "onnxruntime {}; batches of {}", peer["version"], options.batch)?;
    let float = rows(&peer["vectors"]["float"])?;
    writeln!(
        out,
        "least cosine, onnxruntime int8: {:.5}",
        least(&rows(&peer["vectors"]["int8"])?, &float)
    )?;
    for (ty, model) in &models {
        for level in &options.levels {
            let ours = embed(&options, model, level, &folder.join("checks.txt"))?;
            writeln!(out, "least cosine, {ty} at {level}: {:.5}", least(&ours, &float))?;
        }
    }
    Ok(())
}

/// The files of each type, F16 first, with room for the longest texts.
fn models(options: &Options, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let copy = folder.join("checkpoint");
    status(
        Command::new("cp")
            .args(["-rL", "--no-preserve=mode"])
            .arg(options.checkpoint.join("."))
            .arg(&copy),
    )?;
    let limit = copy.join("sentence_bert_config.json");
    std::fs::write(&limit, "{\"max_seq_length\": 512}")?;
    let float = folder.join("f16.gguf");
    status(Command::new(&options.bilayer).arg("convert").arg(&copy).arg("--outfile").arg(&float))?;
    let mut models = vec![("F16".to_owned(), float.clone())];
    for ty in &options.types {
        let path = folder.join(format!("{}.gguf", ty.to_lowercase()));
        let mut quantize = Command::new(&options.bilayer);
        quantize.arg("quantize").args([&float, &path]).arg(ty);
        if let Some(text) = &options.calibration {
            quantize.args(["--gptq", "--chunks", "300", "--calibration", text]);
        }
        status(&mut quantize)?;
        models.push((ty.clone(), path));
    }
    Ok(models)
}

/// Writes the texts whose vectors are compared, from the empty one to one of 200 words, and their token ids.
fn checks(options: &Options, model: &Path, folder: &Path) -> Result<PathBuf> {
    let words = WORDS.split(' ').collect::<Vec<_>>();
    let text = |number: usize| -> String {
        let length = number * number / 4;
        let picked =
            (0..length).map(|place| words[(place * (2 * number + 1) + number) % words.len()]);
        picked.collect::<Vec<_>>().join(" ")
    };
    let texts: Vec<String> = (0..30).map(text).collect();
    let lines: Vec<String> =
        texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
    std::fs::write(folder.join("checks.txt"), lines.join("\n"))?;
    let mut all = Vec::new();
    for text in &texts {
        let mut tokenize = Command::new(&options.bilayer);
        tokenize.arg("tokenize").arg("-m").arg(model).args(["--ids", "--log-disable", "-p", text]);
        all.push(serde_json::from_str::<Value>(output(&mut tokenize)?.trim())?);
    }
    let path = folder.join("ids.json");
    std::fs::write(&path, Value::from(all).to_string())?;
    Ok(path)
}

/// Writes a batch of sentences of each length.
fn sentences(options: &Options, folder: &Path) -> Result<PathBuf> {
    let batch: usize = options.batch.parse().context("--batch")?;
    let of = |length: usize| {
        let all: Vec<String> = (0..batch).map(|row| sentence(length, row)).collect();
        (length.to_string(), Value::from(all))
    };
    let all = Value::Object(LENGTHS.into_iter().map(of).collect());
    let path = folder.join("sentences.json");
    std::fs::write(&path, all.to_string())?;
    Ok(path)
}

/// A sentence of so many tokens, with both special ones; others of another number.
fn sentence(tokens: usize, number: usize) -> String {
    let words: Vec<&str> = WORDS.split(' ').collect();
    let picked = (0..tokens - 2).map(|place| words[(number * 7 + place) % words.len()]);
    picked.collect::<Vec<_>>().join(" ")
}

/// Words of one token each.
const WORDS: &str = "the of and in to was he is as for on with that it his by at from her she you had an were be this \
    are but they one not which have him or who all their been also when first its two school new city time people \
    market water river small green letter answer history doctor letter garden";

fn peer_run(
    options: &Options,
    python: &Path,
    folder: &Path,
    length: usize,
    inputs: [&Path; 2],
) -> Result<Value> {
    let mut peer = Command::new(python);
    peer.arg(PEER).arg(folder.join("checkpoint")).arg(folder).arg(&options.threads);
    peer.arg(options.seconds.to_string()).arg(&options.batch).arg(length.to_string()).args(inputs);
    Ok(serde_json::from_str(&output(&mut peer)?)?)
}

/// Sentences a second of `length` tokens.
fn rate_of(
    options: &Options,
    model: &Path,
    level: &str,
    length: usize,
    folder: &Path,
    estimate: f64,
) -> Result<f64> {
    let timed = |count: usize| -> Result<f64> {
        let text = |row: usize| Value::from(sentence(length, row)).to_string();
        let path = folder.join("texts.jsonl");
        std::fs::write(&path, (0..count).map(text).collect::<Vec<_>>().join("\n"))?;
        let begin = Instant::now();
        embed_raw(options, model, level, &path)?;
        Ok(begin.elapsed().as_secs_f64())
    };
    let (few, many) = (8, 8 + (estimate * options.seconds * 2.0) as usize);
    let begin = timed(few)?;
    Ok((many - few) as f64 / (timed(many)? - begin))
}

fn embed_raw(options: &Options, model: &Path, level: &str, texts: &Path) -> Result<String> {
    let mut embed = Command::new(&options.bilayer);
    embed.arg("embed").arg("-m").arg(model).arg("--jsonl").arg(texts);
    embed.args(["-ngl", "0", "-t", &options.threads, "--cpu-level", level]);
    output(&mut embed)
}

/// The vectors of texts.
fn embed(options: &Options, model: &Path, level: &str, texts: &Path) -> Result<Vec<Vec<f64>>> {
    let lines = embed_raw(options, model, level, texts)?;
    let vector = |line: &str| {
        let line: Value = serde_json::from_str(line)?;
        line["embedding"].as_array().context("a vector")?.iter().map(number).collect()
    };
    lines.lines().map(vector).collect()
}

fn rows(value: &Value) -> Result<Vec<Vec<f64>>> {
    let row = |row: &Value| row.as_array().context("a row")?.iter().map(number).collect();
    value.as_array().context("rows")?.iter().map(row).collect()
}

fn number(value: &Value) -> Result<f64> {
    value.as_f64().context("a number")
}

fn least(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    assert_eq!(a.len(), b.len(), "a vector for each text");
    let cosine = |(a, b): (&Vec<f64>, &Vec<f64>)| {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    a.iter().zip(b).map(cosine).fold(f64::INFINITY, f64::min)
}
