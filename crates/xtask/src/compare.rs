//! `cargo xtask compare-peer`: this program beside llama.cpp on the same files, round by round, as ratios.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

pub const USAGE: &str = "\
cargo xtask compare-peer [--rounds 5] [--shapes llama-1b] [--types Q4_K_M] [--levels LEVEL] [-t 2] [-p 512] [-n 64] [FILE ...]
                              time this program and llama.cpp (llama-cpp-python, in target/peer) in turn on random
                              models of these shapes and types, or on FILEs; prints a table of paired ratios";

/// The version that is measured.
const PEER: &str = "llama-cpp-python==0.3.36";

const SCRIPT: &str = include_str!("compare/peer.py");

/// What is compared.
#[derive(Debug, PartialEq)]
struct Options {
    rounds: usize,
    shapes: Vec<String>,
    types: Vec<String>,
    levels: Vec<String>,
    threads: usize,
    prompt: usize,
    generate: usize,
    files: Vec<PathBuf>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut options = Options {
            rounds: 5,
            shapes: list("llama-1b"),
            types: list("Q4_K_M"),
            levels: Vec::new(),
            threads: 2,
            prompt: 512,
            generate: 64,
            files: Vec::new(),
        };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--rounds" => options.rounds = value()?.parse().context("--rounds")?,
                "--shapes" => options.shapes = list(value()?),
                "--types" => options.types = list(value()?),
                "--levels" => options.levels = list(value()?),
                "-t" => options.threads = value()?.parse().context("-t")?,
                "-p" => options.prompt = value()?.parse().context("-p")?,
                "-n" => options.generate = value()?.parse().context("-n")?,
                flag if flag.starts_with('-') => bail!("no flag `{flag}`\n{USAGE}"),
                file => options.files.push(PathBuf::from(file)),
            }
        }
        if options.rounds == 0 || options.threads == 0 || options.generate == 0 {
            bail!("--rounds, -t and -n are 1 at least");
        }
        Ok(options)
    }
}

/// Speeds of one program in one round, tokens a second; `share` is the weights read as a share of the read probe.
#[derive(Clone, Copy, Debug, Default)]
struct Speed {
    prompt: f64,
    generate: f64,
    share: f64,
}

/// Compares and prints.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let folder = std::path::absolute("target/peer")?;
    let bilayer = build()?;
    let python = environment(&folder)?;
    let script = folder.join("peer.py");
    std::fs::write(&script, SCRIPT)?;
    let mut files = options.files.clone();
    if files.is_empty() {
        for shape in &options.shapes {
            for ty in &options.types {
                files.push(model(&bilayer, &folder, shape, ty)?);
            }
        }
    }
    say(
        "| model | level | test | bilayer, tok/s | llama.cpp, tok/s | ratio | spread | of the read probe |",
    )?;
    say("|---|---|---|---|---|---|---|---|")?;
    let levels =
        if options.levels.is_empty() { vec![String::new()] } else { options.levels.clone() };
    for file in &files {
        let mut ours = vec![Vec::new(); levels.len()];
        let mut peers = Vec::new();
        for round in 0..options.rounds {
            eprintln!("xtask: {}, round {} of {}", file.display(), round + 1, options.rounds);
            for (level, ours) in levels.iter().zip(&mut ours) {
                ours.push(measure(&bilayer, file, level, &options)?);
            }
            // The better of its two ways to hold weights, test by test.
            let [a, b] = [1, 0].map(|repack| peer(&python, &script, file, repack, &options));
            let (a, b) = (a?, b?);
            peers.push(Speed {
                prompt: a.prompt.max(b.prompt),
                generate: a.generate.max(b.generate),
                share: 0.0,
            });
        }
        let name = file.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        for (level, ours) in levels.iter().zip(&ours) {
            let level = if level.is_empty() { "best" } else { level };
            for row in rows(&name, level, ours, &peers, &options) {
                say(&row)?;
            }
        }
    }
    Ok(())
}

/// A line of the table.
fn say(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

/// The table's rows of one file and level.
fn rows(
    name: &str,
    level: &str,
    ours: &[Speed],
    peers: &[Speed],
    options: &Options,
) -> Vec<String> {
    let row = |test: String, of: &dyn Fn(&Speed) -> f64, share: String| {
        let ratios: Vec<f64> = ours.iter().zip(peers).map(|(a, b)| of(a) / of(b)).collect();
        let (least, most) =
            ratios.iter().fold((f64::MAX, 0.0_f64), |(l, m), &r| (l.min(r), m.max(r)));
        let (a, b) = (median(ours.iter().map(of)), median(peers.iter().map(of)));
        format!(
            "| {name} | {level} | {test} | {a:.1} | {b:.1} | {:.2} | {least:.2} to {most:.2} | {share} |",
            median(ratios.iter().copied())
        )
    };
    let mut rows = Vec::new();
    if options.prompt > 0 {
        rows.push(row(format!("pp{}", options.prompt), &|s| s.prompt, "-".to_owned()));
    }
    let share = median(ours.iter().map(|s| s.share));
    rows.push(row(
        format!("tg{}", options.generate),
        &|s| s.generate,
        format!("{:.0} %", 100.0 * share),
    ));
    rows
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// Runs a command to its end and returns what it wrote to stdout.
fn output(command: &mut Command) -> Result<String> {
    let ran = command.output().with_context(|| format!("{command:?} could not be started"))?;
    if !ran.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&ran.stderr));
    }
    Ok(String::from_utf8(ran.stdout)?)
}

fn status(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?} could not be started"))?;
    if !status.success() {
        bail!("{command:?} failed");
    }
    Ok(())
}

/// Builds the program; returns its path.
pub fn build() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    status(Command::new(cargo).args(["build", "--release", "--locked"]))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(std::path::absolute(Path::new(&target).join("release/bilayer"))?)
}

/// A virtual environment with llama-cpp-python, built for this processor; some minutes, once.
fn environment(folder: &Path) -> Result<PathBuf> {
    let python = folder.join("venv/bin/python");
    let there = Command::new(&python).args(["-c", "import llama_cpp"]).output();
    if there.is_ok_and(|ran| ran.status.success()) {
        return Ok(python);
    }
    eprintln!("xtask: installing {PEER} into {}, which takes some minutes", folder.display());
    std::fs::create_dir_all(folder)?;
    status(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")))?;
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", PEER]);
    if let Some(flags) = without_amx(&known) {
        pip.env("CMAKE_ARGS", flags);
    }
    status(&mut pip)?;
    Ok(python)
}

/// llama.cpp 0.3.36 with AMX ends in an illegal instruction on virtual machines that have the unit: there it is built for
/// all else that the processor has. `None` where there is no such unit.
fn without_amx(cpuinfo: &str) -> Option<String> {
    let has = |name: &str| cpuinfo.split_whitespace().any(|flag| flag == name);
    if !has("amx_tile") {
        return None;
    }
    let known = [
        ("sse4_2", "SSE42"),
        ("avx", "AVX"),
        ("avx2", "AVX2"),
        ("fma", "FMA"),
        ("f16c", "F16C"),
        ("bmi2", "BMI2"),
        ("avx_vnni", "AVX_VNNI"),
        ("avx512f", "AVX512"),
        ("avx512vbmi", "AVX512_VBMI"),
        ("avx512_vnni", "AVX512_VNNI"),
        ("avx512_bf16", "AVX512_BF16"),
    ];
    let on =
        known.iter().filter(|(flag, _)| has(flag)).map(|(_, name)| format!("-DGGML_{name}=ON"));
    let all: Vec<String> = std::iter::once("-DGGML_NATIVE=OFF".to_owned()).chain(on).collect();
    Some(all.join(" "))
}

/// A random model, made once.
fn model(bilayer: &Path, folder: &Path, shape: &str, ty: &str) -> Result<PathBuf> {
    let path = folder.join(format!("{shape}-{ty}.gguf"));
    if !path.exists() {
        status(Command::new(bilayer).args(["synth", "--shape", shape, "--type", ty]).arg(&path))?;
    }
    Ok(path)
}

fn measure(bilayer: &Path, file: &Path, level: &str, options: &Options) -> Result<Speed> {
    let mut command = Command::new(bilayer);
    command
        .arg("bench")
        .arg("-m")
        .arg(file)
        .args(["-r", "1", "-ngl", "0", "-dev", "none", "-o", "json"]);
    command.args(["-p", &options.prompt.to_string(), "-n", &options.generate.to_string()]);
    command.args(["-t", &options.threads.to_string()]);
    if !level.is_empty() {
        command.args(["--cpu-level", level]);
    }
    let tests: Value = serde_json::from_str(&output(&mut command)?)?;
    let mut speed = Speed::default();
    for test in tests.as_array().context("bench wrote no list")? {
        let number = |key: &str| test[key].as_f64();
        let found = number("avg_ts").context("bench wrote no avg_ts")?;
        match number("n_gen") {
            Some(count) if count > 0.0 => {
                speed.generate = found;
                speed.share = number("probe_share").unwrap_or(f64::NAN);
            }
            _ => speed.prompt = found,
        }
    }
    Ok(speed)
}

fn peer(python: &Path, script: &Path, file: &Path, repack: u8, options: &Options) -> Result<Speed> {
    let numbers = [options.threads, options.prompt, options.generate, repack.into(), 1];
    let mut command = Command::new(python);
    command.arg(script).arg(file).args(numbers.map(|number| number.to_string()));
    let mut speed = Speed::default();
    for line in output(&mut command)?.lines() {
        let test: Value = serde_json::from_str(line)?;
        let found = test["tokens_per_second"].as_f64().context("no speed")?;
        match test["test"].as_str() {
            Some("prompt") => speed.prompt = found,
            _ => speed.generate = found,
        }
    }
    Ok(speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_wrong_ones_named() {
        let parse = |line: &str| {
            Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        };
        let options = parse("--rounds 3 --types Q4_0,Q8_0 -t 1 a.gguf").unwrap();
        assert_eq!((options.rounds, options.threads, options.types.len()), (3, 1, 2));
        assert_eq!(options.files, [PathBuf::from("a.gguf")]);
        for (line, part) in
            [("--rounds", "needs a value"), ("--speed 3", "--speed"), ("-n 0", "-n")]
        {
            let error = format!("{:#}", parse(line).unwrap_err());
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn ratios_are_paired() {
        let speed = |prompt, generate| Speed { prompt, generate, share: 0.9 };
        let options = Options::parse(&[]).unwrap();
        let ours = [speed(10.0, 2.0), speed(20.0, 4.0), speed(30.0, 9.0)];
        let peers = [speed(5.0, 2.0), speed(10.0, 2.0), speed(10.0, 3.0)];
        let rows = rows("m", "best", &ours, &peers, &options);
        assert_eq!(rows[0], "| m | best | pp512 | 20.0 | 10.0 | 2.00 | 2.00 to 3.00 | - |");
        assert_eq!(rows[1], "| m | best | tg64 | 4.0 | 2.0 | 2.00 | 1.00 to 3.00 | 90 % |");
        assert!(median(std::iter::empty()).is_nan());
        assert!((median([1.0, 2.0].into_iter()) - 1.5).abs() < 1e-12);
    }

    #[test]
    fn processors_with_tiles_get_a_build_without() {
        assert_eq!(without_amx("flags : avx2 avx512f"), None);
        let flags = without_amx("flags : avx2 avx512f amx_tile").unwrap();
        assert_eq!(flags, "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_AVX512=ON");
    }
}
