//! Greedy choice: the most likely candidate.

use super::Candidate;

/// The candidate with the highest logit; the lowest id where several tie.
pub fn choose(candidates: &[Candidate]) -> u32 {
    let mut best = candidates[0];
    for c in &candidates[1..] {
        if c.logit > best.logit || (c.logit == best.logit && c.id < best.id) {
            best = *c;
        }
    }
    best.id
}
