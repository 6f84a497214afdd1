//! `cargo xtask fuzz`: runs every fuzz target of `tests/fuzz` in turn, with AddressSanitizer.
//!
//! Needs a nightly compiler. The corpus grows in the target folder; what ends a run is copied to
//! `tests/fuzz/findings/TARGET`, where `tests/reliability.rs` replays it from then on.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail};

use crate::record::{Printed, Record};
use crate::{cargo, cargo_of_rustup, target_folder};

pub const USAGE: &str = "\
cargo xtask fuzz [--minutes N] [TARGET]       fuzz every target of tests/fuzz, or one, for N minutes each (1)
cargo xtask fuzz --mutate N [TARGET]          change seeds at random N times instead, in the suite's build";

/// The folder of the targets, a workspace of its own.
const FOLDER: &str = "tests/fuzz";

/// The machine for which sanitizers exist and which is built apart from build scripts.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// AddressSanitizer, for every crate.
const SANITIZED: &str = "-Zsanitizer=address --cfg fuzzing";

/// Branches taken, by which libFuzzer finds inputs that do something new: in every crate but [`UNCOVERED`].
const COVERED: [&str; 4] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
];

/// Operands of comparisons, from which libFuzzer learns numbers to try: in [`READERS`]. In every crate they took a quarter to
/// two thirds of the time.
const COMPARED: &str = "-Cllvm-args=-sanitizer-coverage-trace-compares";

/// The crate of the CPU's kernels: what they do does not depend on the values they compute with.
const UNCOVERED: &str = "bilayer-cpu";

/// The crates that take apart what a stranger wrote, but the one whose build script would be compiled with these flags, too.
const READERS: [&str; 7] = ["constrain", "convert", "engine", "gguf", "measure", "server", "text"];

/// The last 16 MiB of freed memory are not used again, instead of 256; memory of stack frames is, after they return. Of an
/// allocation only the caller is remembered: whole stacks take up to a quarter of the time, and a finding that is run again
/// without these options shows them.
const ASAN: &str = "quarantine_size_mb=16:detect_stack_use_after_return=0:malloc_context_size=1";

/// Targets that run thousands of branches whatever the input is: how often each ran is noise there, and without it as an aim
/// libFuzzer runs them twice as often and reaches more branches in the same time.
const UNCOUNTED: [&str; 2] = ["first_token", "grammar"];

/// Limits on one execution: seconds, and MiB of memory.
const LIMITS: [&str; 2] = ["-timeout=20", "-rss_limit_mb=2048"];

/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";

/// libFuzzer's exit code when a signal asked it to stop.
const INTERRUPTED: i32 = 72;

/// Executions without a finding after which a target has been tried enough, which depends on how many of them the fastest run
/// had in a second.
pub fn enough(a_second: f64) -> f64 {
    if a_second > 10e3 { 100e6 } else { 2e6 }
}

/// Builds the targets and runs them.
pub fn run(args: &[String]) -> Result<()> {
    let (mut minutes, mut mutations, mut only) = (1.0, None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--minutes" => {
                let given = args.next().context("--minutes needs a number")?;
                minutes = given.parse::<f64>().context("--minutes needs a number")?;
            }
            "--mutate" => {
                let given = args.next().context("--mutate needs a number")?;
                mutations = Some(given.parse::<u64>().context("--mutate needs a number")?);
            }
            target if !target.starts_with('-') && only.is_none() => only = Some(target.to_owned()),
            other => bail!("what is `{other}`?\n{USAGE}"),
        }
    }
    if let Some(count) = mutations {
        return mutate(count, only.as_deref());
    }
    let target_dir = target_folder()?.join("fuzz");
    build(&target_dir)?;
    let targets: Vec<String> = targets()?
        .into_iter()
        .filter(|name| only.as_ref().is_none_or(|only| only == name))
        .collect();
    if targets.is_empty() {
        bail!("no target has this name; there are {}", self::targets()?.join(", "));
    }
    let mut failed = Vec::new();
    for name in &targets {
        let program = target_dir.join(TRIPLE).join("release").join(name);
        if !fuzz(&program, name, &target_dir, minutes)? {
            failed.push(name.as_str());
        }
    }
    if !failed.is_empty() {
        bail!("{} ended early; the inputs are in {FOLDER}/findings", failed.join(", "));
    }
    Ok(())
}

/// Runs the suite's test of changed seeds with more of them, from a start of chance, and records what it printed.
fn mutate(count: u64, only: Option<&str>) -> Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let seed = now.as_secs();
    let mut test = cargo();
    test.args(["test", "--workspace", "--test", "reliability", "changed_seeds"]);
    test.args(["--", "--nocapture"]);
    test.env("BILAYER_TEST_MUTATIONS", count.to_string());
    test.env("BILAYER_TEST_SEED", seed.to_string());
    if let Some(only) = only {
        test.env("BILAYER_TEST_TARGET", only);
    }
    let ran = test.stderr(Stdio::inherit()).output().context("cargo could not be started")?;
    let printed = String::from_utf8_lossy(&ran.stdout);
    for line in printed.lines().filter_map(|line| line.strip_prefix("mutated ")) {
        let of = Printed::read(line)?;
        eprintln!("xtask: {line}");
        let record = Record::new("mutations", of.name, of.count, "inputs")?.failed(of.failures);
        record.note(format!("seed {seed}")).append()?;
    }
    if !ran.status.success() {
        bail!("a target panicked (seed {seed}); the input is in target/tmp/finding-TARGET");
    }
    Ok(())
}

/// The names of the targets: the files of their folder.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(Path::new(FOLDER).join("targets"))? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// How many inputs of past findings of a target are kept.
pub fn kept(name: &str) -> Result<usize> {
    match fs::read_dir(Path::new(FOLDER).join("findings").join(name)) {
        Ok(entries) => Ok(entries.count()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error).with_context(|| format!("the findings of {name}")),
    }
}

fn build(target_dir: &Path) -> Result<()> {
    let mut cargo = cargo_of_rustup();
    cargo.arg("+nightly").args(["build", "--release", "--bins", "--locked", "--target", TRIPLE]);
    cargo.arg("-Zprofile-rustflags");
    let compared: Vec<&str> = COVERED.into_iter().chain([COMPARED]).collect();
    let mut profile = |package: &str, flags: &[&str]| {
        cargo.arg("--config").arg(format!("profile.release.{package}rustflags={flags:?}"));
    };
    profile("", &COVERED);
    profile("build-override.", &[]);
    profile(&format!("package.{UNCOVERED}."), &[]);
    for reader in READERS {
        profile(&format!("package.bilayer-{reader}."), &compared);
    }
    cargo.current_dir(FOLDER).env("CARGO_TARGET_DIR", target_dir).env("RUSTFLAGS", SANITIZED);
    super::status(&mut cargo).context("the targets need a nightly compiler: rustup install nightly")
}

/// Runs one target and prints how often it ran. Returns whether it found nothing.
fn fuzz(program: &Path, name: &str, target_dir: &Path, minutes: f64) -> Result<bool> {
    let corpus = target_dir.join("corpus").join(name);
    let findings = Path::new(FOLDER).join("findings").join(name);
    fs::create_dir_all(&corpus)?;
    let seeds = Path::new(FOLDER).join("seeds").join(name);
    let crashes = target_dir.join("crashes").join(name);
    fs::create_dir_all(&crashes)?;
    let mut command = Command::new(program);
    command.arg(&corpus).args([&seeds, &findings].into_iter().filter(|folder| folder.is_dir()));
    command.args(LIMITS).arg(format!("-max_total_time={}", (60.0 * minutes).ceil()));
    command.arg(format!("-artifact_prefix={}/", crashes.display()));
    command.env("ASAN_OPTIONS", ASAN);
    // Targets that write files write one for each input: in memory ten times as many fit into a minute.
    if Path::new(MEMORY).is_dir() {
        command.env("TMPDIR", MEMORY);
    }
    // What a thread keeps that is just ending was taken for a leak.
    command.args(["-print_final_stats=1", "-max_len=4096", "-detect_leaks=0"]);
    if UNCOUNTED.contains(&name) {
        command.arg("-use_counters=0");
    }
    command.stderr(Stdio::piped());
    let began = Instant::now();
    let ran = command.output().with_context(|| format!("{} cannot be run", program.display()))?;
    let seconds = began.elapsed().as_secs_f64();
    let log = String::from_utf8_lossy(&ran.stderr);
    let count = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units: "));
    let found_nothing = ran.status.success() || ran.status.code() == Some(INTERRUPTED);
    eprintln!(
        "xtask: {name}: {} executions in {seconds:.0} s{}",
        count.unwrap_or("an unknown number of"),
        if found_nothing { "" } else { ", and a finding" }
    );
    let executions = count.and_then(|count| count.trim().parse::<f64>().ok()).unwrap_or(0.0);
    let record = Record::new("fuzz", name, executions, "executions")?.seconds(seconds.round());
    if found_nothing {
        record.append()?;
        return Ok(true);
    }
    record.failed(1).append()?;
    let last: Vec<&str> = log.lines().rev().take(40).collect();
    eprintln!("{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
    fs::create_dir_all(&findings)?;
    for entry in fs::read_dir(&crashes)? {
        let path = entry?.path();
        if let Some(file) = path.file_name() {
            fs::copy(&path, findings.join(file))?;
        }
    }
    Ok(false)
}
