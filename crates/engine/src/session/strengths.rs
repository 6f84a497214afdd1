//! How strongly each sequence has the adapters of the model.

use bilayer_graph::{Activation, Graph, Op, Value};
use bilayer_settings::Setting;

use super::{SequenceId, Session};
use crate::{Error, Model};

/// A value of the graph that no op computes: the strength of an adapter for the sequence of each row, times a factor, in
/// every element of the row. It is an input of each segment that reads it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Given {
    /// The value.
    pub value: Value,
    /// The number of the adapter.
    pub adapter: usize,
    /// The factor.
    pub factor: f32,
}

/// Makes the strengths of a model's adapters values of its graph, where sequences may set them: products of low rank are
/// multiplied by such a value instead of a number.
pub fn give(graph: &mut Graph, model: &Model) -> Vec<Given> {
    let mut given: Vec<Given> = Vec::new();
    if !model.is_adapted_by_sequence() {
        return given;
    }
    for number in 1..graph.nodes.len() {
        let Op::Scale { input, out, .. } = graph.nodes[number].op else { continue };
        let Op::MatMul { weight, out: product, .. } = graph.nodes[number - 1].op else { continue };
        let name = &graph.weight(weight).name;
        let is_own = |prefix: &str| name.starts_with(prefix) && name.ends_with(".lora_a");
        let adapter = model.loras().iter().position(|lora| is_own(&lora.prefix));
        let Some(adapter) = adapter.filter(|_| product == input) else { continue };
        let rank = graph.width(input);
        let factor = model.loras()[adapter].alpha.map_or(1.0, |alpha| alpha / rank as f32);
        let shape = graph.values[input.0 as usize].clone();
        let known = given.iter().find(|known| {
            let is_same = (known.adapter, known.factor) == (adapter, factor);
            is_same && graph.values[known.value.0 as usize] == shape
        });
        let value = match known {
            Some(known) => known.value,
            None => {
                let value = Value(graph.values.len() as u32);
                graph.values.push(shape);
                given.push(Given { value, adapter, factor });
                value
            }
        };
        let activation = Activation::Identity;
        graph.nodes[number].op = Op::Gate { gate: input, up: Some(value), activation, out };
    }
    given
}

/// The strengths of all sequences, `[sequences, adapters]`.
#[derive(Clone, Debug, Default)]
pub struct Strengths {
    /// Those of a sequence for which nothing was set.
    usual: Vec<f32>,
    of: Vec<f32>,
}

impl Strengths {
    /// Those that a model's adapters have by themselves, if sequences may have others.
    pub fn new(model: &Model) -> Strengths {
        let loras = if model.is_adapted_by_sequence() { model.loras() } else { &[] };
        Strengths { usual: loras.iter().map(|lora| lora.scale).collect(), of: Vec::new() }
    }

    /// Those of a sequence, `[adapters]`.
    pub fn of(&self, sequence: SequenceId) -> &[f32] {
        let first = sequence.0 as usize * self.usual.len();
        self.of.get(first..first + self.usual.len()).unwrap_or(&self.usual)
    }

    /// Sets those of a sequence.
    fn set(&mut self, sequence: SequenceId, strengths: Option<&[f32]>) {
        let first = sequence.0 as usize * self.usual.len();
        while self.of.len() < first + self.usual.len() {
            self.of.extend_from_slice(&self.usual);
        }
        self.of[first..][..self.usual.len()].copy_from_slice(strengths.unwrap_or(&self.usual));
    }
}

impl Session {
    /// Sets how strongly a sequence has each adapter of the model from its next token on; `None` is as the adapters were
    /// opened. What it holds was computed with the earlier strengths.
    ///
    /// # Errors
    /// The model has another number of adapters, or they are part of its graph; a strength is not finite.
    pub fn adapt(&mut self, sequence: SequenceId, strengths: Option<&[f32]>) -> Result<(), Error> {
        if let Some(strengths) = strengths {
            self.check_strengths(strengths)?;
        }
        self.strengths.set(sequence, strengths);
        Ok(())
    }

    /// Whether strengths fit the adapters.
    pub(crate) fn check_strengths(&self, strengths: &[f32]) -> Result<(), Error> {
        let adapters = self.strengths.usual.len();
        if strengths.len() == adapters && strengths.iter().all(|strength| strength.is_finite()) {
            return Ok(());
        }
        let expected = match adapters {
            0 => "nothing: the model has no adapters whose strength can be set".to_owned(),
            _ => format!("{adapters} finite numbers"),
        };
        Err(Error::setting(Setting::Lora, format!("{strengths:?}"), expected))
    }

    /// How strongly a sequence has each adapter whose strength can be set.
    pub fn adapted(&self, sequence: SequenceId) -> &[f32] {
        self.strengths.of(sequence)
    }

    /// How strongly sequences have each adapter unless set.
    pub(crate) fn usual_strengths(&self) -> &[f32] {
        &self.strengths.usual
    }

    /// Gives a sequence that was just opened the strengths of another, or the usual ones.
    pub(super) fn inherit(&mut self, sequence: SequenceId, from: Option<SequenceId>) {
        let of = from.map(|from| self.strengths.of(from).to_vec());
        self.strengths.set(sequence, of.as_deref());
    }
}
