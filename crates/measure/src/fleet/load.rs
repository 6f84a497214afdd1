//! What a fleet has to serve: conversations that begin alike, in turns.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use super::request::{Request, Served};
use super::{FleetError, is_duration};

/// Conversations that begin at random times (a Poisson process). Each has one of some shared beginnings, such as a system
/// prompt, of which the first is twice as frequent as the second and so on (Zipf's law). A turn adds tokens of its own;
/// the answer to it is part of the next turn's prompt. Lengths of turns and answers lie evenly within `spread` of the mean.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    /// Requests a second, turns included. 0: all conversations begin at once.
    pub requests_per_second: f64,
    /// Time in which conversations begin, seconds.
    pub seconds: f64,
    /// Number of conversations; without it, as many as begin in that time.
    pub conversations: Option<usize>,
    /// When each conversation begins, in milliseconds, such as a log has it; in place of random times.
    pub arrivals_ms: Option<Vec<f64>>,
    /// Number of different beginnings.
    pub beginnings: usize,
    /// Tokens of a beginning.
    pub shared_tokens: usize,
    /// Mean tokens of a turn.
    pub own_tokens: usize,
    /// Mean tokens of an answer.
    pub answer_tokens: usize,
    /// How far the length of a turn or an answer may be from the mean, as a share of it, from 0 to 1.
    pub spread: f64,
    /// Turns of a conversation.
    pub turns: usize,
    /// Seconds from an answer's end to the next turn.
    pub pause_seconds: f64,
    /// Bytes of a token's event on the network.
    pub event_bytes: usize,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            requests_per_second: 1.0,
            seconds: 300.0,
            conversations: None,
            arrivals_ms: None,
            beginnings: 8,
            shared_tokens: 256,
            own_tokens: 64,
            answer_tokens: 64,
            spread: 0.5,
            turns: 1,
            pause_seconds: 10.0,
            event_bytes: 250,
            seed: 1,
        }
    }
}

impl Load {
    /// The most tokens that a sequence comes to hold.
    pub fn tokens_max(&self) -> usize {
        let most = |mean| self.bounds(mean).1;
        let turn = most(self.own_tokens).saturating_add(most(self.answer_tokens));
        self.shared_tokens.saturating_add(self.turns.saturating_mul(turn))
    }

    /// The shortest and the longest of lengths with a mean, at least 1.
    fn bounds(&self, mean: usize) -> (usize, usize) {
        let away = (mean as f64 * self.spread) as usize;
        (mean.saturating_sub(away).max(1), mean.saturating_add(away))
    }

    /// The first number that is out of range.
    pub(super) fn broken(&self) -> Option<FleetError> {
        let count = |number: usize| (number as f64, (1..=1 << 20).contains(&number));
        let (own, answer) = (count(self.own_tokens), count(self.answer_tokens));
        let (turns, beginnings) = (count(self.turns), count(self.beginnings));
        let finite = |number: f64| (number, number.is_finite() && number >= 0.0);
        let seconds = |number: f64| (number, is_duration(1e3 * number));
        let begins = self.requests_per_second > 0.0 || self.conversations.is_some();
        let arrivals = self.arrivals_ms.as_deref().unwrap_or_default();
        let impossible = arrivals.iter().copied().find(|&at| !is_duration(at));
        let checks = [
            ("load.own_tokens", own, "1 to 1048576"),
            ("load.answer_tokens", answer, "1 to 1048576"),
            ("load.turns", turns, "1 to 1048576"),
            ("load.beginnings", beginnings, "1 to 1048576"),
            ("load.seconds", seconds(self.seconds), "0 to 1e9"),
            ("load.spread", (self.spread, (0.0..=1.0).contains(&self.spread)), "0 to 1"),
            ("load.pause_seconds", seconds(self.pause_seconds), "0 to 1e9"),
            ("load.arrivals_ms", (impossible.unwrap_or(0.0), impossible.is_none()), "0 to 1e12"),
            (
                "load.requests_per_second",
                (
                    self.requests_per_second,
                    finite(self.requests_per_second).1 && (begins || self.arrivals_ms.is_some()),
                ),
                "above 0, or 0 with load.conversations",
            ),
        ];
        let broken = checks.into_iter().find(|(_, (_, is_good), _)| !is_good);
        broken.map(|(key, (value, _), expected)| FleetError::Value { key, value, expected })
    }
}

/// A turn that waits for its time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    at: Duration,
    conversation: usize,
    turn: usize,
    prompt: Vec<u32>,
    answer_tokens: usize,
}

/// Requests in the order of their times.
pub(super) struct Arrivals {
    load: Load,
    random: ChaCha8Rng,
    waiting: BinaryHeap<Reverse<Waiting>>,
}

impl Arrivals {
    pub fn new(load: &Load) -> Arrivals {
        let mut arrivals = Arrivals {
            load: load.clone(),
            random: ChaCha8Rng::seed_from_u64(load.seed),
            waiting: BinaryHeap::new(),
        };
        let rate = load.requests_per_second / load.turns as f64;
        let (mut at, mut conversation) = (0.0, 0);
        loop {
            match &load.arrivals_ms {
                Some(given) => at = given.get(conversation).map_or(f64::INFINITY, |ms| ms / 1e3),
                None if rate > 0.0 => at += -arrivals.uniform().ln() / rate,
                None => {}
            }
            let enough = load.conversations.is_some_and(|most| conversation >= most);
            let is_late = at > load.seconds && load.arrivals_ms.is_none();
            if enough || is_late || at.is_infinite() {
                return arrivals;
            }
            let beginning = arrivals.beginning();
            // Tokens of beginnings and turns are apart, so that only equal beginnings are equal.
            let shared = (0..load.shared_tokens as u32).map(|at| beginning << 16 ^ at);
            arrivals.turn(Duration::from_secs_f64(at), (conversation, 0), shared.collect());
            conversation += 1;
        }
    }

    /// When the next request arrives.
    pub fn next_at(&self) -> Option<Duration> {
        self.waiting.peek().map(|Reverse(waiting)| waiting.at)
    }

    pub fn take(&mut self) -> Option<Request> {
        let Reverse(Waiting { conversation, turn, prompt, answer_tokens, .. }) =
            self.waiting.pop()?;
        Some(Request { conversation, turn, prompt, answer_tokens })
    }

    /// The next turn of a conversation follows its answer.
    pub fn answered(&mut self, now: Duration, served: Served) {
        if served.turn + 1 < self.load.turns {
            let at = now + Duration::from_secs_f64(self.load.pause_seconds);
            self.turn(at, (served.conversation, served.turn + 1), served.tokens);
        }
    }

    fn turn(&mut self, at: Duration, (conversation, turn): (usize, usize), mut prompt: Vec<u32>) {
        let own = self.length(self.load.own_tokens);
        let answer_tokens = self.length(self.load.answer_tokens);
        prompt.extend((0..own).map(|_| self.random.next_u32() | 1 << 31));
        self.waiting.push(Reverse(Waiting { at, conversation, turn, prompt, answer_tokens }));
    }

    fn length(&mut self, mean: usize) -> usize {
        let (least, most) = self.load.bounds(mean);
        least + (self.uniform() * (most - least + 1) as f64) as usize
    }

    /// Above 0 and below 1.
    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 12) as f64 * 2f64.powi(-52) + 2f64.powi(-53)
    }

    fn beginning(&mut self) -> u32 {
        let sum: f64 = (1..=self.load.beginnings).map(|rank| 1.0 / rank as f64).sum();
        let mut left = self.uniform() * sum;
        for rank in 1..self.load.beginnings {
            left -= 1.0 / rank as f64;
            if left < 0.0 {
                return rank as u32 - 1;
            }
        }
        self.load.beginnings as u32 - 1
    }
}
