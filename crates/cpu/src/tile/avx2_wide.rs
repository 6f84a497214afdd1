//! The integer tile at 256 bits for codes of a full byte: 16 rows x up to 6 tokens in 16 bits.
//!
//! Products of full bytes overflow the 16-bit sums of `tile/avx2.rs`; magnitudes and signs apart take three
//! multiplications for 32 products on the two ports that have them. VPMADDWD takes two if weights and activations are
//! 16-bit integers, and its 32-bit sums of all 256 columns fit if neither is larger than 12 bits allow. That leaves
//! room to multiply the weights by their scales beforehand, so no step has any.
//!
//! A code times its scale is at most [`WEIGHT_MAX`]: integer scales give exact products, and float scales become
//! twelve-bit shares of the largest of eight, which moves a weight by at most 1/32 of a step of that scale. Activations
//! have one scale per 256 and are at most [`PEAK_12`]. The price is a panel of twice the size: it has 16 rows.
#![expect(
    clippy::needless_range_loop,
    reason = "t counts tokens and half halves of the rows, in several arrays at once"
)]

use std::arch::x86_64::*;

use crate::activations::SPAN;
use crate::panel::avx2::{
    SHARE_MAX, columns, load, load_floats, pairs, put_pairs, put_products, put_shares,
    store_floats, transpose,
};
use crate::panel::{Adjust, Panel, Span};
use crate::quantizer::PEAK_12;
use crate::tile::{Interleave, Product, Tile, by_tokens, check_strip, in_order};
use crate::x86::whole_lines;

/// Maximum tokens per tile: twelve sums, two vectors of weights, an activation and a product fill the registers.
pub(super) const TOKENS: usize = 6;

/// The largest weight: a code of eight bits times [`SHARE_MAX`] over 128.
const WEIGHT_MAX: i64 = SHARE_MAX as i64;

const _: () = assert!(SPAN as i64 * WEIGHT_MAX * (PEAK_12 as i64) < 1 << 31);

/// The interleaving of spans whose scales, of groups of `GROUP`, are integers.
pub(super) const fn of_integers<const GROUP: usize>() -> Interleave {
    interleave::<GROUP, true>
}

/// The interleaving of spans with float scales.
pub(super) const OF_FLOATS: Interleave = interleave::<32, false>;

/// The tile.
pub(super) const TILE: Tile = any_tile;

/// See [`crate::tile::Interleave`]; `first` is 0.
#[target_feature(enable = "avx2")]
fn interleave<const GROUP: usize, const INTEGERS: bool>(
    spans: &[Span; 16],
    first: usize,
    adjust: Adjust,
    panel: &mut Panel,
) {
    let bias = _mm256_set1_epi8(adjust.quants.cast_signed());
    for (half, spans) in spans.as_chunks::<8>().0.iter().enumerate() {
        let first = first + 8 * half;
        if INTEGERS {
            for (row, span) in spans.iter().enumerate() {
                panel.units[0][first + row] = span.unit;
            }
            for part in 0..SPAN / GROUP / 8 {
                let scales = columns(spans.each_ref().map(|span| (&span.scales, 1.0)), part);
                for (line, scales) in panel.scales[8 * part..].iter_mut().zip(scales) {
                    put_pairs(line, first, pairs(scales, scales, 1.0));
                }
            }
        } else {
            let scales = columns(spans.each_ref().map(|span| (&span.scales, span.unit)), 0);
            put_shares(scales.map(|scales| _mm256_castsi256_ps(scales)), first, panel);
        }
        for part in 0..8 {
            let mut rows = [_mm256_setzero_si256(); 8];
            for (row, span) in rows.iter_mut().zip(spans) {
                *row = _mm256_add_epi8(load(&span.quants.as_chunks().0[part]), bias);
            }
            for (step, codes) in transpose(rows).into_iter().enumerate() {
                put_products::<GROUP, INTEGERS>(panel, 8 * part + step, first, codes);
            }
        }
    }
}

/// See [`Tile`].
#[target_feature(enable = "avx2,fma")]
fn any_tile(product: Product<'_>, strip: &mut [f32]) {
    whole_lines();
    by_tokens!(product.block.tokens, N up to TOKENS => tile::<N>(product, strip))
}

/// 16 rows; `N` = tokens of the block.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn tile<const N: usize>(product: Product<'_>, strip: &mut [f32]) {
    let Product { panel, block, stride, .. } = product;
    check_strip(strip, stride, N, 16);
    assert!(block.tokens == N && block.cols <= SPAN && block.cols.is_multiple_of(4));
    let parts = block.parts();
    let mut dots = [[_mm256_setzero_si256(); 2]; N];
    let mut at = (panel.quants.as_ptr().cast::<u8>(), parts.quants);
    let mut ahead = product.ahead.split(4);
    for step in 0..block.cols / 4 {
        if step % 16 == 0 {
            ahead.part().fetch();
        }
        for _ in 0..2 {
            let (weights, x) = in_order(at.0, at.1);
            // SAFETY: the panel holds two times 16 pairs for each of 64 steps, the block two times N.
            unsafe {
                let w = weights.cast::<__m256i>();
                let w = [_mm256_loadu_si256(w), _mm256_loadu_si256(w.add(1))];
                for t in 0..N {
                    let x = _mm256_set1_epi32(*x.add(t));
                    for half in 0..2 {
                        let products = _mm256_madd_epi16(w[half], x);
                        dots[t][half] = _mm256_add_epi32(dots[t][half], products);
                    }
                }
            }
            at = (weights.wrapping_add(64), x.wrapping_add(N));
        }
    }
    for (t, dots) in dots.iter().enumerate() {
        let scale = _mm256_set1_ps(block.scales()[t]);
        for half in 0..2 {
            let value = _mm256_mul_ps(
                _mm256_cvtepi32_ps(dots[half]),
                load_floats(&panel.units[0][8 * half..]),
            );
            let to = &mut strip[t * stride + 8 * half..];
            store_floats(to, _mm256_fmadd_ps(value, scale, load_floats(to)));
        }
    }
}
