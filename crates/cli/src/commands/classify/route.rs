//! `bilayer classify --labels`: routes texts to the labels that they are most similar to.

use bilayer_engine::encode::route::{Route, Router};
use bilayer_engine::session::Purpose;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::encode::{self, Given, Job};
use super::Label;
use crate::args::Classify;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Routed<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: &'a Option<Value>,
    /// The most similar label; null if it is not similar enough.
    label: Option<&'a str>,
    /// Its cosine.
    score: f32,
    /// All labels with their cosines.
    scores: Vec<Label<'a>>,
}

/// A line of examples.
#[derive(Deserialize)]
struct Example {
    text: String,
    label: String,
}

/// The labels given by the flags with their examples; none without such flags.
pub fn routes(args: &Classify) -> Result<Vec<Route>, Failure> {
    let mut routes: Vec<Route> = Vec::new();
    let mut add =
        |label: &str, text: &str| match routes.iter_mut().find(|route| route.label == label) {
            Some(route) => route.examples.push(text.to_owned()),
            None => routes.push(Route { label: label.into(), examples: vec![text.to_owned()] }),
        };
    for label in &args.labels {
        add(label, label);
    }
    if let Some(path) = &args.examples {
        let text = output::json_lines(path)?;
        let place = |at: usize| format!("{}: line {}", path.display(), at + 1);
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let example: Example = serde_json::from_str(line).map_err(|error| {
                let line = format!("expected an object with `text` and `label`: {error}");
                Failure::usage(line).at(&place(at))
            })?;
            if example.label.trim().is_empty() {
                let line = "the label is empty; name one".to_owned();
                return Err(Failure::usage(line).at(&place(at)));
            }
            add(&example.label, &example.text);
        }
        if routes.is_empty() {
            return Err(Failure::usage("has no examples").in_file(path));
        }
    }
    if args.at_least.is_some() && routes.is_empty() {
        return Err(Failure::usage("--at-least belongs to --labels or --examples"));
    }
    Ok(routes)
}

/// Prints the most similar label of each text.
pub fn execute(args: &Classify, texts: &[Given], routes: &[Route]) -> Result<u8, Failure> {
    let mut encoder = encode::encoder(&args.model, Purpose::Embed(None))?;
    let router = Router::new(&mut encoder, routes)?;
    let job = Job { texts, query: None, excess: args.texts.excess() };
    encode::run(&mut encoder, &job, &mut |index, _, row| {
        let labels = router.labels().iter().zip(router.cosines(row));
        let scores: Vec<Label<'_>> = labels.map(|(label, score)| Label { label, score }).collect();
        let Some(&Label { label, score }) = super::best(&scores) else { return Ok(()) };
        let label = args.at_least.is_none_or(|least| score >= least).then_some(label);
        output::json(&Routed { index, id: &texts[index].id, label, score, scores })
    })?;
    Ok(0)
}
