//! Throughput of concurrent streams, in turn with `bilayer bench` and with llama-server on the same file.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Setting;
use super::completion::{Group, Prompts};
use super::process::Server;
use crate::output;
use crate::report::{Row, Section, Verdict, median, spread};

/// Tokens of a prompt and of an answer.
const PROMPT: usize = 32;
const PREDICT: usize = 64;

/// Context of each stream, tokens: prompt and answer with room to spare.
const CONTEXT: usize = 256;

/// Streams beside `bench` and their bar, as a share of its speed.
const MANY: usize = 16;
const MANY_BAR: f64 = 0.95;

/// Tokens of a single stream, more so that its loss of a percent can be seen, and its bar.
const SINGLE_PREDICT: usize = 128;
const SINGLE_BAR: f64 = 0.98;

/// Streams beside llama-server and the bar of their speed.
const PEER: usize = 8;
const PEER_BAR: f64 = 1.5;

/// Flags that both servers understand.
fn flags(setting: &Setting, streams: usize) -> String {
    format!("-np {streams} -c {} -t {} -ngl 0", streams * CONTEXT, setting.threads)
}

fn prompts(prompts: &mut Prompts, count: usize) -> Vec<Vec<u64>> {
    (0..count).map(|_| prompts.next(PROMPT)).collect()
}

/// `bilayer bench` in tokens a second: of prompts of 512 tokens, and of `sequences` that decode together.
struct Bench {
    prefill: f64,
    decode: f64,
}

impl Bench {
    fn run(setting: &Setting, sequences: usize, predict: usize) -> Result<Bench> {
        let prefill = Self::test(setting, &["-p", "512", "-n", "0"])?;
        let [predict, sequences, depth] = [predict, sequences, PROMPT].map(|n| n.to_string());
        let args = ["-p", "0", "-n", &predict, "-np", &sequences, "-d", &depth];
        Ok(Bench { prefill, decode: Self::test(setting, &args)? })
    }

    fn test(setting: &Setting, args: &[&str]) -> Result<f64> {
        let mut command = Command::new(&setting.bilayer);
        command.arg("bench").args(args).args(["-r", "1", "--no-probe", "-o", "json"]);
        command.args(["-ngl", "0", "-dev", "none", "-t", &setting.threads.to_string()]);
        command.arg("-m").arg(&setting.model);
        let found: Value = serde_json::from_str(&output(&mut command)?)?;
        match found.as_array().map(Vec::as_slice) {
            Some([test]) => test["avg_ts"].as_f64().context("bench wrote no avg_ts"),
            _ => bail!("bench did not write one test"),
        }
    }

    /// Tokens a second if it first computed all prompts and then decoded.
    fn whole(&self, sequences: usize, predict: usize) -> f64 {
        let [prompt, decode] = [PROMPT, predict].map(|tokens| (sequences * tokens) as f64);
        decode / (prompt / self.prefill + decode / self.decode)
    }
}

/// Sixteen streams beside `bench` with sixteen sequences.
pub fn streams(setting: &Setting) -> Result<Section> {
    let about = format!(
        "{MANY} streams at once, each with a prompt of {PROMPT} tokens of its own and {PREDICT} tokens of answer, in turn \
         with `bilayer bench -n {PREDICT} -np {MANY} -d {PROMPT}`, {} rounds. Decode is counted while all streams have begun \
         and none has ended.",
        setting.rounds
    );
    beside_bench(setting, "streams", about, &Job { streams: MANY, predict: PREDICT, bar: MANY_BAR })
}

/// One stream beside `bench` with one sequence.
pub fn single(setting: &Setting) -> Result<Section> {
    let about = format!(
        "One stream with a prompt of {PROMPT} tokens and {SINGLE_PREDICT} tokens of answer, in turn with `bilayer bench -n \
         {SINGLE_PREDICT} -d {PROMPT}`, {} rounds. Decode is counted from the first token to the last.",
        setting.rounds
    );
    let job = Job { streams: 1, predict: SINGLE_PREDICT, bar: SINGLE_BAR };
    beside_bench(setting, "single", about, &job)
}

struct Job {
    streams: usize,
    predict: usize,
    bar: f64,
}

fn beside_bench(
    setting: &Setting,
    name: &'static str,
    about: String,
    job: &Job,
) -> Result<Section> {
    let Job { streams, predict, bar } = *job;
    let launch = setting.launch(name, format!("{} -dev none", flags(setting, streams)));
    let server = launch.bilayer()?;
    let mut source = Prompts::new();
    let mut serve =
        |predict: usize| Group::run(server.address, &prompts(&mut source, streams), predict);
    // Both warm up: bench does it itself.
    serve(predict.min(16))?;
    let (mut benches, mut groups) = (Vec::new(), Vec::new());
    for round in 0..setting.rounds {
        setting.say(name, round);
        // The first in a pair alternates, so that neither always meets the warmer machine.
        if round % 2 == 0 {
            benches.push(Bench::run(setting, streams, predict)?);
            groups.push(serve(predict)?);
        } else {
            groups.push(serve(predict)?);
            benches.push(Bench::run(setting, streams, predict)?);
        }
    }
    let served: Vec<f64> = groups.iter().map(Group::decode_rate).collect();
    let whole: Vec<f64> = groups.iter().map(Group::rate).collect();
    let bench: Vec<f64> = benches.iter().map(|bench| bench.decode).collect();
    let bench_whole: Vec<f64> = benches.iter().map(|bench| bench.whole(streams, predict)).collect();
    let ratios = ratios(&served, &bench);
    let gaps: Vec<f64> = groups.iter().map(|group| group.gap_ms(0.95)).collect();
    let rows = vec![
        Row::judged(
            "decode, share of bench",
            spread(&ratios, 3),
            format!("median at least {bar}"),
            Verdict::at_least(median(&ratios), bar),
        ),
        Row::shown("decode, serve", format!("{} tok/s", spread(&served, 2))),
        Row::shown("decode, bench", format!("{} tok/s", spread(&bench, 2))),
        Row::shown("with prompts, serve", format!("{} tok/s", spread(&whole, 2))),
        Row::shown(
            "with prompts, bench (computed from its prefill and decode)",
            format!("{} tok/s", spread(&bench_whole, 2)),
        ),
        Row::shown("time between tokens, p95", format!("{} ms", spread(&gaps, 1))),
    ];
    Ok(Section { name, about, rows })
}

/// The ratios of pairs.
fn ratios(ours: &[f64], theirs: &[f64]) -> Vec<f64> {
    ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect()
}

/// Eight streams beside llama-server.
pub fn peer(setting: &Setting) -> Result<Section> {
    let program = setting.peer.as_deref().context("--parts peer needs --peer LLAMA_SERVER")?;
    let flags = flags(setting, PEER);
    let launch = setting.launch("peer-bilayer", format!("{flags} -dev none"));
    let ours = launch.bilayer()?;
    let mut launch =
        setting.launch("peer-llama-server", format!("{flags} {}", without_page(program)?));
    launch.program = program;
    let theirs = launch.llama_server()?;
    let mut source = Prompts::new();
    let mut run = |server: &Server, predict: usize| {
        Group::run(server.address, &prompts(&mut source, PEER), predict)
    };
    run(&ours, 16)?;
    run(&theirs, 16)?;
    let (mut our_groups, mut their_groups) = (Vec::new(), Vec::new());
    for round in 0..setting.rounds {
        setting.say("peer", round);
        if round % 2 == 0 {
            our_groups.push(run(&ours, PREDICT)?);
            their_groups.push(run(&theirs, PREDICT)?);
        } else {
            their_groups.push(run(&theirs, PREDICT)?);
            our_groups.push(run(&ours, PREDICT)?);
        }
    }
    let about = format!(
        "{PEER} streams at once, each with a prompt of {PROMPT} tokens of its own and {PREDICT} tokens of answer, in turn \
         with llama-server ({}) on the same file, both with `{flags}`, {} rounds. Speed is all tokens from the first request \
         to the last token; a ratio is that of a round.",
        version(program),
        setting.rounds
    );
    Ok(Section { name: "peer", about, rows: peer_rows(&our_groups, &their_groups) })
}

fn peer_rows(ours: &[Group], theirs: &[Group]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut compare = |what: &str, unit: &str, of: &dyn Fn(&Group) -> f64, bar: Option<Bar>| {
        let ours: Vec<f64> = ours.iter().map(of).collect();
        let theirs: Vec<f64> = theirs.iter().map(of).collect();
        let ratios = ratios(&ours, &theirs);
        let ratio = format!("{what}, ratio");
        rows.push(match bar {
            None => Row::shown(ratio, spread(&ratios, 2)),
            Some(Bar::AtLeast(bar)) => Row::judged(
                ratio,
                spread(&ratios, 2),
                format!("median at least {bar}"),
                Verdict::at_least(median(&ratios), bar),
            ),
            Some(Bar::NoWorse) => Row::judged(
                ratio,
                spread(&ratios, 2),
                "median at most 1",
                Verdict::at_most(median(&ratios), 1.0),
            ),
        });
        rows.push(Row::shown(format!("{what}, bilayer"), format!("{} {unit}", spread(&ours, 1))));
        rows.push(Row::shown(
            format!("{what}, llama-server"),
            format!("{} {unit}", spread(&theirs, 1)),
        ));
    };
    compare("speed", "tok/s", &Group::rate, Some(Bar::AtLeast(PEER_BAR)));
    compare("time between tokens, p95", "ms", &|group| group.gap_ms(0.95), Some(Bar::NoWorse));
    compare("time to first token, p95", "ms", &|group| group.first_ms(0.95), Some(Bar::NoWorse));
    compare("decode while all run", "tok/s", &Group::decode_rate, None);
    compare("time between tokens, median", "ms", &|group| group.gap_ms(0.5), None);
    rows
}

/// The bar of a ratio to llama-server.
enum Bar {
    AtLeast(f64),
    NoWorse,
}

/// What llama-server says of its version.
fn version(program: &std::path::Path) -> String {
    let ran = Command::new(program).arg("--version").output();
    let text = ran.map(|ran| [ran.stdout, ran.stderr].concat()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find_map(|line| line.strip_prefix("version: "));
    line.unwrap_or("unknown version").to_owned()
}

/// llama-server's flag against its web page, which has had several names.
fn without_page(program: &std::path::Path) -> Result<String> {
    let ran = Command::new(program).arg("--help").output().context("llama-server --help")?;
    let help = String::from_utf8_lossy(&ran.stdout);
    let flag = ["--no-ui", "--no-webui"].into_iter().find(|flag| help.contains(flag));
    Ok(flag.unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_with_prompts_takes_the_time_of_both() {
        // 16 x 32 tokens at 64 a second, then 16 x 64 at 128 a second: 8 s each.
        let bench = Bench { prefill: 64.0, decode: 128.0 };
        assert!((bench.whole(16, 64) - 64.0).abs() < 1e-9);
        assert_eq!(ratios(&[3.0, 1.0], &[2.0, 2.0]), [1.5, 0.5]);
    }
}
