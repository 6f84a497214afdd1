//! The draw: one candidate with its probability.

use super::Candidate;

/// The candidate whose cumulative probability first exceeds `uniform` in `[0, 1)`.
pub fn choose(candidates: &[Candidate], uniform: f32) -> u32 {
    let mut cumulated = 0.0f64;
    for c in candidates {
        cumulated += f64::from(c.p);
        if f64::from(uniform) < cumulated {
            return c.id;
        }
    }
    // Rounding may leave the sum just below 1: then the last candidate with any probability is selected.
    candidates.iter().rev().find(|c| c.p > 0.0).unwrap_or(&candidates[0]).id
}
