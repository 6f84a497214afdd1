//! Activations to int8: the packing of the integer products.

use crate::gemm::packing::{Block, Format};
use crate::level::Level;
use crate::panel::SPAN;

/// Packs a chunk `[tokens, cols]` f32, its blocks of at most 256 columns one after the other.
///
/// An activation x becomes round(x / scale), ties to even, where scale = max|x| / 127 over its 32 or
/// 256 columns; the scale of columns with a NaN or an infinity is NaN.
pub(super) fn pack(level: Level, format: Format, x: &[f32], cols: usize, out: &mut [u8]) {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512Vnni | Level::Amx => {
            // SAFETY: a packing's level is one that the processor runs.
            unsafe { pack_avx512(format, x, cols, out) }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::AvxVnni => {
            // SAFETY: as above.
            unsafe { pack_avx2(format, x, cols, out) }
        }
        _ => pack_here(format, x, cols, out),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn pack_avx2(format: Format, x: &[f32], cols: usize, out: &mut [u8]) {
    pack_here(format, x, cols, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn pack_avx512(format: Format, x: &[f32], cols: usize, out: &mut [u8]) {
    pack_here(format, x, cols, out);
}

#[inline(always)]
fn pack_here(format: Format, x: &[f32], cols: usize, out: &mut [u8]) {
    let tokens = x.len() / cols;
    for (token, x) in x.chunks_exact(cols).enumerate() {
        let mut start = 0;
        for x in x.chunks(SPAN) {
            let len = tokens * Block::bytes_per_token(format, x.len());
            let block = Place { tokens, token, cols: x.len() };
            let out = &mut out[start..start + len];
            match format {
                Format::Int8x256 => block.pack_256(x, out),
                _ => block.pack_32(x, out),
            }
            start += len;
        }
    }
}

/// One token's place in a block.
struct Place {
    tokens: usize,
    token: usize,
    cols: usize,
}

impl Place {
    #[inline(always)]
    fn pack_32(&self, x: &[f32], out: &mut [u8]) {
        let (n, groups) = (self.tokens, self.cols / 32);
        let (quants, rest) = out.split_at_mut(self.cols * n);
        let (sums, scales) = rest.split_at_mut(groups * n * 4);
        let sums = bytemuck::cast_slice_mut::<u8, i32>(sums);
        let scales = bytemuck::cast_slice_mut::<u8, f32>(scales);
        for (group, x) in x.as_chunks::<32>().0.iter().enumerate() {
            let (scale, q) = quantize(x);
            self.scatter(&q, &mut quants[group * 32 * n..(group + 1) * 32 * n]);
            sums[group * n + self.token] = -128 * sum(&q);
            scales[group * n + self.token] = scale;
        }
    }

    #[inline(always)]
    fn pack_256(&self, x: &[f32], out: &mut [u8]) {
        let n = self.tokens;
        let x: &[f32; 256] = x.as_array().expect("rows of 256-blocks are whole blocks");
        let (scale, q) = quantize(x);
        let (quants, rest) = out.split_at_mut(256 * n);
        self.scatter(&q, quants);
        let (sums, rest) = rest.split_at_mut(16 * n * 4);
        let sums = bytemuck::cast_slice_mut::<u8, i32>(sums);
        for (group, q) in q.as_chunks::<16>().0.iter().enumerate() {
            sums[group * n + self.token] = -128 * sum(q);
        }
        let rest = bytemuck::cast_slice_mut::<u8, f32>(rest);
        for (group, q) in q.as_chunks::<32>().0.iter().enumerate() {
            rest[group * n + self.token] = sum(q) as f32;
        }
        rest[8 * n + self.token] = scale;
    }

    /// Writes a token's quants, four by four, among those of the other tokens.
    #[inline(always)]
    fn scatter(&self, q: &[i8], out: &mut [u8]) {
        let out = out.as_chunks_mut::<4>().0[self.token..].iter_mut().step_by(self.tokens);
        for (out, q) in out.zip(q.as_chunks::<4>().0) {
            *out = q.map(|q| q as u8);
        }
    }
}

#[inline(always)]
fn sum(q: &[i8]) -> i32 {
    q.iter().map(|q| i32::from(*q)).sum()
}

/// Scale and quants of some activations. Below 2^-100 they count as zero, so that the reciprocal is
/// finite.
#[inline(always)]
fn quantize<const N: usize>(x: &[f32; N]) -> (f32, [i8; N]) {
    const LEAST: u32 = 27 << 23;
    const INFINITY: u32 = 0x7f80_0000;
    // Of non-negative floats the bits compare as the values do, and NaN is above infinity.
    let peak = x.iter().map(|x| x.to_bits() & 0x7fff_ffff).fold(0, u32::max);
    if peak >= INFINITY {
        return (f32::NAN, [0; N]);
    }
    let peak = if peak < LEAST { 0.0 } else { f32::from_bits(peak) };
    let inverse = if peak > 0.0 { 127.0 / peak } else { 0.0 };
    // Adding 1.5 · 2^23 rounds to an integer, which then lies in the low bits: no rounding
    // instruction is needed, so every level vectorizes this.
    let q = x.map(|x| (x * inverse + 12_582_912.0).to_bits() as u8 as i8);
    (peak / 127.0, q)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantizing_rounds_to_even_and_marks_what_is_not_finite() {
        let mut x = [0.0; 32];
        assert_eq!(quantize(&x), (0.0, [0; 32]));
        (x[3], x[4], x[5], x[6]) = (-127.0, 2.5, 3.5, -0.5);
        let (scale, q) = quantize(&x);
        assert_eq!((scale, q[3], q[4], q[5], q[6]), (1.0, -127, 2, 4, 0));
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            x[7] = odd;
            assert!(quantize(&x).0.is_nan());
        }
    }
}
