//! Counts of how often experts are used, from an importance matrix.

use std::path::Path;

use bilayer_scheduler::ExpertUses;

use crate::{Error, open_file};

/// The ending of the tensors that count a stack's tokens, and what stacks of experts have in their names.
const COUNTS: &str = ".weight.counts";
const STACK: &str = "_exps";

/// Reads how many tokens each expert of each layer has got from a file that `bilayer imatrix` or llama-imatrix has
/// written: the tensors `blk.N.ffn_..._exps.weight.counts`, `[experts, 1]` F32.
///
/// # Errors
/// The file is missing, damaged or no importance matrix in GGUF, or it counts no experts.
pub fn expert_counts(path: &Path) -> Result<ExpertUses, Error> {
    let wrong = |expected: &str| Error::Setting {
        name: "expert-counts",
        found: path.display().to_string(),
        expected: expected.to_owned(),
    };
    let file = open_file(path)?;
    let kind = file.metadata().opt_str("general.type").map_err(Error::File)?;
    if kind != Some("imatrix") {
        return Err(wrong("an importance matrix that `bilayer imatrix` has written"));
    }
    let mut uses =
        ExpertUses { source: format!("counts of {}", file.name()), layers: Default::default() };
    for tensor in file.tensors() {
        let stack = tensor.name().strip_suffix(COUNTS).filter(|name| name.contains(STACK));
        let layer =
            stack.and_then(|name| name.strip_prefix("blk.")?.split('.').next()?.parse().ok());
        let Some(layer) = layer else { continue };
        let bytes = file.bytes(tensor);
        let mut counts = vec![0.0; bytes.len() / size_of::<f32>()];
        let read = tensor.layout().ty().dequantize(&bytes, &mut counts);
        let good = read.is_ok() && counts.iter().all(|of| of.is_finite() && *of >= 0.0);
        if !good {
            return Err(wrong(&format!("a file with numbers of tokens in {}", tensor.name())));
        }
        uses.layers.entry(layer).or_insert_with(|| counts.into_iter().map(f64::from).collect());
    }
    match uses.layers.is_empty() {
        true => Err(wrong("an importance matrix of a mixture of experts")),
        false => Ok(uses),
    }
}
