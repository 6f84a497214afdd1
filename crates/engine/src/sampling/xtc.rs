//! XTC (p-e-w 2024): now and then exclude the top choices, so that the text takes another turn.

use super::options::Xtc;
use super::{Candidate, normalize, sorted_front};

/// With chance `probability` removes every candidate at least `threshold` likely but the least likely of them.
pub fn apply(candidates: &mut Vec<Candidate>, options: &Xtc, uniform: f32) {
    if uniform >= options.probability || options.threshold > 0.5 {
        return;
    }
    normalize(candidates);
    let above =
        sorted_front(candidates, |front| front.iter().position(|c| c.p < options.threshold));
    if above >= 2 {
        candidates.drain(..above - 1);
    }
}
