//! Unpacks Q6_K: quants are biased by 32, as stored.

use bilayer_quant::q6_k::Block;

use super::{Form, Span, Unpack, f16_values};
#[cfg(target_arch = "x86_64")]
use crate::panel::{Fill, amx::FillTiles};

pub(crate) struct Q6K;

impl Unpack for Q6K {
    const FORM: Form = Form::Signed16K;
    const BIAS: u8 = 32;
    const HIGHEST: u8 = 63;
    #[cfg(target_arch = "x86_64")]
    const FILL_AVX2: Option<Fill> = Some(x86::fill_avx2);
    #[cfg(target_arch = "x86_64")]
    const FILL: Option<Fill> = Some(x86::fill);
    #[cfg(target_arch = "x86_64")]
    const TILES: Option<FillTiles> = Some(x86::fill_tiles);

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        for (half, quants) in span.quants.as_chunks_mut::<128>().0.iter_mut().enumerate() {
            let low = &block.low.as_chunks::<64>().0[half];
            let high = &block.high.as_chunks::<32>().0[half];
            for l in 0..32 {
                quants[l] = low[l] & 15 | (high[l] & 3) << 4;
                quants[32 + l] = low[32 + l] & 15 | (high[l] >> 2 & 3) << 4;
                quants[64 + l] = low[l] >> 4 | (high[l] >> 4 & 3) << 4;
                quants[96 + l] = low[32 + l] >> 4 | high[l] >> 6 << 4;
            }
        }
        [span.unit] = f16_values([block.d]);
        for (out, scale) in span.scales.iter_mut().zip(&block.scales) {
            *out = f32::from(*scale);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Sixteen rows at once for AVX-512, eight for AVX2.

    use std::arch::x86_64::*;
    use std::mem::offset_of;

    use bilayer_quant::q6_k::Block;

    use crate::dot::x86::{load_128, quants_512, scale_128};
    use crate::panel::Panel;
    use crate::panel::amx::{self, TileBytes};
    use crate::panel::avx2;
    use crate::panel::avx512::{put, store_floats};
    use crate::stream::{Ahead, PanelRows};
    use crate::x86::{NONE, Sixteen, apart, f16_low, f16_low_256, field, pick};

    /// See [`crate::panel::Fill`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
    pub fn fill(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel) {
        /// A six-bit quant is stored with a bias of 32 and needed with 128. Adding 96 copies its sixth bit to the
        /// seventh and eighth and inverts the sixth and the seventh.
        const TURNED: i32 = 0x60;
        /// The upper bits of the four parts of a half.
        const UPPER: [i64; 4] = {
            let (mut matrices, mut part) = ([0; 4], 0);
            while part < 4 {
                let (fifth, sixth) = (2 * part as u32, 2 * part as u32 + 1);
                matrices[part] = pick([NONE, NONE, NONE, NONE, fifth, sixth, sixth, sixth]);
                part += 1;
            }
            matrices
        };
        let rows = Sixteen::<{ size_of::<Block>() }>::new(rows);
        let nibble = _mm512_set1_epi8(15);
        let second = _mm512_set1_epi64(field(4, 4));
        let mut ahead = ahead.split(8);
        for (h, side) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let highs = rows.dwords(offset_of!(Block, high) + 32 * h + 16 * side);
            for part in 0..2 {
                ahead.part().fetch();
                let lows = rows.dwords(offset_of!(Block, low) + 64 * h + 32 * part + 16 * side);
                for (i, (low, high)) in lows.into_iter().zip(highs).enumerate() {
                    let upper = |part: usize| {
                        let matrix = _mm512_set1_epi64(UPPER[part]);
                        _mm512_gf2p8affine_epi64_epi8::<TURNED>(high, matrix)
                    };
                    let step = 32 * h + 8 * part + 4 * side + i;
                    // low & 15 | upper
                    let quants = _mm512_ternarylogic_epi64::<0xea>(low, nibble, upper(part));
                    put(panel, step, first, quants);
                    let low = _mm512_gf2p8affine_epi64_epi8::<0>(low, second);
                    put(panel, step + 16, first, _mm512_or_si512(low, upper(2 + part)));
                }
            }
        }
        // The last two bytes are the block's scale.
        let [.., last] = rows.dwords(size_of::<Block>() - 16);
        let d = f16_low(_mm512_srli_epi32::<16>(last));
        for (four, scales) in rows.dwords(offset_of!(Block, scales)).into_iter().enumerate() {
            for i in 0..4 {
                let count = |bits: usize| _mm_cvtsi32_si128(bits as i32);
                let byte = _mm512_sll_epi32(scales, count(24 - 8 * i));
                let scale = _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(byte));
                store_floats(&mut panel.scales[4 * four + i][first..], _mm512_mul_ps(d, scale));
            }
        }
    }

    /// See [`crate::panel::Fill`].
    #[target_feature(enable = "avx2,f16c")]
    pub fn fill_avx2(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel) {
        let nibble = _mm256_set1_epi8(15);
        let upper = _mm256_set1_epi8(0x30);
        avx2::fill::<{ size_of::<Block>() }>(rows, ahead, first, |rows, first| {
            for (h, side) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let at = offset_of!(Block, high) + 32 * h + 16 * side;
                let highs = rows.dwords(at);
                for part in 0..2 {
                    let at = offset_of!(Block, low) + 64 * h + 32 * part + 16 * side;
                    let lows = rows.dwords(at);
                    for (i, (low, high)) in lows.into_iter().zip(highs).enumerate() {
                        let step = 32 * h + 8 * part + 4 * side + i;
                        // Two bits per part, the lowest for the first.
                        let [first_bits, third_bits] = match part {
                            0 => [_mm256_slli_epi16::<4>(high), high],
                            _ => [_mm256_slli_epi16::<2>(high), _mm256_srli_epi16::<2>(high)],
                        };
                        let join = |low, bits| {
                            let low = _mm256_and_si256(low, nibble);
                            _mm256_or_si256(low, _mm256_and_si256(bits, upper))
                        };
                        avx2::put(panel, step, first, join(low, first_bits));
                        let low = _mm256_srli_epi16::<4>(low);
                        avx2::put(panel, step + 16, first, join(low, third_bits));
                    }
                }
            }
            // The last two bytes are the block's scale.
            let [.., last] = rows.dwords(size_of::<Block>() - 16);
            let d = f16_low_256(_mm256_srli_epi32::<16>(last));
            let scales = rows.dwords(offset_of!(Block, scales));
            avx2::put_signed_lines::<5>(scales, d, first, panel);
        });
    }

    /// See [`FillTiles`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,gfni,avx2,f16c")]
    pub fn fill_tiles(rows: PanelRows<'_>, count: usize, tiles: &mut [TileBytes; 8]) {
        /// A row's quants and scales, within cache lines: a store that crosses lines does not forward.
        #[repr(align(64))]
        struct Lines {
            quants: [[u8; 16]; 16],
            scales: [f32; 16],
        }
        let mut lines = Lines { quants: [[0; 16]; 16], scales: [0.0; 16] };
        for row in 0..count {
            let block: &[u8; size_of::<Block>()] = rows.row(row).as_array().expect("a block");
            for (half, to) in lines.quants.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let to = to.as_flattened_mut().as_chunks_mut::<64>().0;
                for (to, quants) in to.iter_mut().zip(quants_512(block, half)) {
                    let quants = _mm512_sub_epi8(quants, _mm512_set1_epi8(32));
                    // SAFETY: 64 bytes are written to a reference to 64.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), quants) };
                }
            }
            let packed = load_128(block, offset_of!(Block, scales));
            let d = _mm512_broadcastss_ps(scale_128(block));
            let product = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(packed)));
            store_floats(&mut lines.scales, product);
            for (step, tile) in tiles.iter_mut().enumerate() {
                let mut halves = [_mm512_setzero_ps(); 2];
                for (half, values) in halves.iter_mut().enumerate() {
                    let group = 2 * step + half;
                    let quants = _mm512_cvtepi8_epi32(load_128(&lines.quants[group], 0));
                    let scale = _mm512_set1_ps(*apart(&lines.scales[group]));
                    *values = _mm512_mul_ps(_mm512_cvtepi32_ps(quants), scale);
                }
                let [low, high] = halves;
                amx::put_bits(amx::bits(_mm512_cvtne2ps_pbh(high, low)), row, tile);
            }
        }
    }
}
