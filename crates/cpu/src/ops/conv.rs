//! Causal convolution over time, each channel by itself.
//!
//! **The idea.** A chunk is a range of channels, which it carries through all spans of state in order, so that chunks
//! are independent of each other. Each row is the sum of `taps` earlier rows, each times a vector of weights.

use std::ops::Range;
use std::sync::Arc;

use bilayer_graph::{Op, StateSpan};

use crate::lanes::{Kernel, Lanes};
use crate::level::dispatch;
use crate::lowering::Lowering;
use crate::slots::Slots;
use crate::stage::{Buffer, Context, Stage};
use crate::state::State;

/// Most taps, the current row's included; published models have 3 or 4.
const TAPS_MAX: usize = 16;

/// Channels of a chunk: at least so many, so that a row of it is a few vectors.
const CHANNELS_MIN: usize = 64;

/// Elements of the input per chunk: some microseconds.
const CHUNK_ELEMENTS: usize = 16 << 10;

/// The convolution. Sums are f32, the bias first, then the rows from the oldest on.
pub(crate) struct Conv {
    input: Buffer,
    out: Buffer,
    /// `[taps, channels]`.
    weight: Arc<[f32]>,
    bias: Option<Arc<[f32]>>,
    /// `[taps - 1, channels]` in each slot, oldest row first.
    slots: Arc<Slots>,
}

/// The stage of an [`Op::Conv`].
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Conv { input, weight, bias, state, out } = *lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let by_channel = lowering.vector(weight);
    let out = lowering.buffer(out);
    let taps = by_channel.len() / out.width;
    assert!(taps <= TAPS_MAX, "models have at most {TAPS_MAX} taps");
    let by_tap = (0..taps).flat_map(|tap| by_channel[tap..].iter().step_by(taps).copied());
    Box::new(Conv {
        input: lowering.buffer(input),
        out,
        weight: by_tap.collect(),
        bias: bias.map(|bias| lowering.vector(bias)),
        slots: lowering.slots(state),
    })
}

impl Conv {
    fn taps(&self) -> usize {
        self.weight.len() / self.out.width
    }

    /// Computes the channels `first..first + len` of a span and advances their state.
    fn carry(&self, context: &Context<'_>, span: &StateSpan, (first, len): (usize, usize)) {
        let (channels, taps) = (self.out.width, self.taps());
        let past = taps - 1;
        let input = |row: usize| {
            self.input.elements(context, row * channels + first..row * channels + first + len)
        };
        // SAFETY: only this chunk accesses these channels of the slot, and each element is read before it is written.
        let kept =
            |slot: u32, at: usize| unsafe { self.slots.get(slot, at * channels + first, len) };
        static ZEROS: [f32; CHUNK_ELEMENTS + CHANNELS_MIN] = [0.0; CHUNK_ELEMENTS + CHANNELS_MIN];
        // Row `at` of the state and the span's rows after it.
        let source = |at: usize| match (at.checked_sub(past), span.from) {
            (Some(row), _) => input(span.first_row as usize + row),
            (None, Some(slot)) => kept(slot, at),
            (None, None) => &ZEROS[..len],
        };
        for row in 0..span.rows as usize {
            let mut rows: [&[f32]; TAPS_MAX] = [&[]; TAPS_MAX];
            rows.iter_mut().zip(row..=row + past).for_each(|(to, at)| *to = source(at));
            let at = (span.first_row as usize + row) * channels + first;
            let sum = Sum {
                rows: &rows[..taps],
                weight: &self.weight[first..],
                channels,
                bias: self.bias.as_ref().map(|bias| &bias[first..first + len]),
                // SAFETY: only this chunk writes these channels.
                out: unsafe { self.out.elements_mut(context, at..at + len) },
            };
            dispatch(context.level, sum);
        }
        for at in 0..past {
            let row = source(at + span.rows as usize).as_ptr();
            // SAFETY: as above; in the slot it was read from, a later row moves to an earlier place, so the two differ.
            unsafe {
                let to = self.slots.get_mut(span.to, at * channels + first, len);
                std::ptr::copy_nonoverlapping(row, to.as_mut_ptr(), len);
            }
        }
    }
}

/// Channels per chunk of a step of so many tokens.
fn chunk_channels(tokens: usize) -> usize {
    (CHUNK_ELEMENTS / tokens.max(1)).max(1).next_multiple_of(CHANNELS_MIN)
}

impl Stage for Conv {
    fn chunks(&self, state: &State) -> usize {
        self.out.width.div_ceil(chunk_channels(state.tokens.len()))
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        vec![self.out.region(state)]
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let channels = chunk_channels(context.state.tokens.len());
        let first = chunk * channels;
        let len = channels.min(self.out.width - first);
        for span in &context.state.states {
            self.carry(&context, span, (first, len));
        }
    }
}

/// One row of some channels.
struct Sum<'a> {
    /// The rows of each tap, oldest first.
    rows: &'a [&'a [f32]],
    /// `[taps, channels]`, from the first of these channels on.
    weight: &'a [f32],
    channels: usize,
    bias: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Kernel for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, _: L) {
        match self.bias {
            Some(bias) => self.out.copy_from_slice(bias),
            None => self.out.fill(0.0),
        }
        for (row, weight) in self.rows.iter().zip(self.weight.chunks(self.channels)) {
            for ((out, x), weight) in self.out.iter_mut().zip(*row).zip(weight) {
                *out += x * weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANNELS_MIN, CHUNK_ELEMENTS, chunk_channels};

    #[test]
    fn steps_of_any_size_have_chunks() {
        for tokens in [0, 1, 100, CHUNK_ELEMENTS, CHUNK_ELEMENTS + 1, 1 << 16] {
            let channels = chunk_channels(tokens);
            assert!(channels >= CHANNELS_MIN && channels.is_multiple_of(CHANNELS_MIN), "{tokens}");
        }
        assert_eq!([1, CHUNK_ELEMENTS + 1].map(chunk_channels), [CHUNK_ELEMENTS, CHANNELS_MIN]);
    }
}
