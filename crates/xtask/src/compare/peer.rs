//! Runs llama.cpp through llama-cpp-python in its own virtual environment.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};
use serde_json::Value;

use super::cases::Case;
use super::{Measured, Tests, keep_best};
use crate::{output, status};

/// The version that is measured.
const VERSION: &str = "llama-cpp-python==0.3.36";

const SCRIPT: &str = include_str!("peer.py");

/// The target of the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// The host CPU.
    Native,
    /// Any CPU with AVX2, as run by most users.
    Avx2,
}

impl FromStr for Build {
    type Err = Error;

    fn from_str(name: &str) -> Result<Build> {
        match name {
            "native" => Ok(Build::Native),
            "avx2" => Ok(Build::Avx2),
            _ => bail!("--peer is native or avx2, not `{name}`"),
        }
    }
}

/// An installed llama.cpp.
pub struct Peer {
    /// The interpreter of its environment.
    pub python: PathBuf,
    script: PathBuf,
}

impl Peer {
    /// Installs it, which takes some minutes once.
    pub fn ready(folder: &Path, build: Build) -> Result<Peer> {
        std::fs::create_dir_all(folder)?;
        let script = folder.join("peer.py");
        std::fs::write(&script, SCRIPT)?;
        let venv = folder.join(match build {
            Build::Native => "venv",
            Build::Avx2 => "venv-avx2",
        });
        let python = venv.join("bin/python");
        let there = Command::new(&python).args(["-c", "import llama_cpp"]).output();
        if there.is_ok_and(|ran| ran.status.success()) {
            return Ok(Peer { python, script });
        }
        eprintln!("xtask: installing {VERSION} into {}, which takes some minutes", venv.display());
        status(Command::new("python3").args(["-m", "venv"]).arg(&venv))?;
        let flags = match build {
            Build::Native => host_flags(),
            Build::Avx2 => Some(flags("sse4_2 avx avx2 fma f16c bmi2")),
        };
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-cache-dir", VERSION]);
        // Vision is not measured.
        let flags = flags.map_or_else(String::new, |flags| format!(" {flags}"));
        pip.env("CMAKE_ARGS", format!("-DLLAVA_BUILD=OFF{flags}"));
        status(&mut pip)?;
        Ok(Peer { python, script })
    }

    /// Measures it with repacked weights and without, and takes the better result of each test.
    pub fn measure(&self, file: &Path, case: &Case) -> Result<Tests> {
        let mut best = Tests::new();
        for repack in ["1", "0"] {
            keep_best(&mut best, self.once(file, case, repack)?, case);
        }
        Ok(best)
    }

    fn once(&self, file: &Path, case: &Case, repack: &str) -> Result<Tests> {
        let [threads, prompt, generate, depth] =
            [case.threads, case.prompt, case.generate, case.depth].map(|number| number.to_string());
        let sequences: Vec<String> = case.sequences.iter().map(usize::to_string).collect();
        let first = if case.first_token { "1" } else { "0" };
        let mut command = Command::new(&self.python);
        command.arg(&self.script).arg(file).args([&threads, &prompt, &generate]);
        command.args([repack, &sequences.join(","), &depth, first]);
        let read = |line: &str| -> Result<(String, Measured)> {
            let test: Value = serde_json::from_str(line)?;
            let name = test["test"].as_str().context("no test")?;
            let measured = Measured {
                value: test["value"].as_f64().context("no value")?,
                peak: test["peak_resident_bytes"].as_f64().unwrap_or(f64::NAN),
                share: None,
            };
            Ok((name.to_owned(), measured))
        };
        output(&mut command)?.lines().map(read).collect()
    }
}

/// The CPU features a build may use, by their names in `/proc/cpuinfo`, as CMake arguments.
fn flags(cpuinfo: &str) -> String {
    const KNOWN: [(&str, &str); 11] = [
        ("sse4_2", "SSE42"),
        ("avx", "AVX"),
        ("avx2", "AVX2"),
        ("fma", "FMA"),
        ("f16c", "F16C"),
        ("bmi2", "BMI2"),
        ("avx_vnni", "AVX_VNNI"),
        ("avx512f", "AVX512"),
        ("avx512vbmi", "AVX512_VBMI"),
        ("avx512_vnni", "AVX512_VNNI"),
        ("avx512_bf16", "AVX512_BF16"),
    ];
    let on = KNOWN.iter().filter(|(flag, _)| has(cpuinfo, flag));
    let on = on.map(|(_, name)| format!("-DGGML_{name}=ON"));
    std::iter::once("-DGGML_NATIVE=OFF".to_owned()).chain(on).collect::<Vec<_>>().join(" ")
}

fn has(cpuinfo: &str, name: &str) -> bool {
    cpuinfo.split_whitespace().any(|flag| flag == name)
}

/// CMake arguments that this host's build of llama.cpp needs, if any.
pub fn host_flags() -> Option<String> {
    without_amx(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// llama.cpp 0.3.36 with AMX stops with an illegal instruction on virtual machines that have AMX: there it is built
/// for the CPU's other features. `None` without AMX.
fn without_amx(cpuinfo: &str) -> Option<String> {
    has(cpuinfo, "amx_tile").then(|| flags(cpuinfo))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_with_tiles_get_a_build_without() {
        assert_eq!(without_amx("flags : avx2 avx512f"), None);
        let flags = without_amx("flags : avx2 avx512f amx_tile").unwrap();
        assert_eq!(flags, "-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_AVX512=ON");
    }
}
