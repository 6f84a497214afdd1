//! The mixed precision of `W8A8`: matrices for which it is too coarse get `Q8_0` instead.
//!
//! One scale per row of weights and one per token of activations are too coarse for some matrices: those with a weight far
//! above the others of its row, or with activations that differ much within a token. Which ones is measured: a calibration
//! text runs through the layers, and for every matrix sampled rows of weights are multiplied with sampled activations, exactly,
//! and by the kernels of both types, which round both. A matrix whose squared error in `W8A8` is more than [`RATIO`] times that
//! in `Q8_0` is too coarse. Weights are rounded to nearest here, whatever rounds them later.

use std::collections::BTreeMap;

use bilayer_engine::Model;
use bilayer_engine::layers::{Layers, Then};
use bilayer_gguf::{File, Tensor};
use bilayer_measure::imatrix::{Collector, Sample, Scope};
use bilayer_measure::products;
use bilayer_quant::Type;

use super::{Override, Quantize, facts};
use crate::calibration::{self, Calibration};
use crate::mix::fitting;
use crate::stream::Reporter;
use crate::{Error, Progress, stream};

/// The type that may be too coarse, and the one in its place.
const TYPES: [Type; 2] = [Type::W8A8, Type::Q8_0];

/// How many times the squared error of the finer type is too much.
pub const RATIO: f64 = 3.0;

/// Rows of activations whose products are compared. A few tokens and channels have products far above all others, of which
/// some must be among them.
const TOKENS: usize = 256;

/// Rows of weights.
const ROWS: usize = 128;

/// A matrix for which `W8A8` is too coarse.
#[derive(Clone, Debug, PartialEq)]
pub struct Coarse {
    /// Its name.
    pub tensor: String,
    /// Squared error of the sampled products in `W8A8` and in `Q8_0`, relative to their squares.
    pub errors: [f64; 2],
}

impl Quantize {
    /// Whether matrices without a rule get `W8A8`, so that [`Quantize::too_coarse`] may find some.
    #[must_use]
    pub fn may_be_too_coarse(&self) -> bool {
        self.mix.base == TYPES[0]
    }

    /// The layers' matrices that would get `W8A8` without a rule that names it, and for which it is too coarse, in the order
    /// of the file. Matrices of routed experts are not measured.
    ///
    /// # Errors
    /// Those of [`Quantize::plan`]; [`Error::Calibration`] if the text is too short, a device fails or an activation is not
    /// finite; [`Error::Weight`], [`Error::Threads`], [`Error::Interrupted`].
    pub fn too_coarse(
        &self,
        model: &Model,
        calibration: &Calibration<'_>,
        progress: Progress<'_>,
    ) -> Result<Vec<Coarse>, Error> {
        let file = model.file();
        let (plan, facts) = (self.plan(file, None)?, facts(file, None)?);
        let named = crate::prune::matrices(model);
        let planned = plan.tensors().iter().zip(file.tensors());
        let planned = planned.filter(|(planned, tensor)| {
            let cols = tensor.layout().cols();
            planned.to == TYPES[0]
                && fitting(TYPES[1], cols) == TYPES[1]
                && named.contains(&planned.name)
                && self.is_free(tensor, &facts)
        });
        let tensors: Vec<&Tensor> = planned.map(|(_, tensor)| tensor).collect();
        if tensors.is_empty() {
            return Ok(Vec::new());
        }
        let pool = stream::pool(self.threads)?;
        let sequences = calibration::sequences(model, calibration)?;
        let mut layers = Layers::new(model, sequences, self.threads).map_err(Error::calibration)?;
        let reporter = Reporter::new(progress, layers.len() as u64);
        let mut errors = BTreeMap::new();
        while layers.next_layer() < layers.len() {
            let mut collector = Collector::new(model.graph(), Scope::Layers);
            collector.want_samples(TOKENS);
            let is_wanted = &|name: &str| tensors.iter().any(|tensor| tensor.name() == name);
            calibration::collect_layer(
                model,
                (&mut layers, Then::Advance),
                (&mut collector, is_wanted),
                &pool,
                &|| reporter.goes_on(),
            )?;
            for tensor in &tensors {
                let sample = collector.sample(tensor.name());
                if let Some(sample) = sample.filter(|sample| !sample.rows.is_empty()) {
                    let measured = pool.install(|| measured(file, tensor, sample))?;
                    errors.insert(tensor.name(), measured);
                }
            }
            reporter.step(1).map_err(|_| Error::Interrupted)?;
        }
        let each = tensors.iter().filter_map(|tensor| {
            let errors = *errors.get(tensor.name())?;
            let tensor = tensor.name().to_owned();
            (errors[0] > RATIO * errors[1]).then_some(Coarse { tensor, errors })
        });
        Ok(each.collect())
    }

    /// Gives matrices that are too coarse `Q8_0`.
    pub fn refine(&mut self, coarse: &[Coarse]) {
        self.overrides.extend(coarse.iter().map(|coarse| Override::of(&coarse.tensor, TYPES[1])));
    }
}

/// The relative squared errors of a matrix in both types.
fn measured(file: &File, tensor: &Tensor, sample: Sample<'_>) -> Result<[f64; 2], Error> {
    let layout = tensor.layout();
    let wrong = |error: bilayer_quant::Error| Error::Weight {
        tensor: tensor.name().to_owned(),
        reason: error.to_string(),
    };
    let (cols, rows) = (layout.cols() as usize, layout.rows() as usize);
    let (bytes, row_bytes) = (file.bytes(tensor), layout.row_bytes() as usize);
    let step = (rows / ROWS).max(1);
    let mut weights = vec![0.0; rows.div_ceil(step) * cols];
    for (row, values) in (0..rows).step_by(step).zip(weights.chunks_exact_mut(cols)) {
        layout.ty().dequantize(&bytes[row * row_bytes..][..row_bytes], values).map_err(wrong)?;
    }
    products::errors(TYPES, cols, &weights, sample.rows).map_err(wrong)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::ops::ControlFlow;

    use super::*;
    use crate::mix::Mix;
    use crate::synth::{Shape, Synth};

    /// A model one of whose matrices has a large weight in every row.
    fn model(coarse: &str) -> Model {
        let synth = Synth::new(Shape::find("tiny").unwrap(), Mix::pure(Type::F32).unwrap());
        let file = File::from_bytes("tiny", synth.to_bytes().unwrap()).unwrap();
        let tensor = file.tensor(coarse).unwrap();
        let cols = tensor.layout().cols() as usize;
        let mut bytes = file.bytes(tensor).to_vec();
        for row in bytes.chunks_exact_mut(4 * cols) {
            row[20..24].copy_from_slice(&2.0f32.to_le_bytes());
        }
        Model::new(file.with_tensor(coarse, Type::F32, bytes.into()).unwrap()).unwrap()
    }

    fn text() -> String {
        (0..200).map(|i| format!("word {} of {} and ", i * 7919 % 97, i % 13)).collect()
    }

    #[test]
    fn a_matrix_with_large_weights_gets_a_finer_type_unless_a_rule_names_its_type() {
        let name = "blk.1.attn_output.weight";
        let (model, text) = (model(name), text());
        let calibration = Calibration { text: &text, window_len: 16, windows: 4 };
        let mut quantize =
            Quantize { threads: Some(2), ..Quantize::new(Mix::pure(Type::W8A8).unwrap()) };
        let too_coarse = |quantize: &Quantize| {
            quantize
                .too_coarse(&model, &calibration, &mut |_, _| ControlFlow::Continue(()))
                .unwrap()
        };
        let found = too_coarse(&quantize);
        let of = found.iter().find(|coarse| coarse.tensor == name).unwrap();
        assert!(of.errors[0] > 4.0 * of.errors[1], "{of:?}");
        assert!(found.len() < 5, "{found:?}");
        let types = |quantize: &Quantize| {
            let plan = quantize.plan(model.file(), None).unwrap();
            let of_type = plan.tensors().iter().filter(|planned| planned.to == Type::Q8_0);
            of_type.map(|planned| planned.name.clone()).collect::<Vec<_>>()
        };
        quantize.refine(&found);
        let names: Vec<_> = found.iter().map(|coarse| coarse.tensor.clone()).collect();
        assert_eq!(types(&quantize), names);
        // Now each of them has a rule.
        assert_eq!(too_coarse(&quantize), []);
        let rule = Override::parse(&format!("{name}=W8A8")).unwrap();
        let ruled =
            Quantize { overrides: vec![rule], ..Quantize::new(Mix::pure(Type::W8A8).unwrap()) };
        assert!(too_coarse(&ruled).iter().all(|coarse| coarse.tensor != name));
        let other = Quantize::new(Mix::pure(Type::Q8_0).unwrap());
        assert!(ruled.may_be_too_coarse() && !other.may_be_too_coarse());
        assert_eq!(too_coarse(&other), []);
        let stop = &mut |_, _| ControlFlow::Break(());
        let stopped = ruled.too_coarse(&model, &calibration, stop).unwrap_err();
        assert!(matches!(stopped, Error::Interrupted), "{stopped}");
    }
}
