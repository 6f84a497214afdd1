//! Control vectors: directions that are added to the results of layers.

use bilayer_graph::{Error, Recorder, Value};

use crate::Config;

/// The name of the tensor `[1, width]` that is added to the result of a layer: a control vector's direction.
pub fn direction(layer: usize) -> String {
    format!("control vector: direction.{layer}")
}

/// The result of a layer, plus the direction for it if there is one.
pub(super) fn steered(
    config: &Config,
    r: &mut Recorder<'_>,
    layer: usize,
    hidden: Value,
) -> Result<Value, Error> {
    let name = direction(layer);
    if !r.has(&name) {
        return Ok(hidden);
    }
    let table = r.matrix(&name, 1, config.width)?;
    // Each token has the only row of the table, whatever separates texts.
    let mut row = r.embed_segments("cvec", table, 0); // [T, width]
    if config.narrows(layer) {
        row = r.rows_wanted("cvec_wanted", row); // [R, width]
    }
    Ok(r.add("l_steered", hidden, row))
}
