//! What is fetched, unpacked below `target/` and not installed: RADV and Vulkan's loader from Debian, DXC from PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::debian::{Archive, LIBRARIES, driver_manifest};

/// A Mesa new enough to count instructions is in the backports of Debian 12.
const SUITE: &str = "backports";

/// DXC's version, for the page.
pub const DXC: &str = "DXC 1.7";

/// A source package of PyPI with DXC's library for Linux in it.
const DXC_PACKAGE: &str = "compushady==0.17.5";

/// The library's path in the package.
const DXC_LIBRARY: &str = "compushady-0.17.5/compushady/backends/libdxcompiler_x86_64.so.3.7";

/// DXC's library, downloaded and unpacked unless it is there.
///
/// # Errors
/// There is no Python, or PyPI cannot be reached.
pub fn dxc(folder: &Path) -> Result<PathBuf> {
    let library = folder.join(DXC_LIBRARY);
    if !library.exists() {
        let python = crate::venv::ready(&folder.join("venv"), &[])?;
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]);
        crate::output(pip.arg("--dest").arg(folder).arg(DXC_PACKAGE))?;
        let archive = folder.join(DXC_PACKAGE.replace("==", "-") + ".tar.gz");
        let mut tar = Command::new("tar");
        crate::status(tar.arg("-xzf").arg(&archive).arg("-C").arg(folder).arg(DXC_LIBRARY))?;
        std::fs::remove_file(archive)?;
    }
    Ok(library)
}

/// What was unpacked.
pub struct Packages {
    libraries: PathBuf,
    manifest: PathBuf,
}

impl Packages {
    /// Downloads and unpacks what is not there yet; or says why it cannot be had here.
    pub fn ready(folder: &Path) -> Result<Result<Packages, String>> {
        let libraries = folder.join(LIBRARIES);
        let manifest = folder.join("radv.json");
        let packages = Packages { libraries, manifest };
        if packages.manifest.exists() {
            return Ok(Ok(packages));
        }
        let suites = |codename: &str| vec![format!("{codename}-{SUITE}"), codename.to_owned()];
        let archive = match Archive::of(folder, suites)? {
            Ok(archive) => archive,
            Err(reason) => return Ok(Err(reason)),
        };
        eprintln!("xtask: unpacking Mesa's RADV into {}", folder.display());
        if let Err(error) = download(&archive) {
            return Ok(Err(format!("Mesa's packages cannot be had: {}", last_line(&error))));
        }
        archive.unpack()?;
        let driver = packages.libraries.join("libvulkan_radeon.so");
        if !driver.exists() {
            bail!("{} is not in mesa-vulkan-drivers", driver.display());
        }
        std::fs::write(&packages.manifest, driver_manifest(&driver))?;
        Ok(Ok(packages))
    }

    /// Makes a command find the loader, and the loader nothing but RADV.
    pub fn environment(&self, command: &mut Command) {
        let mut paths = vec![self.libraries.clone()];
        paths.extend(
            std::env::var_os("LD_LIBRARY_PATH")
                .iter()
                .flat_map(std::env::split_paths)
                .filter(|path| !path.as_os_str().is_empty()),
        );
        if let Ok(joined) = std::env::join_paths(paths) {
            command.env("LD_LIBRARY_PATH", joined);
        }
        command.env("VK_DRIVER_FILES", &self.manifest);
        command.env("VK_ICD_FILENAMES", &self.manifest);
        command.env("MESA_SHADER_CACHE_DISABLE", "true");
    }
}

/// The last line of an error: what a program that failed said at its end.
pub fn last_line(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let mut lines = text.lines().map(str::trim).filter(|line| line.len() > 2);
    lines.next_back().unwrap_or_default().to_owned()
}

/// The two packages.
fn download(archive: &Archive) -> Result<()> {
    archive.apt_get(&["update"])?;
    let newest = format!("mesa-vulkan-drivers/{}-{SUITE}", archive.codename);
    let download = |package: &str| archive.apt_get(&["download", package]);
    download(&newest).or_else(|_| download("mesa-vulkan-drivers"))?;
    download("libvulkan1")
}
