//! [`Op::Conv`](bilayer_graph::Op::Conv).

use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use crate::caps::Caps;
use crate::kernel::Source;

/// A variant. Bindings, in order: `step`, `vectors`, `x`, `state` (written), `out` (written).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvKey {
    /// Rows that a result is the sum of; at least 2.
    pub taps: usize,
    /// Whether there is a bias.
    pub bias: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct ConvParams {
    /// Offset of the first row, and the row stride, in floats.
    pub x: [u32; 2],
    /// Offset of the result's first row, and the row stride, in floats.
    pub out: [u32; 2],
    /// Channels.
    pub channels: u32,
    /// Offset of `[channels, taps]` in the vectors, in floats.
    pub weight: u32,
    /// Offset of the bias in the vectors, in floats.
    pub bias: u32,
    /// Offset of `states` in the step buffer.
    pub states_at: u32,
    /// Floats from one slot to the next.
    pub slot: u32,
    /// Padding to a multiple of eight bytes.
    pub zero: u32,
}

impl ConvKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let ConvKey { taps, bias } = *self;
        let at = numbered(&[
            ("step", true),
            ("vectors", true),
            ("x", true),
            ("state", true),
            ("out", true),
        ]);
        let name = format!("conv {taps}{}", if bias { " bias" } else { "" });
        kernel(name, "conv", context! { at, taps, bias, threads => APART }, APART)
    }

    /// One thread per channel.
    pub fn grid(channels: usize) -> [u32; 3] {
        [(channels as u32).div_ceil(APART), 1, 1]
    }
}
