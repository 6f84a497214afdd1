//! Q4_0: 32 weights of 4 bits and one scale; 4.5 bits per weight.
//!
//! ```text
//! byte  0        2                          18
//!       [ d: f16 ][ quants: 16 bytes        ]
//!       quants[i] = q[i + 16] << 4 | q[i]          weight = d · (q - 8)
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, GROUP, Rule, f16_bits, f16_value};
use crate::lanes::round;
use crate::search::{self, ScaleBlock, Sweep};
use crate::{Descriptor, Grid, Plane};

/// One block of 32 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The scale, f16 bits.
    pub d: u16,
    /// Two weights per byte: weight i in the low, weight 16 + i in the high nibble.
    pub quants: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 18);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "Q4_0",
    gguf_id: 2,
    block_weights: 32,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("quants", 16)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize_by_rule(values, importance, bytes, searched);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.089,
    holds_zero: true,
};

const SWEEP: Sweep = Sweep { first: -9.2, last: -6.8, count: 17 };

/// The 32 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 32]) {
    let d = f16_value(block.d);
    for (i, byte) in block.quants.into_iter().enumerate() {
        out[i] = d * (f32::from(byte & 15) - 8.0);
        out[16 + i] = d * (f32::from(byte >> 4) - 8.0);
    }
}

impl Rule<32> for Block {
    /// Without importance, the format's fixed rule: the weight of largest magnitude becomes -8, and the rest are rounded
    /// (halves up).
    #[inline(always)]
    fn by_rule(values: &[f32; 32]) -> Block {
        block(search::signed(values, 4))
    }
}

/// With importance, the scale that minimizes the error.
fn searched(
    values: &[[f32; 32]; GROUP],
    importance: Option<&[[f32; 32]; GROUP]>,
) -> [Block; GROUP] {
    let nearest = |v| round(v, -8.0, 7.0);
    search::scales(values, importance, nearest, 8.0, SWEEP).map(block)
}

#[inline(always)]
fn block(ScaleBlock { d, codes }: ScaleBlock<32>) -> Block {
    Block { d, quants: pack(&codes) }
}

/// The grid of a block, with the scale of the fixed rule.
pub(crate) const GRID: Grid = Grid {
    block: Some(32),
    codes: [-8.0, 7.0],
    scale: |values| f16_value(Block::by_rule(values.as_array().expect("a block")).d),
    write: |values, scale, bytes| {
        let codes = std::array::from_fn(|i| match scale {
            0.0 => 8,
            _ => ((values[i] / scale).round() + 8.0) as u8,
        });
        bytes.copy_from_slice(bytemuck::bytes_of(&block(ScaleBlock { d: f16_bits(scale), codes })));
    },
};

/// Codes `i` and `16 + i` in byte `i`, as stored by types with blocks of 32; only the four low bits of each are used.
#[inline(always)]
pub(crate) fn pack(codes: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|i| codes[i] & 15 | codes[16 + i] << 4)
}
