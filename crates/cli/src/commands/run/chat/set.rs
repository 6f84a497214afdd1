//! `/set`: flags of `run`, changed within a chat.

use clap::{CommandFactory, FromArgMatches, Parser};

use crate::args::{AnswerArgs, RunArgs, SamplingArgs};
use crate::failure::Failure;

/// The flags that can be changed.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Flags {
    #[command(flatten)]
    answer: AnswerArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

/// `args` with one flag changed.
///
/// # Errors
/// No such flag, or it cannot have that value.
pub fn changed(args: &RunArgs, name: &str, value: &str) -> Result<RunArgs, Failure> {
    let name = name.trim_start_matches('-').replace('_', "-");
    let mut flags = Flags { answer: args.answer.clone(), sampling: args.sampling.clone() };
    // Unspecified flags are unchanged: no defaults, no variables.
    let command = Flags::command_for_update()
        .mut_args(|arg| arg.default_value(None::<&'static str>).env(None::<&'static str>));
    let Some(name) = long_name(&command, &name) else {
        let line = format!("no setting `{name}`; /set lists the settings");
        return Err(Failure::usage(line));
    };
    match (value, name.as_str()) {
        ("", "stop") => flags.answer.stop.clear(),
        ("", "logit-bias") => flags.sampling.logit_bias.clear(),
        ("", "dry-sequence-breaker") => flags.sampling.dry_sequence_breaker.clear(),
        ("", name) => {
            return Err(Failure::usage(format!("/set {name} has no value; give one after it")));
        }
        (value, name) => {
            let failed = |error| Failure::parsing(error, "/set");
            let given = [format!("--{name}={value}")];
            let matches = command.try_get_matches_from(given).map_err(failed)?;
            flags.update_from_arg_matches(&matches).map_err(failed)?;
        }
    }
    Ok(RunArgs { answer: flags.answer, sampling: flags.sampling, ..args.clone() })
}

/// The settable flags, with the values of the numbers among them.
pub fn list(args: &RunArgs) -> String {
    let predict = args.answer.n_predict.unwrap_or(-1);
    let mut lines = vec![format!("n-predict {predict}"), format!("seed {}", args.sampling.seed)];
    lines.extend(args.sampling.numbers.values().map(|(name, value)| format!("{name} {value}")));
    let shown: Vec<String> = lines.iter().map(|l| l.split(' ').take(1).collect()).collect();
    let others: Vec<String> =
        names(&Flags::command()).filter(|name| !shown.contains(name)).collect();
    format!("{}\nalso: {}", lines.join(", "), others.join(", "))
}

/// The long form of a flag that takes a value, by one of its names.
fn long_name(command: &clap::Command, name: &str) -> Option<String> {
    let mut letters = name.chars();
    let short = letters.next().filter(|_| letters.next().is_none());
    let is_named = |arg: &&clap::Arg| {
        arg.get_long() == Some(name)
            || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
            || (short.is_some() && arg.get_short() == short)
    };
    let mut valued = command.get_arguments().filter(|arg| arg.get_action().takes_values());
    valued.find(is_named)?.get_long().map(str::to_owned)
}

/// The long flags that take a value.
fn names(command: &clap::Command) -> impl Iterator<Item = String> {
    let valued = command.get_arguments().filter(|arg| arg.get_action().takes_values());
    valued.filter_map(|arg| arg.get_long().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn one_flag_changes_and_the_others_stay() {
        let cli = Cli::parse_from(["bilayer", "run", "--temp", "0.3", "-n", "7", "-r", "x"]);
        let Command::Run(args) = cli.command else { panic!("not run") };
        let changed = |name, value| changed(&args, name, value);
        let top_k = changed("--top_k", "5").expect("a flag with a value");
        let options = top_k.sampling.numbers.options().expect("numbers");
        assert_eq!((options.top_k, options.temperature), (5, 0.3));
        assert_eq!(top_k.answer.n_predict, Some(7));
        assert_eq!(top_k.answer.stop, ["x"]);
        let order = |args: Result<RunArgs, Failure>| {
            let samplers = args.expect("a list").sampling.numbers.options().expect("numbers");
            samplers.samplers.expect("given").letters()
        };
        assert_eq!(order(changed("samplers", "temperature;top_k")), "tk");
        assert_eq!(order(changed("sampling-seq", "pk")), "pk");
        assert!(changed("samplers", "temperature;hot").is_err());
        assert!(changed("n-predict", "-1").is_ok_and(|args| args.answer.n_predict == Some(-1)));
        let temperature = changed("temperature", "0.5").expect("an alias");
        let options = temperature.sampling.numbers.options().expect("numbers");
        assert_eq!(options.temperature, 0.5);
        assert!(changed("n", "5").is_ok_and(|args| args.answer.n_predict == Some(5)));
        assert!(changed("predict", "6").is_ok_and(|args| args.answer.n_predict == Some(6)));
        assert!(changed("reverse-prompt", "y").is_ok_and(|args| args.answer.stop == ["y"]));
        for name in ["stop", "r", "logit-bias"] {
            assert!(changed(name, "").is_ok(), "{name}");
        }
        assert!(changed("stop", "").is_ok_and(|args| args.answer.stop.is_empty()));
        assert!(changed("temp", "").is_err_and(|error| error.into_line().contains("has no value")));
        assert!(changed("top-k", "many").is_err() && changed("model", "x").is_err());
    }
}
