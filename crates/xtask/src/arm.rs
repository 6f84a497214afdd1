//! `cargo xtask test-arm`: builds the CPU kernels for 64-bit Arm and tests them under an emulator.
//!
//! Three CPU models stand for the three instruction levels: each must refuse the levels above its own, pass the
//! kernel tests at those it supports, and generate the same text as plain Rust. An emulator says nothing about speed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{apt_get, has_program, may_install};

pub const USAGE: &str = "\
cargo xtask test-arm [--cpu MODEL] [-- ARGS]
                               build for 64-bit Arm and run the kernel tests and a model under qemu, as one of the CPUs
                               cortex-a53, cortex-a76 and max, or as each in turn (ARGS go to the tests)";

const TARGET: &str = "aarch64-unknown-linux-gnu";

const LINKER: &str = "aarch64-linux-gnu-gcc";

const EMULATOR: &str = "qemu-aarch64";

/// Where the cross compiler's packages install the target's C library.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// qemu's CPU models and the highest level of each; it supports all lower ones.
const MODELS: [(&str, &str); 3] =
    [("cortex-a53", "neon"), ("cortex-a76", "neon-dotprod"), ("max", "neon-i8mm")];

/// The Arm levels in rising order, after the reference level.
const LEVELS: [&str; 4] = ["scalar", "neon", "neon-dotprod", "neon-i8mm"];

/// The kernel tests: those inside the CPU backend, and those of every op against the reference; beside them cargo builds
/// the program. Without GPU support.
const TESTS: [&str; 10] = [
    "--package=bilayer",
    "--package=bilayer-cpu",
    "--lib",
    "--test=kernels",
    "--no-default-features",
    "--features=cli",
    "--locked",
    "--target",
    TARGET,
    // Only our own code runs long under the emulator.
    "--config=profile.dev.package.\"*\".opt-level=1",
];

/// Tests that are left out: this one starts its own program, of which only the emulator knows how.
const SKIPPED: [&str; 3] = ["--", "--skip", "freed_memory"];

/// Prepares, builds, and tests every CPU model or the requested one.
pub fn run(args: &[String]) -> Result<()> {
    let own = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    let (own, tests) = args.split_at(own);
    let models = models(own)?;
    prepare()?;
    let start = Instant::now();
    let program = build()?;
    eprintln!("xtask: built in {} s", start.elapsed().as_secs());
    for (model, highest) in models {
        let began = Instant::now();
        levels(&program, model, highest)?;
        eprintln!("xtask: {model}: levels up to {highest}, all with one text; now the tests");
        let status = cargo(model)
            .args(TESTS)
            .arg("--no-fail-fast")
            .args(SKIPPED)
            .args(tests.iter().skip(1))
            .status()
            .context("cargo could not be started")?;
        if !status.success() {
            bail!("the kernel tests failed on {model}");
        }
        eprintln!("xtask: {model}: passed in {} s", began.elapsed().as_secs());
    }
    eprintln!("xtask: all passed, {} s in all", start.elapsed().as_secs());
    Ok(())
}

/// The requested CPU models.
fn models(args: &[String]) -> Result<Vec<(&'static str, &'static str)>> {
    match args {
        [] => Ok(MODELS.to_vec()),
        [flag, name] if flag == "--cpu" => {
            let known = MODELS.into_iter().find(|(model, _)| model == name);
            let all = MODELS.map(|(model, _)| model).join(", ");
            Ok(vec![known.with_context(|| format!("--cpu {name}: not one of {all}"))?])
        }
        _ => bail!("{}: unknown; usage:\n{USAGE}", args.join(" ")),
    }
}

/// Makes sure that cross compiler, emulator and the target's standard library exist: installs them if possible,
/// otherwise says what to install.
fn prepare() -> Result<()> {
    if !has_program(&[LINKER]) || !has_program(&[EMULATOR]) {
        if !may_install() {
            bail!(
                "`{LINKER}` and `{EMULATOR}` are needed, and the C library for it in {SYSROOT} (Debian \
                 and Ubuntu: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user)"
            );
        }
        eprintln!("xtask: installing a cross compiler and an emulator");
        apt_get(&["update"])?;
        let packages = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"];
        apt_get(&[&["install", "--yes", "--no-install-recommends"], &packages[..]].concat())?;
    }
    if has_library()? {
        return Ok(());
    }
    if !has_program(&["rustup"]) {
        bail!("the standard library for {TARGET} is needed: install it beside rustc");
    }
    let status = Command::new("rustup").args(["target", "add", TARGET]).status();
    if !status.context("rustup could not be started")?.success() || !has_library()? {
        bail!("`rustup target add {TARGET}` did not install the standard library");
    }
    Ok(())
}

/// Whether rustc finds a standard library for the target.
fn has_library() -> Result<bool> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .context("rustc could not be started")?;
    let folder = String::from_utf8(output.stdout).context("the folder rustc names")?;
    Ok(std::fs::read_dir(folder.trim()).is_ok_and(|mut files| files.next().is_some()))
}

/// Cargo's test command with the target's linker, and the emulator of a CPU model as runner.
fn cargo(model: &str) -> Command {
    let variable = |what: &str| format!("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_{what}");
    let mut command = crate::cargo();
    command
        .arg("test")
        .env(variable("LINKER"), LINKER)
        .env(variable("RUNNER"), format!("{EMULATOR} -L {SYSROOT} -cpu {model}"));
    command
}

/// Builds the tests and the program; returns the program's path.
fn build() -> Result<PathBuf> {
    let output = cargo("max")
        .args(TESTS)
        .args(["--no-run", "--message-format=json-render-diagnostics"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context("cargo could not be started")?;
    if !output.status.success() {
        bail!("the build for {TARGET} failed");
    }
    let lines = output.stdout.split(|byte| *byte == b'\n');
    let messages = lines.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let program = |message: Value| {
        let of_program =
            message["target"]["kind"][0] == "bin" && message["profile"]["test"] == false;
        of_program.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    };
    messages.filter_map(program).next().context("cargo built no program")
}

/// Generates a few words with each level: the supported levels must agree, the others must be refused.
fn levels(program: &Path, model: &str, highest: &str) -> Result<()> {
    let mut expected = None;
    let mut has = true;
    for level in LEVELS {
        let output = write(program, model, level)?;
        let error = String::from_utf8_lossy(&output.stderr);
        if !has {
            if output.status.success() || !error.contains("this CPU does not support level") {
                bail!("{model} should refuse level {level}: {error}");
            }
            continue;
        }
        if !output.status.success() {
            bail!("{model} at level {level}: {error}");
        }
        let text = String::from_utf8(output.stdout).context("the program's text")?;
        let expected = expected.get_or_insert_with(|| text.clone());
        if text.trim().is_empty() || text != *expected {
            bail!("{model} at level {level} wrote {text:?}, not {expected:?}");
        }
        has = level != highest;
    }
    Ok(())
}

/// Runs the demo model greedily on a short prompt.
fn write(program: &Path, model: &str, level: &str) -> Result<Output> {
    let line = "run --temp 0 --predict 24 --prompt Once --seed 1 --threads 2 --cpu-level";
    Command::new(EMULATOR)
        .args(["-L", SYSROOT, "-cpu", model])
        .arg(program)
        .args(line.split(' '))
        .arg(level)
        .output()
        .with_context(|| format!("{EMULATOR} could not be started"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(args: &[&str]) -> Result<Vec<&'static str>, String> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let named = |models: Vec<(&'static str, _)>| models.into_iter().map(|(name, _)| name);
        models(&args).map(|models| named(models).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_program_is_built_with_the_features_it_requires() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).expect("the manifest of the program");
        let (_, program) = manifest.split_once("[[bin]]").expect("a program");
        let required = program.lines().find_map(|line| line.strip_prefix("required-features = "));
        assert_eq!(required, Some("[\"cli\"]"));
        assert!(TESTS.contains(&"--features=cli"), "{TESTS:?}");
    }

    #[test]
    fn one_model_of_processor_or_all_are_emulated() {
        assert_eq!(asked(&[]), Ok(vec!["cortex-a53", "cortex-a76", "max"]));
        assert_eq!(asked(&["--cpu", "max"]), Ok(vec!["max"]));
        let unknown = asked(&["--cpu", "m1"]).unwrap_err();
        assert!(unknown.starts_with("--cpu m1: not one of cortex-a53, "), "{unknown}");
        for args in [&["--cpu"][..], &["max"], &["--cpu", "max", "max"]] {
            assert!(asked(args).unwrap_err().contains("test-arm [--cpu MODEL]"), "{args:?}");
        }
    }
}
