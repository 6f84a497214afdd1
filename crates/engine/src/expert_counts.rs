//! Counts of how often experts are used: from an importance matrix, or learned in earlier runs.

use std::collections::BTreeMap;
use std::path::Path;

use bilayer_files::hash::fnv;
use bilayer_graph::Graph;
use bilayer_scheduler::ExpertUses;
use bilayer_settings::Setting;
use serde::{Deserialize, Serialize};

use crate::file::open_file;
use crate::kept::Kept;
use crate::placing::Placing;
use crate::{Error, Model};

/// The ending of the tensors that count a stack's tokens, and what stacks of experts have in their names.
const COUNTS: &str = ".weight.counts";
const STACK: &str = "_exps";

/// Reads how many tokens each expert of each layer has got from a file that `bilayer imatrix` or llama-imatrix has
/// written: the tensors `blk.N.ffn_..._exps.weight.counts`, `[experts, 1]` F32.
///
/// # Errors
/// The file is missing, damaged or no importance matrix in GGUF, or it counts no experts.
pub fn expert_counts(path: &Path) -> Result<ExpertUses, Error> {
    let wrong = |expected: &str| Error::setting(Setting::ExpertCounts, path.display(), expected);
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

/// Checks counts that a user has given against a model's mixtures.
///
/// # Errors
/// They lack a layer's, or are of another number of experts.
pub(crate) fn check_uses(graph: &Graph, uses: &ExpertUses) -> Result<(), Error> {
    for mixture in bilayer_scheduler::mixtures(graph) {
        let Some(layer) = mixture.layer else { continue };
        let found = match uses.layers.get(&layer) {
            Some(counts) if counts.len() == mixture.experts => continue,
            Some(counts) => format!("{} with {} in layer {layer}", uses.source, counts.len()),
            None => format!("{} without layer {layer}", uses.source),
        };
        let expected = format!("counts of {} experts in layer {layer}", mixture.experts);
        return Err(Error::setting(Setting::ExpertCounts, found, expected));
    }
    Ok(())
}

/// Where learned counts are stored.
#[derive(Clone, Debug)]
pub(crate) struct Learned {
    kept: Kept,
    name: String,
}

/// Counts of each layer, as stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    layers: BTreeMap<u32, Vec<f64>>,
}

impl Learned {
    /// Where counts of a model's experts are stored, if anything is.
    pub fn of(model: &Model, placing: &Placing) -> Option<Learned> {
        let kept = Kept::new(placing.kept.as_ref()?);
        let mut key = format!("{}|{}", model.name(), model.file().name());
        for weight in &model.graph().weights {
            key += &format!("|{} {} {} {}", weight.name, weight.ty, weight.rows, weight.cols);
        }
        Some(Learned { kept, name: format!("experts-{:016x}.json", fnv(key.as_bytes())) })
    }

    /// The stored counts of earlier runs.
    pub fn uses(&self) -> Option<ExpertUses> {
        let Stored { layers } = serde_json::from_slice(&self.kept.load(&self.name)?).ok()?;
        let is_good = |counts: &Vec<f64>| counts.iter().all(|of| of.is_finite() && *of >= 0.0);
        let source = "counts learned in earlier runs".to_owned();
        layers.values().all(is_good).then_some(ExpertUses { source, layers })
    }

    /// Stores counts. Those that cannot be stored are counted again.
    pub fn store(&self, layers: BTreeMap<u32, Vec<f64>>) {
        if let Ok(text) = serde_json::to_vec(&Stored { layers }) {
            let _ = self.kept.store(&self.name, &text);
        }
    }
}
