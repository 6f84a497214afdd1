//! Finds the largest elements of each row and their indices.

use std::ops::Range;

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Context, Rowwise, Stage};

/// Elements tested together: most groups contain nothing large enough.
const STRETCH: usize = 64;

/// The stage of an [`Op::TopK`]: `input [rows, width]` to `out [rows, 2k]`, `k` values, largest first, then their
/// indices.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::TopK { input, out, .. } = *lowering.op(node) else { unreachable!("the table of ops") };
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    let compute = move |context: Context<'_>, rows: Range<usize>, out: &mut [f32]| {
        top_k(input.get(&context, rows), out);
    };
    Box::new(Rowwise { out, rows: 1, scratch_bytes: 0, compute })
}

/// Keeps the best so far sorted in `out` and inserts larger elements. In a row of `n` in random order that happens
/// about `k ln(n / k)` times, so the cost is that of reading the row.
fn top_k(row: &[f32], out: &mut [f32]) {
    let (values, places) = out.split_at_mut(out.len() / 2);
    values.fill(f32::NEG_INFINITY);
    let last = values.len() - 1;
    for (stretch, first) in row.chunks(STRETCH).zip((0..).step_by(STRETCH)) {
        let least = values[last];
        // False for NaN and infinities too, which must be examined.
        if stretch.iter().fold(true, |calm, &x| calm & (x <= least) & (x >= f32::MIN)) {
            continue;
        }
        if !stretch.iter().all(|x| x.is_finite()) {
            out.fill(f32::NAN);
            return;
        }
        for (&x, place) in stretch.iter().zip(first..) {
            if x <= values[last] {
                continue;
            }
            let at = values.partition_point(|&known| known >= x);
            values.copy_within(at..last, at + 1);
            places.copy_within(at..last, at + 1);
            values[at] = x;
            places[at] = place as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::top_k;

    #[test]
    fn places_that_tie_stay_in_order() {
        let row: Vec<f32> = (0..1000).map(|i| ((i * 37) % 100) as f32).collect();
        let mut out = [0.0; 24];
        top_k(&row, &mut out);
        let mut order: Vec<usize> = (0..1000).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        for i in 0..12 {
            assert_eq!((out[i], out[12 + i]), (row[order[i]], order[i] as f32));
        }
    }

    #[test]
    fn what_is_not_finite_is_seen_wherever_it_is() {
        for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 63, 64, 499] {
                let mut row: Vec<f32> = (0..500).map(|i| -(i as f32)).collect();
                row[place] = odd;
                let mut out = [0.0; 4];
                top_k(&row, &mut out);
                assert!(out.iter().all(|x| x.is_nan()), "{odd} at {place}: {out:?}");
            }
        }
    }
}
