//! Logit bias: a number added to single tokens' logits.

use super::options::outside;
use super::{Bound, Candidate, Link, Listed, Phase, find};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "logit_bias",
    listed: Listed::Never,
    aliases: &[],
    phase: Phase::Logits,
    parameters: &[],
    check: |options, vocab| {
        for &(id, bias) in &options.logit_bias {
            if id as usize >= vocab {
                return Err(outside("logit-bias", &id, &format!("a token below {vocab}")));
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(outside("logit-bias", &bias, "a number or -inf"));
            }
        }
        Ok(())
    },
    is_on: |options| !options.logit_bias.is_empty(),
    bound: |options| {
        let biases = &options.logit_bias;
        let raises = biases.iter().any(|&(_, bias)| bias > 0.0);
        if raises { Bound::All } else { Bound::Lowers(biases.len()) }
    },
    apply: |chain| apply(chain.candidates, &chain.options.logit_bias),
};

/// Adds each bias whose token is a candidate.
pub fn apply(candidates: &mut [Candidate], biases: &[(u32, f32)]) {
    for &(id, bias) in biases {
        if let Some(c) = find(candidates, id) {
            c.logit += bias;
        }
    }
}
