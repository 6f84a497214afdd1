//! The tiles of rows with one scale: int8 sums over all columns, scaled once at the end.
//!
//! A panel is 32 rows x at most 512 columns, as bytes in the order of the instructions. The first panel of a row starts
//! from the activations' offsets, later ones continue the integers in the strip, and the last one stores floats. Without
//! scales between groups of columns, a step is one load of weights, one broadcast per token and the products. Before them,
//! each token's outliers are multiplied with their columns of the panel, its zero point in the last panel with the sums of the
//! rows, and added to the strip.

use bytemuck::{Pod, Zeroable};

use crate::activations::Outliers;
use crate::bytes::u32_at;
use crate::panel::ROWS;
use crate::stream::{Ahead, PanelRows, prefetch_lines};
use crate::tile::check_strip;

/// Columns of a panel: 16 KiB of weights stay in the first-level cache beside the activations.
pub(crate) const COLS: usize = 512;

/// Steps of four columns in a panel.
const STEPS: usize = COLS / 4;

/// Four columns of a panel's rows, or half of eight (see [`fill`]), signed or with their sign bits flipped.
#[repr(C, align(64))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct Step(pub [[u8; 4]; ROWS]);

/// Weights.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(crate) struct RowPanel {
    pub steps: [Step; STEPS],
    pub negative: [i32; ROWS],
}

impl RowPanel {
    /// The panel, for filling.
    pub fn part(&mut self) -> PanelMut<'_> {
        PanelMut { steps: &mut self.steps, negative: &mut self.negative }
    }
}

/// A panel to be filled.
pub(crate) struct PanelMut<'a> {
    /// `[columns / 4]`, or more.
    pub steps: &'a mut [Step],
    /// `[rows]`, the negative weights' sum of magnitudes; AVX2 only.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "AVX2 alone needs it"))]
    pub negative: &'a mut [i32; ROWS],
}

/// A panel times some tokens.
#[derive(Clone, Copy)]
pub(crate) struct RowProduct<'a> {
    /// `[columns / 4]`, or more.
    pub steps: &'a [Step],
    /// See [`PanelMut::negative`].
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "AVX2 alone needs it"))]
    pub negative: &'a [i32; ROWS],
    /// `[columns / 4, tokens, 4]` i8, and at least four more bytes.
    pub x: &'a [u8],
    /// Columns of the panel that are used, a multiple of 32.
    pub columns: usize,
    /// Distance in bytes to activations to prefetch meanwhile, as many.
    pub x_ahead: usize,
    pub tokens: usize,
    /// `[tokens]`, -128 · sum of all activations of the token, for the first panel of a row.
    pub first: Option<&'a [i32]>,
    /// `[tokens]`.
    pub outliers: &'a [Outliers],
    /// `[tokens]`, the zero points, in the last panel of a row; before, 0.
    pub zeros: &'a [i32],
    /// `[rows]`, the sums of the weights of whole rows; arbitrary if no token has a zero point.
    pub row_sums: &'a [i32; ROWS],
    /// The panel's first column.
    pub col: usize,
    /// For the last panel of a row.
    pub last: Option<RowScales<'a>>,
    /// Lines to prefetch meanwhile.
    pub ahead: Ahead,
    /// Distance from a token's 32 results to those of the next.
    pub stride: usize,
}

/// An outlier in a panel.
struct InPanel {
    /// The step of its column.
    step: usize,
    /// The position of the column's codes in the step's words: 0, 8, 16 or 24.
    bits: u32,
    /// Of 16 bits.
    value: i32,
}

/// What turns sums into results.
#[derive(Clone, Copy)]
pub(crate) struct RowScales<'a> {
    pub weights: &'a [f32; ROWS],
    /// `[tokens]`.
    pub x: &'a [f32],
}

impl RowProduct<'_> {
    /// Steps of four columns.
    #[inline(always)]
    pub fn count(&self) -> usize {
        let steps = self.columns / 4;
        assert!(steps <= self.steps.len() && self.x.len() >= 4 * (steps * self.tokens + 1));
        assert!(self.first.is_none_or(|first| first.len() == self.tokens));
        assert!(self.last.is_none_or(|last| last.x.len() == self.tokens));
        assert!(self.outliers.len() == self.tokens && self.zeros.len() == self.tokens);
        steps
    }

    /// Whether any token has outliers or a zero point.
    #[inline(always)]
    pub fn has_outliers(&self) -> bool {
        let has_any = |(outliers, zero): (&Outliers, &i32)| outliers[0].value | zero != 0;
        self.outliers.iter().zip(self.zeros).any(has_any)
    }

    /// Adds the products of outliers and zero points to the strip, in the first panel to what it starts from, with codes as
    /// [`fill`] writes them.
    #[inline(always)]
    pub fn add_outliers<const FLIPPED: bool, const COLUMNS: usize>(&self, strip: &mut [f32]) {
        let steps = self.count();
        let codes = bytemuck::cast_slice::<Step, u8>(self.steps).as_chunks::<COLUMNS>().0;
        for token in 0..self.tokens {
            let strip = &mut strip[token * self.stride..][..ROWS];
            let mut sums = [self.start(token).filter(|_| FLIPPED).unwrap_or(0); ROWS];
            if self.first.is_none() {
                sums = std::array::from_fn(|row| strip[row].to_bits().cast_signed());
            }
            let zero = self.zeros[token];
            if zero != 0 {
                for (sum, row_sum) in sums.iter_mut().zip(self.row_sums) {
                    *sum = sum.wrapping_add(row_sum.wrapping_mul(zero));
                }
            }
            for InPanel { step, bits, value } in self.outliers(token, steps) {
                let (of_rows, part) = (4 * step / COLUMNS * ROWS, 4 * step % COLUMNS);
                for (sum, codes) in sums.iter_mut().zip(&codes[of_rows..of_rows + ROWS]) {
                    let codes = u32_at(codes, part);
                    let code = match FLIPPED {
                        true => (codes >> bits & 0xff).cast_signed(),
                        false => (codes << (24 - bits)).cast_signed() >> 24,
                    };
                    *sum = sum.wrapping_add(code * value);
                }
            }
            for (strip, sum) in strip.iter_mut().zip(sums) {
                *strip = f32::from_bits(sum.cast_unsigned());
            }
        }
    }

    /// Prefetches what follows.
    #[inline(always)]
    pub fn fetch(&self) {
        self.ahead.fetch();
        let lines = (self.columns * self.tokens).div_ceil(64);
        prefetch_lines(self.x.as_ptr().wrapping_add(self.x_ahead), lines);
    }

    /// A token's outliers in the panel.
    #[inline(always)]
    fn outliers(&self, token: usize, steps: usize) -> impl Iterator<Item = InPanel> {
        let col = self.col;
        let outliers = self.outliers[token].iter().take_while(|outlier| outlier.value != 0);
        outliers.filter_map(move |outlier| {
            let at = (outlier.column as usize).wrapping_sub(col);
            let bits = 8 * (at % 4) as u32;
            (at / 4 < steps).then_some(InPanel { step: at / 4, bits, value: outlier.value })
        })
    }

    /// -128 · sum of the activations of a token, in the first panel.
    #[inline(always)]
    fn start(&self, token: usize) -> Option<i32> {
        self.first.map(|first| first[token])
    }
}

/// Writes the columns of 16 rows, a multiple of 32 of each, into a panel's rows `first..first + 16`; rows beyond the
/// last are not written.
pub(crate) type RowFill =
    unsafe fn(rows: PanelRows<'_>, count: usize, first: usize, panel: &mut PanelMut<'_>);

/// Computes a product: integers or, in the last panel, floats replace the strip.
pub(crate) type RowTile = unsafe fn(product: RowProduct<'_>, strip: &mut [f32]);

/// The kernels of a level. Unsafe to call on a CPU without the level.
#[derive(Clone, Copy)]
pub(crate) struct RowTiles {
    /// Maximum tokens per tile, at most 8.
    pub tokens_max: usize,
    pub fill: RowFill,
    pub tile: RowTile,
    /// Whether products of queries and keys were measured to be faster than those of floats.
    pub beats_floats: bool,
}

/// Plain Rust, whose loops over rows a compiler may vectorize.
pub(super) const PORTABLE: RowTiles =
    RowTiles { tokens_max: 4, fill: fill::<true, 4>, tile, beats_floats: false };

/// Writes rows, with `COLUMNS` columns of a row beside each other, 4 or 8, and perhaps with flipped sign bits.
pub(super) fn fill<const FLIPPED: bool, const COLUMNS: usize>(
    rows: PanelRows<'_>,
    count: usize,
    first: usize,
    panel: &mut PanelMut<'_>,
) {
    let flip = if FLIPPED { 0x80 } else { 0 };
    let places = bytemuck::cast_slice_mut::<Step, u8>(panel.steps).as_chunks_mut::<COLUMNS>().0;
    for row in 0..count {
        let places = places[first + row..].iter_mut().step_by(ROWS);
        for (to, columns) in places.zip(rows.row(row).as_chunks::<COLUMNS>().0) {
            *to = columns.map(|code| code ^ flip);
        }
    }
}

fn tile(mut product: RowProduct<'_>, strip: &mut [f32]) {
    let steps = product.count();
    product.fetch();
    check_strip(strip, product.stride, product.tokens, ROWS);
    if product.has_outliers() {
        product.add_outliers::<true, 4>(strip);
        // The sums have begun.
        product.first = None;
    }
    let x = product.x.as_chunks::<4>().0;
    for token in 0..product.tokens {
        let strip = &mut strip[token * product.stride..][..ROWS];
        let mut dots = [0i32; ROWS];
        for (dot, strip) in dots.iter_mut().zip(&*strip) {
            *dot = product.start(token).unwrap_or(strip.to_bits().cast_signed());
        }
        for step in 0..steps {
            let x = x[step * product.tokens + token].map(|x| i32::from(x.cast_signed()));
            for (dot, w) in dots.iter_mut().zip(&product.steps[step].0) {
                let sum = (0..4).map(|k| i32::from(w[k]) * x[k]).sum::<i32>();
                *dot = dot.wrapping_add(sum);
            }
        }
        match product.last {
            None => {
                for (strip, dot) in strip.iter_mut().zip(dots) {
                    *strip = f32::from_bits(dot.cast_unsigned());
                }
            }
            Some(RowScales { weights, x }) => {
                for ((strip, dot), d) in strip.iter_mut().zip(dots).zip(weights) {
                    *strip = dot as f32 * (d * x[token]);
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{AVX2, AVX512, AVXVNNI};

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! AVX2, AVX-VNNI and AVX-512 tiles. Addresses are raw pointers: bounds checks between the loads cost a third.

    use std::arch::x86_64::*;

    use super::{PanelMut, RowProduct, RowScales, RowTiles};
    use crate::panel::{ROWS, avx2, avx512};
    use crate::stream::{PanelRows, prefetch_lines};
    use crate::tile::{by_tokens, check_strip, in_order};
    use crate::x86::whole_lines;

    pub(in super::super) const AVX512: RowTiles =
        RowTiles { tokens_max: 8, fill: fill_512, tile: tile_512, beats_floats: true };
    pub(in super::super) const AVXVNNI: RowTiles =
        RowTiles { tokens_max: 6, fill: fill_256::<true>, tile: tile_vnni, beats_floats: true };
    pub(in super::super) const AVX2: RowTiles =
        RowTiles { tokens_max: 8, fill: fill_256::<false>, tile: tile_256, beats_floats: true };

    #[target_feature(enable = "avx512f,avx512bw")]
    fn fill_512(rows: PanelRows<'_>, count: usize, first: usize, panel: &mut PanelMut<'_>) {
        let flip = _mm512_set1_epi8(i8::MIN);
        let steps = rows.len / 4;
        for col in (0..rows.len).step_by(64) {
            let mut values = [_mm512_setzero_si512(); 16];
            for (row, value) in values.iter_mut().enumerate().take(count) {
                let bytes = &rows.row(row)[col..];
                let bytes = match bytes.first_chunk::<64>() {
                    Some(bytes) => avx512::load(bytes),
                    None => {
                        let half = bytes.first_chunk::<32>().expect("a multiple of 32 columns");
                        _mm512_zextsi256_si512(avx2::load(half))
                    }
                };
                *value = _mm512_xor_si512(bytes, flip);
            }
            let to = panel.steps[col / 4..steps].iter_mut();
            for (to, value) in to.zip(avx512::transpose(values)) {
                let to = &mut to.0[first..first + 16];
                // SAFETY: 16 rows of four bytes are written, as many as the slice has.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) };
            }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn tile_512(product: RowProduct<'_>, strip: &mut [f32]) {
        whole_lines();
        by_tokens!(product.tokens, N up to AVX512.tokens_max => tokens_512::<N>(product, strip))
    }

    /// Two vectors of 16 rows x `N` tokens.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    fn tokens_512<const N: usize>(mut product: RowProduct<'_>, strip: &mut [f32]) {
        let steps = product.count();
        product.ahead.fetch();
        assert!(product.tokens == N);
        check_strip(strip, product.stride, N, ROWS);
        if product.has_outliers() {
            outliers_512(&product, strip);
            product.first = None;
        }
        let strip = strip.as_mut_ptr();
        let mut dots = [[_mm512_setzero_si512(); 2]; N];
        for (t, dots) in dots.iter_mut().enumerate() {
            *dots = match product.start(t) {
                Some(start) => [_mm512_set1_epi32(start); 2],
                // SAFETY: the strip was checked.
                None => unsafe {
                    let from = strip.add(t * product.stride).cast::<__m512i>();
                    [_mm512_loadu_si512(from), _mm512_loadu_si512(from.add(1))]
                },
            };
        }
        let (mut w, mut x) = (product.steps.as_ptr().cast::<__m512i>(), product.x.as_ptr());
        for _ in 0..steps {
            (w, x) = in_order(w, x);
            // Spread over the steps, as the loads would wait for the lines of many at once.
            prefetch_lines(x.wrapping_add(product.x_ahead), 1);
            // SAFETY: `count` has checked that the panel and the activations have as many.
            unsafe {
                let quants = [_mm512_load_si512(w), _mm512_load_si512(w.add(1))];
                for (t, dots) in dots.iter_mut().enumerate() {
                    let x = _mm512_set1_epi32(x.cast::<i32>().add(t).read_unaligned());
                    dots[0] = _mm512_dpbusd_epi32(dots[0], quants[0], x);
                    dots[1] = _mm512_dpbusd_epi32(dots[1], quants[1], x);
                }
            }
            (w, x) = (w.wrapping_add(2), x.wrapping_add(4 * N));
        }
        for (t, dots) in dots.iter().enumerate() {
            for (half, dots) in dots.iter().enumerate() {
                let value = match product.last {
                    None => _mm512_castsi512_ps(*dots),
                    Some(RowScales { weights, x }) => {
                        let d = avx512::load_floats(&weights[16 * half..]);
                        let scale = _mm512_mul_ps(d, _mm512_set1_ps(x[t]));
                        _mm512_mul_ps(_mm512_cvtepi32_ps(*dots), scale)
                    }
                };
                // SAFETY: the strip was checked.
                unsafe { _mm512_storeu_ps(strip.add(t * product.stride + 16 * half), value) };
            }
        }
    }

    /// Rarely called, and not to be inlined: the sums of the callers stay in registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    #[inline(never)]
    fn outliers_512(product: &RowProduct<'_>, strip: &mut [f32]) {
        product.add_outliers::<true, 4>(strip);
    }

    /// [`outliers_512`] for codes with flipped sign bits or signed ones.
    #[target_feature(enable = "avx2")]
    #[inline(never)]
    fn outliers_256<const FLIPPED: bool>(product: &RowProduct<'_>, strip: &mut [f32]) {
        product.add_outliers::<FLIPPED, 4>(strip);
    }

    /// Flips sign bits for unsigned operands, or sums the magnitudes of negative weights.
    #[target_feature(enable = "avx2")]
    fn fill_256<const FLIP: bool>(
        rows: PanelRows<'_>,
        count: usize,
        first: usize,
        panel: &mut PanelMut<'_>,
    ) {
        let flip = _mm256_set1_epi8(if FLIP { i8::MIN } else { 0 });
        let zero = _mm256_setzero_si256();
        for begin in (0..count).step_by(8) {
            let mut sums = [zero; 8];
            for col in (0..rows.len).step_by(32) {
                let mut values = [_mm256_setzero_si256(); 8];
                for (row, value) in values.iter_mut().enumerate().take(count - begin) {
                    let bytes = rows.row(begin + row)[col..].first_chunk::<32>();
                    let bytes = avx2::load(bytes.expect("a multiple of 32 columns"));
                    *value = _mm256_xor_si256(bytes, flip);
                    if !FLIP {
                        let sizes = _mm256_abs_epi8(_mm256_min_epi8(bytes, zero));
                        sums[row] = _mm256_add_epi64(sums[row], _mm256_sad_epu8(sizes, zero));
                    }
                }
                let to = panel.steps[col / 4..].iter_mut();
                for (to, value) in to.zip(avx2::transpose(values)) {
                    let to = &mut to.0[first + begin..first + begin + 8];
                    // SAFETY: eight rows of four bytes are written, as many as the slice has.
                    unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), value) };
                }
            }
            if !FLIP {
                let to = &mut panel.negative[first + begin..first + begin + 8];
                for (to, sums) in to.iter_mut().zip(sums) {
                    *to = sum_256(sums);
                }
            }
        }
    }

    /// The sum of four lanes of 64 bits, which fits 32.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn sum_256(sums: __m256i) -> i32 {
        let two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        _mm_cvtsi128_si32(_mm_add_epi64(two, _mm_unpackhi_epi64(two, two)))
    }

    #[target_feature(enable = "avx2,fma,avxvnni")]
    fn tile_vnni(mut product: RowProduct<'_>, strip: &mut [f32]) {
        whole_lines();
        product.fetch();
        check_strip(strip, product.stride, product.tokens, ROWS);
        if product.has_outliers() {
            outliers_256::<true>(&product, strip);
            product.first = None;
        }
        for first in [0, 16] {
            let strip = &mut strip[first..];
            by_tokens!(product.tokens, N up to AVXVNNI.tokens_max => tokens_vnni::<N>(product, first, strip))
        }
    }

    /// Rows `first..first + 16` x `N` tokens with VNNI.
    #[target_feature(enable = "avx2,fma,avxvnni")]
    fn tokens_vnni<const N: usize>(product: RowProduct<'_>, first: usize, strip: &mut [f32]) {
        let steps = product.count();
        assert!(product.tokens == N && first <= 16);
        check_strip(strip, product.stride, N, 16);
        let mut dots =
            begin_256::<N, 2>(&product, strip, std::array::from_fn(|t| product.start(t)));
        let (mut w, mut x) = (product.steps.as_ptr().cast::<u8>(), product.x.as_ptr());
        w = w.wrapping_add(4 * first);
        for _ in 0..steps {
            (w, x) = in_order(w, x);
            // SAFETY: `count` has checked that the panel and the activations have as many.
            unsafe {
                let from = w.cast::<__m256i>();
                let quants = [_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1))];
                for (t, dots) in dots.iter_mut().enumerate() {
                    let x = _mm256_set1_epi32(x.cast::<i32>().add(t).read_unaligned());
                    dots[0] = _mm256_dpbusd_avx_epi32(dots[0], quants[0], x);
                    dots[1] = _mm256_dpbusd_avx_epi32(dots[1], quants[1], x);
                }
            }
            (w, x) = (w.wrapping_add(4 * ROWS), x.wrapping_add(4 * N));
        }
        end_256(&product, first, dots, strip);
    }

    #[target_feature(enable = "avx2,fma")]
    fn tile_256(mut product: RowProduct<'_>, strip: &mut [f32]) {
        whole_lines();
        product.fetch();
        check_strip(strip, product.stride, product.tokens, ROWS);
        if product.has_outliers() {
            outliers_256::<false>(&product, strip);
            product.first = None;
        }
        for first in [0, 8, 16, 24] {
            let strip = &mut strip[first..];
            by_tokens!(product.tokens, N up to AVX2.tokens_max => tokens_256::<N>(product, first, strip))
        }
    }

    /// Rows `first..first + 8` x `N` tokens without VNNI: magnitudes times activations that carry their signs, in pairs
    /// that fit 16 bits, widened every step.
    ///
    /// VPSIGNB competes with the multiplications, which are the bound, for their ports. So activations of negative
    /// weights are complemented, `-1 - x` for `-x`, and what that takes away, the sum of these weights' magnitudes, is
    /// added once per panel. No pair is beyond 2 · 128 · -128, which fits.
    #[target_feature(enable = "avx2,fma")]
    fn tokens_256<const N: usize>(product: RowProduct<'_>, first: usize, strip: &mut [f32]) {
        let steps = product.count();
        assert!(product.tokens == N && first <= 24);
        check_strip(strip, product.stride, N, 8);
        let (ones, zero) = (_mm256_set1_epi16(1), _mm256_setzero_si256());
        let starts = std::array::from_fn(|t| product.start(t).map(|_| 0));
        let mut dots = begin_256::<N, 1>(&product, strip, starts);
        let (mut w, mut x) = (product.steps.as_ptr().cast::<u8>(), product.x.as_ptr());
        w = w.wrapping_add(4 * first);
        for _ in 0..steps {
            (w, x) = in_order(w, x);
            // SAFETY: `count` has checked that the panel and the activations have as many.
            unsafe {
                let quants = _mm256_loadu_si256(w.cast::<__m256i>());
                let (sizes, signs) = (_mm256_abs_epi8(quants), _mm256_cmpgt_epi8(zero, quants));
                for (t, [dots]) in dots.iter_mut().enumerate() {
                    let x = _mm256_set1_epi32(x.cast::<i32>().add(t).read_unaligned());
                    let pairs = _mm256_maddubs_epi16(sizes, _mm256_xor_si256(x, signs));
                    *dots = _mm256_add_epi32(*dots, _mm256_madd_epi16(pairs, ones));
                }
            }
            (w, x) = (w.wrapping_add(4 * ROWS), x.wrapping_add(4 * N));
        }
        let negative = &product.negative[first..first + 8];
        // SAFETY: eight integers are read.
        let negative = unsafe { _mm256_loadu_si256(negative.as_ptr().cast()) };
        for [dots] in &mut dots {
            *dots = _mm256_add_epi32(*dots, negative);
        }
        end_256(&product, first, dots, strip);
    }

    /// The sums before a panel of `V` vectors of rows: those of `starts` in the first one.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn begin_256<const N: usize, const V: usize>(
        product: &RowProduct<'_>,
        strip: &[f32],
        starts: [Option<i32>; N],
    ) -> [[__m256i; V]; N] {
        std::array::from_fn(|t| match starts[t] {
            Some(start) => [_mm256_set1_epi32(start); V],
            None => std::array::from_fn(|v| {
                _mm256_castps_si256(avx2::load_floats(&strip[t * product.stride + 8 * v..]))
            }),
        })
    }

    /// Stores the sums after a panel of rows from `first` on, in the last one as results.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn end_256<const N: usize, const V: usize>(
        product: &RowProduct<'_>,
        first: usize,
        dots: [[__m256i; V]; N],
        strip: &mut [f32],
    ) {
        for (t, dots) in dots.iter().enumerate() {
            for (half, dots) in dots.iter().enumerate() {
                let value = match product.last {
                    None => _mm256_castsi256_ps(*dots),
                    Some(RowScales { weights, x }) => {
                        let d = avx2::load_floats(&weights[first + 8 * half..]);
                        let scale = _mm256_mul_ps(d, _mm256_set1_ps(x[t]));
                        _mm256_mul_ps(_mm256_cvtepi32_ps(*dots), scale)
                    }
                };
                avx2::store_floats(&mut strip[t * product.stride + 8 * half..], value);
            }
        }
    }
}
