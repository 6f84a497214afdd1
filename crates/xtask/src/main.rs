//! Project tasks; `cargo xtask` lists them.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

mod agreement;
mod arm;
mod c_header;
mod clients;
mod compare;
mod compare_logits;
mod compare_onnx;
mod coop_check;
mod debian;
mod dist;
mod fuzz;
mod gpu_offline;
mod llama_cpp_python;
mod load;
mod mac;
mod mutants;
mod picture;
mod python;
mod quality;
mod ray;
mod record;
mod release;
mod reliability;
mod report;
mod sanitize;
mod server_suite;
mod tools;
mod valgrind;
mod venv;

/// The page that has the tables of measured results.
const PERFORMANCE: &str = "docs/performance.md";

const USAGE: &str = "\
cargo xtask test [-- ARGS]    make ready what the tests need, then run the whole suite (ARGS go to cargo test)";

/// A task: its name, how it is called, what runs it.
type Task = (&'static str, &'static str, fn(&[String]) -> Result<()>);

/// All tasks.
const TASKS: &[Task] = &[
    ("test", USAGE, test),
    ("test-arm", arm::USAGE, arm::run),
    ("compare-peer", compare::USAGE, compare::run),
    ("compare-logits", compare_logits::USAGE, compare_logits::run),
    ("compare-onnx", compare_onnx::USAGE, compare_onnx::run),
    ("agreement", agreement::USAGE, agreement::run),
    ("fuzz", fuzz::USAGE, fuzz::run),
    ("sanitize", sanitize::USAGE, sanitize::run),
    ("mutants", mutants::USAGE, mutants::run),
    ("reliability", reliability::USAGE, reliability::run),
    ("gpu-offline", gpu_offline::USAGE, gpu_offline::run),
    ("coop-check", coop_check::USAGE, coop_check::run),
    ("quality-table", quality::USAGE, quality::run),
    ("picture", picture::USAGE, picture::run),
    ("mac-check", mac::USAGE, mac::run),
    ("clients", clients::USAGE, clients::run),
    ("python", python::USAGE, python::run),
    ("llama-cpp-python", llama_cpp_python::USAGE, llama_cpp_python::run),
    ("ray", ray::USAGE, ray::run),
    ("dist", dist::USAGE, dist::run),
    ("check-targets", release::TARGETS_USAGE, release::check_targets),
    ("msrv", release::MSRV_USAGE, release::msrv),
    ("deny", release::DENY_USAGE, release::deny),
    ("semver-checks", release::SEMVER_USAGE, release::semver_checks),
    ("c-header", c_header::USAGE, c_header::run),
    ("valgrind", valgrind::USAGE, valgrind::run),
    ("serve-load", load::USAGE, load::run),
    ("soak", load::SOAK_USAGE, load::soak),
    ("llama-server-suite", server_suite::USAGE, server_suite::run),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let name = args.first().map_or("", String::as_str);
    let done = match TASKS.iter().find(|(task, ..)| *task == name) {
        Some((.., run)) => run(&args[1..]),
        None if name.is_empty() => Err(anyhow::anyhow!("which task?\n{}", usage())),
        None => Err(anyhow::anyhow!("no task `{name}`\n{}", usage())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Usage of all tasks.
fn usage() -> String {
    TASKS.iter().map(|(_, usage, _)| *usage).collect::<Vec<_>>().join("\n")
}

/// Runs a command to its end and returns what it wrote to stdout.
fn output(command: &mut Command) -> Result<String> {
    let ran = command.output().with_context(|| format!("{command:?} could not be started"))?;
    if !ran.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&ran.stderr));
    }
    Ok(String::from_utf8(ran.stdout)?)
}

/// Prints lines of a result.
fn say(line: &str) -> Result<()> {
    use std::io::Write;
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

/// The folder of what cargo builds, and of what tasks keep.
fn target_folder() -> Result<PathBuf> {
    let folder = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(std::path::absolute(folder)?)
}

/// The cargo that runs this task, as a shell would start it: build scripts read variables that `cargo run` sets for its
/// program, and would run again, and all that depends on them would be built again.
fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let own = ["CARGO_MANIFEST_", "CARGO_PKG_", "CARGO_BIN_"];
    for name in set.filter(|name| own.iter().any(|prefix| name.starts_with(prefix))) {
        cargo.env_remove(name);
    }
    cargo
}

/// Cargo by its name, which is rustup's where rustup is there, and takes a `+toolchain`.
fn cargo_of_rustup() -> Command {
    let mut cargo = Command::new("cargo");
    // This task's own cargo sets variables that choose the compiler.
    for name in ["RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC", "CARGO"] {
        cargo.env_remove(name);
    }
    cargo
}

/// Runs a command to its end.
fn status(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?} could not be started"))?;
    if !status.success() {
        bail!("{command:?} failed");
    }
    Ok(())
}

/// Runs a command that runs tests by name, and shows what it prints.
///
/// # Errors
/// It fails, or no test ran whose name has one of `names` in it.
fn named_tests(command: &mut Command, names: &[&str]) -> Result<()> {
    use std::io::Write;
    let ran = command.stderr(std::process::Stdio::inherit()).output();
    let ran = ran.with_context(|| format!("{command:?} could not be started"))?;
    std::io::stdout().write_all(&ran.stdout)?;
    if !ran.status.success() {
        bail!("{command:?} failed");
    }
    match missing_tests(&String::from_utf8_lossy(&ran.stdout), names).as_slice() {
        [] => Ok(()),
        missing => bail!("no test ran of the name {}; was it renamed?", missing.join(", ")),
    }
}

/// Builds a file of tests of the packages that are `selected`; returns its program.
fn test_program(selected: &[&str], test: &str) -> Result<String> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--message-format", "json"]).args(selected);
    let said = output(command.args(["--test", test]))?;
    let mut program = said.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_test = message["target"]["name"] == test;
        message["executable"].as_str().filter(|_| is_test).map(str::to_owned)
    });
    program.next_back().with_context(|| format!("cargo named no program of the test `{test}`"))
}

/// The names that no test has of which a test program's output tells.
fn missing_tests<'n>(said: &str, names: &[&'n str]) -> Vec<&'n str> {
    let ran = |name: &&str| {
        let mut tests =
            said.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ..."));
        tests.any(|(test, result)| test.contains(*name) && !result.contains("ignored"))
    };
    names.iter().copied().filter(|name| !ran(name)).collect()
}

/// Replaces the text between a file's markers of that name by the result of `new`.
fn rewrite(path: &Path, name: &str, new: impl FnOnce(&str) -> String) -> Result<()> {
    let file = path.display();
    let text = std::fs::read_to_string(path).with_context(|| file.to_string())?;
    let whole = between(&text, name, new)
        .with_context(|| format!("{file} has no marks <!-- {name} --> and <!-- /{name} -->"))?;
    bilayer_files::write(path, whole).with_context(|| file.to_string())
}

/// The text with the part between the markers replaced by the result of `new`. `None` without markers.
fn between(text: &str, name: &str, new: impl FnOnce(&str) -> String) -> Option<String> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (before, rest) = text.split_once(&begin)?;
    let (part, after) = rest.split_once(&end)?;
    Some(format!("{before}{begin}{}{end}{after}", new(part)))
}

/// Prepares the machine, then runs `cargo test` over the workspace with unchanged output.
fn test(args: &[String]) -> Result<()> {
    prepare_vulkan()?;
    prepare_chromium()?;
    let mut suite = cargo();
    // A test that misses one of its files fails instead of being skipped. Tests look for the folder in every parent, too.
    let here = std::env::current_dir().context("the working directory is unknown")?;
    let is_set = std::env::var_os("BILAYER_REQUIRE_DATA").is_some();
    if !is_set && here.ancestors().any(|folder| folder.join("shared/data").is_dir()) {
        suite.env("BILAYER_REQUIRE_DATA", "1");
    }
    let status = suite
        .args(["test", "--workspace", "--locked", "--no-fail-fast"])
        .args(args.iter().skip_while(|a| *a == "--"))
        .status()
        .context("cargo could not be started")?;
    if !status.success() {
        bail!("the suite failed");
    }
    Ok(())
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
const CHROMIUM: [&str; 4] =
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

/// Whether one of the programs is on the PATH.
fn has_program(names: &[&str]) -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|f| names.iter().any(|name| f.join(name).is_file()))
}

/// Whether apt-get exists and we are root.
fn may_install() -> bool {
    let root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.trim_ascii() == b"0");
    root && Path::new("/usr/bin/apt-get").exists()
}

fn apt_get(args: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("apt-get could not be started")?;
    if !status.success() {
        bail!("apt-get {} failed", args.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{PERFORMANCE, between, missing_tests};

    #[test]
    fn a_test_that_was_renamed_is_missing() {
        let said = "running 2 tests\ntest a::one_is_one ... ok\ntest two ... ignored\n\ntest result: ok.\n";
        assert_eq!(missing_tests(said, &["one_is", "two", "three"]), ["two", "three"]);
        assert!(missing_tests(said, &["one_is_one"]).is_empty());
    }

    #[test]
    fn the_performance_page_has_both_tables() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PERFORMANCE);
        let text = std::fs::read_to_string(page).unwrap();
        for name in ["compare-peer", "quality-table"] {
            let mut found = String::new();
            let same = between(&text, name, |table| {
                found = table.to_owned();
                table.to_owned()
            });
            assert_eq!(same.as_ref(), Some(&text), "{name}");
            assert!(found.lines().count() > 10 && found.starts_with("| "), "{name}: {found}");
        }
    }

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = "a\n<!-- t -->\nold\n<!-- /t -->\nb\n";
        let found = between(text, "t", |old| format!("{old}new\n"));
        assert_eq!(found.as_deref(), Some("a\n<!-- t -->\nold\nnew\n<!-- /t -->\nb\n"));
        assert_eq!(between(text, "u", str::to_owned), None);
    }
}
