//! Unpacks Q2_K.

use bilayer_quant::q2_k::Block;

use super::{Form, Span, Unpack, f16_values};
#[cfg(target_arch = "x86_64")]
use crate::panel::Fill;

pub(crate) struct Q2K;

impl Unpack for Q2K {
    const FORM: Form = Form::Affine16K;
    const BIAS: u8 = 0;
    const HIGHEST: u8 = 3;
    #[cfg(target_arch = "x86_64")]
    const FILL_AVX2: Option<Fill> = Some(x86::fill_avx2);

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        pairs(&block.quants, &mut span.quants);
        let [d, dmin] = f16_values([block.d, block.dmin]);
        (span.unit, span.min_unit) = (d, -dmin);
        for (out, packed) in span.scales.iter_mut().zip(&block.scales) {
            *out = f32::from(packed & 15);
        }
        for (out, packed) in span.mins.iter_mut().zip(&block.scales) {
            *out = f32::from(packed >> 4);
        }
    }
}

/// The two low bits of each weight, as stored in Q2_K and Q3_K.
#[inline(always)]
pub(crate) fn pairs(packed: &[u8; 64], quants: &mut [u8; 256]) {
    let parts = quants.as_chunks_mut::<128>().0;
    for (part, packed) in parts.iter_mut().zip(packed.as_chunks::<32>().0) {
        for l in 0..32 {
            part[l] = packed[l] & 3;
            part[32 + l] = packed[l] >> 2 & 3;
            part[64 + l] = packed[l] >> 4 & 3;
            part[96 + l] = packed[l] >> 6;
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod x86 {
    //! Eight rows at once for AVX2.

    use std::arch::x86_64::*;
    use std::mem::offset_of;

    use bilayer_quant::q2_k::Block;

    use crate::panel::{Panel, avx2};
    use crate::stream::{Ahead, PanelRows};

    /// See [`crate::panel::Fill`].
    #[target_feature(enable = "avx2,f16c")]
    pub fn fill_avx2(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel) {
        avx2::fill::<{ size_of::<Block>() }>(rows, ahead, first, |rows, first| {
            for (part, side) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let at = offset_of!(Block, quants) + 32 * part + 16 * side;
                for (i, bytes) in rows.dwords(at).into_iter().enumerate() {
                    for (field, quants) in fields(bytes).into_iter().enumerate() {
                        let step = 32 * part + 8 * field + 4 * side + i;
                        avx2::put(panel, step, first, quants);
                    }
                }
            }
            // The last four bytes are d and dmin.
            let [.., last] = rows.dwords(size_of::<Block>() - 16);
            let nibble = _mm256_set1_epi8(15);
            let both = rows.dwords(offset_of!(Block, scales));
            let scales = both.map(|both| _mm256_and_si256(both, nibble));
            let mins = both.map(|both| _mm256_and_si256(_mm256_srli_epi16::<4>(both), nibble));
            avx2::put_affine_lines(scales, mins, last, first, panel);
        });
    }

    /// The four weights of each byte, as extracted by [`super::pairs`].
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn fields(bytes: __m256i) -> [__m256i; 4] {
        let three = _mm256_set1_epi8(3);
        [0, 2, 4, 6]
            .map(|shift| _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift)), three))
    }
}
