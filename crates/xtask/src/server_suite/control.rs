//! Builds llama-server from the source that its tests come with.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{compare, status, venv};

/// What is built: one program without shared libraries, downloads, TLS and web page.
const OPTIONS: [&str; 7] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
];

/// Builds it in a folder of the suite, which takes some minutes once; returns its path.
pub fn build(folder: &Path) -> Result<PathBuf> {
    let built = folder.join("control");
    let program = built.join("bin/llama-server");
    if program.exists() {
        return Ok(program);
    }
    eprintln!("xtask: building llama-server into {}, which takes some minutes", built.display());
    let python = venv::ready(&folder.join("tools"), &["cmake", "ninja"])?;
    let cmake = python.with_file_name("cmake");
    let mut configure = Command::new(&cmake);
    configure.arg("-S").arg(folder.join(super::SOURCE)).arg("-B").arg(&built);
    configure.args(["-G", "Ninja"]).args(OPTIONS);
    configure.arg(format!("-DCMAKE_MAKE_PROGRAM={}", python.with_file_name("ninja").display()));
    if let Some(flags) = compare::host_flags() {
        configure.args(flags.split(' '));
    }
    status(&mut configure)?;
    let jobs = std::thread::available_parallelism()?.to_string();
    let target = ["--target", "llama-server", "-j", jobs.as_str()];
    status(Command::new(&cmake).arg("--build").arg(&built).args(target))?;
    Ok(program)
}
