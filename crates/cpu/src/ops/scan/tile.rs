//! The chunked form of a recurrence: many rows of a sequence at a time, as products of matrices.
//!
//! **The idea.** With `L[t][s]` the decay from row `s` to row `t`, and `u_s` what row `s` adds along its `b_s`, the state
//! after row `t` is `L[t] S + sum of L[t][s] u_s b_s^T` over `s <= t`. So the results of a tile of rows are
//! `C S^T + (C B^T * L) U`, and the state is read and written once per tile (Dao and Gu 2024). Where a row adds what the
//! state lacks, `U` solves a triangular system: `u_t = rate_t (x_t - L[t] S b_t - sum of L[t][s] (b_s b_t) u_s)` (Yang et
//! al. 2024). The state is transposed once per step, `[state_dim, 32]` for each 32 elements of a head, so that every
//! product has a right-hand matrix of 32 columns.
//!
//! **Price.** Sums are in another order than row by row, so results depend in their last bits on how a text is divided
//! into steps. `C B^T` is computed for each head, though heads of a group share it, and above its diagonal.

use bilayer_graph::PAGE_TOKENS;

use crate::lanes::{Kernel, Lanes};
use crate::ops::products::{multiply, multiply_add};

/// Rows of a tile; columns of its products.
pub(super) const TILE: usize = PAGE_TOKENS;

/// Rows whose triangular system is solved row by row.
const STEP: usize = 8;

/// One row of the tile, as factors.
#[derive(Clone, Copy, Default)]
pub(super) struct Factors {
    /// On the state.
    pub kept: f32,
    /// On `x`, or of the delta rule on the difference.
    pub added: f32,
}

/// A tile of rows of a sequence, through the states of all of a head.
pub(super) struct Tile<'a> {
    /// `[rows]`, at most 32.
    pub factors: &'a [Factors],
    pub is_delta: bool,
    pub skip: f32,
    pub b_factor: f32,
    pub c_factor: f32,
    pub state_dim: usize,
    /// `[rows, state_dim]`.
    pub b: &'a [f32],
    /// `[rows, state_dim]`.
    pub c: &'a [f32],
    /// `[state_dim, 32]`: `b` transposed, zero beyond its rows.
    pub b_columns: &'a [f32],
    /// `[blocks, state_dim, 32]`, 32 elements of the head each.
    pub state: &'a mut [f32],
    /// `[blocks, 32, 32]`: rows of 32 elements each, zero beyond the head's elements; overwritten by what they add.
    pub x: &'a mut [f32],
    /// `[blocks, 32, 32]`.
    pub out: &'a mut [f32],
    /// Of the tile's products.
    pub room: Room<'a>,
}

/// Room for products of a tile, `[32, 32]` each.
pub(super) struct Room<'a> {
    /// `C B^T`, then its product with the decays.
    pub mixed: &'a mut [f32],
    /// `B B^T`, likewise.
    pub taken: &'a mut [f32],
    /// `B S^T`, then what the rows before subtract from each row.
    pub known: &'a mut [f32],
}

impl Kernel for Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let rows = self.factors.len();
        multiply(l, self.c, self.b_columns, self.state_dim, &mut self.room.mixed[..rows * TILE]);
        if self.is_delta {
            let taken = &mut self.room.taken[..rows * TILE];
            multiply(l, self.b, self.b_columns, self.state_dim, taken);
        }
        let (decays, left) = self.decay(l);
        let of_block = self.state_dim * TILE;
        for block in 0..self.state.len() / of_block {
            self.block(l, block, &decays[..rows], &left);
        }
    }
}

impl Tile<'_> {
    /// Multiplies the products of rows with the decays between them; returns each row's decay of the state, and for each
    /// row what of it is left after the tile.
    #[inline(always)]
    fn decay<L: Lanes>(&mut self, l: L) -> ([f32; TILE], [f32; TILE]) {
        let (mut decays, mut left, mut all) = ([0.0; TILE], [0.0; TILE], 1.0);
        for (t, factors) in self.factors.iter().enumerate() {
            all *= factors.kept;
            decays[t] = all;
            for left in left.chunks_exact_mut(L::N) {
                l.write(l.mul(l.read(left), l.splat(factors.kept)), left);
            }
            left[t] = 1.0;
            let row = t * TILE..(t + 1) * TILE;
            let mixed = &mut self.room.mixed[row.clone()];
            for ((mixed, &left), of) in mixed.iter_mut().zip(&left).zip(self.factors) {
                *mixed *= left * self.b_factor * if self.is_delta { 1.0 } else { of.added };
            }
            mixed[t + 1..].fill(0.0);
            if self.is_delta {
                let factor = self.b_factor * self.b_factor;
                for (taken, &left) in self.room.taken[row].iter_mut().zip(&left) {
                    *taken *= left * factor;
                }
            }
        }
        (decays, left)
    }

    /// The tile's rows through 32 elements of the head.
    #[inline(always)]
    fn block<L: Lanes>(&mut self, l: L, block: usize, decays: &[f32], left: &[f32; TILE]) {
        let rows = decays.len();
        let (of_state, of_rows) = (self.state_dim * TILE, TILE * TILE);
        let state = &mut self.state[block * of_state..][..of_state];
        let x = &mut self.x[block * of_rows..][..rows * TILE];
        let out = &mut self.out[block * of_rows..][..rows * TILE];
        multiply(l, self.c, state, self.state_dim, out);
        scale(l, out, decays.iter().copied());
        if self.is_delta {
            let known = &mut self.room.known[..rows * TILE];
            multiply(l, self.b, state, self.state_dim, known);
            scale(l, known, decays.iter().map(|decay| decay * self.b_factor));
            solve(l, self.factors, self.room.taken, known, x);
        }
        multiply_add(l, self.room.mixed, x, rows, out);
        let (skip, c_factor) = (l.splat(self.skip), l.splat(self.c_factor));
        for (out, x) in out.chunks_exact_mut(L::N).zip(x.chunks_exact(L::N)) {
            l.write(l.fma(skip, l.read(x), l.mul(c_factor, l.read(out))), out);
        }
        let added = self.factors.iter().map(|of| if self.is_delta { 1.0 } else { of.added });
        scale(l, x, added.zip(left).map(|(added, left)| added * left * self.b_factor));
        let kept = l.splat(decays[rows - 1]);
        for state in state.chunks_exact_mut(L::N) {
            l.write(l.mul(kept, l.read(state)), state);
        }
        multiply_add(l, self.b_columns, x, rows, state);
    }
}

/// Multiplies each row of `matrix [.., 32]` with a factor.
#[inline(always)]
fn scale<L: Lanes>(l: L, matrix: &mut [f32], factors: impl Iterator<Item = f32>) {
    for (row, factor) in matrix.chunks_exact_mut(TILE).zip(factors) {
        for row in row.chunks_exact_mut(L::N) {
            l.write(l.mul(l.splat(factor), l.read(row)), row);
        }
    }
}

/// `x_t = rate_t (x_t - known_t - sum of taken[t][s] x_s)` over `s < t`, row after row; `known` is overwritten.
#[inline(always)]
fn solve<L: Lanes>(l: L, factors: &[Factors], taken: &[f32], known: &mut [f32], x: &mut [f32]) {
    let rows = factors.len();
    for first in (0..rows).step_by(STEP) {
        let end = (first + STEP).min(rows);
        let (before, own) = x.split_at_mut(first * TILE);
        let known = &mut known[first * TILE..end * TILE];
        multiply_add(l, &taken[first * TILE..], before, first, known);
        for t in first..end {
            let (solved, rest) = own.split_at_mut((t - first) * TILE);
            let known = &known[(t - first) * TILE..][..TILE];
            let rate = l.splat(factors[t].added);
            for at in (0..TILE).step_by(L::N) {
                let mut sum = l.read(&known[at..]);
                for (s, solved) in (first..t).zip(solved.chunks_exact(TILE)) {
                    sum = l.fma(l.splat(taken[t * TILE + s]), l.read(&solved[at..]), sum);
                }
                let lacking = l.sub(l.read(&rest[at..]), sum);
                l.write(l.mul(rate, lacking), &mut rest[at..]);
            }
        }
    }
}

/// `to [columns, 32]` = `from [rows, columns]` transposed, zero beyond its rows.
pub(super) fn transpose(from: &[f32], columns: usize, to: &mut [f32]) {
    to.fill(0.0);
    let rows = from.len() / columns;
    // Blocks of 4 x 4, which the compiler shuffles in registers.
    let (whole_rows, whole_columns) = (rows / 4 * 4, columns / 4 * 4);
    for row in (0..whole_rows).step_by(4) {
        for column in (0..whole_columns).step_by(4) {
            let four: [[f32; 4]; 4] = std::array::from_fn(|i| {
                *from[(row + i) * columns + column..].first_chunk().expect("four columns are left")
            });
            for i in 0..4 {
                let turned = [four[0][i], four[1][i], four[2][i], four[3][i]];
                to[(column + i) * TILE + row..][..4].copy_from_slice(&turned);
            }
        }
    }
    for row in 0..rows {
        let first = if row < whole_rows { whole_columns } else { 0 };
        for column in first..columns {
            to[column * TILE + row] = from[row * columns + column];
        }
    }
}

/// `to [rows, columns]` = `from [columns, 32]` transposed.
pub(super) fn transpose_back(from: &[f32], columns: usize, to: &mut [f32]) {
    for (row, to) in to.chunks_exact_mut(columns).enumerate() {
        for (column, to) in to.iter_mut().enumerate() {
            *to = from[column * TILE + row];
        }
    }
}
