//! Adaptive-p (MrJackSpade 2025; llama.cpp's pull request 17927): prefer tokens whose probability is near a target.
//!
//! A mean of the probabilities of the selected tokens, as they were before this sampler, decays exponentially. The target of
//! the next token lies as far on the other side of the user's target `t`: `2 t - mean`, within 0 and 1. A candidate of
//! probability `p` gets the logit `5 - 10 d^2 / (1 + d)` with `d = |p - target| / 0.3`: about quadratic near the target,
//! linear far from it. The constants are llama.cpp's.

use super::options::outside;
use super::{Bound, Candidate, Field, Link, Listed, Options, Parameter, Phase, normalize};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "adaptive_p",
    listed: Listed::Asked('a'),
    aliases: &[],
    phase: Phase::Target,
    parameters: &[
        Parameter::new(
            "adaptive-target",
            "Prefer tokens of this probability (adaptive-p); less than 0 is off",
            Field::Real(|o| o.adaptive_target, |o, x| o.adaptive_target = x),
        ),
        Parameter::new(
            "adaptive-decay",
            "Decay per token of the mean that adaptive-p holds at its target, from 0 to 0.99",
            Field::Real(|o| o.adaptive_decay, |o, x| o.adaptive_decay = x),
        ),
    ],
    check: |options, _| {
        let Options { adaptive_target: target, adaptive_decay: decay, .. } = options;
        if !target.is_finite() || *target > 1.0 {
            return Err(outside("adaptive-target", target, "at most 1, or less than 0 for off"));
        }
        if !(0.0..=DECAY_MAX).contains(decay) {
            return Err(outside("adaptive-decay", decay, "between 0 and 0.99"));
        }
        Ok(())
    },
    is_on: |options| options.adaptive_target >= 0.0 && options.mirostat.is_none(),
    bound: |_| Bound::All,
    apply: |chain| apply(chain.candidates, chain.options.adaptive_target, chain.adaptive),
};

/// Largest decay: the mean is of about 100 tokens.
const DECAY_MAX: f32 = 0.99;
/// Logit of a candidate at the target.
const PEAK: f32 = 5.0;
/// How fast logits fall with the distance.
const SHARPNESS: f32 = 10.0;
/// Distance that counts as 1.
const WIDTH: f32 = 0.3;

/// The mean of the selected tokens' probabilities.
#[derive(Debug)]
pub struct State {
    /// Sum of the probabilities, each with its weight.
    sum: f32,
    /// Sum of the weights: 1 for the last token, times the decay for each one before.
    weight: f32,
    /// Probabilities of the candidates before this sampler.
    before: Vec<f32>,
}

impl State {
    /// A mean that is at the target.
    pub fn new(options: &Options) -> State {
        let weight = 1.0 / (1.0 - options.adaptive_decay);
        State { sum: options.adaptive_target * weight, weight, before: Vec::new() }
    }

    /// Counts the token that was selected among `candidates`, those of the last [`apply`].
    pub fn observe(&mut self, candidates: &[Candidate], decay: f32, token: u32) {
        let chosen = candidates.iter().position(|c| c.id == token);
        let Some(p) = chosen.and_then(|at| self.before.get(at)) else { return };
        self.sum = p + decay * self.sum;
        self.weight = 1.0 + decay * self.weight;
    }
}

/// Replaces the logits by those around the target.
pub fn apply(candidates: &mut [Candidate], target: f32, state: &mut State) {
    normalize(candidates);
    state.before.clear();
    state.before.extend(candidates.iter().map(|c| c.p));
    let target = (2.0 * target - state.sum / state.weight).clamp(0.0, 1.0);
    for c in candidates {
        let distance = (c.p - target).abs() / WIDTH;
        c.logit = PEAK - SHARPNESS * distance * distance / (1.0 + distance);
    }
}
