//! Multiplication by a constant.

use bilayer_graph::{Op, Temperature};

use crate::math::{Function, map};
use crate::program::lower::Lowering;
use crate::program::{Buffer, Context, Stage};
use crate::state::State;

/// `out = factor * input`.
pub(crate) struct Scale {
    pub(crate) input: Buffer,
    pub(crate) factor: f32,
    pub(crate) out: Buffer,
}

/// `out = factor * temperature at the row's position * input`.
pub(crate) struct Temper {
    pub(crate) input: Buffer,
    pub(crate) factor: f32,
    pub(crate) temperature: Temperature,
    pub(crate) out: Buffer,
}

/// The stage of an [`Op::Scale`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Scale { input, factor, temperature, by, out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let factor = factor * by.map_or(1.0, |by| lowering.vector(by)[0]);
    let (input, out) = (lowering.buffer(input), lowering.buffer(out));
    match temperature {
        None => Box::new(Scale { input, factor, out }),
        Some(temperature) => Box::new(Temper { input, factor, temperature, out }),
    }
}

impl Stage for Scale {
    fn chunks(&self, state: &State) -> usize {
        self.out.element_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let range = self.out.element_range(context.state, chunk);
        // SAFETY: the input was written by an earlier stage; each chunk writes different elements.
        let (input, out) = unsafe {
            (
                self.input.elements(context.arena, range.clone()),
                self.out.elements_mut(context.arena, range),
            )
        };
        map(context.level, Function::Scale(self.factor), input, out);
    }
}

impl Stage for Temper {
    fn chunks(&self, state: &State) -> usize {
        self.out.row_chunks(state)
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        for row in self.out.chunk_range(context.state, chunk) {
            let factor = self.factor * self.temperature.at(context.state.positions[row]);
            // SAFETY: the input was written by an earlier stage; each chunk writes different rows.
            let (input, out) = unsafe {
                (
                    self.input.get(context.arena, row..row + 1),
                    self.out.get_mut(context.arena, row..row + 1),
                )
            };
            map(context.level, Function::Scale(factor), input, out);
        }
    }
}
