//! Top-n-sigma (Tang et al. 2024): keep the logits within some standard deviations of the highest one.

use super::options::finite;
use super::{Bound, Candidate, Field, Link, Listed, Parameter, Phase};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "top_n_sigma",
    listed: Listed::Usual('s'),
    aliases: &[],
    phase: Phase::Truncation,
    parameters: &[Parameter::new(
        "top-n-sigma",
        "Keep tokens whose logits are within X standard deviations of the highest; 0 or less is off",
        Field::Real(|o| o.top_n_sigma, |o, x| o.top_n_sigma = x),
    )
    .or("top-nsigma")],
    check: |options, _| finite("top-n-sigma", options.top_n_sigma),
    is_on: |options| options.top_n_sigma > 0.0,
    bound: |_| Bound::All,
    apply: |chain| apply(chain.candidates, chain.options.top_n_sigma),
};

/// Keeps the candidates whose logit is at least the highest less `n` standard deviations of all; 0 or less keeps all. Logits
/// are finite. Sums in f64. The highest always stays.
pub fn apply(candidates: &mut Vec<Candidate>, n: f32) {
    if n <= 0.0 || candidates.len() < 2 {
        return;
    }
    let count = candidates.len() as f64;
    let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let mean = candidates.iter().map(|c| f64::from(c.logit)).sum::<f64>() / count;
    let variance = candidates.iter().map(|c| (f64::from(c.logit) - mean).powi(2)).sum::<f64>();
    let least = f64::from(max) - f64::from(n) * (variance / count).sqrt();
    candidates.retain(|c| c.logit == max || f64::from(c.logit) >= least);
}
