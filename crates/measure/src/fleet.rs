//! A fleet of servers in simulation: the engine's scheduler of requests for each replica, on one clock, with measured
//! times of steps.
//!
//! **The idea.** What a replica does with its requests is decided by [`Scheduler`], a state machine without devices, and
//! the KV cache's book-keeping, [`Pages`], which a server uses too. So a discrete simulation needs only how long steps take
//! ([`StepTimes`], from a result of `bilayer bench`), what arrives ([`Load`]) and who gets it ([`Router`]). Nothing is
//! computed: a minute of a thousand replicas takes seconds.
//!
//! **What it leaves out.** Tokenizing, networks, failures, replicas that start and stop. What a server adds to a step, such
//! as selecting tokens and writing events, is [`Fleet::overhead_ms`].
//!
//! [`Scheduler`]: bilayer_engine::requests::Scheduler
//! [`Pages`]: bilayer_engine::session::Pages

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod load;
mod replica;
mod report;
mod request;
mod router;
mod times;

pub use load::Load;
pub use report::{Quantiles, Report};
pub use request::{Request, Served};
pub use router::Router;
pub use times::StepTimes;

use load::Arrivals;
use replica::Replica;
use router::Routing;

/// Replicas of one model on equal machines.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// Number of replicas, at least 1.
    pub replicas: usize,
    /// Answers at once of a replica: `--parallel` of `bilayer serve`.
    pub sequences: usize,
    /// Tokens that a replica's KV cache holds: `--ctx-size`.
    pub context: usize,
    /// Rows of a step at most: `--ubatch-size`.
    #[serde(default = "rows")]
    pub rows: usize,
    /// Requests that may wait at a replica.
    #[serde(default = "waiting")]
    pub waiting: usize,
    /// Bound on the duration of a step while answers run, milliseconds: `--max-step-ms`.
    #[serde(default = "max_step_ms")]
    pub max_step_ms: f64,
    /// What the server adds to each step, milliseconds.
    #[serde(default)]
    pub overhead_ms: f64,
    /// From a request's arrival at an idle server to its first step, milliseconds. Requests that come meanwhile are in that
    /// step too, and then stay together.
    #[serde(default)]
    pub wake_ms: f64,
    /// Which replica a request is sent to.
    #[serde(default)]
    pub router: Router,
    /// What a replica costs an hour, in any currency; nothing if not given.
    #[serde(default)]
    pub price_per_hour: f64,
}

fn rows() -> usize {
    512
}

fn waiting() -> usize {
    256
}

fn max_step_ms() -> f64 {
    250.0
}

/// A fleet and what it has to serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The replicas.
    pub fleet: Fleet,
    /// The requests.
    pub load: Load,
}

/// Why a scenario cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FleetError {
    /// A number that makes no sense; the message names the key.
    #[error("{key} is {value}; it must be {expected}")]
    Value {
        /// The key, such as `fleet.replicas`.
        key: &'static str,
        /// What it is.
        value: f64,
        /// What it must be.
        expected: &'static str,
    },
    /// A result of `bilayer bench` from which times of steps cannot be taken.
    #[error("the result of bilayer bench {0}")]
    Bench(String),
}

/// The longest duration of a scenario, milliseconds: times of any number of requests can be added to it.
const DURATION_MAX_MS: f64 = 1e12;

/// Whether a number of milliseconds is a duration.
fn is_duration(ms: f64) -> bool {
    (0.0..=DURATION_MAX_MS).contains(&ms)
}

impl Scenario {
    /// Checks all numbers.
    ///
    /// # Errors
    /// One is out of range.
    pub fn check(&self) -> Result<(), FleetError> {
        let (fleet, load) = (&self.fleet, &self.load);
        let longest = load.tokens_max() as f64;
        let whole = "at least 1";
        let checks = [
            ("fleet.replicas", fleet.replicas as f64, whole, fleet.replicas >= 1),
            ("fleet.sequences", fleet.sequences as f64, whole, fleet.sequences >= 1),
            ("fleet.rows", fleet.rows as f64, whole, fleet.rows >= 1),
            (
                "fleet.max_step_ms",
                fleet.max_step_ms,
                "above 0, at most 1e12",
                fleet.max_step_ms > 0.0 && is_duration(fleet.max_step_ms),
            ),
            ("fleet.overhead_ms", fleet.overhead_ms, "0 to 1e12", is_duration(fleet.overhead_ms)),
            ("fleet.wake_ms", fleet.wake_ms, "0 to 1e12", is_duration(fleet.wake_ms)),
            (
                "fleet.price_per_hour",
                fleet.price_per_hour,
                "at least 0",
                fleet.price_per_hour >= 0.0,
            ),
            (
                "fleet.context",
                fleet.context as f64,
                "larger than the longest prompt with its answer",
                fleet.context as f64 > longest,
            ),
        ];
        let broken = checks
            .into_iter()
            .find(|check| !check.3)
            .map(|(key, value, expected, _)| FleetError::Value { key, value, expected });
        load.broken().or(broken).map_or(Ok(()), Err)
    }
}

/// Simulates a scenario. The same scenario and times give the same report.
///
/// # Errors
/// A number of the scenario is out of range.
///
/// ```
/// use bilayer_measure::fleet::{Fleet, Load, Router, Scenario, StepTimes, simulate};
///
/// let times = StepTimes::linear(20.0, 2.0);
/// let fleet = Fleet {
///     replicas: 2,
///     sequences: 8,
///     context: 4096,
///     rows: 512,
///     waiting: 64,
///     max_step_ms: 250.0,
///     overhead_ms: 0.0,
///     wake_ms: 0.0,
///     router: Router::LeastRequests,
///     price_per_hour: 0.10,
/// };
/// let load = Load { requests_per_second: 1.0, seconds: 60.0, ..Load::default() };
/// let report = simulate(&Scenario { fleet, load }, &times)?;
/// assert_eq!(report.refused, 0);
/// assert!(report.finished > 30);
/// # Ok::<(), bilayer_measure::fleet::FleetError>(())
/// ```
pub fn simulate(scenario: &Scenario, times: &StepTimes) -> Result<Report, FleetError> {
    scenario.check()?;
    let fleet = &scenario.fleet;
    let mut arrivals = Arrivals::new(&scenario.load);
    let mut replicas: Vec<Replica> = (0..fleet.replicas).map(|_| Replica::new(fleet)).collect();
    let mut routing = Routing::new(fleet);
    let wake = Duration::from_secs_f64(fleet.wake_ms / 1e3);
    // When the step of which replica ends, or it wakes.
    let mut ends: BinaryHeap<Reverse<(Duration, usize)>> = BinaryHeap::new();
    let mut report = Report::new(fleet, &scenario.load);
    loop {
        let arrives = arrivals.next_at();
        let ends_at = ends.peek().map(|Reverse((at, _))| *at);
        let (now, replica) = match (arrives, ends_at) {
            (None, None) => break,
            (Some(at), end) if end.is_none_or(|end| at < end) => {
                let request = arrivals.take().expect("it has a time");
                let chosen = routing.choose(&request, &replicas);
                match replicas[chosen].submit(at, request) {
                    true => report.accept(),
                    false => report.refuse(),
                }
                if replicas[chosen].wake() {
                    ends.push(Reverse((at + wake, chosen)));
                }
                continue;
            }
            _ => {
                let Some(Reverse((now, replica))) = ends.pop() else { break };
                for served in replicas[replica].end_step(now) {
                    report.add(&served);
                    arrivals.answered(now, served);
                }
                (now, replica)
            }
        };
        if let Some(took) = replicas[replica].begin_step(now, times) {
            ends.push(Reverse((now + took, replica)));
        }
    }
    report.finish(&replicas);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(replicas: usize, router: Router, load: Load) -> Scenario {
        let fleet = Fleet {
            replicas,
            sequences: 4,
            context: 4096,
            rows: 256,
            waiting: 1000,
            max_step_ms: 250.0,
            overhead_ms: 1.0,
            wake_ms: 0.0,
            router,
            price_per_hour: 0.36,
        };
        Scenario { fleet, load }
    }

    /// 10 ms for one row and 1 ms for each more.
    fn times() -> StepTimes {
        StepTimes::linear(10.0, 1.0)
    }

    #[test]
    fn one_request_takes_its_steps() {
        let load = Load {
            requests_per_second: 0.0,
            conversations: Some(1),
            shared_tokens: 0,
            own_tokens: 1,
            answer_tokens: 1,
            ..Load::default()
        };
        let report = simulate(&scenario(1, Router::RoundRobin, load), &times()).unwrap();
        // One token has a length between 1 and 1: a step of a prompt of one row, and the server's millisecond.
        assert_eq!((report.finished, report.answer_tokens), (1, 1));
        assert!((report.first_token_ms.p50 - 11.0).abs() < 1e-6, "{report:?}");
        // 1.1e-2 s of a machine for 0.36 an hour, which is 1e-4 a second: 1.1e-6 for one token.
        let price = report.price_per_million_tokens.unwrap();
        assert!((price - 1.1).abs() < 1e-6, "{price}");
    }

    #[test]
    fn requests_begin_when_a_log_says() {
        let load = Load {
            requests_per_second: 0.0,
            arrivals_ms: Some(vec![0.0, 500.0, 3.0]),
            shared_tokens: 0,
            own_tokens: 1,
            answer_tokens: 1,
            ..Load::default()
        };
        let first_tokens = |wake_ms| {
            let mut scenario = scenario(1, Router::RoundRobin, load.clone());
            scenario.fleet.wake_ms = wake_ms;
            let report = simulate(&scenario, &times()).unwrap();
            assert_eq!(report.finished, 3);
            report.first_token_ms.mean
        };
        // The third request comes while the first one's step of 11 ms runs, and waits 8 ms; the second is alone.
        let expected = (11.0 + 19.0 + 11.0) / 3.0;
        assert!((first_tokens(0.0) - expected).abs() < 1e-6);
        // The third is there when the server wakes for the first: one step of two rows for both.
        let expected = (17.0 + 14.0 + 16.0) / 3.0;
        assert!((first_tokens(5.0) - expected).abs() < 1e-6);
    }

    #[test]
    fn answers_together_share_steps_and_replicas_share_answers() {
        let load = Load {
            requests_per_second: 0.0,
            conversations: Some(8),
            shared_tokens: 0,
            ..Load::default()
        };
        let run = |replicas| {
            simulate(&scenario(replicas, Router::LeastRequests, load.clone()), &times()).unwrap()
        };
        let [one, two, eight] = [1, 2, 8].map(run);
        assert_eq!([one.finished, two.finished, eight.finished], [8; 3]);
        assert!(two.tokens_per_second > 1.5 * one.tokens_per_second);
        // With a replica each, an answer's tokens are a step of one row apart.
        assert!((eight.between_tokens_ms.p99 - 11.0).abs() < 1e-6, "{eight:?}");
        assert!(one.between_tokens_ms.p50 >= 14.0, "{one:?}");
        assert_eq!(run(2), two, "a simulation is repeatable");
    }

    #[test]
    fn beginnings_are_computed_once_where_they_are_sent_to_one_replica() {
        let load = Load {
            requests_per_second: 4.0,
            seconds: 60.0,
            beginnings: 4,
            shared_tokens: 640,
            own_tokens: 16,
            answer_tokens: 8,
            turns: 2,
            pause_seconds: 1.0,
            ..Load::default()
        };
        let run = |router| simulate(&scenario(4, router, load.clone()), &times()).unwrap();
        let [prefix, turns] = [Router::Prefix, Router::RoundRobin].map(run);
        assert_eq!(prefix.arrived, prefix.finished);
        assert!(prefix.prefix_hit_rate > turns.prefix_hit_rate, "{prefix:?} {turns:?}");
        assert!(prefix.first_token_ms.mean < turns.first_token_ms.mean);
    }

    #[test]
    fn a_fleet_that_is_too_small_refuses_and_is_always_busy() {
        let load =
            Load { requests_per_second: 50.0, seconds: 30.0, shared_tokens: 0, ..Load::default() };
        let mut crowded = scenario(1, Router::Prefix, load);
        crowded.fleet.waiting = 10;
        let report = simulate(&crowded, &times()).unwrap();
        assert!(report.refused > report.finished, "{report:?}");
        assert!(report.busy > 0.95 && report.busy <= 1.0 + 1e-9, "{report:?}");
        assert_eq!(report.arrived, report.refused + report.finished);
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let good = scenario(1, Router::Prefix, Load::default());
        good.check().unwrap();
        for (key, change) in [
            ("fleet.replicas", (|s: &mut Scenario| s.fleet.replicas = 0) as fn(&mut Scenario)),
            ("fleet.context", |s| s.fleet.context = 300),
            ("fleet.max_step_ms", |s| s.fleet.max_step_ms = f64::NAN),
            ("fleet.max_step_ms", |s| s.fleet.max_step_ms = f64::INFINITY),
            ("fleet.overhead_ms", |s| s.fleet.overhead_ms = f64::INFINITY),
            ("fleet.wake_ms", |s| s.fleet.wake_ms = 1e300),
            ("load.turns", |s| s.load.turns = 0),
            ("load.answer_tokens", |s| s.load.answer_tokens = usize::MAX),
            ("load.requests_per_second", |s| s.load.requests_per_second = 0.0),
            ("load.pause_seconds", |s| s.load.pause_seconds = f64::INFINITY),
            ("load.pause_seconds", |s| s.load.pause_seconds = 1e300),
            ("load.seconds", |s| s.load.seconds = 1e300),
            ("load.arrivals_ms", |s| s.load.arrivals_ms = Some(vec![1.0, -2.0])),
            ("load.arrivals_ms", |s| s.load.arrivals_ms = Some(vec![1.0, 1e300])),
        ] {
            let mut bad = good.clone();
            change(&mut bad);
            let error = simulate(&bad, &times()).unwrap_err().to_string();
            assert!(error.starts_with(key), "{key}: {error}");
        }
    }
}
