//! Products of each row with the matrices of its experts.

use crate::NO_EXPERT;

/// The dimensions of the product.
pub(super) struct Shape {
    /// Experts per row.
    pub(super) used: usize,
    /// Rows per expert's matrix.
    pub(super) rows: usize,
    /// Its columns.
    pub(super) cols: usize,
}

/// What each expert has beside its matrix.
pub(super) struct Beside<'a> {
    /// `[experts, rows]` or zeros.
    pub(super) bias: Option<&'a [f32]>,
    /// `[experts]` or ones.
    pub(super) factors: Option<&'a [f32]>,
}

/// `input [T, cols]` or `[T, used, cols]`, `route [T, 2 used]`, the experts' matrices `[rows, cols]` contiguous in
/// the parts of `stack`, to `out [T, used, rows]`, 0 where there is no expert. In f64,
/// rounded once.
pub(super) fn experts(
    shape: &Shape,
    input: &[f32],
    route: &[f32],
    stack: &[&[f32]],
    &Beside { bias, factors }: &Beside<'_>,
    out: &mut [f32],
) {
    let &Shape { used, rows, cols } = shape;
    let matrices: Vec<&[f32]> =
        stack.iter().flat_map(|part| part.chunks_exact(rows * cols)).collect();
    let tokens = route.len() / (2 * used);
    // One input for all experts of a row, or one per expert.
    let each = input.len() / (tokens * cols).max(1);
    for (pair, out) in out.chunks_exact_mut(rows).enumerate() {
        let (token, slot) = (pair / used, pair % used);
        let number = route[token * 2 * used + used + slot];
        if number == NO_EXPERT {
            out.fill(0.0);
            continue;
        }
        let expert = number as usize;
        let x = &input[(token * each + slot % each) * cols..][..cols];
        for (r, out) in out.iter_mut().enumerate() {
            let mut sum = 0.0;
            let weight = &matrices[expert][r * cols..][..cols];
            for c in 0..cols {
                sum += f64::from(x[c]) * f64::from(weight[c]);
            }
            let factor = factors.map_or(1.0, |factors| f64::from(factors[expert]));
            let bias = bias.map_or(0.0, |bias| f64::from(bias[expert * rows + r]));
            *out = (factor * sum + bias) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Beside, Shape, experts};
    use crate::NO_EXPERT;

    const SHAPE: Shape = Shape { used: 2, rows: 1, cols: 2 };
    const STACK: [f32; 6] = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0]; // [3, 1, 2]
    const ALONE: Beside<'_> = Beside { bias: None, factors: None };

    #[test]
    fn each_row_meets_the_experts_it_goes_to() {
        // Two rows: the first goes to experts 2 and 0, the second to 1 and 2.
        let route = [0.5, 0.5, 2.0, 0.0, 0.5, 0.5, 1.0, 2.0];
        let mut out = [0.0; 4];
        let input = [3.0, 4.0, 5.0, 6.0];
        experts(&SHAPE, &input, &route, &[&STACK], &ALONE, &mut out);
        assert_eq!(out, [7.0, 3.0, 6.0, 11.0]);
        // With separate tensors and biases.
        let apart = [&STACK[..2], &STACK[2..4], &STACK[4..]];
        let biased = Beside { bias: Some(&[10.0, 20.0, 30.0]), ..ALONE };
        experts(&SHAPE, &input, &route, &apart, &biased, &mut out);
        assert_eq!(out, [37.0, 13.0, 26.0, 41.0]);
        let factored = Beside { factors: Some(&[2.0, 3.0, 4.0]), ..ALONE };
        experts(&SHAPE, &input, &route, &apart, &factored, &mut out);
        assert_eq!(out, [28.0, 6.0, 18.0, 44.0]);
    }

    #[test]
    fn without_an_expert_products_are_0() {
        let route = [0.5, 0.5, NO_EXPERT, 1.0];
        let mut out = [7.0; 2];
        let biased = Beside { bias: Some(&[1.0, 2.0, 3.0]), ..ALONE };
        experts(&SHAPE, &[3.0, 4.0], &route, &[&STACK], &biased, &mut out);
        assert_eq!(out, [0.0, 6.0]);
    }

    #[test]
    fn an_input_for_each_expert() {
        let route = [0.5, 0.5, 2.0, 0.0];
        let mut out = [0.0; 2];
        experts(&SHAPE, &[3.0, 4.0, 5.0, 6.0], &route, &[&STACK], &ALONE, &mut out);
        assert_eq!(out, [7.0, 5.0]);
    }
}
