//! `quantize --smooth`: moves outliers of activations into the weights, and reports them.

use bilayer_convert::quantize::Quantize;
use bilayer_convert::smooth::{Alpha, Folded, Smooth, Smoothed};
use bilayer_engine::Model;
use bilayer_gguf::File;
use serde_json::{Value, json};

use crate::args;
use crate::failure::Failure;
use crate::{output, progress};

/// Outlier channels listed per input.
const LISTED: usize = 5;

/// Measures on the calibration text and folds the factors into `file`; `None` if interrupted.
pub fn apply(
    args: &args::Quantize,
    alpha: Alpha,
    quantize: &Quantize,
    file: File,
) -> Result<Option<(File, Smoothed)>, Failure> {
    let (text, original) = super::calibrated(args)?;
    let model = Model::new(original)?;
    let calibration = super::calibration(args, &text);
    let smooth = Smooth { alpha, ty: quantize.mix.base, threads: quantize.threads };
    let bar = progress::steps("smoothing");
    let measured = progress::interruptible(&bar, |told| smooth.measure(&model, &calibration, told));
    let in_file = |error| super::of_input(error, &args.input);
    let Some(smoothed) = measured.map_err(in_file)? else { return Ok(None) };
    for input in &smoothed.inputs {
        output::note(&line(input));
    }
    let file = smoothed.apply(file).map_err(in_file)?;
    Ok(Some((file, smoothed)))
}

fn name(input: &Folded) -> &str {
    input.link.before.tensors().next().unwrap_or_default()
}

fn line(input: &Folded) -> String {
    let alpha = input.alpha.map_or_else(|| "none".to_owned(), |alpha| format!("{alpha:.1}"));
    let [before, after] = input.errors.map(|error| 100.0 * error.sqrt());
    let outliers = input.outliers.iter().take(LISTED);
    let listed: Vec<String> =
        outliers.map(|(channel, ratio)| format!("{channel} ({ratio:.0}x)")).collect();
    let outliers = match listed.is_empty() {
        true => String::new(),
        false => format!("; {} outlier channels: {}", input.outliers.len(), listed.join(", ")),
    };
    format!("{}: alpha {alpha}, error {before:.2} % to {after:.2} %{outliers}", name(input))
}

/// The inputs as JSON.
pub fn json(smoothed: &Smoothed) -> Value {
    let inputs = smoothed.inputs.iter().map(|input| {
        json!({
            "before": input.link.before.tensors().collect::<Vec<_>>(),
            "matrices": input.link.matrices.iter().map(|matrix| &matrix.tensor).collect::<Vec<_>>(),
            "alpha": input.alpha,
            "errors": input.errors.map(f64::sqrt),
            "outliers": input.outliers,
        })
    });
    inputs.collect()
}
