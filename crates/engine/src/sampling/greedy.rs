//! Greedy choice: the most likely candidate.

use super::Candidate;

/// Keeps the candidate with the highest logit, which is certain then; the lowest id where several tie.
pub fn apply(candidates: &mut Vec<Candidate>) {
    let mut best = candidates[0];
    for c in &candidates[1..] {
        if c.logit > best.logit || (c.logit == best.logit && c.id < best.id) {
            best = *c;
        }
    }
    candidates.clear();
    candidates.push(Candidate { p: 1.0, ..best });
}
