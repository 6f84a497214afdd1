//! Unpacks Q3_K: quants are biased by 4, as stored.

use bilayer_quant::q3_k::{Block, scales};

use super::q2_k::pairs;
use super::{Form, Span, Unpack, f16_values};
#[cfg(target_arch = "x86_64")]
use crate::panel::Fill;

pub(crate) struct Q3K;

impl Unpack for Q3K {
    const FORM: Form = Form::Signed16K;
    const BIAS: u8 = 4;
    const HIGHEST: u8 = 7;
    #[cfg(target_arch = "x86_64")]
    const FILL_AVX2: Option<Fill> = Some(x86::fill_avx2);

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        pairs(&block.quants, &mut span.quants);
        for (part, quants) in span.quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (quant, high) in quants.iter_mut().zip(&block.high) {
                *quant |= (high >> part & 1) << 2;
            }
        }
        [span.unit] = f16_values([block.d]);
        for (out, scale) in span.scales.iter_mut().zip(&scales(&block.scales)) {
            *out = f32::from(*scale);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Eight rows at once for AVX2.

    use std::arch::x86_64::*;
    use std::mem::offset_of;

    use bilayer_quant::q3_k::Block;

    use crate::panel::q2_k::x86::fields;
    use crate::panel::{Panel, avx2};
    use crate::stream::{Ahead, PanelRows};
    use crate::x86::f16_low_256;

    /// See [`crate::panel::Fill`].
    #[target_feature(enable = "avx2,f16c")]
    pub fn fill_avx2(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel) {
        avx2::fill::<{ size_of::<Block>() }>(rows, ahead, first, |rows, first| {
            for (part, side) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                // Bit p of a byte is the third bit of a weight in 32-column group p; this part uses bits from the
                // third on.
                let highs = rows.dwords(offset_of!(Block, high) + 16 * side);
                let highs = highs.map(|high| match part {
                    0 => _mm256_slli_epi16::<2>(high),
                    _ => _mm256_srli_epi16::<2>(high),
                });
                let at = offset_of!(Block, quants) + 32 * part + 16 * side;
                let lows = rows.dwords(at);
                for (i, (low, high)) in lows.into_iter().zip(highs).enumerate() {
                    for (field, low) in fields(low).into_iter().enumerate() {
                        let step = 32 * part + 8 * field + 4 * side + i;
                        let high = _mm256_srl_epi16(high, _mm_cvtsi32_si128(field as i32));
                        let high = _mm256_and_si256(high, _mm256_set1_epi8(4));
                        avx2::put(panel, step, first, _mm256_or_si256(low, high));
                    }
                }
            }
            // The last two bytes are the block's scale, preceded by twelve bytes of group scales.
            let [.., last] = rows.dwords(size_of::<Block>() - 16);
            let d = f16_low_256(_mm256_srli_epi32::<16>(last));
            let [_, a, b, c] = rows.dwords(offset_of!(Block, scales) - 4);
            let six = |low, high| {
                let low = _mm256_and_si256(low, _mm256_set1_epi8(0x0f));
                let high = _mm256_and_si256(high, _mm256_set1_epi8(0x30));
                _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32))
            };
            let scales = [
                six(a, _mm256_slli_epi16::<4>(c)),
                six(b, _mm256_slli_epi16::<2>(c)),
                six(_mm256_srli_epi16::<4>(a), c),
                six(_mm256_srli_epi16::<4>(b), _mm256_srli_epi16::<2>(c)),
            ];
            avx2::put_signed_lines::<2>(scales, d, first, panel);
        });
    }
}
