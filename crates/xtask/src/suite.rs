//! `cargo xtask test`: makes ready what the tests need, then builds and runs the whole suite.
//!
//! Cargo runs one test program after another, and at the end of each the CPUs wait for its last long test. Here several
//! programs run at once, with as many threads together; what a program prints is shown unchanged when it has ended.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread::{available_parallelism, scope};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{apt_get, has_program, may_install, output, say, target_folder};

pub const USAGE: &str = "\
cargo xtask test [-- ARGS]    make ready what the tests need, then run the whole suite (or cargo test with ARGS)";

/// Test programs that run at once.
const LANES: usize = 2;

/// What says how many tests of a program run at once.
const THREADS: &str = "RUST_TEST_THREADS";

/// A program of tests, as Cargo would name and start it.
struct Program {
    name: String,
    command: Command,
}

/// Prepares the machine, then runs the suite, or `cargo test` with arguments.
pub fn run(args: &[String]) -> Result<()> {
    prepare_vulkan()?;
    prepare_chromium()?;
    let args: Vec<&String> = args.iter().skip_while(|a| *a == "--").collect();
    if !args.is_empty() {
        let status = cargo().arg("--no-fail-fast").args(args).status();
        return match status.context("cargo could not be started")?.success() {
            true => Ok(()),
            false => bail!("a test failed"),
        };
    }
    let mut programs = built()?;
    let mut documentation = cargo();
    documentation.args(["--no-fail-fast", "--doc"]);
    programs.push_front(Program { name: "Doc-tests".to_owned(), command: documentation });
    let count = programs.len();
    let failed = all(programs)?;
    if !failed.is_empty() {
        bail!("{} of {count} test programs failed: {}", failed.len(), failed.join(", "));
    }
    say(&format!("xtask: all {count} test programs passed"))
}

/// `cargo test` over the workspace.
fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--workspace", "--locked"]);
    command
}

/// Builds the test programs.
fn built() -> Result<VecDeque<Program>> {
    let mut build = cargo();
    build.args(["--no-run", "--message-format=json-render-diagnostics"]).stderr(Stdio::inherit());
    let messages = output(&mut build)?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    messages.filter_map(|message| program(&message).transpose()).collect()
}

/// The test program that a message of Cargo names.
fn program(message: &Value) -> Result<Option<Program>> {
    let Some(executable) = message["executable"].as_str().map(Path::new) else { return Ok(None) };
    if message["profile"]["test"] != true {
        return Ok(None);
    }
    let path = |value: &Value| value.as_str().map(PathBuf::from).context("a path from cargo");
    let (source, manifest) =
        (path(&message["target"]["src_path"])?, path(&message["manifest_path"])?);
    let folder = manifest.parent().context("the folder of a package")?;
    let source = source.strip_prefix(folder).unwrap_or(&source);
    let package = folder.file_name().unwrap_or_default();
    let mut command = Command::new(executable);
    command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
    let name = format!("{} of {}", source.display(), package.display());
    Ok(Some(Program { name, command }))
}

/// Runs the programs, [`LANES`] at once; returns the names of those that failed.
fn all(programs: VecDeque<Program>) -> Result<Vec<String>> {
    let cpus = available_parallelism().map_or(1, usize::from);
    let lanes = LANES.min(cpus);
    let folder = target_folder()?;
    let (waiting, failed) = (Mutex::new(programs), Mutex::new(Vec::new()));
    let next = || waiting.lock().ok()?.pop_front();
    let lane = |lane: usize| -> Result<()> {
        let log = folder.join(format!("test-{}-{lane}.log", std::process::id()));
        while let Some(Program { name, mut command }) = next() {
            if std::env::var_os(THREADS).is_none() {
                command.env(THREADS, (cpus / lanes).to_string());
            }
            let (status, printed) = printed(&mut command, &log)?;
            show(&name, printed)?;
            if let (false, Ok(mut failed)) = (status.success(), failed.lock()) {
                eprintln!("xtask: {name}: {status}");
                failed.push(name);
            }
        }
        Ok(())
    };
    scope(|scope| {
        let lane = &lane;
        let lanes: Vec<_> = (0..lanes).map(|at| scope.spawn(move || lane(at))).collect();
        let mut ended = lanes.into_iter().map(|lane| lane.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| bail!("a lane panicked")))
    })?;
    failed.into_inner().context("the list of failed programs")
}

/// Runs a command; returns how it ended, and what it wrote to stdout and stderr. A file takes it: a pipe would stay open with
/// a process that outlives its test.
fn printed(command: &mut Command, log: &Path) -> Result<(ExitStatus, File)> {
    let mut file = File::options().read(true).write(true).create(true).truncate(true).open(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
    let status = command.status().with_context(|| format!("{command:?} could not be started"))?;
    file.rewind()?;
    std::fs::remove_file(log)?;
    Ok((status, file))
}

/// Prints what a program printed, below its name and apart from others.
fn show(name: &str, mut printed: File) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "     Running {name}")?;
    io::copy(&mut printed, &mut out)?;
    Ok(out.flush()?)
}

/// The GPU tests need a Vulkan driver; a software one suffices. Installs it if possible, otherwise says what to
/// install. Without one the tests print that they were skipped.
fn prepare_vulkan() -> Result<()> {
    if !cfg!(target_os = "linux") || has_vulkan_driver() {
        return Ok(());
    }
    let advice = "no Vulkan driver found: install one (Debian and Ubuntu: mesa-vulkan-drivers; \
                  Fedora: mesa-vulkan-drivers; Arch: vulkan-swrast) to run the GPU tests";
    if !may_install() {
        eprintln!("xtask: {advice}");
        return Ok(());
    }
    eprintln!("xtask: no Vulkan driver found, installing mesa-vulkan-drivers");
    apt_get(&["update"])?;
    apt_get(&["install", "--yes", "--no-install-recommends", "mesa-vulkan-drivers", "libvulkan1"])?;
    if !has_vulkan_driver() {
        bail!("mesa-vulkan-drivers was installed but no driver manifest appeared; {advice}");
    }
    Ok(())
}

/// Whether the Vulkan loader would find a driver manifest.
fn has_vulkan_driver() -> bool {
    if std::env::var_os("VK_DRIVER_FILES").is_some()
        || std::env::var_os("VK_ICD_FILENAMES").is_some()
    {
        return true;
    }
    ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"]
        .iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .any(|mut entries| entries.next().is_some())
}

/// The names of Chromium's executable.
pub const CHROMIUM: [&str; 4] =
    ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// The tests of the profile's HTML page need a browser. Installs Debian's if possible, otherwise says what to
/// install. Without one the tests print that they were skipped.
fn prepare_chromium() -> Result<()> {
    if has_program(&CHROMIUM) {
        return Ok(());
    }
    // Ubuntu's package of that name is only a stub for a snap.
    let debian = std::fs::read_to_string("/etc/os-release")
        .is_ok_and(|release| release.lines().any(|line| line == "ID=debian"));
    if !debian || !may_install() {
        eprintln!(
            "xtask: no Chromium found: install it (Debian, Fedora, Arch: chromium) to test the profile's page"
        );
        return Ok(());
    }
    eprintln!("xtask: no Chromium found, installing chromium");
    apt_get(&["update"])?;
    apt_get(&["install", "--yes", "--no-install-recommends", "chromium"])?;
    if !has_program(&CHROMIUM) {
        bail!("chromium was installed but is not on the PATH");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use serde_json::json;

    use super::{Program, all, program};

    #[test]
    fn test_programs_are_told_from_others() {
        let mut message = json!({
            "executable": "/t/debug/deps/docs-1", "profile": { "test": true },
            "manifest_path": "/r/crates/text/Cargo.toml",
            "target": { "src_path": "/r/crates/text/tests/docs.rs" },
        });
        let found = program(&message).unwrap().unwrap();
        assert_eq!(found.name, "tests/docs.rs of text");
        assert_eq!(found.command.get_current_dir(), Some(Path::new("/r/crates/text")));
        message["profile"]["test"] = json!(false);
        assert!(program(&message).unwrap().is_none());
        assert!(program(&json!({ "reason": "build-finished" })).unwrap().is_none());
    }

    #[cfg(unix)]
    #[test]
    fn programs_that_fail_are_named() {
        let named = |name: &str, program: &str| Program {
            name: name.to_owned(),
            command: Command::new(program),
        };
        let programs = [named("a", "true"), named("b", "false"), named("c", "true")];
        assert_eq!(all(programs.into()).unwrap(), ["b"]);
        assert!(all([named("d", "/no/such/program")].into()).is_err());
    }
}
