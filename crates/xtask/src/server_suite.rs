//! `cargo xtask llama-server-suite`: runs llama.cpp's own tests of llama-server, unmodified, against `bilayer serve`.

use std::ffi::OsStr;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

mod control;
mod verdict;

use verdict::{Entry, Fact, Server};

use crate::{compare, output, status, venv};

pub const USAGE: &str = "\
cargo xtask llama-server-suite [--bilayer PROGRAM] [--control build|LLAMA_SERVER] [-- PYTEST ARGS]
                              run llama.cpp's tests of llama-server against this program, on small models made from
                              ../shared/data; --control runs them against llama-server on the same models instead,
                              which it builds from the source of the tests or finds at a path";

/// The package whose source archive contains llama.cpp, and its version.
const PACKAGE: [&str; 2] = ["llama-cpp-python", "0.3.36"];

/// What the tests' own requirements.txt names, and what our plugin and models need.
const PACKAGES: [&str; 10] = [
    "aiohttp~=3.9",
    "filelock~=3.16",
    "gguf",
    "numpy",
    "openai~=2.14.0",
    "prometheus-client~=0.20.0",
    "pytest~=8.3",
    "pytest-timeout",
    "requests~=2.32",
    "wget~=3.2",
];

/// Where llama.cpp is in the unpacked archive.
const SOURCE: &str = "llama_cpp_python-0.3.36/vendor/llama.cpp";

/// Test files in scope. The others test images, routers, proxies, tools, LoRA and drafts of llama-server.
const FILES: &[&str] = &[
    "basic",
    "chat_completion",
    "completion",
    "ctx_shift",
    "embedding",
    "ignore_eos",
    "tokenize",
    "template",
    "rerank",
    "metrics",
    "security",
    "compat_anthropic",
    "compat_oai_responses",
    "slot_save",
    "infill",
    "kv_keep_only_active",
    "stream",
    "tool_call",
];

/// Tests that are out of scope or known to fail, each with its reason.
const MISSES: &str = include_str!("server_suite/misses.txt");

/// The parts in Python. The tests start the shim as their llama-server.
const SCRIPTS: [(&str, &str); 4] = [
    ("setup.py", include_str!("server_suite/setup.py")),
    ("models.py", include_str!("server_suite/models.py")),
    ("shim.py", include_str!("server_suite/shim.py")),
    ("bilayer_plugin.py", include_str!("server_suite/bilayer_plugin.py")),
];

/// Runs the suite and compares its failures with the list of known ones.
pub fn run(args: &[String]) -> Result<()> {
    let (own, pytest) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], &args[at + 1..]),
        None => (args, &args[..0]),
    };
    let (mut bilayer, mut control) = (None, None);
    let mut own = own.iter();
    while let Some(flag) = own.next() {
        let value = own.next().with_context(|| format!("{flag} needs a value\n{USAGE}"))?;
        match flag.as_str() {
            "--bilayer" => bilayer = Some(PathBuf::from(value)),
            "--control" => control = Some(value.as_str()),
            _ => bail!("no flag `{flag}`\n{USAGE}"),
        }
    }
    let list = verdict::list(MISSES)?;
    let suite = Suite::ready(compare::program(bilayer.as_deref())?)?;
    let (server, program) = match control {
        None => (Server::Bilayer, suite.bilayer.clone()),
        Some("build") => (Server::Control, control::build(&suite.folder)?),
        Some(path) => (Server::Control, compare::program(Some(Path::new(path)))?),
    };
    let found = suite.outcomes(server, &program, &list, pytest)?;
    let (text, wrong) = verdict::judge(&found, &list, server);
    std::io::stdout().write_all(text.as_bytes())?;
    match wrong {
        0 => Ok(()),
        _ => bail!("{wrong} outcomes are not as crates/xtask/src/server_suite/misses.txt says"),
    }
}

/// The tests with what they need.
struct Suite {
    bilayer: PathBuf,
    folder: PathBuf,
    python: PathBuf,
}

impl Suite {
    /// Downloads the tests, installs their requirements and makes the models.
    fn ready(bilayer: PathBuf) -> Result<Suite> {
        let shared = Path::new("../shared/data");
        if !shared.exists() {
            bail!("../shared/data is not there: the models of the tests are made from it");
        }
        let folder = std::path::absolute("target/llama-server-suite")?;
        std::fs::create_dir_all(&folder)?;
        for (name, text) in SCRIPTS {
            std::fs::write(folder.join(name), text)?;
        }
        status(Command::new("chmod").arg("+x").arg(folder.join("shim.py")))?;
        let python = venv::ready(&folder.join("venv"), &PACKAGES)?;
        let suite = Suite { bilayer, folder, python };
        let (folder, bilayer) = (suite.folder.as_os_str(), suite.bilayer.as_os_str());
        suite.script("setup.py", &[folder, PACKAGE[0].as_ref(), PACKAGE[1].as_ref()])?;
        let models = suite.folder.join("models");
        suite.script("models.py", &[bilayer, shared.as_os_str(), models.as_os_str()])?;
        Ok(suite)
    }

    /// Runs a script of ours to its end.
    fn script(&self, name: &str, args: &[&OsStr]) -> Result<()> {
        status(Command::new(&self.python).arg(self.folder.join(name)).args(args))
    }

    /// Runs the tests against a program; returns their outcomes, which are also kept in a file.
    fn outcomes(
        &self,
        server: Server,
        program: &Path,
        list: &[Entry<'_>],
        pytest: &[String],
    ) -> Result<verdict::Outcomes> {
        let report = self.folder.join(match server {
            Server::Bilayer => "outcomes-bilayer.txt",
            Server::Control => "outcomes-control.txt",
        });
        std::fs::write(&report, "")?;
        let outside = list.iter().filter(|entry| entry.fact == Fact::Outside);
        let outside: Vec<&str> = outside.map(|entry| entry.part).collect();
        let mut tests = Command::new(&self.python);
        tests.current_dir(self.folder.join(SOURCE).join("tools/server/tests"));
        tests.args(["-m", "pytest", "-p", "bilayer_plugin", "-p", "no:cacheprovider", "-q"]);
        tests.args(["-m", "not slow", "--timeout", "120", "--tb", "short", "--show-capture", "no"]);
        tests.args(FILES.iter().map(|name| format!("unit/test_{name}.py"))).args(pytest);
        tests.env("PYTHONPATH", format!("{}:.", self.folder.display()));
        tests.env("LLAMA_SERVER_BIN_PATH", self.folder.join("shim.py"));
        tests.env("PORT", free_port()?.to_string()).env("SUITE_OUTSIDE", outside.join("\n"));
        tests.env("SUITE_MODELS", self.folder.join("models")).env("SUITE_REPORT", &report);
        tests.env("SUITE_SERVER", program);
        if server == Server::Bilayer {
            let help = output(Command::new(program).args(["serve", "--help"]))?;
            tests.env("SUITE_FLAGS", flags(&help).join(" "));
        }
        let status = tests.status().context("pytest could not be started")?;
        // 1 means that tests failed: which, is judged by the list.
        if !matches!(status.code(), Some(0 | 1)) {
            bail!("pytest did not run the tests to their end: {status}");
        }
        verdict::outcomes(&std::fs::read_to_string(&report)?)
    }
}

/// A port that nobody uses at the moment.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// The long flags named in a help text.
fn flags(help: &str) -> Vec<&str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let words = help.split(|letter: char| !is_part(letter));
    words.filter(|word| word.starts_with("--") && word.len() > 2).collect()
}

#[cfg(test)]
mod tests {
    use super::flags;

    #[test]
    fn flags_are_found_in_a_help_text() {
        let help = "  -n, --n-predict <N>  Maximum [default: -1]; unless with --kv-unified. a -- b";
        assert_eq!(flags(help), ["--n-predict", "--kv-unified"]);
    }
}
