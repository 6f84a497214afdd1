//! TQ2_0: 256 ternary weights of 2 bits and one scale; 2.0625 bits per weight.
//!
//! ```text
//! byte  0                  64       66
//!       [ quants: 64 bytes ][ d: f16 ]
//!       quants[32 h + l]   bits 2 k, 2 k + 1 = q[128 h + 32 k + l]      weight = d · (q - 1)
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::q2_k::code;
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
    planes: &Plane::split([("quants", 64), ("d", 2)]),
    quantize: None,
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: f32::INFINITY,
};

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let d = f16_value(block.d);
    for (i, out) in out.iter_mut().enumerate() {
        *out = d * (f32::from(code(&block.quants, i)) - 1.0);
    }
}
