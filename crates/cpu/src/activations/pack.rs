//! Packs activations as integers for the products of GEMM.

use super::interleave::{Piece, TOKENS_MAX, interleave};
use super::quantize::{quantize_32, quantize_256};
use super::{Block, Format, SPAN};
use crate::lanes::{Lanes, Transform};
use crate::level::{Level, transform};
#[cfg(target_arch = "x86_64")]
use crate::quantizer::{PEAK_12, Scale};

/// Packs a chunk `[tokens, cols]` f32 in consecutive blocks of at most 256 columns, quantized per 32 or 256 of them,
/// or in one block with one scale per token.
pub(crate) fn pack(level: Level, format: Format, x: &[f32], cols: usize, out: &mut [u8]) {
    match format {
        Format::Q8Row => super::pack_rows(level, x, cols, super::Zero::Any, out),
        #[cfg(target_arch = "x86_64")]
        Format::Q12x256 => transform(level, Pack12 { x, cols }, out),
        _ => transform(level, Pack { format, x, cols }, out),
    }
}

struct Pack<'a> {
    format: Format,
    x: &'a [f32],
    cols: usize,
}

impl Transform for Pack<'_> {
    type Out = [u8];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, out: &mut [u8]) {
        pack_here(l, self.format, self.x, self.cols, out);
    }
}

/// Packs a chunk in twelve bits.
#[cfg(target_arch = "x86_64")]
struct Pack12<'a> {
    x: &'a [f32],
    cols: usize,
}

#[cfg(target_arch = "x86_64")]
impl Transform for Pack12<'_> {
    type Out = [u8];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L, out: &mut [u8]) {
        let (tokens, mut rest) = (self.x.len() / self.cols, out);
        for col in (0..self.cols).step_by(SPAN) {
            let count = (self.cols - col).min(SPAN);
            let (packed, scales);
            (packed, rest) = rest.split_at_mut(2 * count * tokens);
            (scales, rest) = rest.split_at_mut(4 * tokens);
            let packed = bytemuck::cast_slice_mut::<u8, [i16; 2]>(packed);
            let scales = bytemuck::cast_slice_mut::<u8, f32>(scales);
            for (token, out) in scales.iter_mut().enumerate() {
                let x = &self.x[token * self.cols + col..][..count];
                let scale = Scale::of(l.peak(x), PEAK_12);
                *out = scale.value;
                let steps = packed[token..].chunks_mut(2 * tokens);
                for (pairs, x) in steps.zip(x.as_chunks::<4>().0) {
                    let [a, b, c, d] = x.map(|x| scale.quant(x) as i16);
                    (pairs[0], pairs[tokens]) = ([a, c], [b, d]);
                }
            }
        }
    }
}

#[inline(always)]
fn pack_here<L: Lanes>(l: L, format: Format, x: &[f32], cols: usize, out: &mut [u8]) {
    let tokens = x.len() / cols;
    let mut quants: Piece = [[[0; 4]; SPAN / 4]; TOKENS_MAX];
    let mut start = 0;
    for col in (0..cols).step_by(SPAN) {
        let count = (cols - col).min(SPAN);
        let len = tokens * Block::bytes_per_token(format, count);
        let (packed, rest) = out[start..start + len].split_at_mut(count * tokens);
        for (token, quants) in quants[..tokens].iter_mut().enumerate() {
            let x = &x[token * cols + col..][..count];
            let place = Place { tokens, token, quants: quants.as_flattened_mut() };
            match format {
                Format::Q8x256 => place.pack_256(l, x, rest),
                #[cfg(target_arch = "x86_64")]
                Format::Q8x256Pairs => place.pack_256_pairs(l, x, rest),
                _ => place.pack_32(l, x, rest),
            }
        }
        interleave(&quants, tokens, packed.as_chunks_mut().0);
        start += len;
    }
}

/// One token's position in a block.
struct Place<'a> {
    tokens: usize,
    token: usize,
    quants: &'a mut [i8],
}

impl Place<'_> {
    /// `out` receives the sums `[groups, tokens]` and the scales `[groups, tokens]`.
    #[inline(always)]
    fn pack_32<L: Lanes>(self, l: L, x: &[f32], out: &mut [u8]) {
        let (sums, scales) = out.split_at_mut(out.len() / 2);
        let sums = bytemuck::cast_slice_mut::<u8, i32>(sums);
        let scales = bytemuck::cast_slice_mut::<u8, f32>(scales);
        quantize_32(l, x, self.quants, |block, scale, sum| {
            let at = block * self.tokens + self.token;
            (sums[at], scales[at]) = ((-128i32).wrapping_mul(sum), scale);
        });
    }

    /// Stores the quants of 256 activations; returns their scale and the sum of every 16.
    #[inline(always)]
    fn quantize_256<L: Lanes>(self, l: L, x: &[f32]) -> (f32, [i16; 16]) {
        let x = x.as_array().expect("rows of 256-blocks are whole blocks");
        let quants = self.quants.as_mut_array().expect("a block");
        let scale = quantize_256(l, x, quants);
        (scale, sums_of_16(quants))
    }

    /// `out` receives the sums `[16, tokens]`, the float sums `[8, tokens]` and the scales `[tokens]`.
    #[inline(always)]
    fn pack_256<L: Lanes>(self, l: L, x: &[f32], out: &mut [u8]) {
        let (n, token) = (self.tokens, self.token);
        let (scale, sums) = self.quantize_256(l, x);
        let (out_sums, rest) = out.split_at_mut(16 * n * 4);
        let out_sums = bytemuck::cast_slice_mut::<u8, i32>(out_sums);
        for (out, sum) in out_sums[token..].iter_mut().step_by(n).zip(sums) {
            *out = -128 * i32::from(sum);
        }
        let rest = bytemuck::cast_slice_mut::<u8, f32>(rest);
        for (out, sums) in rest[token..].iter_mut().step_by(n).zip(sums.as_chunks::<2>().0) {
            *out = f32::from(sums[0] + sums[1]);
        }
        rest[8 * n + token] = scale;
    }

    /// `out` receives the sums of 16 `[8, tokens, 2]`, those of 32 `[4, tokens, 2]` and the scales `[tokens]`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn pack_256_pairs<L: Lanes>(self, l: L, x: &[f32], out: &mut [u8]) {
        let (n, token) = (self.tokens, self.token);
        let (scale, sums) = self.quantize_256(l, x);
        let wide: [i16; 8] = std::array::from_fn(|i| sums[2 * i] + sums[2 * i + 1]);
        let (out_sums, out_scales) = out.split_at_mut(12 * n * 4);
        let out_sums = bytemuck::cast_slice_mut::<u8, [i16; 2]>(out_sums);
        let pairs = sums.as_chunks().0.iter().chain(wide.as_chunks().0);
        for (out, pair) in out_sums[token..].iter_mut().step_by(n).zip(pairs) {
            *out = *pair;
        }
        bytemuck::cast_slice_mut::<u8, f32>(out_scales)[token] = scale;
    }
}

/// The sum of every 16: neighbours are added four times, which vectorizes.
#[inline(always)]
fn sums_of_16(q: &[i8; 256]) -> [i16; 16] {
    let eights: [i16; 128] = std::array::from_fn(|i| i16::from(q[2 * i]) + i16::from(q[2 * i + 1]));
    let fours: [i16; 64] = std::array::from_fn(|i| eights[2 * i] + eights[2 * i + 1]);
    let twos: [i16; 32] = std::array::from_fn(|i| fours[2 * i] + fours[2 * i + 1]);
    std::array::from_fn(|i| twos[2 * i] + twos[2 * i + 1])
}
