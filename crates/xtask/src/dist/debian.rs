//! The Debian package of a build for glibc.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::archive::LICENSES;
use super::{GLIBC, Workplace};
use crate::status;

/// Where Debian's shells look for completions, and the file of the archive.
const COMPLETIONS: [(&str, &str); 3] = [
    ("usr/share/bash-completion/completions/bilayer", "bilayer.bash"),
    ("usr/share/zsh/vendor-completions/_bilayer", "_bilayer"),
    ("usr/share/fish/vendor_completions.d/bilayer.fish", "bilayer.fish"),
];

/// Packs the contents of an archive as a package for apt and dpkg, with the systemd unit as an example.
///
/// # Errors
/// dpkg-deb is missing or fails.
pub fn pack(place: &Workplace, machine: &str, contents: &Path) -> Result<()> {
    let root = place.folder.join("debian").join(machine);
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    let copy = |from: &Path, to: &str| -> Result<()> {
        let to = root.join(to);
        fs::create_dir_all(to.parent().context("a file in a folder")?)?;
        fs::copy(from, &to).with_context(|| from.display().to_string())?;
        Ok(())
    };
    copy(&contents.join("bilayer"), "usr/bin/bilayer")?;
    for (to, from) in COMPLETIONS {
        copy(&contents.join("completions").join(from), to)?;
    }
    for page in fs::read_dir(contents.join("man"))? {
        let page = page?;
        let name = page.file_name();
        copy(&page.path(), &format!("usr/share/man/man1/{}", name.to_string_lossy()))?;
    }
    let documents = "usr/share/doc/bilayer";
    copy(&contents.join("README.md"), &format!("{documents}/README.md"))?;
    copy(&contents.join(LICENSES), &format!("{documents}/{LICENSES}"))?;
    let unit = fs::read_to_string(place.sources().join("examples/deploy/bilayer.service"))?;
    let unit = unit.replace("/usr/local/bin", "/usr/bin");
    fs::create_dir_all(root.join(documents).join("examples"))?;
    fs::write(root.join(documents).join("examples/bilayer.service"), unit)?;
    fs::write(root.join(documents).join("copyright"), copyright(contents)?)?;
    status(Command::new("gzip").args(["-n9r"]).arg(root.join("usr/share/man/man1")))?;
    fs::create_dir_all(root.join("DEBIAN"))?;
    fs::write(root.join("DEBIAN/control"), control(&place.version, machine, size(&root)?))?;
    status(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(&root))?;
    let file = place.packages().join(format!("bilayer_{}_{machine}.deb", place.version));
    let mut dpkg = place.command("dpkg-deb");
    status(
        dpkg.args(["--build", "--root-owner-group", "-Zxz", "--uniform-compression"])
            .arg(&root)
            .arg(file),
    )
    .context("dpkg-deb is needed (Debian, Fedora and Arch: dpkg)")
}

/// What dpkg knows about the package. Vulkan is loaded while it runs, if it is there.
fn control(version: &str, machine: &str, kib: u64) -> String {
    format!(
        "Package: bilayer\nVersion: {version}\nArchitecture: {machine}\nSection: utils\nPriority: optional\n\
         Maintainer: The Bilayer authors <bilayer@localhost>\nHomepage: https://github.com/bilayer/bilayer\n\
         Installed-Size: {kib}\nDepends: libc6 (>= {GLIBC})\nRecommends: ca-certificates, libvulkan1\n\
         Suggests: mesa-vulkan-drivers\n\
         Description: runtime for large language models on CPU and GPU\n \
         Runs GGUF models on the CPU, the GPU or both: text, chat, embeddings, an\n \
         OpenAI-compatible server, conversion and quantization.\n"
    )
}

/// Our licences; those of dependencies have a file of their own.
fn copyright(contents: &Path) -> Result<String> {
    let texts =
        ["LICENSE-MIT", "LICENSE-APACHE"].map(|name| fs::read_to_string(contents.join(name)));
    let [mit, apache] = texts;
    Ok(format!(
        "Bilayer is licensed under the MIT or the Apache 2.0 license, as you choose.\n\
         The licenses of the libraries in the program: {LICENSES}.\n\n{}\n\n{}",
        mit?, apache?
    ))
}

/// KiB of all files below a folder, each rounded up.
fn size(folder: &Path) -> Result<u64> {
    let mut kib = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        kib += if meta.is_dir() { 1 + size(&entry.path())? } else { meta.len().div_ceil(1024) };
    }
    Ok(kib)
}
