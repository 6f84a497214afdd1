//! `bilayer rerank`: scores documents by relevance to a query.

use bilayer_engine::encode::pair::Relevance;
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
    /// The higher, the more relevant.
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
    let labels = encoder.text_labels()?;
    let relevance = Relevance::of(labels).ok_or_else(|| {
        let count = labels.len();
        Failure::usage(format!(
            "the model gives {count} scores, none of which is a relevance score; `classify` prints them"
        ))
    })?;
    let job = Job { texts: &texts, query: Some(&args.query), excess: args.texts.excess() };
    let mut scores = Vec::with_capacity(texts.len());
    encode::run(&mut encoder, &job, &mut |index, _, rows| {
        let score = relevance.score(rows);
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
