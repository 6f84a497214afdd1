//! What several AVX-512 kernels share: fields of bits, and sixteen rows side by side.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use crate::panel::Rows;
use crate::tile::{Panel, ROWS};

/// For [`pick`]: a bit that is zero.
pub(crate) const NONE: u32 = 8;

/// The matrix that makes bit b of each byte of bit `sources[b]`, or [`NONE`], for VGF2P8AFFINEQB.
pub(crate) const fn pick(sources: [u32; 8]) -> i64 {
    // Bit i of a result is the parity of the operand's bits that row 7 - i of the matrix names.
    let (mut matrix, mut bit) = (0, 0);
    while bit < 8 {
        if sources[bit] != NONE {
            matrix |= 1i64 << sources[bit] << (8 * (7 - bit));
        }
        bit += 1;
    }
    matrix
}

/// The matrix of `bits` bits of each byte, from bit `from` on, counted from the lowest.
pub(crate) const fn field(from: u32, bits: u32) -> i64 {
    let (mut sources, mut bit) = ([NONE; 8], 0);
    while bit < bits {
        sources[bit as usize] = from + bit;
        bit += 1;
    }
    pick(sources)
}

/// Each 64 bits through the matrix there: shift and mask in one instruction.
#[inline]
#[target_feature(enable = "avx512f,gfni")]
pub(crate) fn fields(bytes: __m512i, matrices: [i64; 8]) -> __m512i {
    let [a, b, c, d, e, f, g, h] = matrices;
    _mm512_gf2p8affine_epi64_epi8::<0>(bytes, _mm512_set_epi64(h, g, f, e, d, c, b, a))
}

/// Sixteen rows of `BYTES` bytes each, at equal distances.
#[derive(Clone, Copy)]
pub(crate) struct Sixteen<'a, const BYTES: usize> {
    first: *const u8,
    stride: usize,
    rows: PhantomData<&'a [u8]>,
}

impl<'a, const BYTES: usize> Sixteen<'a, BYTES> {
    /// The first sixteen of some rows.
    ///
    /// # Panics
    /// If there are fewer or their wanted bytes are not `BYTES`.
    #[inline(always)]
    pub fn new(rows: Rows<'a>) -> Self {
        assert_eq!(rows.len, BYTES, "bytes of a row");
        let all = &rows.weights[rows.start..][..15 * rows.row_bytes + BYTES];
        Sixteen { first: all.as_ptr(), stride: rows.row_bytes, rows: PhantomData }
    }

    /// Bytes `at..at + 16` of every row, transposed: four bytes of row r in lane r of each vector.
    ///
    /// Four rows meet in a vector on their way from memory, so that half of the shuffles that a transposition of
    /// registers takes is left.
    ///
    /// # Panics
    /// If a row ends before.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn dwords(&self, at: usize) -> [__m512i; 4] {
        assert!(at + 16 <= BYTES);
        let load = |row: usize| {
            // SAFETY: 16 bytes of one of 16 rows of `BYTES`, all of which `new` saw in one slice.
            unsafe { _mm_loadu_si128(self.first.add(row * self.stride + at).cast()) }
        };
        let [a, b, c, d] = [0, 1, 2, 3].map(|row| {
            let four = _mm512_castsi128_si512(load(row));
            let four = _mm512_inserti32x4::<1>(four, load(4 + row));
            let four = _mm512_inserti32x4::<2>(four, load(8 + row));
            _mm512_inserti32x4::<3>(four, load(12 + row))
        });
        let low = [_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d)];
        let high = [_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d)];
        [
            _mm512_unpacklo_epi64(low[0], low[1]),
            _mm512_unpackhi_epi64(low[0], low[1]),
            _mm512_unpacklo_epi64(high[0], high[1]),
            _mm512_unpackhi_epi64(high[0], high[1]),
        ]
    }
}

/// Four columns of 16 rows: those of step `step` in half `half` of the panel's rows.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn put(panel: &mut Panel, step: usize, half: usize, quants: __m512i) {
    let to = &mut panel.quants[step].as_chunks_mut::<16>().0[half];
    // SAFETY: 64 bytes are written to a reference to 16 times four.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), quants) }
}

/// A number for each of 16 rows, in half `half` of all.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn put_scale(to: &mut [f32; ROWS], half: usize, values: __m512) {
    let to = &mut to.as_chunks_mut::<16>().0[half];
    // SAFETY: 16 numbers are written to a reference to 16.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), values) }
}

/// The same number, of which the compiler is not told that it was just stored: it is broadcast by a load. Otherwise it is
/// kept in its vector and brought to all lanes by two shuffles, which kernels are short of.
#[inline(always)]
pub(crate) fn apart(number: &f32) -> &f32 {
    let mut at: *const f32 = number;
    // SAFETY: there are no instructions; the pointer comes out as the reference that went in.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) at, options(nostack, preserves_flags));
        &*at
    }
}
