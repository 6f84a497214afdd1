//! Predicts the duration of a step from measured ones, to bound the time between tokens of running answers.
//!
//! A step of `d` decode rows and `p` prefill rows takes about `decode(d) + p * per_row`. Both are moving averages. The bound
//! is divided by how much longer the latest of the recent steps took than predicted. Until prefill rows are measured
//! nothing is limited. Decode rows count as nothing until a step of them alone was measured, which the first answers
//! beside a long prompt do not have for all of it.

use std::time::Duration;

/// Weight of a new measurement.
const NEW: f64 = 0.2;

/// Share of the bound that is always left: for what comes between steps, and because later rows of a prompt take longer.
const RESERVE: f64 = 0.15;

/// Most that a single late step counts for, and what a step forgets of it.
const LATE_MAX: f64 = 0.5;
const FORGOTTEN: f64 = 0.03;

/// Prefill rows from which a row takes as long as one of many.
const MANY: usize = 16;

/// Measured durations of steps.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// Seconds of a step without prefill rows, by its decode rows.
    decode: Vec<Option<f64>>,
    /// Seconds of the last such step.
    last: Option<f64>,
    /// Seconds per prefill row.
    per_row: Option<f64>,
    /// By how much steps with prefill rows are late, as a share of the prediction: that of the latest step, lowered
    /// slowly.
    late: f64,
}

impl Default for Pace {
    /// Nothing is measured; the first predictions count as late.
    fn default() -> Pace {
        Pace { decode: Vec::new(), last: None, per_row: None, late: LATE_MAX }
    }
}

impl Pace {
    /// Adds a measured step.
    pub fn observe(&mut self, decode_rows: usize, prefill_rows: usize, took: Duration) {
        let took = took.as_secs_f64();
        if prefill_rows == 0 {
            if self.decode.len() <= decode_rows {
                self.decode.resize(decode_rows + 1, None);
            }
            blend(&mut self.decode[decode_rows], took);
            self.last = Some(took);
            return;
        }
        let fixed = self.fixed(decode_rows);
        let per_row = (took - fixed).max(took * 0.1) / prefill_rows as f64;
        let known = self.per_row.filter(|_| decode_rows > 0 && prefill_rows >= MANY);
        let late = known.map_or(0.0, |known| {
            let expected = fixed + prefill_rows as f64 * known;
            (took / expected.max(1e-9) - 1.0).clamp(0.0, LATE_MAX)
        });
        self.late = late.max(self.late * (1.0 - FORGOTTEN));
        // A few rows cost a read of the weights, whatever they are: each is dearer than one of many, so they only show
        // that rows are cheaper than known.
        let tells = prefill_rows >= MANY || self.per_row.is_none_or(|known| per_row < known);
        if tells {
            blend(&mut self.per_row, per_row);
        }
    }

    /// Prefill rows that a step with so many decode rows may have so that it ends within `most`.
    pub fn prefill_rows(&self, decode_rows: usize, most: Duration) -> Option<usize> {
        let (decode, per_row) = (self.fixed(decode_rows), self.per_row?);
        let most = most.as_secs_f64() * (1.0 - RESERVE) / (1.0 + self.late);
        Some(((most - decode) / per_row.max(1e-9)).max(0.0) as usize)
    }

    /// Seconds of the last step without prefill rows.
    pub fn decode(&self) -> Option<f64> {
        self.last
    }

    /// What a step with so many decode rows takes beside its prefill rows, as far as it is known.
    fn fixed(&self, decode_rows: usize) -> f64 {
        if decode_rows > 0 { self.of_decode(decode_rows).unwrap_or(0.0) } else { 0.0 }
    }

    /// Predicted seconds of a step with so many decode rows: between the measured numbers of rows in proportion, above
    /// them as if each row cost as much.
    fn of_decode(&self, rows: usize) -> Option<f64> {
        let known = |at: usize| self.decode.get(at).copied().flatten().map(|time| (at, time));
        let below = (0..=rows).rev().find_map(known);
        let above = (rows..self.decode.len()).find_map(known);
        match (below, above) {
            (Some((low, time)), _) if low == rows => Some(time),
            (Some((low, fast)), Some((high, slow))) => {
                let share = (rows - low) as f64 / (high - low) as f64;
                Some(fast + share * (slow - fast))
            }
            (None, Some((_, time))) => Some(time),
            (Some((low, time)), None) => Some(time * rows as f64 / low.max(1) as f64),
            (None, None) => None,
        }
    }
}

fn blend(average: &mut Option<f64>, measured: f64) {
    *average = Some(average.map_or(measured, |old| old + NEW * (measured - old)));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Pace;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn rows_follow_measured_times() {
        let mut pace = Pace::default();
        assert_eq!(pace.prefill_rows(4, ms(100)), None);
        for _ in 0..200 {
            pace.observe(4, 0, ms(20));
            pace.observe(4, 64, ms(20 + 64));
        }
        let rows = pace.prefill_rows(4, ms(100)).expect("both are measured");
        assert!((63..=65).contains(&rows), "{rows}");
        assert_eq!(pace.prefill_rows(4, ms(5)), Some(0));
    }

    #[test]
    fn decode_steps_of_other_sizes_are_estimated() {
        let mut pace = Pace::default();
        pace.observe(2, 0, ms(40));
        pace.observe(6, 0, ms(80));
        let times = [1, 2, 4, 5, 6, 12].map(|rows| pace.of_decode(rows).unwrap());
        for (found, expected) in times.iter().zip([0.04, 0.04, 0.06, 0.07, 0.08, 0.16]) {
            assert!((found - expected).abs() < 1e-9, "{times:?}");
        }
    }

    #[test]
    fn steps_that_are_late_leave_room() {
        let mut pace = Pace::default();
        pace.observe(1, 0, ms(50));
        for _ in 0..200 {
            pace.observe(1, 32, ms(50 + 32));
        }
        let calm = pace.prefill_rows(1, ms(250)).unwrap();
        for turn in 0..40 {
            pace.observe(1, 32, ms(if turn % 2 == 0 { 50 + 32 } else { 50 + 96 }));
        }
        let uneven = pace.prefill_rows(1, ms(250)).unwrap();
        assert!(uneven * 10 < calm * 7, "{uneven} of {calm}");
    }

    #[test]
    fn a_slow_time_is_forgotten_even_if_it_left_few_rows() {
        let mut pace = Pace::default();
        pace.observe(1, 0, ms(50));
        pace.observe(0, 32, ms(640));
        assert!(pace.prefill_rows(1, ms(250)).unwrap() < 16);
        for _ in 0..50 {
            pace.observe(1, 10, ms(60));
        }
        assert!(pace.prefill_rows(1, ms(250)).unwrap() > 100);
    }

    #[test]
    fn the_prediction_is_that_of_the_documented_averages() {
        let mut pace = Pace::default();
        // Rows that a step with one decode row may have within a second, of which 850 ms are not in reserve.
        let rows = |pace: &Pace| pace.prefill_rows(1, ms(1000));
        assert_eq!((rows(&pace), pace.decode()), (None, None));
        pace.observe(1, 0, ms(20));
        assert_eq!((rows(&pace), pace.decode()), (None, Some(0.02)));
        // Late by 0.5 at first, which is lowered by 3 % with each step: (850 / 1.485 - 20) / 2.
        let cases = [
            ((1, 16, 52), 276),
            // (850 / 1.47045 - 20) / 2
            ((1, 16, 52), 279),
            // Late by a quarter, which is less than known; a row took 2.8125: (850 / 1.45634 - 20) / 2.1625
            ((1, 16, 65), 260),
            // Late by at most a half; a row took 31.25: (850 / 1.5 - 20) / 7.98
            ((1, 16, 520), 68),
            // Early; a row took 0.625: (850 / 1.485 - 20) / 6.509
            ((1, 16, 30), 84),
            // At least a tenth of the time is that of the rows, each 0.1: (850 / 1.47045 - 20) / 5.2272
            ((1, 16, 16), 106),
            // Without decode rows nothing else takes time, and nothing counts as late; a row took 10:
            // (850 / 1.45634 - 20) / 6.18176
            ((0, 16, 160), 91),
            // Few rows do not show that rows are dear: (850 / 1.44265 - 20) / 6.18176
            ((1, 15, 170), 92),
            // But that they are cheap; a row took 1: (850 / 1.42937 - 20) / 5.14541
            ((1, 4, 24), 111),
        ];
        for ((decode, prefill, took), expected) in cases {
            pace.observe(decode, prefill, ms(took));
            assert_eq!(rows(&pace), Some(expected), "{decode} and {prefill} rows, {took} ms");
        }
        // The average of steps without prefill rows is 0.8 * 20 + 0.2 * 70 = 30: (594.67 - 30) / 5.14541
        pace.observe(1, 0, ms(70));
        assert_eq!((rows(&pace), pace.decode()), (Some(109), Some(0.07)));
    }

    #[test]
    fn answers_beside_the_first_prompt_bound_its_rows_too() {
        let (mut decode, mut prefill) = (Pace::default(), Pace::default());
        decode.observe(1, 0, ms(1));
        assert_eq!(decode.prefill_rows(1, ms(100)), None);
        // 85 / 1.485
        prefill.observe(0, 16, ms(16));
        assert_eq!(prefill.prefill_rows(1, ms(100)), Some(57));
    }
}
