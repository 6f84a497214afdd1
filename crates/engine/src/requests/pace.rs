//! Predicts the duration of a step from measured ones, to bound the time between tokens of running answers.
//!
//! A step of `d` decode rows and `p` prefill rows takes about `fixed + p * per_row`: decode is bound by reading the
//! weights once, prefill by arithmetic. Both are moving averages; until both are measured nothing is limited.

use std::time::Duration;

/// Weight of a new measurement.
const NEW: f64 = 0.2;

/// Measured durations of steps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Seconds of a step without prefill rows.
    decode: Option<f64>,
    /// Seconds per prefill row.
    per_row: Option<f64>,
}

impl Pace {
    /// Adds a measured step.
    pub fn observe(&mut self, decode_rows: usize, prefill_rows: usize, took: Duration) {
        let took = took.as_secs_f64();
        if prefill_rows == 0 {
            blend(&mut self.decode, took);
        } else {
            let fixed = if decode_rows > 0 { self.decode.unwrap_or(0.0) } else { 0.0 };
            // A few rows cost a read of the weights, whatever they are.
            if prefill_rows >= 16 || self.per_row.is_none() {
                blend(&mut self.per_row, (took - fixed).max(took * 0.1) / prefill_rows as f64);
            }
        }
    }

    /// Prefill rows that a step with decode rows may have so that it ends within `most`.
    pub fn prefill_rows(&self, most: Duration) -> Option<usize> {
        let (decode, per_row) = (self.decode?, self.per_row?);
        Some(((most.as_secs_f64() - decode) / per_row.max(1e-9)).max(0.0) as usize)
    }

    /// Predicted seconds of a step without prefill rows.
    pub fn decode(&self) -> Option<f64> {
        self.decode
    }
}

fn blend(average: &mut Option<f64>, measured: f64) {
    *average = Some(average.map_or(measured, |old| old + NEW * (measured - old)));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Pace;

    #[test]
    fn rows_follow_measured_times() {
        let mut pace = Pace::default();
        assert_eq!(pace.prefill_rows(Duration::from_millis(100)), None);
        for _ in 0..50 {
            pace.observe(4, 0, Duration::from_millis(20));
            pace.observe(4, 64, Duration::from_millis(20 + 64));
        }
        let rows = pace.prefill_rows(Duration::from_millis(100)).expect("both are measured");
        assert!((75..=81).contains(&rows), "{rows}");
        assert_eq!(pace.prefill_rows(Duration::from_millis(5)), Some(0));
    }
}
