//! How long a step takes, from a result of `bilayer bench`.

use std::time::Duration;

use bilayer_engine::requests::Item;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FleetError;

/// Times of a replica's steps, all in milliseconds.
///
/// A step of decode rows alone takes what `decode` says for their number; with prefill rows, what `prefill` says for all of
/// its rows, but no less than its decode rows alone. Between measured numbers of rows times are interpolated, beyond the
/// last each row costs what it cost between the last two. Each row adds for every token before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepTimes {
    /// Steps of so many decode rows, one for each answer, rising.
    pub decode: Vec<(usize, f64)>,
    /// Steps of so many rows of one prompt, rising.
    pub prefill: Vec<(usize, f64)>,
    /// What a decode row adds for each token before it.
    pub decode_context: f64,
    /// What a prefill row adds for each token before it.
    pub prefill_context: f64,
}

impl StepTimes {
    /// Times that are a constant and a multiple of the rows: `first` milliseconds for one row, `more` for each more.
    pub fn linear(first: f64, more: f64) -> StepTimes {
        let at = |rows: usize| (rows, first + more * (rows - 1) as f64);
        StepTimes {
            decode: vec![at(1), at(16)],
            prefill: vec![at(1), at(512)],
            decode_context: 0.0,
            prefill_context: 0.0,
        }
    }

    /// Takes the times from the records of `bilayer bench -o json`: generation with `--parallel` 1 and others, prompts of
    /// two or more lengths, and both once more at a depth.
    ///
    /// # Errors
    /// It is no such result, or a kind of test is missing; the message says which.
    pub fn from_bench(result: &Value) -> Result<StepTimes, FleetError> {
        let wrong = |text: &str| FleetError::Bench(text.to_owned());
        let records = result.as_array().ok_or_else(|| wrong("is not a list of records"))?;
        let mut times = StepTimes {
            decode: Vec::new(),
            prefill: Vec::new(),
            decode_context: 0.0,
            prefill_context: 0.0,
        };
        let read = |record: &Value, key: &str| {
            record[key].as_u64().ok_or_else(|| wrong(&format!("has a record without {key}")))
        };
        let mut deep = Vec::new();
        for record in records {
            let [prompt, generated, depth, nanoseconds] =
                ["n_prompt", "n_gen", "n_depth", "avg_ns"].map(|key| read(record, key));
            let (prompt, generated, depth) = (prompt?, generated?, depth?);
            let (ms, parallel) =
                (nanoseconds? as f64 / 1e6, record["n_parallel"].as_u64().unwrap_or(1));
            let test = match (prompt, generated) {
                (0, 0) => continue,
                (0, steps) => (true, parallel as usize, ms / steps as f64),
                (rows, 0) if parallel == 1 => (false, rows as usize, ms),
                _ => continue,
            };
            match (depth, test) {
                (0, (true, rows, ms)) => times.decode.push((rows, ms)),
                (0, (false, rows, ms)) => times.prefill.push((rows, ms)),
                (depth, test) => deep.push((depth as f64, test)),
            }
        }
        for (points, least, name) in [
            (&mut times.decode, 1, "no test of generation (-n 32 --parallel 1,2,4,8)"),
            (&mut times.prefill, 2, "fewer than two lengths of prompts (-p 32,128,512)"),
        ] {
            points.sort_by_key(|point| point.0);
            points.dedup_by_key(|point| point.0);
            if points.len() < least {
                return Err(wrong(&format!("has {name}")));
            }
        }
        for (depth, (is_decode, rows, ms)) in deep {
            let points = if is_decode { &times.decode } else { &times.prefill };
            let more = (ms - at(points, rows)).max(0.0) / (rows as f64 * depth);
            match is_decode {
                true => times.decode_context = times.decode_context.max(more),
                false => times.prefill_context = times.prefill_context.max(more),
            }
        }
        Ok(times)
    }

    /// The duration of a step.
    pub fn step(&self, items: &[Item]) -> Duration {
        let (mut decode, mut prefill, mut context) = (0, 0, 0.0);
        for item in items {
            let rows = item.end - item.start;
            let before = (item.start + item.end) as f64 / 2.0 * rows as f64;
            if item.is_prefill {
                prefill += rows;
                // A measured prompt has the tokens of its own first half before it on average.
                context += self.prefill_context * item.start as f64 * rows as f64;
            } else {
                decode += rows;
                context += self.decode_context * before;
            }
        }
        let alone = if decode > 0 { at(&self.decode, decode) } else { 0.0 };
        let all = if prefill > 0 { at(&self.prefill, prefill + decode) } else { 0.0 };
        Duration::from_secs_f64((alone.max(all) + context) / 1e3)
    }
}

/// Milliseconds of a step of `rows` rows by measured points, at least one.
fn at(points: &[(usize, f64)], rows: usize) -> f64 {
    let above = points.partition_point(|point| point.0 < rows);
    let (low, high) = match (above, points.len()) {
        (0, _) => return points[0].1,
        (above, count) if above < count => (points[above - 1], points[above]),
        (_, 1) => return points[0].1 * rows as f64 / points[0].0.max(1) as f64,
        (_, count) => (points[count - 2], points[count - 1]),
    };
    let share = (rows - low.0) as f64 / (high.0 - low.0) as f64;
    low.1 + share * (high.1 - low.1).max(0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(prompt: u64, generated: u64, parallel: u64, depth: u64, ms: f64) -> Value {
        json!({
            "n_prompt": prompt, "n_gen": generated, "n_parallel": parallel, "n_depth": depth, "avg_ns": (ms * 1e6) as u64,
        })
    }

    #[test]
    fn times_come_from_a_bench_and_are_interpolated() {
        let result = json!([
            record(0, 10, 4, 0, 160.0),
            record(0, 10, 1, 0, 100.0),
            record(128, 0, 1, 0, 200.0),
            record(32, 0, 1, 0, 80.0),
            record(0, 10, 1, 1000, 150.0),
            record(128, 0, 1, 1000, 328.0),
            // Prompt and generation in one test say nothing of either.
            record(128, 10, 1, 0, 999.0),
        ]);
        let times = StepTimes::from_bench(&result).unwrap();
        assert_eq!(times.decode, [(1, 10.0), (4, 16.0)]);
        assert_eq!(times.prefill, [(32, 80.0), (128, 200.0)]);
        assert!((times.decode_context - 0.005).abs() < 1e-9, "{times:?}");
        assert!((times.prefill_context - 0.001).abs() < 1e-9, "{times:?}");
        for (points, rows, expected) in [
            (&times.decode, 2, 12.0),
            (&times.decode, 4, 16.0),
            (&times.decode, 6, 20.0),
            (&times.prefill, 8, 80.0),
            (&times.prefill, 80, 140.0),
        ] {
            assert!((at(points, rows) - expected).abs() < 1e-9, "{rows} rows of {points:?}");
        }
    }

    #[test]
    fn a_result_without_the_tests_is_refused_by_name() {
        for (result, part) in [
            (json!({}), "not a list"),
            (json!([{"n_prompt": 1}]), "n_gen"),
            (json!([record(32, 0, 1, 0, 1.0), record(64, 0, 1, 0, 1.0)]), "generation"),
            (json!([record(0, 8, 1, 0, 1.0), record(64, 0, 1, 0, 1.0)]), "lengths of prompts"),
        ] {
            let error = StepTimes::from_bench(&result).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
