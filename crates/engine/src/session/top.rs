//! The best tokens of requested rows, as found by a device.

/// The `k` best tokens of each requested row.
#[derive(Clone, Copy, Debug)]
pub struct Top<'a> {
    pub(super) k: usize,
    /// `[rows, 2k]`: `k` logits, then `k` ids.
    pub(super) data: &'a [f32],
}

impl<'a> Top<'a> {
    /// The tokens of a row with their logits, largest first, lower id first on ties.
    pub fn row(&self, row: usize) -> impl Iterator<Item = (u32, f32)> + use<'a> {
        let (logits, ids) = self.data[2 * self.k * row..][..2 * self.k].split_at(self.k);
        ids.iter().zip(logits).map(|(&id, &logit)| (id as u32, logit))
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / (2 * self.k)
    }
}
