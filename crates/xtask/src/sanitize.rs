//! `cargo xtask sanitize`: the tests of crates with unsafe code, threads or hostile input, under AddressSanitizer,
//! ThreadSanitizer or Miri.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::output;
use crate::record::Record;

pub const USAGE: &str = "\
cargo xtask sanitize address|thread|miri [CRATE]  unit tests under a sanitizer or Miri; needs a nightly compiler";

/// The target of sanitizers, which is built apart from build scripts.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// A checker: its name, the cargo command, compiler flags, settings, and the tests that it can run.
struct Checker {
    name: &'static str,
    command: &'static [&'static str],
    flags: &'static str,
    variables: &'static [(&'static str, &'static str)],
    crates: &'static [Tests],
}

/// Unit tests of a crate.
struct Tests {
    of: &'static str,
    /// Those whose names contain one of these; all if there are none.
    only: &'static [&'static str],
    /// Those that are left out: they take hours, measure time, or do what the checker cannot follow.
    skipped: &'static [&'static str],
}

impl Tests {
    const fn all(of: &'static str) -> Tests {
        Tests { of, only: &[], skipped: &[] }
    }
}

const CHECKERS: &[Checker] = &[
    Checker {
        name: "address",
        command: &["test"],
        flags: "-Zsanitizer=address",
        // Signal handlers of the crate that maps files must see its signals.
        variables: &[("ASAN_OPTIONS", "handle_segv=0:handle_sigbus=0:detect_leaks=0")],
        crates: &[
            Tests::all("gguf"),
            Tests::all("quant"),
            // The sanitizer's own allocator keeps freed blocks.
            Tests { skipped: &["freed_memory"], ..Tests::all("cpu") },
        ],
    },
    Checker {
        name: "thread",
        // The standard library synchronizes, so it is instrumented too.
        command: &["test", "-Zbuild-std"],
        flags: "-Zsanitizer=thread",
        variables: &[("TSAN_OPTIONS", "halt_on_error=1")],
        crates: &[
            Tests { skipped: &["freed_memory"], ..Tests::all("cpu") },
            Tests::all("engine"),
            Tests::all("server"),
        ],
    },
    Checker {
        name: "miri",
        command: &["miri", "test"],
        flags: "",
        // Without the last one, results of logarithms and the like change at random in their last bits.
        variables: &[("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-deterministic-floats")],
        crates: &[
            Tests { skipped: &["fault", "map", "temporary"], ..Tests::all("gguf") },
            Tests::all("graph"),
            Tests::all("quant"),
            Tests { only: &["session::checkpoints"], ..Tests::all("engine") },
            Tests {
                only: &["pool_tests"],
                skipped: &["a_slow_worker", "a_core_of_a_quarter"],
                ..Tests::all("cpu")
            },
        ],
    },
];

/// Runs a checker and records what passed.
pub fn run(args: &[String]) -> Result<()> {
    let (name, only) = match args {
        [name] => (name, None),
        [name, only] => (name, Some(only)),
        _ => bail!("which checker?\n{USAGE}"),
    };
    let checker = CHECKERS.iter().find(|checker| checker.name == name);
    let checker = checker.with_context(|| format!("no checker `{name}`\n{USAGE}"))?;
    let chosen = checker.crates.iter().filter(|tests| only.is_none_or(|only| only == tests.of));
    let mut count = 0;
    for tests in chosen {
        check(checker, tests)?;
        count += 1;
    }
    if count == 0 {
        bail!("`{name}` runs no crate of that name");
    }
    Ok(())
}

fn check(checker: &Checker, tests: &Tests) -> Result<()> {
    let Tests { of, only, skipped } = tests;
    let target_dir = std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
    let target_dir = Path::new(&target_dir).join(format!("sanitize-{}", checker.name));
    let mut cargo = Command::new("cargo");
    // This task's own cargo sets variables that choose the compiler.
    for name in ["RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC", "CARGO"] {
        cargo.env_remove(name);
    }
    cargo.arg("+nightly").args(checker.command).args(["--lib", "--target", TRIPLE]);
    cargo.args(["--package", &format!("bilayer-{of}"), "--"]).args(*only);
    cargo.args(skipped.iter().flat_map(|test| ["--skip", test]));
    cargo.env("CARGO_TARGET_DIR", target_dir).env("RUSTFLAGS", checker.flags);
    let printed = output(cargo.envs(checker.variables.iter().copied()))?;
    let passed = passed(&printed);
    if passed == 0 {
        bail!("no test of {of} ran:\n{printed}");
    }
    let mut notes = Vec::new();
    if !only.is_empty() {
        notes.push(format!("only {}", only.join(", ")));
    }
    if !skipped.is_empty() {
        notes.push(format!("without {}", skipped.join(", ")));
    }
    eprintln!("xtask: {}: {passed} tests of {of} passed", checker.name);
    Record::new("sanitizer", &format!("{}, crates/{of}", checker.name), passed as f64, "tests")?
        .note(notes.join("; "))
        .append()
}

/// How many tests passed, by the lines that end each binary's run.
fn passed(printed: &str) -> u64 {
    let results = printed.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    results.filter_map(|rest| rest.split(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::passed;

    #[test]
    fn passed_tests_of_all_binaries_are_counted() {
        let text = "test a ... ok\ntest result: ok. 12 passed; 0 failed\n\ntest result: ok. 3 passed; 0 failed";
        assert_eq!(passed(text), 15);
        assert_eq!(passed("test result: FAILED. 2 passed; 1 failed"), 0);
    }
}
