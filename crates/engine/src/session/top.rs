//! The best tokens of requested rows, as found by a device.

use super::Reading;

/// The best tokens of each requested row.
#[derive(Clone, Copy, Debug)]
pub struct Top<'a> {
    /// Places for logits in a row, and for ids.
    k: usize,
    /// Number of tokens of a row.
    count: usize,
    /// `[rows, 2k]`: `k` places for logits, then `k` for ids; the first `count` of each are filled.
    data: &'a [f32],
}

impl<'a> Top<'a> {
    /// The rows `[rows, width]` of a step that reads best tokens.
    pub(crate) fn new(reading: Reading, data: &'a [f32]) -> Top<'a> {
        Top { k: reading.width / 2, count: reading.top_k.unwrap_or(0), data }
    }

    /// The tokens of a row with their logits, largest first, lower id first on ties.
    pub fn row(&self, row: usize) -> impl Iterator<Item = (u32, f32)> + use<'a> {
        let (logits, ids) = self.data[2 * self.k * row..][..2 * self.k].split_at(self.k);
        ids.iter().zip(logits).take(self.count).map(|(&id, &logit)| (id as u32, logit))
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / (2 * self.k)
    }
}
