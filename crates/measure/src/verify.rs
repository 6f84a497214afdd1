//! Compares two backends op by op on the same tokens: which op of the second one is off, and by how much.
//!
//! Every op of the second backend is a separate segment with inputs computed by the *first*, so an op shows only its
//! own error. So is every group of ops that a backend fuses, such as the last norm and the output matrix. The model's
//! results, logits or an encoder's output, are then compared end to end, with each backend on its own.

use std::collections::HashMap;

use bilayer_graph::fuse::{self, Item};
use bilayer_graph::{
    Backend, Exactness, Graph, Holding, Limits, Op, PAGE_TOKENS, Precision, Rows, Segment, Span,
    StateSpan, Step, Value, WeightId,
};

use bilayer_engine::Model;
use bilayer_engine::session::Purpose;
use bilayer_quant::Type;
use bilayer_quant::cache::{Form, form};

use crate::{Error, cosine};

mod sides;

pub use sides::{Side, Sides, TOKENS_MAX, Verified};

/// Bound on [`OpError::nmse`] of ops in floats: sums in a different order (2e-5 of the root), squared.
const FLOAT_BOUND: f64 = 1e-9;

/// Bound where numbers are rounded to sixteen bits (caches).
const HALF_BOUND: f64 = 1e-6;

/// Bound where a matrix is quantized: activations are rounded to eight bits on one side or both (1.2 % of the root).
const INT8_BOUND: f64 = 3e-4;

/// Activations with one scale are rounded by a 127th of the largest magnitude, whatever the others are; the error may be so
/// many times what that rounding is on average.
const ROUNDING_MARGIN: f64 = 3.0;

/// Added where weights are rounded to 127 steps of the largest magnitude among 256, which may be ten times their root mean
/// square.
const WEIGHTS_BOUND: f64 = 6e-4;

/// Most activations with one scale, unless it holds for a whole row.
const RUN_MAX: usize = 256;

/// Bound where each activation of a product is within 1/256 of its value, squared: where the product reads its input with
/// fine precision, or its weights are BF16, so that the input may be rounded to bf16.
const FINE_BOUND: f64 = 1.6e-5;

/// Bound of attention over codes of 4 or 5 bits: a quotient near a half may be rounded either way, which is a step of up to
/// an eighth of a block's largest element.
const CODE_BOUND: f64 = 1e-5;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// One sequence.
    pub tokens: &'a [u32],
    /// How the KV cache stores keys and values.
    pub cache_types: [Type; 2],
    /// Whether keys are stored after the Hadamard transform.
    pub hadamard_keys: bool,
    /// Whether a backend rounds the weights of prompts.
    pub rounds_weights: bool,
}

impl<'a> Input<'a> {
    /// Tokens, with a KV cache of f16.
    pub fn new(tokens: &'a [u32]) -> Input<'a> {
        Input { tokens, cache_types: [Type::F16; 2], hadamard_keys: false, rounds_weights: false }
    }
}

/// One op of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct OpError {
    /// The layer; `None` outside of them.
    pub layer: Option<u32>,
    /// The op with its place, such as `matmul ffn_down`.
    pub op: String,
    /// Mean squared difference over the mean square of the first backend's values.
    pub nmse: f64,
    /// Its bound.
    pub bound: f64,
}

impl OpError {
    /// Whether it is within its bound.
    pub fn is_good(&self) -> bool {
        self.nmse <= self.bound
    }
}

/// Difference of the model's result rows, over all positions, in terms besides the normalized mean squared error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ends {
    /// A decoder's logits.
    Logits {
        /// Mean Kullback-Leibler divergence of the second from the first, nats.
        kl: f64,
        /// Share of positions with the same best token.
        top1: f64,
    },
    /// An encoder's vectors.
    Embeddings {
        /// The mean cosine similarity of corresponding rows.
        cosine_mean: f64,
        /// The minimum.
        cosine_min: f64,
    },
    /// An encoder's scores.
    Scores {
        /// The largest difference of corresponding scores.
        difference_max: f64,
    },
}

/// The result.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Every op, in the order of the graph.
    pub ops: Vec<OpError>,
    /// Every group of ops that is fused, named after the last of them, such as `fused add ffn_residual`.
    pub fused: Vec<OpError>,
    /// End to end: mean squared difference over the mean square.
    pub nmse: f64,
    /// The difference in other terms.
    pub ends: Ends,
    /// The second backend's rows, `[tokens, width]`.
    pub found: Vec<f32>,
    /// Elements per row.
    pub width: usize,
}

impl Report {
    /// The first op out of its bound, or else the first fused group of ops.
    pub fn first_bad(&self) -> Option<&OpError> {
        self.ops.iter().chain(&self.fused).find(|op| !op.is_good())
    }

    /// Whether all of the second backend's rows are numbers. Their error has no bound: it grows with every layer, by as much as
    /// the model's weights make of it.
    pub fn is_finite(&self) -> bool {
        self.found.iter().all(|value| value.is_finite())
    }

    /// Whether every op is within its bound, by itself and fused, and every row is finite.
    pub fn is_good(&self) -> bool {
        self.first_bad().is_none() && self.is_finite()
    }
}

/// Runs the tokens on both backends. `progress` receives the number of finished ops and their total, before each op and at
/// the end, and says whether to go on.
///
/// # Errors
/// A device fails, or a token is not in the vocabulary; `progress` ended it.
pub fn verify(
    model: &Model,
    first: &mut dyn Backend,
    second: &mut dyn Backend,
    input: Input<'_>,
    progress: &mut dyn FnMut(usize, usize) -> bool,
) -> Result<Report, Error> {
    let tokens = input.tokens;
    let vocab = model.config().vocab;
    if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab) {
        return Err(bilayer_engine::Error::Token { token, vocab }.into());
    }
    let case = Case::new(model, input)?;
    let graph = &case.graph;
    let mut go_on = |done| match progress(done, graph.nodes.len()) {
        true => Ok(()),
        false => Err(bilayer_engine::Error::Interrupted),
    };
    go_on(0)?;
    let expected = case.values(first)?;
    go_on(0)?;
    let found = case.rows(second)?;
    let (mut ops, mut fused) = (Vec::with_capacity(graph.nodes.len()), Vec::new());
    let mut items: HashMap<usize, Item> = fuse::joined(&case.whole(vec![graph.logits]))
        .into_iter()
        .filter_map(|item| Some((*item.nodes.last().filter(|_| item.nodes.len() > 1)?, item)))
        .collect();
    for node in 0..graph.nodes.len() {
        go_on(node)?;
        ops.push(case.op(second, node, &expected)?);
        if let Some(item) = items.remove(&node) {
            fused.push(case.fused(second, &item, &expected)?);
        }
    }
    go_on(graph.nodes.len())?;
    let expected = &expected[graph.logits.0 as usize];
    let width = graph.width(graph.logits);
    let rows = Pairs { expected, found: &found, width };
    let ends = match &model.config().encoder {
        None => rows.logits(),
        Some(encoder) if encoder.scores => rows.scores(),
        Some(_) => rows.embeddings(),
    };
    Ok(Report { ops, fused, nmse: nmse(expected, &found), ends, found, width })
}

/// Tokens of one sequence with all rows requested.
struct Case<'m> {
    model: &'m Model,
    graph: Graph,
    tokens: &'m [u32],
    outputs: Vec<u32>,
    pages: Vec<u32>,
    spans: [Span; 1],
    states: [StateSpan; 1],
    limits: Limits,
    rounds_weights: bool,
}

impl<'m> Case<'m> {
    fn new(model: &'m Model, input: Input<'m>) -> Result<Case<'m>, Error> {
        let Input { tokens, cache_types, hadamard_keys, rounds_weights } = input;
        let [key_type, value_type] = cache_types;
        let rows = tokens.len();
        let pages = rows.div_ceil(PAGE_TOKENS);
        Ok(Case {
            model,
            graph: model.graph_for(rows, Purpose::Own)?,
            tokens,
            outputs: (0..rows as u32).collect(),
            pages: (0..pages as u32).collect(),
            spans: [Span { first_row: 0, rows: rows as u32, first_position: 0, first_page: 0 }],
            states: [StateSpan { first_row: 0, rows: rows as u32, from: None, to: 0 }],
            limits: Limits {
                key_type,
                value_type,
                hadamard_keys,
                fuse: false,
                ..Limits::new(rows, pages)
            },
            rounds_weights,
        })
    }

    fn step(&self) -> Step<'_> {
        Step {
            tokens: self.tokens,
            spans: &self.spans,
            pages: &self.pages,
            outputs: &self.outputs,
            states: &self.states,
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        }
    }

    fn room(&self, value: Value) -> Vec<f32> {
        let rows = match self.graph.rows(value) {
            Rows::Tokens => self.tokens.len(),
            Rows::Outputs => self.outputs.len(),
        };
        vec![0.0; rows * self.graph.width(value)]
    }

    fn load(&self, backend: &mut dyn Backend) -> Result<(), Error> {
        let graph = &self.graph;
        let weights: Vec<_> = graph.weights.iter().collect();
        backend.reserve(&Holding { weights: &weights, ..Holding::default() })?;
        for weight in weights {
            let missing = || bilayer_graph::Error::MissingTensor { name: weight.name.clone() };
            let file = self.model.file();
            let tensor = file.tensor(&weight.name).ok_or_else(missing)?;
            backend.load(weight, file.bytes(tensor).slice(weight.range_in_tensor()))?;
        }
        Ok(())
    }

    /// The whole graph.
    fn whole(&self, outputs: Vec<Value>) -> Segment<'_> {
        let graph = &self.graph;
        Segment { graph, nodes: 0..graph.nodes.len(), inputs: Vec::new(), outputs }
    }

    /// Every value of the graph, computed by one backend in one segment.
    fn values(&self, backend: &mut dyn Backend) -> Result<Vec<Vec<f32>>, Error> {
        self.load(backend)?;
        let made: Vec<Value> = self.graph.nodes.iter().map(|node| node.op.out()).collect();
        let found = self.run(backend, &self.whole(made.clone()), self.limits, &[])?;
        let mut values = vec![Vec::new(); self.graph.values.len()];
        for (value, found) in made.into_iter().zip(found) {
            values[value.0 as usize] = found;
        }
        Ok(values)
    }

    /// The result rows of the whole graph, fused as in a normal run.
    fn rows(&self, backend: &mut dyn Backend) -> Result<Vec<f32>, Error> {
        self.load(backend)?;
        let limits = Limits { fuse: true, ..self.limits };
        let found = self.run(backend, &self.whole(vec![self.graph.logits]), limits, &[])?;
        Ok(found.concat())
    }

    /// Runs a segment of a loaded backend on values computed by another; its outputs.
    fn run(
        &self,
        backend: &mut dyn Backend,
        segment: &Segment<'_>,
        limits: Limits,
        expected: &[Vec<f32>],
    ) -> Result<Vec<Vec<f32>>, Error> {
        let id = backend.compile(segment, limits)?;
        for &input in &segment.inputs {
            backend.write(input, &expected[input.0 as usize])?;
        }
        backend.submit(id, &self.step())?;
        let mut read = |value: &Value| {
            let mut found = self.room(*value);
            backend.read(*value, &mut found)?;
            Ok(found)
        };
        segment.outputs.iter().map(&mut read).collect()
    }

    /// Runs one op of a loaded backend on values computed by another.
    fn op(
        &self,
        backend: &mut dyn Backend,
        node: usize,
        expected: &[Vec<f32>],
    ) -> Result<OpError, Error> {
        let graph = &self.graph;
        let op = &graph.nodes[node].op;
        let mut inputs: Vec<Value> = op.inputs().collect();
        inputs.sort_unstable();
        inputs.dedup();
        let (nodes, outputs) = (node..node + 1, vec![op.out()]);
        let segment = Segment { graph, nodes, inputs, outputs };
        let found = self.run(backend, &segment, self.limits, expected)?;
        Ok(OpError {
            layer: graph.nodes[node].layer,
            op: self.label(node),
            nmse: nmse(&expected[op.out().0 as usize], &found[0]),
            bound: self.bound(op, expected),
        })
    }

    /// Such as `matmul ffn_down`.
    fn label(&self, node: usize) -> String {
        let node = &self.graph.nodes[node];
        format!("{} {}", node.op.kind().stem(), node.name)
    }

    /// Runs fused ops of a loaded backend on values computed by another: a graph of their own, since others may lie between
    /// them. Of several results the one nearest to its bound counts.
    fn fused(
        &self,
        backend: &mut dyn Backend,
        item: &Item,
        expected: &[Vec<f32>],
    ) -> Result<OpError, Error> {
        let mut graph = self.graph.clone();
        graph.nodes = item.nodes.iter().map(|&node| self.graph.nodes[node].clone()).collect();
        let made: Vec<Value> = graph.nodes.iter().map(|node| node.op.out()).collect();
        let mut inputs: Vec<Value> = graph.nodes.iter().flat_map(|node| node.op.inputs()).collect();
        inputs.retain(|input| !made.contains(input));
        inputs.sort_unstable();
        inputs.dedup();
        let others = self.graph.nodes.iter().enumerate().filter(|(n, _)| !item.nodes.contains(n));
        let read: Vec<Value> = others.flat_map(|(_, node)| node.op.inputs()).collect();
        let is_read = |value: &Value| *value == self.graph.logits || read.contains(value);
        let outputs: Vec<Value> = made.into_iter().filter(is_read).collect();
        let nodes = 0..graph.nodes.len();
        let segment = Segment { graph: &graph, nodes, inputs, outputs };
        let limits = Limits { fuse: true, ..self.limits };
        let found = self.run(backend, &segment, limits, expected)?;
        let bounds = self.bounds(&graph, expected);
        let each = segment.outputs.iter().zip(&found).map(|(value, found)| {
            let nmse = nmse(&expected[value.0 as usize], found);
            (nmse, bounds[value])
        });
        let ratio = |(nmse, bound): &(f64, f64)| nmse / bound;
        let worst = each.max_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let (nmse, bound) = worst.expect("somebody reads what ops compute");
        let last = item.nodes[item.nodes.len() - 1];
        let (layer, op) = (self.graph.nodes[last].layer, format!("fused {}", self.label(last)));
        Ok(OpError { layer, op, nmse, bound })
    }

    /// The error bounds of what the ops of a graph compute one after the other. An op adds its own to those of its inputs, since
    /// squares of independent errors add up; those of summands count by their size, as a large one may cancel another.
    fn bounds(&self, graph: &Graph, values: &[Vec<f32>]) -> HashMap<Value, f64> {
        let mut bounds: HashMap<Value, f64> = HashMap::new();
        let size = |value: Value| squares(&values[value.0 as usize]);
        for op in graph.nodes.iter().map(|node| &node.op) {
            let carried = |value: Value| match (bounds.get(&value), op) {
                (None, _) => 0.0,
                (Some(bound), Op::Add { out, .. }) if size(*out) > 0.0 => {
                    bound * size(value) / size(*out)
                }
                (Some(bound), _) => *bound,
            };
            let carried: f64 = op.inputs().map(carried).sum();
            bounds.insert(op.out(), self.bound(op, values) + carried);
        }
        bounds
    }

    /// The error bound of an op on these values.
    fn bound(&self, op: &Op, values: &[Vec<f32>]) -> f64 {
        let ty = |&id: &WeightId| self.graph.weight(id).ty;
        let is_quantized = |id: &WeightId| ty(id).block_weights > 1;
        let has_row_scales = |id: &WeightId| !ty(id).has_lone_blocks();
        match op {
            Op::MatMul { weight, precision: Precision::Fine, .. }
                if is_quantized(weight) && !has_row_scales(weight) =>
            {
                FINE_BOUND
            }
            op if op.matrices().iter().any(is_quantized)
                || self.rounds_weights && !op.matrices().is_empty() =>
            {
                let of_rows = op.matrices().iter().any(has_row_scales);
                let run = if of_rows { usize::MAX } else { RUN_MAX };
                let inputs = op.inputs().map(|input| values[input.0 as usize].as_slice());
                let rounding = inputs.map(|x| rounding(x, (x.len() / self.tokens.len(), run)));
                let bound = INT8_BOUND.max(ROUNDING_MARGIN * rounding.fold(0.0, f64::max));
                bound + if self.rounds_weights { WEIGHTS_BOUND } else { 0.0 }
            }
            op if op.matrices().iter().any(|id| ty(id) == Type::BF16) => FINE_BOUND,
            Op::Attend(attend) if attend.cache.is_some() && rounds_to_codes(self.limits) => {
                CODE_BOUND
            }
            Op::Attend(_) => HALF_BOUND,
            _ => FLOAT_BOUND,
        }
    }
}

/// The mean squared error of values, as a share of their mean square, when each run in a row of `width` is rounded to 127
/// steps of its largest magnitude.
fn rounding(values: &[f32], (width, run): (usize, usize)) -> f64 {
    let runs = values.chunks(width.max(1)).flat_map(|row| row.chunks(run));
    let off: f64 = runs
        .map(|run| {
            let step = f64::from(run.iter().fold(0.0f32, |most, x| most.max(x.abs()))) / 127.0;
            run.len() as f64 * step * step / 12.0
        })
        .sum();
    let whole = squares(values);
    if whole > 0.0 { off / whole } else { 0.0 }
}

/// Whether keys or values are stored in 4 or 5 bits.
fn rounds_to_codes(limits: Limits) -> bool {
    let of = |ty| matches!(form(ty), Some(Form::Blocks(coding)) if coding.bits < 8);
    of(limits.key_type) || of(limits.value_type)
}

/// The sum of the squares.
fn squares(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x) * f64::from(x)).sum()
}

fn nmse(expected: &[f32], found: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let off: f64 = expected.iter().zip(found).map(|(e, f)| square(e - f)).sum();
    let whole = squares(expected);
    match (off == 0.0, off.is_finite() && whole > 0.0) {
        (true, _) => 0.0,
        (false, true) => off / whole,
        (false, false) => f64::INFINITY,
    }
}

/// The rows of two backends, `[tokens, width]` each.
struct Pairs<'a> {
    expected: &'a [f32],
    found: &'a [f32],
    width: usize,
}

impl Pairs<'_> {
    fn each(&self) -> impl ExactSizeIterator<Item = (&[f32], &[f32])> {
        self.expected.chunks_exact(self.width).zip(self.found.chunks_exact(self.width))
    }

    fn logits(&self) -> Ends {
        let (mut kl, mut same) = (0.0, 0.0);
        for (e, f) in self.each() {
            let (p, q) = (log_softmax(e), log_softmax(f));
            kl += p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            same += f64::from(u8::from(best(e) == best(f)));
        }
        let rows = self.each().len().max(1) as f64;
        Ends::Logits { kl: kl / rows, top1: same / rows }
    }

    fn embeddings(&self) -> Ends {
        let cosines: Vec<f64> = self.each().map(|(e, f)| cosine(e, f)).collect();
        let rows = cosines.len().max(1) as f64;
        Ends::Embeddings {
            cosine_mean: cosines.iter().sum::<f64>() / rows,
            cosine_min: cosines.iter().copied().fold(1.0, f64::min),
        }
    }

    fn scores(&self) -> Ends {
        let difference = |(e, f): (&f32, &f32)| (f64::from(*e) - f64::from(*f)).abs();
        let differences = self.expected.iter().zip(self.found).map(difference);
        Ends::Scores { difference_max: differences.fold(0.0, f64::max) }
    }
}

fn log_softmax(row: &[f32]) -> Vec<f64> {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - most).exp()).sum();
    row.iter().map(|&x| f64::from(x - most) - sum.ln()).collect()
}

fn best(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_are_not_finite_are_not_good() {
        let op = |nmse| OpError { layer: None, op: String::new(), nmse, bound: FLOAT_BOUND };
        let of = |nmse, value| Report {
            ops: vec![op(nmse)],
            fused: Vec::new(),
            nmse: 0.0,
            ends: Ends::Logits { kl: 0.0, top1: 1.0 },
            found: vec![0.0, value],
            width: 2,
        };
        assert!(of(0.0, 1.0).is_good());
        for value in [f32::NAN, f32::INFINITY] {
            let report = of(0.0, value);
            assert!(report.first_bad().is_none() && !report.is_good(), "{value}");
        }
        assert!(!of(1.0, 1.0).is_good());
    }

    #[test]
    fn rounding_depends_on_the_peaks_of_runs() {
        let step = 1.0 / 127.0;
        // Steps are as even as the squares of +-1, and four times as large for an outlier of 2.
        let even = rounding(&[1.0, -1.0, 1.0, 1.0], (4, usize::MAX));
        assert!((even - step * step / 12.0).abs() < 1e-12);
        let peaked = rounding(&[2.0, 0.0, 0.0, 0.0], (4, usize::MAX));
        assert!((peaked - 4.0 * even).abs() < 1e-9, "{peaked}");
        // The scale of another run does not matter.
        let apart = rounding(&[2.0, 0.0, 0.0, 0.0, 1.0, 1.0, -1.0, 1.0], (8, 4));
        assert!((apart - (4.0 * peaked + 4.0 * even) / 8.0).abs() < 1e-9, "{apart}");
        assert_eq!(rounding(&[0.0; 4], (4, usize::MAX)).to_bits(), 0.0f64.to_bits());
    }
}
