//! Measures how quantizing each tensor changes the model's predictions, and chooses the types with the least
//! damage at a given size.
//!
//! For each tensor whose type may be chosen, a calibration text is run with only that tensor quantized, to a
//! type of about `PROBE_BITS` bits, and the Kullback-Leibler divergence of the logits from the unquantized
//! model's is measured, in nats per token. The tensor's other types are assumed to cause divergence in
//! proportion to their weighted squared error, with columns weighted by the squared activations of the text:
//! divergence is quadratic in small changes, with a factor that belongs to the tensor. The sum over tensors is
//! then minimized within the size ([`budget`]).
//!
//! The price: the text is run once per tensor and twice more (reference logits, activations), and a sample of
//! each tensor's rows is quantized to every type. The reference logits are stored in an unlinked temporary
//! file, 2 bytes per vocabulary entry and scored position; memory holds one quantized tensor at a time.

use std::collections::HashSet;

use bilayer_engine::Model;
use bilayer_gguf::{File, Tensor};
use bilayer_quant::Type;
use rayon::prelude::*;

use super::weights::Weights;
use super::{Override, Quantize, experts, facts};
use crate::budget::{self, Choice};
pub use crate::calibration::Calibration;
use crate::calibration::Runs;
use crate::imatrix::{Entry, Imatrix};
use crate::mix::is_weighted;
use crate::{Error, Progress, stream};

/// Bits per weight of the probe type: few enough that the divergence exceeds rounding, enough that it is still
/// quadratic.
const PROBE_BITS: f64 = 3.5;

/// Sampled weights per tensor for errors, in evenly spaced rows; at least one row.
const SAMPLE_WEIGHTS: usize = 1 << 20;

/// Smallest divergence distinguishable from none, nats per token.
const KL_LEAST: f64 = 1e-9;

/// A type that a tensor may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The type.
    pub ty: Type,
    /// Bytes of the tensor, and the expected divergence in nats per token.
    pub choice: Choice,
}

/// The measurements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Its name.
    pub name: String,
    /// Number of weights.
    pub weights: u64,
    /// The type it was probed with.
    pub probe: Type,
    /// The divergence with only this tensor quantized to that type, nats per token.
    pub kl: f64,
    /// All types that fit its rows and are no larger than its own.
    pub candidates: Vec<Candidate>,
}

/// The measurements of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensitivity {
    /// The tensors whose type may be chosen, in the order of the file.
    pub tensors: Vec<Measured>,
    /// Tensors without a rule that no prediction depends on, with the types that the mix gives them.
    kept: Vec<(String, Type)>,
    /// Bytes of the other tensors after quantization.
    fixed_bytes: u64,
    /// Weights of all tensors.
    parameters: u64,
}

impl Sensitivity {
    /// Measures all tensors of `model` for which `quantize` has no rule. Tensors that its graph does not read, such as
    /// blocks for multi-token prediction, get the types of the mix. Errors are those of its quantizer with `imatrix`.
    /// `progress` receives the number of finished runs and their total.
    ///
    /// # Errors
    /// Those of [`Quantize::plan`]; [`Error::Calibration`] if the text is too short or a device fails;
    /// [`Error::Scratch`]; [`Error::Weight`]; [`Error::Interrupted`].
    pub fn measure(
        quantize: &Quantize,
        model: &Model,
        imatrix: Option<&Imatrix>,
        calibration: &Calibration<'_>,
        progress: Progress<'_>,
    ) -> Result<Sensitivity, Error> {
        let file = model.file();
        let Parts { free, kept, fixed_bytes, parameters } = Parts::of(quantize, model, imatrix)?;
        let total = free.len() as u64 + 3;
        let mut runs = Runs::new(model, calibration, quantize.threads, total, progress)?;
        let activations = runs.activations()?;
        runs.base()?;
        let pool = stream::pool(quantize.threads)?;
        let tensors = free.into_iter().map(|tensor| {
            let importance = imatrix.and_then(|imatrix| imatrix.get(tensor.name()));
            let columns = activations.get(tensor.name());
            let candidates = candidates(tensor, importance);
            let sample = Sample { file, tensor, importance, columns };
            measured(&mut runs, &sample, model, &candidates, &pool)
        });
        let tensors = tensors.collect::<Result<Vec<_>, Error>>()?;
        Ok(Sensitivity { tensors, kept, fixed_bytes, parameters })
    }

    /// Whether the smallest types fit `bits_per_weight` on average, which takes no measurement.
    ///
    /// # Errors
    /// [`Error::Budget`] if they exceed it; those of [`Quantize::plan`].
    pub fn check(
        quantize: &Quantize,
        model: &Model,
        imatrix: Option<&Imatrix>,
        bits_per_weight: f64,
    ) -> Result<(), Error> {
        let Parts { free, fixed_bytes, parameters, .. } = Parts::of(quantize, model, imatrix)?;
        let smallest = |tensor: &Tensor| {
            let importance = imatrix.and_then(|imatrix| imatrix.get(tensor.name()));
            candidates(tensor, importance).into_iter().map(|ty| bytes(tensor, ty)).min()
        };
        let least = fixed_bytes + free.into_iter().filter_map(smallest).sum::<u64>();
        match least > whole_bytes(bits_per_weight, parameters) {
            true => Err(too_few(bits_per_weight, least, parameters)),
            false => Ok(()),
        }
    }

    /// The types that minimize the sum of divergences with at most `bits_per_weight` on average.
    ///
    /// # Errors
    /// [`Error::Budget`] if the smallest types exceed it.
    pub fn choose(&self, bits_per_weight: f64) -> Result<Choices, Error> {
        let whole = whole_bytes(bits_per_weight, self.parameters);
        let things: Vec<Vec<Choice>> = self
            .tensors
            .iter()
            .map(|tensor| tensor.candidates.iter().map(|candidate| candidate.choice).collect())
            .collect();
        let chosen = whole.checked_sub(self.fixed_bytes);
        let Some(chosen) = chosen.and_then(|budget| budget::choose(&things, budget)) else {
            let smallest = |choices: &Vec<Choice>| choices.iter().map(|c| c.bytes).min();
            let least = self.fixed_bytes + things.iter().filter_map(smallest).sum::<u64>();
            return Err(too_few(bits_per_weight, least, self.parameters));
        };
        let chosen = self.tensors.iter().zip(chosen).map(|(tensor, at)| {
            let Candidate { ty, choice } = tensor.candidates[at];
            Chosen { name: tensor.name.clone(), ty, weights: tensor.weights, kl: choice.damage }
        });
        Ok(Choices { tensors: chosen.collect(), kept: self.kept.clone() })
    }
}

/// What a size is made of.
struct Parts<'f> {
    /// The tensors whose type may be chosen.
    free: Vec<&'f Tensor>,
    /// Tensors without a rule that the graph does not read, with their types.
    kept: Vec<(String, Type)>,
    /// Bytes of all but the free ones after quantization.
    fixed_bytes: u64,
    /// Weights of all.
    parameters: u64,
}

impl<'f> Parts<'f> {
    fn of(
        quantize: &Quantize,
        model: &'f Model,
        imatrix: Option<&Imatrix>,
    ) -> Result<Parts<'f>, Error> {
        let file = model.file();
        let plan = quantize.plan(file, imatrix)?;
        let facts = facts(file, imatrix)?;
        let weights = model.graph().weights.iter();
        let read: HashSet<&str> = weights.map(|weight| weight.name.as_str()).collect();
        let (mut free, mut kept, mut fixed_bytes) = (Vec::new(), Vec::new(), 0);
        for (planned, tensor) in plan.tensors().iter().zip(file.tensors()) {
            let has_no_rule = quantize.is_free(tensor, &facts);
            if has_no_rule && read.contains(tensor.name()) {
                free.push(tensor);
                continue;
            }
            fixed_bytes += planned.to_bytes;
            if has_no_rule {
                kept.push((planned.name.clone(), planned.to));
            }
        }
        Ok(Parts { free, kept, fixed_bytes, parameters: plan.parameters() })
    }
}

/// Bytes of `parameters` weights.
fn whole_bytes(bits_per_weight: f64, parameters: u64) -> u64 {
    (bits_per_weight * parameters as f64 / 8.0) as u64
}

/// The error if `parameters` weights take at least `least_bytes`.
fn too_few(given: f64, least_bytes: u64, parameters: u64) -> Error {
    Error::Budget { given, least: least_bytes as f64 * 8.0 / parameters as f64 }
}

/// Bytes of a tensor in one of its [`candidates`].
fn bytes(tensor: &Tensor, ty: Type) -> u64 {
    let layout = tensor.layout();
    let row_bytes = ty.row_bytes(layout.cols() as usize).expect("candidates fit the rows");
    layout.rows() * row_bytes as u64
}

/// The chosen type of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// Its name.
    pub name: String,
    /// The type.
    pub ty: Type,
    /// Number of weights.
    pub weights: u64,
    /// The expected divergence, nats per token.
    pub kl: f64,
}

/// The chosen types.
#[derive(Clone, Debug, PartialEq)]
pub struct Choices {
    /// Tensor by tensor, in the order of the file.
    pub tensors: Vec<Chosen>,
    /// The tensors that no prediction depends on, with their types.
    kept: Vec<(String, Type)>,
}

impl Choices {
    /// One rule per tensor, for [`Quantize::overrides`] or a file that [`Override::parse_all`] reads.
    pub fn rules(&self) -> impl Iterator<Item = Override> {
        let chosen = self.tensors.iter().map(|tensor| (&tensor.name, tensor.ty));
        let kept = self.kept.iter().map(|(name, ty)| (name, *ty));
        chosen.chain(kept).map(|(name, ty)| Override::of(name, ty))
    }

    /// The expected divergence in total, nats per token.
    #[must_use]
    pub fn kl(&self) -> f64 {
        self.tensors.iter().map(|tensor| tensor.kl).sum()
    }

    /// The type of most weights.
    #[must_use]
    pub fn base(&self) -> Option<Type> {
        let weights = |ty: Type| -> u64 {
            let of_type = self.tensors.iter().filter(|tensor| tensor.ty == ty);
            of_type.map(|tensor| tensor.weights).sum()
        };
        self.tensors.iter().map(|tensor| tensor.ty).max_by_key(|ty| weights(*ty))
    }
}

/// A tensor's possible types: its own, and all smaller ones that keep every weight, can be quantized to and fit its
/// rows. Types that need importance are none of them without it.
fn candidates(tensor: &Tensor, importance: Option<&Entry>) -> Vec<Type> {
    let layout = tensor.layout();
    let own = layout.ty();
    let fits = |ty: &Type| {
        ty.quantize.is_some()
            && ty.is_gguf()
            && (importance.is_some() || !is_weighted(*ty))
            && layout.cols().is_multiple_of(ty.block_weights as u64)
            && bits(*ty) < bits(own)
    };
    bilayer_quant::all().iter().copied().filter(|ty| *ty == own || fits(ty)).collect()
}

fn bits(ty: Type) -> f64 {
    8.0 * ty.block_bytes as f64 / ty.block_weights as f64
}

/// Some rows of a tensor.
struct Sample<'a> {
    file: &'a File,
    tensor: &'a Tensor,
    /// The importance used by the quantizer.
    importance: Option<&'a Entry>,
    /// The column weights of errors.
    columns: Option<&'a Entry>,
}

impl Sample<'_> {
    /// The weighted squared error of each type.
    fn errors(&self, types: &[Type]) -> Result<Vec<f64>, Error> {
        let layout = self.tensor.layout();
        let (rows, cols) = (layout.rows() as usize, layout.cols() as usize);
        let expert_rows = (layout.rows() / experts(layout.shape()).max(1)) as usize;
        let means = |entry: &Entry| {
            (entry.experts() * entry.cols() * expert_rows == rows * cols).then(|| entry.means())
        };
        let importance = self.importance.and_then(means);
        let columns = self.columns.and_then(means);
        let step = (rows * cols / SAMPLE_WEIGHTS).clamp(1, rows);
        let bytes = self.file.bytes(self.tensor);
        let row_bytes = layout.row_bytes() as usize;
        let sampled: Vec<usize> = (0..rows).step_by(step).collect();
        let row_errors = |row: &usize| -> Result<Vec<f64>, bilayer_quant::Error> {
            let first = row / expert_rows * cols;
            let importance = importance.as_ref().map(|all| &all[first..first + cols]);
            let columns = columns.as_ref().map(|all| &all[first..first + cols]);
            let mut values = vec![0.0; cols];
            layout.ty().dequantize(&bytes[row * row_bytes..][..row_bytes], &mut values)?;
            let mut back = vec![0.0; cols];
            let error = |ty: &Type| {
                if *ty == layout.ty() {
                    return Ok(0.0);
                }
                let mut made = vec![0; ty.row_bytes(cols)?];
                ty.quantize(&values, importance, &mut made)?;
                ty.dequantize(&made, &mut back)?;
                let squares = values.iter().zip(&back).enumerate().map(|(col, (x, back))| {
                    let weight = columns.map_or(1.0, |columns| f64::from(columns[col]));
                    weight * (f64::from(*x) - f64::from(*back)).powi(2)
                });
                Ok(squares.sum())
            };
            types.iter().map(error).collect()
        };
        let of_rows: Result<Vec<Vec<f64>>, _> = sampled.par_iter().map(row_errors).collect();
        let of_rows = of_rows.map_err(|error| Error::Weight {
            tensor: self.tensor.name().into(),
            reason: error.to_string(),
        })?;
        // In row order, whichever threads computed them.
        let sum = |place: usize| of_rows.iter().map(|errors| errors[place]).sum();
        Ok((0..types.len()).map(sum).collect())
    }
}

/// Runs the text with one tensor quantized and scales the divergence to the other types.
fn measured(
    runs: &mut Runs<'_>,
    sample: &Sample<'_>,
    model: &Model,
    types: &[Type],
    pool: &rayon::ThreadPool,
) -> Result<Measured, Error> {
    let errors = pool.install(|| sample.errors(types))?;
    let (name, layout) = (sample.tensor.name(), sample.tensor.layout());
    let distance = |place: &usize| (bits(types[*place]) - PROBE_BITS).abs();
    let lossy = (0..types.len()).filter(|&place| errors[place] > 0.0);
    let probe = lossy.min_by(|a, b| distance(a).total_cmp(&distance(b)));
    // Quantizing changes nothing, for example in a tensor of zeros.
    let probe = probe.unwrap_or(0);
    let mut kl = 0.0;
    if errors[probe] > 0.0 {
        let means = sample.importance.map(Entry::means);
        let weights = Weights::new(sample.file.bytes(sample.tensor), layout, types[probe], means);
        let bytes = pool
            .install(|| weights.all())
            .map_err(|source| Error::Weight { tensor: name.into(), reason: source.to_string() })?;
        drop(weights);
        let changed = model.with_tensor(name, types[probe], bytes.into());
        kl = runs.divergence(&changed.map_err(Error::calibration)?)?;
    }
    runs.step()?;
    let kl = kl.max(KL_LEAST);
    let candidates = types.iter().zip(&errors).map(|(&ty, error)| {
        let damage = if errors[probe] > 0.0 { kl * error / errors[probe] } else { 0.0 };
        Candidate { ty, choice: Choice { bytes: bytes(sample.tensor, ty), damage } }
    });
    let candidates = candidates.collect();
    let weights = layout.elements();
    Ok(Measured { name: name.into(), weights, probe: types[probe], kl, candidates })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use bilayer_gguf::{NewTensor, Strings, to_bytes};
    use bilayer_models::{Config, Outline, Output};

    use super::*;
    use crate::mix::Mix;

    /// A model of three layers with a block for multi-token prediction.
    fn model() -> Model {
        let mut metadata = (bilayer_models::find("glm4moe").unwrap().tiny)();
        metadata.set("glm4moe.block_count", 4u32);
        metadata.set("glm4moe.nextn_predict_layers", 1u32);
        let config = bilayer_models::config(&metadata).unwrap();
        let special = ["<unk>", "<s>", "</s>"].map(str::to_owned);
        let tokens: Strings =
            special.into_iter().chain(('!'..).map(String::from)).take(config.vocab).collect();
        metadata.set("tokenizer.ggml.model", "llama");
        metadata.set("tokenizer.ggml.tokens", tokens);
        metadata.set("tokenizer.ggml.scores", vec![0.0f32; config.vocab]);
        let outline = Outline::new(Type::F32, &["output.weight"]);
        bilayer_models::record(&config, &outline).unwrap();
        bilayer_models::record(&Config { output: Output::Mtp, ..config }, &outline).unwrap();
        let mut state = 1u32;
        let mut value = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0).to_le_bytes()
        };
        let tensors = outline.tensors().into_iter().map(|(name, entry)| {
            let bytes: Vec<u8> =
                (0..entry.shape.iter().product::<u64>()).flat_map(&mut value).collect();
            NewTensor::bytes(&name, entry.ty, &entry.shape, bytes)
        });
        let tensors: Vec<_> = tensors.collect();
        Model::from_bytes("tiny", to_bytes(&metadata, tensors).unwrap()).unwrap()
    }

    /// Quantizing them changes no prediction, so measuring would give them the smallest types.
    #[test]
    fn tensors_that_no_prediction_depends_on_get_the_types_of_the_mix() {
        let model = model();
        let mut quantize = Quantize::new(Mix::find("Q8_0").unwrap());
        quantize.threads = Some(1);
        let text = "!\"#$%&'()*".repeat(8);
        let calibration = Calibration { text: &text, window_len: 16, windows: 1 };
        let progress = &mut |_, _| std::ops::ControlFlow::Continue(());
        let found = Sensitivity::measure(&quantize, &model, None, &calibration, progress).unwrap();
        let is_block = |name: &str| name.starts_with("blk.3.");
        assert!(!found.tensors.is_empty() && found.tensors.iter().all(|t| !is_block(&t.name)));
        let bits = 7.0;
        Sensitivity::check(&quantize, &model, None, bits).unwrap();
        let least = Sensitivity::check(&quantize, &model, None, 1.0).unwrap_err();
        assert_eq!(least.to_string(), found.choose(1.0).unwrap_err().to_string());
        let rules = found.choose(bits).unwrap();
        quantize.mix = Mix::find("Q4_0").unwrap();
        quantize.overrides.extend(rules.rules());
        let plan = quantize.plan(model.file(), None).unwrap();
        assert!(plan.to_bytes() as f64 * 8.0 <= bits * plan.parameters() as f64);
        let matrices = plan.tensors().iter().filter(|t| is_block(&t.name) && t.from != t.to);
        let types: Vec<Type> = matrices.map(|tensor| tensor.to).collect();
        assert!(types.len() > 5 && types.iter().all(|ty| *ty == Type::Q8_0), "{types:?}");
        let mut others = plan.tensors().iter().filter(|t| !is_block(&t.name) && t.from != t.to);
        assert!(others.any(|tensor| tensor.to != Type::Q8_0));
    }
}
