//! Decode of several sequences: in one step, or in groups that follow each other through the devices.

use serde::Serialize;

use super::{BATCH_TOKENS, Cost, Predicted};

/// How much less time groups must take to be preferred: they take two steps where a batch takes one, and a batch of few rows,
/// which mostly reads, takes less than a line between one row and [`BATCH_TOKENS`] says.
const GAIN_MIN: f64 = 0.9;

/// Largest number of sequences for which [`Groups::sequences_min`] is sought.
const SEQUENCES_MAX: usize = 512;

/// Decode rows of several sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Rows of all sequences.
    pub rows: usize,
    /// Maximum rows of a step.
    pub step_rows: usize,
}

/// The speed of two groups of sequences.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Groups {
    /// How many times as fast two groups in turn can decode as one: (T1 + T2) / max, at most 2.
    pub bound: f64,
    /// Number of sequences from which two groups are faster than one batch, which reads all weights once; `None` if
    /// they never are.
    pub sequences_min: Option<usize>,
}

impl Cost {
    /// Milliseconds of a step of `rows` rows: measured for one, for a small batch and for a prompt. Between one and the
    /// small batch it grows in proportion; above, either the weights are still what takes time, or the rows are.
    fn rows_ms(&self, rows: usize) -> f64 {
        let rows = rows as f64;
        let batch = self.batch_ms.unwrap_or(self.decode_ms);
        let small = (rows - 1.0).min(BATCH_TOKENS as f64 - 1.0) / (BATCH_TOKENS as f64 - 1.0);
        let reading = self.decode_ms + small.max(0.0) * (batch - self.decode_ms);
        let many = self.prefill_ms.map_or(0.0, |ms| ms * rows);
        if rows <= BATCH_TOKENS as f64 { reading } else { reading.max(many) }
    }
}

impl Predicted {
    /// Milliseconds in which each of the rows is decoded once, by groups in turn; one group is one step after the other.
    pub fn round_ms(&self, demand: Demand, groups: usize) -> f64 {
        let Demand { rows, step_rows } = demand;
        let of_step = rows.div_ceil(groups.max(1)).clamp(1, step_rows.max(1));
        let steps = rows.div_ceil(of_step) as f64;
        let each = self.costs.iter().map(|cost| cost.rows_ms(of_step));
        let (sum, longest) = (each.clone().sum::<f64>(), each.fold(0.0, f64::max));
        match groups {
            0 | 1 => steps * sum,
            // Either a device is always busy, or each group waits for its own results.
            _ => (steps * longest).max(sum * (steps / groups as f64).max(1.0)),
        }
    }

    /// The number of groups, 1 to `most`, that takes the least time for the rows.
    pub fn groups(&self, demand: Demand, most: usize) -> usize {
        let batch = (1, self.round_ms(demand, 1) * GAIN_MIN);
        let rounds = (2..=most.min(demand.rows)).map(|n| (n, self.round_ms(demand, n)));
        std::iter::once(batch).chain(rounds).min_by(|a, b| a.1.total_cmp(&b.1)).map_or(1, |of| of.0)
    }

    /// What two groups gain.
    pub(super) fn two_groups(&self) -> Groups {
        let longest = self.devices_ms.iter().copied().fold(0.0, f64::max);
        let bound = if longest > 0.0 { (self.decode_ms / longest).min(2.0) } else { 1.0 };
        let is_faster = |&rows: &usize| self.groups(Demand { rows, step_rows: rows }, 2) == 2;
        Groups { bound, sequences_min: (2..=SEQUENCES_MAX).find(is_faster) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Basis;

    /// Devices that take so long to read their weights, and to compute a row.
    fn predicted(devices: &[(f64, f64)]) -> Predicted {
        let cost = |&(read, row): &(f64, f64)| Cost {
            decode_ms: read,
            batch_ms: Some(read.max(row * BATCH_TOKENS as f64)),
            short_ms: None,
            prefill_ms: Some(row),
            prompt_ms: Some(row),
        };
        let costs: Vec<Cost> = devices.iter().map(cost).collect();
        let devices_ms: Vec<f64> = devices.iter().map(|device| device.0).collect();
        let mut predicted = Predicted {
            decode_ms: devices_ms.iter().sum(),
            batch_ms: None,
            prefill_ms_per_token: None,
            basis: Basis::Measured,
            groups: Groups { bound: 1.0, sequences_min: None },
            devices_ms,
            costs,
        };
        predicted.groups = predicted.two_groups();
        predicted
    }

    #[test]
    fn a_batch_is_better_while_reading_weights_takes_the_time() {
        let equal = predicted(&[(10.0, 0.5), (10.0, 0.5)]);
        let any = |rows| Demand { rows, step_rows: usize::MAX };
        // A batch of two rows takes as long as one row, two groups twice as long as one group.
        assert_eq!([2, 8, 20].map(|rows| equal.groups(any(rows), 2)), [1, 1, 1]);
        assert_eq!((equal.round_ms(any(2), 1), equal.round_ms(any(2), 2)), (20.0, 20.0));
        // Rows take the time: groups are nearly twice as fast.
        assert_eq!([30, 64, 200].map(|rows| equal.groups(any(rows), 2)), [2, 2, 2]);
        assert_eq!((equal.round_ms(any(64), 1), equal.round_ms(any(64), 2)), (64.0, 32.0));
        assert_eq!(equal.groups.bound, 2.0);
        let from = equal.groups.sequences_min.expect("there is such a number");
        assert!((20..=24).contains(&from), "{from}");
    }

    #[test]
    fn steps_of_one_row_gain_at_once() {
        let single = |rows| Demand { rows, step_rows: 1 };
        let uneven = predicted(&[(30.0, 0.1), (10.0, 0.1)]);
        assert_eq!((uneven.groups(single(1), 2), uneven.groups(single(2), 2)), (1, 2));
        assert_eq!((uneven.round_ms(single(2), 1), uneven.round_ms(single(2), 2)), (80.0, 60.0));
        // Three rows in two groups: the slower device is always busy.
        assert_eq!(uneven.round_ms(single(3), 2), 90.0);
        assert!((uneven.groups.bound - 4.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn more_devices_take_more_groups() {
        let three = predicted(&[(10.0, 1.0), (10.0, 1.0), (10.0, 1.0)]);
        let many = Demand { rows: 96, step_rows: usize::MAX };
        assert_eq!((three.groups(many, 3), three.groups(many, 2)), (3, 2));
        assert_eq!(three.groups.bound, 2.0);
        // One device has nothing to gain.
        let one = predicted(&[(10.0, 1.0), (0.0, 0.0)]);
        assert_eq!((one.groups(many, 2), one.groups.sequences_min), (1, None));
    }
}
