//! Top-k (Fan et al. 2018): keep the k most likely.

use super::{Bound, Candidate, Field, Link, Listed, Parameter, Phase, sort_front};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "top_k",
    listed: Listed::Usual('k'),
    aliases: &[],
    phase: Phase::Truncation,
    parameters: &[Parameter::new(
        "top-k",
        "Keep the k most likely tokens; 0 keeps all",
        Field::Count(|o| o.top_k, |o, x| o.top_k = x),
    )],
    check: |_, _| Ok(()),
    is_on: |options| options.top_k > 0,
    bound: |options| Bound::Keeps(options.top_k),
    apply: |chain| apply(chain.candidates, chain.options.top_k),
};

/// Keeps the `k` most likely, in order; 0 keeps all as they are.
pub fn apply(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 {
        return;
    }
    sort_front(candidates, k);
    candidates.truncate(k);
}
