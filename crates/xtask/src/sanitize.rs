//! `cargo xtask sanitize`: the tests of crates with unsafe code, threads or hostile input, under AddressSanitizer,
//! ThreadSanitizer or Miri.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::record::Record;
use crate::{cargo_of_rustup, target_folder};

pub const USAGE: &str = "\
cargo xtask sanitize address|thread|miri [CRATE|tests/FILE]
                              tests of crates and the files of tests/ under a sanitizer or Miri; thread and miri need a nightly
                              compiler";

/// The target of sanitizers, which is built apart from build scripts.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// A checker: its name, the cargo command, compiler flags, settings, and the tests that it can run.
struct Checker {
    name: &'static str,
    command: &'static [&'static str],
    /// Which of a crate's tests: all (`--tests`), or those of its modules (`--lib`).
    targets: &'static [&'static str],
    flags: &'static str,
    variables: &'static [(&'static str, &'static str)],
    subjects: &'static [Subject],
    /// Whether a stable compiler does with its unstable options allowed.
    needs_nightly: bool,
}

/// Tests of a crate, or a file of tests/.
struct Subject {
    /// `crates/NAME` or `tests/NAME`.
    of: &'static str,
    /// Tests whose names contain one of these; all if there are none.
    only: &'static [&'static str],
    /// Tests that are left out, by a part of their names, and why.
    skipped: &'static [(&'static str, &'static str)],
}

impl Subject {
    const fn all(of: &'static str) -> Subject {
        Subject { of, only: &[], skipped: &[] }
    }
}

/// Tests of cpu that measure what the allocator returns to the system.
const FREED: (&str, &str) = ("freed_memory", "the sanitizer's own allocator keeps freed blocks");

/// Tests that limit the address space.
const SHADOW: &str = "the sanitizer's shadow needs more addresses than the test allows";

/// Tests that bound or compare times.
const TIME: &str = "it measures time";

const CHECKERS: &[Checker] = &[
    Checker {
        name: "address",
        command: &["test"],
        targets: &["--tests"],
        flags: "-Zsanitizer=address",
        // Signal handlers of the crate that maps files must see its signals. Stacks of coroutines, in which the
        // scheduler of tests with shuttle runs its threads, are unknown to the detection of use after return.
        variables: &[(
            "ASAN_OPTIONS",
            "handle_segv=0:handle_sigbus=0:detect_leaks=0:detect_stack_use_after_return=0",
        )],
        needs_nightly: false,
        subjects: &[
            Subject::all("crates/settings"),
            Subject::all("crates/files"),
            Subject { skipped: &[("little_memory", SHADOW)], ..Subject::all("crates/gguf") },
            Subject::all("crates/quant"),
            Subject { skipped: &[FREED], ..Subject::all("crates/cpu") },
            Subject::all("crates/graph"),
            Subject { skipped: &[("memory_and_time", TIME)], ..Subject::all("crates/text") },
            Subject::all("crates/constrain"),
            Subject::all("crates/convert"),
            Subject::all("crates/scheduler"),
            Subject::all("crates/simulate"),
            Subject::all("crates/models"),
            Subject::all("crates/hub"),
            Subject::all("crates/engine"),
            Subject::all("crates/measure"),
            Subject::all("crates/server"),
            Subject::all("crates/gpu"),
            Subject::all("tests/engine"),
            Subject::all("tests/kernels"),
            Subject::all("tests/hybrid"),
            Subject::all("tests/faults"),
            Subject::all("tests/streaming"),
            Subject::all("tests/recurrent"),
            Subject::all("tests/models"),
            Subject::all("tests/encoders"),
            Subject::all("tests/speculative"),
            Subject::all("tests/simulated"),
            Subject::all("tests/measured"),
            Subject::all("tests/plans"),
            Subject::all("tests/quality"),
            Subject::all("tests/quantize"),
            Subject::all("tests/prune"),
            Subject { skipped: &[("memory_is_bounded", SHADOW)], ..Subject::all("tests/convert") },
            Subject::all("tests/synth"),
            Subject::all("tests/text"),
            Subject::all("tests/chat"),
            Subject::all("tests/constrain"),
            Subject::all("tests/library"),
            Subject::all("tests/hub"),
            Subject::all("tests/cli"),
            Subject::all("tests/usage"),
            Subject::all("tests/pasted"),
            Subject::all("tests/bench"),
            Subject::all("tests/profile"),
            Subject {
                skipped: &[("small_files_cannot", SHADOW), ("templates_run_within", SHADOW)],
                ..Subject::all("tests/reliability")
            },
            Subject::all("tests/server"),
            Subject::all("tests/gpu"),
        ],
    },
    Checker {
        name: "thread",
        // The standard library synchronizes, so it is instrumented too.
        command: &["test", "-Zbuild-std"],
        targets: &["--tests"],
        flags: "-Zsanitizer=thread",
        variables: &[("TSAN_OPTIONS", "halt_on_error=1")],
        needs_nightly: true,
        subjects: &[
            Subject { skipped: &[FREED], ..Subject::all("crates/cpu") },
            Subject::all("crates/engine"),
            Subject::all("crates/server"),
        ],
    },
    Checker {
        name: "miri",
        command: &["miri", "test"],
        targets: &["--lib"],
        flags: "",
        // Without deterministic floats, results of logarithms and the like change at random in their last bits. With traces, a
        // panic that a test expects takes Miri minutes.
        variables: &[
            ("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-deterministic-floats"),
            ("RUST_BACKTRACE", "0"),
        ],
        needs_nightly: true,
        subjects: &[
            Subject {
                skipped: &[("fault", "Miri has no signals"), ("map", "Miri maps no files")],
                ..Subject::all("crates/gguf")
            },
            Subject::all("crates/graph"),
            Subject {
                skipped: &[
                    ("least", "Miri takes hours for a comparison with all choices"),
                    ("best_of_all", "Miri takes hours for a comparison with all choices"),
                ],
                ..Subject::all("crates/quant")
            },
            Subject { only: &["session::checkpoints"], ..Subject::all("crates/engine") },
            Subject {
                only: &["pool_tests"],
                skipped: &[("a_slow_worker", TIME), ("a_core_of_a_quarter", TIME)],
                ..Subject::all("crates/cpu")
            },
        ],
    },
];

/// Files of tests/ that AddressSanitizer does not run, and why.
#[cfg(test)]
const LEFT_OUT: &[(&str, &str)] = &[
    ("deploy", "it runs balancers and shells around the program"),
    ("docs", "it reads pages and runs their commands, which other files run too"),
    ("examples", "it runs programs that another command builds"),
    ("tidy", "it reads the sources"),
];

/// What came of a subject's tests.
#[derive(Debug, PartialEq)]
struct Outcome {
    passed: u64,
    failed: u64,
    /// The finding of a sanitizer, or that a process ended before its tests.
    ended: Option<String>,
}

/// Runs a checker and records what passed and failed.
pub fn run(args: &[String]) -> Result<()> {
    let (name, only) = match args {
        [name] => (name, None),
        [name, only] => (name, Some(only)),
        _ => bail!("which checker?\n{USAGE}"),
    };
    let checker = CHECKERS.iter().find(|checker| checker.name == name);
    let checker = checker.with_context(|| format!("no checker `{name}`\n{USAGE}"))?;
    let is_chosen = |subject: &&Subject| {
        only.is_none_or(|only| subject.of == only || subject.of == format!("crates/{only}"))
    };
    let chosen: Vec<&Subject> = checker.subjects.iter().filter(is_chosen).collect();
    if chosen.is_empty() {
        bail!("`{name}` runs no crate or file of that name");
    }
    let mut failed = Vec::new();
    for subject in chosen {
        let outcome = check(checker, subject)?;
        let Outcome { passed, failed: failures, ended } = &outcome;
        eprintln!("xtask: {name}: {}: {passed} passed, {failures} failed", subject.of);
        let note = note(subject, ended.as_deref());
        Record::new("sanitizer", &format!("{name}, {}", subject.of), *passed as f64, "tests")?
            .failed(*failures)
            .note(note)
            .append()?;
        if *failures > 0 {
            failed.push(subject.of);
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("{name}: failures in {}", failed.join(", ")) }
}

/// What was left out, and how a process ended.
fn note(subject: &Subject, ended: Option<&str>) -> String {
    let mut notes: Vec<String> = ended.map(str::to_owned).into_iter().collect();
    if !subject.only.is_empty() {
        notes.push(format!("only {}", subject.only.join(", ")));
    }
    let skipped = subject.skipped.iter();
    notes.extend(skipped.map(|(test, why)| format!("without {test}: {why}")));
    notes.join("; ")
}

/// Whether a record's name is that of a checker and a subject of today.
pub fn is_subject(name: &str) -> bool {
    let parts = name.split_once(", ");
    parts.is_some_and(|(checker, of)| {
        let mut checkers = CHECKERS.iter().filter(|known| known.name == checker);
        checkers.any(|known| known.subjects.iter().any(|subject| subject.of == of))
    })
}

/// Whether there is a nightly compiler.
fn has_nightly() -> bool {
    let mut version = Command::new("rustc");
    version.args(["+nightly", "--version"]).env_remove("RUSTUP_TOOLCHAIN");
    version.output().is_ok_and(|output| output.status.success())
}

/// The command that runs a subject's tests.
fn command(checker: &Checker, subject: &Subject) -> Result<Command> {
    let target_dir = target_folder()?.join(format!("sanitize-{}", checker.name));
    let mut cargo = cargo_of_rustup();
    if checker.needs_nightly || has_nightly() {
        cargo.arg("+nightly");
    } else {
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    cargo.args(checker.command).args(["--locked", "--target", TRIPLE]);
    match subject.of.split_once('/') {
        Some(("crates", name)) => {
            cargo.args(checker.targets).args(["--package", &format!("bilayer-{name}")])
        }
        Some(("tests", file)) => cargo.args(["--package", "bilayer", "--test", file]),
        _ => bail!("what is {}?", subject.of),
    };
    cargo.arg("--").args(subject.only);
    cargo.args(subject.skipped.iter().flat_map(|(test, _)| ["--skip", test]));
    cargo.env("CARGO_TARGET_DIR", target_dir).env("RUSTFLAGS", checker.flags);
    cargo.envs(checker.variables.iter().copied());
    Ok(cargo)
}

fn check(checker: &Checker, subject: &Subject) -> Result<Outcome> {
    let output = command(checker, subject)?.output().context("cargo could not be started")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let outcome = outcome(&printed, &errors, output.status.code());
    if outcome.failed > 0 {
        let all = format!("{printed}\n{errors}");
        let mut lines: Vec<&str> = all.lines().rev().take(LINES_SHOWN).collect();
        lines.reverse();
        eprintln!("{}", lines.join("\n"));
    } else if outcome.passed == 0 {
        bail!("no test of {} ran:\n{printed}\n{errors}", subject.of);
    }
    Ok(outcome)
}

/// Lines shown of a run with failures.
const LINES_SHOWN: usize = 120;

/// What came of a run, by what it printed and its exit code. A run that failed without a failed test counts as one.
fn outcome(printed: &str, errors: &str, code: Option<i32>) -> Outcome {
    let is_success = code == Some(0);
    let results = || printed.lines().filter_map(|line| line.strip_prefix("test result: "));
    let count = |what: &str| -> u64 {
        let numbers = results().filter_map(|line| {
            let words: Vec<&str> = line.split([' ', ';']).collect();
            let at = words.iter().position(|word| *word == what)?;
            words[at.checked_sub(1)?].parse::<u64>().ok()
        });
        numbers.sum()
    };
    let (passed, failed) = (count("passed"), count("failed"));
    let finding = errors.lines().chain(printed.lines()).find_map(|line| {
        let at = line.find("ERROR: ").or_else(|| line.find("WARNING: ThreadSanitizer"))?;
        line[at..].contains("Sanitizer: ").then(|| line[at..].to_owned())
    });
    let ended = match (is_success, failed) {
        (false, 0) => Some(finding.unwrap_or_else(|| "the process ended early".to_owned())),
        (false, _) => finding,
        (true, _) => None,
    };
    let failed = failed.max(u64::from(!is_success));
    Outcome { passed, failed, ended }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CHECKERS, LEFT_OUT, Outcome, outcome};

    #[test]
    fn tests_of_all_binaries_are_counted() {
        let text = "test a ... ok\ntest result: ok. 12 passed; 0 failed\n\ntest result: ok. 3 passed; 0 failed";
        assert_eq!(outcome(text, "", Some(0)), Outcome { passed: 15, failed: 0, ended: None });
        let text = "test result: FAILED. 2 passed; 1 failed; 0 ignored";
        assert_eq!(outcome(text, "", Some(101)), Outcome { passed: 2, failed: 1, ended: None });
        let error = "==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x1";
        let ended = Some("ERROR: AddressSanitizer: heap-use-after-free on address 0x1".to_owned());
        assert_eq!(outcome("", error, Some(1)), Outcome { passed: 0, failed: 1, ended });
        assert!(outcome("", "", None).ended.is_some_and(|how| how.contains("ended early")));
    }

    /// Every file of tests/ and every library is run, or left out for a reason.
    #[test]
    fn nothing_is_left_out_without_a_reason() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let names = |folder: &str, marks: fn(&std::path::Path) -> bool| -> BTreeSet<String> {
            let entries = std::fs::read_dir(format!("{root}/{folder}")).unwrap();
            let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| marks(path));
            let stems = paths.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
            stems.map(|stem| format!("{folder}/{stem}")).collect()
        };
        let is_test = |path: &std::path::Path| {
            path.extension().is_some_and(|end| end == "rs") || path.join("main.rs").exists()
        };
        let mut expected = names("tests", is_test);
        expected.extend(names("crates", |path| path.join("src/lib.rs").exists()));
        let mut known: BTreeSet<String> =
            CHECKERS[0].subjects.iter().map(|subject| subject.of.to_owned()).collect();
        known.extend(LEFT_OUT.iter().map(|(file, _)| format!("tests/{file}")));
        // The library is the root package's; the command line, the package and the tasks have no unsafe code of their own.
        // The C interface has no unit tests: `cargo xtask valgrind` runs a C program.
        for other in ["bilayer", "capi", "cli", "python", "xtask"] {
            known.insert(format!("crates/{other}"));
            expected.insert(format!("crates/{other}"));
        }
        assert_eq!(known, expected);
    }
}
