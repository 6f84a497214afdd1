//! The options of the samplers; names and defaults are llama.cpp's.

use super::{LINKS, Phase};

/// Dynamic part of an n-gram penalty, "don't repeat yourself" (p-e-w 2024).
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Penalty of a repetition of `allowed_length` tokens.
    pub multiplier: f32,
    /// Growth of the penalty per further token.
    pub base: f32,
    /// Longest repetition that costs nothing, plus one.
    pub allowed_length: usize,
    /// How many tokens back repetitions are searched; `None` is the whole history.
    pub last_n: Option<usize>,
}

/// Default texts that end a DRY sequence, as in llama.cpp.
pub const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Exclude top choices (p-e-w 2024).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    /// Chance that it applies to a token.
    pub probability: f32,
    /// Candidates at least this likely are excluded, except the least likely of them.
    pub threshold: f32,
}

/// Mirostat (Basu et al. 2021): holds the surprise of the text at `tau`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// 1 estimates the vocabulary's Zipf exponent, 2 truncates by surprise alone.
    pub version: u8,
    /// Target surprise, bits.
    pub tau: f32,
    /// Learning rate.
    pub eta: f32,
}

/// All sampling options.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Key of the random stream.
    pub seed: u64,
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// The temperature moves within `temperature ± dynatemp_range` with the entropy; 0 is off.
    pub dynatemp_range: f32,
    /// Curve of that movement.
    pub dynatemp_exponent: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set of most likely candidates with at least this mass; 1 keeps all.
    pub top_p: f32,
    /// Keep candidates at least this share as likely as the most likely; 0 keeps all.
    pub min_p: f32,
    /// Locally typical sampling's mass (Meister et al. 2022); 1 keeps all.
    pub typical: f32,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    pub repeat_penalty: f32,
    /// How many recent tokens the three penalties see; `None` is the whole history, 0 turns them off.
    pub repeat_last_n: Option<usize>,
    /// Subtracted once from the logit of each recent token.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence of each recent token.
    pub frequency_penalty: f32,
    /// N-gram penalty.
    pub dry: Option<Dry>,
    /// Exclude top choices.
    pub xtc: Option<Xtc>,
    /// Mirostat in place of the truncating samplers.
    pub mirostat: Option<Mirostat>,
    /// Added to the logits of single tokens; minus infinity forbids a token.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 0,
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical: 1.0,
            repeat_penalty: 1.0,
            repeat_last_n: Some(64),
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            dry: None,
            xtc: None,
            mirostat: None,
            logit_bias: Vec::new(),
        }
    }
}

/// An option outside its range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {found}; it must be {expected}")]
pub struct OptionsError {
    /// The option's name on the command line, without dashes.
    pub name: &'static str,
    /// The given value.
    pub found: String,
    /// The valid values.
    pub expected: String,
}

impl Options {
    /// The number of best tokens that suffice, because nothing before the first truncation examines the others or
    /// changes their order; `None` if all are needed.
    pub fn needs(&self) -> Option<usize> {
        if LINKS.iter().any(|link| link.phase == Phase::Logits && (link.is_on)(self)) {
            return None;
        }
        if self.temperature <= 0.0 {
            return Some(1);
        }
        (self.mirostat.is_none() && self.top_k > 0).then_some(self.top_k)
    }

    /// Whether every option is within its range for a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn check(&self, vocab: usize) -> Result<(), OptionsError> {
        LINKS.iter().try_for_each(|link| (link.check)(self, vocab))
    }
}

/// The error for an option outside its range.
pub(super) fn outside(name: &'static str, found: &dyn ToString, expected: &str) -> OptionsError {
    OptionsError { name, found: found.to_string(), expected: expected.to_owned() }
}

pub(super) fn finite(name: &'static str, x: f32) -> Result<(), OptionsError> {
    if x.is_finite() { Ok(()) } else { Err(outside(name, &x, "a finite number")) }
}

pub(super) fn at_least(name: &'static str, x: f32, low: f32) -> Result<(), OptionsError> {
    let within = x.is_finite() && x >= low;
    if within { Ok(()) } else { Err(outside(name, &x, &format!("a number of at least {low}"))) }
}

pub(super) fn above(name: &'static str, x: f32, low: f32) -> Result<(), OptionsError> {
    let within = x.is_finite() && x > low;
    if within { Ok(()) } else { Err(outside(name, &x, &format!("a number above {low}"))) }
}

pub(super) fn within(name: &'static str, x: f32) -> Result<(), OptionsError> {
    if (0.0..=1.0).contains(&x) { Ok(()) } else { Err(outside(name, &x, "between 0 and 1")) }
}
