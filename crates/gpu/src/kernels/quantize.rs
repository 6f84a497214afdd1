//! Quantizes a value whose kernel did not.

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use super::view::{View, pieces};
use crate::caps::Caps;
use crate::kernel::Source;

/// The only variant. Bindings, in order: `x`, `xq` (written), `xs` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantizeKey;

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct QuantizeParams {
    /// `[rows, width]`.
    pub x: View,
    /// Unused.
    pub out: View,
    /// Elements per row.
    pub width: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: [u32; 3],
}

impl QuantizeKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let at = numbered(&[("x", true), ("out", false), ("xq", true), ("xs", true)]);
        kernel("quantize".to_owned(), "quantize", context! { at, threads => APART }, APART)
    }

    /// One thread per piece of sixteen values.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(pieces(width) as u32).div_ceil(APART), rows, 1]
    }
}
