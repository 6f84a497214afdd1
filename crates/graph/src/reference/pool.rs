//! Pooling: the mean of a sequence's rows.

use crate::Step;

/// `input [T, width]` to `out [R, width]`: for each requested row, the mean from its span's first row up to it. Sums
/// are f64.
pub(super) fn pool(input: &[f32], step: &Step<'_>, width: usize, out: &mut [f32]) {
    for (&row, out) in step.outputs.iter().zip(out.chunks_exact_mut(width)) {
        let holds = |first: u32, rows: u32| (first..first + rows).contains(&row);
        let span = step.spans.iter().find(|span| holds(span.first_row, span.rows));
        let first = span.expect("spans cover all rows").first_row as usize;
        let rows = &input[first * width..(row as usize + 1) * width];
        for (i, out) in out.iter_mut().enumerate() {
            let sum: f64 = rows.chunks_exact(width).map(|row| f64::from(row[i])).sum();
            *out = (sum / (row as usize + 1 - first) as f64) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::pool;
    use crate::{Exactness, Span, Step};

    #[test]
    fn each_wanted_row_ends_the_rows_it_is_the_mean_of() {
        let span = |first_row, rows| Span { first_row, rows, first_position: 0, first_page: 0 };
        let step = Step {
            tokens: &[0; 5],
            spans: &[span(0, 2), span(2, 3)],
            pages: &[0],
            outputs: &[1, 3, 4],
            states: &[],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        let input = [1.0, 10.0, 3.0, 20.0, 5.0, 0.0, 7.0, 1.0, 0.0, 2.0]; // [5, 2]
        let mut out = [f32::NAN; 6];
        pool(&input, &step, 2, &mut out);
        assert_eq!(out, [2.0, 15.0, 6.0, 0.5, 4.0, 1.0]);
    }
}
