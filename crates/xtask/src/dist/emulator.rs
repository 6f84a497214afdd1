//! What runs a program for another machine: qemu and that machine's C library, installed or unpacked into a folder of ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::debian::Archive;
use crate::has_program;

/// Debian's packages: the emulator as a static program, and the C library for 64-bit Arm.
const PACKAGES: [&str; 2] = ["qemu-user-static", "libc6-arm64-cross"];

/// Where Debian's packages have the C library for 64-bit Arm.
const SYSROOT: &str = "usr/aarch64-linux-gnu";

/// The program's name where the machine has it.
const INSTALLED: &str = "qemu-aarch64";

/// An emulator of 64-bit Arm.
pub struct Emulator {
    program: PathBuf,
    sysroot: PathBuf,
}

impl Emulator {
    /// The machine's emulator, or else one that is unpacked into `folder`.
    ///
    /// # Errors
    /// There is none, and it cannot be had.
    pub fn ready(folder: &Path) -> Result<Emulator> {
        let sysroot = Path::new("/").join(SYSROOT);
        if has_program(&[INSTALLED]) && sysroot.exists() {
            return Ok(Emulator { program: PathBuf::from(INSTALLED), sysroot });
        }
        let root = folder.join("root");
        let program = root.join("usr/bin/qemu-aarch64-static");
        let emulator = Emulator { program, sysroot: root.join(SYSROOT) };
        if emulator.is_there() {
            return Ok(emulator);
        }
        std::fs::create_dir_all(folder)?;
        eprintln!("xtask: unpacking {} into {}", PACKAGES.join(" and "), folder.display());
        let got = Archive::of(folder, |codename| vec![codename.to_owned()])?
            .map_err(anyhow::Error::msg)
            .and_then(|archive| archive.download_whole(&PACKAGES).and_then(|()| archive.unpack()));
        if let Err(error) = got {
            bail!("`{INSTALLED}` and /{SYSROOT} are needed (Debian: {PACKAGES:?}): {error:#}");
        }
        if !emulator.is_there() {
            bail!("{PACKAGES:?} have no {} or no {SYSROOT}", emulator.program.display());
        }
        Ok(emulator)
    }

    fn is_there(&self) -> bool {
        self.program.exists() && self.sysroot.exists()
    }

    /// A command that runs a program.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("-L").arg(&self.sysroot).arg(program);
        command
    }
}
