//! Finds the largest elements of each row and their indices.

use std::ops::Range;

use bilayer_graph::Op;

use crate::lowering::Lowering;
use crate::stage::{Context, Rowwise, Stage};
use crate::state::State;

/// Elements tested together: most groups contain nothing large enough.
const STRETCH: usize = 64;

/// The stage of an [`Op::TopK`]: `input [rows, width]` to `out [rows, 2k]`, as many values as the step asks for, largest
/// first, zeros up to place `k`, then their indices and zeros.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::TopK { input, out, .. } = *lowering.op(node) else { unreachable!("the table of ops") };
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    let compute = move |context: Context<'_>, rows: Range<usize>, out: &mut [f32]| {
        let (values, places) = out.split_at_mut(out.len() / 2);
        let count = context.state.top_k.min(values.len());
        values[count..].fill(0.0);
        places[count..].fill(0.0);
        if !top_k(input.get(&context, rows), &mut values[..count], &mut places[..count]) {
            out.fill(f32::NAN);
        }
    };
    Box::new(Search(Rowwise { out, rows: 1, scratch_bytes: 0, compute }.boxed()))
}

/// A search, which is skipped in steps that ask for nothing.
struct Search(Box<dyn Stage>);

impl Stage for Search {
    fn chunks(&self, state: &State) -> usize {
        if state.top_k == 0 { 0 } else { self.0.chunks(state) }
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        self.0.writes(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        self.0.run(context, chunk);
    }
}

/// Keeps the best so far sorted in `values`, with their `places`, and inserts larger elements. In a row of `n` in random
/// order that happens about `k ln(n / k)` times for `k` values, so the cost is that of reading the row unless the row is
/// short. False if an element is not finite.
fn top_k(row: &[f32], values: &mut [f32], places: &mut [f32]) -> bool {
    values.fill(f32::NEG_INFINITY);
    let last = values.len() - 1;
    for (stretch, first) in row.chunks(STRETCH).zip((0..).step_by(STRETCH)) {
        let least = values[last];
        // False for NaN and infinities too, which must be examined.
        if stretch.iter().fold(true, |calm, &x| calm & (x <= least) & (x >= f32::MIN)) {
            continue;
        }
        if !stretch.iter().all(|x| x.is_finite()) {
            return false;
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
    true
}

#[cfg(test)]
mod tests {
    use super::top_k;

    #[test]
    fn places_that_tie_stay_in_order() {
        let row: Vec<f32> = (0..1000).map(|i| ((i * 37) % 100) as f32).collect();
        let (mut values, mut places) = ([0.0; 12], [0.0; 12]);
        assert!(top_k(&row, &mut values, &mut places));
        let mut order: Vec<usize> = (0..1000).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        for i in 0..12 {
            assert_eq!((values[i], places[i]), (row[order[i]], order[i] as f32));
        }
    }

    #[test]
    fn what_is_not_finite_is_seen_wherever_it_is() {
        for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 63, 64, 499] {
                let mut row: Vec<f32> = (0..500).map(|i| -(i as f32)).collect();
                row[place] = odd;
                for count in [1, 2] {
                    let found = top_k(&row, &mut [0.0; 2][..count], &mut [0.0; 2][..count]);
                    assert!(!found, "{odd} at {place}");
                }
            }
        }
    }
}
