//! `cargo xtask compare-peer`: runs this program and llama.cpp on the same files, round by round, and reports ratios.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

mod cases;
mod ik;
mod peer;
mod table;

use cases::{Case, PARTS};
use ik::Ik;
use peer::Build;
pub use peer::host_flags;

use crate::{cargo, output, status, target_folder};

pub const USAGE: &str = "\
cargo xtask compare-peer [--parts PART,...] [--types TYPE,...] [--rounds 5] [--levels LEVEL,...] [--peer avx2] [--busy N]
                       [--ik LLAMA_BENCH] [--bilayer PROGRAM] [--write | --into FILE]
                              time this program and llama.cpp (llama-cpp-python, in target/peer) in turn on random
                              models and print a table of paired ratios, perhaps beside N busy threads; --ik measures
                              the llama-bench of ik_llama.cpp in the same rounds; --write puts the rows into the table
                              of docs/performance.md, --into into that of another file, such as another machine's
cargo xtask compare-peer FILE ... [-t 2] [-p 512] [-n 64] [-np 1,4] [-d 0]
                              the same on files of your own";

/// Where models and llama.cpp are kept.
const FOLDER: &str = "target/peer";

/// Options of a comparison.
#[derive(Debug, PartialEq)]
struct Options {
    rounds: usize,
    levels: Vec<String>,
    peer: Build,
    /// Number of busy threads to run meanwhile.
    busy: usize,
    /// The llama-bench of ik_llama.cpp, to measure as well.
    ik: Option<PathBuf>,
    /// The file whose table is updated.
    into: Option<PathBuf>,
    /// A program to measure instead of building one.
    bilayer: Option<PathBuf>,
    work: Vec<Job>,
}

/// A case with its file.
#[derive(Debug, PartialEq)]
struct Job {
    case: Case,
    /// A file given by the user; otherwise one is generated for the case.
    file: Option<PathBuf>,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let number =
            |text: &str, flag: &str| text.parse::<usize>().with_context(|| flag.to_owned());
        let mut options = Options {
            rounds: 5,
            levels: vec![String::new()],
            peer: Build::Native,
            busy: 0,
            ik: None,
            into: None,
            bilayer: None,
            work: Vec::new(),
        };
        let (mut parts, mut types, mut files) = (Vec::new(), Vec::new(), Vec::new());
        let (mut own, mut is_own) = (cases::own(), false);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let flag = arg.as_str();
            let mut value = || args.next().with_context(|| format!("{flag} needs a value"));
            match flag {
                "--rounds" => options.rounds = number(value()?, flag)?,
                "--parts" => parts = list(value()?),
                "--types" => types = list(value()?),
                "--levels" => options.levels = list(value()?),
                "--peer" => options.peer = value()?.parse()?,
                "--busy" => options.busy = number(value()?, flag)?,
                "--ik" => options.ik = Some(value()?.into()),
                "--write" => options.into = Some(crate::PERFORMANCE.into()),
                "--into" => options.into = Some(value()?.into()),
                "--bilayer" => options.bilayer = Some(value()?.into()),
                "-t" => (own.threads, is_own) = (number(value()?, flag)?, true),
                "-p" => (own.prompt, is_own) = (number(value()?, flag)?, true),
                "-n" => (own.generate, is_own) = (number(value()?, flag)?, true),
                "-d" => (own.depth, is_own) = (number(value()?, flag)?, true),
                "-np" => {
                    let counts =
                        list(value()?).iter().map(|n| number(n, flag)).collect::<Result<_>>()?;
                    (own.sequences, is_own) = (counts, true);
                }
                _ if flag.starts_with('-') => bail!("no flag `{flag}`\n{USAGE}"),
                file => files.push(PathBuf::from(file)),
            }
        }
        if let Some(part) = parts.iter().find(|part| !PARTS.iter().any(|(name, _)| name == part)) {
            let names = PARTS.map(|(name, what)| format!("{name}: {what}")).join("\n  ");
            bail!("no part `{part}`; there are\n  {names}");
        }
        if options.rounds == 0 || own.threads == 0 || own.sequences.contains(&0) {
            bail!("--rounds, -t and -np must be at least 1");
        }
        if files.is_empty() && is_own {
            bail!("-t, -p, -n, -np and -d are for files of your own; name one");
        }
        if !files.is_empty() && (options.into.is_some() || !parts.is_empty() || !types.is_empty()) {
            bail!(
                "--parts, --types, --write and --into are for the table, not for files of your own"
            );
        }
        let wanted = |case: &Case| {
            (parts.is_empty() || parts.iter().any(|part| part == case.part))
                && (types.is_empty() || types.iter().any(|ty| ty == case.ty))
        };
        let of_table = cases::all().into_iter().filter(|case| files.is_empty() && wanted(case));
        options.work = of_table.map(|case| Job { case, file: None }).collect();
        let of_files = files.into_iter().map(|file| Job { case: own.clone(), file: Some(file) });
        options.work.extend(of_files);
        if options.work.is_empty() {
            bail!("nothing is left to compare");
        }
        Ok(options)
    }
}

/// A program's result of a test: its speed in tokens per second (for a first token, seconds), and more.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Measured {
    value: f64,
    /// Peak memory of the process, bytes.
    peak: f64,
    /// Weight bandwidth as a share of the same threads' read bandwidth of the file.
    share: Option<f64>,
}

/// Results by test, such as `pp512` or `tg64 x4 @ d4096`.
type Tests = BTreeMap<String, Measured>;

/// Keeps the better result of each test.
fn keep_best(best: &mut Tests, found: impl IntoIterator<Item = (String, Measured)>, case: &Case) {
    for (test, measured) in found {
        let better = |known: &Measured| (measured.value > known.value) != case.first_token;
        if best.get(&test).is_none_or(better) {
            best.insert(test, measured);
        }
    }
}

/// Compares and prints.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    if let Some(file) = &options.into {
        // Fails before measuring if the file has no markers.
        crate::rewrite(file, "compare-peer", str::to_owned)?;
    }
    let folder = std::path::absolute(FOLDER)?;
    let ik = options.ik.as_deref().map(Ik::ready).transpose()?;
    let bilayer = program(options.bilayer.as_deref())?;
    let peer = peer::Peer::ready(&folder, options.peer)?;
    let mut rows = Vec::new();
    let _load = Load::new(options.busy);
    crate::say(&table::head(ik.as_ref().map_or("", |_| table::IK_COLUMNS)))?;
    for Job { case, file } in &options.work {
        let path = match file {
            Some(file) => file.clone(),
            None => model(&bilayer, &folder, case)?,
        };
        let mut ours = vec![Vec::new(); options.levels.len()];
        let (mut theirs, mut iks) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            eprintln!("xtask: {}, round {} of {}", path.display(), round + 1, options.rounds);
            for (level, ours) in options.levels.iter().zip(&mut ours) {
                ours.push(measure(&bilayer, &path, level, case)?);
            }
            theirs.push(peer.measure(&path, case)?);
            if let Some(ik) = &ik {
                iks.push(ik.measure(&path, case)?);
            }
        }
        let name = path.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let bytes = std::fs::metadata(&path)?.len();
        for (level, ours) in options.levels.iter().zip(&ours) {
            let (peer, busy) = (options.peer, options.busy);
            let about = table::About { model: &name, level, peer, busy, case, bytes };
            let iks = ik.as_ref().map(|_| &iks[..]);
            for row in table::rows(&about, ours, &theirs, iks) {
                crate::say(&row.to_string())?;
                rows.push(row);
            }
        }
    }
    if let Some(file) = &options.into {
        crate::rewrite(file, "compare-peer", |table| table::merge(table, &rows))?;
    }
    Ok(())
}

/// Threads that keep CPUs busy until dropped.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn new(count: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |stop: Arc<AtomicBool>| {
            move || {
                let mut number = 1u64;
                while !stop.load(Ordering::Relaxed) {
                    number =
                        std::hint::black_box(number.wrapping_mul(6_364_136_223_846_793_005) + 1);
                }
            }
        };
        let threads = (0..count).map(|_| std::thread::spawn(spin(stop.clone()))).collect();
        Load { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A spinning thread does not panic.
            let _ = thread.join();
        }
    }
}

/// The program to measure: the given one, or else that of this tree, which is built.
pub fn program(given: Option<&Path>) -> Result<PathBuf> {
    let Some(path) = given else { return build() };
    if !path.is_file() {
        bail!("{} is not a program", path.display());
    }
    Ok(std::path::absolute(path)?)
}

/// Installs llama.cpp unless it is there; returns the interpreter of its environment.
pub fn llama_cpp() -> Result<PathBuf> {
    Ok(peer::Peer::ready(&std::path::absolute(FOLDER)?, Build::Native)?.python)
}

/// A model with a billion random weights in Q4_K_M, made once.
pub fn one_billion(bilayer: &Path) -> Result<PathBuf> {
    let folder = std::path::absolute(FOLDER)?;
    std::fs::create_dir_all(&folder)?;
    model(bilayer, &folder, &cases::one_billion())
}

/// Builds the program; returns its path.
fn build() -> Result<PathBuf> {
    status(cargo().args(["build", "--release", "--locked"]))?;
    Ok(target_folder()?.join("release/bilayer"))
}

/// Generates a random model, once.
fn model(bilayer: &Path, folder: &Path, case: &Case) -> Result<PathBuf> {
    let path = folder.join(format!("{}-{}.gguf", case.shape.name, case.ty));
    if !path.exists() {
        status(
            Command::new(bilayer)
                .arg("synth")
                .args(case.shape.synth)
                .args(["--type", case.ty])
                .arg(&path),
        )?;
    }
    Ok(path)
}

fn measure(bilayer: &Path, file: &Path, level: &str, case: &Case) -> Result<Tests> {
    let level: Vec<&str> = if level.is_empty() { Vec::new() } else { vec!["--cpu-level", level] };
    if case.first_token {
        return first_token(bilayer, file, &level, case);
    }
    let sequences: Vec<String> = case.sequences.iter().map(usize::to_string).collect();
    let mut tests = Tests::new();
    // A prompt is always a single sequence.
    for (prompt, generate, several) in
        [(case.prompt, 0, "1".to_owned()), (0, case.generate, sequences.join(","))]
    {
        if prompt + generate == 0 {
            continue;
        }
        let mut command = Command::new(bilayer);
        command
            .arg("bench")
            .arg("-m")
            .arg(file)
            .args(["-r", "1", "-ngl", "0", "-dev", "none", "-o", "json"]);
        command.args(["-p", &prompt.to_string(), "-n", &generate.to_string(), "-np", &several]);
        command.args(["-t", &case.threads.to_string(), "-d", &case.depth.to_string()]).args(&level);
        let found: Value = serde_json::from_str(&output(&mut command)?)?;
        for test in found.as_array().context("bench wrote no list")? {
            let number = |key: &str| test[key].as_f64();
            let measured = Measured {
                value: number("avg_ts").context("bench wrote no avg_ts")?,
                peak: number("peak_resident_bytes").unwrap_or(f64::NAN),
                share: number("probe_share"),
            };
            tests.insert(name(test).context("bench wrote no sizes")?, measured);
        }
    }
    Ok(tests)
}

/// The test of a bench result.
fn name(test: &Value) -> Option<String> {
    let [prompt, generate, depth, parallel] =
        ["n_prompt", "n_gen", "n_depth", "n_parallel"].map(|key| test[key].as_u64());
    let behind =
        depth.filter(|&depth| depth > 0).map_or(String::new(), |depth| format!(" @ d{depth}"));
    let times = parallel.filter(|&n| n > 1).map_or(String::new(), |n| format!(" x{n}"));
    Some(match (prompt?, generate?) {
        (prompt, 0) => format!("pp{prompt}{behind}"),
        (_, generate) => format!("tg{generate}{times}{behind}"),
    })
}

/// Time from the start of the process to its end after one token.
fn first_token(bilayer: &Path, file: &Path, level: &[&str], case: &Case) -> Result<Tests> {
    let mut command = Command::new(bilayer);
    command.arg("run").arg("-m").arg(file).args([
        "--tokens",
        "1",
        "-n",
        "1",
        "--temp",
        "0",
        "--ignore-eos",
    ]);
    command
        .args(["-c", "512", "-ngl", "0", "-dev", "none", "--json", "-t", &case.threads.to_string()])
        .args(level);
    let began = Instant::now();
    output(&mut command)?;
    let measured = Measured { value: began.elapsed().as_secs_f64(), peak: f64::NAN, share: None };
    Ok(Tests::from([("first token".to_owned(), measured)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_wrong_ones_named() {
        let options = parse("--rounds 3 -t 1 a.gguf -np 2,8").unwrap();
        assert_eq!((options.rounds, options.work.len()), (3, 1));
        assert_eq!(options.work[0].file, Some(PathBuf::from("a.gguf")));
        assert_eq!(
            (options.work[0].case.threads, &options.work[0].case.sequences[..]),
            (1, &[2, 8][..])
        );
        assert_eq!(parse("").unwrap().work.len(), cases::all().len());
        let some = parse("--parts types,one-thread --types Q8_0 --peer avx2 --levels avx2,avxvnni")
            .unwrap();
        assert_eq!((some.work.len(), some.peer, some.levels.len()), (2, Build::Avx2, 2));
        let both = parse("--into a.md --ik b/llama-bench").unwrap();
        assert_eq!((both.into, both.ik), (Some("a.md".into()), Some("b/llama-bench".into())));
        for (line, part) in [
            ("--rounds", "needs a value"),
            ("--speed 3", "--speed"),
            ("--rounds 0", "--rounds"),
            ("--parts speed", "types: "),
            ("--types Q9", "nothing is left"),
            ("-n 3", "name one"),
            ("a.gguf --write", "--write"),
            ("--peer gpu", "avx2"),
        ] {
            let error = format!("{:#}", parse(line).unwrap_err());
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn results_of_bench_have_its_names() {
        let test = |line: &str| name(&serde_json::from_str(line).unwrap()).unwrap();
        let tg = r#"{"n_prompt": 0, "n_gen": 64, "n_depth": 4096, "n_parallel": 4}"#;
        assert_eq!(test(tg), "tg64 x4 @ d4096");
        assert_eq!(
            test(r#"{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "n_parallel": 1}"#),
            "pp512"
        );
    }
}
