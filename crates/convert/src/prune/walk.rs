//! Prunes the matrices of a model in the order of its layers, each by the activations of the layers pruned before it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::sync::Arc;

use bilayer_engine::Model;
use bilayer_engine::layers::{Layers, Then};
use bilayer_gguf::{SourceError, Tensor};
use bilayer_measure::imatrix::{Collector, Scope};
use bilayer_quant::{Type, first_not_finite};
use bytes::Bytes;
use rayon::prelude::*;

use super::journal::Journal;
use super::rows::{Inverse, Row, Scores};
use super::{Method, PRODUCTS_BYTES, Pattern, Prune, Pruned};
use crate::Error;
use crate::calibration;
use crate::imatrix::Imatrix;
use crate::stream::Reporter;

/// Rows that are pruned at once.
const ROWS_AT_ONCE: usize = 256;

/// A matrix with the pattern and the type that it gets.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub tensor: &'a Tensor,
    pub pattern: Pattern,
    pub ty: Type,
}

/// The matrices by name, the layer of each tensor, and the journal if there is one.
pub(super) type Plan<'a> =
    (&'a BTreeMap<&'a str, Matrix<'a>>, &'a BTreeMap<String, u32>, Option<&'a RefCell<Journal>>);

/// A model on its way.
pub(super) struct Work<'a> {
    prune: &'a Prune,
    model: &'a Model,
    matrices: &'a BTreeMap<&'a str, Matrix<'a>>,
    /// The layer of each tensor.
    layers: &'a BTreeMap<String, u32>,
    journal: Option<&'a RefCell<Journal>>,
    pool: &'a rayon::ThreadPool,
    reporter: &'a Reporter<'a>,
    walk: RefCell<Option<Walk>>,
}

/// A text between two layers.
struct Walk {
    layers: Layers,
    /// Pruned matrices that are not written yet.
    made: BTreeMap<String, (Bytes, Pruned)>,
}

/// What is known of the inputs of some matrices.
#[derive(Default)]
pub(super) struct Inputs {
    /// Sums of squares by column.
    pub squares: Imatrix,
    /// Inverses of the products of columns; matrices with one input share one.
    pub inverses: BTreeMap<String, Arc<Inverse>>,
}

impl<'a> Work<'a> {
    pub fn new(
        prune: &'a Prune,
        model: &'a Model,
        (matrices, layers, journal): Plan<'a>,
        (pool, reporter): (&'a rayon::ThreadPool, &'a Reporter<'a>),
    ) -> Work<'a> {
        let walk = RefCell::new(None);
        Work { prune, model, matrices, layers, journal, pool, reporter, walk }
    }

    pub fn reporter(&self) -> &Reporter<'a> {
        self.reporter
    }

    /// Runs the sequences to the first layer. Without it matrices are pruned by magnitude.
    pub fn begin(&self, sequences: Vec<Vec<u32>>) -> Result<(), Error> {
        let layers =
            Layers::new(self.model, sequences, self.prune.threads).map_err(Error::calibration)?;
        *self.walk.borrow_mut() = Some(Walk { layers, made: BTreeMap::new() });
        Ok(())
    }

    /// Writes a pruned matrix. Those of one layer are written before those of the next.
    pub fn write(&self, matrix: Matrix<'_>, out: &mut dyn Write) -> Result<Pruned, SourceError> {
        let name = matrix.tensor.name();
        if let Some((bytes, pruned)) = self.finished(name)? {
            out.write_all(&bytes)?;
            return Ok(pruned);
        }
        let mut walk = self.walk.borrow_mut();
        let Some(walk) = walk.as_mut() else {
            let (bytes, pruned) = self.made(matrix, &Inputs::default())?;
            out.write_all(&bytes)?;
            return Ok(pruned);
        };
        loop {
            if let Some((bytes, pruned)) = walk.made.remove(name) {
                out.write_all(&bytes)?;
                return Ok(pruned);
            }
            self.layer(walk)?;
        }
    }

    /// A matrix that an earlier run has pruned, if it is in the journal.
    fn finished(&self, name: &str) -> Result<Option<(Bytes, Pruned)>, Error> {
        self.journal.map_or(Ok(None), |journal| journal.borrow().get(name))
    }

    /// Prunes a matrix, and adds it to the journal.
    fn made(&self, matrix: Matrix<'_>, inputs: &Inputs) -> Result<(Bytes, Pruned), SourceError> {
        let mut bytes = Vec::new();
        let pruned = self.pruned(matrix, inputs, &mut |more| {
            bytes.extend_from_slice(more);
            Ok(())
        });
        let (name, bytes) = (matrix.tensor.name(), Bytes::from(bytes));
        let pruned = pruned.map_err(|error| named(name, error))?;
        if let Some(journal) = self.journal {
            journal.borrow_mut().add(name, &bytes, pruned)?;
        }
        Ok((bytes, pruned))
    }

    /// Prunes the matrices of the next layer that are not finished, and runs it with all of them.
    fn layer(&self, walk: &mut Walk) -> Result<(), SourceError> {
        let layer = walk.layers.next_layer();
        let mut changed = self.model.clone();
        for group in self.groups(layer as u32) {
            let mut missing = BTreeSet::new();
            for name in group {
                let Some((bytes, _)) = self.finished(name)? else {
                    missing.insert(name);
                    continue;
                };
                let ty = self.matrices[name].ty;
                changed = changed.with_tensor(name, ty, bytes).map_err(Error::calibration)?;
            }
            if missing.is_empty() {
                continue;
            }
            let inputs = self.gather(&mut walk.layers, &missing)?;
            for name in missing {
                let matrix = self.matrices[name];
                let (bytes, pruned) = self.made(matrix, &inputs)?;
                changed = changed
                    .with_tensor(name, matrix.ty, bytes.clone())
                    .map_err(Error::calibration)?;
                walk.made.insert(name.to_owned(), (bytes, pruned));
            }
        }
        if layer + 1 < walk.layers.len() {
            let run =
                walk.layers.run(&changed, &[], Then::Advance, &mut |_, _| self.reporter.goes_on());
            if !run.map_err(Error::calibration)? {
                return Err(Error::Interrupted.into());
            }
        }
        Ok(())
    }

    /// The matrices of a layer, in groups whose products of columns fit in memory together.
    fn groups(&self, layer: u32) -> Vec<BTreeSet<&'a str>> {
        let collector = Collector::new(self.model.graph(), Scope::Layers);
        let own = self.matrices.keys().filter(|name| self.layers.get(**name) == Some(&layer));
        let (mut groups, mut inputs, mut bytes) = (vec![BTreeSet::new()], BTreeSet::new(), 0);
        // By their inputs, so that matrices with one input are in one group.
        let mut own: Vec<&str> = own.copied().collect();
        own.sort_by_key(|name| collector.input(name));
        for name in own {
            if let Some((input, cols)) = collector.input(name)
                && self.prune.method == Method::SparseGpt
                && inputs.insert(input)
            {
                // Products, and the inverse of each input.
                bytes += 8 * cols * cols;
                if bytes > PRODUCTS_BYTES && !groups.last().is_some_and(BTreeSet::is_empty) {
                    groups.push(BTreeSet::new());
                    bytes = 8 * cols * cols;
                }
            }
            groups.last_mut().expect("there is one").insert(name);
        }
        groups
    }

    /// Runs the layer for the inputs of some of its matrices.
    fn gather(&self, layers: &mut Layers, group: &BTreeSet<&str>) -> Result<Inputs, Error> {
        let mut collector = Collector::new(self.model.graph(), Scope::Layers);
        let is_wanted = &|name: &str| group.contains(name);
        if self.prune.method == Method::SparseGpt {
            collector.want_products(is_wanted);
        }
        calibration::collect_layer(
            self.model,
            (layers, Then::Repeat),
            (&mut collector, is_wanted),
            self.pool,
            &|| self.reporter.goes_on(),
        )?;
        let squares = Imatrix::collected(&collector, Vec::new(), [0; 2])?;
        let mut inverses = BTreeMap::new();
        let mut of_input: BTreeMap<usize, Arc<Inverse>> = BTreeMap::new();
        for &name in group {
            let of = collector.input(name).zip(collector.products(name));
            let Some(((place, _), products)) = of else { continue };
            let inverse = match of_input.get(&place) {
                Some(inverse) => inverse.clone(),
                None => {
                    let made = self.pool.install(|| Inverse::of(products));
                    let reason = "its activations give no usable X^T X; use another text";
                    let made = made.ok_or_else(|| Error::Prune {
                        tensor: name.to_owned(),
                        reason: reason.into(),
                    })?;
                    of_input.entry(place).or_insert(Arc::new(made)).clone()
                }
            };
            inverses.insert(name.to_owned(), inverse);
        }
        Ok(Inputs { squares, inverses })
    }

    /// Prunes a matrix and hands out its bytes, some rows at a time.
    pub fn pruned(
        &self,
        Matrix { tensor, pattern, ty }: Matrix<'_>,
        inputs: &Inputs,
        out: &mut dyn FnMut(&[u8]) -> Result<(), SourceError>,
    ) -> Result<Pruned, SourceError> {
        let (name, layout) = (tensor.name(), tensor.layout());
        let inverse = inputs.inverses.get(name);
        let means = inputs.squares.get(name).map(|entry| entry.means());
        // The tensor is in memory, so its sizes fit a usize.
        let (rows, cols) = (layout.rows() as usize, layout.cols() as usize);
        let shape = layout.shape();
        let expert_rows = if shape.len() > 1 { shape[shape.len() - 2] as usize } else { 1 };
        let scores = |row: usize| match (self.prune.method, inverse, &means) {
            (Method::Magnitude, ..) | (_, None, None) => Scores::Magnitude,
            (_, Some(inverse), _) => Scores::Inverse(inverse),
            (_, None, Some(means)) => {
                let expert = (row / expert_rows * cols) % means.len();
                Scores::Columns(&means[expert..expert + cols])
            }
        };
        let (of, kept) = pattern.groups(cols, self.prune.method);
        let bytes = self.model.file().bytes(tensor);
        let (from_bytes, to_bytes) = (layout.row_bytes() as usize, ty.row_bytes(cols)?);
        let mut done = Pruned { matrices: 1, weights: layout.elements(), ..Pruned::default() };
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let count = ROWS_AT_ONCE.min(rows - first);
            let mut values = vec![0.0; count * cols];
            let mut made = vec![0; count * to_bytes];
            let source = &bytes[first * from_bytes..][..count * from_bytes];
            layout.ty().dequantize(source, &mut values)?;
            if let Some(index) = first_not_finite(&values) {
                let (quant, value) = (ty, values[index].to_string());
                let index = first * cols + index;
                return Err(bilayer_quant::Error::NotFinite { quant, index, value }.into());
            }
            if pattern.is_dense() && layout.ty() == ty {
                out(source)?;
                done.zeros += values.iter().filter(|value| **value == 0.0).count() as u64;
                continue;
            }
            done.zeros += self.pool.install(|| {
                let rows =
                    values.par_chunks_exact_mut(cols).zip(made.par_chunks_exact_mut(to_bytes));
                let zeros = rows.enumerate().map(|(row, (values, made))| {
                    let row = Row::new(values, of, scores(first + row));
                    row.pruned(&kept, ty, made)
                });
                zeros.try_reduce(|| 0, |a, b| Ok(a + b))
            })?;
            out(&made)?;
        }
        Ok(done)
    }
}

/// An error of a matrix with its name.
fn named(name: &str, error: SourceError) -> SourceError {
    match error.downcast::<bilayer_quant::Error>() {
        Ok(error) => Box::new(Error::Weight { tensor: name.to_owned(), reason: error.to_string() }),
        Err(error) => error,
    }
}
