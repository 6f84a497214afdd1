//! `bilayer embed`: texts to vectors.

use bilayer_engine::encode::normalize;
use bilayer_engine::session::Purpose;
use serde::Serialize;
use serde_json::Value;

use super::encode::{self, Job};
use crate::args::Embed;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Pooled<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: &'a Option<Value>,
    embedding: &'a [f32],
}

#[derive(Serialize)]
struct Each<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: &'a Option<Value>,
    tokens: &'a [u32],
    embeddings: Vec<&'a [f32]>,
}

/// Prints one vector per text, or one per token.
pub fn execute(args: &Embed) -> Result<u8, Failure> {
    if args.model.placing.adapter.list_devices {
        return super::devices::list();
    }
    let texts = encode::texts(&args.texts)?;
    let pooling = args.pooling.map(crate::args::PoolingArg::pooling);
    let mut encoder = encode::encoder(&args.model, Purpose::Embed(pooling))?;
    let width = encoder.session().width();
    let is_pooled = encoder.is_pooled();
    let job = Job { texts: &texts, query: None, truncate: args.texts.truncate };
    let mut vectors = Vec::new();
    encode::run(&mut encoder, &job, &mut |index, tokens, rows| {
        vectors.clear();
        vectors.extend_from_slice(rows);
        if args.normalize {
            vectors.chunks_exact_mut(width).for_each(normalize);
        }
        let id = &texts[index].id;
        if is_pooled {
            return output::json(&Pooled { index, id, embedding: &vectors });
        }
        let embeddings = vectors.chunks_exact(width).collect();
        output::json(&Each { index, id, tokens, embeddings })
    })?;
    Ok(0)
}
