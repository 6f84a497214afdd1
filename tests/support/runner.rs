//! Runs a model on backends, step by step, without the engine: the minimum needed for logits.

#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;

use bilayer_graph::{
    Backend, Error, Exactness, Limits, PAGE_TOKENS, PageCopy, Rows, SegmentId, Span, StateId,
    StateSpan, Step, Value,
};
use bilayer_quant::Type;
use bilayer_scheduler::{Placement, PlannedSegment, cut};

use super::model::Model;

/// Limits large enough for all tests; keys and values in f32.
pub const LIMITS: Limits = Limits {
    sequences: 4,
    page_entries: 32,
    states: 16,
    key_type: Type::F32,
    value_type: Type::F32,
    ..Limits::new(192, 16)
};

/// The pages of a cache in order.
pub const IN_ORDER: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// Every row of a step of `rows`.
pub fn all(rows: usize) -> Vec<u32> {
    (0..rows as u32).collect()
}

/// Tokens of one sequence to run in a step.
#[derive(Clone, Copy)]
pub struct Chunk<'a> {
    pub tokens: &'a [u32],
    pub first_position: usize,
    /// The sequence's pages, at least as many as it needs after the step.
    pub pages: &'a [u32],
}

/// A model loaded onto one or more backends.
pub struct Runner<'m> {
    model: &'m Model,
    backends: Vec<Box<dyn Backend>>,
    segments: Vec<(PlannedSegment, SegmentId)>,
    /// Values transferred between segments.
    carried: BTreeMap<Value, Vec<f32>>,
}

impl<'m> Runner<'m> {
    /// Puts the whole model on one backend.
    pub fn single(
        model: &'m Model,
        backend: Box<dyn Backend>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let placement = Placement::single(model.graph.layers(), 0);
        Self::placed(model, vec![backend], &placement, limits)
    }

    /// Puts each part on the backend given by the placement.
    pub fn placed(
        model: &'m Model,
        mut backends: Vec<Box<dyn Backend>>,
        placement: &Placement,
        limits: Limits,
    ) -> Result<Self, Error> {
        let graph = &model.graph;
        let mut segments = Vec::new();
        for planned in cut(graph, placement) {
            let backend = &mut backends[planned.device];
            for node in &graph.nodes[planned.nodes.clone()] {
                for weight in node.op.weights().map(|id| graph.weight(id)) {
                    backend.load(weight, model.bytes(weight))?;
                }
            }
            let id = backend.compile(&planned.segment(graph), limits)?;
            segments.push((planned, id));
        }
        Ok(Runner { model, backends, segments, carried: BTreeMap::new() })
    }

    /// Elements of a row of logits.
    pub fn vocab(&self) -> usize {
        self.model.graph.width(self.model.graph.logits)
    }

    /// How many segments the placement made.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Runs the spans in one step; logits `[R, vocab]` of the step's rows in `outputs`.
    pub fn step(
        &mut self,
        runs: &[Chunk<'_>],
        outputs: &[u32],
        copies: &[PageCopy],
    ) -> Result<Vec<f32>, Error> {
        let (mut tokens, mut spans, mut pages) = (Vec::new(), Vec::new(), Vec::new());
        let mut states = Vec::new();
        for run in runs {
            spans.push(Span {
                first_row: tokens.len() as u32,
                rows: run.tokens.len() as u32,
                first_position: run.first_position as u32,
                first_page: pages.len() as u32,
            });
            // The sequence's first page gives its state a slot.
            states.push(StateSpan {
                first_row: tokens.len() as u32,
                rows: run.tokens.len() as u32,
                from: (run.first_position > 0).then_some(run.pages[0]),
                to: run.pages[0],
            });
            tokens.extend_from_slice(run.tokens);
            let needed = (run.first_position + run.tokens.len()).div_ceil(PAGE_TOKENS);
            pages.extend_from_slice(&run.pages[..needed]);
        }
        let step = Step {
            tokens: &tokens,
            spans: &spans,
            pages: &pages,
            outputs,
            states: &states,
            copies,
            top_k: usize::MAX,
            exactness: Exactness::Fastest,
        };
        for (planned, id) in &self.segments {
            let backend = &mut self.backends[planned.device];
            for input in &planned.inputs {
                backend.write(*input, &self.carried[input])?;
            }
            backend.submit(*id, &step)?;
            for &output in &planned.outputs {
                let info = &self.model.graph.values[output.0 as usize];
                let rows = match info.rows {
                    Rows::Tokens => step.tokens.len(),
                    Rows::Outputs => step.outputs.len(),
                };
                let mut data = vec![f32::NAN; rows * info.width];
                backend.read(output, &mut data)?;
                self.carried.insert(output, data);
            }
        }
        Ok(self.carried[&self.model.graph.logits].clone())
    }

    /// Logits of the tokens from `first` on of a sequence that has those before.
    pub fn go_on(&mut self, tokens: &[u32], first: usize) -> Result<Vec<f32>, Error> {
        let run = Chunk { tokens: &tokens[first..], first_position: first, pages: &IN_ORDER };
        self.step(&[run], &all(tokens.len() - first), &[])
    }

    /// A slot of a state on its device.
    pub fn state(&mut self, state: StateId, slot: u32) -> Vec<f32> {
        let has = |planned: &PlannedSegment| {
            let nodes = &self.model.graph.nodes[planned.nodes.clone()];
            nodes.iter().any(|node| node.op.state() == Some(state))
        };
        let (planned, _) = self.segments.iter().find(|(planned, _)| has(planned)).unwrap();
        self.backends[planned.device].save_state(state, &[slot]).unwrap()
    }

    /// Logits `[T, vocab]` of one sequence from its start, all tokens in one step.
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<Vec<f32>, Error> {
        let run = Chunk { tokens, first_position: 0, pages: &IN_ORDER };
        self.step(&[run], &all(tokens.len()), &[])
    }
}
