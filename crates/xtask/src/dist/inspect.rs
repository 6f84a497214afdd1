//! Checks of a built program: what it is linked with, and that it generates text.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{GLIBC, Package, Workplace};
use crate::output;

/// # Errors
/// The program needs a library or a version that the package does not promise, or generates nothing.
pub fn check(place: &Workplace, package: &Package, program: &Path) -> Result<()> {
    let mut readelf = Command::new("readelf");
    let table = output(
        readelf.args(["--wide", "--dynamic", "--version-info", "--program-headers"]).arg(program),
    )
    .context("readelf is needed (Debian: binutils)")?;
    linked(package, &table).with_context(|| package.name.to_owned())?;
    let mut run = place.program(package, program);
    let text = output(run.args(["run", "-p", "ROMEO:", "-n", "8", "--temp", "0"]))?;
    if text.trim().is_empty() {
        bail!("{}: no text", package.name);
    }
    Ok(())
}

/// # Errors
/// What readelf printed does not go with the package.
fn linked(package: &Package, table: &str) -> Result<()> {
    let needed: Vec<&str> = table
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    if package.is_static() {
        if !needed.is_empty() || table.contains("INTERP") {
            bail!("not a static program: it needs {}", needed.join(", "));
        }
        return Ok(());
    }
    let known = |name: &&&str| {
        !["libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "libutil.so", "ld-linux"]
            .iter()
            .any(|known| name.starts_with(known))
    };
    if let Some(foreign) = needed.iter().find(known) {
        bail!("it needs {foreign}, which is not glibc's");
    }
    let newest =
        table.split("GLIBC_").skip(1).filter_map(number).max().context("no version of glibc")?;
    if Some(newest) > number(GLIBC) {
        bail!("it needs glibc {}.{}, later than {GLIBC}", newest.0, newest.1);
    }
    Ok(())
}

/// The version at the beginning of a text.
fn number(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((major.parse().ok()?, rest[..end].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::linked;
    use crate::dist::{ALL, Package};

    const LIBC: &str =
        " 0x01 (NEEDED) Shared library: [libc.so.6]\n  0x20:   Name: GLIBC_2.17  Flags: none\n";

    #[test]
    fn a_program_is_linked_as_its_package_promises() {
        let [fixed, dynamic] = ["x86_64-linux-static", "x86_64-linux"]
            .map(|name| ALL.iter().find(|package| package.name == name).unwrap());
        assert!(linked(fixed, "LOAD\n").is_ok());
        assert!(linked(dynamic, LIBC).is_ok());
        let message =
            |package: &Package, table: &str| linked(package, table).unwrap_err().to_string();
        assert!(message(fixed, LIBC).contains("libc.so.6"));
        assert!(message(dynamic, &LIBC.replace("2.17", "2.34")).contains("glibc 2.34"));
        assert!(message(dynamic, &LIBC.replace("libc.so", "libssl.so")).contains("libssl.so.6"));
    }
}
