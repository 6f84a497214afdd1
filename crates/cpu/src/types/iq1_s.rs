//! IQ1_S: ternary points by eleven bits, all shifted by an eighth up or down in each 32 weights.
//!
//! Codes are eight times the weights, plus [`ZERO`]: 8 g ± 1 + 9 for a point's weight g of -1, 0 or 1.

use std::mem::offset_of;

use bilayer_quant::grids::IQ1;
use bilayer_quant::iq1_s::{Block, SHIFT};

use super::grids::{odd, pick};
use super::{Scales, SuperBlock};
use crate::bytes::{Bytes, Points, Words, u16_at};

pub(crate) struct Iq1S;

const POINTS: usize = offset_of!(Block, points);
const HIGH: usize = offset_of!(Block, high);

/// The code of a weight of zero.
pub(super) const ZERO: u8 = 9;

/// Eight codes of each point where the shift is downwards; where it is upwards they are two larger.
static LIFTED: [u64; IQ1.len()] = {
    let (mut codes, mut point) = ([0; IQ1.len()], 0);
    while point < IQ1.len() {
        let mut i = 0;
        while i < 8 {
            codes[point] |= ((8 * (IQ1[point][i] + 1)) as u64) << (8 * i);
            i += 1;
        }
        point += 1;
    }
    codes
};

/// The codes of a point, shifted downwards if `up` is 0, upwards if it is 1.
#[inline(always)]
pub(super) fn codes(point: usize, up: u64) -> u64 {
    const { assert!(SHIFT == 0.125) };
    pick(&LIFTED, point) + up * 0x0202_0202_0202_0202
}

impl SuperBlock for Iq1S {
    const BYTES: usize = size_of::<Block>();
    const ZERO: u8 = ZERO;
    const HIGHEST: u8 = 2 * ZERO;
    const GROUP: usize = 32;
    const D: usize = offset_of!(Block, d);
    const UNIT: f32 = SHIFT;

    #[inline(always)]
    fn codes<V: Bytes>(block: &[u8], first: usize) -> V {
        V::eights::<Self>(block, first)
    }

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        // Bits 12 to 14 of each half of a word.
        let pair = |word: W| word.shr(12).and(7).or(word.shr(20).and(0x700));
        let [a, b, c, d] = words(HIGH);
        let four = |low: W, high: W| odd(pair(low).or(pair(high).shl(16)));
        Scales::only([four(a, b), four(c, d), W::all(0), W::all(0)])
    }
}

impl Points for Iq1S {
    #[inline(always)]
    fn eight(block: &[u8], point: usize) -> u64 {
        let high = u16_at(block, HIGH + point / 4 * 2);
        let top = usize::from(high >> (point % 4 * 3) & 7);
        codes(usize::from(block[POINTS + point]) | top << 8, u64::from(high >> 15 ^ 1))
    }
}
