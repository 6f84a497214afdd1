//! `cargo xtask valgrind`: the misuse test of the C interface under valgrind.

use anyhow::{Result, bail};

use crate::{apt_get, cargo, has_program, may_install};

pub const USAGE: &str = "\
cargo xtask valgrind          run the C interface's test of misuse under valgrind: no byte leaks, none is read that is not ours
                              (a minute; valgrind and a C compiler are installed where they may be)";

/// What the test starts.
const PROGRAMS: [&str; 2] = ["valgrind", "cc"];

/// The test.
const TEST: &str = "misuse_leaks_nothing";

/// Installs what is missing and runs the test, which is skipped in the suite.
pub fn run(args: &[String]) -> Result<()> {
    if !args.is_empty() {
        bail!("{}: unknown; usage:\n{USAGE}", args.join(" "));
    }
    if PROGRAMS.iter().any(|program| !has_program(&[program])) {
        if !may_install() {
            bail!("`valgrind` and `cc` are needed (Debian: valgrind, gcc, libc6-dev)");
        }
        apt_get(&["update"])?;
        let packages = ["valgrind", "gcc", "libc6-dev"];
        apt_get(&[&["install", "--yes", "--no-install-recommends"], &packages[..]].concat())?;
    }
    let mut tests = cargo();
    tests.args(["test", "--locked", "--package", "bilayer-capi", "--test", "c", "--"]);
    crate::named_tests(tests.args(["--ignored", "--nocapture", TEST]), &[TEST])
}
