//! Flags of the samplers, with llama.cpp's names and defaults.

use std::sync::LazyLock;

use bilayer_engine::sampling::{self, Field, Options, OptionsError, Parameter, Samplers};
use clap::error::Error;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

/// Settings of the samplers.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Random seed; -1 takes a new one each time
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..))]
    pub seed: i64,
    #[command(flatten)]
    pub numbers: ParameterArgs,
    /// Text that interrupts a DRY sequence, or `none`; repeatable [default: newline, colon, quote, star]
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_sequence_breaker: Vec<String>,
    /// Add a bias to a token's logit: TOKEN+BIAS or TOKEN-BIAS (`15043-1`, `2-inf`); repeatable
    #[arg(short = 'l', long, value_name = "TOKEN±BIAS")]
    pub logit_bias: Vec<String>,
}

/// The flags of the samplers: their order, and all parameters that the engine's samplers declare.
#[derive(Clone, Debug)]
pub struct ParameterArgs {
    /// The values as text, in the engine's order.
    values: Vec<String>,
    /// The samplers that run; `None` is the default.
    samplers: Option<Samplers>,
}

/// The flag with the samplers' names.
const NAMES: &str = "samplers";
/// The flag with their letters.
const LETTERS: &str = "sampling-seq";

/// The default values, as text.
static DEFAULTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let options = Options::default();
    sampling::parameters().map(|parameter| parameter.text(&options)).collect()
});

impl ParameterArgs {
    /// The options that these flags give.
    pub fn options(&self) -> Result<Options, OptionsError> {
        let values = sampling::parameters().zip(self.values.iter().map(String::as_str));
        Ok(Options { samplers: self.samplers.clone(), ..Options::parse(values)? })
    }

    /// The values by name.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, &str)> {
        sampling::parameters()
            .zip(&self.values)
            .map(|(parameter, text)| (parameter.name, text.as_str()))
    }
}

impl Args for ParameterArgs {
    fn augment_args(command: Command) -> Command {
        command
            .args(order())
            .args(sampling::parameters().zip(DEFAULTS.iter()).map(|(p, default)| flag(p, default)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ParameterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ParameterArgs, Error> {
        let mut args = ParameterArgs { values: DEFAULTS.clone(), samplers: None };
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for (parameter, text) in sampling::parameters().zip(&mut self.values) {
            if let Some(given) = matches.get_one::<String>(parameter.name) {
                text.clone_from(given);
            }
        }
        for flag in [NAMES, LETTERS] {
            if let Some(given) = matches.get_one::<Samplers>(flag) {
                self.samplers = Some(given.clone());
            }
        }
        Ok(())
    }
}

/// The two flags that list the samplers; the last one given counts.
fn order() -> [Arg; 2] {
    let default = Samplers::default();
    let names: Vec<&str> = default.names().collect();
    let expected = |error: OptionsError| format!("it must be {}", error.expected);
    let named = Arg::new(NAMES)
        .long(NAMES)
        .value_name("NAMES")
        .help(format!(
            "Samplers that run, in this order, separated by `;` [default: {}]",
            names.join(";")
        ))
        .overrides_with(LETTERS)
        .value_parser(move |text: &str| Samplers::parse(text).map_err(expected));
    let lettered = Arg::new(LETTERS)
        .long(LETTERS)
        .alias("sampler-seq")
        .value_name("LETTERS")
        .help(format!("As --samplers, by letters [default: {}]", default.letters()))
        .overrides_with(NAMES)
        .value_parser(move |text: &str| Samplers::lettered(text).map_err(expected));
    [named, lettered]
}

/// Flags whose negative values are 0, as in llama.cpp.
const ZERO_IF_NEGATIVE: &[&str] = &["top-k"];

fn flag(parameter: &'static Parameter, default: &'static str) -> Arg {
    let checked = |text: &str| {
        let is_negative = text.starts_with('-') && ZERO_IF_NEGATIVE.contains(&parameter.name);
        let text = if is_negative { "0" } else { text };
        match parameter.set(&mut Options::default(), text) {
            Ok(()) => Ok(text.to_owned()),
            Err(error) => Err(format!("it must be {}", error.expected)),
        }
    };
    Arg::new(parameter.name)
        .long(parameter.name)
        .aliases(parameter.alias)
        .help(parameter.help)
        .value_name(if matches!(parameter.field, Field::Real(..)) { "X" } else { "N" })
        .default_value(default)
        .allow_negative_numbers(true)
        .value_parser(checked)
}
