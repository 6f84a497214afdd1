//! `cargo xtask serve-load`: measures `bilayer serve` under load, compares it with bars, and prints a table.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{compare, output};

mod client;
mod completion;
mod hostile;
mod latency;
mod overload;
mod process;
mod replicas;
mod soak;
mod streams;

use crate::record::Record;
use crate::report::Section;
use process::Launch;

pub const USAGE: &str = "\
cargo xtask serve-load [--parts PART,...] [--bilayer PROGRAM] [--model GGUF] [--peer LLAMA_SERVER] [--rounds 5]
                       [--seconds 300] [--max-step-ms 250] [-t 2] [--into FILE]
                              measure `bilayer serve` on a random 1B model: throughput beside `bench` and llama-server,
                              latency, overload, hostile clients; fails if a bar is missed. --bilayer takes a ready
                              program instead of building one, --into appends the tables to a record in Markdown";

pub const SOAK_USAGE: &str = "\
cargo xtask soak [--minutes 5] [--bilayer PROGRAM] [--into FILE]
                              mixed use of `bilayer serve` on the CPU and on the first adapter: chats, streams that the
                              client leaves, long prompts, embeddings, saved slots, swapped models; memory and open
                              files must not grow, no request may fail, and the same seed must give the same answer";

/// A part: its name, what it is, and the function that measures it.
type LoadPart = (&'static str, &'static str, fn(&Setting) -> Result<Section>);

const PARTS: [LoadPart; 10] = [
    ("streams", "16 streams beside bench with 16 sequences", streams::streams),
    ("single", "one stream beside bench", streams::single),
    ("peer", "8 streams beside llama-server, which --peer names", streams::peer),
    ("arrival", "gaps of a stream while a long prompt arrives", latency::arrival),
    ("behind", "first token of a short prompt behind a long one", latency::behind),
    ("cached", "first token of a prompt that is in the cache", latency::cached),
    ("overload", "ten times as many requests as can be completed", overload::overload),
    ("replicas", "two servers beside the simulation of a fleet", replicas::replicas),
    ("hostile", "idle, slow and oversized requests beside a healthy client", hostile::hostile),
    ("soak", "mixed use for a long time, of which nothing may be left", soak::soak),
];

/// Parts that are measured when no others are named: the peer is a program that not everybody has, and a soak takes long.
fn is_usual(part: &str, peer: Option<&Path>) -> bool {
    part != "soak" && (part != "peer" || peer.is_some())
}

/// `cargo xtask soak`: the part of that name for so many minutes.
pub fn soak(args: &[String]) -> Result<()> {
    let mut rest = vec!["--parts".to_owned(), "soak".to_owned()];
    let mut args = args.iter();
    while let Some(flag) = args.next() {
        let value = args.next().with_context(|| format!("{flag} needs a value\n{SOAK_USAGE}"))?;
        match (flag.as_str(), value.parse::<u64>()) {
            ("--minutes", Ok(minutes @ 1..=100_000)) => {
                rest.extend(["--seconds".to_owned(), (60 * minutes).to_string()]);
            }
            ("--minutes", _) => bail!("--minutes must be a number of at least 1, not `{value}`"),
            _ => rest.extend([flag.clone(), value.clone()]),
        }
    }
    run(&rest)
}

/// Options of the task.
#[derive(Debug, PartialEq)]
struct Options {
    parts: Vec<String>,
    bilayer: Option<PathBuf>,
    model: Option<PathBuf>,
    peer: Option<PathBuf>,
    into: Option<PathBuf>,
    rounds: usize,
    seconds: u64,
    max_step_ms: u64,
    threads: usize,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let mut options = Options {
            parts: Vec::new(),
            bilayer: None,
            model: None,
            peer: None,
            into: None,
            rounds: 5,
            seconds: 300,
            max_step_ms: 250,
            threads: 2,
        };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let mut value = || args.next().with_context(|| format!("{flag} needs a value"));
            let number = |text: &String| match text.parse() {
                Ok(number) if number > 0 => Ok(number),
                _ => bail!("{flag} must be a number of at least 1, not `{text}`"),
            };
            match flag.as_str() {
                "--parts" => options.parts = value()?.split(',').map(str::to_owned).collect(),
                "--bilayer" => options.bilayer = Some(value()?.into()),
                "--model" => options.model = Some(value()?.into()),
                "--peer" => options.peer = Some(value()?.into()),
                "--into" => options.into = Some(value()?.into()),
                "--rounds" => options.rounds = number(value()?)? as usize,
                "--seconds" => options.seconds = number(value()?)?,
                "--max-step-ms" => options.max_step_ms = number(value()?)?,
                "-t" => options.threads = number(value()?)? as usize,
                _ => bail!("no flag `{flag}`\n{USAGE}"),
            }
        }
        if let Some(part) = options.parts.iter().find(|part| !PARTS.iter().any(|p| p.0 == **part)) {
            let names = PARTS.map(|(name, what, _)| format!("{name}: {what}")).join("\n  ");
            bail!("no part `{part}`; there are\n  {names}");
        }
        if options.parts.is_empty() {
            let all = PARTS.iter().map(|part| part.0.to_owned());
            options.parts = all.filter(|part| is_usual(part, options.peer.as_deref())).collect();
        }
        if options.peer.is_none() && options.has("peer") {
            bail!("part `peer` needs --peer, the path of llama-server");
        }
        Ok(options)
    }

    fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|name| name == part)
    }
}

/// What the parts share.
struct Setting {
    bilayer: PathBuf,
    model: PathBuf,
    peer: Option<PathBuf>,
    /// Logs of the servers.
    folder: PathBuf,
    rounds: usize,
    seconds: u64,
    max_step_ms: u64,
    threads: usize,
}

impl Setting {
    /// `bilayer serve` on the model, with a log of that name.
    fn launch(&self, name: &str, flags: String) -> Launch<'_> {
        Launch {
            program: &self.bilayer,
            flags,
            model: Some(&self.model),
            descriptors: None,
            log: self.folder.join(format!("{name}.log")),
        }
    }

    /// Tells the user about progress.
    fn say(&self, part: &str, round: usize) {
        eprintln!("xtask: {part}, round {} of {}", round + 1, self.rounds);
    }
}

/// Runs the parts and prints their tables.
pub fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    if options.has("hostile") && process::own_limit()? < hostile::DESCRIPTORS {
        return with_more_descriptors(args);
    }
    let folder = std::path::absolute("target/serve-load")?;
    std::fs::create_dir_all(&folder)?;
    let bilayer = compare::program(options.bilayer.as_deref())?;
    let model = match &options.model {
        Some(model) => model.clone(),
        None if options.parts == ["soak"] => soak::DEMO.into(),
        None => compare::one_billion(&bilayer)?,
    };
    let setting = Setting {
        bilayer,
        model,
        peer: options.peer.clone(),
        folder,
        rounds: options.rounds,
        seconds: options.seconds,
        max_step_ms: options.max_step_ms,
        threads: options.threads,
    };
    let mut record = heading(&setting, args)?;
    let mut failures = 0;
    for (name, _, measure) in PARTS.iter().filter(|part| options.has(part.0)) {
        // The other parts are measured all the same.
        let section = measure(&setting).unwrap_or_else(|error| Section::broken(name, &error));
        writeln!(std::io::stdout(), "{section}")?;
        failures += section.failures();
        if *name == "soak" && setting.seconds >= soak::RECORDED_SECONDS {
            let seconds = setting.seconds as f64;
            let failed = section.failures() as u64;
            let found = Record::new("soak", "CPU and adapter", seconds, "seconds")?;
            found.failed(failed).note(section.failed().join("; ")).append()?;
        }
        write!(record, "\n{section}")?;
    }
    if let Some(file) = &options.into {
        append(file, &record)?;
    }
    match failures {
        0 => Ok(()),
        1 => bail!("1 value misses its bar"),
        _ => bail!("{failures} values miss their bars"),
    }
}

/// Runs this task again, in a shell that raises the limit of open files first.
fn with_more_descriptors(args: &[String]) -> Result<()> {
    const MARK: &str = "BILAYER_XTASK_HAS_MORE_DESCRIPTORS";
    let needed = hostile::DESCRIPTORS;
    if std::env::var_os(MARK).is_some() {
        bail!("part `hostile` needs {needed} open files: raise the limit (`ulimit -n`)");
    }
    let mut shell = Command::new("sh");
    let script = "ulimit -S -n \"$1\" && shift && exec \"$@\"";
    shell.args(["-c", script, "sh", &needed.to_string()]).arg(std::env::current_exe()?);
    let status = shell.arg("serve-load").args(args).env(MARK, "1").status()?;
    if !status.success() {
        bail!("the task was run with a limit of {needed} open files, and failed");
    }
    Ok(())
}

/// The heading of a record: when, what and where.
fn heading(setting: &Setting, args: &[String]) -> Result<String> {
    let line = |command: &mut Command| {
        output(command).map(|text| text.lines().next().unwrap_or_default().trim().to_owned())
    };
    let date = line(Command::new("date").args(["-u", "+%F %H:%M"]))?;
    let version = line(Command::new(&setting.bilayer).arg("--version"))?;
    // A given program may be of another commit.
    let is_built_here = !args.iter().any(|arg| arg == "--bilayer");
    let commit = line(Command::new("git").args(["rev-parse", "--short", "HEAD"]));
    let program = match commit {
        Ok(commit) if is_built_here => format!("{version} of commit {commit}"),
        _ => version,
    };
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpus = std::thread::available_parallelism()?;
    let model = setting.model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(format!(
        "## serve-load, {date} UTC\n\n`{}`: {program}, {model}, {} threads, {cpus} CPUs ({}). Values are the median of the \
         rounds and their range. The clients run on the same machine.\n",
        command(args),
        setting.threads,
        cpu.map_or("unknown", |(_, name)| name),
    ))
}

/// The command without the paths of this machine.
fn command(args: &[String]) -> String {
    let mut command = "cargo xtask serve-load".to_owned();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if ["--bilayer", "--model", "--peer", "--into"].contains(&arg.as_str()) {
            args.next();
        } else {
            command += " ";
            command += arg;
        }
    }
    command
}

/// Appends a section to a record, which it creates if there is none.
fn append(file: &Path, section: &str) -> Result<()> {
    let known = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "# `bilayer serve` under load\n".to_owned()
        }
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    let content = format!("{}\n\n{section}", known.trim_end());
    bilayer_files::write(file, content).with_context(|| file.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options> {
        Options::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_wrong_ones_named() {
        let all = parse("").unwrap();
        assert_eq!((all.parts.len(), all.rounds, all.seconds), (PARTS.len() - 2, 5, 300));
        assert!(!all.has("peer") && parse("--peer /x/llama-server").unwrap().has("peer"));
        let some = parse("--parts overload,single --seconds 7 --bilayer b -t 1").unwrap();
        assert_eq!((some.parts.len(), some.seconds, some.threads), (2, 7, 1));
        assert_eq!(some.bilayer, Some("b".into()));
        for (line, part) in [
            ("--parts", "needs a value"),
            ("--parts speed", "overload: "),
            ("--parts peer", "--peer"),
            ("--rounds 0", "at least 1"),
            ("--seconds x", "`x`"),
            ("--fast", "--fast"),
        ] {
            let error = format!("{:#}", parse(line).unwrap_err());
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn records_have_no_paths_of_the_machine() {
        let args = "--parts single --bilayer /a/b --rounds 2 --into c.md".split(' ');
        let args: Vec<String> = args.map(str::to_owned).collect();
        assert_eq!(command(&args), "cargo xtask serve-load --parts single --rounds 2");
    }

    #[test]
    fn a_record_is_created_and_grows() {
        let file = std::env::temp_dir().join(format!("serve-load-{}.md", std::process::id()));
        append(&file, "## one\n\ntext\n").unwrap();
        append(&file, "## two\n").unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(text, "# `bilayer serve` under load\n\n## one\n\ntext\n\n## two\n");
    }
}
