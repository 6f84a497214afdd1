//! Matrices that `quantize W8A8 --smooth` or `--gptq` keeps in a finer type.

use bilayer_convert::quantize::Quantize;
use bilayer_convert::quantize::mixed::{Coarse, RATIO};
use bilayer_engine::Model;
use serde_json::{Value, json};

use crate::args;
use crate::failure::Failure;
use crate::{output, progress};

/// Finds the matrices for which the type is too coarse, gives them a finer one, and prints a note; `None` if interrupted.
pub fn apply(
    args: &args::Quantize,
    quantize: &mut Quantize,
    (text, model): &(String, Model),
) -> Result<Option<Vec<Coarse>>, Failure> {
    let bar = progress::steps("measuring");
    let found = progress::interruptible(&bar, |told| {
        quantize.too_coarse(model, &super::calibration(args, text), told)
    });
    let found = found.map_err(|error| super::of_input(error, &args.input))?;
    let Some(coarse) = found else { return Ok(None) };
    if !coarse.is_empty() {
        let names: Vec<&str> = coarse.iter().map(|coarse| coarse.tensor.as_str()).collect();
        output::note(&format!(
            "{} matrices get Q8_0, as their products have more than {RATIO} times the squared error in W8A8 \
             (--pure: none): {}",
            names.len(),
            names.join(", ")
        ));
    }
    quantize.refine(&coarse);
    Ok(Some(coarse))
}

/// The matrices with their relative squared errors in both types.
pub fn json(coarse: &[Coarse]) -> Vec<Value> {
    let each = coarse.iter().map(|Coarse { tensor, errors }| {
        json!({ "tensor": tensor, "errors": { "W8A8": errors[0], "Q8_0": errors[1] } })
    });
    each.collect()
}
