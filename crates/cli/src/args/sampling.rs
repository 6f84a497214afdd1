//! Flags of the samplers; names and defaults are llama.cpp's.

use clap::Args;

/// How tokens are chosen.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Seed of the random numbers; -1 takes a new one each time
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub seed: i64,
    /// Temperature; 0 takes the most likely token
    #[arg(long, alias = "temperature", value_name = "X", default_value_t = 0.8)]
    #[arg(allow_negative_numbers = true)]
    pub temp: f32,
    /// Moves the temperature by up to this much with the entropy
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub dynatemp_range: f32,
    /// Curve of that movement
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    #[arg(allow_negative_numbers = true)]
    pub dynatemp_exp: f32,
    /// Keep the k most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top_k: usize,
    /// Keep the most likely tokens up to this mass; 1 keeps all
    #[arg(long, value_name = "X", default_value_t = 0.95)]
    #[arg(allow_negative_numbers = true)]
    pub top_p: f32,
    /// Keep tokens at least this share as likely as the best; 0 keeps all
    #[arg(long, value_name = "X", default_value_t = 0.05)]
    #[arg(allow_negative_numbers = true)]
    pub min_p: f32,
    /// Locally typical sampling; 1 is off
    #[arg(long, alias = "typical-p", value_name = "X", default_value_t = 1.0)]
    #[arg(allow_negative_numbers = true)]
    pub typical: f32,
    /// Tokens the penalties look back on; -1 is the context, 0 turns them off
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub repeat_last_n: i64,
    /// Penalty on repeated tokens; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    #[arg(allow_negative_numbers = true)]
    pub repeat_penalty: f32,
    /// Subtracted from the logit of each token that was there before
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted for each time a token was there before
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// DRY penalty on repeated sequences; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub dry_multiplier: f32,
    /// Growth of the DRY penalty per token
    #[arg(long, value_name = "X", default_value_t = 1.75)]
    #[arg(allow_negative_numbers = true)]
    pub dry_base: f32,
    /// Longest repetition DRY allows, plus one
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub dry_allowed_length: usize,
    /// Tokens DRY looks back on; -1 is the context
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub dry_penalty_last_n: i64,
    /// A token with this text ends a DRY sequence; `none` for no such text; repeatable [default: newline, colon, quote, star]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
    /// Chance of excluding the top choices; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    #[arg(allow_negative_numbers = true)]
    pub xtc_probability: f32,
    /// What counts as a top choice
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    #[arg(allow_negative_numbers = true)]
    pub xtc_threshold: f32,
    /// 0 is off, 1 and 2 are mirostat's versions
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mirostat: u8,
    /// Mirostat's target surprise, bits
    #[arg(long, value_name = "X", default_value_t = 5.0)]
    #[arg(allow_negative_numbers = true)]
    pub mirostat_ent: f32,
    /// Mirostat's learning rate
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    #[arg(allow_negative_numbers = true)]
    pub mirostat_lr: f32,
    /// TOKEN+BIAS or TOKEN-BIAS (`15043-1`, `2-inf`) added to a token's logit; repeatable
    #[arg(short = 'l', long, value_name = "TOKEN±BIAS")]
    pub logit_bias: Vec<String>,
}
