//! Importance of each input column of each matrix: sums of squared activations over a calibration text.
//!
//! On request also the products of every two columns, X^T X, which pruning with correction needs.
//!
//! The inputs of matrix products are stored in every step ([`Session::watched`]) and their squares summed by column
//! in f64. Matrices with the same input share a sum. The convention is that of llama.cpp's imatrix tool: by default
//! only the matrices of the layers, over windows as in [`perplexity`](crate::perplexity).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bilayer_graph::{Graph, Op, Rows, Value, WeightId};
use rayon::prelude::*;

use crate::Error;
use crate::perplexity::Windows;
use bilayer_engine::session::{Run, Session, Settings, Wanted};

/// Maximum memory for stored values per step; devices take the same amount again.
const KEPT_BYTES: usize = 256 << 20;

/// Minimum tokens per step: with fewer, every step would read all weights for little.
const TOKENS_MIN: usize = 16;

/// Which matrices are covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The matrices of the layers.
    #[default]
    Layers,
    /// Also the head.
    LayersAndHead,
}

/// The sums of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sums<'a> {
    /// The tensor.
    pub name: &'a str,
    /// `[matrices, cols]`: for a stack of experts one row each.
    pub squares: &'a [f64],
    /// Number of activation rows in each matrix's sums.
    pub counts: &'a [u64],
}

/// Some of the rows that a tensor is multiplied with, and the range of all of them.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'a> {
    /// `[cols]`: the largest magnitude of each column over all rows.
    pub peaks: &'a [f32],
    /// `[rows, cols]`, spread evenly over the text.
    pub rows: &'a [f32],
}

/// A [`Sample`] that grows.
struct Kept {
    peaks: Vec<f32>,
    rows: Vec<f32>,
    /// Most rows.
    most: usize,
    /// Every `step`-th row is kept.
    step: usize,
    seen: usize,
}

impl Kept {
    fn add(&mut self, row: &[f32]) {
        let cols = self.peaks.len();
        for (peak, x) in self.peaks.iter_mut().zip(row) {
            *peak = peak.max(x.abs());
        }
        if self.seen.is_multiple_of(self.step) {
            if self.rows.len() == self.most * cols {
                // Every second one gives way.
                let halved = self.rows.chunks_exact(cols).step_by(2);
                self.rows = halved.flatten().copied().collect();
                self.step *= 2;
            }
            if self.seen.is_multiple_of(self.step) {
                self.rows.extend_from_slice(row);
            }
        }
        self.seen += 1;
    }
}

/// The input of some tensors.
struct Input {
    value: Value,
    /// The route that selects each row's matrices, as in [`Op::Route`]; `None` for a single matrix.
    route: Option<Value>,
    /// Elements per row of one matrix.
    cols: usize,
    /// `[matrices, cols]`.
    squares: Vec<f64>,
    /// Rows routed to each matrix.
    counts: Vec<u64>,
    /// The upper triangle of X^T X, `[cols, cols]` in f32, if requested.
    products: Option<Vec<f32>>,
    /// Some rows, if requested.
    kept: Option<Kept>,
}

impl Input {
    /// Adds rows `[rows, cols]`, or `[rows, used * cols]` if each matrix of a route has its own input. `route` is
    /// `[rows, 2 used]`: weights, then the matrices' indices.
    fn add(&mut self, values: &[f32], width: usize, route: Option<(&[f32], usize)>) {
        let Some((route, route_width)) = route else {
            values.chunks_exact(self.cols).for_each(|row| self.add_row(0, row));
            self.add_products(values);
            if let Some(kept) = &mut self.kept {
                values.chunks_exact(self.cols).for_each(|row| kept.add(row));
            }
            return;
        };
        for (row, route) in values.chunks_exact(width).zip(route.chunks_exact(route_width)) {
            // One row for all matrices, or one each.
            let own = row.chunks_exact(self.cols).cycle();
            for (row, &matrix) in own.zip(&route[route_width / 2..]) {
                self.add_row(matrix as usize, row);
            }
        }
    }

    /// Adds the products of the columns of `[rows, cols]`, one row of products at a time.
    fn add_products(&mut self, values: &[f32]) {
        let (cols, Some(products)) = (self.cols, &mut self.products) else { return };
        products.par_chunks_exact_mut(cols).enumerate().for_each(|(i, sums)| {
            for row in values.chunks_exact(cols) {
                let factor = row[i];
                sums[i..].iter_mut().zip(&row[i..]).for_each(|(sum, x)| *sum += factor * x);
            }
        });
    }

    fn add_row(&mut self, matrix: usize, row: &[f32]) {
        let sums = &mut self.squares[matrix * self.cols..][..self.cols];
        for (sum, &x) in sums.iter_mut().zip(row) {
            *sum += f64::from(x) * f64::from(x);
        }
        self.counts[matrix] += 1;
    }
}

/// A moment of a run over windows.
pub enum Moment<S> {
    /// So many further tokens were run.
    Tokens(usize),
    /// So many windows are complete; their sums.
    Windows(usize, S),
}

/// Sums being collected.
pub struct Collector {
    inputs: Vec<Input>,
    /// The tensors: the index of their input, and the range of its matrices that they contain.
    tensors: BTreeMap<String, (usize, Range<usize>)>,
    /// The values stored in every step, with elements per row.
    watched: BTreeMap<Value, usize>,
    /// Whether a value exists only for requested outputs.
    wants_outputs: bool,
    /// Bytes of these values per token.
    token_bytes: usize,
}

impl Collector {
    /// Prepares sums for the matrices of a graph.
    pub fn new(graph: &Graph, scope: Scope) -> Collector {
        let mut collector = Collector {
            inputs: Vec::new(),
            tensors: BTreeMap::new(),
            watched: BTreeMap::new(),
            wants_outputs: false,
            token_bytes: 0,
        };
        let nodes = graph.nodes.iter();
        for node in nodes.filter(|node| node.layer.is_some() || scope == Scope::LayersAndHead) {
            match &node.op {
                Op::MatMul { input, weight, .. } => {
                    collector.look(graph, (*input, None), &[*weight], 1);
                }
                Op::Experts(experts) => {
                    let source = (experts.input, Some(experts.route));
                    collector.look(graph, source, &experts.stack, graph.experts(experts));
                }
                _ => {}
            }
        }
        let rows = |value: &Value| graph.rows(*value);
        collector.wants_outputs = collector.watched.keys().any(|v| rows(v) == Rows::Outputs);
        let logits = if collector.wants_outputs { graph.width(graph.logits) } else { 0 };
        collector.token_bytes = 4 * (collector.watched.values().sum::<usize>() + logits);
        collector
    }

    /// Records that a value, with rows selected by a route, is multiplied with the `matrices` in `weights`: all in
    /// one weight, or one each.
    fn look(
        &mut self,
        graph: &Graph,
        (value, route): (Value, Option<Value>),
        weights: &[WeightId],
        matrices: usize,
    ) {
        let cols = graph.weight(weights[0]).cols;
        let is_known =
            |known: &Input| (known.value, known.route, known.cols) == (value, route, cols);
        let place = self.inputs.iter().position(is_known).unwrap_or_else(|| {
            let (squares, counts) = (vec![0.0; matrices * cols], vec![0; matrices]);
            let (products, kept) = (None, None);
            self.inputs.push(Input { value, route, cols, squares, counts, products, kept });
            self.inputs.len() - 1
        });
        for value in route.into_iter().chain([value]) {
            self.watched.insert(value, graph.width(value));
        }
        let each = matrices / weights.len();
        for (number, &weight) in weights.iter().enumerate() {
            // Several matrices may be fused in one tensor; they share their input.
            let name = graph.weight(weight).name.clone();
            self.tensors.insert(name, (place, number * each..(number + 1) * each));
        }
    }

    /// Also sums the products of columns of the inputs of these tensors, 4 · cols² bytes each. Inputs of routed experts
    /// are left out.
    pub fn want_products(&mut self, wanted: &dyn Fn(&str) -> bool) {
        for (name, (place, _)) in &self.tensors {
            let input = &mut self.inputs[*place];
            if input.route.is_none() && wanted(name) {
                input.products.get_or_insert_with(|| vec![0.0; input.cols * input.cols]);
            }
        }
    }

    /// Also keeps up to `rows` rows of every input, and the largest magnitude of each column. Inputs of routed experts are
    /// left out.
    pub fn want_samples(&mut self, rows: usize) {
        for input in self.inputs.iter_mut().filter(|input| input.route.is_none()) {
            let (peaks, most) = (vec![0.0; input.cols], rows.max(2));
            input.kept = Some(Kept { peaks, rows: Vec::new(), most, step: 1, seen: 0 });
        }
    }

    /// The rows kept of a tensor's input so far, if they are.
    pub fn sample(&self, tensor: &str) -> Option<Sample<'_>> {
        let (place, _) = self.tensors.get(tensor)?;
        let kept = self.inputs[*place].kept.as_ref()?;
        Some(Sample { peaks: &kept.peaks, rows: &kept.rows })
    }

    /// The number of a tensor's input, which several tensors may share, and its columns; `None` for routed experts and
    /// tensors that are not covered.
    pub fn input(&self, tensor: &str) -> Option<(usize, usize)> {
        let (place, _) = self.tensors.get(tensor)?;
        let input = &self.inputs[*place];
        input.route.is_none().then_some((*place, input.cols))
    }

    /// The products of columns of a tensor's input so far, if they are summed: X^T X, `[cols, cols]`, of which only the
    /// upper triangle is filled.
    pub fn products(&self, tensor: &str) -> Option<&[f32]> {
        let (place, _) = self.tensors.get(tensor)?;
        self.inputs[*place].products.as_deref()
    }

    /// The settings of a session for windows of `len` tokens, based on `settings`.
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
            watched: self.watched.keys().copied().collect(),
            ..settings
        }
    }

    /// Runs all windows on a session prepared by [`Collector::settings`]. `each` receives every step and every window, and
    /// stops the work by returning false; returns whether all windows are complete.
    ///
    /// # Errors
    /// A device fails, or a value is not finite; then the sums are useless. Those of `each`.
    pub fn run<E: From<Error>>(
        &mut self,
        session: &mut Session,
        windows: &Windows,
        each: &mut dyn FnMut(Moment<&Collector>) -> Result<bool, E>,
    ) -> Result<bool, E> {
        for window in 0..windows.count() {
            let mut failed = None;
            let tell = &mut |tokens| {
                each(Moment::Tokens(tokens)).unwrap_or_else(|error| {
                    failed = Some(error);
                    false
                })
            };
            let is_whole = self.window(session, &windows.run(window), tell)?;
            failed.map_or(Ok(()), Err)?;
            if !is_whole || !each(Moment::Windows(window + 1, &*self))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs a window on a session prepared by [`Collector::settings`]. `each` receives the number of tokens after
    /// every step, and stops the work by returning false; returns whether the window is complete.
    ///
    /// # Errors
    /// A device fails, or a value is not finite; then the sums are useless.
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

    /// Adds the values stored in the session's last step.
    fn add(&mut self, session: &Session) -> Result<(), Error> {
        let kept = |value: Value| Some(session.watched(value).expect("the settings asked for it"));
        self.add_values(&kept)
    }

    /// The values that the sums of some tensors need.
    pub fn values_of(&self, wanted: &dyn Fn(&str) -> bool) -> Vec<Value> {
        let tensors = self.tensors.iter().filter(|(name, _)| wanted(name));
        let inputs = tensors.map(|(_, (place, _))| &self.inputs[*place]);
        let values: BTreeSet<Value> =
            inputs.flat_map(|input| input.route.into_iter().chain([input.value])).collect();
        values.into_iter().collect()
    }

    /// Adds rows of the inputs for which `value` has all values, `[rows, width]` each.
    ///
    /// # Errors
    /// A value is not finite; then the sums are useless.
    pub fn add_values<'v>(
        &mut self,
        value: &dyn Fn(Value) -> Option<&'v [f32]>,
    ) -> Result<(), Error> {
        let values: Vec<_> = self
            .inputs
            .iter()
            .map(|input| match input.route {
                None => Some((value(input.value)?, None)),
                Some(route) => Some((value(input.value)?, Some(value(route)?))),
            })
            .collect();
        let watched = &self.watched;
        self.inputs.par_iter_mut().zip(values).for_each(|(input, values)| {
            let Some((values, route)) = values else { return };
            let route = route.zip(input.route.map(|value| watched[&value]));
            input.add(values, watched[&input.value], route);
        });
        let is_bad = |place: usize| !self.inputs[place].squares.iter().all(|sum| sum.is_finite());
        match self.tensors.iter().find(|(_, (place, _))| is_bad(*place)) {
            Some((name, _)) => {
                let label = format!("what {name} is multiplied with");
                Err(bilayer_graph::Error::NotFinite { label, op: "matmul" }.into())
            }
            None => Ok(()),
        }
    }

    /// The sums of every tensor so far, by name.
    pub fn sums(&self) -> impl Iterator<Item = Sums<'_>> {
        self.tensors.iter().map(|(name, (place, matrices))| {
            let Input { cols, squares, counts, .. } = &self.inputs[*place];
            Sums {
                name,
                squares: &squares[matrices.start * cols..matrices.end * cols],
                counts: &counts[matrices.clone()],
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_summed_where_their_route_leads() {
        let input = |matrices: usize| Input {
            value: Value(0),
            route: Some(Value(1)),
            cols: 2,
            squares: vec![0.0; 2 * matrices],
            counts: vec![0; matrices],
            products: None,
            kept: None,
        };
        // Two rows with two matrices each, out of three: 2 and 0, then 1 and 2.
        let route = [0.6, 0.4, 2.0, 0.0, 0.5, 0.5, 1.0, 2.0];
        let mut shared = input(3);
        shared.add(&[1.0, 2.0, 3.0, 4.0], 2, Some((&route, 4)));
        assert_eq!(shared.squares, [1.0, 4.0, 9.0, 16.0, 10.0, 20.0]);
        assert_eq!(shared.counts, [1, 1, 2]);
        let mut own = input(3);
        own.add(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 4, Some((&route, 4)));
        assert_eq!(own.squares, [9.0, 16.0, 25.0, 36.0, 1.0 + 49.0, 4.0 + 64.0]);
        let products = Some(vec![0.0; 4]);
        let kept = Kept { peaks: vec![0.0; 2], rows: Vec::new(), most: 2, step: 1, seen: 0 };
        let mut plain = Input { route: None, products, kept: Some(kept), ..input(1) };
        plain.add(&[1.0, 2.0, 3.0, 4.0], 2, None);
        assert_eq!((&plain.squares, &plain.counts), (&vec![10.0, 20.0], &vec![2]));
        assert_eq!(plain.products, Some(vec![10.0, 14.0, 0.0, 20.0]));
        // Rows 0 and 2 of the first four, then 0 and 4 of eight.
        let rows: Vec<f32> = (3..9).flat_map(|row| [-(row as f32), 0.5]).collect();
        plain.add(&rows, 2, None);
        let kept = plain.kept.expect("it was asked for");
        assert_eq!((kept.peaks, kept.step), (vec![8.0, 4.0], 4));
        assert_eq!(kept.rows, [1.0, 2.0, -5.0, 0.5]);
    }
}
