//! Logit bias: a number added to single tokens' logits.

use super::Candidate;

/// Adds each bias; `candidates[id]` is token `id`.
pub fn apply(candidates: &mut [Candidate], biases: &[(u32, f32)]) {
    for &(id, bias) in biases {
        candidates[id as usize].logit += bias;
    }
}
