//! `bilayer rerank`: scores documents by relevance to a query.

use bilayer_engine::session::Purpose;
use serde::Serialize;
use serde_json::Value;

use super::encode::{self, Job};
use crate::args::Rerank;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Scored<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: &'a Option<Value>,
    /// The model's raw score; higher is better.
    score: f32,
}

/// Prints one score per document.
pub fn execute(args: &Rerank) -> Result<u8, Failure> {
    let texts = encode::texts(&args.texts)?;
    if let Some(given) = texts.iter().find(|given| given.pair.is_some()) {
        let line = "`text_pair` has no meaning for `rerank`, which pairs each text with the query";
        return Err(Failure::usage(line).at(&given.place));
    }
    let mut encoder = encode::encoder(&args.model, Purpose::Score)?;
    let labels = encoder.text_labels()?.len();
    if labels != 1 {
        let line = format!(
            "the model gives {labels} scores, none of which is a relevance score; `classify` prints them"
        );
        return Err(Failure::usage(line));
    }
    let job = Job { texts: &texts, query: Some(&args.query), excess: args.texts.excess() };
    let mut scores = Vec::with_capacity(texts.len());
    encode::run(&mut encoder, &job, &mut |index, _, rows| {
        let score = rows[0];
        if args.top_n.is_none() {
            return output::json(&Scored { index, id: &texts[index].id, score });
        }
        scores.push((index, score));
        Ok(())
    })?;
    if let Some(count) = args.top_n {
        // Stable, so that tied documents keep their order.
        scores.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        for &(index, score) in scores.iter().take(count as usize) {
            output::json(&Scored { index, id: &texts[index].id, score })?;
        }
    }
    Ok(0)
}
