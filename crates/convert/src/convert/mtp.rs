//! Blocks for multi-token prediction in a checkpoint.

use std::collections::BTreeSet;

use bilayer_models::{Architecture, Config, layer_of, limits, mtp_name, translate};

use crate::checkpoint::Checkpoint;

/// The numbers of blocks for multi-token prediction that the file does not have, because they are incomplete or the
/// architecture has no names for them.
pub(super) fn unused_blocks(checkpoint: &Checkpoint, config: &Config) -> std::ops::Range<usize> {
    let count = checkpoint.settings().size(&["num_nextn_predict_layers"]).ok().flatten();
    let layers = config.layers.len();
    layers + config.mtp.len()..layers.saturating_add(count.unwrap_or(0) as usize)
}

/// Number of blocks for multi-token prediction after the `layers` layers of a checkpoint, as far as the architecture has
/// names for them.
pub(super) fn mtp_blocks(
    checkpoint: &Checkpoint,
    architecture: &Architecture,
    layers: usize,
) -> usize {
    let names = checkpoint.shards.tensors().keys();
    let usual = names.map(|name| mtp_name(name, layers).unwrap_or_else(|| name.clone()));
    let stems = usual.filter_map(|name| name.strip_suffix(".eh_proj.weight").map(str::to_owned));
    let blocks: BTreeSet<usize> = stems.filter_map(|stem| layer_of(&format!("{stem}."))).collect();
    let is_named = |block: &usize| {
        let name = format!("model.layers.{block}.eh_proj.weight");
        blocks.contains(block) && !translate(architecture.names, &name).is_empty()
    };
    (layers..limits::LAYERS).take_while(is_named).count()
}
