//! Unpacks Q5_K.

use bilayer_quant::q5_k::Block;

use super::q4_k::{lines, nibbles};
use super::{Form, Span, Unpack};
#[cfg(target_arch = "x86_64")]
use crate::panel::Fill;

pub(crate) struct Q5K;

impl Unpack for Q5K {
    const FORM: Form = Form::Affine32K;
    const BIAS: u8 = 0;
    const HIGHEST: u8 = 31;
    #[cfg(target_arch = "x86_64")]
    const FILL_AVX2: Option<Fill> = Some(x86::fill_avx2);
    #[cfg(target_arch = "x86_64")]
    const FILL: Option<Fill> = Some(x86::fill);

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        let block: Block = bytemuck::pod_read_unaligned(blocks);
        nibbles(&block.quants, &mut span.quants);
        for (part, quants) in span.quants.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let bit = 1 << part;
            for (quant, high) in quants.iter_mut().zip(&block.high) {
                *quant |= if high & bit != 0 { 16 } else { 0 };
            }
        }
        lines([block.d, block.dmin], &block.scales, span);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! Sixteen rows at once for AVX-512, eight for AVX2.

    use std::arch::x86_64::*;
    use std::mem::offset_of;

    use bilayer_quant::q5_k::Block;

    use crate::panel::avx512::put;
    use crate::panel::q4_k::x86::{lines, lines_avx2};
    use crate::panel::{Panel, avx2};
    use crate::stream::{Ahead, PanelRows};
    use crate::x86::{NONE, Sixteen, field, pick};

    /// See [`crate::panel::Fill`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,gfni")]
    pub fn fill(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel) {
        /// Bit p of a byte is the fifth bit of a weight of part p.
        const FIFTHS: [i64; 8] = {
            let (mut matrices, mut part) = ([0; 8], 0);
            while part < 8 {
                matrices[part] = pick([NONE, NONE, NONE, NONE, part as u32, NONE, NONE, NONE]);
                part += 1;
            }
            matrices
        };
        let rows = Sixteen::<{ size_of::<Block>() }>::new(rows);
        let nibble = _mm512_set1_epi8(15);
        let upper = _mm512_set1_epi64(field(4, 4));
        let mut ahead = ahead.split(8);
        for side in 0..2 {
            let highs = rows.dwords(offset_of!(Block, high) + 16 * side);
            for pair in 0..4 {
                ahead.part().fetch();
                let quants = rows.dwords(offset_of!(Block, quants) + 32 * pair + 16 * side);
                for (i, (bytes, high)) in quants.into_iter().zip(highs).enumerate() {
                    let fifths = |part: usize| {
                        _mm512_gf2p8affine_epi64_epi8::<0>(high, _mm512_set1_epi64(FIFTHS[part]))
                    };
                    let step = 16 * pair + 4 * side + i;
                    // bytes & 15 | fifths
                    let low = _mm512_ternarylogic_epi64::<0xea>(bytes, nibble, fifths(2 * pair));
                    put(panel, step, first, low);
                    let bytes = _mm512_gf2p8affine_epi64_epi8::<0>(bytes, upper);
                    put(panel, step + 8, first, _mm512_or_si512(bytes, fifths(2 * pair + 1)));
                }
            }
        }
        lines(rows.dwords(0), first, panel);
    }

    /// See [`crate::panel::Fill`].
    #[target_feature(enable = "avx2,f16c")]
    pub fn fill_avx2(rows: PanelRows<'_>, ahead: Ahead, first: usize, panel: &mut Panel) {
        let nibble = _mm256_set1_epi8(15);
        let fifth = _mm256_set1_epi8(16);
        avx2::fill::<{ size_of::<Block>() }>(rows, ahead, first, |rows, first| {
            for side in 0..2 {
                // Bit p of a byte is the fifth bit of a weight of part p; two parts are extracted at a time from the
                // low end.
                let mut highs = rows.dwords(offset_of!(Block, high) + 16 * side);
                for pair in 0..4 {
                    let at = offset_of!(Block, quants) + 32 * pair + 16 * side;
                    let quants = rows.dwords(at);
                    for (i, (bytes, high)) in quants.into_iter().zip(&mut highs).enumerate() {
                        let step = 16 * pair + 4 * side + i;
                        let low = _mm256_and_si256(bytes, nibble);
                        let bit = _mm256_and_si256(_mm256_slli_epi16::<4>(*high), fifth);
                        avx2::put(panel, step, first, _mm256_or_si256(low, bit));
                        let low = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble);
                        let bit = _mm256_and_si256(_mm256_slli_epi16::<3>(*high), fifth);
                        avx2::put(panel, step + 8, first, _mm256_or_si256(low, bit));
                        *high = _mm256_srli_epi16::<2>(*high);
                    }
                }
            }
            lines_avx2(rows.dwords(0), first, panel);
        });
    }
}
