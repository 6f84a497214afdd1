//! `cargo xtask coop-check`: runs the tests of kernels with cooperative matrices on a newer Mesa's software adapter.
//!
//! Mesa 26's lavapipe multiplies cooperative matrices; Debian's stable releases have an older one. The driver is unpacked from
//! Debian unstable with all its libraries, the C library too, whose loader starts the tests.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::debian::{Archive, LIBRARIES, driver_manifest};

pub const USAGE: &str = "\
cargo xtask coop-check [-- ARGS]
                              run the tests of kernels with cooperative matrices on the software adapter of Debian unstable's
                              Mesa, unpacked into target/coop-check (ARGS go to the tests instead of their names)";

/// Test files, and the tests in them that use cooperative matrices.
const TESTS: [(&str, &str, &[&str]); 2] = [
    ("bilayer-gpu", "device", &["tiles_are_measured_once"]),
    (
        "bilayer",
        "kernels",
        &["attention_with_matrices", "tiles_of_matrices", "products_without_an_expert"],
    ),
];

/// Runs the task.
pub fn run(args: &[String]) -> Result<()> {
    let wanted = match args {
        [] => None,
        [dashes, rest @ ..] if dashes == "--" => Some(rest),
        _ => bail!("coop-check does not know `{}`\n{USAGE}", args.join(" ")),
    };
    let folder = crate::target_folder()?.join("coop-check");
    if let Err(reason) = ready(&folder)? {
        return crate::say(&format!("skipped: {reason}"));
    }
    for (package, test, filters) in TESTS {
        let program = crate::test_program(&["--package", package], test)?;
        let libraries = folder.join(LIBRARIES);
        let mut tests = Command::new(libraries.join("ld-linux-x86-64.so.2"));
        tests.arg("--library-path").arg(&libraries).arg(program).arg("--nocapture");
        tests.env("VK_DRIVER_FILES", folder.join("lavapipe.json"));
        tests.envs([("BILAYER_REQUIRE_GPU", "1"), ("BILAYER_REQUIRE_COOP", "1")]);
        match wanted {
            None => crate::named_tests(tests.args(filters), filters)?,
            Some(args) => crate::status(tests.args(args))?,
        }
    }
    Ok(())
}

/// Unpacks the driver unless it is there; or says why it cannot be had.
fn ready(folder: &Path) -> Result<Result<(), String>> {
    let file = folder.join("lavapipe.json");
    if file.exists() {
        return Ok(Ok(()));
    }
    let archive = match Archive::of(folder, |_| vec!["unstable".to_owned()])? {
        Ok(archive) => archive,
        Err(reason) => return Ok(Err(reason)),
    };
    eprintln!("xtask: unpacking Mesa of Debian unstable into {}", folder.display());
    if let Err(error) = archive.download_whole(&["mesa-vulkan-drivers", "libvulkan1"]) {
        return Ok(Err(format!("{error:#}")));
    }
    archive.unpack()?;
    let driver = folder.join(LIBRARIES).join("libvulkan_lvp.so");
    if !driver.exists() {
        bail!("{} is not in mesa-vulkan-drivers", driver.display());
    }
    std::fs::write(file, driver_manifest(&driver))?;
    Ok(Ok(()))
}
