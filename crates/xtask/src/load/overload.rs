//! Ten times as many requests as the server can complete: goodput, refusals, and what is held afterwards.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::Setting;
use super::client::{Answer, Client};
use super::completion::{PATH, Prompts, body};
use super::process::Held;
use crate::report::{Row, Section, Verdict, largest, median, ms, quantile};

/// Tokens of a request.
const PROMPT: usize = 32;
const PREDICT: usize = 16;

/// Running and waiting requests that the server admits.
const SLOTS: usize = 8;
const QUEUE: usize = 16;

/// Context, tokens, and the prompts that fill it at the start: the KV cache takes memory as its pages are first written.
const CONTEXT: usize = 2048;
const FILLERS: usize = 5;

/// Requests in flight at most: more than are admitted, so that there is always a client for the next arrival.
const CLIENTS: usize = 256;

/// Arrivals as a multiple of capacity, and the share of them that must have been sent for a result to count.
const FACTOR: f64 = 10.0;
const SENT_BAR: f64 = 0.95;

/// Bars: goodput as a share of the peak, time of a refusal, growth of memory.
const GOODPUT_BAR: f64 = 0.9;
const REFUSAL_BAR_MS: f64 = 50.0;
const MEMORY_BAR: f64 = 0.05;

/// Growth that is allowed whatever the share is: free memory that the allocator keeps for its threads.
const MEMORY_FLOOR: f64 = 16.0 * 1024.0 * 1024.0;

/// Seconds of a phase at capacity, and of the burst that warms up, unless the overload itself is shorter.
const PEAK_SECONDS: u64 = 15;
const BURST_SECONDS: u64 = 10;

/// The overload is cut into windows of about so many seconds. Before, between and after them lie phases at capacity:
/// a machine's speed drifts by more than the bar leaves, so each window is compared with the phases beside it.
const WINDOW_SECONDS: u64 = 30;

/// Seconds at the start of a phase that are not counted.
const RAMP_SECONDS: u64 = 3;

/// What became of a request.
enum Outcome {
    Completed { at: Instant, tokens: u64 },
    Refused { ms: f64, retry_after: Option<u64> },
    Failed(String),
}

impl Outcome {
    fn of(answer: Result<Answer>) -> Outcome {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return Outcome::Failed(format!("{error:#}")),
        };
        match answer.head.status {
            200 => {
                let document: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                match document["usage"]["completion_tokens"].as_u64() {
                    Some(tokens) => Outcome::Completed { at: Instant::now(), tokens },
                    None => Outcome::Failed("an answer without usage".to_owned()),
                }
            }
            429 | 503 => {
                let retry_after = answer.head.get("retry-after");
                let retry_after = retry_after.and_then(|seconds| seconds.parse().ok());
                Outcome::Refused { ms: ms(answer.took), retry_after }
            }
            status => Outcome::Failed(format!("status {status}")),
        }
    }
}

/// When requests are sent.
#[derive(Clone, Copy)]
enum Arrivals {
    /// Each client sends its next request once the last one is answered.
    Closed { clients: usize },
    /// At fixed times, whatever became of the earlier ones; `rate` requests a second.
    Open { rate: f64 },
}

/// The outcomes of a phase.
struct Phase {
    began: Instant,
    length: Duration,
    outcomes: Vec<Outcome>,
    /// How late requests were sent, milliseconds.
    late_ms: Vec<f64>,
}

impl Phase {
    /// Sends requests for `length`, then waits for the answers.
    fn run(address: SocketAddr, arrivals: Arrivals, length: Duration, seed: u64) -> Result<Phase> {
        let began = Instant::now();
        let arrival = AtomicU64::new(0);
        let clients = match arrivals {
            Arrivals::Closed { clients } => clients,
            Arrivals::Open { .. } => CLIENTS,
        };
        let client = |number: usize| {
            let mut prompts = Prompts::seeded(seed + number as u64);
            let mut client = Client::new(address);
            let (mut outcomes, mut late_ms) = (Vec::new(), Vec::new());
            loop {
                if let Arrivals::Open { rate } = arrivals {
                    let number = arrival.fetch_add(1, Ordering::Relaxed);
                    let due = began + Duration::from_secs_f64(number as f64 / rate);
                    if due - began >= length {
                        break;
                    }
                    sleep(due.saturating_duration_since(Instant::now()));
                    late_ms.push(ms(due.elapsed()));
                }
                if began.elapsed() >= length {
                    break;
                }
                let body = body(&prompts.next(PROMPT), PREDICT).to_string();
                let outcome = Outcome::of(client.post(PATH, &body));
                if matches!(outcome, Outcome::Failed(_)) {
                    client.close();
                }
                outcomes.push(outcome);
            }
            (outcomes, late_ms)
        };
        let mut phase = Phase { began, length, outcomes: Vec::new(), late_ms: Vec::new() };
        thread::scope(|scope| {
            let client = &client;
            let spawn = |number| {
                let small = thread::Builder::new().stack_size(256 << 10);
                small.spawn_scoped(scope, move || client(number))
            };
            let threads = (0..clients).map(spawn).collect::<std::io::Result<Vec<_>>>()?;
            for thread in threads {
                let Ok((outcomes, late_ms)) = thread.join() else { bail!("a client panicked") };
                phase.outcomes.extend(outcomes);
                phase.late_ms.extend(late_ms);
            }
            Ok(phase)
        })
    }

    /// Completed tokens a second, from the end of the ramp to the end of the phase.
    fn goodput(&self) -> f64 {
        let ramp = Duration::from_secs(RAMP_SECONDS).min(self.length / 4);
        let (from, to) = (self.began + ramp, self.began + self.length);
        let within = |outcome: &Outcome| match outcome {
            Outcome::Completed { at, tokens } if from <= *at && *at < to => *tokens,
            _ => 0,
        };
        self.outcomes.iter().map(within).sum::<u64>() as f64 / (self.length - ramp).as_secs_f64()
    }

    /// This and a later phase as one, but for the time between them.
    fn joined(mut self, other: Phase) -> Phase {
        self.length += other.length;
        self.outcomes.extend(other.outcomes);
        self.late_ms.extend(other.late_ms);
        self
    }

    fn completed(&self) -> usize {
        let is_completed = |o: &&Outcome| matches!(o, Outcome::Completed { .. });
        self.outcomes.iter().filter(is_completed).count()
    }

    /// Times of refusals in milliseconds, and how many came without Retry-After.
    fn refusals(&self) -> (Vec<f64>, usize) {
        let refusals = self.outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Refused { ms, retry_after } => Some((*ms, retry_after.is_none())),
            _ => None,
        });
        let (times, without): (Vec<f64>, Vec<bool>) = refusals.unzip();
        (times, without.into_iter().filter(|without| *without).count())
    }

    fn failures(&self) -> Vec<&str> {
        let failed = self.outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Failed(why) => Some(why.as_str()),
            _ => None,
        });
        failed.collect()
    }

    /// Requests sent, as a share of those that were due.
    fn sent_share(&self, rate: f64) -> f64 {
        self.outcomes.len() as f64 / (rate * self.length.as_secs_f64())
    }
}

/// Writes every page of the KV cache once.
fn fill(address: SocketAddr) -> Result<()> {
    eprintln!("xtask: overload: prompts that fill the KV cache");
    let (mut prompts, mut client) = (Prompts::seeded(5 << 32), Client::new(address));
    for _ in 0..FILLERS {
        let prompt = prompts.next(CONTEXT / (FILLERS - 1) - PREDICT);
        if let Outcome::Failed(why) = Outcome::of(client.post(PATH, &body(&prompt, 1).to_string()))
        {
            bail!("a prompt of {} tokens: {why}", prompt.len());
        }
    }
    Ok(())
}

/// A window of overload, in completed tokens a second, and the phases at capacity before and after it.
struct Window {
    goodput: f64,
    peaks: [f64; 2],
}

impl Window {
    fn share(&self) -> f64 {
        2.0 * self.goodput / (self.peaks[0] + self.peaks[1])
    }
}

/// Phases of one server.
struct Phases<'a> {
    address: SocketAddr,
    setting: &'a Setting,
    seeds: u64,
}

impl Phases<'_> {
    fn run(&mut self, what: &str, arrivals: Arrivals, seconds: f64) -> Result<Phase> {
        eprintln!("xtask: overload: {what}, {seconds:.0} s");
        self.seeds += 1;
        let length = Duration::from_secs_f64(seconds.min(self.setting.seconds as f64));
        Phase::run(self.address, arrivals, length, self.seeds << 32)
    }

    /// Completed tokens a second of clients that wait for their answers.
    fn peak(&mut self) -> Result<f64> {
        let closed = Arrivals::Closed { clients: 2 * SLOTS };
        let phase = self.run("peak at capacity", closed, PEAK_SECONDS as f64)?;
        match phase.goodput() {
            peak if peak > 0.0 => Ok(peak),
            _ => bail!("no request was completed at capacity: {:?}", phase.failures().first()),
        }
    }

    /// The overload, in windows; returns all of it as one phase.
    fn overload(&mut self, open: Arrivals, first_peak: f64) -> Result<(Phase, Vec<Window>)> {
        let count = (self.setting.seconds / WINDOW_SECONDS).max(1);
        let seconds = self.setting.seconds as f64 / count as f64;
        let (mut phases, mut windows, mut before) = (Vec::new(), Vec::new(), first_peak);
        for number in 1..=count {
            let what = format!("ten times capacity, {number} of {count}");
            let phase = self.run(&what, open, seconds)?;
            let (goodput, after) = (phase.goodput(), self.peak()?);
            windows.push(Window { goodput, peaks: [before, after] });
            before = after;
            phases.push(phase);
        }
        let all = phases.into_iter().reduce(Phase::joined).context("no window of overload")?;
        Ok((all, windows))
    }
}

/// A phase at capacity, a burst that warms up, and windows of overload with phases at capacity between them.
pub fn overload(setting: &Setting) -> Result<Section> {
    let flags = format!(
        "-np {SLOTS} -c {CONTEXT} --kv-unified --max-queue {QUEUE} --max-connections 1024 --max-connections-per-ip 1024 -t {} \
         -ngl 0 -dev none",
        setting.threads
    );
    let server = setting.launch("overload", flags.clone()).bilayer()?;
    let fresh = server.held()?;
    fill(server.address)?;
    let mut phases = Phases { address: server.address, setting, seeds: 0 };
    let rate = FACTOR * phases.peak()? / PREDICT as f64;
    let open = Arrivals::Open { rate };
    phases.run("burst that warms up", open, BURST_SECONDS as f64)?;
    let patience = Duration::from_secs(30);
    sleep(Duration::from_secs(3));
    let before = server.settled(fresh.descriptors, patience)?;
    let peak = phases.peak()?;
    let (phase, windows) = phases.overload(open, peak)?;
    let under = server.held()?;
    sleep(Duration::from_secs(3));
    let after = server.settled(fresh.descriptors, patience)?;
    let about = format!(
        "`bilayer serve {flags}`; prompts of {PROMPT} tokens, answers of {PREDICT}, not streamed. The KV cache is filled \
         once at first. {rate:.1} requests a second ({FACTOR} times capacity) arrive for {} s in {} windows, from {CLIENTS} \
         clients on loopback. Before, between and after the windows lie {PEAK_SECONDS} s at capacity: {} clients that send \
         their next request once the last is answered. The share of a window is that of the mean of the two phases beside \
         it. Memory is compared with its value after a burst of {BURST_SECONDS} s at that rate, descriptors with their \
         number after the start, both without connections.",
        setting.seconds,
        windows.len(),
        2 * SLOTS,
    );
    let mut rows = served_rows(&phase, &windows, rate);
    rows.extend(held_rows(&fresh, &before, &under, &after));
    Ok(Section { name: "overload", about, rows })
}

/// The goodput of all windows as a share of the phases beside them.
fn goodput_row(windows: &[Window]) -> Row {
    let shares: Vec<f64> = windows.iter().map(Window::share).collect();
    let share = median(&shares);
    let peaks: Vec<f64> = windows.iter().flat_map(|window| window.peaks).collect();
    let least = |of: &[f64]| of.iter().copied().fold(f64::INFINITY, f64::min);
    Row::judged(
        "goodput, share of the peak, median of the windows",
        format!(
            "{share:.3} (windows {:.3} to {:.3}; peaks {:.1} to {:.1} tok/s)",
            least(&shares),
            largest(&shares),
            least(&peaks),
            largest(&peaks)
        ),
        format!("at least {GOODPUT_BAR}"),
        Verdict::at_least(share, GOODPUT_BAR),
    )
}

fn served_rows(phase: &Phase, windows: &[Window], rate: f64) -> Vec<Row> {
    let (refusals, without) = phase.refusals();
    let failures = phase.failures();
    let sent = phase.sent_share(rate);
    let p99 = quantile(&refusals, 0.99);
    vec![
        goodput_row(windows),
        Row::judged(
            "time of a refusal, p99",
            format!(
                "{p99:.1} ms (median {:.1} ms, largest {:.1} ms)",
                quantile(&refusals, 0.5),
                largest(&refusals)
            ),
            format!("at most {REFUSAL_BAR_MS} ms"),
            Verdict::at_most(p99, REFUSAL_BAR_MS),
        ),
        Row::judged(
            "refusals without Retry-After",
            format!("{without} of {}", refusals.len()),
            "none",
            Verdict::at_most(without as f64, 0.0),
        ),
        Row::judged(
            "requests that neither completed nor were refused",
            match failures.first() {
                None => "0".to_owned(),
                Some(first) => format!("{}, the first: {first}", failures.len()),
            },
            "none",
            Verdict::at_most(failures.len() as f64, 0.0),
        ),
        Row::judged(
            "requests sent, share of those due",
            format!("{sent:.3} (p99 {:.1} ms late)", quantile(&phase.late_ms, 0.99)),
            format!("at least {SENT_BAR}"),
            Verdict::at_least(sent, SENT_BAR),
        ),
        Row::shown(
            "completed, refused",
            format!("{} completed, {} refused", phase.completed(), refusals.len()),
        ),
    ]
}

fn held_rows(fresh: &Held, before: &Held, under: &Held, after: &Held) -> Vec<Row> {
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    let memory = |what: &str, of: fn(&Held) -> f64| {
        let growth = of(after) - of(before);
        let bar = (MEMORY_BAR * of(before)).max(MEMORY_FLOOR);
        Row::judged(
            what,
            format!(
                "{:+.1} MiB ({:.1} MiB before, {:.1} MiB under load, {:.1} MiB after)",
                mib(growth),
                mib(of(before)),
                mib(of(under)),
                mib(of(after))
            ),
            format!("at most {:+.1} MiB ({} % or 16 MiB)", mib(bar), 100.0 * MEMORY_BAR),
            Verdict::at_most(growth, bar),
        )
    };
    vec![
        memory("resident memory (VmRSS)", |held| held.resident),
        memory("resident memory without files (RssAnon)", |held| held.anonymous),
        Row::judged(
            "file descriptors",
            format!("{} (at the start {})", after.descriptors, fresh.descriptors),
            "as at the start",
            Verdict::at_most(after.descriptors as f64, fresh.descriptors as f64),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(outcomes: Vec<Outcome>, began: Instant) -> Phase {
        Phase { began, length: Duration::from_secs(8), outcomes, late_ms: vec![1.0] }
    }

    #[test]
    fn goodput_counts_completed_tokens_after_the_ramp() {
        let began = Instant::now();
        let done = |seconds: u64| Outcome::Completed {
            at: began + Duration::from_secs(seconds),
            tokens: 12,
        };
        let refused = Outcome::Refused { ms: 3.0, retry_after: None };
        // A quarter of 8 s is ramp: those after 1 s and 9 s do not count.
        let phase = phase(vec![done(1), done(3), refused, done(7), done(9)], began);
        assert!((phase.goodput() - 4.0).abs() < 1e-9);
        assert_eq!(phase.completed(), 4);
        assert_eq!(phase.refusals(), (vec![3.0], 1));
        assert!((phase.sent_share(1.0) - 5.0 / 8.0).abs() < 1e-9);
        let windows = [Window { goodput: 4.0, peaks: [3.0, 5.0] }];
        let verdicts: Vec<_> = served_rows(&phase, &windows, 1.0);
        let section = Section { name: "overload", about: String::new(), rows: verdicts };
        // No Retry-After, and too few were sent.
        assert_eq!(section.failures(), 2, "{section}");
    }

    #[test]
    fn a_window_is_compared_with_the_phases_beside_it() {
        // The machine becomes half as fast; the server does not become worse.
        let window = |goodput, before, after| Window { goodput, peaks: [before, after] };
        let windows =
            [window(39.0, 40.0, 40.0), window(29.0, 40.0, 20.0), window(19.0, 20.0, 20.0)];
        let section = |windows: &[Window]| Section {
            name: "overload",
            about: String::new(),
            rows: vec![goodput_row(windows)],
        };
        assert_eq!(section(&windows).failures(), 0, "{}", section(&windows));
        let worse = [window(39.0, 40.0, 40.0), window(25.0, 40.0, 20.0), window(17.0, 20.0, 20.0)];
        assert_eq!(section(&worse).failures(), 1, "{}", section(&worse));
    }

    #[test]
    fn memory_and_descriptors_must_come_back() {
        let mib = |mib: f64| mib * f64::from(1 << 20);
        let held = |resident: f64, anonymous: f64, descriptors| Held {
            resident: mib(resident),
            anonymous: mib(anonymous),
            descriptors,
        };
        let failures = |after: &Held| {
            let start = held(1000.0, 100.0, 10);
            let rows = held_rows(&start, &start, &held(9000.0, 9000.0, 300), after);
            Section { name: "overload", about: String::new(), rows }.failures()
        };
        assert_eq!(failures(&held(1049.0, 115.0, 10)), 0);
        assert_eq!(failures(&held(1051.0, 115.0, 10)), 1);
        assert_eq!(failures(&held(1049.0, 117.0, 10)), 1);
        assert_eq!(failures(&held(1000.0, 100.0, 11)), 1);
    }
}
