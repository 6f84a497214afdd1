//! `cargo xtask clients`: runs the clients that people use, unmodified from PyPI, and the web page against `bilayer serve`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::{compare, has_program, status, venv};

pub const USAGE: &str = "\
cargo xtask clients [--bilayer PROGRAM] [NAME...]
                              check the server with the clients of PyPI (openai-2, openai-3, anthropic, litellm,
                              langchain-openai, instructor, lm-eval, and schemathesis, which tries what /openapi.json
                              allows; in target/clients) and its page in Chromium (page); --bilayer takes a ready program instead of building one";

/// A set of packages, and the checks that use them.
struct Client {
    name: &'static str,
    packages: &'static [&'static str],
    scripts: &'static [&'static str],
}

const OPENAI: &[&str] = &["check_openai.py", "check_openai_service.py"];

const CLIENTS: &[Client] = &[
    Client { name: "openai-2", packages: &["openai~=2.14.0"], scripts: OPENAI },
    Client { name: "openai-3", packages: &["openai~=3.54"], scripts: OPENAI },
    Client { name: "anthropic", packages: &["anthropic~=2.12"], scripts: &["check_anthropic.py"] },
    Client {
        name: "litellm",
        // Newer versions need a certifi that is not published. Tool calls import mcp, which is not installed with it;
        // the others keep pip from trying their older versions one by one.
        packages: &[
            "litellm==1.106.2",
            "mcp~=2.3",
            "huggingface-hub~=1.33",
            "filelock~=3.16",
            "boto3~=1.44.0",
        ],
        scripts: &["check_litellm.py"],
    },
    Client {
        name: "langchain-openai",
        packages: &["langchain-openai~=1.7"],
        scripts: &["check_langchain.py"],
    },
    Client {
        name: "instructor",
        packages: &["instructor~=1.17"],
        scripts: &["check_instructor.py"],
    },
    Client {
        name: "lm-eval",
        packages: &["lm-eval[api]~=0.4.13", "transformers~=5.0", "gguf~=0.17"],
        scripts: &["check_lm_eval.py"],
    },
    Client {
        name: "schemathesis",
        packages: &["schemathesis~=4.32"],
        scripts: &["check_schemathesis.py"],
    },
];

/// The name that picks the checks of the web page.
const PAGE: &str = "page";

/// All scripts, which are written to one folder.
const SCRIPTS: &[(&str, &str)] = &[
    ("common.py", include_str!("clients/common.py")),
    ("check_openai.py", include_str!("clients/check_openai.py")),
    ("check_openai_service.py", include_str!("clients/check_openai_service.py")),
    ("check_anthropic.py", include_str!("clients/check_anthropic.py")),
    ("check_litellm.py", include_str!("clients/check_litellm.py")),
    ("check_langchain.py", include_str!("clients/check_langchain.py")),
    ("check_instructor.py", include_str!("clients/check_instructor.py")),
    ("check_lm_eval.py", include_str!("clients/check_lm_eval.py")),
    ("check_schemathesis.py", include_str!("clients/check_schemathesis.py")),
    ("reference.py", include_str!("clients/reference.py")),
];

/// The encoder for embeddings, and the demo model whose scores are computed again without this program.
const ENCODER: &str = "../shared/data/all-minilm-l6-v2/model";
const DEMO: &str = "crates/cli/assets/demo.gguf";

/// Numbers of checks by outcome.
#[derive(Debug, Default, PartialEq)]
struct Tally {
    held: usize,
    failed: usize,
}

impl Tally {
    /// Counts a line of a script.
    fn line(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("ok", _)) => self.held += 1,
            Some(("failed", _)) => self.failed += 1,
            _ => {}
        }
    }
}

/// Runs the checks of the named clients, or of all.
pub fn run(args: &[String]) -> Result<()> {
    let (bilayer, names) = match args {
        [flag, path, names @ ..] if flag == "--bilayer" => (Some(PathBuf::from(path)), names),
        names => (None, names),
    };
    let known = || CLIENTS.iter().map(|client| client.name).chain([PAGE]);
    if let Some(name) = names.iter().find(|name| !known().any(|known| known == name.as_str())) {
        bail!("no client `{name}`\n{USAGE}");
    }
    let bilayer = compare::program(bilayer.as_deref())?;
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    let mut tally = Tally::default();
    let wanted: Vec<&Client> = CLIENTS.iter().filter(|client| is_wanted(client.name)).collect();
    if !wanted.is_empty() {
        let place = Place::ready(&bilayer)?;
        for client in wanted {
            place.check(client, &mut tally)?;
        }
    }
    if is_wanted(PAGE) {
        match missing_browser() {
            None => page(&bilayer, &mut tally)?,
            Some(advice) if names.is_empty() => crate::say(&format!("skipped page: {advice}"))?,
            Some(advice) => bail!("{advice}"),
        }
    }
    crate::say(&format!("{} checks hold, {} failed", tally.held, tally.failed))?;
    if tally.failed > 0 {
        bail!("{} checks failed", tally.failed);
    }
    Ok(())
}

/// The folder with the environments, and what the scripts need.
struct Place {
    folder: PathBuf,
    bilayer: PathBuf,
    encoder: PathBuf,
}

impl Place {
    fn ready(bilayer: &Path) -> Result<Place> {
        let folder = std::path::absolute("target/clients")?;
        std::fs::create_dir_all(folder.join("scripts"))?;
        for (name, text) in SCRIPTS {
            std::fs::write(folder.join("scripts").join(name), text)?;
        }
        let encoder = folder.join("minilm.gguf");
        if !encoder.exists() {
            let mut convert = Command::new(bilayer);
            convert.args(["convert", ENCODER, "--outtype", "f16", "--outfile"]).arg(&encoder);
            status(&mut convert).with_context(|| format!("the encoder of {ENCODER}"))?;
        }
        Ok(Place { folder, bilayer: bilayer.to_owned(), encoder })
    }

    /// Runs the scripts of a client in its environment.
    fn check(&self, client: &Client, tally: &mut Tally) -> Result<()> {
        let python = venv::ready(&self.folder.join(client.name), client.packages)?;
        for script in client.scripts {
            let mut command = Command::new(&python);
            command.arg(self.folder.join("scripts").join(script));
            command.env("BILAYER", &self.bilayer).env("ENCODER", &self.encoder);
            command.env("DEMO", std::path::absolute(DEMO)?);
            // Nothing but the server under test may be asked.
            command.env("NO_PROXY", "127.0.0.1").env("no_proxy", "127.0.0.1");
            command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").env("LANGSMITH_TRACING", "false");
            command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", self.folder.join("huggingface"));
            let log = self.folder.join(format!("{}-{script}.log", client.name));
            counted(command, &log, tally)?;
        }
        Ok(())
    }
}

/// What to install for the checks of the page, if anything.
fn missing_browser() -> Option<&'static str> {
    let is_there = has_program(&crate::CHROMIUM) && has_program(&["chromedriver"]);
    let advice = "the page needs Chromium and chromedriver (Debian: chromium and chromium-driver)";
    (!is_there).then_some(advice)
}

/// Checks the page in headless Chromium.
fn page(bilayer: &Path, tally: &mut Tally) -> Result<()> {
    let folder = std::path::absolute("target/clients/page")?;
    std::fs::create_dir_all(&folder)?;
    let mut command = Command::new("python3");
    command.args(["tests/web/check.py", "--bilayer"]).arg(bilayer).arg("--out").arg(&folder);
    counted(command, &folder.join("check.log"), tally)?;
    crate::say(&format!("screenshots of the page are in {}", folder.display()))
}

/// Runs a script, shows its lines and counts them. Its stderr goes to `log`.
fn counted(mut command: Command, log: &Path, tally: &mut Tally) -> Result<()> {
    let mut child = command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdout(Stdio::piped())
        .stderr(File::create(log)?)
        .spawn()
        .with_context(|| format!("{command:?} could not be started"))?;
    let mut own = Tally::default();
    for line in BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        let line = line?;
        own.line(&line);
        crate::say(&line)?;
    }
    let status = child.wait()?;
    if (own.failed == 0 && !status.success()) || own == Tally::default() {
        crate::say(&format!("failed  {command:?} ended with {status} after {} checks", own.held))?;
        own.failed += 1;
    }
    if own.failed > 0 {
        crate::say(&format!("see {}", log.display()))?;
    }
    tally.held += own.held;
    tally.failed += own.failed;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{CLIENTS, SCRIPTS, Tally, USAGE, counted};

    fn sh(script: &str) -> Tally {
        let mut tally = Tally::default();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let log = std::env::temp_dir().join(format!("bilayer-clients-{}", std::process::id()));
        counted(command, &log, &mut tally).unwrap();
        tally
    }

    #[test]
    fn lines_are_counted() {
        let found = sh("echo 'ok      a 1: b'; echo other; echo 'failed  a 1: c: why'; exit 1");
        assert_eq!(found, Tally { held: 1, failed: 1 });
        assert_eq!(sh("echo 'ok      a 1: b'"), Tally { held: 1, failed: 0 });
    }

    #[test]
    fn scripts_that_end_early_fail() {
        assert_eq!(sh("echo 'ok      a 1: b'; exit 3"), Tally { held: 1, failed: 1 });
        assert_eq!(sh("exit 0"), Tally { held: 0, failed: 1 });
    }

    #[test]
    fn every_script_is_used_and_every_client_documented() {
        for client in CLIENTS {
            assert!(USAGE.contains(client.name), "{}", client.name);
            for script in client.scripts {
                assert!(SCRIPTS.iter().any(|(name, _)| name == script), "{script}");
            }
        }
        for (name, _) in SCRIPTS.iter().filter(|(name, _)| name.starts_with("check_")) {
            assert!(CLIENTS.iter().any(|client| client.scripts.contains(name)), "{name}");
        }
    }
}
