//! Helpers of x86-64 kernels: bit fields, sixteen rows side by side, loads that the compiler must keep, stack
//! alignment.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::stream::PanelRows;

pub(crate) mod avx2;
pub(crate) mod avx512;

/// Aligns the stack frame of the function it is inlined into to a cache line.
///
/// Callers align the stack to 16 bytes only. Whether spilled vectors cross cache lines then depends on the frame
/// sizes of all callers; when they do, AVX2 tiles took a fifth more time on Zen 3.
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

/// Hides a reference from the optimizer so that the values stay in memory and take no registers between uses.
#[inline(always)]
pub(crate) fn in_memory<T>(values: &mut T) -> &mut T {
    let mut at: *mut T = values;
    // SAFETY: no instruction at all: the pointer comes out as the reference that went in.
    unsafe {
        asm!("/* {0} */", inout(reg) at, options(nostack, preserves_flags));
        &mut *at
    }
}

/// Makes VPDPWSSD, which adds products of pairs of 16-bit integers, as a single instruction: the compiler would split it
/// into multiply and add, which shortens a chain that is not critical and costs a third of a kernel's arithmetic.
macro_rules! dpwssd {
    ($(#[$doc:meta])* $name:ident, $vector:ident in $class:ident, $features:literal, $instruction:literal) => {
        $(#[$doc])*
        #[inline]
        #[target_feature(enable = $features)]
        pub(crate) fn $name(mut sums: $vector, a: $vector, b: $vector) -> $vector {
            // SAFETY: the instruction reads and writes the named registers only, and is enabled above.
            unsafe {
                asm!(
                    concat!($instruction, " {sums}, {a}, {b}"),
                    sums = inout($class) sums,
                    a = in($class) a,
                    b = in($class) b,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            sums
        }
    };
}

dpwssd! {
    /// VPDPWSSD of 512 bits.
    dpwssd_512, __m512i in zmm_reg, "avx512f,avx512vnni", "vpdpwssd"
}
dpwssd! {
    /// VPDPWSSD of 256 bits with AVX-512.
    dpwssd_256, __m256i in ymm_reg, "avx512f,avx512vl,avx512vnni", "vpdpwssd"
}
dpwssd! {
    /// VPDPWSSD of 256 bits with AVX-VNNI.
    dpwssd_vex, __m256i in ymm_reg, "avx2,avxvnni", "{{vex}} vpdpwssd"
}

/// A zero bit for [`pick`].
pub(crate) const NONE: u32 = 8;

/// The matrix for VGF2P8AFFINEQB that makes bit b of each byte from bit `sources[b]`, or zero for [`NONE`].
pub(crate) const fn pick(sources: [u32; 8]) -> i64 {
    // Bit i of a result is the parity of the operand's bits selected by row 7 - i of the matrix.
    let (mut matrix, mut bit) = (0, 0);
    while bit < 8 {
        if sources[bit] != NONE {
            matrix |= 1i64 << sources[bit] << (8 * (7 - bit));
        }
        bit += 1;
    }
    matrix
}

/// The matrix that extracts `bits` bits of each byte, from bit `from` on, counted from the lowest.
pub(crate) const fn field(from: u32, bits: u32) -> i64 {
    let (mut sources, mut bit) = ([NONE; 8], 0);
    while bit < bits {
        sources[bit as usize] = from + bit;
        bit += 1;
    }
    pick(sources)
}

/// Applies a matrix to each 64 bits: shift and mask in one instruction.
#[inline]
#[target_feature(enable = "avx512f,gfni")]
pub(crate) fn fields(bytes: __m512i, matrices: [i64; 8]) -> __m512i {
    let [a, b, c, d, e, f, g, h] = matrices;
    _mm512_gf2p8affine_epi64_epi8::<0>(bytes, _mm512_set_epi64(h, g, f, e, d, c, b, a))
}

/// Sixteen equidistant rows of `BYTES` bytes each.
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
    /// If there are fewer or their ranges are not `BYTES` long.
    #[inline(always)]
    pub fn new(rows: PanelRows<'a>) -> Self {
        assert_eq!(rows.len, BYTES, "bytes of a row");
        let all = &rows.weights[rows.start..][..15 * rows.row_bytes + BYTES];
        Sixteen { first: all.as_ptr(), stride: rows.row_bytes, rows: PhantomData }
    }

    /// `len` bytes of every row, from `start` on.
    ///
    /// # Panics
    /// If a row is too short.
    #[inline(always)]
    pub fn from(self, start: usize, len: usize) -> PartOfSixteen<'a> {
        assert!(start + len <= BYTES, "bytes of a row");
        let first = self.first.wrapping_add(start);
        PartOfSixteen { first, stride: self.stride, len, rows: PhantomData }
    }

    /// [`PartOfSixteen::dwords`] of the whole rows.
    ///
    /// # Panics
    /// If a row is too short.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn dwords(&self, at: usize) -> [__m512i; 4] {
        self.from(0, BYTES).dwords(at)
    }
}

/// Some bytes of each of [`Sixteen`] rows.
#[derive(Clone, Copy)]
pub(crate) struct PartOfSixteen<'a> {
    first: *const u8,
    stride: usize,
    len: usize,
    rows: PhantomData<&'a [u8]>,
}

impl PartOfSixteen<'_> {
    /// Bytes `at..at + 16` of every row, transposed: four bytes of row r in lane r of each vector.
    ///
    /// Four rows are combined in a vector as they are loaded, which saves half of the shuffles of a transposition in
    /// registers.
    ///
    /// # Panics
    /// If a row is too short.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn dwords(&self, at: usize) -> [__m512i; 4] {
        assert!(at + 16 <= self.len);
        let load = |row: usize| {
            // SAFETY: 16 bytes of one of 16 rows of `len` bytes, as `Sixteen::from` checked.
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
    /// The first eight and the last eight.
    #[inline(always)]
    pub fn halves(self) -> [Eight<'a, BYTES>; 2] {
        [0, 8].map(|row| Eight { all: self, row })
    }
}

impl<const BYTES: usize> Eight<'_, BYTES> {
    /// [`Sixteen::dwords`] at 256 bits.
    ///
    /// # Panics
    /// If a row is too short.
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

/// A VPSHUFB table: bytes `i` and `j` of each 32-bit lane go to the positions `at`; the other two become zero.
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

/// A VPSHUFB table: each of a lane's four bytes twice, zero-extended.
pub(crate) const TWICE: [[u8; 32]; 4] = [
    two_of_four([0, 0], [0, 2]),
    two_of_four([1, 1], [0, 2]),
    two_of_four([2, 2], [0, 2]),
    two_of_four([3, 3], [0, 2]),
];

/// [`TWICE`] into the upper half of 16 bits.
pub(crate) const TWICE_HIGH: [[u8; 32]; 4] = [
    two_of_four([0, 0], [1, 3]),
    two_of_four([1, 1], [1, 3]),
    two_of_four([2, 2], [1, 3]),
    two_of_four([3, 3], [1, 3]),
];

/// A VPSHUFB table: bytes 0 and 1 of each lane, or 2 and 3, zero-extended.
pub(crate) const BOTH: [[u8; 32]; 2] = [two_of_four([0, 1], [0, 2]), two_of_four([2, 3], [0, 2])];

/// [`BOTH`] into the upper half of 16 bits.
pub(crate) const BOTH_HIGH: [[u8; 32]; 2] =
    [two_of_four([0, 1], [1, 3]), two_of_four([2, 3], [1, 3])];

/// Converts the f16 in the low half of each 32-bit lane.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(crate) fn f16_low_256(bits: __m256i) -> __m256 {
    let bits = _mm256_and_si256(bits, _mm256_set1_epi32(0xffff));
    let bits = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(bits, bits));
    _mm256_cvtph_ps(_mm256_castsi256_si128(bits))
}

/// Converts the f16 in the low half of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn f16_low(bits: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits))
}

/// Hides a value from the optimizer, which would otherwise replace operations by others.
#[inline]
#[target_feature(enable = "avx")]
pub(crate) fn unknown(mut values: __m256) -> __m256 {
    // SAFETY: there are no instructions.
    unsafe {
        asm!("/* {0} */", inout(ymm_reg) values, options(pure, nomem, nostack, preserves_flags))
    };
    values
}

/// Hides a reference from the optimizer so that bytes are loaded separately. Otherwise, if a wider load covers them
/// or a wider store precedes, the compiler would extract them from that register by shuffles, which kernels are short
/// of.
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

/// Hides a number from the optimizer.
#[inline(always)]
pub(crate) fn hidden(mut number: usize) -> usize {
    // SAFETY: there are no instructions.
    unsafe {
        asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags));
    }
    number
}
