//! Flags of the samplers, with llama.cpp's names and defaults.

use clap::Args;

/// Settings of the samplers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Random seed; -1 takes a new one each time
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub seed: i64,
    /// Temperature; 0 takes the most likely token
    #[arg(long, alias = "temperature", value_name = "X", default_value_t = 0.8)]
    #[arg(allow_negative_numbers = true)]
    pub temp: f32,
    /// Range of the dynamic temperature, which follows the entropy
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub dynatemp_range: f32,
    /// Exponent of the dynamic temperature
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    #[arg(allow_negative_numbers = true)]
    pub dynatemp_exp: f32,
    /// Keep the k most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top_k: usize,
    /// Keep the most likely tokens up to this cumulative probability; 1 keeps all
    #[arg(long, value_name = "X", default_value_t = 0.95)]
    #[arg(allow_negative_numbers = true)]
    pub top_p: f32,
    /// Keep tokens with at least this fraction of the best token's probability; 0 keeps all
    #[arg(long, value_name = "X", default_value_t = 0.05)]
    #[arg(allow_negative_numbers = true)]
    pub min_p: f32,
    /// Locally typical sampling; 1 is off
    #[arg(long, alias = "typical-p", value_name = "X", default_value_t = 1.0)]
    #[arg(allow_negative_numbers = true)]
    pub typical: f32,
    /// Window of the penalties in tokens; -1 is the context, 0 is off
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub repeat_last_n: i64,
    /// Penalty on repeated tokens; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    #[arg(allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// Subtracted from the logit of each token that occurred in the window; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each occurrence in the window; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Strength of the DRY penalty on repeated sequences; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub dry_multiplier: f32,
    /// Growth of the DRY penalty per repeated token
    #[arg(long, value_name = "X", default_value_t = 1.75)]
    #[arg(allow_negative_numbers = true)]
    pub dry_base: f32,
    /// Length of the shortest repetition that DRY penalizes
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub dry_allowed_length: usize,
    /// Window of DRY in tokens; -1 is the context
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub dry_penalty_last_n: i64,
    /// Text that interrupts a DRY sequence, or `none`; repeatable [default: newline, colon, quote, star]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
    /// Probability of removing the top choices (XTC); 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub xtc_probability: f32,
    /// Least probability of a top choice (XTC)
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    #[arg(allow_negative_numbers = true)]
    pub xtc_threshold: f32,
    /// Mirostat version, 1 or 2; 0 is off
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mirostat: u8,
    /// Mirostat's target entropy in bits
    #[arg(long, value_name = "X", default_value_t = 5.0)]
    #[arg(allow_negative_numbers = true)]
    pub mirostat_ent: f32,
    /// Mirostat's learning rate
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    #[arg(allow_negative_numbers = true)]
    pub mirostat_lr: f32,
    /// Add a bias to a token's logit: TOKEN+BIAS or TOKEN-BIAS (`15043-1`, `2-inf`); repeatable
    #[arg(short = 'l', long, value_name = "TOKEN±BIAS")]
    pub logit_bias: Vec<String>,
}
