//! From quants token by token to those of a chunk, four columns of all its tokens beside each other.

use super::SPAN;

/// Maximum tokens per chunk.
pub(super) const TOKENS_MAX: usize = 8;

/// Quants of some columns of each token, four columns beside each other.
pub(super) type Piece = [[[i8; 4]; SPAN / 4]; TOKENS_MAX];

/// Brings the quants of `n` tokens into the order of a chunk.
#[inline(always)]
pub(super) fn interleave(piece: &Piece, n: usize, out: &mut [[u8; 4]]) {
    match n {
        1 => interleaved::<1>(piece, out),
        2 => interleaved::<2>(piece, out),
        3 => interleaved::<3>(piece, out),
        4 => interleaved::<4>(piece, out),
        5 => interleaved::<5>(piece, out),
        6 => interleaved::<6>(piece, out),
        7 => interleaved::<7>(piece, out),
        _ => interleaved::<8>(piece, out),
    }
}

/// [`interleave`] with a number of tokens that the compiler knows, so that it transposes vectors.
#[inline(always)]
fn interleaved<const N: usize>(piece: &Piece, out: &mut [[u8; 4]]) {
    for (step, out) in out.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        for (out, tokens) in out.iter_mut().zip(piece) {
            *out = bytemuck::cast(tokens[step]);
        }
    }
}
