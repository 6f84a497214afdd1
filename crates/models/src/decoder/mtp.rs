//! The block for multi-token prediction (MTP; DeepSeek-AI 2024, section 2.2), as a graph of its own.

use bilayer_graph::{Error, Recorder, Value};

use super::{Block, Carried, head, norm, output_norm, scaled};
use crate::Config;

/// Records the first MTP block: logits `[R, vocab]` of the token after the step's ones, from their embedding and the
/// hidden states of the positions before them. Its own hidden states `[R, width]` can take the place of the model's.
///
/// `z = eh_proj (enorm(embedding), hnorm(hidden))`, then a layer of the architecture, a norm and the head.
pub(super) fn record(config: &Config, r: &mut Recorder<'_>) -> Result<Value, Error> {
    let index = config.layers.len();
    let layer = config.mtp.first().expect("who asks for an MTP block has looked");
    let width = config.width;
    let tensor = |stem: &str| format!("blk.{index}.nextn.{stem}");
    let own = tensor("embed_tokens.weight");
    let name = if r.has(&own) { own.as_str() } else { "token_embd.weight" };
    let table = r.matrix(name, config.vocab, width)?;
    let embedded = r.embed("token_embd", table); // [T, width]
    let embedded = scaled(r, "embd_scaled", embedded, config.embedding_scale);
    r.layer(Some(0));
    let hidden = r.given(width); // [T, width]
    let embedded = norm(config, r, "nextn_enorm", &tensor("enorm"), embedded)?;
    let hidden = norm(config, r, "nextn_hnorm", &tensor("hnorm"), hidden)?;
    let both = r.join("nextn_joined", embedded, hidden, [width; 2]); // [T, 2 width]
    let by = r.matrix(&tensor("eh_proj.weight"), width, 2 * width)?;
    let input = r.matmul("nextn_inp", both, by, None); // [T, width]
    let block = Block { config, layer, index, narrows: true };
    let out = block.record(input, &mut Carried::default(), r)?; // [R, width]
    r.layer(None);
    let own = tensor("shared_head_norm");
    let stem = if r.has(&format!("{own}.weight")) { own.as_str() } else { output_norm(config, r) };
    let normed = norm(config, r, "result_norm", stem, out)?; // [R, width]
    r.keep_hidden(normed);
    let own = tensor("shared_head_head.weight");
    if r.has(&own) {
        return head(config, r, normed, (&own, table));
    }
    let shared = match r.has("output.weight") {
        true => table,
        // The model's own embedding, whichever this block has.
        false => r.matrix("token_embd.weight", config.vocab, width)?,
    };
    head(config, r, normed, ("output.weight", shared))
}
