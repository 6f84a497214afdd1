//! Gated linear unit: the activation of one branch times the other, or the activation alone.

use bilayer_graph::{Activation, Op};

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::lowering::Lowering;
use crate::math;
use crate::stage::{Elementwise, Stage};

/// The stage of an [`Op::Gate`]: `out = activation(gate) * up`, or `activation(gate)` without `up`.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Gate { gate, up, activation, out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let (gate, out) = (lowering.buffer(gate), lowering.buffer(out));
    match up.map(|up| lowering.buffer(up)) {
        Some(up) => {
            let compute = move |level: Level, [gate, up]: [&[f32]; 2], out: &mut [f32]| {
                join(level, activation, gate, Some(up), out);
            };
            Elementwise { inputs: [gate, up], out, compute }.boxed()
        }
        None => {
            let compute = move |level: Level, [gate]: [&[f32]; 1], out: &mut [f32]| {
                join(level, activation, gate, None, out);
            };
            Elementwise { inputs: [gate], out, compute }.boxed()
        }
    }
}

/// Computes `out[i]` from `gate[i]` and `up[i]`, or from `gate[i]` alone; slices of equal length.
pub(crate) fn join(
    level: Level,
    activation: Activation,
    gate: &[f32],
    up: Option<&[f32]>,
    out: &mut [f32],
) {
    dispatch(level, Join { activation, gate, up, out });
}

struct Join<'a> {
    activation: Activation,
    gate: &'a [f32],
    up: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        assert_eq!(self.gate.len(), self.out.len());
        self.up.inspect(|up| assert_eq!(up.len(), self.out.len()));
        let Join { activation, gate, up, out } = self;
        let whole = out.len() / L::N * L::N;
        for at in (0..whole).step_by(L::N) {
            let up = up.map(|up| l.read(&up[at..]));
            l.write(apply(l, activation, l.read(&gate[at..]), up), &mut out[at..]);
        }
        let tail = out.len() - whole;
        let (mut last, mut last_up) = ([0.0; 32], [0.0; 32]);
        last[..tail].copy_from_slice(&gate[whole..]);
        if let Some(up) = up {
            last_up[..tail].copy_from_slice(&up[whole..]);
        }
        let up = up.map(|_| l.read(&last_up));
        l.write(apply(l, activation, l.read(&last), up), &mut last);
        out[whole..].copy_from_slice(&last[..tail]);
    }
}

/// `activation(gate) * up`, or `activation(gate)` without `up`.
#[inline(always)]
pub(super) fn apply<L: Lanes>(l: L, activation: Activation, gate: L::F, up: Option<L::F>) -> L::F {
    let active = match activation {
        Activation::Silu => math::silu(l, gate),
        Activation::GeluTanh => math::gelu_tanh(l, gate),
        Activation::Gelu => math::gelu(l, gate),
        Activation::Sigmoid => math::sigmoid(l, gate),
        Activation::Identity => gate,
        Activation::Relu => l.max(l.splat(0.0), gate),
        Activation::SquaredRelu => {
            let positive = l.max(l.splat(0.0), gate);
            l.mul(positive, positive)
        }
        Activation::ClampedSwiglu => {
            let limited = l.min(l.splat(Activation::SWIGLU_LIMIT), gate);
            math::logistic_part(l, limited, Activation::SWIGLU_SLOPE)
        }
    };
    match (activation, up) {
        (_, None) => active,
        (Activation::ClampedSwiglu, Some(up)) => {
            let limit = Activation::SWIGLU_LIMIT;
            let limited = l.min(l.splat(limit), l.max(l.splat(-limit), up));
            l.mul(active, l.add(limited, l.splat(1.0)))
        }
        (_, Some(up)) => l.mul(active, up),
    }
}
