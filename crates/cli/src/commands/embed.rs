//! `bilayer embed`: texts to vectors.

use bilayer_engine::encode::Norm;
use bilayer_engine::session::Purpose;
use bilayer_measure::cosine;
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
    let texts = encode::texts(&args.texts)?;
    let pooling = args.pooling.map(|given| {
        given
            .pooling()
            .ok_or_else(|| Failure::usage("`rerank` prints the scores of --pooling rank"))
    });
    let pooling = pooling.transpose()?;
    let mut encoder = encode::encoder(&args.model, Purpose::Embed(pooling))?;
    encoder.set_prompt(args.prompt_name.as_deref())?;
    let width = encoder.session().width();
    let is_pooled = encoder.is_pooled();
    let job = Job { texts: &texts, query: None, excess: args.texts.excess() };
    let norm = match args.embd_normalize {
        None if args.normalize => Norm::P(2),
        None => encoder.norm(),
        Some(number) => Norm::numbered(number.into()),
    };
    let form = args.embd_output_format.as_str();
    let (mut vectors, mut all) = (Vec::new(), Vec::new());
    encode::run(&mut encoder, &job, &mut |index, tokens, rows| {
        vectors.clear();
        vectors.extend_from_slice(rows);
        vectors.chunks_exact_mut(width).for_each(|row| norm.apply(row));
        if form != "jsonl" {
            all.extend(vectors.chunks_exact(width).map(<[f32]>::to_vec));
            return Ok(());
        }
        let id = &texts[index].id;
        if is_pooled {
            return output::json(&Pooled { index, id, embedding: &vectors });
        }
        let embeddings = vectors.chunks_exact(width).collect();
        output::json(&Each { index, id, tokens, embeddings })
    })?;
    if form != "jsonl" {
        document(form, &all)?;
    }
    Ok(0)
}

/// Prints all vectors as one document, in the forms of llama-embedding.
fn document(form: &str, vectors: &[Vec<f32>]) -> Result<(), Failure> {
    if form == "array" {
        return output::json(&vectors);
    }
    let data = vectors.iter().enumerate();
    let data = data.map(|(index, embedding)| Entry { object: "embedding", index, embedding });
    let row = |a: &Vec<f32>| vectors.iter().map(|b| cosine(a, b)).collect();
    let cosines = (form == "json+").then(|| vectors.iter().map(row).collect());
    output::json(&List { object: "list", data: data.collect(), cosines })
}

/// OpenAI's list of embeddings.
#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Entry<'a>>,
    /// Of each vector with each.
    #[serde(rename = "cosineSimilarity", skip_serializing_if = "Option::is_none")]
    cosines: Option<Vec<Vec<f64>>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    object: &'static str,
    index: usize,
    embedding: &'a [f32],
}
