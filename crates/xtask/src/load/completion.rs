//! Streaming completions: requests with prompts that no other request has, run at once, and the times of their tokens.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::client::{Client, Event};
use crate::report::{ms, quantile};

/// Where completions are asked for.
pub const PATH: &str = "/v1/completions";

/// Makes prompts of random token ids, each different from its first tokens on.
pub struct Prompts {
    state: u64,
}

impl Prompts {
    /// Ids that are plain tokens in every vocabulary that is used here, the demo's of 2048 included.
    const IDS: std::ops::Range<u64> = 300..2000;

    pub fn new() -> Prompts {
        Prompts::seeded(0)
    }

    /// Prompts that differ from those of other seeds.
    pub fn seeded(seed: u64) -> Prompts {
        let mut prompts = Prompts { state: seed };
        // Neighbouring seeds begin far apart.
        prompts.state = prompts.random();
        prompts
    }

    /// The next prompt.
    pub fn next(&mut self, tokens: usize) -> Vec<u64> {
        let ids = || Self::IDS.start + self.random() % (Self::IDS.end - Self::IDS.start);
        std::iter::repeat_with(ids).take(tokens).collect()
    }

    /// SplitMix64, Steele, Lea and Flood 2014.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// A request for exactly `predict` tokens, the most likely ones.
pub fn body(prompt: &[u64], predict: usize) -> Value {
    json!({ "prompt": prompt, "max_tokens": predict, "temperature": 0, "ignore_eos": true })
}

/// The times of a stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    pub sent: Instant,
    /// When each token came.
    pub tokens: Vec<Instant>,
    /// Prompt tokens that were in the cache.
    pub cached: u64,
    /// From when the request reached the server's scheduler to its first step, by the server's clock.
    pub queued: Duration,
    /// From then to its first token.
    pub prefill: Duration,
}

impl Times {
    /// Time to the first token, milliseconds.
    pub fn first_ms(&self) -> f64 {
        self.tokens.first().map_or(f64::NAN, |&at| ms(at - self.sent))
    }

    /// When the request reached the server's scheduler.
    pub fn arrived(&self) -> Instant {
        let first = self.tokens.first().copied().unwrap_or(self.sent);
        let waited = self.queued + self.prefill;
        first.checked_sub(waited).map_or(self.sent, |at| at.max(self.sent))
    }

    /// Times between tokens, milliseconds.
    pub fn gaps_ms(&self) -> impl Iterator<Item = f64> {
        self.tokens.windows(2).map(|pair| ms(pair[1] - pair[0]))
    }

    /// Tokens a second from the first of them within the window to the last.
    fn rate(&self, window: (Instant, Instant)) -> f64 {
        let is_within = |at: &&Instant| window.0 <= **at && **at <= window.1;
        let within: Vec<&Instant> = self.tokens.iter().filter(is_within).collect();
        match within[..] {
            [first, .., last] => (within.len() - 1) as f64 / (*last - *first).as_secs_f64(),
            _ => f64::NAN,
        }
    }
}

/// Runs a streaming completion and shows every token's time to `see`.
pub fn stream(
    client: &mut Client,
    prompt: &[u64],
    predict: usize,
    mut see: impl FnMut(Instant),
) -> Result<Times> {
    let mut body = body(prompt, predict);
    body["stream"] = json!(true);
    client.connect()?;
    let mut events = Vec::new();
    let sent = client.stream(PATH, &body.to_string(), |event| {
        see(event.at);
        events.push(event);
        Ok(())
    })?;
    // Parsed afterwards, so that it does not compete with the server.
    times(sent, &events, predict)
}

/// The times of events. A stream must end with all its tokens.
fn times(sent: Instant, events: &[Event], predict: usize) -> Result<Times> {
    let zero = Duration::ZERO;
    let mut times = Times { sent, tokens: Vec::new(), cached: 0, queued: zero, prefill: zero };
    let mut predicted = None;
    let last = events.last().context("the stream has no events")?;
    if last.data != "[DONE]" {
        bail!("the stream ended with {}", last.data);
    }
    for Event { at, data } in &events[..events.len() - 1] {
        let chunk: Value = serde_json::from_str(data).context("an event that is not JSON")?;
        if let Some(count) = chunk["timings"]["predicted_n"].as_u64() {
            predicted = Some(count);
            times.cached = chunk["timings"]["cache_n"].as_u64().unwrap_or_default();
            let of = |key| chunk["timings"][key].as_f64().unwrap_or_default();
            [times.queued, times.prefill] =
                ["queue_ms", "prompt_ms"].map(|key| Duration::from_secs_f64(of(key) / 1e3));
        }
        let choice = &chunk["choices"][0];
        if choice.is_object() && choice["finish_reason"].is_null() {
            times.tokens.push(*at);
        }
    }
    let predicted = predicted.context("the stream has no timings")?;
    if predicted != predict as u64 || times.tokens.is_empty() {
        bail!("{predicted} tokens in {} events instead of {predict}", times.tokens.len());
    }
    Ok(times)
}

/// Completions that ran at once.
#[derive(Debug)]
pub struct Group {
    pub streams: Vec<Times>,
    predict: usize,
}

impl Group {
    /// Runs one stream for each prompt, all sent at the same time.
    pub fn run(address: SocketAddr, prompts: &[Vec<u64>], predict: usize) -> Result<Group> {
        let start = Barrier::new(prompts.len());
        let one = |prompt: &[u64]| {
            let mut client = Client::new(address);
            let connected = client.connect();
            start.wait();
            connected?;
            stream(&mut client, prompt, predict, |_| {})
        };
        let streams: Result<_> = thread::scope(|scope| {
            let threads: Vec<_> =
                prompts.iter().map(|prompt| scope.spawn(|| one(prompt))).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.map(|times| times.unwrap_or_else(|_| bail!("a client panicked"))).collect()
        });
        Ok(Group { streams: streams?, predict })
    }

    fn instants(&self, of: impl Fn(&Times) -> Option<Instant>) -> Vec<Instant> {
        self.streams.iter().filter_map(of).collect()
    }

    /// From the first request to the last token.
    pub fn took(&self) -> Duration {
        let began = self.instants(|times| Some(times.sent)).into_iter().min();
        let ended = self.instants(|times| times.tokens.last().copied()).into_iter().max();
        began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began)
    }

    /// All tokens a second, from the first request to the last token.
    pub fn rate(&self) -> f64 {
        (self.streams.len() * self.predict) as f64 / self.took().as_secs_f64()
    }

    /// Tokens a second while all streams have begun and none has ended: the sum of the streams' own rates.
    pub fn decode_rate(&self) -> f64 {
        let begun = self.instants(|times| times.tokens.first().copied()).into_iter().max();
        let ended = self.instants(|times| times.tokens.last().copied()).into_iter().min();
        let Some(window) = begun.zip(ended) else { return f64::NAN };
        self.streams.iter().map(|times| times.rate(window)).sum()
    }

    /// Quantile of the times between tokens, milliseconds.
    pub fn gap_ms(&self, share: f64) -> f64 {
        quantile(&self.streams.iter().flat_map(Times::gaps_ms).collect::<Vec<_>>(), share)
    }

    /// Quantile of the times to the first token, milliseconds.
    pub fn first_ms(&self, share: f64) -> f64 {
        quantile(&self.streams.iter().map(Times::first_ms).collect::<Vec<_>>(), share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(origin: Instant, tenths: &[u64]) -> Vec<Instant> {
        tenths.iter().map(|tenth| origin + Duration::from_millis(100 * tenth)).collect()
    }

    #[test]
    fn prompts_differ_and_stay_within_small_vocabularies() {
        let mut prompts = Prompts::new();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..500 {
            let prompt = prompts.next(32);
            assert!(prompt.len() == 32 && prompt.iter().all(|id| Prompts::IDS.contains(id)));
            assert!(seen.insert(prompt[..3].to_vec()));
        }
    }

    #[test]
    fn rates_count_what_streams_do_together() {
        let origin = Instant::now();
        let times = |tokens: &[u64]| Times {
            sent: origin,
            tokens: at(origin, tokens),
            cached: 0,
            queued: Duration::ZERO,
            prefill: Duration::ZERO,
        };
        // Together from 0.2 s to 0.5 s: 3 steps of 0.1 s each.
        let streams = vec![times(&[1, 2, 3, 4, 5]), times(&[2, 3, 4, 5, 9])];
        let group = Group { streams, predict: 5 };
        assert!((group.decode_rate() - 20.0).abs() < 1e-6);
        assert!((group.rate() - 10.0 / 0.9).abs() < 1e-6);
        assert!((group.gap_ms(0.5) - 100.0).abs() < 1e-6);
        assert!((group.gap_ms(1.0) - 400.0).abs() < 1e-6);
        assert!((group.first_ms(1.0) - 200.0).abs() < 1e-6);
        let alone = |tokens: &[u64]| Group { streams: vec![times(tokens)], predict: 3 };
        assert!((alone(&[1, 2, 5]).decode_rate() - 5.0).abs() < 1e-6);
        assert!(alone(&[1]).decode_rate().is_nan());
    }

    #[test]
    fn a_stream_must_end_with_all_its_tokens() {
        let origin = Instant::now();
        let token = r#"{"choices": [{"text": "a", "finish_reason": null}]}"#;
        let end = r#"{"choices": [{"text": "", "finish_reason": "length"}], "timings": {"predicted_n": 2, "cache_n": 7, "queue_ms": 2.5, "prompt_ms": 40}}"#;
        let read = |events: &[&str], predict: usize| {
            let events = events.iter().map(|data| Event { at: origin, data: (*data).to_owned() });
            times(origin, &events.collect::<Vec<_>>(), predict)
        };
        let found = read(&[token, token, end, "[DONE]"], 2).unwrap();
        assert_eq!((found.tokens.len(), found.cached), (2, 7));
        assert_eq!(found.queued + found.prefill, Duration::from_micros(42_500));
        // Not before it was sent, whatever the server's clock says.
        assert_eq!(found.arrived(), origin);
        for (events, part) in [
            (&[token, token, end, "[DONE]"][..], "instead of 3"),
            (&[token, end][..], "ended with"),
            (&[token, r#"{"error": {"message": "lost"}}"#][..], "lost"),
            (&[token, "[DONE]"][..], "no timings"),
            (&[][..], "no events"),
        ] {
            let error = format!("{:#}", read(events, 3).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}
