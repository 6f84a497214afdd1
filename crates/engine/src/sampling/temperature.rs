//! Temperature: sharpens or flattens the distribution; optionally moved by its entropy.

use super::options::at_least;
use super::{Bound, Candidate, Field, Link, Listed, Options, Parameter, Phase, greedy, normalize};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "temperature",
    listed: Listed::Usual('t'),
    aliases: &["temp"],
    phase: Phase::Temperature,
    parameters: &[
        Parameter::new(
            "temp",
            "Temperature; 0 takes the most likely token",
            Field::Real(|o| o.temperature, |o, x| o.temperature = x),
        )
        .or("temperature"),
        Parameter::new(
            "dynatemp-range",
            "Range of the dynamic temperature, which follows the entropy",
            Field::Real(|o| o.dynatemp_range, |o, x| o.dynatemp_range = x),
        ),
        Parameter::new(
            "dynatemp-exp",
            "Exponent of the dynamic temperature",
            Field::Real(|o| o.dynatemp_exponent, |o, x| o.dynatemp_exponent = x),
        ),
    ],
    check: |options, _| {
        at_least("temp", options.temperature, 0.0)?;
        at_least("dynatemp-range", options.dynatemp_range, 0.0)?;
        at_least("dynatemp-exp", options.dynatemp_exponent, 0.0)
    },
    is_on: |_| true,
    bound: |options| if options.is_greedy() { Bound::Keeps(1) } else { Bound::All },
    apply: |chain| match chain.options.is_greedy() {
        true => greedy::apply(chain.candidates),
        false => apply(chain.candidates, chain.options),
    },
};

/// Divides the logits by the temperature. With a `dynatemp_range` the temperature moves between
/// `t - range` and `t + range` as the entropy moves between 0 and that of the uniform distribution. Finite logits stay
/// finite.
pub fn apply(candidates: &mut [Candidate], options: &Options) {
    let mut t = options.temperature;
    if options.dynatemp_range > 0.0 && candidates.len() > 1 {
        normalize(candidates);
        let entropy: f64 = candidates
            .iter()
            .filter(|c| c.p > 0.0)
            .map(|c| -f64::from(c.p) * f64::from(c.p).ln())
            .sum();
        let share = (entropy / (candidates.len() as f64).ln()) as f32;
        let low = (t - options.dynatemp_range).max(0.0);
        let high = t + options.dynatemp_range;
        t = low + (high - low) * share.powf(options.dynatemp_exponent);
    }
    // The draw needs a distribution: an entropy of nearly 0 may not bring the temperature to 0.
    let inverse = 1.0 / t.max(1e-3);
    for c in candidates {
        c.logit = (c.logit * inverse).clamp(-f32::MAX, f32::MAX);
    }
}
