//! What the types with codebooks of points share: points of eight or four magnitudes, signs, odd scales.

use crate::bytes::Words;

/// The eight weights of a point, the first in the lowest byte.
#[inline(always)]
pub(super) fn eight(point: [i8; 8]) -> u64 {
    u64::from_le_bytes(point.map(i8::cast_unsigned))
}

/// The four weights of a point, the first in the lowest byte.
#[inline(always)]
pub(super) fn four(point: [i8; 4]) -> u32 {
    u32::from_le_bytes(point.map(i8::cast_unsigned))
}

/// A point.
#[inline(always)]
pub(super) fn pick<T: Copy, const N: usize>(grid: &[T; N], number: usize) -> T {
    assert!(number < N, "a point of the codebook");
    // SAFETY: it is the same number.
    unsafe { *grid.get_unchecked(apart(number)) }
}

/// A number that the compiler does not see: it would compute several in a vector, take them out one by one, and gather
/// points, which takes longer than as many loads.
#[inline(always)]
pub(super) fn apart(number: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    let number = crate::x86::hidden(number);
    number
}

/// The signs of 32 weights from four indices of seven bits: the eighth of each eight makes the number of negatives
/// even.
#[inline(always)]
pub(super) fn even_signs(indices: u32) -> u32 {
    let pairs = indices & 0x3fff | (indices & 0x0fff_c000) << 2;
    let signs = pairs & 0x007f_007f | (pairs & 0x3f80_3f80) << 1;
    // The parity of bits 0 to 6 of each byte, at bit 7.
    let folded = signs ^ signs << 4;
    let folded = folded ^ folded << 2;
    signs | (folded ^ folded << 1) & 0x8080_8080
}

/// 2 s + 1 of four numbers s.
#[inline(always)]
pub(super) fn odd<W: Words>(numbers: W) -> W {
    numbers.shl(1).or(W::all(0x0101_0101))
}

/// 2 s + 1 of four numbers that are the upper halves of words 28 bits up, one per word.
#[inline(always)]
pub(super) fn odd_of_tops<W: Words>([a, b, c, d]: [W; 4]) -> W {
    let byte = |word: W, up: u32| word.shr(28).shl(up);
    odd(byte(a, 0).or(byte(b, 8)).or(byte(c, 16).or(byte(d, 24))))
}

/// 2 s + 1 of the eight nibbles of a word, and of the next word's: sixteen scales.
#[inline(always)]
pub(super) fn odd_of_nibbles<W: Words>(low: W, high: W) -> [W; 4] {
    let [a, b] = spread_nibbles(low);
    let [c, d] = spread_nibbles(high);
    [odd(a), odd(b), odd(c), odd(d)]
}

/// The eight nibbles of a word as bytes.
#[inline(always)]
pub(super) fn spread_nibbles<W: Words>(word: W) -> [W; 2] {
    let spread = |half: W| {
        let pairs = half.or(half.shl(8)).and(0x00ff_00ff);
        pairs.or(pairs.shl(4)).and(0x0f0f_0f0f)
    };
    [spread(word.and(0xffff)), spread(word.shr(16))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_those_of_the_format() {
        for index in 0..128_u32 {
            let others = [index, 127 - index, index ^ 21, index ^ 64];
            let packed = others.iter().rev().fold(0, |all, index| all << 7 | index);
            let expected = others.map(|i| bilayer_quant::grids::even_signs(i as u8));
            assert_eq!(even_signs(packed | 0xa000_0000).to_le_bytes(), expected);
        }
    }

    #[test]
    fn nibbles_become_bytes_in_order() {
        let [low, high] = spread_nibbles(0x8765_4321_u32);
        assert_eq!((low, high), (0x0403_0201, 0x0807_0605));
    }
}
