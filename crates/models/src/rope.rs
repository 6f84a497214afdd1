//! Rotary position embeddings (RoPE): one frequency per pair from base and scaling rule.

use std::f64::consts::TAU;
use std::sync::Arc;

use bilayer_graph::{Pairs, Rope, WeightId};

use crate::keys::Keys;
use crate::{Error, limits};

/// RoPE parameters of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rotary {
    /// Leading elements of each head that are rotated; even.
    pub dims: usize,
    /// Pair `i` turns by `base ^ (-2 i / dims)` radians per position before scaling.
    pub base: f32,
    /// Which elements form a pair.
    pub pairs: Pairs,
    /// How the trained context is extended.
    pub scaling: Scaling,
    /// Factor on cosine and sine, in addition to the scaling's own.
    pub attn_factor: f32,
    /// Whether the divisors in the file (`rope_freqs.weight`) apply.
    pub factors: bool,
}

/// How the context is extended beyond the first training's. Llama 3's rule needs no variant: GGUF files store
/// its result as factors in `rope_freqs.weight` ([`Llama3::factors`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// Not extended.
    None,
    /// All frequencies divided by a factor (Chen et al. 2023).
    Linear {
        /// Ratio of extended to original context.
        factor: f32,
    },
    /// LongRoPE (Ding et al. 2024): each frequency is divided by its own factor, from one of two lists in the
    /// file.
    Long {
        /// `rope_factors_short.weight` applies up to this many tokens of context, `rope_factors_long.weight`
        /// beyond.
        original_context: usize,
    },
    /// YaRN (Peng et al. 2023): slow pairs are interpolated, fast ones unchanged, with a ramp between.
    Yarn {
        /// Ratio of extended to original context.
        factor: f32,
        /// Tokens of context of the first training.
        original_context: usize,
        /// Share of the ramp that is applied, 1 for all.
        ext_factor: f32,
        /// Turns within the original context at and above which a pair is unchanged.
        beta_fast: f32,
        /// Turns within the original context up to which a pair is interpolated.
        beta_slow: f32,
        /// Whether the ramp's ends are rounded outward to whole pairs.
        whole_pairs: bool,
    },
}

impl Rotary {
    /// Reads `rope.*`.
    ///
    /// # Errors
    /// A key has the wrong type, is out of bounds, or names an unknown scaling.
    pub(crate) fn read(keys: &Keys<'_>, head_dim: usize, pairs: Pairs) -> Result<Self, Error> {
        let name = "rope.dimension_count";
        let dims = keys.opt_size(name, 2..=head_dim)?.unwrap_or(head_dim);
        if !dims.is_multiple_of(2) {
            return Err(keys.value(name, "an even number (by default the head's length)", dims));
        }
        let scaling = Scaling::read(keys)?;
        Ok(Rotary {
            dims,
            base: keys.positive("rope.freq_base")?.unwrap_or(10_000.0),
            pairs,
            scaling,
            attn_factor: attn_factor(keys, scaling)?,
            factors: true,
        })
    }

    /// Reads `rope.*_swa`: the rotation of layers with a window, whose context is not extended.
    ///
    /// # Errors
    /// Those of [`Rotary::read`].
    pub(crate) fn read_local(
        keys: &Keys<'_>,
        head_dim: usize,
        pairs: Pairs,
    ) -> Result<Self, Error> {
        let name = "rope.dimension_count_swa";
        let dims = keys.opt_size(name, 2..=head_dim)?.unwrap_or(head_dim);
        if !dims.is_multiple_of(2) {
            return Err(keys.value(name, "an even number (by default the head's length)", dims));
        }
        let base = keys.positive("rope.freq_base_swa")?.unwrap_or(10_000.0);
        let (scaling, attn_factor, factors) = (Scaling::None, 1.0, false);
        Ok(Rotary { dims, base, pairs, scaling, attn_factor, factors })
    }

    /// Radians per position of each pair, `[dims / 2]`; computed in f64.
    pub fn frequencies(&self) -> Vec<f32> {
        let pairs = self.dims / 2;
        (0..pairs).map(|i| self.scaled(i, frequency(self.base, self.dims, i)) as f32).collect()
    }

    /// Factor on cosine and sine: the scaling's own times `attn_factor`.
    pub fn magnitude(&self) -> f32 {
        self.attn_factor * self.scaling.magnitude()
    }

    /// The parameters of the graph's op.
    pub(crate) fn rope(&self, factors: Option<WeightId>) -> Rope {
        let frequencies = Arc::from(self.frequencies());
        Rope { pairs: self.pairs, frequencies, magnitude: self.magnitude(), factors }
    }

    /// The frequency of pair `i` after scaling.
    fn scaled(&self, i: usize, frequency: f64) -> f64 {
        match self.scaling {
            Scaling::None | Scaling::Long { .. } => frequency,
            Scaling::Linear { factor } => frequency / f64::from(factor),
            Scaling::Yarn {
                factor,
                original_context,
                ext_factor,
                beta_fast,
                beta_slow,
                whole_pairs,
            } => {
                // The pair that makes `turns` turns within the original context (YaRN, section 3.2).
                let pair = |turns: f32| {
                    let wavelength = original_context as f64 / (f64::from(turns) * TAU);
                    self.dims as f64 * wavelength.ln() / (2.0 * f64::from(self.base).ln())
                };
                let (mut low, mut high) = (pair(beta_fast), pair(beta_slow));
                if whole_pairs {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, high) = (low.max(0.0), high.min(self.dims as f64 - 1.0));
                let ramp = ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let kept = (1.0 - ramp) * f64::from(ext_factor);
                frequency / f64::from(factor) * (1.0 - kept) + frequency * kept
            }
        }
    }
}

impl Scaling {
    fn read(keys: &Keys<'_>) -> Result<Self, Error> {
        let factor = match keys.positive_or_zero("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            // Older name of the key.
            None => keys.positive_or_zero("rope.scale_linear")?,
        };
        let name = "rope.scaling.type";
        // A factor without a type means linear, from before types existed.
        match (keys.metadata.opt_str(&keys.key(name))?.unwrap_or("linear"), factor) {
            // ollama writes an empty type for checkpoints without one.
            ("none" | "", _) | ("linear", None) => Ok(Scaling::None),
            ("linear", Some(factor)) => Ok(Scaling::Linear { factor }),
            ("longrope", _) => {
                let name = "rope.scaling.original_context_length";
                Ok(Scaling::Long { original_context: keys.size(name, 1..=limits::CONTEXT)? })
            }
            ("yarn", Some(factor)) => Self::yarn(keys, factor),
            ("yarn", None) => {
                let found = "nothing";
                Err(keys.value("rope.scaling.factor", "a number above 0 for YaRN", found))
            }
            (other, _) => Err(Error::Unsupported {
                key: keys.key(name),
                found: format!("\"{other}\""),
                feature: "this kind of rope scaling",
            }),
        }
    }

    /// `0.1 multiplier ln(factor) + 1` of YaRN; 1 of anything else.
    pub(crate) fn amplitude(self, multiplier: f32) -> f32 {
        match self {
            Scaling::Yarn { factor, .. } => 0.1 * multiplier * factor.max(1.0).ln() + 1.0,
            _ => 1.0,
        }
    }

    /// Factor on cosine and sine: YaRN's `0.1 ln(factor) + 1` (its section 3.4) if it has its ramp; otherwise 1.
    pub(crate) fn magnitude(self) -> f32 {
        match self {
            Scaling::Yarn { ext_factor: 0.0, .. } => 1.0,
            _ => self.amplitude(1.0),
        }
    }

    fn yarn(keys: &Keys<'_>, factor: f32) -> Result<Self, Error> {
        let name = "rope.scaling.original_context_length";
        let original_context = match keys.opt_size(name, 1..=limits::CONTEXT)? {
            Some(tokens) => tokens,
            None => keys.size("context_length", 1..=limits::CONTEXT)?,
        };
        let number = |name: &str, default| Ok::<_, Error>(keys.positive(name)?.unwrap_or(default));
        Ok(Scaling::Yarn {
            factor,
            original_context,
            ext_factor: keys.not_negative("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0),
            beta_fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
            beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
            whole_pairs: true,
        })
    }
}

/// Factor on cosine and sine, besides the scaling's own. `rope.scaling.attn_factor` is relative to the latter;
/// `rope.scaling.yarn_attn_factor` takes its place, being the whole `attention_factor` of a checkpoint with YaRN.
fn attn_factor(keys: &Keys<'_>, scaling: Scaling) -> Result<f32, Error> {
    let given = keys.positive_or_zero("rope.scaling.attn_factor")?.unwrap_or(1.0);
    let given = given * keys.attn_multiplier()?;
    let whole = keys.positive_or_zero("rope.scaling.yarn_attn_factor")?;
    let multiplier = keys.positive_or_zero("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
    Ok(match (scaling, whole) {
        (Scaling::Yarn { .. }, Some(whole)) => given * whole / scaling.magnitude(),
        (Scaling::Yarn { ext_factor: 0.0, .. }, None) => given,
        _ => given / scaling.amplitude(multiplier),
    })
}

/// Llama 3.1's rule for extending the context, as in `rope_scaling` of its checkpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3 {
    /// Ratio of extended to original context.
    pub factor: f32,
    /// Pairs with fewer turns within the original context have their frequency divided by `factor`.
    pub low_freq_factor: f32,
    /// Pairs with more turns within the original context are unchanged.
    pub high_freq_factor: f32,
    /// Tokens of context of the first training.
    pub original_context: usize,
}

impl Llama3 {
    /// The divisor of each pair's frequency, `[dims / 2]`: the tensor `rope_freqs.weight`.
    pub fn factors(&self, base: f32, dims: usize) -> Vec<f32> {
        let (low, high) = (f64::from(self.low_freq_factor), f64::from(self.high_freq_factor));
        let slowed = f64::from(self.factor);
        let factor = |i| {
            let turns = self.original_context as f64 * frequency(base, dims, i) / TAU;
            // Share of the original frequency: 0 up to `low` turns, 1 from `high` turns on.
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - kept) / slowed + kept)) as f32
        };
        (0..dims / 2).map(factor).collect()
    }
}

/// Factor on cosine and sine of a context extended `times` by LongRoPE (Ding et al. 2024, as in Microsoft's model code), where
/// none is given.
pub(crate) fn long_factor(times: f32, original_context: f32) -> f32 {
    if times <= 1.0 {
        return 1.0;
    }
    (1.0 + times.ln() / original_context.ln()).sqrt()
}

/// Radians per position of pair `i`, unscaled.
fn frequency(base: f32, dims: usize, i: usize) -> f64 {
    f64::from(base).powf(-2.0 * i as f64 / dims as f64)
}

#[cfg(test)]
mod tests {
    use bilayer_gguf::Value;
    use bilayer_graph::Pairs;

    use super::{Llama3, Rotary, Scaling};
    use crate::{llama, tiny::changed};

    fn rotary(scaling: Scaling) -> Rotary {
        let pairs = Pairs::Interleaved;
        Rotary { dims: 8, base: 10_000.0, pairs, scaling, attn_factor: 1.0, factors: true }
    }

    fn assert_near(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-6, "{found}, expected {expected}");
        }
    }

    #[test]
    fn plain_and_linear_frequencies_fall_by_the_base() {
        assert_near(&rotary(Scaling::None).frequencies(), &[1.0, 0.1, 0.01, 0.001]);
        let linear = Scaling::Linear { factor: 4.0 };
        assert_near(&rotary(linear).frequencies(), &[0.25, 0.025, 0.0025, 0.000_25]);
        assert_eq!(rotary(linear).magnitude(), 1.0);
    }

    /// With 2048 tokens the pairs turn 326, 32.6, 3.26 and 0.326 times. The pair of 32 turns lies at
    /// 8 ln(2048 / 64 pi) / (2 ln 10^4) = 1.008 (floor 1), that of 1 turn at 2.513 (ceil 3): the ramp is 0, 0,
    /// 1/2, 1.
    #[test]
    fn yarn_keeps_the_fast_pairs_and_interpolates_the_slow() {
        let yarn = Scaling::Yarn {
            factor: 4.0,
            original_context: 2048,
            ext_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            whole_pairs: true,
        };
        assert_near(&rotary(yarn).frequencies(), &[1.0, 0.1, 0.006_25, 0.000_25]);
        let magnitude = rotary(yarn).magnitude();
        assert!((magnitude - 1.138_629_4).abs() < 1e-6, "0.1 ln 4 + 1, not {magnitude}");
    }

    /// The ramp from 1.00800 to 2.51315 has (2 - 1.00800) / 1.50515 = 0.65907 at pair 2.
    #[test]
    fn a_ramp_between_parts_of_pairs_is_steeper() {
        let yarn = Scaling::Yarn {
            factor: 4.0,
            original_context: 2048,
            ext_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            whole_pairs: false,
        };
        let second = 0.01 * (0.659_07 / 4.0 + 0.340_93);
        let found = rotary(yarn).frequencies();
        assert_near(&[found[0], found[1], found[3]], &[1.0, 0.1, 0.000_25]);
        assert!((found[2] / second - 1.0).abs() < 1e-4, "{}, expected {second}", found[2]);
    }

    #[test]
    fn yarn_without_its_ramp_is_linear() {
        let yarn = Scaling::Yarn {
            factor: 4.0,
            original_context: 2048,
            ext_factor: 0.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            whole_pairs: true,
        };
        let linear = Scaling::Linear { factor: 4.0 };
        assert_eq!(rotary(yarn).frequencies(), rotary(linear).frequencies());
        assert_eq!(rotary(yarn).magnitude(), 1.0);
        let read = |ext_factor: f32| {
            let changes = [
                ("rope.scaling.type", "yarn".into()),
                ("rope.scaling.factor", 4f32.into()),
                ("rope.scaling.yarn_log_multiplier", 0.5f32.into()),
                ("rope.scaling.yarn_ext_factor", ext_factor.into()),
            ];
            changed(&llama::ARCHITECTURE, &changes)
        };
        let rope = read(0.0).unwrap().layers[0].rope.unwrap();
        assert!(matches!(rope.scaling, Scaling::Yarn { ext_factor: 0.0, .. }), "{rope:?}");
        assert_eq!(rope.magnitude(), 1.0);
        for odd in [-1.0, f32::NAN] {
            let error = read(odd).unwrap_err().to_string();
            assert!(error.contains("llama.rope.scaling.yarn_ext_factor"), "{error}");
        }
    }

    /// llama.cpp's converter writes a checkpoint's `attention_factor` as `rope.scaling.yarn_attn_factor`. Without it the
    /// factor is 0.1 ln 8 + 1 = 1.2079442.
    #[test]
    fn the_whole_factor_of_a_file_takes_the_place_of_yarns_own() {
        let cases: [(&str, Value, f32); 7] = [
            ("rope.scaling.yarn_attn_factor", 1.207_944_2f32.into(), 1.207_944_2),
            ("rope.scaling.yarn_attn_factor", 0f32.into(), 1.207_944_2),
            ("rope.scaling.attn_multiplier", 2f32.into(), 3.0),
            ("rope.scaling.yarn_log_multiplier", 0.5f32.into(), 1.5),
            ("rope.scaling.yarn_ext_factor", 0f32.into(), 1.5),
            ("rope.scaling.type", "linear".into(), 1.0),
            ("rope.scaling.type", "none".into(), 1.0),
        ];
        for (name, value, expected) in cases {
            let changes = [
                ("rope.scaling.type", "yarn".into()),
                ("rope.scaling.factor", 8f32.into()),
                ("rope.scaling.yarn_attn_factor", 1.5f32.into()),
                (name, value),
            ];
            let config = changed(&llama::ARCHITECTURE, &changes).unwrap();
            let found = config.layers[0].rope.unwrap().magnitude();
            assert!((found - expected).abs() < 1e-6_f32, "{name}: {found}, not {expected}");
        }
    }

    /// 2 pi * 100 tokens: the pairs of base 10^4 turn 100, 10, 1 and 0.1 times.
    #[test]
    fn llama3_keeps_fast_pairs_slows_slow_ones_and_blends_between() {
        let rule = Llama3 {
            factor: 8.0,
            low_freq_factor: 4.0,
            high_freq_factor: 16.0,
            original_context: 628,
        };
        // 9.9949 turns: kept (9.9949 - 4) / 12 = 0.49958, so 1 / (0.50042 / 8 + 0.49958).
        let blended = 1.0 / (0.500_423_1 / 8.0 + 0.499_576_9);
        assert_near(&rule.factors(10_000.0, 8), &[1.0, blended, 8.0, 8.0]);
    }
}
