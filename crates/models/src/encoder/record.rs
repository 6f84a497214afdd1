//! The encoder: attention over texts, to both sides unless it is made of a decoder; the output is one row per text, all rows,
//! or scores.
//!
//! Its layers are the decoder's ([`Block`]); differences are fields of [`Config`]. Each line notes its output shape; `T` is the
//! number of tokens in the step, `R` the number of requested rows.

use bilayer_graph::{Error, Recorder, Value};

use super::output::output;
use super::{Encoder, TYPES};
use crate::decoder::{Block, Carried, norm};
use crate::{Config, NormAt};

/// Records embedding, layers and output: hidden states `[R, width]` (all rows or one per text), projected `[R, dense]` if
/// the model does so, or scores `[R, labels]`.
pub(crate) fn record(config: &Config, r: &mut Recorder<'_>) -> Result<Value, Error> {
    let encoder = config.encoder.as_ref().expect("an encoder's configuration");
    let mut hidden = embedding(config, encoder, r)?; // [T, width]
    let mut carried = Carried::default();
    for (index, layer) in config.layers.iter().enumerate() {
        r.layer(Some(index as u32));
        let narrows = config.narrows(index);
        hidden = Block { config, layer, index, narrows }.record(hidden, &mut carried, r)?;
    }
    r.layer(None);
    if config.norm_at == NormAt::Before {
        hidden = norm(config, r, "result_norm", config.output_norm, hidden)?; // [.., width]
    }
    output(config, encoder, r, hidden)
}

/// The sum of token, token type and position embedding, normalized unless the first layer does so: `[T, width]`.
fn embedding(config: &Config, encoder: &Encoder, r: &mut Recorder<'_>) -> Result<Value, Error> {
    let table = r.matrix("token_embd.weight", config.vocab, config.width)?;
    let mut hidden = r.embed("token_embd", table);
    if let Some(types) = encoder.token_types {
        let table = r.matrix(TYPES, types, config.width)?;
        let ty = r.embed_segments("token_types", table, encoder.separator);
        hidden = r.add("embd_typed", hidden, ty);
    }
    if let Some(positions) = config.positions {
        let table = r.matrix("position_embd.weight", positions, config.width)?;
        let place = r.embed_positions("position_embd", table);
        hidden = r.add("embd_placed", hidden, place);
    }
    match encoder.norms_embedding {
        true => norm(config, r, "embd_norm", "token_embd_norm", hidden),
        false => Ok(hidden),
    }
}
