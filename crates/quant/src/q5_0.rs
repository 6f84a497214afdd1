//! Q5_0: 32 weights of 5 bits and one scale; 5.5 bits per weight.
//!
//! ```text
//! byte  0        2              6                          22
//!       [ d: f16 ][ high: 32 bits ][ quants: 16 bytes        ]
//!       quants[i] = low4(q[i + 16]) << 4 | low4(q[i]),  bit i of high = q[i] >> 4
//!       weight = d · (q - 16)
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, GROUP, Rule, f16_value};
use crate::lanes::round;
use crate::q4_0;
use crate::search::{self, ScaleBlock, Sweep};
use crate::{Descriptor, Plane};

/// One block of 32 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The scale, f16 bits.
    pub d: u16,
    /// The fifth bits, weight i at bit i of the little-endian word.
    pub high: [u8; 4],
    /// Four low bits: weight i in the low, weight 16 + i in the high nibble.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 22);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "Q5_0",
    gguf_id: 6,
    block_weights: 32,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("high", 4), ("quants", 16)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize_by_rule(values, importance, bytes, searched);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.044,
    holds_zero: true,
};

const SWEEP: Sweep = Sweep { first: -18.4, last: -13.6, count: 17 };

/// The 32 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 32]) {
    let d = f16_value(block.d);
    for (out, q) in out.iter_mut().zip(codes(block.high, &block.quants)) {
        *out = d * (f32::from(q) - 16.0);
    }
}

impl Rule<32> for Block {
    /// Without importance, the format's fixed rule: the weight of largest magnitude becomes -16, and the rest are rounded
    /// (halves up).
    #[inline(always)]
    fn by_rule(values: &[f32; 32]) -> Block {
        block(search::signed(values, 5))
    }
}

/// With importance, the scale that minimizes the error.
fn searched(
    values: &[[f32; 32]; GROUP],
    importance: Option<&[[f32; 32]; GROUP]>,
) -> [Block; GROUP] {
    let nearest = |v| round(v, -16.0, 15.0);
    search::scales(values, importance, nearest, 16.0, SWEEP).map(block)
}

#[inline(always)]
fn block(ScaleBlock { d, codes }: ScaleBlock<32>) -> Block {
    let (high, quants) = pack(&codes);
    Block { d, high, quants }
}

/// The 32 five-bit codes from the two arrays that Q5_0 and Q5_1 share.
pub(crate) fn codes(high: [u8; 4], quants: &[u8; 16]) -> [u8; 32] {
    let high = u32::from_le_bytes(high);
    std::array::from_fn(|i| {
        let low = if i < 16 { quants[i] & 15 } else { quants[i - 16] >> 4 };
        low | ((high >> i & 1) as u8) << 4
    })
}

/// The inverse of [`codes`].
#[inline(always)]
pub(crate) fn pack(q: &[u8; 32]) -> ([u8; 4], [u8; 16]) {
    let high = (0..32).fold(0, |bits, i| bits | u32::from(q[i] >> 4) << i);
    (high.to_le_bytes(), q4_0::pack(q))
}
