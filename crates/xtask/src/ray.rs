//! `cargo xtask ray`: tests the package's part for Ray on a local cluster of two nodes.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::{compare, python, status, venv};

pub const USAGE: &str = "\
cargo xtask ray [--bilayer PROGRAM] [--wheel FILE] [-- ARGS]
                              test bilayer.ray with Ray Serve and Ray Data on two nodes of this machine (in target/ray;
                              --bilayer takes a ready program, --wheel a ready wheel; ARGS go to pytest); the measured
                              values are in target/ray/measured.json";

/// What the tests use beside the wheel.
const PACKAGES: &[&str] = &[
    "maturin>=1.16,<2",
    "pytest>=8,<10",
    "numpy>=1.24",
    "ray[serve,data]>=2.60,<2.61",
    "openai~=3.54",
];

/// The tests.
pub const TESTS: &str = "crates/python/tests/ray";

/// What the flags ask for.
#[derive(Debug, Default, PartialEq)]
struct Flags<'a> {
    bilayer: Option<&'a str>,
    wheel: Option<&'a str>,
    pytest: &'a [String],
}

impl<'a> Flags<'a> {
    fn read(mut args: &'a [String]) -> Result<Flags<'a>> {
        let mut flags = Flags::default();
        loop {
            match args {
                [] => return Ok(flags),
                [flag, rest @ ..] if flag == "--" => return Ok(Flags { pytest: rest, ..flags }),
                [flag, value, rest @ ..] if flag == "--bilayer" => {
                    (flags.bilayer, args) = (Some(value.as_str()), rest);
                }
                [flag, value, rest @ ..] if flag == "--wheel" => {
                    (flags.wheel, args) = (Some(value.as_str()), rest);
                }
                [other, ..] => bail!("{other}: unknown; usage:\n{USAGE}"),
            }
        }
    }
}

/// Builds, installs, tests.
pub fn run(args: &[String]) -> Result<()> {
    let flags = Flags::read(args)?;
    let bilayer = compare::program(flags.bilayer.map(Path::new))?;
    let folder = std::path::absolute("target/ray")?;
    std::fs::create_dir_all(&folder)?;
    let python = venv::ready(&folder.join("venv"), PACKAGES)?;
    python::install(&python, &folder, flags.wheel, "release")?;
    let mut tests = Command::new(&python);
    tests.args([
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore::DeprecationWarning",
        TESTS,
    ]);
    tests.args(flags.pytest).env("PYTHONDONTWRITEBYTECODE", "1");
    tests.env("DEMO", std::path::absolute("crates/cli/assets/demo.gguf")?);
    tests.env("BILAYER", &bilayer).env("MEASURED", folder.join("measured.json"));
    // Nothing but the cluster may be asked.
    tests
        .env("NO_PROXY", "127.0.0.1")
        .env("no_proxy", "127.0.0.1")
        .env("RAY_USAGE_STATS_ENABLED", "0");
    if let Some(encoder) = python::encoder(&bilayer, &folder)? {
        tests.env("ENCODER", encoder);
    }
    status(&mut tests)
}

#[cfg(test)]
mod tests {
    use super::Flags;

    #[test]
    fn flags_are_read_in_any_order() {
        let args = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let given = args("--wheel a.whl --bilayer b -- -k kill");
        let flags = Flags::read(&given).unwrap();
        assert_eq!(
            (flags.wheel, flags.bilayer, flags.pytest),
            (Some("a.whl"), Some("b"), &given[5..])
        );
        assert!(Flags::read(&args("--whel a")).unwrap_err().to_string().contains("--whel"));
    }
}
