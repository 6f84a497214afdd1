//! What is fetched, unpacked below `target/` and not installed: RADV and Vulkan's loader from Debian, DXC from PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The folder of libraries of a Debian package for this machine.
const LIBRARIES: &str = "root/usr/lib/x86_64-linux-gnu";

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
        crate::status(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(folder))?;
    }
    if !library.exists() {
        bail!("{} is not in {DXC_PACKAGE}", library.display());
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
        if !cfg!(all(target_os = "linux", target_arch = "x86_64"))
            || !Path::new("/usr/bin/apt-get").exists()
        {
            return Ok(Err("gpu-offline needs Debian on x86-64".to_owned()));
        }
        std::fs::create_dir_all(folder.join("lists/partial"))?;
        std::fs::create_dir_all(folder.join("cache/archives/partial"))?;
        std::fs::create_dir_all(folder.join("debs"))?;
        let Some(source) = source()? else {
            return Ok(Err("apt knows no archive of Debian, so no package of RADV".to_owned()));
        };
        std::fs::write(folder.join("sources.list"), source)?;
        eprintln!("xtask: unpacking Mesa's RADV into {}", folder.display());
        if let Err(error) = download(folder) {
            return Ok(Err(format!("{error:#}")));
        }
        for entry in std::fs::read_dir(folder.join("debs"))? {
            let mut command = Command::new("dpkg-deb");
            crate::status(command.arg("-x").arg(entry?.path()).arg(folder.join("root")))?;
        }
        let driver = packages.libraries.join("libvulkan_radeon.so");
        if !driver.exists() {
            bail!("{} is not in mesa-vulkan-drivers", driver.display());
        }
        let manifest = serde_json::json!({
            "file_format_version": "1.0.0",
            "ICD": { "library_path": driver, "api_version": "1.4.305" },
        });
        std::fs::write(&packages.manifest, manifest.to_string())?;
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

/// Lines for apt's sources: the archive that this Debian comes from, its backports and itself.
fn source() -> Result<Option<String>> {
    let release = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let field = |name: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim_matches('"').to_owned())
    };
    let Some(codename) =
        field("VERSION_CODENAME=").filter(|_| field("ID=").is_some_and(|id| id == "debian"))
    else {
        return Ok(None);
    };
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"]);
    let said = crate::output(&mut command)?;
    let of_release = |line: &&str| line.ends_with(&format!(" {codename}"));
    let Some(archive) = said.lines().find(of_release).and_then(|line| line.split(' ').next())
    else {
        return Ok(None);
    };
    let key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";
    let line = |suite: &str| format!("deb {key} {archive} {suite} main\n");
    Ok(Some(line(&format!("{codename}-{SUITE}")) + &line(&codename)))
}

/// The two packages, with lists and a cache of our own, so that the machine's are left alone.
fn download(folder: &Path) -> Result<()> {
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        let set = |name: &str, value: &str| format!("-o{name}={}", folder.join(value).display());
        command.args([
            set("Dir::Etc::sourcelist", "sources.list"),
            set("Dir::State::Lists", "lists"),
            set("Dir::Cache", "cache"),
            "-oDir::Etc::sourceparts=/dev/null".to_owned(),
            "-oAPT::Sandbox::User=root".to_owned(),
        ]);
        crate::output(command.args(args).current_dir(folder.join("debs"))).map(|_| ())
    };
    apt(&["update"])?;
    let release = std::fs::read_to_string("/etc/os-release")?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let suite = format!("{}-{SUITE}", codename.unwrap_or_default().trim_matches('"'));
    let newest = format!("mesa-vulkan-drivers/{suite}");
    apt(&["download", &newest]).or_else(|_| apt(&["download", "mesa-vulkan-drivers"]))?;
    apt(&["download", "libvulkan1"])
}
