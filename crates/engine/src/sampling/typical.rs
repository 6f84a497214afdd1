//! Locally typical sampling (Meister et al. 2022): keep candidates about as surprising as the distribution's entropy.

use super::options::within;
use super::{Bound, Candidate, Field, Link, Listed, Parameter, Phase, normalize};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "typ_p",
    listed: Listed::Usual('y'),
    aliases: &["typical", "typical_p", "typ"],
    phase: Phase::Truncation,
    parameters: &[Parameter::new(
        "typical",
        "Locally typical sampling; 1 is off",
        Field::Real(|o| o.typical, |o, x| o.typical = x),
    )
    .or("typical-p")],
    check: |options, _| within("typical", options.typical),
    is_on: |options| options.typical < 1.0,
    bound: |_| Bound::All,
    apply: |chain| apply(chain.candidates, chain.options.typical),
};

/// Keeps the candidates whose surprise is nearest the entropy, up to the mass `p`; 1 keeps all.
pub fn apply(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 {
        return;
    }
    normalize(candidates);
    let surprise = |c: &Candidate| -f64::from(c.p.max(f32::MIN_POSITIVE)).ln();
    let entropy: f64 = candidates.iter().map(|c| f64::from(c.p) * surprise(c)).sum();
    let distance = |c: &Candidate| (surprise(c) - entropy).abs();
    candidates.sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id)));
    let mut mass = 0.0f64;
    let enough = candidates.iter().position(|c| {
        mass += f64::from(c.p);
        mass >= f64::from(p)
    });
    candidates.truncate(enough.map_or(candidates.len(), |last| last + 1));
}
