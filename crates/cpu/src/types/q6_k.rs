//! Q6_K: codes of four bits and two; scales are signed bytes.

use std::mem::offset_of;

use bilayer_quant::q6_k::Block;

use super::{Scales, SuperBlock};
use crate::bytes::{Field, Words};

pub(crate) struct Q6K;

impl SuperBlock for Q6K {
    const BYTES: usize = size_of::<Block>();
    const CODES: &[Field] = &[
        Field { at: offset_of!(Block, low), bits: 4, run: 64 },
        Field { at: offset_of!(Block, high), bits: 2, run: 32 },
    ];
    const ZERO: u8 = 32;
    const HIGHEST: u8 = 63;
    const GROUP: usize = 16;
    const D: usize = offset_of!(Block, d);

    #[inline(always)]
    fn scales<W: Words>(words: impl Fn(usize) -> [W; 4]) -> Scales<W> {
        Scales::only(words(offset_of!(Block, scales)))
    }
}
