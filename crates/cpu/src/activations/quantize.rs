//! The activation quantizer: eight bits and one scale per 32 or 256.

use crate::lanes::Lanes;
use crate::quantizer::{PEAK_8, Scale, quantize_block};

/// Quantizes blocks of 32 with a scale each: x becomes round(x / scale). Calls `put` with the number of a block, its scale
/// and the sum of its quants.
#[inline(always)]
pub(super) fn quantize_32<L: Lanes>(
    l: L,
    x: &[f32],
    out: &mut [i8],
    mut put: impl FnMut(usize, f32, i32),
) {
    let mut done = 0;
    for (x, out) in x.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        let Some(blocks) = l.quantize_blocks(x, out) else { break };
        for (scale, sum) in blocks.scales.into_iter().zip(blocks.sums) {
            put(done, scale, sum);
            done += 1;
        }
    }
    let rest = x.as_chunks().0.iter().zip(out.as_chunks_mut().0).enumerate().skip(done);
    for (block, (x, out)) in rest {
        let (scale, quants, sum) = quantize_block(x);
        *out = quants;
        put(block, scale, sum);
    }
}

/// Quantizes with one scale: x becomes round(x / scale). Returns the scale.
#[inline(always)]
pub(crate) fn quantize_256<L: Lanes>(l: L, x: &[f32; 256], out: &mut [i8; 256]) -> f32 {
    let scale = Scale::of(l.peak(x), PEAK_8);
    l.quantize(x, scale, out);
    scale.value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::Transform;
    use crate::level::{Level, transform};
    use crate::quantizer::{BLOCK, BLOCKS, Blocks, peak, quantize, sum};

    #[test]
    fn quantizing_rounds_to_even_and_marks_what_is_not_finite() {
        for level in Level::available() {
            let mut x = [0.0; BLOCKS];
            assert_eq!(blocks(level, &x), ([0.0; 4], [0; BLOCKS], [0; 4]), "{level}");
            x[35..39].copy_from_slice(&[-127.0, 2.5, 3.5, -0.5]);
            let (scales, quants, sums) = blocks(level, &x);
            assert_eq!((scales, sums), ([0.0, 1.0, 0.0, 0.0], [0, -121, 0, 0]), "{level}");
            assert_eq!(quants[35..39], [-127, 2, 4, 0], "{level}");
            for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                x[127] = odd;
                let (scales, ..) = blocks(level, &x);
                assert_eq!(scales.map(f32::is_nan), [false, false, false, true], "{level}");
            }
        }
    }

    /// Lengths with whole vectors and without.
    #[test]
    fn all_levels_quantize_as_plain_rust_does() {
        let noise = |at: usize| ((at * 7919 % 1013) as f32 - 506.0) * 1.37e-2;
        let x: [f32; 256] = std::array::from_fn(noise);
        let scale = Scale::of(peak(&x), PEAK_8);
        for level in Level::available() {
            for len in [32, 64, 96, 128, 160, 224, 256] {
                let (mut expected, mut found) = ([0; 256], [0; 256]);
                quantize(&x[..len], scale, &mut expected[..len]);
                let mut all = (0, 0, &mut found[..len]);
                transform(level, All(&x[..len], scale), &mut all);
                assert_eq!((all.0, all.1), (peak(&x[..len]), sum(&expected)), "{level}, {len}");
                assert_eq!(found, expected, "{level}, {len} activations");
            }
            let first: &[f32; BLOCKS] = x.first_chunk().unwrap();
            let found = blocks(level, first);
            for (block, x) in first.as_chunks().0.iter().enumerate() {
                let (scale, quants, sum) = quantize_block(x);
                assert_eq!((found.0[block], found.2[block]), (scale, sum), "{level}");
                assert_eq!(found.1[block * BLOCK..][..BLOCK], quants, "{level}");
            }
        }
    }

    struct All<'a>(&'a [f32], Scale);

    impl<'a> Transform for All<'a> {
        type Out = (u32, i32, &'a mut [i8]);

        #[inline(always)]
        fn run<L: Lanes>(self, l: L, (most, sum, out): &mut Self::Out) {
            l.quantize(self.0, self.1, out);
            (*most, *sum) = (l.peak(self.0), l.sum_quants(out));
        }
    }

    struct Four<'a>(&'a [f32; BLOCKS]);

    impl Transform for Four<'_> {
        type Out = (Blocks, [i8; BLOCKS]);

        #[inline(always)]
        fn run<L: Lanes>(self, l: L, (blocks, out): &mut Self::Out) {
            quantize_32(l, self.0, out, |block, scale, sum| {
                (blocks.scales[block], blocks.sums[block]) = (scale, sum);
            });
        }
    }

    fn blocks(level: Level, x: &[f32; BLOCKS]) -> ([f32; 4], [i8; BLOCKS], [i32; 4]) {
        let mut out = (Blocks::default(), [0; BLOCKS]);
        transform(level, Four(x), &mut out);
        (out.0.scales, out.1, out.0.sums)
    }
}
