//! `bilayer classify`: classifies texts.

use bilayer_engine::session::Purpose;
use serde::Serialize;
use serde_json::Value;

use super::encode::{self, Job};
use crate::args::Classify;
use crate::failure::Failure;
use crate::output;

mod route;

#[derive(Serialize)]
struct Judged<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: &'a Option<Value>,
    /// The likeliest label.
    label: &'a str,
    score: f32,
    /// All labels in the model's order.
    scores: Vec<Label<'a>>,
}

#[derive(Serialize)]
struct Label<'a> {
    label: &'a str,
    score: f32,
}

/// Prints the labels of each text with their probabilities.
pub fn execute(args: &Classify) -> Result<u8, Failure> {
    let routes = route::routes(args)?;
    let texts = encode::texts(&args.texts)?;
    if !routes.is_empty() {
        return route::execute(args, &texts, &routes);
    }
    let mut encoder = encode::encoder(&args.model, Purpose::Score)?;
    let (labels, labelling) = (encoder.text_labels()?.to_vec(), encoder.labelling());
    let job = Job { texts: &texts, query: None, excess: args.texts.excess() };
    encode::run(&mut encoder, &job, &mut |index, _, rows| {
        let scores: Vec<Label<'_>> = labels
            .iter()
            .zip(labelling.probabilities(rows))
            .map(|(label, score)| Label { label, score })
            .collect();
        let Some(&Label { label, score }) = best(&scores) else { return Ok(()) };
        output::json(&Judged { index, id: &texts[index].id, label, score, scores })
    })?;
    Ok(0)
}

/// The first of the labels with the highest score.
fn best<'s, 'a>(scores: &'s [Label<'a>]) -> Option<&'s Label<'a>> {
    scores.iter().reduce(|best, next| if next.score > best.score { next } else { best })
}
