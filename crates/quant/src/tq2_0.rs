//! TQ2_0: 256 ternary weights of 2 bits and one scale; 2.0625 bits per weight.
//!
//! ```text
//! byte  0                  64       66
//!       [ quants: 64 bytes ][ d: f16 ]
//!       quants[32 h + l]   bits 2 k, 2 k + 1 = q[128 h + 32 k + l]      weight = d · (q - 1)
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, GROUP, Rule, f16_bits, f16_value};
use crate::lanes::{byte, reciprocal, round, round_away};
use crate::q2_k::{code, pack};
use crate::search::{self, ScaleBlock, Sweep};
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// Four weights per byte, 32 apart.
    pub quants: [u8; 64],
    /// The shared scale, f16 bits.
    pub d: u16,
}

const _: () = assert!(size_of::<Block>() == 66);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "TQ2_0",
    gguf_id: 35,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("quants", 64), ("d", 2)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize_by_rule(values, importance, bytes, searched);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.8,
    holds_zero: true,
};

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    for (i, out) in out.iter_mut().enumerate() {
        *out = d * (f32::from(code(&block.quants, i)) - 1.0);
    }
}

impl Rule<256> for Block {
    /// The fixed rule: the largest magnitude is the scale.
    #[inline(always)]
    fn by_rule(values: &[f32; 256]) -> Block {
        let Ternary { d, digits } = Ternary::by_rule(values);
        Block { quants: pack(&digits), d }
    }
}

/// Chooses the scales that minimize the error.
fn searched(
    values: &[[f32; 256]; GROUP],
    importance: Option<&[[f32; 256]; GROUP]>,
) -> [Block; GROUP] {
    Ternary::searched(values, importance)
        .map(|Ternary { d, digits }| Block { quants: pack(&digits), d })
}

/// A scale (f16 bits) and digits 0, 1 and 2, as TQ1_0 and TQ2_0 store them.
#[derive(Clone, Copy)]
pub(crate) struct Ternary {
    pub d: u16,
    pub digits: [u8; 256],
}

/// Starting points of a search: Gaussian weights have their best scale at 0.4 of the largest of a block.
const SWEEP: Sweep = Sweep { first: 1.0, last: 4.0, count: 7 };

impl Ternary {
    /// The largest magnitude is the scale.
    #[inline(always)]
    pub fn by_rule(values: &[f32; 256]) -> Ternary {
        let d = search::peak(values).abs();
        let inverse = reciprocal(d);
        let mut digits = [0; 256];
        for (digit, x) in digits.iter_mut().zip(values) {
            *digit = byte(round_away(x * inverse) + 1.0);
        }
        Ternary { d: f16_bits(d), digits }
    }

    /// The scales that minimize the error.
    pub fn searched(
        values: &[[f32; 256]; GROUP],
        importance: Option<&[[f32; 256]; GROUP]>,
    ) -> [Ternary; GROUP] {
        let nearest = |v| round(v, -1.0, 1.0);
        search::scales(values, importance, nearest, 1.0, SWEEP).map(|ScaleBlock { d, codes }| {
            // A search gives the scale the sign of the largest weight; digits of 2 mean the positive one here.
            let digits = if d >> 15 == 1 { codes.map(|code| 2 - code) } else { codes };
            Ternary { d: d & 0x7fff, digits }
        })
    }
}
