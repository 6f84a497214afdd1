//! `quantize --target-bpw`: which type every tensor gets, from what each one's quantization does to the predictions.

use std::collections::BTreeMap;
use std::io::Write;

use bilayer_convert::imatrix::Imatrix;
use bilayer_convert::quantize::sensitivity::{Calibration, Sensitivity};
use bilayer_convert::quantize::{self, Quantize};
use bilayer_engine::Model;

use crate::args;
use crate::failure::Failure;
use crate::new_file::NewFile;
use crate::{output, progress};

/// What was chosen, and what it is expected to cost.
pub struct Chosen {
    /// The sum of divergences, nats a token.
    pub kl: f64,
    each: BTreeMap<String, f64>,
}

impl Chosen {
    /// The divergence to expect of one tensor, where its type was chosen.
    pub fn of(&self, tensor: &str) -> Option<f64> {
        self.each.get(tensor).copied()
    }
}

/// Runs the calibration text once for each tensor; nothing if it was interrupted.
pub fn measure(
    args: &args::Quantize,
    quantize: &Quantize,
    imatrix: Option<&Imatrix>,
) -> Result<Option<Sensitivity>, Failure> {
    let path = args.calibration.as_deref();
    let text =
        output::file(path.ok_or_else(|| Failure::usage("no text; give --calibration FILE"))?)?;
    let model = Model::new(super::open(&args.input)?)?;
    let (window_len, windows) = (args.ctx_size, args.chunks as usize);
    let calibration = Calibration { text: &text, window_len, windows };
    let bar = progress::steps("measuring");
    let measured = progress::interruptible(&bar, |told| {
        Sensitivity::measure(quantize, &model, imatrix, &calibration, told)
    });
    measured.map_err(|error| super::of_input(error, &args.input))
}

/// Gives every free tensor its type; the file is said to be of the mix of the type that most weights have.
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
