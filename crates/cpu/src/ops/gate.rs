//! Gated linear unit: the activation of one branch times the other, or the activation alone.

use bilayer_graph::{Activation, Op};

use crate::lanes::{Kernel, Lanes};
use crate::level::{Level, dispatch};
use crate::math;
use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// `out = activation(gate) * up`, or `activation(gate)` without `up`.
pub(crate) struct Gate {
    pub(crate) gate: Buffer,
    pub(crate) up: Option<Buffer>,
    pub(crate) activation: Activation,
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::Gate`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Gate { gate, up, activation, out } = lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let (gate, up) = (lowering.buffer(*gate), up.map(|up| lowering.buffer(up)));
    Box::new(Gate { gate, up, activation: *activation, out: lowering.buffer(*out) })
}

impl Stage for Gate {
    fn chunks(&self, state: &State) -> usize {
        self.out.element_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let range = self.out.element_range(context.state, chunk);
        // SAFETY: the inputs were written by earlier stages; each chunk writes different elements.
        let (gate, up, out) = unsafe {
            (
                self.gate.elements(context.arena, range.clone()),
                self.up.map(|up| up.elements(context.arena, range.clone())),
                self.out.elements_mut(context.arena, range),
            )
        };
        join(context.level, self.activation, gate, up, out);
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
        let whole = self.out.len() / L::N * L::N;
        for at in (0..whole).step_by(L::N) {
            // SAFETY: `at + N` is within all slices.
            unsafe {
                let gate = l.load(self.gate.as_ptr().add(at));
                let up = self.up.map(|up| l.load(up.as_ptr().add(at)));
                l.store(apply(l, self.activation, gate, up), self.out.as_mut_ptr().add(at));
            }
        }
        let tail = self.out.len() - whole;
        let (mut gate, mut up) = ([0.0; 32], [0.0; 32]);
        gate[..tail].copy_from_slice(&self.gate[whole..]);
        if let Some(factors) = self.up {
            up[..tail].copy_from_slice(&factors[whole..]);
        }
        // SAFETY: N <= 32.
        unsafe {
            let up = self.up.map(|_| l.load(up.as_ptr()));
            let out = apply(l, self.activation, l.load(gate.as_ptr()), up);
            l.store(out, gate.as_mut_ptr());
        }
        self.out[whole..].copy_from_slice(&gate[..tail]);
    }
}

#[inline(always)]
fn apply<L: Lanes>(l: L, activation: Activation, gate: L::F, up: Option<L::F>) -> L::F {
    let active = match activation {
        Activation::Silu => math::silu(l, gate),
        Activation::GeluTanh => math::gelu_tanh(l, gate),
        Activation::Gelu => math::gelu(l, gate),
        Activation::Sigmoid => math::sigmoid(l, gate),
        Activation::Identity => gate,
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
