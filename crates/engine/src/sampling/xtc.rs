//! XTC (p-e-w 2024): randomly exclude the top choices, for more varied text.

use super::options::{Xtc, within};
use super::{
    Bound, Candidate, Field, Link, Listed, Parameter, Phase, normalize, sorted_front, uniform,
};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "xtc",
    listed: Listed::Usual('x'),
    aliases: &[],
    phase: Phase::Truncation,
    parameters: &[
        Parameter::new(
            "xtc-probability",
            "Probability of removing the top choices (XTC); 0 is off",
            Field::Real(
                |o| o.xtc.unwrap_or(Xtc::OFF).probability,
                |o, x| o.xtc.get_or_insert(Xtc::OFF).probability = x,
            ),
        ),
        Parameter::new(
            "xtc-threshold",
            "Least probability of a top choice (XTC)",
            Field::Real(
                |o| o.xtc.unwrap_or(Xtc::OFF).threshold,
                |o, x| o.xtc.get_or_insert(Xtc::OFF).threshold = x,
            ),
        ),
    ],
    check: |options, _| {
        let Some(xtc) = &options.xtc else { return Ok(()) };
        within("xtc-probability", xtc.probability)?;
        within("xtc-threshold", xtc.threshold)
    },
    is_on: |options| options.xtc.is_some(),
    bound: |_| Bound::All,
    apply: |chain| {
        if let Some(xtc) = &chain.options.xtc {
            apply(chain.candidates, xtc, uniform(chain.rng));
        }
    },
};

/// With chance `probability`, removes every candidate whose probability is at least `threshold`, except the least likely
/// of them.
pub fn apply(candidates: &mut Vec<Candidate>, options: &Xtc, uniform: f32) {
    if uniform >= options.probability || options.threshold > 0.5 {
        return;
    }
    normalize(candidates);
    let above =
        sorted_front(candidates, |front| front.iter().position(|c| c.p < options.threshold));
    if above >= 2 {
        candidates.drain(..above - 1);
    }
}
