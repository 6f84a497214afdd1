//! How much each input column of each matrix matters: sums of squared activations over a calibration text.
//!
//! The values that matrices are multiplied with are kept of every step ([`Session::watched`]) and their squares summed,
//! column by column, in f64. Matrices with the same input share a sum. The convention is llama.cpp's imatrix tool's: by
//! default the matrices of the layers only, over windows as in [`perplexity`](crate::perplexity).

use std::collections::BTreeMap;

use bilayer_graph::{Graph, Op, Rows, Value};
use rayon::prelude::*;

use crate::Error;
use crate::session::{Run, Session, Settings, Wanted};

/// Most memory for the values kept of a step; devices take as much once more.
const KEPT_BYTES: usize = 256 << 20;

/// Least tokens of a step: fewer and every step would read all weights for little.
const TOKENS_MIN: usize = 16;

/// Which matrices are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Those of the layers.
    #[default]
    Layers,
    /// The head's too.
    LayersAndHead,
}

/// The sums of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sums<'a> {
    /// The tensor.
    pub name: &'a str,
    /// `[matrices, cols]`: of a stack of experts one row for each.
    pub squares: &'a [f64],
    /// How many rows of activations went into each matrix's sums.
    pub counts: &'a [u64],
}

/// What is multiplied with some tensors.
struct Input {
    value: Value,
    /// `[cols]`.
    squares: Vec<f64>,
    /// Of its one matrix.
    counts: [u64; 1],
}

/// Sums in the making.
pub struct Collector {
    inputs: Vec<Input>,
    /// The tensors, with the place of what they are multiplied with.
    tensors: BTreeMap<String, usize>,
    /// Whether a value exists only where logits are wanted.
    wants_outputs: bool,
    /// Bytes of the values of one token.
    token_bytes: usize,
}

impl Collector {
    /// Looks at the matrices of a graph.
    pub fn new(graph: &Graph, scope: Scope) -> Collector {
        let mut inputs: Vec<Input> = Vec::new();
        let mut tensors = BTreeMap::new();
        for node in &graph.nodes {
            let Op::MatMul { input, weight, .. } = &node.op else { continue };
            if node.layer.is_none() && scope == Scope::Layers {
                continue;
            }
            let known = inputs.iter().position(|known| known.value == *input);
            let place = known.unwrap_or_else(|| {
                let squares = vec![0.0; graph.width(*input)];
                inputs.push(Input { value: *input, squares, counts: [0] });
                inputs.len() - 1
            });
            // Several matrices may lie in one tensor; what they share is their input.
            tensors.insert(graph.weight(*weight).name.clone(), place);
        }
        let wants_outputs = inputs.iter().any(|input| graph.rows(input.value) == Rows::Outputs);
        let widths: usize = inputs.iter().map(|input| input.squares.len()).sum();
        let logits = if wants_outputs { graph.width(graph.logits) } else { 0 };
        Collector { inputs, tensors, wants_outputs, token_bytes: 4 * (widths + logits) }
    }

    /// What a session for windows of `len` tokens needs; the other settings as given.
    pub fn settings<'s>(&self, len: usize, settings: Settings<'s>) -> Settings<'s> {
        let most = (KEPT_BYTES / self.token_bytes.max(1)).max(TOKENS_MIN);
        let ubatch_size = settings.ubatch_size.min(most).min(len);
        Settings {
            ctx_size: Some(len),
            sequences: 1,
            ubatch_size,
            outputs: Some(if self.wants_outputs { ubatch_size } else { 1 }),
            fuse: false,
            top_k: None,
            watched: self.inputs.iter().map(|input| input.value).collect(),
            ..settings
        }
    }

    /// Runs a window on a session prepared by [`Collector::settings`]. `each` is told after every step how many tokens it
    /// had, and stops the work by returning false; answers whether the window is complete.
    ///
    /// # Errors
    /// A device fails, or a value is not finite: then the sums are of no use.
    pub fn window(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        each: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, Error> {
        let wanted = if self.wants_outputs { Wanted::All } else { Wanted::None };
        let sequence = session.open()?;
        for tokens in tokens.chunks(session.limits().tokens) {
            session.step(&[Run { sequence, tokens, wanted }])?;
            self.add(session)?;
            if !each(tokens.len()) {
                return Ok(false);
            }
        }
        session.close(sequence);
        Ok(true)
    }

    /// Adds what the session kept of its last step.
    fn add(&mut self, session: &Session) -> Result<(), Error> {
        let kept = |input: &Input| session.watched(input.value).expect("the settings asked for it");
        let values: Vec<&[f32]> = self.inputs.iter().map(kept).collect();
        self.inputs.par_iter_mut().zip(values).for_each(|(input, values)| {
            for row in values.chunks_exact(input.squares.len()) {
                for (sum, &x) in input.squares.iter_mut().zip(row) {
                    *sum += f64::from(x) * f64::from(x);
                }
                input.counts[0] += 1;
            }
        });
        let is_bad = |place: usize| !self.inputs[place].squares.iter().all(|sum| sum.is_finite());
        match self.tensors.iter().find(|(_, place)| is_bad(**place)) {
            Some((name, _)) => {
                let label = format!("what {name} is multiplied with");
                Err(bilayer_graph::Error::NotFinite { label, op: "matmul" }.into())
            }
            None => Ok(()),
        }
    }

    /// The sums of every tensor so far, by name.
    pub fn sums(&self) -> impl Iterator<Item = Sums<'_>> {
        self.tensors.iter().map(|(name, &place)| {
            let Input { squares, counts, .. } = &self.inputs[place];
            Sums { name, squares, counts }
        })
    }
}
