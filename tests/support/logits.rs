//! Rows of logits.

/// The likeliest token of a row, of equal ones the first.
pub fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, id| if row[id] > row[best] { id } else { best }) as u32
}
