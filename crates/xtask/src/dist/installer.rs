//! Installs the packages as a user would: with the shell script from a folder and over HTTP, and with apt.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Package, Workplace};
use crate::{has_program, output, status};

/// The installer, in the sources.
const SCRIPT: &str = "crates/xtask/src/dist/install.sh";

/// Puts the installer beside the packages, for their version.
///
/// # Errors
/// The script has no line with a version.
pub fn write(place: &Workplace) -> Result<()> {
    let script = fs::read_to_string(place.sources().join(SCRIPT)).context(SCRIPT)?;
    Ok(fs::write(place.packages().join("install.sh"), of_version(&script, &place.version)?)?)
}

/// The script with `version` as the one that it installs.
fn of_version(script: &str, version: &str) -> Result<String> {
    let is_version = |line: &&str| line.starts_with("version=");
    let line = script.lines().find(is_version).context("install.sh has no line `version=...`")?;
    Ok(script.replacen(&format!("\n{line}\n"), &format!("\nversion={version}\n"), 1))
}

/// Installs every package for this machine; a package whose checksum is wrong must be refused.
///
/// # Errors
/// A package cannot be installed, or one that was changed can.
pub fn check(place: &Workplace, chosen: &[&Package]) -> Result<()> {
    let packages = place.packages();
    for package in chosen.iter().filter(|package| !package.emulates()) {
        let kind: &[&str] = if package.is_static() { &["--static"] } else { &[] };
        let prefix = place.folder.join("installed").join(package.name);
        if prefix.exists() {
            fs::remove_dir_all(&prefix)?;
        }
        let server = Server::start(place, &packages)?;
        let from_folder = packages.to_str().context("a folder's name")?;
        // Without the flag it installs the version that it was written for.
        let given = ["--version", place.version.as_str()];
        for (base, flags) in [(server.url.as_str(), &given[..]), (from_folder, &[])] {
            let version = output(script(place, base, &prefix).args(flags).args(kind))?;
            if !version.contains(&place.version) {
                bail!("the installed program is of another version: {version}");
            }
        }
        for file in
            ["bin/bilayer", "share/man/man1/bilayer.1", "share/bash-completion/completions/bilayer"]
        {
            if !prefix.join(file).is_file() {
                bail!("install.sh has not installed {file}");
            }
        }
        refused(place, kind)?;
        if let Some(machine) = package.debian {
            apt(place, machine)?;
        }
    }
    Ok(())
}

fn script(place: &Workplace, base: &str, prefix: &Path) -> Command {
    let mut script = Command::new("sh");
    script.arg(place.packages().join("install.sh"));
    script.args(["--from", base, "--prefix"]).arg(prefix);
    script
}

/// # Errors
/// An archive that was changed is installed.
fn refused(place: &Workplace, kind: &[&str]) -> Result<()> {
    let (changed, prefix) = (place.folder.join("changed"), place.folder.join("installed/nothing"));
    for folder in [&changed, &prefix] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    fs::create_dir_all(&changed)?;
    for file in fs::read_dir(place.packages())? {
        let file = file?;
        let mut bytes = fs::read(file.path())?;
        if file.path().extension().is_some_and(|extension| extension == "gz") {
            *bytes.last_mut().context("an archive is not empty")? ^= 1;
        }
        fs::write(changed.join(file.file_name()), bytes)?;
    }
    let base = changed.to_str().context("a folder's name")?;
    let ran = script(place, base, &prefix).args(kind).output()?;
    let error = String::from_utf8_lossy(&ran.stderr).into_owned();
    if ran.status.success() || prefix.exists() || !error.contains("nothing was installed") {
        bail!("install.sh should refuse an archive whose checksum is wrong: {error}");
    }
    Ok(())
}

/// # Errors
/// apt could not install the Debian package on this machine.
fn apt(place: &Workplace, machine: &str) -> Result<()> {
    let file = place.packages().join(format!("bilayer_{}_{machine}.deb", place.version));
    if has_program(&["apt-get"]) {
        let mut apt = Command::new("apt-get");
        output(apt.args(["install", "--simulate"]).arg(&file))?;
    } else {
        eprintln!("xtask: not tried with apt: `apt-get` is missing");
    }
    let root = place.folder.join("installed").join("debian");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    status(Command::new("dpkg-deb").arg("--extract").arg(&file).arg(&root))?;
    let version = output(Command::new(root.join("usr/bin/bilayer")).arg("--version"))?;
    if !version.contains(&place.version) {
        bail!("the program in {} is of another version: {version}", file.display());
    }
    Ok(())
}

/// A server of files on this machine, Python's; it ends with this value.
struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start(place: &Workplace, folder: &Path) -> Result<Server> {
        // The port is free a moment before; nothing else on this machine takes ports in between but by chance.
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut python = Command::new(place.tools.join("python"));
        python.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string(), "--directory"]);
        python.arg(folder).stdout(Stdio::null()).stderr(Stdio::null());
        let process = python.spawn().context("Python's file server")?;
        let server = Server { process, url: format!("http://127.0.0.1:{port}") };
        let start = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            if start.elapsed() > Duration::from_secs(20) {
                bail!("Python's file server does not start");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::of_version;

    #[test]
    fn the_installer_is_for_the_version_of_its_packages() {
        let script = include_str!("install.sh");
        let written = of_version(script, "12.3.4").unwrap();
        assert!(written.contains("\nversion=12.3.4\n"), "{written}");
        assert_eq!(written.lines().count(), script.lines().count());
        assert!(of_version("#!/bin/sh\nexit\n", "1.0.0").is_err());
    }
}
