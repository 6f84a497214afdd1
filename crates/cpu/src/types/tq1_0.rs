//! TQ1_0: ternary codes, five to a byte.

use std::mem::offset_of;

use bilayer_quant::tq1_0::Block;

use super::{Scales, SuperBlock};
use crate::bytes::{Bytes, Words, part, u32_at};

pub(crate) struct Tq1_0;

/// The power of three that brings the digit of each weight to the front.
static POWERS: [[u8; 16]; 16] = {
    const DIGITS: [u8; 5] = [1, 3, 9, 27, 81];
    let (mut powers, mut weight) = ([[0; 16]; 16], 0);
    while weight < 256 {
        let digit = match weight / 16 {
            run @ ..10 => run / 2,
            run @ 10..15 => run - 10,
            _ => weight % 16 / 4,
        };
        powers[weight / 16][weight % 16] = DIGITS[digit];
        weight += 1;
    }
    powers
};

impl SuperBlock for Tq1_0 {
    const BYTES: usize = size_of::<Block>();
    const ZERO: u8 = 1;
    const HIGHEST: u8 = 2;
    const GROUP: usize = 32;
    const D: usize = offset_of!(Block, d);

    /// Sixteen weights at a time: ten of 32 bytes, five of 16 bytes, and one of four bytes with a digit each.
    #[inline(always)]
    fn codes<V: Bytes>(block: &[u8], first: usize) -> V {
        let rest: [u8; 16] = bytemuck::cast([u32_at(block, offset_of!(Block, rest)); 4]);
        let bytes = V::sixteens(|i| match first / 16 + i {
            run @ ..10 => part(block, run % 2 * 16),
            10..15 => part(block, 32),
            _ => &rest,
        });
        bytes.digits(V::sixteens(|i| &POWERS[first / 16 + i]))
    }

    #[inline(always)]
    fn scales<W: Words>(_words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        Scales::only([W::all(0x0101_0101); 4])
    }
}
