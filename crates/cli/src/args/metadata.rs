//! Flags that replace metadata of the model's file.

use bilayer_gguf::MetadataOverride;
use clap::Args;

/// Metadata given by the user.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Metadata")]
pub struct MetadataArgs {
    /// Replace a value of the file's metadata; TYPE is int, float, bool or str. Repeatable; commas separate several
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_delimiter = ',', value_parser = MetadataOverride::parse)]
    pub override_kv: Vec<MetadataOverride>,
    /// How RoPE is scaled beyond the trained context [default: the model's own]
    #[arg(long, value_name = "HOW", env = "LLAMA_ARG_ROPE_SCALING_TYPE")]
    #[arg(value_parser = ["none", "linear", "yarn"])]
    pub rope_scaling: Option<String>,
    /// Factor by which RoPE scaling extends the context [default: the model's own]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_ROPE_SCALE", value_parser = positive)]
    #[arg(conflicts_with = "rope_freq_scale")]
    pub rope_scale: Option<f32>,
    /// Base of the frequencies of RoPE [default: the model's own]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_ROPE_FREQ_BASE", value_parser = positive)]
    pub rope_freq_base: Option<f32>,
    /// Factor on the frequencies of RoPE: 1 / --rope-scale
    #[arg(long, value_name = "N", env = "LLAMA_ARG_ROPE_FREQ_SCALE", value_parser = positive)]
    pub rope_freq_scale: Option<f32>,
    /// Tokens of context before YaRN extended it [default: the model's own]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_YARN_ORIG_CTX")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub yarn_orig_ctx: Option<u32>,
    /// Share of YaRN's ramp that is applied [default: 1]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_YARN_EXT_FACTOR", value_parser = not_negative)]
    pub yarn_ext_factor: Option<f32>,
    /// Factor on queries and keys with YaRN [default: 1]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_YARN_ATTN_FACTOR", value_parser = positive)]
    pub yarn_attn_factor: Option<f32>,
    /// Turns up to which YaRN interpolates a pair [default: 1]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_YARN_BETA_SLOW", value_parser = positive)]
    pub yarn_beta_slow: Option<f32>,
    /// Turns from which YaRN leaves a pair as it is [default: 32]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_YARN_BETA_FAST", value_parser = positive)]
    pub yarn_beta_fast: Option<f32>,
}

impl MetadataArgs {
    /// What is replaced, in this order.
    pub fn overrides(&self) -> Vec<MetadataOverride> {
        let rope = |name: &str, value: bilayer_gguf::Value| {
            MetadataOverride::new(format!("{{arch}}.rope.{name}"), value)
        };
        let factor = self.rope_scale.or(self.rope_freq_scale.map(|scale| 1.0 / scale));
        let numbers = [
            ("freq_base", self.rope_freq_base),
            ("scaling.factor", factor),
            ("scaling.yarn_ext_factor", self.yarn_ext_factor),
            ("scaling.attn_multiplier", self.yarn_attn_factor),
            ("scaling.yarn_beta_slow", self.yarn_beta_slow),
            ("scaling.yarn_beta_fast", self.yarn_beta_fast),
        ];
        let kind = self.rope_scaling.iter().map(|kind| rope("scaling.type", kind.clone().into()));
        let original = self.yarn_orig_ctx.iter();
        let original =
            original.map(|&tokens| rope("scaling.original_context_length", tokens.into()));
        let numbers =
            numbers.into_iter().filter_map(|(name, number)| Some(rope(name, number?.into())));
        kind.chain(numbers).chain(original).chain(self.override_kv.iter().cloned()).collect()
    }
}

/// A finite number of at least 0.
fn not_negative(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number.abs()),
        _ => Err("expected a number of at least 0".to_owned()),
    }
}

/// A finite number above 0.
fn positive(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}
