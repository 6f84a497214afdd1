//! The states of one layer: one slot of f32 elements for each sequence or checkpoint.

use crate::StateSpan;

/// `[slots, elements]`.
#[derive(Debug)]
pub(super) struct States {
    elements: usize,
    data: Vec<f32>,
    /// The state that a span carries from row to row.
    current: Vec<f32>,
}

impl States {
    /// Slots without contents.
    pub fn new(elements: usize, slots: usize) -> Self {
        States { elements, data: vec![0.0; slots * elements], current: vec![0.0; elements] }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.data.len() / self.elements
    }

    /// Carries the state of `span` through `each`, which is given the state `[elements]` and a row of the step, and
    /// changes the state.
    pub fn carry(&mut self, span: &StateSpan, mut each: impl FnMut(&mut [f32], usize)) {
        match span.from {
            Some(slot) => {
                let from = slot as usize * self.elements;
                self.current.copy_from_slice(&self.data[from..from + self.elements]);
            }
            None => self.current.fill(0.0),
        }
        let first = span.first_row as usize;
        (first..first + span.rows as usize).for_each(|row| each(&mut self.current, row));
        let to = span.to as usize * self.elements;
        self.data[to..to + self.elements].copy_from_slice(&self.current);
    }

    /// The contents of slots.
    pub fn save(&self, slots: &[u32]) -> Vec<f32> {
        let of = |&slot: &u32| &self.data[slot as usize * self.elements..][..self.elements];
        slots.iter().flat_map(of).copied().collect()
    }

    /// Fills slots.
    pub fn restore(&mut self, slots: &[u32], data: &[f32]) {
        for (&slot, data) in slots.iter().zip(data.chunks_exact(self.elements)) {
            self.data[slot as usize * self.elements..][..self.elements].copy_from_slice(data);
        }
    }
}
