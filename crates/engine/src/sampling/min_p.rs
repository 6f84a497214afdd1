//! Min-p (Nguyen et al. 2024): drop what is far less likely than the most likely.

use super::Candidate;

/// Keeps candidates of at least `p` times the highest probability; 0 keeps all.
pub fn apply(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 {
        return;
    }
    let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let least = max + p.ln();
    candidates.retain(|c| c.logit >= least);
}
