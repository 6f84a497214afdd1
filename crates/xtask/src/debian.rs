//! Debian packages that are unpacked into a folder of ours: nothing is installed, and the machine's lists are left alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The libraries of a package for this machine, below the folder that packages are unpacked into.
pub const LIBRARIES: &str = "root/usr/lib/x86_64-linux-gnu";

/// The archive that this Debian comes from, with lists, downloads and unpacked files below a folder.
pub struct Archive {
    folder: PathBuf,
    /// The name of this release.
    pub codename: String,
}

impl Archive {
    /// The archive in a folder, with the suites that are made of the release's name; or why it cannot be had here.
    pub fn of(folder: &Path, suites: fn(&str) -> Vec<String>) -> Result<Result<Archive, String>> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64"))
            || !Path::new("/usr/bin/apt-get").exists()
        {
            return Ok(Err("packages are unpacked on Debian on x86-64 only".to_owned()));
        }
        let Some((archive, codename)) = archive()? else {
            return Ok(Err("apt knows no archive of Debian".to_owned()));
        };
        for part in ["lists/partial", "cache/archives/partial", "debs"] {
            std::fs::create_dir_all(folder.join(part))?;
        }
        let key = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]";
        let line = |suite: &String| format!("deb {key} {archive} {suite} main\n");
        let lines: String = suites(&codename).iter().map(line).collect();
        std::fs::write(folder.join("sources.list"), lines)?;
        // No package counts as installed, so that a download has whatever it depends on.
        std::fs::write(folder.join("status"), "")?;
        Ok(Ok(Archive { folder: folder.to_owned(), codename }))
    }

    /// Runs apt-get in the folder `debs`.
    pub fn apt_get(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new("apt-get");
        let set =
            |name: &str, value: &str| format!("-o{name}={}", self.folder.join(value).display());
        command.args([
            set("Dir::Etc::sourcelist", "sources.list"),
            set("Dir::State::Lists", "lists"),
            set("Dir::State::status", "status"),
            set("Dir::Cache", "cache"),
            "-oDir::Etc::sourceparts=/dev/null".to_owned(),
            "-oAPT::Sandbox::User=root".to_owned(),
            "-oDebug::NoLocking=1".to_owned(),
        ]);
        crate::output(command.args(args).current_dir(self.folder.join("debs"))).map(|_| ())
    }

    /// Downloads packages with all that they depend on.
    pub fn download_whole(&self, packages: &[&str]) -> Result<()> {
        self.apt_get(&["update"])?;
        let args = ["install", "--yes", "--no-install-recommends", "--download-only"];
        self.apt_get(&[&args, packages].concat())
    }

    /// Unpacks what was downloaded into the folder `root`.
    pub fn unpack(&self) -> Result<()> {
        for downloads in ["debs", "cache/archives"] {
            for entry in std::fs::read_dir(self.folder.join(downloads))? {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "deb") {
                    let mut command = Command::new("dpkg-deb");
                    crate::status(command.arg("-x").arg(path).arg(self.folder.join("root")))?;
                }
            }
        }
        Ok(())
    }
}

/// The manifest of an unpacked Vulkan driver, for the loader's `VK_DRIVER_FILES`.
pub fn driver_manifest(driver: &Path) -> String {
    serde_json::json!({
        "file_format_version": "1.0.0",
        "ICD": { "library_path": driver, "api_version": "1.4.305" },
    })
    .to_string()
}

/// The address of the archive that this Debian comes from, and the release's name.
fn archive() -> Result<Option<(String, String)>> {
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
    let archive = said.lines().find(of_release).and_then(|line| line.split(' ').next());
    Ok(archive.map(|archive| (archive.to_owned(), codename)))
}
