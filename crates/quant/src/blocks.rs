//! Walks a slice of weights and a slice of bytes block by block.

use bytemuck::{AnyBitPattern, NoUninit};
use half::f16;

/// Number of blocks whose scales are searched at once.
pub(crate) const GROUP: usize = 8;

/// Reads each block of `bytes` into its `N` weights.
///
/// Blocks are copied out one by one, because a tensor in a file may start at any address while a block with 16-bit
/// fields requires an even one.
pub(crate) fn dequantize<B: AnyBitPattern, const N: usize>(
    bytes: &[u8],
    values: &mut [f32],
    block: impl Fn(&B, &mut [f32; N]),
) {
    let (values, rest) = values.as_chunks_mut::<N>();
    let bytes = bytes.chunks_exact(size_of::<B>());
    assert!(rest.is_empty() && bytes.remainder().is_empty() && bytes.len() == values.len());
    for (bytes, values) in bytes.zip(values) {
        block(&bytemuck::pod_read_unaligned(bytes), values);
    }
}

/// Writes each group of `N` weights as one block of `bytes`.
pub(crate) fn quantize<B: NoUninit, const N: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    bytes: &mut [u8],
    block: impl Fn(&[f32; N], Option<&[f32; N]>) -> B,
) {
    let (values, rest) = values.as_chunks::<N>();
    let importance = importance.map(|weights| weights.as_chunks::<N>().0);
    assert!(rest.is_empty() && bytes.len() == values.len() * size_of::<B>());
    assert!(importance.is_none_or(|weights| weights.len() == values.len()));
    for (index, bytes) in bytes.chunks_exact_mut(size_of::<B>()).enumerate() {
        let block = block(&values[index], importance.map(|weights| &weights[index]));
        bytes.copy_from_slice(bytemuck::bytes_of(&block));
    }
}

/// A block of `N` weights whose format has a fixed rule for writing.
pub(crate) trait Rule<const N: usize>: NoUninit {
    /// The block of these weights, which are finite. It is `#[inline(always)]`, with all callees that are loops, so that
    /// [`by_rule`] compiles it for each SIMD level.
    fn by_rule(values: &[f32; N]) -> Self;
}

/// Writes blocks by their fixed rule.
///
/// The loop is also compiled for AVX2; nothing is fused or summed in another order, so every CPU writes the same bytes.
#[multiversion::multiversion(targets("x86_64+avx2+f16c"))]
pub(crate) fn by_rule<B: Rule<N>, const N: usize>(values: &[f32], bytes: &mut [u8]) {
    let (values, rest) = values.as_chunks::<N>();
    assert!(rest.is_empty() && bytes.len() == values.len() * size_of::<B>());
    for (values, bytes) in values.iter().zip(bytes.chunks_exact_mut(size_of::<B>())) {
        bytes.copy_from_slice(bytemuck::bytes_of(&B::by_rule(values)));
    }
}

/// Writes blocks of a type with a fixed rule; with importance, searches in groups.
pub(crate) fn quantize_by_rule<B: Rule<N>, const N: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    bytes: &mut [u8],
    group: impl Fn(&[[f32; N]; GROUP], Option<&[[f32; N]; GROUP]>) -> [B; GROUP],
) {
    match importance {
        None => by_rule::<B, N>(values, bytes),
        Some(_) => quantize_groups(values, importance, bytes, group),
    }
}

/// Writes blocks of `N` weights whose scales are searched in groups; the last group is padded with zeros.
pub(crate) fn quantize_groups<B: NoUninit, const N: usize>(
    values: &[f32],
    importance: Option<&[f32]>,
    bytes: &mut [u8],
    group: impl Fn(&[[f32; N]; GROUP], Option<&[[f32; N]; GROUP]>) -> [B; GROUP],
) {
    let len = N * GROUP;
    assert!(values.len() / N * size_of::<B>() == bytes.len());
    assert!(importance.is_none_or(|importance| importance.len() == values.len()));
    for (index, bytes) in bytes.chunks_mut(size_of::<B>() * GROUP).enumerate() {
        let begin = index * len;
        let end = values.len().min(begin + len);
        let taken = |all: &[f32]| {
            let mut taken = [[0.0; N]; GROUP];
            taken.as_flattened_mut()[..end - begin].copy_from_slice(&all[begin..end]);
            taken
        };
        let blocks = group(&taken(values), importance.map(taken).as_ref());
        for (bytes, block) in bytes.chunks_exact_mut(size_of::<B>()).zip(&blocks) {
            bytes.copy_from_slice(bytemuck::bytes_of(block));
        }
    }
}

/// The bits of the largest finite f16.
pub(crate) const F16_LARGEST: u16 = 0x7bff;

/// The value of f16 bits.
#[inline]
pub(crate) fn f16_value(bits: u16) -> f32 {
    f16::from_bits(bits).to_f32()
}

/// The nearest f16, ties to even; larger values become ±65504, so that no block of finite weights dequantizes to
/// infinity.
#[inline]
pub(crate) fn f16_bits(value: f32) -> u16 {
    f16::from_f32(value.clamp(-65504.0, 65504.0)).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_and_never_infinite() {
        let cases = [
            (1.0, 0x3c00, 1.0),
            (-2.0, 0xc000, -2.0),
            // The step at 1 is 2^-10, and its half goes to the even one.
            (1.0 + 0.5 / 1024.0, 0x3c00, 1.0),
            (1.0 + 1.5 / 1024.0, 0x3c02, 1.0 + 2.0 / 1024.0),
            (65504.0, F16_LARGEST, 65504.0),
            (65520.0, F16_LARGEST, 65504.0),
            (1e30, F16_LARGEST, 65504.0),
            (-1e30, 0x8000 | F16_LARGEST, -65504.0),
            // 2^-24 is the smallest.
            (6e-8, 1, (-24f32).exp2()),
            (2e-8, 0, 0.0),
        ];
        for (value, bits, rounded) in cases {
            assert_eq!(f16_bits(value), bits, "{value}");
            assert_eq!(f16_value(bits), rounded, "{value}");
        }
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn bytes_that_are_no_blocks_of_the_values_are_refused() {
        dequantize::<u16, 2>(&[0; 4], &mut [0.0; 2], |_, _| {});
    }
}
