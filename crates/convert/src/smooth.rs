//! Smoothing (SmoothQuant, Xiao et al. 2022): moves outlier channels of activations into weights before quantizing.
//!
//! Activations with one scale per token lose precision where a few channels are far larger than the others. Dividing
//! channel j of a matrix's input by s_j and multiplying column j of the matrix by s_j changes nothing in exact
//! arithmetic; s_j = max|X_j|^α / max|W_j|^(1-α) balances both. The division costs nothing at run time: it is folded into
//! what computes the input ([`Before`]), which the graph tells, without names: the gain and bias of a norm, or the rows of
//! the matrix before a gate, or of that of an attention's values. An input that something else reads too, such as a residual
//! after a norm, stays as it is. Query heads that read one key-value head share its factors ([`Repeats`]).
//!
//! [`Alpha::Auto`] searches α for every input: on sampled activations and rows of weights, the squared error of the products
//! that the type's quantizer and CPU kernel make. An input stays as it is unless that falls clearly, on rows that had no part
//! in the choice as well.

use std::fmt;
use std::str::FromStr;

use bilayer_engine::Model;
use bilayer_engine::layers::{Layers, Then};
use bilayer_gguf::File;
use bilayer_measure::imatrix::{Collector, Sample, Scope};
use bilayer_measure::links::{Channels, Divided, TensorRows, links};
use bilayer_quant::{Type, first_not_finite};
use rayon::prelude::*;

use crate::calibration::{self, Calibration};
use crate::stream::{self, Reporter};
use crate::{Error, Progress};

mod search;

pub use bilayer_measure::links::{Before, Link, Repeats};

/// Activation rows kept per input for the search.
const ROWS: usize = 32;

/// How many times the median of all channels' peaks makes an outlier.
const OUTLIER: f32 = 10.0;

/// The exponent of the activations' share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Alpha {
    /// One number for every input, 0 to 1.
    Fixed(f32),
    /// Searched for every input.
    Auto,
}

impl FromStr for Alpha {
    type Err = String;

    fn from_str(text: &str) -> Result<Alpha, String> {
        let wrong = || format!("`{text}` is neither auto nor a number from 0 to 1");
        if text == "auto" {
            return Ok(Alpha::Auto);
        }
        let alpha = text.parse().map_err(|_| wrong())?;
        if (0.0..=1.0).contains(&alpha) { Ok(Alpha::Fixed(alpha)) } else { Err(wrong()) }
    }
}

impl fmt::Display for Alpha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Alpha::Fixed(alpha) => write!(f, "{alpha}"),
            Alpha::Auto => f.write_str("auto"),
        }
    }
}

/// How a model is smoothed.
#[derive(Clone, Copy, Debug)]
pub struct Smooth {
    /// The exponent.
    pub alpha: Alpha,
    /// The type that the matrices will have, for the search.
    pub ty: Type,
    /// Number of threads; by default one per logical CPU.
    pub threads: Option<usize>,
}

/// The factors of one input.
#[derive(Clone, Debug)]
pub struct Folded {
    /// What computes the input, which is divided by the factors, and the matrices that read it, whose columns are
    /// multiplied by them.
    pub link: Link,
    /// The exponent; `None` if smoothing would only lose, and all factors are 1.
    pub alpha: Option<f32>,
    /// A factor per column of the matrices, the same for those of one channel; their geometric mean is 1.
    pub factors: Vec<f32>,
    /// Columns whose largest activation is at least 10 times the median of all, with that ratio, largest first.
    pub outliers: Vec<(usize, f32)>,
    /// Squared error of the sampled products, relative to their squares, without and with the factors.
    pub errors: [f64; 2],
}

/// The factors of a model.
#[derive(Clone, Debug)]
pub struct Smoothed {
    /// The inputs, in the order of the graph.
    pub inputs: Vec<Folded>,
}

impl Smooth {
    /// Runs the calibration text and chooses the factors of every input. `progress` receives steps done and their total.
    ///
    /// # Errors
    /// [`Error::Calibration`] if the text is too short, a device fails or an activation is not finite;
    /// [`Error::Smooth`] if no input can be smoothed; [`Error::Requantize`] for matrices that are quantized;
    /// [`Error::Interrupted`].
    pub fn measure(
        &self,
        model: &Model,
        calibration: &Calibration<'_>,
        progress: Progress<'_>,
    ) -> Result<Smoothed, Error> {
        let links = links(model.graph());
        if links.is_empty() {
            let reason = "no norm, factor of a gate or values of an attention feed only matrices";
            return Err(Error::Smooth { what: model.name(), reason: reason.into() });
        }
        for name in links.iter().flat_map(Link::tensors) {
            let tensor = model.file().tensor(name);
            let ty = tensor.map_or(Type::F32, |tensor| tensor.layout().ty());
            if ty.block_weights > 1 {
                return Err(Error::Requantize { tensor: name.into(), ty: ty.name });
            }
        }
        let pool = stream::pool(self.threads)?;
        let mut layers =
            Layers::new(model, calibration::sequences(model, calibration)?, self.threads)
                .map_err(Error::calibration)?;
        let mut collector = Collector::new(model.graph(), Scope::Layers);
        collector.want_samples(ROWS);
        let reporter = Reporter::new(progress, (layers.len() + links.len()) as u64);
        while layers.next_layer() < layers.len() {
            let walk = (&mut layers, Then::Advance);
            let wanted: (_, &dyn Fn(&str) -> bool) = (&mut collector, &|_| true);
            calibration::collect_layer(model, walk, wanted, &pool, &|| reporter.goes_on())?;
            reporter.step(1).map_err(|_| Error::Interrupted)?;
        }
        let mut inputs = Vec::with_capacity(links.len());
        for link in links {
            let name = &link.matrices[0].tensor;
            let sample = collector.sample(name).ok_or_else(|| Error::Smooth {
                what: name.clone(),
                reason: "its input is not among those that were recorded".into(),
            })?;
            inputs.push(pool.install(|| self.input(model.file(), link, sample))?);
            reporter.step(1).map_err(|_| Error::Interrupted)?;
        }
        Ok(Smoothed { inputs })
    }

    /// The factors of one input.
    fn input(&self, file: &File, link: Link, sample: Sample<'_>) -> Result<Folded, Error> {
        let weights = search::Weights::read(file, &link)?;
        let shared = Sample { peaks: &link.repeats.largest(sample.peaks), ..sample };
        let found = search::best(self, &weights, shared).map_err(|error| Error::Weight {
            tensor: link.matrices[0].tensor.clone(),
            reason: error.to_string(),
        });
        let search::Found { alpha, factors, errors } = found?;
        Ok(Folded { alpha, factors, outliers: outliers(sample.peaks), errors, link })
    }
}

/// Channels far above the median, largest first.
fn outliers(peaks: &[f32]) -> Vec<(usize, f32)> {
    let mut sorted = peaks.to_vec();
    sorted.sort_by(f32::total_cmp);
    let median = sorted[sorted.len() / 2];
    let ratios = peaks.iter().map(|peak| peak / median).enumerate();
    let mut far: Vec<(usize, f32)> =
        ratios.filter(|(_, ratio)| ratio.is_finite() && *ratio >= OUTLIER).collect();
    far.sort_by(|a, b| b.1.total_cmp(&a.1));
    far
}

impl Smoothed {
    /// The model of `file` with the factors folded in; equal to it but for rounding. Changed tensors keep their type and
    /// are in memory.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Weight`] if a factor makes a weight infinite; the tensors of `file` must be those of the
    /// model that was measured.
    pub fn apply(&self, mut file: File) -> Result<File, Error> {
        for Folded { link, factors, alpha, .. } in &self.inputs {
            if alpha.is_none() {
                continue;
            }
            for Divided { matrix, channels } in link.before.parts() {
                let factor = |row: usize, col: usize| {
                    let channel = match channels {
                        Channels::Rows => row,
                        Channels::Columns => col,
                    };
                    1.0 / factors[link.repeats.column(channel)]
                };
                file = scaled(&file, matrix, factor)?;
            }
            for matrix in &link.matrices {
                file = scaled(&file, matrix, |_, col| factors[col])?;
            }
        }
        Ok(file)
    }
}

/// The file with the weights of a matrix, or part of one, multiplied.
fn scaled(
    file: &File,
    matrix: &TensorRows,
    factor: impl Fn(usize, usize) -> f32 + Sync,
) -> Result<File, Error> {
    let name = &matrix.tensor;
    let wrong = |reason: String| Error::Weight { tensor: name.clone(), reason };
    let tensor = file.tensor(name).ok_or_else(|| wrong("the file has no such tensor".into()))?;
    let (ty, cols) = (tensor.layout().ty(), matrix.cols);
    let mut bytes = file.bytes(tensor).to_vec();
    let quant = |error: bilayer_quant::Error| wrong(error.to_string());
    let row_bytes = ty.row_bytes(cols).map_err(quant)?;
    let part = bytes
        .get_mut(matrix.first_row * row_bytes..(matrix.first_row + matrix.rows) * row_bytes)
        .ok_or_else(|| wrong("the file's tensor has another shape".into()))?;
    part.par_chunks_exact_mut(row_bytes).enumerate().try_for_each(|(row, bytes)| {
        let mut values = vec![0.0; cols];
        ty.dequantize(bytes, &mut values).map_err(quant)?;
        values.iter_mut().enumerate().for_each(|(col, value)| *value *= factor(row, col));
        ty.quantize(&values, None, bytes).map_err(quant)?;
        ty.dequantize(bytes, &mut values).map_err(quant)?;
        match first_not_finite(&values) {
            None => Ok(()),
            Some(col) => {
                Err(wrong(format!("weight {col} of row {row} is infinite after smoothing")))
            }
        }
    })?;
    Ok(file.with_tensor(name, ty, bytes.into())?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::ops::ControlFlow;

    use super::*;
    use crate::mix::Mix;
    use crate::prune::compare;
    use crate::synth::{Shape, Synth};

    fn file(ty: Type) -> File {
        let synth = Synth::new(Shape::find("tiny").unwrap(), Mix::pure(ty).unwrap());
        File::from_bytes("tiny", synth.to_bytes().unwrap()).unwrap()
    }

    fn text() -> String {
        (0..200).map(|i| format!("word {} of {} and ", i * 7919 % 97, i % 13)).collect()
    }

    fn measure(model: &Model, text: &str, alpha: Alpha) -> Result<Smoothed, Error> {
        let smooth = Smooth { alpha, ty: Type::W8A8, threads: Some(2) };
        let calibration = Calibration { text, window_len: 16, windows: 2 };
        smooth.measure(model, &calibration, &mut |_, _| ControlFlow::Continue(()))
    }

    fn refused(file: File, text: &str, alpha: Alpha) -> Error {
        let Err(error) = measure(&Model::new(file).unwrap(), text, alpha) else {
            panic!("it is accepted")
        };
        error
    }

    /// The gain of the first layer's norm with one channel far above the others, or with a NaN.
    fn changed(value: f32) -> File {
        let file = file(Type::F32);
        let name = "blk.0.attn_norm.weight";
        let tensor = file.tensor(name).unwrap();
        let mut gain = vec![0.0; tensor.layout().elements() as usize];
        Type::F32.dequantize(&file.bytes(tensor), &mut gain).unwrap();
        gain[3] = value;
        let bytes: Vec<u8> = gain.iter().flat_map(|gain| gain.to_le_bytes()).collect();
        file.with_tensor(name, Type::F32, bytes.into()).unwrap()
    }

    #[test]
    fn a_smoothed_model_computes_the_same_with_fewer_outliers() {
        let model = Model::new(changed(90.0)).unwrap();
        let smoothed = measure(&model, &text(), Alpha::Auto).unwrap();
        // Two layers with two norms, an attention and a gate each.
        assert_eq!(smoothed.inputs.len(), 8);
        let first = &smoothed.inputs[0];
        assert_eq!(first.link.before.tensors().collect::<Vec<_>>(), ["blk.0.attn_norm.weight"]);
        let matrices: Vec<_> = first.link.matrices.iter().map(|m| m.tensor.as_str()).collect();
        assert_eq!(matrices, ["blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"]);
        assert_eq!(first.outliers[0].0, 3, "{:?}", first.outliers);
        assert!(first.alpha.is_some() && first.errors[1] < 0.5 * first.errors[0]);
        assert!(smoothed.inputs.iter().all(|input| input.errors[1] <= input.errors[0]));
        let after = Model::new(smoothed.apply(changed(90.0)).unwrap()).unwrap();
        let text = text();
        let calibration = Calibration { text: &text, window_len: 16, windows: 2 };
        let goes_on = &mut |_, _| ControlFlow::Continue(());
        let compared = compare(&model, &after, &calibration, Some(2), goes_on).unwrap();
        assert!(compared.kl.abs() < 1e-5, "{compared:?}");
        // The weights are not those of before.
        let gain = |model: &Model| {
            model.file().bytes(model.file().tensor("blk.0.attn_norm.weight").unwrap())
        };
        assert!(gain(&model) != gain(&after));
    }

    #[test]
    fn outliers_of_values_move_into_the_matrix_after_attention() {
        // One of the 64 channels of the first of two key-value heads, which two query heads read.
        let row =
            TensorRows { tensor: "blk.0.attn_v.weight".into(), first_row: 5, rows: 1, cols: 256 };
        let far = || scaled(&file(Type::F32), &row, |_, _| 90.0).unwrap();
        let model = Model::new(far()).unwrap();
        let smoothed = measure(&model, &text(), Alpha::Auto).unwrap();
        let is_of_values = |input: &&Folded| input.link.before.tensors().eq([row.tensor.as_str()]);
        let found = smoothed.inputs.iter().find(is_of_values).unwrap();
        assert_eq!(found.link.matrices[0].tensor, "blk.0.attn_output.weight");
        assert!(found.alpha.is_some() && found.errors[1] < 0.5 * found.errors[0]);
        let outliers: Vec<usize> = found.outliers.iter().map(|(column, _)| *column).collect();
        assert!(outliers == [5, 69] || outliers == [69, 5], "{outliers:?}");
        for (column, factor) in found.factors.iter().enumerate() {
            assert_eq!(*factor, found.factors[column / 128 * 128 + column % 64], "{column}");
            assert!(column % 64 == 5 || *factor < found.factors[5], "{column}: {factor}");
        }
        let after = smoothed.apply(far()).unwrap();
        let weights = |file: &File, name: &str| file.bytes(file.tensor(name).unwrap());
        assert!(weights(&after, &row.tensor) != weights(model.file(), &row.tensor));
        let text = text();
        let calibration = Calibration { text: &text, window_len: 16, windows: 2 };
        let goes_on = &mut |_, _| ControlFlow::Continue(());
        let after = Model::new(after).unwrap();
        let compared = compare(&model, &after, &calibration, Some(2), goes_on).unwrap();
        assert!(compared.kl.abs() < 1e-5, "{compared:?}");
    }

    #[test]
    fn bad_input_is_refused_by_name() {
        let error = refused(changed(f32::NAN), &text(), Alpha::Auto).to_string();
        assert!(error.contains("what blk.0.attn_k.weight is multiplied with"), "{error}");
        for short in ["", "too short"] {
            let error = refused(file(Type::F32), short, Alpha::Fixed(0.5));
            assert!(matches!(error, Error::Text { .. }), "{error}");
        }
        let error = refused(file(Type::Q8_0), &text(), Alpha::Auto);
        assert!(matches!(error, Error::Requantize { .. }), "{error}");
        assert!("1.5".parse::<Alpha>().is_err() && "NaN".parse::<Alpha>().is_err());
    }
}
