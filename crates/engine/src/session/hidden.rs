//! Hidden states that pass from the graph of a model to that of its block for multi-token prediction.

use bilayer_graph::{Graph, Limits, Value};

use super::Session;

/// Hidden states that pass from one graph to another.
#[derive(Clone, Debug)]
pub struct Hidden {
    /// Their value in the graph, if it has one.
    pub value: Option<Value>,
    /// Elements per row.
    pub width: usize,
    /// Most elements of a step.
    pub step_len: usize,
    /// `[rows, width]`.
    pub rows: Vec<f32>,
}

impl Hidden {
    /// None so far; there is room for those of a step.
    pub fn new(graph: &Graph, value: Option<Value>, limits: &Limits) -> Hidden {
        let width = value.map_or(0, |value| graph.width(value));
        let step_len = limits.tokens * width;
        Hidden { value, width, step_len, rows: Vec::with_capacity(step_len) }
    }
}

impl Session {
    /// The hidden states of the last [`Session::step`] that another graph of the model continues, `[rows, width]`: with the
    /// purpose [`WithHidden`](super::Purpose::WithHidden) of all rows, with [`Mtp`](super::Purpose::Mtp) of the requested
    /// ones; otherwise there are none.
    pub fn hidden(&self) -> &[f32] {
        &self.pipeline.hidden.rows
    }

    /// Elements of a row of [`Session::hidden`].
    pub(crate) fn hidden_width(&self) -> usize {
        self.pipeline.hidden.width
    }

    /// Gives the next step of a session with the purpose [`Mtp`](super::Purpose::Mtp) the hidden states `[rows, width]` of all its rows: for each
    /// token those of the position before it.
    pub fn give_hidden(&mut self, hidden: &[f32]) {
        let rows = &mut self.pipeline.given_hidden.rows;
        rows.clear();
        rows.extend_from_slice(hidden);
    }

    /// Checks that a step of `rows` rows was given their hidden states, if it needs them.
    pub(super) fn check_given(&self, rows: usize) {
        let Hidden { value, width, rows: given, .. } = &self.pipeline.given_hidden;
        let is_given = value.is_none() || given.len() == rows * width;
        assert!(is_given, "a step of an MTP block has hidden states for each row");
    }
}
