//! [`Op::Gate`](bilayer_graph::Op::Gate), optionally quantized.

use bilayer_graph::Activation;
use bytemuck::{Pod, Zeroable};
use minijinja::context;

use super::bindings::{kernel, numbered};
use super::team::APART;
use super::view::{View, pieces};
use crate::caps::Caps;
use crate::kernel::Source;

/// The variant. Bindings, in order: `gate`, `up` if there is one, `out` (written) if stored as floats, `xq` and `xs`
/// (written) if quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GateKey {
    /// The activation function.
    pub activation: Activation,
    /// Whether another value is multiplied.
    pub up: bool,
    /// Whether the result is stored as floats.
    pub floats: bool,
    /// Whether the result is stored as quantized activations.
    pub quantized: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct GateParams {
    /// `[rows, width]`.
    pub gate: View,
    /// `[rows, width]`, if there is one.
    pub up: View,
    /// `[rows, width]`, if stored as floats.
    pub out: View,
    /// Elements per row.
    pub width: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: u32,
}

impl GateKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let _ = caps;
        let GateKey { up, floats, quantized, .. } = *self;
        let activation = activation_name(self.activation);
        let at = numbered(&[
            ("gate", true),
            ("up", up),
            ("out", floats),
            ("xq", quantized),
            ("xs", quantized),
        ]);
        let name = format!(
            "gate {activation}{}{}{}",
            if up { "" } else { " alone" },
            if floats { " f32" } else { "" },
            if quantized { " q8" } else { "" }
        );
        kernel(name, "gate", context! { at, activation, up, threads => APART }, APART)
    }

    /// One thread per piece of sixteen values.
    pub fn grid(rows: u32, width: usize) -> [u32; 3] {
        [(pieces(width) as u32).div_ceil(APART), rows, 1]
    }
}

/// The name of an activation function in parts/activate.wgsl.
pub(crate) fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_tanh",
        Activation::Gelu => "gelu",
        Activation::Sigmoid => "sigmoid",
        Activation::Identity => "identity",
        Activation::Relu => "relu",
        Activation::SquaredRelu => "squared_relu",
        Activation::ClampedSwiglu => "clamped_swiglu",
    }
}
