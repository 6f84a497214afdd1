//! Unpacks Q4_K.

use bilayer_quant::k_scales::scales_mins;
use bilayer_quant::q4_k::Block;

use super::{Form, Span, Unpack, f16_values};
#[cfg(target_arch = "x86_64")]
use crate::panel::{Fill, amx::FillTiles};

pub(crate) struct Q4K;

impl Unpack for Q4K {
    const FORM: Form = Form::Affine32K;
    const BIAS: u8 = 0;
    const HIGHEST: u8 = 15;
    #[cfg(target_arch = "x86_64")]
    const FILL_AVX2: Option<Fill> = Some(x86::fill_avx2);
    #[cfg(target_arch = "x86_64")]
    const FILL: Option<Fill> = Some(x86::fill);
    #[cfg(target_arch = "x86_64")]
    const TILES: Option<FillTiles> = Some(x86::fill_tiles);

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        nibbles(&block.quants, &mut span.quants);
        lines([block.d, block.dmin], &block.scales, span);
    }
}

/// The four low bits of each weight, as stored in Q4_K and Q5_K.
#[inline(always)]
pub(crate) fn nibbles(packed: &[u8; 128], quants: &mut [u8; 256]) {
    let parts = quants.as_chunks_mut::<64>().0;
    for (part, packed) in parts.iter_mut().zip(packed.as_chunks::<32>().0) {
        for l in 0..32 {
            part[l] = packed[l] & 15;
            part[32 + l] = packed[l] >> 4;
        }
    }
}

/// The scales and minimums of Q4_K and Q5_K; `bits` are those of d and dmin.
#[inline(always)]
pub(crate) fn lines(bits: [u16; 2], packed: &[u8; 12], span: &mut Span) {
    let [d, dmin] = f16_values(bits);
    (span.unit, span.min_unit) = (d, -dmin);
    let (scales, mins) = scales_mins(packed);
    for part in 0..8 {
        span.scales[part] = f32::from(scales[part]);
        span.mins[part] = f32::from(mins[part]);
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! Sixteen rows at once for AVX-512, eight for AVX2.

    use std::arch::x86_64::*;
    use std::mem::offset_of;

    use bilayer_quant::q4_k::Block;

    use crate::dot::x86::{load_128, load_256, scales_mins_128};
    use crate::panel::amx::{self, TileBytes};
    use crate::panel::avx512::{put, store_floats};
    use crate::panel::{Panel, avx2};
    use crate::stream::{Ahead, PanelRows};
    use crate::x86::{Sixteen, apart, f16_low, field};

    /// See [`crate::panel::Fill`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
    pub fn fill(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel) {
        let rows = Sixteen::<{ size_of::<Block>() }>::new(rows);
        let high = _mm512_set1_epi64(field(4, 4));
        let mut ahead = ahead.split(8);
        for piece in 0..8 {
            ahead.part().fetch();
            let quants = rows.dwords(offset_of!(Block, quants) + 16 * piece);
            for (i, bytes) in quants.into_iter().enumerate() {
                let step = piece / 2 * 16 + piece % 2 * 4 + i;
                let low = _mm512_and_si512(bytes, _mm512_set1_epi8(15));
                put(panel, step, first, low);
                let high = _mm512_gf2p8affine_epi64_epi8::<0>(bytes, high);
                put(panel, step + 8, first, high);
            }
        }
        lines(rows.dwords(0), first, panel);
    }

    /// The scales and minimums of Q4_K and Q5_K, whose blocks start with these 16 bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
    pub fn lines([d, a, b, c]: [__m512i; 4], first: usize, panel: &mut Panel) {
        let dmin = f16_low(_mm512_srli_epi32::<16>(d));
        let dmin = _mm512_xor_ps(dmin, _mm512_set1_ps(-0.0));
        let d = f16_low(d);
        // `k_scales`: six bits of the first four; of the last four, four bits separately and two above the first
        // four.
        let six = |bytes| _mm512_and_si512(bytes, _mm512_set1_epi8(0x3f));
        let four = |bytes| _mm512_and_si512(bytes, _mm512_set1_epi8(0x0f));
        let top = |bytes| _mm512_and_si512(_mm512_srli_epi32::<2>(bytes), _mm512_set1_epi8(0x30));
        let scales = [six(a), _mm512_or_si512(four(c), top(a))];
        let mins = [six(b), _mm512_or_si512(four(_mm512_srli_epi32::<4>(c)), top(b))];
        for group in 0..8 {
            let number = |bytes: [__m512i; 2]| {
                let count = _mm_cvtsi32_si128(group as i32 % 4 * 8);
                let byte = _mm512_srl_epi32(bytes[group / 4], count);
                _mm512_cvtepi32_ps(_mm512_and_si512(byte, _mm512_set1_epi32(0xff)))
            };
            store_floats(&mut panel.scales[group][first..], _mm512_mul_ps(d, number(scales)));
            store_floats(&mut panel.mins[group][first..], _mm512_mul_ps(dmin, number(mins)));
        }
    }

    /// See [`crate::panel::Fill`].
    #[target_feature(enable = "avx2,f16c")]
    pub fn fill_avx2(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel) {
        let nibble = _mm256_set1_epi8(15);
        avx2::fill::<{ size_of::<Block>() }>(rows, ahead, first, |rows, first| {
            for piece in 0..8 {
                let quants = rows.dwords(offset_of!(Block, quants) + 16 * piece);
                for (i, bytes) in quants.into_iter().enumerate() {
                    let step = piece / 2 * 16 + piece % 2 * 4 + i;
                    avx2::put(panel, step, first, _mm256_and_si256(bytes, nibble));
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
                    avx2::put(panel, step + 8, first, high);
                }
            }
            lines_avx2(rows.dwords(0), first, panel);
        });
    }

    /// [`lines`] for eight rows with AVX2.
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    pub fn lines_avx2([d, a, b, c]: [__m256i; 4], first: usize, panel: &mut Panel) {
        let six = |bytes| _mm256_and_si256(bytes, _mm256_set1_epi8(0x3f));
        let four = |bytes| _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f));
        let top = |bytes| _mm256_and_si256(_mm256_srli_epi32::<2>(bytes), _mm256_set1_epi8(0x30));
        let scales = [six(a), _mm256_or_si256(four(c), top(a))];
        let mins = [six(b), _mm256_or_si256(four(_mm256_srli_epi32::<4>(c)), top(b))];
        avx2::put_affine_lines(scales, mins, d, first, panel);
    }

    /// See [`FillTiles`]. A group has at most sixteen distinct weights, so both groups of 32 bytes are looked up in a
    /// register: only 32 of 64 weights are rounded.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,f16c")]
    pub fn fill_tiles(rows: PanelRows<'_>, count: usize, tiles: &mut [TileBytes; 8]) {
        let steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let steps = _mm512_cvtepi32_ps(steps);
        for row in 0..count {
            let block: &[u8; size_of::<Block>()] = rows.row(row).as_array().expect("a block");
            let lines = Lines::of(block);
            let chunks = block[offset_of!(Block, quants)..].as_chunks::<32>().0;
            for (pair, bytes) in chunks.iter().enumerate() {
                let (low, high) = (lines.at(2 * pair, steps), lines.at(2 * pair + 1, steps));
                let table = amx::bits(_mm512_cvtne2ps_pbh(high, low));
                let bytes = _mm512_cvtepu8_epi16(load_256(bytes, 0));
                let low = _mm512_and_si512(bytes, _mm512_set1_epi16(15));
                let high = _mm512_or_si512(_mm512_srli_epi16::<4>(bytes), _mm512_set1_epi16(16));
                let (low, high) =
                    (_mm512_permutexvar_epi16(low, table), _mm512_permutexvar_epi16(high, table));
                amx::put_bits(low, row, &mut tiles[2 * pair]);
                amx::put_bits(high, row, &mut tiles[2 * pair + 1]);
            }
        }
    }

    /// A row's scales and minimums, within one cache line: a store that crosses lines does not forward.
    #[repr(align(64))]
    struct Lines {
        /// Eight scales, then eight minimums.
        numbers: [f32; 16],
    }

    impl Lines {
        /// Reads a block's.
        #[inline]
        #[target_feature(enable = "avx512f,avx512dq,avx2,f16c")]
        fn of(block: &[u8]) -> Lines {
            let head = load_128(block, 0);
            let packed = _mm512_cvtepu8_epi32(scales_mins_128(head));
            let units = _mm512_castps128_ps512(_mm_cvtph_ps(head));
            let order = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
            let units = _mm512_permutexvar_ps(order, units);
            // Minimums are subtracted.
            let units = _mm512_mask_xor_ps(units, 0xff00, units, _mm512_set1_ps(-0.0));
            let mut numbers = [0.0; 16];
            let product = _mm512_mul_ps(units, _mm512_cvtepi32_ps(packed));
            store_floats(&mut numbers, product);
            Lines { numbers }
        }

        /// The values of a group's quants.
        #[inline]
        #[target_feature(enable = "avx512f")]
        fn at(&self, group: usize, quants: __m512) -> __m512 {
            let scale = _mm512_set1_ps(*apart(&self.numbers[group]));
            let min = _mm512_set1_ps(*apart(&self.numbers[8 + group]));
            _mm512_fmadd_ps(quants, scale, min)
        }
    }
}
