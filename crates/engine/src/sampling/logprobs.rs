//! Log-probabilities of the raw distribution, for `--logprobs`, and of the one that a token was drawn from.

use bilayer_cpu::softmax::{LogSum, log_sum};

use super::{Candidate, Sampler, best, sort_front};

/// A token with the logarithm (base e) of its probability.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// `ln p` before any sampler, or after all of them.
    pub logprob: f32,
}

/// The chosen token's log-probability and the `top` most likely ones, most likely first.
pub fn logprobs(logits: &[f32], chosen: u32, top: usize) -> (TokenLogprob, Vec<TokenLogprob>) {
    let LogSum { largest, ln_sum } = log_sum(logits);
    let log_sum = largest + ln_sum as f32;
    let of = |id, logit| TokenLogprob { id, logprob: logit - log_sum };
    let mut found = Vec::new();
    best(logits, top, None, &mut found);
    let found = found.iter().map(|c| of(c.id, c.logit)).collect();
    (of(chosen, logits[chosen as usize]), found)
}

impl Sampler {
    /// As [`logprobs`], of the distribution that the last token was drawn from: without the tokens that the samplers or a
    /// constraint dropped. A greedy choice is certain.
    pub(crate) fn sampled_logprobs(
        &self,
        chosen: u32,
        top: usize,
    ) -> (TokenLogprob, Vec<TokenLogprob>) {
        let of = |c: &Candidate| TokenLogprob { id: c.id, logprob: c.p.ln() };
        let mut candidates = self.candidates().to_vec();
        let own = candidates.iter().find(|c| c.id == chosen).map(of);
        let top = top.min(candidates.len());
        sort_front(&mut candidates, top);
        let own = own.unwrap_or(TokenLogprob { id: chosen, logprob: f32::NEG_INFINITY });
        (own, candidates[..top].iter().map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, Sampler};

    #[test]
    fn sampled_tokens_have_the_probabilities_after_the_samplers() {
        let logits = [0.0, 3.0, 2.0, 1.0];
        let of = |options: Options| {
            let mut sampler = Sampler::new(options, 4, 8).expect("valid options");
            let id = sampler.sample(&logits).expect("a token");
            let (own, top) = sampler.sampled_logprobs(id, 3);
            assert_eq!(top.iter().find(|one| one.id == id), Some(&own));
            top.iter().map(|one| (one.id, one.logprob.exp())).collect::<Vec<_>>()
        };
        let off =
            Options { temperature: 1.0, top_k: 2, top_p: 1.0, min_p: 0.0, ..Options::default() };
        let found = of(off.clone());
        assert_eq!(found.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 2], "{found:?}");
        let first = 1.0 / (1.0 + (-1.0f32).exp());
        assert!((found[0].1 - first).abs() < 1e-6, "{found:?}");
        assert!((found[0].1 + found[1].1 - 1.0).abs() < 1e-6, "{found:?}");
        assert_eq!(of(Options { temperature: 0.0, ..off }), [(1, 1.0)]);
    }
}
