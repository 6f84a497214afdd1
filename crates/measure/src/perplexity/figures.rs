//! Statistics over a text's rows: perplexity with its error, and divergence from a base.

/// A mean with its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Its standard error; 0 if unknown.
    pub error: f64,
}

/// The sums from which a mean is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Moments {
    sum: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.squares += value * value;
    }

    fn mean(self, count: usize) -> Mean {
        let n = count.max(1) as f64;
        let value = self.sum / n;
        let variance = (self.squares / n - value * value).max(0.0);
        Mean { value, error: (variance / (n - 1.0).max(1.0)).sqrt() }
    }
}

/// Perplexity of the tokens scored so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    count: usize,
    nll: Moments,
}

impl Estimate {
    /// Adds a token by its negative log-probability, nats.
    pub fn add(&mut self, nll: f64) {
        self.count += 1;
        self.nll.add(nll);
    }

    /// Tokens scored.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Mean negative logarithm of the tokens' probabilities, nats.
    pub fn nll(&self) -> Mean {
        self.nll.mean(self.count)
    }

    /// `exp` of that.
    pub fn perplexity(&self) -> Mean {
        exp(self.nll())
    }
}

fn exp(mean: Mean) -> Mean {
    let value = mean.value.exp();
    Mean { value, error: value * mean.error }
}

/// One token's figures for a model and its base.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pair {
    /// Negative logarithm of the token's probability by the model, nats.
    pub nll: f64,
    /// By the base.
    pub base_nll: f64,
    /// Kullback-Leibler divergence of the model's distribution from the base's, nats.
    pub kl: f64,
    /// Whether both have the same best token.
    pub is_same_top: bool,
}

/// Divergence of a model from its base over the tokens so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Divergence {
    base: Estimate,
    model: Estimate,
    /// Sum of products of both.
    products: f64,
    kl: Moments,
    values: Vec<f32>,
    same_top: usize,
    /// Squared differences of the token's probability.
    p_squares: f64,
}

impl Divergence {
    /// Adds a token.
    pub fn add(&mut self, pair: &Pair) {
        self.base.add(pair.base_nll);
        self.model.add(pair.nll);
        self.products += pair.nll * pair.base_nll;
        self.kl.add(pair.kl);
        self.values.push(pair.kl as f32);
        self.same_top += usize::from(pair.is_same_top);
        self.p_squares += ((-pair.nll).exp() - (-pair.base_nll).exp()).powi(2);
    }

    /// The base's perplexity.
    pub fn base(&self) -> &Estimate {
        &self.base
    }

    /// The ratio of the model's perplexity to the base's. Its error accounts for both having seen the same tokens.
    pub fn ratio(&self) -> Mean {
        let n = self.values.len().max(1) as f64;
        let (model, base) = (self.model.nll(), self.base.nll());
        let covariance = (self.products / n - model.value * base.value) / (n - 1.0).max(1.0);
        let variance = model.error.powi(2) + base.error.powi(2) - 2.0 * covariance;
        exp(Mean { value: model.value - base.value, error: variance.max(0.0).sqrt() })
    }

    /// Mean divergence, nats.
    pub fn kl(&self) -> Mean {
        self.kl.mean(self.values.len())
    }

    /// The divergence quantiles for `shares`, 0 to 1; linearly interpolated.
    pub fn kl_at<const N: usize>(&self, shares: [f64; N]) -> [f64; N] {
        let mut sorted = self.values.clone();
        sorted.sort_unstable_by(f32::total_cmp);
        shares.map(|share| {
            let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
            let place = share.clamp(0.0, 1.0) * last as f64;
            let (low, part) = (place.floor() as usize, place.fract());
            let at = |place: usize| f64::from(sorted[place.min(last)]);
            (1.0 - part) * at(low) + part * at(low + 1)
        })
    }

    /// Share of tokens where both have the same best one.
    pub fn top1(&self) -> f64 {
        self.same_top as f64 / self.values.len().max(1) as f64
    }

    /// Root mean square difference of the token's probability.
    pub fn p_rms(&self) -> f64 {
        (self.p_squares / self.values.len().max(1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn perplexity_is_that_of_a_fair_die() {
        let mut estimate = Estimate::default();
        (0..5).for_each(|_| estimate.add(6f64.ln()));
        let found = estimate.perplexity();
        assert!((found.value - 6.0).abs() < 1e-12 && found.error < 1e-6, "{found:?}");
        // For 1 and 3 the mean is 2 and its error, from the variance 1 of both, 1.
        let mut estimate = Estimate::default();
        [1.0, 3.0].into_iter().for_each(|nll| estimate.add(nll));
        assert_eq!(estimate.nll(), Mean { value: 2.0, error: 1.0 });
    }

    #[test]
    fn percentiles_lie_between_tokens() {
        let mut divergence = Divergence::default();
        for kl in [4.0, 1.0, 3.0, 2.0, 5.0] {
            divergence.add(&Pair { nll: kl, base_nll: kl, kl, is_same_top: kl > 2.0 });
        }
        assert_eq!(divergence.kl_at([0.0, 0.5, 0.9, 1.0]), [1.0, 3.0, 4.6, 5.0]);
        assert_eq!((divergence.kl().value, divergence.top1()), (3.0, 0.6));
        // Equal tokens with equal probabilities leave no error.
        let ratio = divergence.ratio();
        assert!((ratio.value - 1.0).abs() < 1e-12 && ratio.error < 1e-7, "{ratio:?}");
        assert_eq!(divergence.p_rms(), 0.0);
    }
}
