//! `quantize --target-bpw`: chooses every tensor's type by the measured effect of its quantization on the
//! predictions.

use std::collections::BTreeMap;
use std::io::Write;

use bilayer_convert::imatrix::Imatrix;
use bilayer_convert::quantize::sensitivity::Sensitivity;
use bilayer_convert::quantize::{self, Quantize};
use bilayer_engine::Model;

use crate::args;
use crate::failure::Failure;
use crate::new_file::NewFile;
use crate::progress;

/// The chosen types, and their expected cost.
pub struct Chosen {
    /// The sum of divergences, nats per token.
    pub kl: f64,
    each: BTreeMap<String, f64>,
}

impl Chosen {
    /// The expected divergence of one tensor, if its type was chosen.
    pub fn of(&self, tensor: &str) -> Option<f64> {
        self.each.get(tensor).copied()
    }
}

/// Runs the calibration text once per tensor; `None` if interrupted.
pub fn measure(
    args: &args::Quantize,
    quantize: &Quantize,
    imatrix: Option<&Imatrix>,
) -> Result<Option<Sensitivity>, Failure> {
    let (text, file) = super::calibrated(args)?;
    let model = Model::new(file)?;
    let calibration = super::calibration(args, &text);
    let bar = progress::steps("measuring");
    let measured = progress::interruptible(&bar, |told| {
        Sensitivity::measure(quantize, &model, imatrix, &calibration, told)
    });
    measured.map_err(|error| super::of_input(error, &args.input))
}

/// Sets the type of every tensor without a rule; the file declares the mix of the type of most weights.
pub fn apply(
    args: &args::Quantize,
    asked: &mut Quantize,
    sensitivity: &Sensitivity,
    target: f64,
) -> Result<Chosen, Failure> {
    let choice = sensitivity.choose(target)?;
    if let Some(base) = choice.base() {
        asked.mix = quantize::mix(base.name)?;
    }
    if let Some(path) = &args.tensor_types_out {
        let failed = |error: std::io::Error| Failure::output(path, &error);
        let mut file = NewFile::create(path).map_err(failed)?;
        for rule in choice.rules() {
            writeln!(file, "{rule}").map_err(failed)?;
        }
        file.finish().map_err(failed)?;
    }
    let each = choice.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.kl)).collect();
    asked.overrides.extend(choice.rules());
    Ok(Chosen { kl: choice.kl(), each })
}
