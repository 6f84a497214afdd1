//! The help of a command: one screen with the flags that most people use (`-h`), or all flags by topic (`--help`).

use clap::{Arg, Command};

use crate::args::typed;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The flags that most people use.
    Brief,
    /// All of them.
    Full,
}

/// A command whose help has more lines than this also has a brief one.
const SCREEN: usize = 46;

/// The flags of brief help, by command; of a command that is not listed those of `*`.
const BRIEF: &[(&str, &[&str])] = &[
    (
        "run",
        &[
            "prompt",
            "file",
            "json",
            "conversation",
            "system_prompt",
            "single_turn",
            "n_predict",
            "json_schema",
            "temp",
            "top_k",
            "top_p",
            "min_p",
            "repeat_penalty",
            "seed",
            "cache_type_k",
            "flash_attn",
        ],
    ),
    (
        "serve",
        &[
            "host",
            "port",
            "api_key",
            "parallel",
            "models_dir",
            "alias",
            "metrics",
            "context_shift",
            "slot_save_path",
            "chat_template",
            "cache_type_k",
        ],
    ),
    (
        "bench",
        &["n_prompt", "n_gen", "n_depth", "prompt_gen", "repetitions", "output", "batch_size"],
    ),
    ("profile", &["n_prompt", "n_gen", "repetitions", "out", "json", "trace"]),
    ("perplexity", &["file", "chunks", "kl_base", "kl", "json", "batch_size"]),
    ("imatrix", &["file", "output", "chunks"]),
    ("verify", &["a", "b", "prompt", "file", "tokens", "json"]),
    ("plan", &["machine", "json", "cache_type_k", "cache_type_v", "ubatch_size", "simulate"]),
    ("*", &["texts", "prompt", "file", "jsonl", "query", "top_n", "pooling", "json"]),
];

/// Brief texts of flags whose first clause says too little.
const TEXTS: &[(&str, &str)] = &[
    ("conversation", "Chat, in the format of the model"),
    ("flash_attn", "Fused attention: on, off or auto"),
    ("override_tensor", "Place tensors whose names match REGEX on DEVICE, such as cpu or gpu1"),
    ("pooling", "How a text's rows become one vector: mean, cls, last or none"),
];

/// Flags of brief help in every command that has them.
const OF_MODEL: &[&str] = &[
    "model",
    "hf_repo",
    "ctx_size",
    "threads",
    "gpu_layers",
    "override_tensor",
    "device",
    "vram",
    "verbose",
    "help",
];

/// The help page of the command `name`.
pub fn page(cli: &Command, name: &str, form: Form) -> String {
    let mut cli = cli.clone();
    let Some(command) = cli.find_subcommand_mut(name) else {
        return cli.render_help().to_string();
    };
    let command = std::mem::take(command);
    let mut shown = command.mut_args(with_short_form);
    let full = aligned(&shown.render_help().to_string());
    if form == Form::Full || full.lines().count() <= SCREEN {
        return full;
    }
    let program = shown.get_bin_name().unwrap_or("bilayer");
    let more = format!("`{program} --help` lists all flags, by topic.");
    let listed = listed(shown.get_name());
    let mut brief = shown.mut_args(|arg| brief(arg, listed)).after_help(more);
    one_line_each(&aligned(&brief.render_help().to_string()))
}

/// Puts each flag and its help on one line.
fn one_line_each(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let is_flag = line.starts_with("  -") || line.starts_with("      --");
        let help = lines.next_if(|next| is_flag && next.starts_with("          "));
        match help {
            Some(help) => out += &format!("{:36} {}\n", line.trim_end(), help.trim()),
            None => out += &format!("{line}\n"),
        }
    }
    out
}

/// The flags that are listed for a command.
fn listed(command: &str) -> &'static [&'static str] {
    let find = |name: &str| BRIEF.iter().find(|(listed, _)| *listed == name);
    find(command).or_else(|| find("*")).map_or(&[], |(_, flags)| flags)
}

/// A flag as brief help shows it.
fn brief(arg: Arg, listed: &[&str]) -> Arg {
    if !arg.is_positional() && !OF_MODEL.iter().chain(listed).any(|id| is(&arg, id)) {
        return arg.hide(true);
    }
    let help = match TEXTS.iter().find(|(id, _)| is(&arg, id)) {
        Some((_, text)) => (*text).to_owned(),
        // The first clause.
        None => {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            if help.starts_with("No effect") {
                return arg.hide(true);
            }
            help.split([';', '[', ':', ',']).next().unwrap_or_default().trim_end().to_owned()
        }
    };
    let takes_values = arg.get_action().takes_values();
    let arg = arg.help(help).help_heading(None::<&'static str>);
    let arg = arg.hide_env(true).visible_alias(None::<&'static str>);
    match takes_values && !arg.is_positional() {
        // Its name is all that there is room for.
        true => arg.hide_default_value(true).hide_possible_values(true),
        false => arg,
    }
}

/// Whether an argument is called so; samplers have dashes in their names.
fn is(arg: &Arg, id: &str) -> bool {
    arg.get_id().as_str().replace('-', "_") == id
}

/// Puts the short form of several letters in front of the long one, where clap has room for one letter only.
fn with_short_form(arg: Arg) -> Arg {
    let Some(short) = arg.get_long().and_then(typed::short_form) else { return arg };
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let help = help.replace(&format!("; short form {short}"), "");
    let long = format!("{}, --{}", &short[1..], arg.get_long().unwrap_or_default());
    arg.long(&*long.leak()).help(help)
}

/// Moves the flags with short forms of several letters to where the others begin.
fn aligned(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    for line in page.split_inclusive('\n') {
        let flags = line.strip_prefix("      --").and_then(|rest| {
            let (short, rest) = rest.split_once(", --")?;
            let end = rest.find("  ").unwrap_or(rest.trim_end().len());
            let is_short = short.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            is_short.then(|| (format!("  -{short}, --{}", &rest[..end]), &rest[end..]))
        });
        match flags {
            Some((flags, rest)) if rest.trim().is_empty() => out += &format!("{flags}{rest}"),
            Some((flags, rest)) => out += &format!("{flags}     {rest}"),
            None => out += line,
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    #[test]
    fn brief_help_is_one_screen_of_flags_that_exist() {
        let mut cli = args::command();
        cli.build();
        for (name, flags) in BRIEF.iter().filter(|(name, _)| *name != "*") {
            let command = cli.find_subcommand(name).expect(name);
            for flag in *flags {
                assert!(command.get_arguments().any(|arg| is(arg, flag)), "{name} {flag}");
            }
            let page = page(&cli, name, Form::Brief);
            assert!(page.lines().count() <= SCREEN, "{page}");
            assert!(page.contains("-ngl, --gpu-layers <"), "{page}");
            assert!(page.contains(&format!("`bilayer {name} --help` lists all flags")), "{page}");
        }
    }

    #[test]
    fn full_help_has_every_short_form_as_a_flag() {
        let mut cli = args::command();
        cli.build();
        for command in cli.get_subcommands() {
            let page = page(&cli, command.get_name(), Form::Full);
            assert!(!page.contains("short form"), "{page}");
            for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let Some(long) = arg.get_long() else { continue };
                if let Some(short) = typed::short_form(long) {
                    assert!(page.contains(&format!("\n  {short}, --{long}")), "{short} in {page}");
                }
            }
        }
    }
}
