//! A profile: speed by number of offloaded layers, as plain data.

use bilayer_scheduler::{ANSWER_TOKENS, PROMPT_TOKENS};
use serde::{Deserialize, Deserializer, Serialize};

mod curves;
mod median;
mod options;
mod take;

pub use curves::{AtSequences, AtThreads, Curves};
pub use options::Options;
pub use take::{Taken, take};

/// Relative slack within which a time counts as equal to the best: below it two medians on one machine cannot be
/// distinguished.
pub const SLACK: f64 = 0.02;

/// A model measured on one machine at every number of offloaded layers.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Profile {
    /// The model's name.
    pub model: String,
    /// Number of weights.
    pub parameters: u64,
    /// Its weights in bytes.
    pub bytes: u64,
    /// The GPU's name.
    #[serde(rename = "adapter")]
    pub gpu: String,
    /// The CPU's name or instruction level.
    pub cpu: String,
    /// Number of CPU threads.
    pub threads: usize,
    /// Context of the caches in tokens.
    pub context: usize,
    /// Tokens of the prompt for `prefill_tps`.
    pub prompt_tokens: usize,
    /// Tokens of the prompt for `streamed_prefill_tps`; `None` if no weights are streamed.
    #[serde(default)]
    pub streamed_prompt_tokens: Option<usize>,
    /// Number of measurements per point; the median is used.
    pub rounds: usize,
    /// One per number of offloaded layers, rising.
    pub points: Vec<Point>,
    /// See [`knee`].
    pub knee: u32,
    /// See [`recommend`].
    pub recommended: u32,
    /// The reason, as a sentence.
    pub why: String,
    /// One decode step at the recommended number; empty if no times were taken.
    pub timeline: Vec<Span>,
    /// One decode step at each of some numbers of offloaded layers, rising, the recommended one among them.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Memory read bandwidth of the CPU, measured next to the run, GB/s; NaN (null in JSON) if not measured.
    #[serde(deserialize_with = "number_or_nan")]
    pub read_gbps: f64,
    /// The CPU alone by threads and sequences, if there is no GPU.
    #[serde(default)]
    pub curves: Option<Curves>,
}

impl Profile {
    /// The flag of the recommendation: how many layers go to the GPU; without one, how many threads run.
    pub fn flag(&self) -> String {
        match &self.curves {
            Some(curves) => format!("-t {}", curves.recommended()),
            None => format!("-ngl {}", self.recommended),
        }
    }
}

/// One number of offloaded layers.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Point {
    /// N as in `-ngl N`: the output head first, then the last layers; 0 is the CPU alone.
    pub gpu_layers: u32,
    /// The placement, as `run` prints it.
    pub map: String,
    /// Milliseconds per token in decode; NaN (null in JSON) if not measured.
    #[serde(deserialize_with = "number_or_nan")]
    pub decode_ms: f64,
    /// The scheduler's prediction.
    pub predicted_decode_ms: Option<f64>,
    /// Prefill tokens per second; NaN (null in JSON) if not measured.
    #[serde(deserialize_with = "number_or_nan")]
    pub prefill_tps: f64,
    /// The scheduler's prediction.
    pub predicted_prefill_tps: Option<f64>,
    /// Prefill tokens per second with streamed weights; `None` where none are.
    #[serde(default)]
    pub streamed_prefill_tps: Option<f64>,
    /// Speedup: milliseconds per token at N = 0 over those here; NaN (null in JSON) if not measured.
    #[serde(deserialize_with = "number_or_nan")]
    pub speedup: f64,
    /// Milliseconds per token saved against N - 1, negative if slower; `None` at the first point.
    pub marginal: Option<f64>,
    /// Milliseconds per token in which the CPU was busy.
    #[serde(deserialize_with = "number_or_nan")]
    pub cpu_ms: f64,
    /// Milliseconds per token in which the GPU was busy.
    #[serde(deserialize_with = "number_or_nan")]
    pub gpu_ms: f64,
    /// Milliseconds per token for transfers of hidden states.
    #[serde(deserialize_with = "number_or_nan")]
    pub crossing_ms: f64,
    /// Milliseconds per token in which all devices were idle.
    #[serde(deserialize_with = "number_or_nan")]
    pub idle_ms: f64,
    /// The share of the experts of decode that were resident on a GPU; `None` where none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_hit_rate: Option<f64>,
    /// The share that the plan expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_expert_hit_rate: Option<f64>,
    /// Planned memory on the GPU, bytes; `None` if it does not fit.
    pub gpu_bytes: Option<u64>,
    /// Measured memory on the GPU, bytes.
    #[serde(default)]
    pub gpu_held_bytes: Option<u64>,
    /// Whether that is within the budget.
    pub fits: bool,
}

impl Point {
    /// Whether it was measured.
    pub fn is_measured(&self) -> bool {
        self.decode_ms.is_finite() && self.decode_ms > 0.0
    }

    /// Relative error of the prediction; positive if too high.
    pub fn error(&self) -> Option<f64> {
        let predicted = self.predicted_decode_ms.filter(|_| self.is_measured())?;
        Some(predicted / self.decode_ms - 1.0)
    }

    /// Milliseconds of a prompt of [`PROMPT_TOKENS`], read in the faster way, with an answer of [`ANSWER_TOKENS`]: what
    /// `auto` minimizes. A prefill speed that is not known counts as nothing.
    pub fn answer_ms(&self) -> f64 {
        let prefill_tps = self.prefill_tps.max(self.streamed_prefill_tps.unwrap_or(f64::NAN));
        let prompt = if prefill_tps > 0.0 { 1e3 * PROMPT_TOKENS as f64 / prefill_tps } else { 0.0 };
        prompt + self.decode_ms * ANSWER_TOKENS as f64
    }
}

/// What ran in one decode step.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Step {
    /// Its number of offloaded layers.
    pub gpu_layers: u32,
    /// Its duration, milliseconds: the median of all steps that were timed op by op.
    pub ms: f64,
    /// Number of those steps.
    pub of: usize,
    /// What ran when.
    pub spans: Vec<Span>,
}

/// A span of time in one step.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Span {
    /// The lane: `cpu`, `gpu` (of several: `gpu0`, `gpu1`, ...) or `host`.
    pub lane: String,
    /// A readable name.
    pub name: String,
    /// Its kind.
    pub kind: SpanKind,
    /// Microseconds after the step began.
    pub start_us: f64,
    /// Duration, microseconds.
    pub us: f64,
    /// Bytes of weights that were read, or of hidden states that crossed; 0 if unknown.
    #[serde(default)]
    pub bytes: u64,
}

/// The activity of a lane.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, Hash)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// Computing.
    Op,
    /// Transferring hidden states.
    Transfer,
    /// Submitting work.
    Submit,
    /// Waiting for the other device.
    Wait,
    /// Idle.
    Idle,
}

/// JSON has no NaN; serde_json writes null for it.
fn number_or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

/// The knee, where offloading more begins to gain less: the point of the decode-time curve farthest below the chord
/// from its first to its last point, among those faster than the first. If the curve bends by no more than [`SLACK`],
/// it is the fastest point. 0 if offloading never helps.
pub fn knee(points: &[Point]) -> u32 {
    let measured: Vec<&Point> = points.iter().filter(|p| p.is_measured()).collect();
    let (Some(first), Some(last)) = (measured.first(), measured.last()) else { return 0 };
    let width = f64::from(last.gpu_layers) - f64::from(first.gpu_layers);
    // The distance from the chord is proportional to the vertical one.
    let below = |point: &Point| {
        let along = (f64::from(point.gpu_layers) - f64::from(first.gpu_layers)) / width;
        first.decode_ms + along * (last.decode_ms - first.decode_ms) - point.decode_ms
    };
    let gains = || measured.iter().filter(|p| p.decode_ms < first.decode_ms);
    match gains().max_by(|a, b| below(a).total_cmp(&below(b))) {
        Some(bend) if below(bend) > SLACK * first.decode_ms => bend.gpu_layers,
        _ => gains().min_by(|a, b| a.decode_ms.total_cmp(&b.decode_ms)).map_or(0, |p| p.gpu_layers),
    }
}

/// The recommended number of layers and why: the least memory among those that fit and whose [`Point::answer_ms`] is
/// within [`SLACK`] of the shortest. 0 if nothing fits or helps.
pub fn recommend(points: &[Point]) -> (u32, String) {
    let good = || points.iter().filter(|p| p.fits && p.is_measured());
    let Some(best) = fastest(good()) else {
        return (0, "no layer is offloaded: nothing that fits was measured".to_owned());
    };
    let close = good().filter(|p| p.answer_ms() <= best.answer_ms() * (1.0 + SLACK));
    let chosen = close.min_by_key(|p| (p.gpu_bytes, p.gpu_layers)).unwrap_or(best);
    (chosen.gpu_layers, why(points, chosen, best))
}

/// The point of the shortest answer.
fn fastest<'p>(points: impl Iterator<Item = &'p Point>) -> Option<&'p Point> {
    points.min_by(|a, b| a.answer_ms().total_cmp(&b.answer_ms()))
}

/// The reason for `chosen`, whose answer takes about as long as that of `best`, the fastest that fits.
fn why(points: &[Point], chosen: &Point, best: &Point) -> String {
    let all = points.last().map_or(0, |p| p.gpu_layers);
    let Some(alone) = points.iter().find(|p| p.gpu_layers == 0 && p.is_measured()) else {
        return format!("N = {} of {all}: the fastest that fits", chosen.gpu_layers);
    };
    if chosen.gpu_layers == 0 {
        return format!("no layer is offloaded: {}", why_none(points, alone, best));
    }
    let opening = if (alone.decode_ms / chosen.decode_ms - 1.0).abs() < SLACK {
        "tokens come as fast as at N = 0, prompts are read faster".to_owned()
    } else {
        let times = alone.answer_ms() / chosen.answer_ms();
        let places = if times < 2.0 { 2 } else { usize::from(times < 9.95) };
        format!("answers {times:.places$} times as fast as N = 0")
    };
    let opening = format!("N = {} of {all}: {opening}", chosen.gpu_layers);
    let more = || points.iter().filter(|p| p.gpu_layers > chosen.gpu_layers);
    if chosen.gpu_layers != best.gpu_layers {
        let (most, least) = (best.gpu_bytes.unwrap_or(0), chosen.gpu_bytes.unwrap_or(0));
        let saved = most.saturating_sub(least) as f64 / f64::from(1 << 20);
        let best = best.gpu_layers;
        return match saved {
            saved if saved >= 1.0 => format!(
                "{opening}, within {:.0} % of the best (N = {best}), and takes {saved:.0} MiB less memory",
                100.0 * SLACK
            ),
            _ => format!("{opening}, within {:.0} % of the best (N = {best})", 100.0 * SLACK),
        };
    }
    if chosen.gpu_layers == all {
        format!("{opening}; everything is on the GPU")
    } else if more().all(|p| !p.fits) {
        format!("{opening}; more does not fit")
    } else if more().any(|p| !p.fits) {
        format!("{opening}; none that fits is faster")
    } else {
        format!("{opening}; with more an answer takes longer")
    }
}

/// Why nothing is offloaded, if `alone` is as good as `best`.
fn why_none(points: &[Point], alone: &Point, best: &Point) -> String {
    let alone_ms = alone.answer_ms();
    if best.gpu_layers != 0 {
        let gain = 100.0 * (1.0 - best.answer_ms() / alone_ms);
        return format!(
            "the best, N = {}, takes {gain:.1} % less time for an answer than the CPU alone, which is not worth its memory",
            best.gpu_layers
        );
    }
    let others =
        |fits| points.iter().filter(move |p| p.fits == fits && p.gpu_layers > 0 && p.is_measured());
    match (fastest(others(true)), fastest(others(false))) {
        (_, Some(p)) if p.answer_ms() < alone_ms => format!(
            "what would be faster does not fit (N = {}: {:.0} ms an answer against {alone_ms:.0} ms)",
            p.gpu_layers,
            p.answer_ms()
        ),
        (Some(p), _) => format!(
            "at every N the GPU makes an answer slower than the CPU alone ({:.0} ms at N = {} against \
             {alone_ms:.0} ms)",
            p.answer_ms(),
            p.gpu_layers
        ),
        (None, Some(_)) => "nothing more fits, and it would make an answer slower".to_owned(),
        (None, None) => "nothing else was measured".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points at 0, 1, 2, ... with these decode times; the first `fit` of them fit.
    fn points(times: &[f64], fit: usize) -> Vec<Point> {
        let point = |(n, &decode_ms): (usize, &f64)| Point {
            gpu_layers: n as u32,
            map: String::new(),
            decode_ms,
            predicted_decode_ms: Some(decode_ms * 1.1),
            // A prompt takes the same share of every answer.
            prefill_tps: 1e4 / decode_ms,
            predicted_prefill_tps: None,
            streamed_prefill_tps: None,
            speedup: times[0] / decode_ms,
            marginal: n.checked_sub(1).map(|before| times[before] - decode_ms),
            cpu_ms: decode_ms,
            gpu_ms: 0.0,
            crossing_ms: 0.0,
            idle_ms: 0.0,
            expert_hit_rate: None,
            expected_expert_hit_rate: None,
            gpu_bytes: (n < fit).then_some((n as u64) << 24),
            gpu_held_bytes: None,
            fits: n < fit,
        };
        times.iter().enumerate().map(point).collect()
    }

    #[test]
    fn the_knee_is_where_the_curve_bends() {
        let cases: &[(&[f64], u32)] = &[
            (&[], 0),
            (&[10.0], 0),
            // Steep, then flat.
            (&[10.0, 6.0, 2.0, 1.8, 1.6, 1.4], 2),
            // Never better.
            (&[10.0, 11.0, 12.0, 13.0], 0),
            // Better in the middle only.
            (&[10.0, 8.0, 7.0, 9.0, 12.0], 2),
            // Straight: no bend, the fastest.
            (&[10.0, 8.0, 6.0, 4.0], 3),
            // Slower at first because of transfers, then faster; no point lies below the chord.
            (&[10.0, 12.0, 11.0, 9.5, 8.0], 4),
            // The tail was not measured.
            (&[10.0, 5.0, 4.5, 4.0, f64::NAN], 1),
        ];
        for (times, expected) in cases {
            assert_eq!(knee(&points(times, 99)), *expected, "{times:?}");
        }
    }

    #[test]
    fn the_recommended_is_the_fastest_that_fits_and_says_why() {
        let cases: &[(&[f64], usize, u32, &str)] = &[
            (&[], 9, 0, "nothing that fits was measured"),
            (&[10.0, 9.0], 0, 0, "nothing that fits was measured"),
            (&[10.0], 9, 0, "nothing else was measured"),
            (&[10.0, 8.0, 5.0], 9, 2, "N = 2 of 2: answers 2.0 times as fast as N = 0; everything"),
            (
                &[10.0, 8.0, 5.0],
                2,
                1,
                "N = 1 of 2: answers 1.25 times as fast as N = 0; more does not",
            ),
            (&[10.0, 8.0, 9.0, 5.0], 3, 1, "none that fits is faster"),
            (&[10.0, 8.0, 9.0], 9, 1, "with more an answer takes longer"),
            (
                &[10.0, 5.05, 5.0],
                9,
                1,
                "1.98 times as fast as N = 0, within 2 % of the best (N = 2), and takes 16 MiB",
            ),
            (&[10.0, 0.5], 9, 1, "20 times as fast"),
            (
                &[10.0, 12.0, 11.0],
                9,
                0,
                "slower than the CPU alone (1971 ms at N = 2 against 1792 ms)",
            ),
            (&[10.0, 9.9], 9, 0, "the best, N = 1, takes 1.0 % less time"),
            (&[10.0, 12.0, 5.0], 2, 0, "what would be faster does not fit (N = 2: 896 ms"),
            (&[10.0, 12.0], 1, 0, "nothing more fits, and it would make an answer slower"),
            (&[f64::NAN, 12.0, 11.0], 9, 2, "N = 2 of 2: the fastest that fits"),
        ];
        for (times, fit, expected, reason) in cases {
            let (recommended, why) = recommend(&points(times, *fit));
            assert_eq!(recommended, *expected, "{times:?}: {why}");
            assert!(why.contains(reason), "{times:?}: {why}");
        }
    }

    /// The CPU alone decodes as fast, but has a tenth of the prefill speed.
    #[test]
    fn prompts_decide_between_equals() {
        let mut points = points(&[10.0, 10.0, 10.0], 9);
        points[..2].iter_mut().for_each(|point| point.prefill_tps = 100.0);
        let (recommended, why) = recommend(&points);
        assert_eq!(recommended, 2, "{why}");
        assert!(why.contains("prompts are read faster"), "{why}");
    }

    /// More layers decode faster, but leave no room to stream the others.
    #[test]
    fn streamed_prompts_count() {
        let mut points = points(&[10.0, 8.0, 7.0], 9);
        points[1].streamed_prefill_tps = Some(1e5);
        let (recommended, why) = recommend(&points);
        assert_eq!(recommended, 1, "{why}");
        assert!(why.contains("answers 1.74 times as fast as N = 0"), "{why}");
    }

    #[test]
    fn errors_of_predictions_are_relative_to_what_was_measured() {
        let points = points(&[10.0, f64::NAN], 9);
        assert!((points[0].error().unwrap() - 0.1).abs() < 1e-9);
        assert_eq!(points[1].error(), None);
    }
}
