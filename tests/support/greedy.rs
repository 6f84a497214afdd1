//! Answers of the likeliest tokens.

use bilayer_engine::Model;
use bilayer_engine::generate::speculate::Drafter;
use bilayer_engine::generate::{Generation, Request, Statistics};
use bilayer_engine::sampling::{Options, Sampler};
use bilayer_engine::session::Session;

/// The tokens after a prompt in a sequence of its own, at most `predict`, and what it took; with a drafter, if there is one.
pub fn answer(
    (model, session): (&Model, &mut Session),
    prompt: &[u32],
    predict: usize,
    drafter: Option<&mut dyn Drafter>,
) -> (Vec<u32>, Statistics) {
    let options = Options { temperature: 0.0, ..Options::default() };
    let sampler = Sampler::new(options, session.vocab(), session.context()).unwrap();
    let sequence = session.open().unwrap();
    let request = Request { predict: Some(predict), ignore_eos: true, ..Request::new(prompt) };
    let mut generation = Generation::new(model, session, sequence, sampler, request).unwrap();
    if let Some(drafter) = drafter {
        generation = generation.with_drafter(drafter).unwrap();
    }
    let mut ids = Vec::new();
    while let Some(token) = generation.next().unwrap() {
        ids.push(token.id);
    }
    let statistics = generation.statistics();
    drop(generation);
    session.close(sequence);
    (ids, statistics)
}
