//! Removes and rounds weights of one row, and corrects the others.

use std::ops::Range;

use bilayer_quant::{Grid, Type};
use rayon::prelude::*;

/// Added to the diagonal of X^T X, as a share of its mean: the value of the SparseGPT paper.
const DAMPING: f64 = 0.01;

/// What the choice of weights is based on.
#[derive(Clone, Copy)]
pub(super) enum Scores<'a> {
    /// |w|.
    Magnitude,
    /// w² times the mean square of the column's activations, `[cols]`.
    Columns(&'a [f32]),
    /// The increase of the squared output error if the others make up for it.
    Inverse(&'a Inverse),
}

/// The inverse of X^T X + damping, as the upper triangular U with U^T U.
pub(super) struct Inverse {
    cols: usize,
    /// `[cols, cols]`, zero below the diagonal.
    upper: Vec<f32>,
    /// Columns whose activations are always zero.
    dead: Vec<bool>,
}

impl Inverse {
    /// Of X^T X, `[cols, cols]`, of which only the upper triangle is read; `None` if it is not finite.
    ///
    /// X^T X = V V^T with V upper triangular, found from the last column backwards; then U = V^-1. In f64.
    pub fn of(products: &[f32]) -> Option<Inverse> {
        let cols = products.len().isqrt();
        let diagonal: Vec<f64> = (0..cols).map(|i| f64::from(products[i * cols + i])).collect();
        let dead: Vec<bool> = diagonal.iter().map(|square| *square == 0.0).collect();
        let damping = (DAMPING * diagonal.iter().sum::<f64>() / cols as f64).max(f64::MIN_POSITIVE);
        let mut v: Vec<f64> = products.iter().map(|product| f64::from(*product)).collect();
        for (i, dead) in dead.iter().enumerate() {
            v[i * cols + i] += if *dead { 1.0 } else { damping };
        }
        for j in (0..cols).rev() {
            let (above, row) = v.split_at_mut(j * cols);
            let pivot = row[j] - row[j + 1..cols].iter().map(|x| x * x).sum::<f64>();
            if !pivot.is_finite() || pivot <= 0.0 {
                return None;
            }
            let pivot = pivot.sqrt();
            row[j] = pivot;
            let tail = &row[j + 1..cols];
            above.par_chunks_exact_mut(cols).with_min_len(64).for_each(|row| {
                let (head, rest) = row.split_at_mut(j + 1);
                let dot: f64 = rest.iter().zip(tail).map(|(a, b)| a * b).sum();
                head[j] = (head[j] - dot) / pivot;
            });
        }
        let mut u = vec![0.0f64; cols * cols];
        for i in (0..cols).rev() {
            let (head, below) = u.split_at_mut((i + 1) * cols);
            let (row, inverse) = (&mut head[i * cols..], 1.0 / v[i * cols + i]);
            for k in i + 1..cols {
                let factor = v[i * cols + k] * inverse;
                let other = &below[(k - i - 1) * cols..][..cols];
                row[k..].iter_mut().zip(&other[k..]).for_each(|(to, x)| *to -= factor * x);
            }
            row[i] = inverse;
        }
        let upper: Vec<f32> = u.into_iter().map(|x| x as f32).collect();
        upper.iter().all(|x| x.is_finite()).then_some(Inverse { cols, upper, dead })
    }
}

/// A row on its way.
pub(super) struct Row<'a> {
    /// `[cols]`.
    pub values: &'a mut [f32],
    /// Columns of a group; the last group may be shorter.
    pub of: usize,
    /// What the choice is based on.
    pub scores: Scores<'a>,
    /// Columns that are removed whatever the choice: the zeros of a row that is sparse already, to which corrections of earlier
    /// columns would else give weights. Empty if there are none.
    zeros: Vec<bool>,
}

impl<'a> Row<'a> {
    /// A row, of which weights are chosen within groups of `of` columns.
    pub fn new(values: &'a mut [f32], of: usize, scores: Scores<'a>) -> Row<'a> {
        Row { values, of, scores, zeros: Vec::new() }
    }
}

impl Row<'_> {
    /// Keeps `kept(len)` weights of each group, sets the others to zero, and writes the row as `ty`; `values` becomes what was
    /// written. Returns the number of its zeros.
    ///
    /// With an inverse and a type that has a grid, the row is rounded weight by weight, to the scale that a block has when
    /// its first column is reached, and later columns make up for the rounding as for removed weights. Zeros of a row that is
    /// sparse already stay zeros.
    pub fn pruned(
        mut self,
        kept: &impl Fn(usize) -> usize,
        ty: Type,
        made: &mut [u8],
    ) -> Result<u64, bilayer_quant::Error> {
        if let Scores::Inverse(inverse) = self.scores {
            self.zeros = sparse_columns(self.values);
            let is_dense = kept(self.of) >= self.of;
            if !is_dense {
                let dead = self.values.iter_mut().zip(&inverse.dead).filter(|(_, dead)| **dead);
                dead.for_each(|(weight, _)| *weight = 0.0);
            }
            if let Some(grid) = ty.grid() {
                self.on_grid(kept, grid, inverse, made);
                return Ok(zeros(self.values));
            }
        }
        self.prune(kept);
        ty.quantize(self.values, None, made)?;
        ty.dequantize(made, self.values)?;
        Ok(zeros(self.values))
    }

    /// Prunes and rounds to a grid, column by column. Groups and blocks may have any lengths.
    fn on_grid(
        &mut self,
        kept: &impl Fn(usize) -> usize,
        grid: Grid,
        inverse: &Inverse,
        made: &mut [u8],
    ) {
        let (cols, of) = (self.values.len(), self.of);
        let block = grid.block(cols);
        let bytes = made.len() / (cols / block);
        let mut is_gone = vec![false; cols];
        for (place, made) in made.chunks_exact_mut(bytes).enumerate() {
            let range = place * block..(place + 1) * block;
            // The scale of what would be kept now; a group that began before has its columns chosen.
            for first in range.clone().filter(|col| col.is_multiple_of(of)) {
                self.choose(first, kept, &mut is_gone);
            }
            let weights = self.values[range.clone()].iter().zip(&is_gone[range.clone()]);
            let now: Vec<f32> = weights.map(|(w, gone)| if *gone { 0.0 } else { *w }).collect();
            let scale = grid.scale(&now);
            for col in range.clone() {
                if col.is_multiple_of(of) && col > range.start {
                    self.choose(col, kept, &mut is_gone);
                }
                let value = if is_gone[col] { 0.0 } else { grid.nearest(self.values[col], scale) };
                set(self.values, col, value, inverse);
            }
            grid.write(&self.values[range], scale, made);
        }
    }

    /// Chooses the columns to remove of the group that begins with column `first`, by what its weights are now.
    fn choose(&self, first: usize, kept: &impl Fn(usize) -> usize, is_gone: &mut [bool]) {
        let group = first..is_gone.len().min(first + self.of);
        is_gone[group.clone()].fill(false);
        self.removed(group, kept).into_iter().for_each(|col| is_gone[col] = true);
    }

    /// Keeps `kept(len)` weights of each group, and sets the others to zero.
    fn prune(&mut self, kept: &impl Fn(usize) -> usize) {
        let cols = self.values.len();
        for start in (0..cols).step_by(self.of) {
            let removed = self.removed(start..cols.min(start + self.of), kept);
            match self.scores {
                Scores::Inverse(inverse) => {
                    removed.into_iter().for_each(|col| set(self.values, col, 0.0, inverse));
                }
                _ => removed.into_iter().for_each(|col| self.values[col] = 0.0),
            }
        }
    }

    /// The columns of a group that are not kept, ascending.
    fn removed(&self, group: Range<usize>, kept: &impl Fn(usize) -> usize) -> Vec<usize> {
        let row = &*self.values;
        let score = |col: usize| {
            let square = f64::from(row[col]).powi(2);
            match self.scores {
                Scores::Magnitude => square,
                Scores::Columns(means) => square * f64::from(means[col]),
                Scores::Inverse(Inverse { cols, upper, .. }) => {
                    square / f64::from(upper[col * cols + col]).powi(2)
                }
            }
        };
        let is_zero = |col: usize| self.zeros.get(col).is_some_and(|zero| *zero);
        let zeros = group.clone().filter(|col| is_zero(*col)).count();
        let most = kept(group.len()).min(group.len() - zeros);
        let rank = |col: usize| if is_zero(col) { -1.0 } else { score(col) };
        let mut order: Vec<(f64, usize)> = group.map(|col| (rank(col), col)).collect();
        // Of equal scores, as in columns that are always zero, the larger weight is kept.
        order.sort_by(|&(x, a), &(y, b)| {
            y.total_cmp(&x).then(row[b].abs().total_cmp(&row[a].abs()))
        });
        let mut removed: Vec<usize> =
            order.split_off(most).into_iter().map(|(_, col)| col).collect();
        removed.sort_unstable();
        removed
    }
}

/// The zeros of a row with at least a tenth of them; empty for others, whose zeros are as good as any small weight.
fn sparse_columns(row: &[f32]) -> Vec<bool> {
    match 10 * zeros(row) >= row.len() as u64 {
        true => row.iter().map(|weight| *weight == 0.0).collect(),
        false => Vec::new(),
    }
}

fn zeros(values: &[f32]) -> u64 {
    values.iter().filter(|value| **value == 0.0).count() as u64
}

/// Sets a weight, and lets those of later columns make up for the change.
fn set(row: &mut [f32], col: usize, value: f32, inverse: &Inverse) {
    let upper = &inverse.upper[col * inverse.cols..][..inverse.cols];
    let error = (row[col] - value) / upper[col];
    row[col] = value;
    if error != 0.0 {
        let later = row[col + 1..].iter_mut().zip(&upper[col + 1..]);
        later.for_each(|(w, u)| *w -= error * u);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Activations with correlated columns, `[rows, cols]`.
    fn activations(rows: usize, cols: usize) -> Vec<f64> {
        let wave = |i: usize| ((i * 7919 % 1000) as f64 / 500.0 - 1.0).sin();
        (0..rows * cols)
            .map(|i| {
                let (row, col) = (i / cols, i % cols);
                wave(row * 31 + 5) + 0.6 * wave(row * 17 + col * 13 + 1) + 0.1 * col as f64
            })
            .collect()
    }

    fn products(x: &[f64], cols: usize) -> Vec<f32> {
        let mut sums = vec![0.0f64; cols * cols];
        for row in x.chunks_exact(cols) {
            for i in 0..cols {
                for j in 0..cols {
                    sums[i * cols + j] += row[i] * row[j];
                }
            }
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    }

    /// The squared change of the outputs.
    fn error(x: &[f64], before: &[f32], after: &[f32]) -> f64 {
        let rows = x.chunks_exact(before.len());
        let outputs = rows.map(|x| {
            let change = x.iter().zip(before.iter().zip(after));
            change.map(|(x, (a, b))| x * f64::from(a - b)).sum::<f64>()
        });
        outputs.map(|change| change * change).sum()
    }

    #[test]
    fn u_is_a_root_of_the_inverse() {
        let cols = 6;
        let sums = products(&activations(50, cols), cols);
        let inverse = Inverse::of(&sums).expect("positive");
        let trace: f64 = (0..cols).map(|i| f64::from(sums[i * cols + i])).sum();
        let damping = DAMPING * trace / cols as f64;
        let at = |i: usize, j: usize| f64::from(inverse.upper[i * cols + j]);
        for i in 0..cols {
            for j in 0..cols {
                // Row i of U^T U times column j of the damped X^T X.
                let product: f64 = (0..cols)
                    .map(|k| {
                        let root: f64 = (0..cols).map(|m| at(m, i) * at(m, k)).sum();
                        let damped = if k == j { damping } else { 0.0 };
                        root * (f64::from(sums[k * cols + j]) + damped)
                    })
                    .sum();
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((product - expected).abs() < 1e-3, "{i}, {j}: {product}");
            }
        }
    }

    #[test]
    fn corrected_rows_change_the_outputs_least_and_patterns_hold() {
        let (cols, rows) = (64, 300);
        let x = activations(rows, cols);
        let sums = products(&x, cols);
        let inverse = Inverse::of(&sums).expect("positive");
        let means: Vec<f32> = (0..cols).map(|i| sums[i * cols + i] / rows as f32).collect();
        let before: Vec<f32> = (0..cols).map(|i| ((i * 29 % 64) as f32 - 31.5) * 0.02).collect();
        for (keep, of) in [(8, 16), (4, 16), (16, 64), (32, 64)] {
            let pruned = |scores| {
                let mut row = before.clone();
                let mut made = vec![0; 4 * cols];
                let zeros = Row::new(&mut row, of, scores).pruned(&|_| keep, Type::F32, &mut made);
                assert_eq!(zeros, Ok((cols - cols / of * keep) as u64));
                for group in row.chunks(of) {
                    assert_eq!(group.iter().filter(|w| **w != 0.0).count(), keep);
                }
                error(&x, &before, &row)
            };
            let wanda = pruned(Scores::Columns(&means));
            let corrected = pruned(Scores::Inverse(&inverse));
            assert!(corrected < 0.5 * wanda, "{keep}:{of}: {corrected} and {wanda}");
        }
    }

    #[test]
    fn rounding_is_corrected_with_pruning() {
        let (cols, rows) = (256, 600);
        let x = activations(rows, cols);
        let sums = products(&x, cols);
        let inverse = Inverse::of(&sums).expect("positive");
        let scores = Scores::Inverse(&inverse);
        let weights = |row: usize| -> Vec<f32> {
            (0..cols).map(|i| (((i * 29 + row * 11) % 64) as f32 - 31.5) * 0.02).collect()
        };
        // A row that is pruned, and then rounded without correction.
        let apart = |before: &[f32], ty: Type, (keep, of): (usize, usize)| {
            let (mut row, mut floats) = (before.to_vec(), vec![0; 4 * cols]);
            let pruned = Row::new(&mut row, of, scores);
            pruned.pruned(&|_| keep, Type::F32, &mut floats).expect("finite");
            let mut made = vec![0; ty.row_bytes(cols).expect("whole blocks")];
            ty.quantize(&row, None, &mut made).expect("finite");
            ty.dequantize(&made, &mut row).expect("whole blocks");
            row
        };
        let joint = |before: &[f32], ty: Type, (keep, of): (usize, usize)| {
            let mut row = before.to_vec();
            let mut made = vec![0; ty.row_bytes(cols).expect("whole blocks")];
            let pruned = Row::new(&mut row, of, scores);
            let zeros = pruned.pruned(&|_| keep, ty, &mut made).expect("finite");
            let mut back = vec![0.0; cols];
            ty.dequantize(&made, &mut back).expect("whole blocks");
            assert_eq!(row, back, "{ty}: the row is what was written");
            for group in back.chunks(of) {
                assert!(group.iter().filter(|w| **w != 0.0).count() <= keep, "{ty}");
            }
            let found = back.iter().filter(|w| **w == 0.0).count();
            assert_eq!(zeros, found as u64, "{ty}: zeros are counted after rounding");
            back
        };
        let sparse = [(Type::S4_16_64, 16), (Type::S4_32_64, 32), (Type::S8_16_64, 16)];
        let dense = [(Type::W8A8, 64), (Type::W8A8, 32), (Type::Q8_0, 64), (Type::Q4_0, 64)];
        let all = sparse.into_iter().chain(dense).map(|(ty, keep)| (ty, (keep, 64)));
        // Groups of several blocks, and ones that do not end where blocks do.
        let wide = [(Type::Q4_0, (64, 128)), (Type::Q4_0, (40, 80)), (Type::Q4_0, (24, 48))];
        for (ty, keep) in all.chain(wide) {
            let before: Vec<Vec<f32>> = (0..8).map(weights).collect();
            let total = |after: Vec<Vec<f32>>| -> f64 {
                before.iter().zip(after).map(|(before, after)| error(&x, before, &after)).sum()
            };
            let joint = total(before.iter().map(|row| joint(row, ty, keep)).collect());
            let apart = total(before.iter().map(|row| apart(row, ty, keep)).collect());
            assert!(joint < 0.8 * apart, "{ty} {keep:?}: {joint} and {apart}");
        }
    }

    #[test]
    fn zeros_of_a_sparse_row_stay_and_those_of_a_dense_one_are_weights() {
        let (cols, rows) = (256, 600);
        let x = activations(rows, cols);
        let inverse = Inverse::of(&products(&x, cols)).expect("positive");
        let scores = Scores::Inverse(&inverse);
        let sparse: Vec<f32> = (0..cols)
            .map(|i| if i % 4 < 2 { ((i * 29 % 64) as f32 - 31.5) * 0.02 } else { 0.0 })
            .collect();
        let made = |before: &[f32], ty: Type, (keep, of): (usize, usize)| {
            let (mut row, mut made) =
                (before.to_vec(), vec![0; ty.row_bytes(cols).expect("whole blocks")]);
            let pruned = Row::new(&mut row, of, scores);
            pruned.pruned(&|_| keep, ty, &mut made).expect("finite");
            row
        };
        for (ty, pattern) in [
            (Type::Q8_0, (cols, cols)),
            (Type::Q4_0, (64, 64)),
            (Type::W8A8, (cols, cols)),
            (Type::S8_32_64, (32, 64)),
            (Type::Q8_0, (1, 2)),
            (Type::F32, (1, 4)),
        ] {
            let after = made(&sparse, ty, pattern);
            let filled = sparse.iter().zip(&after).filter(|(a, b)| **a == 0.0 && **b != 0.0);
            assert_eq!(filled.count(), 0, "{ty} {pattern:?}");
            assert!(after.iter().filter(|w| **w != 0.0).count() > cols / 8, "{ty} {pattern:?}");
            let plain = |before: &[f32]| {
                let (mut row, mut bytes) =
                    (before.to_vec(), vec![0; ty.row_bytes(cols).expect("whole blocks")]);
                ty.quantize(before, None, &mut bytes).expect("finite");
                ty.dequantize(&bytes, &mut row).expect("whole blocks");
                row
            };
            if ty == Type::Q4_0 {
                let (by_gptq, alone) =
                    (error(&x, &sparse, &after), error(&x, &sparse, &plain(&sparse)));
                assert!(by_gptq < 0.8 * alone, "{by_gptq} and {alone}");
            }
        }
        // One zero of 256 is as good as any small weight.
        let mut dense: Vec<f32> = (0..cols).map(|i| (i as f32 * 0.7).sin() + 1.1).collect();
        dense[100] = 0.0;
        assert!(sparse_columns(&dense).is_empty());
    }

    #[test]
    fn dead_columns_lose_their_weights_and_odd_products_are_refused() {
        let cols = 4;
        let mut sums = products(&activations(20, cols), cols);
        for i in 0..cols {
            (sums[i], sums[i * cols]) = (0.0, 0.0);
        }
        let inverse = Inverse::of(&sums).expect("positive");
        let mut row = [5.0, 1.0, 2.0, 3.0];
        let mut made = [0; 16];
        let row_of = Row::new(&mut row, 4, Scores::Inverse(&inverse));
        assert_eq!(row_of.pruned(&|_| 2, Type::F32, &mut made), Ok(2));
        assert_eq!(row[0], 0.0);
        assert_eq!(row.iter().filter(|w| **w != 0.0).count(), 2);
        assert!(Inverse::of(&[f32::NAN, 0.0, 0.0, 1.0]).is_none());
    }
}
