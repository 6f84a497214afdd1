//! Log-probabilities of the raw distribution, for `--logprobs`.

use super::{Candidate, sort_front};

/// A token with the logarithm (base e) of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// `ln p` before any sampler.
    pub logprob: f32,
}

/// The chosen token's log-probability and the `top` most likely ones, most likely first.
pub fn logprobs(logits: &[f32], chosen: u32, top: usize) -> (TokenLogprob, Vec<TokenLogprob>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    let log_sum = max + sum.ln() as f32;
    let of = |id: u32, logit: f32| TokenLogprob { id, logprob: logit - log_sum };
    let mut candidates: Vec<Candidate> =
        logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit, p: 0.0 }).collect();
    let top = top.min(candidates.len());
    sort_front(&mut candidates, top);
    let best = candidates[..top].iter().map(|c| of(c.id, c.logit)).collect();
    (of(chosen, logits[chosen as usize]), best)
}
