//! The options of the samplers; names and defaults are llama.cpp's.

use std::fmt;

use super::{Infill, LINKS, Samplers};

/// Dynamic part of an n-gram penalty, "don't repeat yourself" (p-e-w 2024).
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// Penalty of a repetition of `allowed_length` tokens.
    pub multiplier: f32,
    /// Growth of the penalty per further token.
    pub base: f32,
    /// Length of the shortest repetition that is penalized.
    pub allowed_length: usize,
    /// How many tokens back repetitions are searched; `None` is the whole history.
    pub last_n: Option<usize>,
}

impl Dry {
    /// The other defaults, with the penalty off.
    pub(super) const OFF: Dry =
        Dry { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: None };
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

impl Xtc {
    /// The other defaults, with XTC off.
    pub(super) const OFF: Xtc = Xtc { probability: 0.0, threshold: 0.1 };
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

impl Mirostat {
    /// The other defaults, with mirostat off.
    pub(super) const OFF: Mirostat = Mirostat { version: 0, tau: 5.0, eta: 0.1 };
}

/// Declares [`Options`]: each field with its default.
macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr,)*) => {
        /// All sampling options.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Options {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Default for Options {
            fn default() -> Options {
                Options { $($name: $default,)* }
            }
        }
    };
}

options! {
    /// Key of the random stream.
    seed: u64 = 0,
    /// Divides the logits; 0 takes the most likely token.
    temperature: f32 = 0.8,
    /// The temperature moves within `temperature ± dynatemp_range` with the entropy; 0 is off.
    dynatemp_range: f32 = 0.0,
    /// Curve of that movement.
    dynatemp_exponent: f32 = 1.0,
    /// Keep logits within so many standard deviations of the highest; 0 or less keeps all.
    top_n_sigma: f32 = -1.0,
    /// Keep the k most likely; 0 keeps all.
    top_k: usize = 40,
    /// Keep the smallest set of most likely candidates with at least this mass; 1 keeps all.
    top_p: f32 = 0.95,
    /// Keep candidates at least this share as likely as the most likely; 0 keeps all.
    min_p: f32 = 0.05,
    /// Locally typical sampling's mass (Meister et al. 2022); 1 keeps all.
    typical: f32 = 1.0,
    /// Divides positive and multiplies negative logits of recent tokens; 1 is off.
    repeat_penalty: f32 = 1.0,
    /// How many recent tokens the three penalties see; `None` is the whole history, 0 turns them off.
    repeat_last_n: Option<usize> = Some(64),
    /// Subtracted once from the logit of each recent token.
    presence_penalty: f32 = 0.0,
    /// Subtracted for each occurrence of each recent token.
    frequency_penalty: f32 = 0.0,
    /// N-gram penalty.
    dry: Option<Dry> = None,
    /// Exclude top choices.
    xtc: Option<Xtc> = None,
    /// Ends a text that is filled in, or keeps its clear continuations.
    infill: Option<Infill> = None,
    /// Mirostat in place of the truncating samplers.
    mirostat: Option<Mirostat> = None,
    /// Adaptive-p's target, the mean probability of selected tokens; less than 0 is off.
    adaptive_target: f32 = -1.0,
    /// Decay of that mean per token.
    adaptive_decay: f32 = 0.9,
    /// The samplers that run, in their order; `None` is llama.cpp's default, with `infill` and adaptive-p if they are on.
    samplers: Option<Samplers> = None,
    /// Added to the logits of single tokens; minus infinity forbids a token.
    logit_bias: Vec<(u32, f32)> = Vec::new(),
}

/// An option outside its range: `{:#}` has the option's name in programs.
#[derive(Clone, Debug, PartialEq)]
pub struct OptionsError {
    /// The option's name on the command line, without dashes.
    pub name: &'static str,
    /// The given value.
    pub found: String,
    /// The valid values.
    pub expected: String,
}

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (f.alternate(), self.name) {
            (false, name) => f.write_str(name)?,
            (true, "temp") => f.write_str("temperature")?,
            (true, name) => f.write_str(&name.replace('-', "_"))?,
        }
        write!(f, " is {}; it must be {}", self.found, self.expected)
    }
}

impl std::error::Error for OptionsError {}

impl Options {
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
