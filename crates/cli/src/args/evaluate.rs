//! Flags of `evaluate`.

use std::path::PathBuf;

use bilayer_scheduler::Offload;
use clap::error::Error;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches, ValueHint, value_parser};

use super::cost::share;
use super::{LabeledModel, ModelArgs, OutPath, PriceArgs};

/// `bilayer evaluate`.
#[derive(Args, Debug)]
#[command(
    after_help = "A case is a JSON object in one line: `prompt` or `messages`; one of `exact`, `regex`, `fields` (a JSON \
object), `label`, `similar`; and if wanted `id`, `at_least` (of `similar`), `max_tokens`, `stop`, `schema`. Answers are the \
likeliest ones (temperature 0). Every model runs with every placement of -ngl. The exit code is 3 if one is below --floor."
)]
pub struct Evaluate {
    /// Cases with expected answers, one JSON object per line (`-` for stdin)
    #[arg(long, value_name = "FILE")]
    pub data: PathBuf,
    /// Share of cases that must pass, such as 0.9
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "no_compute")]
    pub floor: Option<f64>,
    /// Encoder that compares answers with `similar`
    #[arg(long, value_name = "PATH")]
    pub encoder: Option<PathBuf>,
    /// Cases answered at once, or texts per step of an encoder; short form -np
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=32))]
    pub parallel: usize,
    /// Chat template for `messages`: a name such as chatml, or the text of one [default: the model's own]
    #[arg(long, value_name = "TEMPLATE", env = "LLAMA_ARG_CHAT_TEMPLATE")]
    pub chat_template: Option<String>,
    /// Write a page with the results and all answers, in HTML
    #[arg(long, value_name = "FILE")]
    pub html: Option<OutPath>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub prices: PriceArgs,
    #[command(flatten)]
    pub models: SeveralModels,
}

/// The flags of [`ModelArgs`] with lists of models and of placements.
#[derive(Clone, Debug)]
pub struct SeveralModels {
    /// Files of the models.
    pub paths: Vec<PathBuf>,
    /// Names given to them.
    pub names: Vec<Option<String>>,
    /// Each number of offloaded layers.
    pub gpu_layers: Vec<Offload>,
    /// All other flags.
    pub flags: ModelArgs,
}

impl Args for SeveralModels {
    fn augment_args(command: Command) -> Command {
        ModelArgs::augment_args(command)
            .mut_arg("model", |arg| {
                let arg = arg.action(ArgAction::Append).value_name("[NAME=]PATH").help(
                    "GGUF file, or the first of its shards, or a name of `bilayer models`, with a name for the output; \
                     repeatable [default: the embedded demo model]",
                );
                arg.value_parser(value_parser!(LabeledModel)).value_hint(ValueHint::AnyPath)
            })
            .mut_arg("gpu_layers", |arg| {
                arg.action(ArgAction::Append).value_delimiter(',').value_name("LIST")
            })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SeveralModels {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SeveralModels, Error> {
        let mut matches = matches.clone();
        // The other flags have one model, whose type is that of a path.
        let given = matches.remove_many::<LabeledModel>("model").into_iter().flatten();
        let (names, paths) = given.map(|model| (model.name, model.path)).unzip();
        let gpu_layers = matches.get_many("gpu_layers").into_iter().flatten().copied().collect();
        Ok(SeveralModels {
            paths,
            names,
            gpu_layers,
            flags: ModelArgs::from_arg_matches(&matches)?,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = SeveralModels::from_arg_matches(matches)?;
        Ok(())
    }
}
