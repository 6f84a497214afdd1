//! Latency of single streams: beside a prompt that arrives, behind a long prompt, and with a prompt that is in the cache.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::Setting;
use super::client::Client;
use super::completion::{Prompts, Times, stream};
use super::process::Server;
use crate::report::{Row, Section, Verdict, largest, median, ms, spread};

/// Tokens of the prompt that arrives, of the stream beside it, and of the stream's start, before the prompt is sent.
const ARRIVING: usize = 512;
const BESIDE: usize = 384;
const BEFORE: usize = 48;

/// What a gap may exceed the bound by: a share of the bound for the error of predicted step times, and milliseconds for
/// the way to the client.
const TOLERANCE: f64 = 0.10;
const TOLERANCE_MS: f64 = 5.0;

/// Tokens of the long prompt, of the short one that comes behind it, and of the short one's answer.
const LONG: usize = 3000;
const SHORT: usize = 60;
const ANSWER: usize = 12;

/// When the short prompt is sent, and the bar for its first token, as a share of what the long one has still to wait for its own
/// then.
const BEHIND: Duration = Duration::from_secs(1);
const BEHIND_BAR: f64 = 0.4;

/// Tokens of the prompt that is sent twice, and the bar for its second first token, as a share of the first.
const CACHED: usize = 2000;
const CACHED_BAR: f64 = 0.05;

/// A stream beside which a prompt arrived.
struct Arrival {
    /// Longest time between tokens of the stream before the prompt was sent.
    before_ms: f64,
    /// Times between tokens of the stream from then until the prompt's first token.
    during_ms: Vec<f64>,
    /// Time to the first token of the prompt.
    first_ms: f64,
}

/// A server of four slots that share a context.
fn launch(setting: &Setting, name: &str, context: usize) -> Result<Server> {
    let flags = format!(
        "-np 4 -c {context} --kv-unified --max-step-ms {} -t {} -ngl 0 -dev none",
        setting.max_step_ms, setting.threads
    );
    setting.launch(name, flags).bilayer()
}

/// The longest time that may be between tokens, milliseconds.
fn gap_bar(setting: &Setting) -> f64 {
    setting.max_step_ms as f64 * (1.0 + TOLERANCE) + TOLERANCE_MS
}

/// Gaps of a running stream while a long prompt arrives.
pub fn arrival(setting: &Setting) -> Result<Section> {
    let server = launch(setting, "arrival", 4096)?;
    let mut prompts = Prompts::new();
    // Step times are predicted from measured ones, so the first arrival after the start stands for itself.
    let first = arrive(&server, &mut prompts)?;
    let mut arrivals = Vec::new();
    for round in 0..setting.rounds {
        setting.say("arrival", round);
        arrivals.push(arrive(&server, &mut prompts)?);
    }
    let of = |get: fn(&Arrival) -> f64| arrivals.iter().map(get).collect::<Vec<f64>>();
    let [before, firsts] = [of(|a| a.before_ms), of(|a| a.first_ms)];
    let during = of(|a| largest(&a.during_ms));
    let middle = of(|a| median(&a.during_ms));
    let bar = gap_bar(setting);
    let rows = vec![
        Row::judged(
            "longest time between tokens while the prompt is computed",
            format!("{} ms", spread(&during, 1)),
            format!("largest at most {bar:.0} ms"),
            Verdict::at_most(largest(&during), bar),
        ),
        Row::shown(
            "the same beside the first prompt after the start",
            format!("{:.1} ms", largest(&first.during_ms)),
        ),
        Row::shown(
            "median time between tokens while the prompt is computed",
            format!("{} ms", spread(&middle, 1)),
        ),
        Row::shown("longest time between tokens before", format!("{} ms", spread(&before, 1))),
        Row::shown("time to first token of the prompt", format!("{} ms", spread(&firsts, 0))),
    ];
    let about = format!(
        "A prompt of {ARRIVING} tokens arrives while a stream runs, `--max-step-ms {}`, {} rounds after one that warms up. The \
         bar is the bound, {:.0} % and {TOLERANCE_MS:.0} ms.",
        setting.max_step_ms,
        setting.rounds,
        100.0 * TOLERANCE
    );
    Ok(Section { name: "arrival", about, rows })
}

/// One arrival beside a stream.
fn arrive(server: &Server, prompts: &mut Prompts) -> Result<Arrival> {
    let (running, arriving) = (prompts.next(32), prompts.next(ARRIVING));
    let (tell, told) = mpsc::channel();
    let mut arriver = Client::new(server.address);
    arriver.connect()?;
    let (beside, arrived) = thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut count = 0;
            // Dropped with the stream: a stream that fails ends the wait for it.
            let tell = tell;
            stream(&mut Client::new(server.address), &running, BESIDE, |_| {
                count += 1;
                if count == BEFORE {
                    // The receiver waits for it.
                    let _ = tell.send(());
                }
            })
        });
        // If the stream fails, the channel closes.
        let arrived = told.recv().ok().map(|()| stream(&mut arriver, &arriving, 1, |_| {}));
        (beside.join(), arrived)
    });
    let beside = beside.unwrap_or_else(|_| bail!("a client panicked"))?;
    let Some(arrived) = arrived else { bail!("the stream ended before the prompt was sent") };
    Arrival::of(&beside, &arrived?)
}

impl Arrival {
    fn of(beside: &Times, arrived: &Times) -> Result<Arrival> {
        let (Some(&first), Some(&last)) = (arrived.tokens.first(), beside.tokens.last()) else {
            bail!("a stream has no tokens");
        };
        if last < first {
            bail!(
                "the stream ended before the prompt was computed: it must be longer for this model"
            );
        }
        let gaps = |is_within: &dyn Fn(Instant, Instant) -> bool| -> Vec<f64> {
            let pairs = beside.tokens.windows(2).filter(|pair| is_within(pair[0], pair[1]));
            pairs.map(|pair| ms(pair[1] - pair[0])).collect()
        };
        Ok(Arrival {
            before_ms: largest(&gaps(&|_, end| end < arrived.sent)),
            during_ms: gaps(&|start, end| end >= arrived.sent && start <= first),
            first_ms: arrived.first_ms(),
        })
    }
}

/// The first token of a short prompt that comes while a long one is computed, and the gaps of its answer.
pub fn behind(setting: &Setting) -> Result<Section> {
    let server = launch(setting, "behind", 8192)?;
    let mut prompts = Prompts::new();
    let (mut shares, mut gaps) = (Vec::new(), Vec::new());
    let (mut short_firsts, mut long_firsts) = (Vec::new(), Vec::new());
    for round in 0..setting.rounds {
        setting.say("behind", round);
        let (long, short) = (prompts.next(LONG), prompts.next(SHORT));
        let (long, short) = thread::scope(|scope| {
            let long = scope.spawn(|| stream(&mut Client::new(server.address), &long, 4, |_| {}));
            thread::sleep(BEHIND);
            let short = stream(&mut Client::new(server.address), &short, ANSWER, |_| {});
            (long.join(), short)
        });
        let (long, short) = (long.unwrap_or_else(|_| bail!("a client panicked"))?, short?);
        let left = long.first_ms() - ms(short.sent - long.sent);
        shares.push(short.first_ms() / left);
        gaps.push(largest(&short.gaps_ms().collect::<Vec<f64>>()));
        short_firsts.push(short.first_ms());
        long_firsts.push(long.first_ms());
    }
    let bar = gap_bar(setting);
    let rows = vec![
        Row::judged(
            "time to first token of the short prompt, share of what is left of the long one's",
            spread(&shares, 2),
            format!("median at most {BEHIND_BAR}"),
            Verdict::at_most(median(&shares), BEHIND_BAR),
        ),
        Row::judged(
            "longest time between tokens of the short one's answer",
            format!("{} ms", spread(&gaps, 1)),
            format!("median at most {bar:.0} ms"),
            Verdict::at_most(median(&gaps), bar),
        ),
        Row::shown("time to first token, short", format!("{} ms", spread(&short_firsts, 0))),
        Row::shown("time to first token, long", format!("{} ms", spread(&long_firsts, 0))),
    ];
    let about = format!(
        "A prompt of {SHORT} tokens is sent {} s after one of {LONG}, {} rounds from the start of the server on.",
        BEHIND.as_secs(),
        setting.rounds
    );
    Ok(Section { name: "behind", about, rows })
}

/// Time to the first token of a long prompt, cold and again.
pub fn cached(setting: &Setting) -> Result<Section> {
    let flags = format!("-np 2 -c 8192 --kv-unified -t {} -ngl 0 -dev none", setting.threads);
    let server = setting.launch("cached", flags).bilayer()?;
    let mut prompts = Prompts::new();
    let mut client = Client::new(server.address);
    stream(&mut client, &prompts.next(64), 4, |_| {})?;
    let (mut cold, mut warm, mut hits) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..setting.rounds {
        setting.say("cached", round);
        let prompt = prompts.next(CACHED);
        let first = stream(&mut client, &prompt, 4, |_| {})?;
        if first.cached > 0 {
            bail!("{} tokens of a new prompt were in the cache", first.cached);
        }
        cold.push(first.first_ms());
        let again = stream(&mut client, &prompt, 4, |_| {})?;
        warm.push(again.first_ms());
        hits.push(again.cached as f64);
    }
    let shares: Vec<f64> = warm.iter().zip(&cold).map(|(warm, cold)| 100.0 * warm / cold).collect();
    let rows = vec![
        Row::judged(
            "time to first token again, share of the cold one",
            format!("{} %", spread(&shares, 2)),
            format!("median below {:.0} %", 100.0 * CACHED_BAR),
            Verdict::at_most(median(&shares), 100.0 * CACHED_BAR),
        ),
        Row::shown("time to first token, cold", format!("{} ms", spread(&cold, 0))),
        Row::shown("time to first token, again", format!("{} ms", spread(&warm, 1))),
        Row::shown("prompt tokens found in the cache", spread(&hits, 0)),
    ];
    let about = format!(
        "A prompt of {CACHED} tokens that the server has not seen, then the same request again, {} rounds.",
        setting.rounds
    );
    Ok(Section { name: "cached", about, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_count_before_or_while_the_prompt_is_computed() {
        let origin = Instant::now();
        let at = |ms: u64| origin + Duration::from_millis(ms);
        let times = |sent: u64, tokens: &[u64]| Times {
            sent: at(sent),
            tokens: tokens.iter().map(|&ms| at(ms)).collect(),
            cached: 0,
            queued: Duration::ZERO,
            prefill: Duration::ZERO,
        };
        let beside = times(0, &[10, 30, 40, 90, 120, 320]);
        let found = Arrival::of(&beside, &times(50, &[110])).unwrap();
        assert!((found.before_ms - 20.0).abs() < 1e-6);
        assert_eq!(found.during_ms.len(), 2);
        assert!((largest(&found.during_ms) - 50.0).abs() < 1e-6);
        assert!((found.first_ms - 60.0).abs() < 1e-6);
        let late = Arrival::of(&beside, &times(50, &[400])).err().unwrap();
        assert!(late.to_string().contains("must be longer"));
    }
}
