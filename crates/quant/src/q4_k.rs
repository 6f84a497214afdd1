//! Q4_K: 256 weights of 4 bits, 6-bit scales and minimums every 32; 4.5 bits per weight.
//!
//! ```text
//! byte  0        2           4                  16                  144
//!       [ d: f16 ][ dmin: f16 ][ scales: 12 bytes ][ quants: 128 bytes ]
//!       scales             eight scales s and minimums m, packed as in `k_scales`
//!       quants[32 h + l]   = q[64 h + 32 + l] << 4 | q[64 h + l]        h < 4, l < 32
//!       weight i           = d · s[p] · q - dmin · m[p]                 p = i / 32
//! ```

use bytemuck::{Pod, Zeroable};

use crate::blocks::{self, f16_value};
use crate::k_scales::{SCALES_BYTES, pack_scales_mins, scales_mins};
use crate::search::Sweep;
use crate::super_block;
use crate::{Descriptor, Plane};

/// One block of 256 weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
pub struct Block {
    /// The shared scale, f16 bits.
    pub d: u16,
    /// The shared scale of the minimums, f16 bits.
    pub dmin: u16,
    /// Eight 6-bit scales and minimums; see [`scales_mins`].
    pub scales: [u8; SCALES_BYTES],
    /// Two weights per byte, 32 apart.
    pub quants: [u8; 128],
}

const _: () = assert!(size_of::<Block>() == 144);

/// Entry in the table of types.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "Q4_K",
    gguf_id: 12,
    block_weights: 256,
    block_bytes: size_of::<Block>(),
    row_header_bytes: 0,
    planes: &Plane::split([("d", 2), ("dmin", 2), ("scales", SCALES_BYTES), ("quants", 128)]),
    quantize: Some(|values, importance, bytes| {
        blocks::quantize(values, importance, bytes, quantize);
    }),
    dequantize: |bytes, values| blocks::dequantize(bytes, values, dequantize),
    error_max: 0.073,
    holds_zero: false,
};

const SWEEP: Sweep = Sweep { first: 13.7, last: 16.7, count: 5 };

/// The 256 weights of a block.
pub fn dequantize(block: &Block, out: &mut [f32; 256]) {
    let (d, dmin) = (f16_value(block.d), f16_value(block.dmin));
    let (scales, mins) = scales_mins(&block.scales);
    for (i, out) in out.iter_mut().enumerate() {
        let q = code(&block.quants, i);
        *out = d * f32::from(scales[i / 32]) * f32::from(q) - dmin * f32::from(mins[i / 32]);
    }
}

/// Chooses the scales and minimums that minimize the error; see `super_block.rs`.
#[must_use]
pub fn quantize(values: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
    let lines = super_block::lines::<32, 8>(values, importance, 15.0, 63.0, SWEEP);
    let codes = lines.codes.as_flattened();
    Block {
        d: lines.d,
        dmin: lines.dmin,
        scales: pack_scales_mins(&lines.scales, &lines.mins),
        quants: pack(codes),
    }
}

/// The four low bits of weight `i`, as Q4_K and Q5_K store them.
#[inline]
pub(crate) fn code(quants: &[u8; 128], i: usize) -> u8 {
    quants[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15
}

/// The inverse of [`code`]; only the four low bits of each code are used.
pub(crate) fn pack(codes: &[u8]) -> [u8; 128] {
    let mut quants = [0; 128];
    for (i, code) in codes.iter().enumerate() {
        quants[i / 64 * 32 + i % 32] |= (code & 15) << (i / 32 % 2 * 4);
    }
    quants
}
