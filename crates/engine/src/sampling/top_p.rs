//! Top-p, nucleus sampling (Holtzman et al. 2019): keep the smallest most likely set of a given mass.

use super::options::within;
use super::{Bound, Candidate, Field, Link, Listed, Parameter, Phase, normalize, sorted_front};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "top_p",
    listed: Listed::Usual('p'),
    aliases: &["nucleus"],
    phase: Phase::Truncation,
    parameters: &[Parameter::new(
        "top-p",
        "Keep the most likely tokens up to this cumulative probability; 1 keeps all",
        Field::Real(|o| o.top_p, |o, x| o.top_p = x),
    )],
    check: |options, _| within("top-p", options.top_p),
    is_on: |options| options.top_p < 1.0,
    bound: |_| Bound::All,
    apply: |chain| apply(chain.candidates, chain.options.top_p),
};

/// Keeps the shortest most likely front whose mass is at least `p`; at least one, all when `p` is 1.
pub fn apply(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    normalize(candidates);
    let keep = sorted_front(candidates, |front| {
        let mut mass = 0.0f64;
        front
            .iter()
            .position(|c| {
                mass += f64::from(c.p);
                mass >= f64::from(p)
            })
            .map(|last| last + 1)
    });
    candidates.truncate(keep);
}
