//! Unpacks IQ4_XS: the codebook's values, biased by 128.

use bilayer_quant::iq4_xs::{Block, scales};

use super::iq4_nl::VALUES;
use super::{Form, Span, Unpack, f16_values, halves};
#[cfg(target_arch = "x86_64")]
use crate::panel::Fill;

pub(crate) struct Iq4Xs;

impl Unpack for Iq4Xs {
    const FORM: Form = Form::Signed32K;
    const BIAS: u8 = 128;
    const HIGHEST: u8 = 241;
    const CODEBOOK: Option<[u8; 16]> = Some(VALUES);
    #[cfg(target_arch = "x86_64")]
    const FILL_AVX2: Option<Fill> = Some(x86::fill_avx2);

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        [span.unit] = f16_values([block.d]);
        for (part, scale) in scales(&block).into_iter().enumerate() {
            span.scales[part] = f32::from(scale);
        }
        let parts = span.quants.as_chunks_mut::<32>().0;
        for (part, packed) in parts.iter_mut().zip(block.quants.as_chunks::<16>().0) {
            halves(packed, part);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Eight rows at once for AVX2.

    use std::arch::x86_64::*;
    use std::mem::offset_of;

    use bilayer_quant::iq4_xs::Block;

    use crate::panel::Panel;
    use crate::panel::avx2::{self, put_pairs};
    use crate::panel::iq4_nl::VALUES;
    use crate::stream::{Ahead, PanelRows};
    use crate::x86::f16_low_256;

    /// See [`crate::panel::Fill`].
    #[target_feature(enable = "avx2,f16c")]
    pub fn fill_avx2(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel) {
        let nibble = _mm256_set1_epi8(15);
        // SAFETY: 16 bytes are read from a reference to 16.
        let values = unsafe { _mm_loadu_si128(VALUES.as_ptr().cast()) };
        // The bias of 128 becomes two's complement.
        let values = _mm256_broadcastsi128_si256(_mm_xor_si128(values, _mm_set1_epi8(-128)));
        avx2::fill::<{ size_of::<Block>() }>(rows, ahead, first, |rows, first| {
            for part in 0..8 {
                let at = offset_of!(Block, quants) + 16 * part;
                for (i, bytes) in rows.dwords(at).into_iter().enumerate() {
                    let step = 8 * part + i;
                    let low = _mm256_and_si256(bytes, nibble);
                    avx2::put(panel, step, first, _mm256_shuffle_epi8(values, low));
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
                    avx2::put(panel, step + 4, first, _mm256_shuffle_epi8(values, high));
                }
            }
            let [head, low, ..] = rows.dwords(0);
            avx2::store_floats(&mut panel.units[0][first..], f16_low_256(head));
            avx2::store_floats(&mut panel.units[1][first..], _mm256_setzero_ps());
            let high = _mm256_srli_epi32::<16>(head);
            for (group, line) in panel.scales[..8].iter_mut().enumerate() {
                let count = |bits: usize| _mm_cvtsi32_si128(bits as i32);
                let low = _mm256_srl_epi32(low, count(4 * group));
                let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
                let high = _mm256_srl_epi32(high, count(2 * group));
                let high = _mm256_and_si256(high, _mm256_set1_epi32(3));
                let scale = _mm256_or_si256(low, _mm256_slli_epi32::<4>(high));
                let pair = _mm256_or_si256(scale, _mm256_slli_epi32::<16>(scale));
                put_pairs(line, first, _mm256_sub_epi16(pair, _mm256_set1_epi16(32)));
            }
        });
    }
}
