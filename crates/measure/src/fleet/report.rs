//! What a simulated fleet did.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Fleet, Load, Replica, Served};

/// Median and high quantiles, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Quantiles {
    /// Of values in any order; zeros if there are none.
    pub fn of(mut values: Vec<f64>) -> Quantiles {
        if values.is_empty() {
            return Quantiles::default();
        }
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        Quantiles { mean, p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

/// The report of a simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Number of replicas.
    pub replicas: usize,
    /// From the first arrival to the last token, seconds.
    pub seconds: f64,
    /// Requests that arrived.
    pub arrived: usize,
    /// Requests that were answered.
    pub finished: usize,
    /// Requests that a full queue refused.
    pub refused: usize,
    /// How often a request gave its pages to another.
    pub preempted: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Those that were taken from KV caches.
    pub cached_tokens: u64,
    /// Tokens of all answers.
    pub answer_tokens: u64,
    /// Tokens of answers a second.
    pub tokens_per_second: f64,
    /// Share of the prompts' tokens that were cached.
    pub prefix_hit_rate: f64,
    /// From arrival to the first token.
    pub first_token_ms: Quantiles,
    /// Between tokens of an answer.
    pub between_tokens_ms: Quantiles,
    /// Share of the time in which steps ran, mean of the replicas.
    pub busy: f64,
    /// Highest share of a replica's KV cache that running requests held.
    pub cache_peak: f64,
    /// Bytes of events a second, all replicas.
    pub stream_bytes_per_second: f64,
    /// Price of a million tokens of answers; `None` without a price.
    pub price_per_million_tokens: Option<f64>,
    #[serde(skip)]
    first: Option<Duration>,
    #[serde(skip)]
    last: Duration,
    #[serde(skip)]
    waits: [Vec<f64>; 2],
    #[serde(skip)]
    event_bytes: f64,
    #[serde(skip)]
    price_per_hour: f64,
}

impl Report {
    pub(super) fn new(fleet: &Fleet, load: &Load) -> Report {
        Report {
            replicas: fleet.replicas,
            seconds: 0.0,
            arrived: 0,
            finished: 0,
            refused: 0,
            preempted: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            answer_tokens: 0,
            tokens_per_second: 0.0,
            prefix_hit_rate: 0.0,
            first_token_ms: Quantiles::default(),
            between_tokens_ms: Quantiles::default(),
            busy: 0.0,
            cache_peak: 0.0,
            stream_bytes_per_second: 0.0,
            price_per_million_tokens: None,
            first: None,
            last: Duration::ZERO,
            waits: [Vec::new(), Vec::new()],
            event_bytes: load.event_bytes as f64,
            price_per_hour: fleet.price_per_hour * fleet.replicas as f64,
        }
    }

    pub(super) fn accept(&mut self) {
        self.arrived += 1;
    }

    pub(super) fn refuse(&mut self) {
        self.arrived += 1;
        self.refused += 1;
    }

    pub(super) fn add(&mut self, served: &Served) {
        let ms = |from: Duration, to: Duration| (to - from).as_secs_f64() * 1e3;
        self.finished += 1;
        self.preempted += served.preempted;
        self.prompt_tokens += served.prompt as u64;
        self.cached_tokens += served.cached as u64;
        self.answer_tokens += served.ready.len() as u64;
        self.first = Some(self.first.map_or(served.arrived, |first| first.min(served.arrived)));
        self.last = served.ready.iter().copied().fold(self.last, Duration::max);
        let [first, between] = &mut self.waits;
        first.extend(served.ready.first().map(|&ready| ms(served.arrived, ready)));
        between.extend(served.ready.windows(2).map(|pair| ms(pair[0], pair[1])));
    }

    pub(super) fn finish(&mut self, replicas: &[Replica]) {
        self.seconds = (self.last - self.first.unwrap_or(self.last)).as_secs_f64();
        let span = self.seconds.max(1e-9);
        let [first, between] = std::mem::take(&mut self.waits);
        (self.first_token_ms, self.between_tokens_ms) =
            (Quantiles::of(first), Quantiles::of(between));
        self.tokens_per_second = self.answer_tokens as f64 / span;
        self.prefix_hit_rate = self.cached_tokens as f64 / (self.prompt_tokens as f64).max(1.0);
        let busy: Duration = replicas.iter().map(|replica| replica.busy).sum();
        self.busy = busy.as_secs_f64() / (span * replicas.len() as f64);
        let peak = replicas.iter().map(|replica| replica.pages_peak as f64 / replica.pages as f64);
        self.cache_peak = peak.fold(0.0, f64::max);
        self.stream_bytes_per_second = self.tokens_per_second * self.event_bytes;
        let millions = self.answer_tokens as f64 / 1e6;
        self.price_per_million_tokens = (self.price_per_hour > 0.0 && millions > 0.0)
            .then(|| self.price_per_hour * span / 3600.0 / millions);
    }
}
