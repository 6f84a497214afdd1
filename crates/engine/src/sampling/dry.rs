//! DRY: a penalty on tokens that would continue a repetition (p-e-w 2024).
//!
//! If the last `n >= allowed_length` tokens occurred earlier in the history, the token that followed them there is
//! penalised by `multiplier * base^(n - allowed_length)`. Matches do not reach across [`Breakers`]; tokens that are one alone
//! are not penalised. The length of every earlier match is found in one pass by the Z function of the reversed
//! history.

use std::sync::Arc;

use super::options::{Dry, at_least};
use super::{Bound, Breakers, Candidate, Field, Link, Listed, Parameter, Phase, find};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "dry",
    listed: Listed::Usual('d'),
    aliases: &[],
    phase: Phase::Logits,
    parameters: &[
        Parameter::new(
            "dry-multiplier",
            "Strength of the DRY penalty on repeated sequences; 0 is off",
            Field::Real(
                |o| o.dry.as_ref().unwrap_or(&Dry::OFF).multiplier,
                |o, x| o.dry.get_or_insert(Dry::OFF).multiplier = x,
            ),
        ),
        Parameter::new(
            "dry-base",
            "Growth of the DRY penalty per repeated token",
            Field::Real(
                |o| o.dry.as_ref().unwrap_or(&Dry::OFF).base,
                |o, x| o.dry.get_or_insert(Dry::OFF).base = x,
            ),
        ),
        Parameter::new(
            "dry-allowed-length",
            "Length of the shortest repetition that DRY penalizes",
            Field::Count(
                |o| o.dry.as_ref().unwrap_or(&Dry::OFF).allowed_length,
                |o, x| o.dry.get_or_insert(Dry::OFF).allowed_length = x,
            ),
        ),
        Parameter::new(
            "dry-penalty-last-n",
            "Window of DRY in tokens; -1 is the context",
            Field::Window(
                |o| o.dry.as_ref().unwrap_or(&Dry::OFF).last_n,
                |o, x| o.dry.get_or_insert(Dry::OFF).last_n = x,
            ),
        ),
    ],
    check: |options, _| {
        let Some(dry) = &options.dry else { return Ok(()) };
        at_least("dry-multiplier", dry.multiplier, 0.0)?;
        at_least("dry-base", dry.base, 1.0)
    },
    is_on: |options| options.dry.is_some(),
    bound: |_| Bound::All,
    apply: |chain| {
        if let Some(dry) = &chain.options.dry {
            apply(chain.candidates, chain.history, dry, chain.dry);
        }
    },
};

/// Buffers kept between tokens.
#[derive(Debug, Default)]
pub struct State {
    pub breakers: Arc<Breakers>,
    /// Z function of the reversed window.
    z: Vec<u32>,
    /// Longest match that each token would continue, and one more; 0 if it continues none, and outside `apply`.
    lengths: Vec<u32>,
}

/// Penalises continuations of repetitions in `history`. Candidates are by rising id.
pub fn apply(candidates: &mut [Candidate], history: &[u32], options: &Dry, state: &mut State) {
    let window = options.last_n.unwrap_or(history.len()).min(history.len());
    let recent = &history[history.len() - window..];
    let longest = state.breakers.tokens_after(recent);
    if options.multiplier == 0.0 || longest < options.allowed_length || recent.len() < 2 {
        return;
    }
    z_reversed(recent, &mut state.z);
    let ids = recent.iter().max().map_or(0, |&id| id as usize + 1);
    state.lengths.resize(state.lengths.len().max(ids), 0);
    for i in 1..recent.len() {
        // A match of `z[i]` tokens ends at `end`; the token after it is the one to avoid.
        let end = recent.len() - 1 - i;
        let next = recent[end + 1] as usize;
        let length = state.z[i].min(longest as u32);
        state.lengths[next] = state.lengths[next].max(length + 1);
    }
    for &id in recent {
        let length = std::mem::take(&mut state.lengths[id as usize]) as usize;
        let Some(length) = length.checked_sub(1) else { continue };
        if length >= options.allowed_length && !state.breakers.is_alone(id) {
            let excess = (length - options.allowed_length) as f32;
            let penalty = options.multiplier * options.base.powf(excess);
            if let Some(c) = find(candidates, id) {
                c.logit -= penalty.min(f32::MAX);
            }
        }
    }
}

/// `z[i]`: how many tokens of the reversed `tokens` from `i` on equal its beginning.
fn z_reversed(tokens: &[u32], z: &mut Vec<u32>) {
    let n = tokens.len();
    let at = |i: usize| tokens[n - 1 - i];
    z.clear();
    z.resize(n, 0);
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut length = if i < right { (z[i - left] as usize).min(right - i) } else { 0 };
        while i + length < n && at(length) == at(i + length) {
            length += 1;
        }
        z[i] = length as u32;
        if i + length > right {
            (left, right) = (i, i + length);
        }
    }
}
