//! Min-p (Nguyen et al. 2024): drop candidates that are far less likely than the most likely one.

use super::options::within;
use super::{Bound, Candidate, Field, Link, Listed, Parameter, Phase};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "min_p",
    listed: Listed::Usual('m'),
    aliases: &[],
    phase: Phase::Truncation,
    parameters: &[Parameter::new(
        "min-p",
        "Keep tokens with at least this fraction of the best token's probability; 0 keeps all",
        Field::Real(|o| o.min_p, |o, x| o.min_p = x),
    )],
    check: |options, _| within("min-p", options.min_p),
    is_on: |options| options.min_p > 0.0,
    bound: |_| Bound::All,
    apply: |chain| apply(chain.candidates, chain.options.min_p),
};

/// Keeps candidates of at least `p` times the highest probability; 0 keeps all.
pub fn apply(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 {
        return;
    }
    let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let least = max + p.ln();
    candidates.retain(|c| c.logit >= least);
}
