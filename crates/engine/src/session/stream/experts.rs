//! The experts of mixtures in streamed steps: which ones micro-batches have selected, and their copies.

use std::ops::Range;

use bilayer_graph::{Graph, WeightId};
use bilayer_scheduler::StreamedExperts;

use super::super::failed::Failed;
use super::super::pipeline::Pipeline;
use super::super::trace::What;
use super::{Crossing, Stream, Streamed};

/// Experts that are copied once a micro-batch has selected them.
pub struct Mixture {
    /// The router's result.
    route: Crossing,
    /// Of each expert the weight that contains its matrix, and the rows of it.
    matrices: Vec<(WeightId, Range<usize>)>,
    /// Bytes of a matrix.
    bytes: u64,
    /// Whether each expert has been copied in this pass.
    copies: Vec<Copied>,
}

/// Whether an expert has been copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    No,
    Wanted,
    Yes,
}

impl Mixture {
    /// The matrices of a mixture, whose route is in a buffer.
    pub fn new(graph: &Graph, experts: &StreamedExperts, route: Crossing) -> Mixture {
        let matrices = experts.stack.iter().flat_map(|&id| {
            let weight = graph.weight(id);
            let rows = weight.rows / weight.stacked;
            (0..weight.stacked).map(move |at| (id, at * rows..(at + 1) * rows))
        });
        let matrices: Vec<_> = matrices.collect();
        let bytes = matrices
            .first()
            .map_or(0, |(id, rows)| (rows.len() * graph.weight(*id).row_bytes()) as u64);
        Mixture { route, bytes, copies: vec![Copied::No; matrices.len()], matrices }
    }

    /// Begins a pass: the slot has none of the experts.
    pub fn forget(&mut self) {
        self.copies.fill(Copied::No);
    }

    /// Marks the experts that rows of the router's result `[rows, 2 used]` select and that are not there.
    fn want(&mut self, route: &[f32]) {
        let used = self.route.width / 2;
        for numbers in route.chunks_exact(2 * used).map(|row| &row[used..]) {
            for &number in numbers {
                if let Some(copied @ Copied::No) = self.copies.get_mut(number as usize) {
                    *copied = Copied::Wanted;
                }
            }
        }
    }

    /// The next wanted experts that are adjacent in a weight, which are there from now on: the weight, the rows and their
    /// bytes.
    fn next(&mut self) -> Option<(WeightId, Range<usize>, u64)> {
        let first = self.copies.iter().position(|copied| *copied == Copied::Wanted)?;
        let (weight, mut rows) = self.matrices[first].clone();
        let mut end = first;
        while self.copies.get(end) == Some(&Copied::Wanted) && self.matrices[end].0 == weight {
            rows.end = self.matrices[end].1.end;
            self.copies[end] = Copied::Yes;
            end += 1;
        }
        Some((weight, rows, (end - first) as u64 * self.bytes))
    }
}

impl Streamed<'_> {
    /// Copies the experts of a stage that a micro-batch has selected, unless they are there.
    pub(super) fn upload_experts(&mut self, number: usize, at: usize) -> Result<(), Failed> {
        let Stream { stages, buffers, batches, .. } = &mut *self.stream;
        let Some(stage) = stages.get_mut(number) else { return Ok(()) };
        let Pipeline { backends, clock, trace, spent, .. } = &mut *self.pipeline;
        let began = clock.now();
        for mixture in &mut stage.experts {
            let route = mixture.route;
            mixture.want(&buffers[route.buffer][route.range(batches, at)]);
            while let Some((weight, rows, bytes)) = mixture.next() {
                let from = clock.now();
                backends[stage.device].stream(weight, rows).map_err(Failed::on(stage.device))?;
                if let Some(trace) = trace {
                    trace.call(What::Stream, stage.device, bytes, from..clock.now());
                }
            }
        }
        spent.crossing += clock.since(began);
        Ok(())
    }
}
