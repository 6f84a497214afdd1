//! Q5_1: 32 weights of 5 bits, one scale and one minimum; 6 bits per weight.
//!
//! ```text
//! byte  0        2        4              8                          24
//!       [ d: f16 ][ m: f16 ][ high: 32 bits ][ quants: 16 bytes        ]
//!       quants[i] = low4(q[i + 16]) << 4 | low4(q[i]),  bit i of high = q[i] >> 4
//!       weight = d · q + m
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, GROUP, Rule, f16_value};
use crate::q5_0::{codes, pack};
use crate::search::{self, LineBlock, Sweep};
use crate::{Descriptor, Plane};

/// One block of 32 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The scale, f16 bits.
    pub d: u16,
    /// The minimum, f16 bits.
    pub m: u16,
    /// The fifth bits, weight i at bit i of the little-endian word.
    pub high: [u8; 4],
    /// Four low bits: weight i in the low, weight 16 + i in the high nibble.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 24);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "Q5_1",
    gguf_id: 7,
    block_weights: 32,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("m", 2), ("high", 4), ("quants", 16)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize_by_rule(values, importance, bytes, searched);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.0395,
    holds_zero: false,
};

const SWEEP: Sweep = Sweep { first: 29.4, last: 38.8, count: 17 };

/// The 32 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 32]) {
    let (d, m) = (f16_value(block.d), f16_value(block.m));
    for (out, q) in out.iter_mut().zip(codes(block.high, &block.quants)) {
        *out = d * f32::from(q) + m;
    }
}

impl Rule<32> for Block {
    /// Without importance, the format's fixed rule: 0 is the smallest weight and 31 the largest.
    #[inline(always)]
    fn by_rule(values: &[f32; 32]) -> Block {
        block(search::range(values, 31.0))
    }
}

/// With importance, the scale and minimum that minimize the error.
fn searched(
    values: &[[f32; 32]; GROUP],
    importance: Option<&[[f32; 32]; GROUP]>,
) -> [Block; GROUP] {
    search::lines(values, importance, 31.0, SWEEP).map(block)
}

#[inline(always)]
fn block(LineBlock { d, m, codes }: LineBlock<32>) -> Block {
    let (high, quants) = pack(&codes);
    Block { d, m, high, quants }
}
