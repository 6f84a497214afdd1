//! What several kernels share: fields of bits, sixteen rows side by side, loads that stay loads, memory in whole lines.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::panel::Rows;

/// Makes the function that it is inlined into begin its memory on the stack at a line of the cache.
///
/// Callers leave the stack at a multiple of 16 bytes. What the compiler keeps there while registers are short then lies
/// across two lines, or does not, as the sizes of all callers' memory will have it; where it does, tiles of AVX2 took a fifth
/// more time on Zen 3.
#[inline(always)]
pub(crate) fn whole_lines() {
    #[repr(align(64))]
    struct Line {
        _memory: u8,
    }
    let mut line = MaybeUninit::<Line>::uninit();
    // SAFETY: there are no instructions.
    unsafe {
        asm!("/* {0} */", in(reg) line.as_mut_ptr(), options(nostack, preserves_flags));
    }
}

/// The same values, which the compiler keeps where they are: between their uses they take no registers.
#[inline(always)]
pub(crate) fn in_memory<T>(values: &mut T) -> &mut T {
    let mut at: *mut T = values;
    // SAFETY: no instruction at all: the pointer comes out as the reference that went in.
    unsafe {
        asm!("/* {0} */", inout(reg) at, options(nostack, preserves_flags));
        &mut *at
    }
}

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

/// Eight of [`Sixteen`] rows.
#[derive(Clone, Copy)]
pub(crate) struct Eight<'a, const BYTES: usize> {
    all: Sixteen<'a, BYTES>,
    /// The first of the eight: 0 or 8.
    row: usize,
}

impl<'a, const BYTES: usize> Sixteen<'a, BYTES> {
    /// The first eight and the others.
    #[inline(always)]
    pub fn halves(self) -> [Eight<'a, BYTES>; 2] {
        [0, 8].map(|row| Eight { all: self, row })
    }
}

impl<const BYTES: usize> Eight<'_, BYTES> {
    /// As [`Sixteen::dwords`], at 256 bits.
    ///
    /// # Panics
    /// If a row ends before.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn dwords(&self, at: usize) -> [__m256i; 4] {
        assert!(at + 16 <= BYTES);
        let Eight { all, row: first } = *self;
        let load = |row: usize| {
            // SAFETY: 16 bytes of one of 16 rows of `BYTES`, all of which `new` saw in one slice.
            unsafe { _mm_loadu_si128(all.first.add((first + row) * all.stride + at).cast()) }
        };
        let [a, b, c, d] = [0, 1, 2, 3].map(|row| {
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(load(row)), load(4 + row))
        });
        let low = [_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d)];
        let high = [_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d)];
        [
            _mm256_unpacklo_epi64(low[0], low[1]),
            _mm256_unpackhi_epi64(low[0], low[1]),
            _mm256_unpacklo_epi64(high[0], high[1]),
            _mm256_unpackhi_epi64(high[0], high[1]),
        ]
    }
}

/// For VPSHUFB: bytes `i` and `j` of each lane of 32 bits to the bytes of the places `at`; the other two are zero.
const fn two_of_four(bytes: [u8; 2], at: [usize; 2]) -> [u8; 32] {
    let (mut order, mut lane) = ([0x80; 32], 0);
    while lane < 8 {
        let start = lane % 4 * 4;
        order[4 * lane + at[0]] = start as u8 + bytes[0];
        order[4 * lane + at[1]] = start as u8 + bytes[1];
        lane += 1;
    }
    order
}

/// For VPSHUFB: each of a lane's four bytes twice, zero-extended.
pub(crate) const TWICE: [[u8; 32]; 4] = [
    two_of_four([0, 0], [0, 2]),
    two_of_four([1, 1], [0, 2]),
    two_of_four([2, 2], [0, 2]),
    two_of_four([3, 3], [0, 2]),
];

/// The same into the upper half of 16 bits.
pub(crate) const TWICE_HIGH: [[u8; 32]; 4] = [
    two_of_four([0, 0], [1, 3]),
    two_of_four([1, 1], [1, 3]),
    two_of_four([2, 2], [1, 3]),
    two_of_four([3, 3], [1, 3]),
];

/// For VPSHUFB: bytes 0 and 1 of each lane, or 2 and 3, zero-extended.
pub(crate) const BOTH: [[u8; 32]; 2] = [two_of_four([0, 1], [0, 2]), two_of_four([2, 3], [0, 2])];

/// The same into the upper half of 16 bits.
pub(crate) const BOTH_HIGH: [[u8; 32]; 2] =
    [two_of_four([0, 1], [1, 3]), two_of_four([2, 3], [1, 3])];

/// The f16 in the low half of each lane of 32 bits.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn f16_low_256(bits: __m256i) -> __m256 {
    let bits = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff));
    let bits = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(bits, bits));
    _mm256_cvtph_ps(_mm256_castsi256_si128(bits))
}

/// The f16 in the low half of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn f16_low(bits: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits))
}

/// The same numbers, about which the compiler knows nothing: what it would do by some instructions in another way it leaves
/// as it is written.
#[inline]
#[target_feature(enable = "avx")]
pub(crate) fn unknown(mut values: __m256) -> __m256 {
    // SAFETY: there are no instructions.
    unsafe {
        asm!("/* {0} */", inout(ymm_reg) values, options(pure, nomem, nostack, preserves_flags))
    };
    values
}

/// The same bytes, of which the compiler is not told that others were loaded or stored there: these are loaded by
/// themselves. Where a wider load covers them, or a wider store just went there, it would keep that one's register and
/// make these of shuffles, which kernels are short of.
#[inline(always)]
#[expect(clippy::pointers_in_nomem_asm_block, reason = "the block has no instruction to read it")]
pub(crate) fn apart<T>(bytes: &T) -> &T {
    let mut at: *const T = bytes;
    // SAFETY: no instruction at all: the pointer comes out as the reference that went in.
    unsafe {
        asm!("/* {0} */", inout(reg) at, options(pure, nomem, nostack, preserves_flags));
        &*at
    }
}
