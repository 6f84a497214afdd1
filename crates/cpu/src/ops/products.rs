//! Small matrix products of f32, a few rows at a time, with all accumulators in registers: those of attention with a
//! page, and those of a recurrence with the rows of a tile.
#![expect(clippy::needless_range_loop, reason = "constant bounds, which unroll into registers")]

use bilayer_graph::PAGE_TOKENS;

use crate::cache::Panel;
use crate::lanes::Lanes;

/// A right-hand matrix that is converted as it is read.
pub(in crate::ops) trait Source: Copy {
    /// Asserts that the matrix has as many elements, and scales for `[rows, cols]` of them.
    fn check(self, elements: usize, shape: [usize; 2]);

    /// Loads elements from `at` on, without their scale.
    ///
    /// # Safety
    /// They are among those of a [`Source::check`].
    unsafe fn load<L: Lanes>(self, l: L, at: usize) -> L::F;

    /// Whether elements have scales.
    const SCALED: bool = false;

    /// The scales of keys in rows `32 * block..` and columns `column..`, if they have scales.
    #[inline(always)]
    fn column_scales<L: Lanes>(self, l: L, _block: usize, _column: usize) -> L::F {
        l.splat(1.0)
    }

    /// The scales of values in row `row`, from column `column` on, if they have scales.
    ///
    /// # Safety
    /// Both are within the shape of a [`Source::check`].
    #[inline(always)]
    unsafe fn row_scale(self, _row: usize, _column: usize) -> f32 {
        1.0
    }
}

/// f32.
#[derive(Clone, Copy)]
pub(in crate::ops) struct F32<'a>(pub(in crate::ops) &'a [f32]);

impl Source for F32<'_> {
    #[inline(always)]
    fn check(self, elements: usize, _: [usize; 2]) {
        assert!(elements <= self.0.len());
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(self, l: L, at: usize) -> L::F {
        // SAFETY: guaranteed by the caller.
        unsafe { l.load(self.0.as_ptr().add(at)) }
    }
}

/// f16 bits.
#[derive(Clone, Copy)]
pub(in crate::ops) struct F16<'a>(pub(in crate::ops) &'a [u16]);

impl Source for F16<'_> {
    #[inline(always)]
    fn check(self, elements: usize, _: [usize; 2]) {
        assert!(elements <= self.0.len());
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(self, l: L, at: usize) -> L::F {
        // SAFETY: guaranteed by the caller.
        unsafe { l.load_f16(self.0.as_ptr().add(at)) }
    }
}

/// Keys of Q8_0: `[dim, 32]` bytes, and `[dim / 32, 32]` f16 scales.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Q8Keys<'a>(pub(in crate::ops) &'a [i8], pub(in crate::ops) &'a [u16]);

impl Source for Q8Keys<'_> {
    #[inline(always)]
    fn check(self, elements: usize, _: [usize; 2]) {
        assert!(elements <= self.0.len());
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(self, l: L, at: usize) -> L::F {
        // SAFETY: guaranteed by the caller.
        unsafe { l.load_i8(self.0.as_ptr().add(at)) }
    }

    const SCALED: bool = true;

    #[inline(always)]
    fn column_scales<L: Lanes>(self, l: L, block: usize, column: usize) -> L::F {
        l.read_f16(&self.1[block * PAGE_TOKENS + column..])
    }
}

/// Values of Q8_0: `[32, stride]` bytes, their `[32, stride / 32]` scales as f32, and `stride / 32`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Q8Values<'a>(
    pub(in crate::ops) &'a [i8],
    pub(in crate::ops) &'a [f32],
    pub(in crate::ops) usize,
);

impl Source for Q8Values<'_> {
    #[inline(always)]
    fn check(self, elements: usize, [rows, cols]: [usize; 2]) {
        assert!(elements <= self.0.len());
        assert!(rows * self.2 <= self.1.len() && cols <= 32 * self.2);
    }

    #[inline(always)]
    unsafe fn load<L: Lanes>(self, l: L, at: usize) -> L::F {
        // SAFETY: guaranteed by the caller.
        unsafe { l.load_i8(self.0.as_ptr().add(at)) }
    }

    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn row_scale(self, row: usize, column: usize) -> f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { *self.1.get_unchecked(row * self.2 + column / 32) }
    }
}

/// Data to prefetch during a product: 32 elements for every 32 used, which is one line of f16. Prefetching a line
/// twice costs as much as a load.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Ahead {
    from: *const u8,
    /// Bytes per element; 0 for products of further rows, when everything has been prefetched.
    element: usize,
}

impl Ahead {
    /// Elements per prefetch.
    const ELEMENTS: usize = 32;

    /// Prefetches the panel needed next.
    #[inline(always)]
    pub(in crate::ops) fn of(panel: Panel<'_>) -> Ahead {
        Ahead { from: panel.bytes.as_ptr(), element: panel.stored.element_bytes() }
    }

    /// Nothing: one line again and again.
    #[inline(always)]
    pub(in crate::ops) fn none(line: &[f32]) -> Ahead {
        Ahead { from: line.as_ptr().cast(), element: 0 }
    }

    /// For the product of the rows from `row` on: the first one has prefetched everything.
    #[inline(always)]
    pub(in crate::ops) fn of_rows_from(self, row: usize) -> Ahead {
        Ahead { element: if row == 0 { self.element } else { 0 }, ..self }
    }

    #[inline(always)]
    fn fetch<L: Lanes>(self, l: L, at: usize) {
        l.prefetch(self.from.wrapping_add(at * self.element));
    }
}

/// Rows per product: as many as the registers hold, or fewer to make all products equal.
#[inline(always)]
pub(in crate::ops) fn step<L: Lanes>(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(L::TILE_ROWS).max(1))
}

/// `out [R, 32] = left [R, dim] x right [dim, 32]`.
///
/// # Panics
/// If a matrix is too small.
#[inline(always)]
pub(in crate::ops) fn multiply<L: Lanes>(
    l: L,
    left: &[f32],
    right: &[f32],
    dim: usize,
    out: &mut [f32],
) {
    let rows = out.len() / PAGE_TOKENS;
    let (ahead, step) = (Ahead::none(right), step::<L>(rows).max(1));
    for (left, out) in left[..rows * dim].chunks(step * dim).zip(out.chunks_mut(step * PAGE_TOKENS))
    {
        Score { left, right: F32(right), dim, out, ahead }.run(l);
    }
}

/// `out [R, 32] += left [R, 32] x right [len, 32]`, of `left` the first `len` columns.
///
/// # Panics
/// If a matrix is too small, or `len` above 32.
#[inline(always)]
pub(in crate::ops) fn multiply_add<L: Lanes>(
    l: L,
    left: &[f32],
    right: &[f32],
    len: usize,
    out: &mut [f32],
) {
    let (rows, stride) = (out.len() / PAGE_TOKENS, PAGE_TOKENS);
    let (ahead, step) = (Ahead::none(right), step::<L>(rows).max(1));
    let left = left[..rows * stride].chunks(step * stride);
    for (left, out) in left.zip(out.chunks_mut(step * stride)) {
        let (rows, right, right_stride) = (out.len() / stride, F32(right), stride);
        let product: Mix<'_, _> =
            Mix { rows, left, right, from: 0, to: len, stride, right_stride, out, ahead };
        product.run(l);
    }
}

/// A product of a few rows with a page.
pub(in crate::ops) trait Product: Sized {
    /// Number of rows.
    fn rows(&self) -> usize;

    /// The product of R rows.
    ///
    /// # Panics
    /// If a matrix is too small.
    fn run_rows<L: Lanes, const R: usize>(self, l: L);

    /// The product of at most [`Lanes::TILE_ROWS`] rows.
    ///
    /// # Panics
    /// If a matrix is too small, or there are more rows.
    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        // Constant conditions: no code is made for more rows than a level has registers for.
        match self.rows() {
            1 => self.run_rows::<L, 1>(l),
            2 if const { L::TILE_ROWS >= 2 } => self.run_rows::<L, 2>(l),
            3 if const { L::TILE_ROWS >= 3 } => self.run_rows::<L, 3>(l),
            4 if const { L::TILE_ROWS >= 4 } => self.run_rows::<L, 4>(l),
            5 if const { L::TILE_ROWS >= 5 } => self.run_rows::<L, 5>(l),
            6 if const { L::TILE_ROWS >= 6 } => self.run_rows::<L, 6>(l),
            7 if const { L::TILE_ROWS >= 7 } => self.run_rows::<L, 7>(l),
            8 if const { L::TILE_ROWS >= 8 } => self.run_rows::<L, 8>(l),
            rows => unreachable!("{rows} rows"),
        }
    }
}

/// `out [R, 32] = left [R, dim] x right [dim, 32]`.
pub(in crate::ops) struct Score<'a, S> {
    pub(in crate::ops) left: &'a [f32],
    pub(in crate::ops) right: S,
    pub(in crate::ops) dim: usize,
    pub(in crate::ops) out: &'a mut [f32],
    pub(in crate::ops) ahead: Ahead,
}

impl<S: Source> Product for Score<'_, S> {
    #[inline(always)]
    fn rows(&self) -> usize {
        self.out.len() / PAGE_TOKENS
    }

    #[inline(always)]
    fn run_rows<L: Lanes, const R: usize>(self, l: L) {
        assert!(R * self.dim <= self.left.len() && R * PAGE_TOKENS <= self.out.len());
        self.right.check(self.dim * PAGE_TOKENS, [self.dim, PAGE_TOKENS]);
        // With many rows, two vectors of each fill the registers; with few rows, four hide the latency.
        let (mut first, out) = (0, self.out.as_mut_ptr());
        while first < PAGE_TOKENS {
            // SAFETY: the matrices have R rows, as checked; 2 N, or 4 N, divides 32.
            first += unsafe {
                if const { 2 * R <= L::TILE_ROWS && 4 * L::N <= PAGE_TOKENS } {
                    self.columns::<L, R, 4>(l, first, out)
                } else {
                    self.columns::<L, R, 2>(l, first, out)
                }
            };
        }
    }
}

impl<S: Source> Score<'_, S> {
    /// Computes C vectors of columns from `first` on; returns their number of columns.
    ///
    /// # Safety
    /// The matrices have R rows, `out` among them, and `first + C * N <= 32`.
    #[inline(always)]
    unsafe fn columns<L: Lanes, const R: usize, const C: usize>(
        &self,
        l: L,
        first: usize,
        out: *mut f32,
    ) -> usize {
        let mut sums = [[l.splat(0.0); C]; R];
        let unit = Ahead::ELEMENTS / (C * L::N);
        for block in 0..self.dim.div_ceil(32) {
            let mut scales = [l.splat(1.0); C];
            if S::SCALED {
                for c in 0..C {
                    scales[c] = self.right.column_scales(l, block, first + c * L::N);
                }
            }
            let end = self.dim.min(32 * (block + 1));
            let mut d = 32 * block;
            while d < end {
                self.ahead.fetch(l, first * self.dim + d * C * L::N);
                // A constant in both cases, so that the loop is unrolled.
                let many = if end - d >= unit { unit } else { 1 };
                for _ in 0..many {
                    let mut key = [l.splat(0.0); C];
                    // SAFETY: `d < dim` and `r < R`: column `d` of the left-hand matrix, row `d` of the right-hand one.
                    unsafe {
                        for c in 0..C {
                            key[c] = self.right.load(l, d * PAGE_TOKENS + first + c * L::N);
                            if S::SCALED {
                                key[c] = l.mul(key[c], scales[c]);
                            }
                        }
                        for r in 0..R {
                            let q = l.splat(*self.left.as_ptr().add(r * self.dim + d));
                            for c in 0..C {
                                sums[r][c] = l.fma(q, key[c], sums[r][c]);
                            }
                        }
                    }
                    d += 1;
                }
            }
        }
        for r in 0..R {
            for c in 0..C {
                // SAFETY: `r < R`, and the columns end at 32.
                unsafe { l.store(sums[r][c], out.add(r * PAGE_TOKENS + first + c * L::N)) };
            }
        }
        C * L::N
    }
}

/// `out [R, stride] += left [R, LEFT] x right [LEFT, stride]` over the tokens `from..to`.
pub(in crate::ops) struct Mix<'a, S, const LEFT: usize = PAGE_TOKENS> {
    /// R.
    pub(in crate::ops) rows: usize,
    /// The last row may end at `to`.
    pub(in crate::ops) left: &'a [f32],
    pub(in crate::ops) right: S,
    pub(in crate::ops) from: usize,
    /// At most `LEFT`.
    pub(in crate::ops) to: usize,
    /// A multiple of 16.
    pub(in crate::ops) stride: usize,
    /// Distance from a token's row of `right` to that of the next; `stride`, or more.
    pub(in crate::ops) right_stride: usize,
    pub(in crate::ops) out: &'a mut [f32],
    pub(in crate::ops) ahead: Ahead,
}

impl<S: Source, const LEFT: usize> Product for Mix<'_, S, LEFT> {
    #[inline(always)]
    fn rows(&self) -> usize {
        self.rows
    }

    #[inline(always)]
    fn run_rows<L: Lanes, const R: usize>(self, l: L) {
        let (to, stride) = (self.to, self.stride);
        assert!(to <= LEFT && (R - 1) * LEFT + to <= self.left.len());
        assert!(stride.is_multiple_of(16) && R * stride <= self.out.len());
        let elements = to.checked_sub(1).map_or(0, |last| last * self.right_stride + stride);
        self.right.check(elements, [to, stride]);
        let vectors = stride / L::N;
        let (mut first, out) = (0, self.out.as_mut_ptr());
        while first < vectors {
            let at = first * L::N;
            let left = vectors - first;
            // SAFETY: the matrices have R rows, as checked; columns `at..` of all matrices, no more than are left.
            unsafe {
                // As in [`Score::run_rows`]. The stride is a multiple of 16, so that vectors of 8 come in pairs.
                first += if const { 2 * R <= L::TILE_ROWS } && left >= 4 {
                    self.block::<L, R, 4>(l, at, out)
                } else if const { 2 * L::N <= 16 } || left >= 2 {
                    self.block::<L, R, 2>(l, at, out)
                } else {
                    self.block::<L, R, 1>(l, at, out)
                };
            }
        }
    }
}

impl<S: Source, const LEFT: usize> Mix<'_, S, LEFT> {
    /// Computes B vectors of columns from `at` on; returns B.
    ///
    /// # Safety
    /// The matrices have R rows, `out` among them, and `at + B * N <= stride`.
    #[inline(always)]
    unsafe fn block<L: Lanes, const R: usize, const B: usize>(
        &self,
        l: L,
        at: usize,
        out: *mut f32,
    ) -> usize {
        let mut sums = [[l.splat(0.0); B]; R];
        for r in 0..R {
            for b in 0..B {
                // SAFETY: row `r`, column `at + b * N`.
                sums[r][b] = unsafe { l.load(out.add(r * self.stride + at + b * L::N)) };
            }
        }
        let unit = (Ahead::ELEMENTS / (B * L::N)).max(1);
        let mut t = self.from;
        while t < self.to {
            self.ahead.fetch(l, at * PAGE_TOKENS + t * B * L::N);
            // As in [`Score::columns`].
            let many = if self.to - t >= unit { unit } else { 1 };
            for _ in 0..many {
                let mut value = [l.splat(0.0); B];
                // SAFETY: `t < LEFT` and `r < R`: column `t` of the left-hand matrix, row `t` of the right-hand one.
                unsafe {
                    for b in 0..B {
                        let column = at + b * L::N;
                        value[b] = self.right.load(l, t * self.right_stride + column);
                        if S::SCALED {
                            let scale = self.right.row_scale(t, column);
                            value[b] = l.mul(value[b], l.splat(scale));
                        }
                    }
                    for r in 0..R {
                        let p = l.splat(*self.left.as_ptr().add(r * LEFT + t));
                        for b in 0..B {
                            sums[r][b] = l.fma(p, value[b], sums[r][b]);
                        }
                    }
                }
                t += 1;
            }
        }
        for r in 0..R {
            for b in 0..B {
                // SAFETY: row `r`, column `at + b * N`.
                unsafe { l.store(sums[r][b], out.add(r * self.stride + at + b * L::N)) };
            }
        }
        B
    }
}
