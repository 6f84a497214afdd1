//! Two replicas on one machine beside the simulation of a fleet (`examples/scaling_sim`) with step times of `bilayer bench`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Setting;
use super::client::Client;
use super::completion::{Prompts, Times, stream};
use super::process::{Launch, Server};
use crate::report::{Row, Section, Verdict, median, ms, spread};
use crate::{cargo, output, status};

const REPLICAS: usize = 2;

/// Answers at once of a replica, and the tokens of its KV cache.
const STREAMS: usize = 8;
const CONTEXT: usize = 8192;

/// Bound on a step, milliseconds: more than any takes. How many rows a tighter one leaves depends on how late steps were
/// before, and simulated ones never are.
const STEP_MS: u64 = 1000;

/// Requests that come at once; their own tokens, those that all begin with, and those of answers.
struct Case {
    name: &'static str,
    requests: usize,
    shared: usize,
    own: usize,
    answer: usize,
}

const CASES: [Case; 3] = [
    Case { name: "8 requests", requests: 8, shared: 0, own: 64, answer: 48 },
    Case { name: "40 requests, most of which wait", requests: 40, shared: 0, own: 64, answer: 24 },
    Case {
        name: "16 requests with a common beginning",
        requests: 16,
        shared: 256,
        own: 32,
        answer: 24,
    },
];

/// How far the simulation may be from the measurement.
const BAR: f64 = 0.15;

/// Figures of a case.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    tokens_per_second: f64,
    /// From when a request reaches its scheduler to its first token.
    first_ms: f64,
    gap_ms: f64,
    cached: f64,
}

/// A case that ran on servers.
struct Ran {
    figures: Figures,
    /// What reached each server.
    servers: Vec<Arrivals>,
    /// Mean time from the client to the scheduler.
    on_the_way_ms: f64,
}

/// Requests as they reached a server's scheduler.
#[derive(Debug, PartialEq)]
struct Arrivals {
    /// Times after the case began, rising.
    at_ms: Vec<f64>,
    /// From the first of them to the server's first step.
    wake_ms: f64,
}

/// A figure's name and its value.
type Figure = (&'static str, fn(&Figures) -> f64);

/// The figures that the simulation must predict.
const JUDGED: [Figure; 3] = [
    ("tokens a second", |f| f.tokens_per_second),
    ("time to first token", |f| f.first_ms),
    ("time between tokens", |f| f.gap_ms),
];

/// A case measured and simulated in one round.
struct Pair {
    measured: Figures,
    simulated: Figures,
    on_the_way_ms: f64,
}

/// Compares the two.
pub fn replicas(setting: &Setting) -> Result<Section> {
    let threads = (setting.threads / REPLICAS).max(1);
    let simulator = simulator(&setting.bilayer)?;
    let flags =
        format!("-np {STREAMS} -c {CONTEXT} -t {threads} -ngl 0 -dev none --max-step-ms {STEP_MS}");
    let launches: Vec<_> = (0..REPLICAS)
        .map(|number| setting.launch(&format!("replica-{number}"), flags.clone()))
        .collect();
    let mut pairs: [Vec<Pair>; CASES.len()] = std::array::from_fn(|_| Vec::new());
    for round in 0..setting.rounds {
        setting.say("replicas", round);
        // Step times of this round: the machine's speed drifts.
        let bench = setting.folder.join("replicas-bench.json");
        std::fs::write(&bench, bench_beside(setting, threads)?)?;
        let servers: Vec<Server> = launches.iter().map(Launch::bilayer).collect::<Result<_>>()?;
        let overhead = overhead_ms(&servers, &bench, round)?;
        for (at, case) in CASES.iter().enumerate() {
            let ran = run(&servers, case, (round * CASES.len() + at) as u64)?;
            let simulated = simulate(setting, [&simulator, &bench], case, overhead, &ran)?;
            let Ran { figures: measured, on_the_way_ms, .. } = ran;
            pairs[at].push(Pair { measured, simulated, on_the_way_ms });
        }
    }
    let rows = CASES.iter().zip(&pairs).flat_map(|(case, pairs)| rows(case, pairs)).collect();
    let about = format!(
        "{REPLICAS} servers with {threads} threads each, {STREAMS} answers at once, requests all at once to the one with the \
         fewest, steps of up to {STEP_MS} ms. Simulated from `bilayer bench` of the round, run in {REPLICAS} processes at once, what a server adds to a step, \
         from one answer alone on each, when each request reached its server's scheduler, from which the time to the first \
         token is counted on both sides, and how long an idle server took to begin. Medians of {} rounds.",
        setting.rounds
    );
    Ok(Section { name: "replicas", about, rows })
}

/// The rows of a case: each figure judged by its ratios within a round, then the figures themselves.
fn rows(case: &Case, pairs: &[Pair]) -> Vec<Row> {
    let judged = JUDGED.iter().map(|(name, of)| {
        let ratios: Vec<f64> = pairs.iter().map(|p| of(&p.simulated) / of(&p.measured)).collect();
        Row::judged(
            format!("{}: {name}, simulated by measured", case.name),
            spread(&ratios, 3),
            format!("median within {BAR} of 1"),
            Verdict::at_most((median(&ratios) - 1.0).abs(), BAR),
        )
    });
    let both = |of: fn(&Figures) -> f64| {
        let of_all = |side: fn(&Pair) -> &Figures| {
            median(&pairs.iter().map(|pair| of(side(pair))).collect::<Vec<_>>())
        };
        [of_all(|pair| &pair.measured), of_all(|pair| &pair.simulated)]
    };
    let [rate, simulated_rate] = both(|f| f.tokens_per_second);
    let [first, simulated_first] = both(|f| f.first_ms);
    let [gap, simulated_gap] = both(|f| f.gap_ms);
    let [cached, simulated_cached] = both(|f| 100.0 * f.cached);
    let way = median(&pairs.iter().map(|pair| pair.on_the_way_ms).collect::<Vec<_>>());
    let shown = Row::shown(
        format!("{}: measured (simulated)", case.name),
        format!(
            "{rate:.1} ({simulated_rate:.1}) tok/s, first token after {first:.0} ({simulated_first:.0}) ms, {gap:.1} \
             ({simulated_gap:.1}) ms between tokens, {cached:.0} % ({simulated_cached:.0} %) of prompts cached; {way:.1} ms \
             from the client to the scheduler"
        ),
    );
    judged.chain([shown]).collect()
}

/// The simulator beside the program, which is built if it is not there.
fn simulator(program: &Path) -> Result<PathBuf> {
    let folder = program.parent().context("the program has no folder")?;
    let path = folder.join("examples/scaling_sim");
    if !path.is_file() {
        status(cargo().args(["build", "--release", "--locked", "--example", "scaling_sim"]))?;
    }
    if !path.is_file() {
        bail!("{} was not built: give a --bilayer of target/release", path.display());
    }
    Ok(path)
}

/// Step times as `bilayer bench` writes them, measured while the other replicas' cores do the same work.
fn bench_beside(setting: &Setting, threads: usize) -> Result<String> {
    let command = || {
        let mut command = Command::new(&setting.bilayer);
        command.args([
            "bench",
            "-p",
            "16,64,256",
            "-n",
            "12",
            "-np",
            "1,2,4,8",
            "-d",
            "0,512",
            "-r",
            "2",
        ]);
        command.args(["--no-probe", "-o", "json", "-ngl", "0", "-dev", "none"]);
        command.args(["-t", &threads.to_string(), "-m"]).arg(&setting.model);
        command
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 1..REPLICAS {
            scope.spawn(|| keep_busy(command, &done));
        }
        let found = output(&mut command());
        done.store(true, Ordering::Relaxed);
        found
    })
}

/// Runs a command again and again until `done`. One that cannot run leaves its core idle.
fn keep_busy(command: impl Fn() -> Command, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        let Ok(mut child) = command().stdout(Stdio::null()).stderr(Stdio::null()).spawn() else {
            return;
        };
        while !done.load(Ordering::Relaxed) && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// What a server adds to a step: the time between tokens of one answer on each server at once, less a step of one row.
fn overhead_ms(servers: &[Server], bench: &Path, round: usize) -> Result<f64> {
    let alone = Case { name: "", requests: servers.len(), shared: 0, own: 16, answer: 48 };
    let real = run(servers, &alone, 1000 + round as u64)?;
    let result: Value = serde_json::from_str(&std::fs::read_to_string(bench)?)?;
    let tests = result.as_array().context("bench wrote no list")?;
    let is_alone = |test: &&Value| {
        test["n_prompt"] == 0
            && test["n_depth"] == 0
            && test["n_parallel"].as_u64().unwrap_or(1) == 1
    };
    let test = tests.iter().find(is_alone).context("bench has no test of one answer")?;
    let [ns, steps] = ["avg_ns", "n_gen"].map(|key| test[key].as_f64().unwrap_or(f64::NAN));
    Ok((real.figures.gap_ms - ns / steps / 1e6).max(0.0))
}

/// Runs a case on the servers: every request goes to the server that has the fewest.
fn run(servers: &[Server], case: &Case, seed: u64) -> Result<Ran> {
    let mut prompts = Prompts::seeded(seed);
    let beginning = prompts.next(case.shared);
    let prompts: Vec<Vec<u64>> =
        (0..case.requests).map(|_| [&beginning[..], &prompts.next(case.own)].concat()).collect();
    let turn = AtomicUsize::new(0);
    let one = |prompt: &[u64]| {
        // All are sent at once, so the fewest requests are those of the next in turn.
        let server = turn.fetch_add(1, Ordering::Relaxed) % servers.len();
        let mut client = Client::new(servers[server].address);
        stream(&mut client, prompt, case.answer, |_| {}).map(|times| (server, times))
    };
    let began = Instant::now();
    let placed: Vec<(usize, Times)> = std::thread::scope(|scope| {
        let threads: Vec<_> = prompts.iter().map(|prompt| scope.spawn(|| one(prompt))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|times| times.unwrap_or_else(|_| bail!("a client panicked")))
            .collect::<Result<_>>()
    })?;
    let arrivals = |server| {
        let times = placed.iter().filter(|(at, _)| *at == server).map(|(_, times)| times);
        Arrivals::of(began, &times.collect::<Vec<_>>())
    };
    let arrivals = (0..servers.len()).map(arrivals).collect();
    let times: Vec<Times> = placed.into_iter().map(|(_, times)| times).collect();
    let ended = times.iter().filter_map(|times| times.tokens.last().copied()).max();
    let took = (ended.context("no token came")? - began).as_secs_f64();
    let gaps: Vec<f64> = times.iter().flat_map(Times::gaps_ms).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let each = |of: fn(&Times) -> f64| times.iter().map(of).collect::<Vec<_>>();
    let tokens = (case.requests * (case.shared + case.own)) as f64;
    let figures = Figures {
        tokens_per_second: (case.requests * case.answer) as f64 / took,
        first_ms: mean(&each(|times| ms(times.queued + times.prefill))),
        gap_ms: mean(&gaps),
        cached: times.iter().map(|times| times.cached as f64).sum::<f64>() / tokens,
    };
    let on_the_way_ms = mean(&each(|times| ms(times.arrived() - times.sent)));
    Ok(Ran { figures, servers: arrivals, on_the_way_ms })
}

/// Requests whose first steps seem to be no further apart than this had the same one: a step of a prompt takes longer.
const SAME_STEP: Duration = Duration::from_millis(5);

impl Arrivals {
    /// Of a server's requests. A server tells how long a request waited for its first step, to the microsecond, but the client
    /// sees when that was by a token that comes a little late; so those of the first step are placed by their waits alone.
    fn of(began: Instant, times: &[&Times]) -> Arrivals {
        let started = |times: &Times| times.arrived() + times.queued;
        let Some(first) = times.iter().map(|times| started(times)).min() else {
            return Arrivals { at_ms: Vec::new(), wake_ms: 0.0 };
        };
        let (at_once, later): (Vec<&Times>, Vec<&Times>) =
            times.iter().copied().partition(|times| started(times) - first < SAME_STEP);
        let wake = at_once.iter().map(|times| times.queued).max().unwrap_or_default();
        let before = |times: &&Times| first.checked_sub(times.queued).unwrap_or(began);
        let mut at: Vec<Instant> = at_once.iter().map(before).collect();
        at.extend(later.iter().map(|times| times.arrived().max(first)));
        at.sort();
        let at_ms = at.iter().map(|at| ms(at.saturating_duration_since(began))).collect();
        Arrivals { at_ms, wake_ms: ms(wake) }
    }
}

/// A server's part of a case as the simulation reads it.
fn scenario(case: &Case, overhead_ms: f64, arrivals: &Arrivals) -> String {
    let Arrivals { at_ms, wake_ms } = arrivals;
    format!(
        "[fleet]\nreplicas = 1\nsequences = {STREAMS}\ncontext = {CONTEXT}\noverhead_ms = {overhead_ms}\n\
         wake_ms = {wake_ms}\nmax_step_ms = {STEP_MS}.0\n\
         [load]\narrivals_ms = {at_ms:?}\nbeginnings = 1\nshared_tokens = {}\nown_tokens = {}\n\
         answer_tokens = {}\nspread = 0.0\n",
        case.shared, case.own, case.answer
    )
}

/// A case in simulation: each server with what reached it.
fn simulate(
    setting: &Setting,
    [simulator, bench]: [&Path; 2],
    case: &Case,
    overhead_ms: f64,
    ran: &Ran,
) -> Result<Figures> {
    let mut reports = Vec::new();
    for (server, arrivals) in ran.servers.iter().enumerate() {
        let file = setting.folder.join(format!("{}-requests-{server}.toml", case.requests));
        std::fs::write(&file, scenario(case, overhead_ms, arrivals))?;
        reports.push(output(Command::new(simulator).arg(bench).arg(&file).arg("--json"))?);
    }
    figures(&reports)
}

/// Of reports whose requests are alike: rates of all together, means of times.
fn figures(reports: &[String]) -> Result<Figures> {
    let (mut all, mut seconds, mut answers) = (Figures::default(), 0f64, 0.0);
    for report in reports {
        let report: Value = serde_json::from_str(report).context("the report of scaling_sim")?;
        let number = |value: &Value, key: &str| {
            value.as_f64().with_context(|| format!("the report of scaling_sim has no {key}"))
        };
        let count = reports.len() as f64;
        answers += number(&report["answer_tokens"], "answer_tokens")?;
        seconds = seconds.max(number(&report["seconds"], "seconds")?);
        all.first_ms += number(&report["first_token_ms"]["mean"], "first_token_ms.mean")? / count;
        all.gap_ms +=
            number(&report["between_tokens_ms"]["mean"], "between_tokens_ms.mean")? / count;
        all.cached += number(&report["prefix_hit_rate"], "prefix_hit_rate")? / count;
    }
    all.tokens_per_second = answers / seconds;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_missing_ones_named() {
        let report = |seconds: f64, gap: f64| {
            format!(
                r#"{{"answer_tokens": 40, "seconds": {seconds}, "first_token_ms": {{"mean": 100.0}},
                "between_tokens_ms": {{"mean": {gap}}}, "prefix_hit_rate": 0.5}}"#
            )
        };
        let expected =
            Figures { tokens_per_second: 20.0, first_ms: 100.0, gap_ms: 45.0, cached: 0.5 };
        assert_eq!(figures(&[report(2.0, 40.0), report(4.0, 50.0)]).unwrap(), expected);
        let short = r#"{"answer_tokens": 1, "seconds": 1}"#.to_owned();
        let error = format!("{:#}", figures(&[short]).unwrap_err());
        assert!(error.contains("first_token_ms.mean"), "{error}");
    }

    #[test]
    fn requests_of_the_first_step_are_placed_by_their_waits() {
        let began = Instant::now();
        let at = |ms: f64| began + Duration::from_secs_f64(ms / 1e3);
        let times = |queued: f64, prefill: f64, first: f64| Times {
            sent: began,
            tokens: vec![at(first)],
            cached: 0,
            queued: Duration::from_secs_f64(queued / 1e3),
            prefill: Duration::from_secs_f64(prefill / 1e3),
        };
        // A step from 10 ms to 50 ms, whose second token is seen 2 ms late, and one from there to 70 ms.
        let of = [times(3.0, 40.0, 50.0), times(1.0, 40.0, 52.0), times(35.0, 20.0, 70.0)];
        let found = Arrivals::of(began, &of.each_ref());
        let near = |a: f64, b: f64| (a - b).abs() < 1e-3;
        assert!(near(found.wake_ms, 3.0), "{found:?}");
        assert!(found.at_ms.iter().zip([7.0, 9.0, 15.0]).all(|(a, b)| near(*a, b)), "{found:?}");
        assert_eq!(Arrivals::of(began, &[]), Arrivals { at_ms: Vec::new(), wake_ms: 0.0 });
    }
}
