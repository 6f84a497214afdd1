//! `cargo xtask mac-check`: everything that only a Mac can tell, run once and printed as one report.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::report::{Row, Section, Verdict};
use crate::{cargo, compare, output};

pub const USAGE: &str = "\
cargo xtask mac-check [--bilayer PROGRAM] [--model GGUF] [--device ADAPTER] [--quick]
                              on a Mac, or any machine with a GPU: check the GPU against the CPU, count memory, measure
                              speed beside the memory's bandwidth, and write one report to target/mac-check/report.md.
                              The model is a random 1B; --quick takes the demo model and leaves the tests out";

/// The report, below the working tree.
const REPORT: &str = "target/mac-check/report.md";

/// Logits of the demo model on the CPU, and how far those of other placements may be from them on average: both round
/// activations to eight bits, in different blocks.
const BASE: &str = "target/mac-check/base.kld";
const KL_BAR: f64 = 1e-3;

/// Tests that need a GPU.
const TESTS: [&str; 5] = ["kernels", "gpu", "hybrid", "models", "measured"];

/// Bar of the largest resident memory while all layers are on a GPU with unified memory: the weights once, not twice.
const RESIDENT_BAR: f64 = 1.5;

/// Memory besides the weights: program, driver, KV cache, activations.
const BESIDES_BYTES: f64 = 768.0 * 1024.0 * 1024.0;

/// Bar of decode: the share of the measured bandwidth at which the GPU reads weights.
const BANDWIDTH_BAR: f64 = 0.5;

/// What is checked with.
struct Machine {
    bilayer: PathBuf,
    /// The model; `None` is the embedded one.
    model: Option<PathBuf>,
    /// The adapter's number or name; empty is the default one.
    device: Vec<String>,
    is_quick: bool,
}

/// A part of the report.
type MacCheck = (&'static str, fn(&Machine) -> Result<Section>);

const PARTS: [MacCheck; 5] = [
    ("adapter", adapter),
    ("results", results),
    ("memory", memory),
    ("speed", speed),
    ("tests", suite),
];

/// Runs all parts and writes the report.
pub fn run(args: &[String]) -> Result<()> {
    let machine = Machine::parse(args)?;
    let mut report = heading(&machine);
    let mut failures = 0;
    for (name, part) in PARTS {
        eprintln!("xtask: mac-check: {name}");
        let section = part(&machine).unwrap_or_else(|error| Section::broken(name, &error));
        failures += section.failures();
        report += &format!("\n{section}");
    }
    let path = Path::new(REPORT);
    let folder = path.parent().context("the report lies in a folder")?;
    std::fs::create_dir_all(folder)?;
    bilayer_files::write(path, &report)?;
    write!(std::io::stdout(), "{report}")?;
    match failures {
        0 => Ok(()),
        _ => bail!("{failures} values miss their bar; {REPORT} has the report"),
    }
}

impl Machine {
    fn parse(args: &[String]) -> Result<Machine> {
        let (mut bilayer, mut model, mut device, mut is_quick) = (None, None, Vec::new(), false);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--bilayer" => bilayer = Some(PathBuf::from(value()?)),
                "--model" => model = Some(PathBuf::from(value()?)),
                "--device" => device = vec!["--device".to_owned(), value()?.clone()],
                "--quick" => is_quick = true,
                _ => bail!("unknown argument {arg}\n{USAGE}"),
            }
        }
        let bilayer = compare::program(bilayer.as_deref())?;
        let model = match (model, is_quick) {
            (Some(model), _) => Some(std::path::absolute(model)?),
            (None, true) => None,
            (None, false) => Some(compare::one_billion(&bilayer)?),
        };
        Ok(Machine { bilayer, model, device, is_quick })
    }

    /// The program with a subcommand, on the chosen adapter.
    fn command(&self, words: &str) -> Command {
        let mut words = words.split(' ');
        let mut command = Command::new(&self.bilayer);
        command.args(words.next()).args(&self.device).args(words);
        command
    }

    /// The program with a subcommand, on the chosen adapter and model.
    fn with_model(&self, words: &str) -> Command {
        let mut command = self.command(words);
        if let Some(model) = &self.model {
            command.arg("-m").arg(model);
        }
        command
    }

    /// The adapters of `bilayer devices`.
    fn adapters(&self) -> Result<Vec<Value>> {
        let text = output(Command::new(&self.bilayer).args(["devices", "--json"]))?;
        let found: Value = serde_json::from_str(&text).context("devices --json")?;
        Ok(found["adapters"].as_array().cloned().unwrap_or_default())
    }

    /// Rows of `bench`.
    fn bench(&self, words: &str) -> Result<Vec<Value>> {
        let text = output(&mut self.with_model(&format!("bench -o json -r 3 {words}")))?;
        let rows: Vec<Value> = serde_json::from_str(&text).context("bench -o json")?;
        if rows.is_empty() {
            bail!("bench {words} measured nothing");
        }
        Ok(rows)
    }
}

/// Date, commit and machine.
fn heading(machine: &Machine) -> String {
    let line = |command: &str, args: &[&str]| {
        let text = output(Command::new(command).args(args)).unwrap_or_default();
        text.lines().next().unwrap_or_default().trim().to_owned()
    };
    let is_mac = cfg!(target_os = "macos");
    let system = match is_mac {
        true => format!(
            "{}, macOS {}",
            line("sysctl", &["-n", "machdep.cpu.brand_string"]),
            line("sw_vers", &["-productVersion"])
        ),
        false => format!("{} (not a Mac)", line("uname", &["-sm"])),
    };
    format!(
        "# mac-check\n\n{} UTC, commit {}, {system}, {}\n",
        line("date", &["-u", "+%F %H:%M"]),
        line("git", &["rev-parse", "--short", "HEAD"]),
        line(&machine.bilayer.to_string_lossy(), &["--version"]),
    )
}

/// The GPU as the driver presents it, and what it reads.
fn adapter(machine: &Machine) -> Result<Section> {
    let adapters = machine.adapters()?;
    let is_real = |adapter: &&Value| adapter["kind"] != "software";
    let real = adapters.iter().filter(is_real).count();
    let wanted = if machine.device.is_empty() { real } else { adapters.len() };
    let mut rows = vec![Row::judged(
        "adapters that can be used",
        wanted.to_string(),
        "at least 1",
        Verdict::at_least(wanted as f64, 1.0),
    )];
    let gib = |key: &Value| key.as_f64().map(|bytes| format!("{:.1} GiB", bytes / 1024f64.powi(3)));
    for adapter in &adapters {
        let name = adapter["name"].as_str().unwrap_or("?");
        let facts = format!(
            "{}, {}, {}, memory {}, reads {} GB/s, {}",
            adapter["backend"].as_str().unwrap_or("?"),
            adapter["kind"].as_str().unwrap_or("?"),
            if adapter["unified"] == true { "unified" } else { "memory of its own" },
            gib(&adapter["memory_bytes"]).unwrap_or("unknown".to_owned()),
            adapter["read_gbps"].as_f64().map_or("?".to_owned(), |rate| format!("{rate:.1}")),
            adapter["features"].as_array().map_or(String::new(), |all| {
                all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ")
            }),
        );
        rows.push(Row::shown(name, facts));
    }
    let about =
        "`bilayer devices --json`. The memory of a Mac's GPU is its recommended working set.";
    Ok(Section { name: "adapter", about: about.to_owned(), rows })
}

/// Op by op, and the logits of several cuts.
fn results(machine: &Machine) -> Result<Section> {
    let mut rows = Vec::new();
    for backend in ["cpu", "reference"] {
        let ran = machine.with_model(&format!("verify --json --a {backend} --b gpu")).output()?;
        let found: Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
        let ops = found["ops"].as_array().map_or(&[][..], Vec::as_slice);
        let share = |op: &Value| Some(op["nmse"].as_f64()? / op["bound"].as_f64()?);
        let worst = ops.iter().filter_map(share).fold(f64::NAN, f64::max);
        let is_good = ran.status.success() && found["ok"] == true && !ops.is_empty();
        rows.push(Row::judged(
            format!("verify against {backend}"),
            format!("{} ops, the worst at {:.3} of its bound", ops.len(), worst),
            "all within their bounds",
            if is_good { Verdict::Pass } else { Verdict::Fail },
        ));
    }
    let base = std::path::absolute(BASE)?;
    if let Some(folder) = base.parent() {
        std::fs::create_dir_all(folder)?;
    }
    output(
        machine.command("perplexity -c 128 --chunks 2 -f README.md -ngl 0 --kl-base").arg(&base),
    )?;
    for layers in [1, 3, 6, 99] {
        let words = format!("perplexity -c 128 --json -ngl {layers} --kl");
        let text = output(machine.command(&words).arg(&base))?;
        let found: Value = serde_json::from_str(&text).context("perplexity --json")?;
        let divergence = found["kl_mean"].as_f64().unwrap_or(f64::NAN);
        rows.push(Row::judged(
            format!("demo model, -ngl {layers}: mean KL divergence from -ngl 0"),
            format!("{divergence:.1e}"),
            format!("at most {KL_BAR:.0e}"),
            Verdict::at_most(divergence, KL_BAR),
        ));
    }
    let about = "Each op on the GPU beside another backend on the same tokens, and the logits of hybrid cuts on README.md.";
    Ok(Section { name: "results", about: about.to_owned(), rows })
}

/// Whether unified memory holds the weights once, and whether the plan keeps to the working set.
fn memory(machine: &Machine) -> Result<Section> {
    let bench = machine.bench("-p 0 -n 16 -ngl 99")?;
    let number = |key: &str| bench[0][key].as_f64().with_context(|| format!("bench has no {key}"));
    let (weights, resident) = (number("model_size")?, number("peak_resident_bytes")?);
    let text = output(&mut machine.with_model("plan --json"))?;
    let plan: Value = serde_json::from_str(&text).context("plan --json")?;
    let mib = |bytes: f64| format!("{:.0} MiB", bytes / 1024f64.powi(2));
    let bar = RESIDENT_BAR * weights + BESIDES_BYTES;
    let mut rows = vec![Row::judged(
        "largest resident memory, all layers on the GPU",
        format!("{} ({} of weights)", mib(resident), mib(weights)),
        format!("at most {}", mib(bar)),
        Verdict::at_most(resident, bar),
    )];
    for device in plan["devices"].as_array().into_iter().flatten() {
        let name = device["name"].as_str().unwrap_or("?");
        let of = |key: &str| device[key].as_f64().unwrap_or(f64::NAN);
        let (used, budget) = (of("used_bytes"), of("budget_bytes"));
        rows.push(Row::judged(
            format!("planned on {name}"),
            mib(used),
            format!("at most its budget, {}", mib(budget)),
            Verdict::at_most(used, budget),
        ));
    }
    let about =
        "`bench -ngl 99` and `plan`. Weights that a GPU reads in the file's map are counted once.";
    Ok(Section { name: "memory", about: about.to_owned(), rows })
}

/// Prefill and decode on the CPU, in halves and on the GPU.
fn speed(machine: &Machine) -> Result<Section> {
    let prompt = if machine.is_quick { 32 } else { 512 };
    let layers = machine.bench("-p 0 -n 1 -ngl 99")?[0]["n_gpu_layers"].as_u64().unwrap_or(0);
    let adapters = machine.adapters()?;
    let reads =
        |name: &Value| adapters.iter().find(|of| of["name"] == *name)?["read_gbps"].as_f64();
    let mut rows = Vec::new();
    for count in [0, layers / 2, layers] {
        for bench in machine.bench(&format!("-p {prompt} -n 64 -ngl {count}"))? {
            let is_prompt = bench["n_prompt"].as_u64() > Some(0);
            let speed = bench["avg_ts"].as_f64().unwrap_or(f64::NAN);
            let share = match count == layers {
                true => {
                    let rates = bench["weight_gbps"].as_f64().zip(reads(&bench["adapter"]));
                    rates.map(|(weights, read)| weights / read)
                }
                false => bench["probe_share"].as_f64(),
            };
            let test = if is_prompt { format!("prefill {prompt}") } else { "decode 64".to_owned() };
            let what = format!("{test}, -ngl {count}");
            let bar = (!is_prompt && !machine.is_quick).then_some(BANDWIDTH_BAR);
            rows.push(speed_row(what, speed, share, bar));
        }
    }
    let about = "`bilayer bench`, three repetitions. Decode reads all weights once for each token.";
    Ok(Section { name: "speed", about: about.to_owned(), rows })
}

/// A speed in tokens a second, with the share of the memory's bandwidth that it is. With a bar it needs a share, which
/// is missing where the bandwidth was not measured.
fn speed_row(what: String, speed: f64, share: Option<f64>, bar: Option<f64>) -> Row {
    let shown = share.map_or("-".to_owned(), |share| format!("{share:.2}"));
    let value = format!("{speed:.1} tok/s, {shown} of bandwidth");
    let Some(bar) = bar else { return Row::shown(what, value) };
    let verdict = Verdict::at_least(share.unwrap_or(f64::NAN), bar);
    Row::judged(what, value, format!("at least {bar} of bandwidth"), verdict)
}

/// The tests that need a GPU.
fn suite(machine: &Machine) -> Result<Section> {
    let about = "`cargo test` with BILAYER_REQUIRE_GPU=1.".to_owned();
    if machine.is_quick {
        let rows = vec![Row::shown("tests", "left out by --quick")];
        return Ok(Section { name: "tests", about, rows });
    }
    let mut rows = Vec::new();
    for test in TESTS {
        let began = Instant::now();
        let mut command = cargo();
        command.args(["test", "--locked", "--test", test]).env("BILAYER_REQUIRE_GPU", "1");
        let ran = command.output().context("cargo could not be started")?;
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        let last = said.lines().rev().find(|line| line.starts_with("test result"));
        rows.push(Row::judged(
            format!("tests/{test}.rs"),
            format!("{} ({:.0} s)", last.unwrap_or("no result"), began.elapsed().as_secs_f64()),
            "all pass",
            if ran.status.success() { Verdict::Pass } else { Verdict::Fail },
        ));
    }
    Ok(Section { name: "tests", about, rows })
}

#[cfg(test)]
mod tests {
    use super::{Machine, speed_row};
    use crate::report::Section;

    #[test]
    fn a_bandwidth_that_is_not_measured_fails_where_it_is_judged() {
        let rows = [(Some(0.7), Some(0.5)), (None, Some(0.5)), (None, None), (Some(0.1), None)]
            .map(|(share, bar)| speed_row("decode".to_owned(), 9.0, share, bar));
        let section = Section { name: "speed", about: String::new(), rows: rows.to_vec() };
        assert_eq!(section.failed(), ["decode: 9.0 tok/s, - of bandwidth"]);
    }

    #[test]
    fn flags_are_read_and_unknown_ones_refused() {
        let parse = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            Machine::parse(&args)
        };
        let program = std::env::current_exe().expect("this test is a program");
        let good = format!("--quick --device 0 --bilayer {}", program.display());
        let machine = parse(&good).expect("all flags are known");
        assert!(machine.is_quick && machine.model.is_none());
        assert_eq!(machine.device, ["--device", "0"]);
        for (line, expected) in [
            ("--fast", "unknown argument --fast"),
            ("--device", "--device needs a value"),
            ("--quick --bilayer /no/such/program", "is not a program"),
        ] {
            let error = parse(line).err().expect(line).to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }
}
