//! The commands within a chat.

use std::path::PathBuf;

use crate::failure::Failure;
use crate::folders;

/// A chat command, which starts with `/`.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    Help,
    /// Set the system prompt, or show it without an argument.
    System(Option<String>),
    Clear,
    Regen,
    Undo,
    Save(PathBuf),
    /// Say what is in a file.
    Read(PathBuf),
    Show,
    /// Show the reasoning of the last answer.
    Think,
    /// Give the result of a function that the model called.
    Tool(String),
    /// Continue with another model, or show which it is.
    Model(Option<PathBuf>),
    Load(PathBuf),
    /// Set a flag, or list those that can be set.
    Set(Option<(String, String)>),
    Stats,
    Exit,
}

/// Names, arguments and descriptions.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("/help", "", "list the commands"),
    ("/system", "[TEXT]", "set the system prompt, or show it; \"\" removes it"),
    ("/clear", "", "remove all messages except the system prompt"),
    ("/regen", "", "regenerate the last answer"),
    ("/undo", "", "remove the last message and its answer"),
    ("/save", "FILE", "write the messages to a JSON file"),
    ("/load", "FILE", "continue from such a file"),
    ("/read", "FILE", "send the text of a file as a message"),
    ("/show", "", "show the model, its placement, the chat template and the system prompt"),
    ("/think", "", "show the reasoning of the last answer"),
    ("/tool", "TEXT", "give the result of the function that the model called"),
    ("/model", "[NAME]", "continue with another model: a file or a name of `bilayer models`"),
    ("/set", "[FLAG VALUE]", "change a sampling or answer flag of `run`, or list them"),
    ("/stats", "", "show the context in use and the speed of the last answer"),
    ("/exit", "", "exit; so do /quit, /bye and Ctrl-D"),
];

/// Whether a line is a command.
pub fn is_command(line: &str) -> bool {
    line.starts_with('/') && parse(line).is_ok()
}

/// Parses a line that begins with `/`.
///
/// # Errors
/// An unknown command, or invalid arguments.
pub fn parse(line: &str) -> Result<Command, Failure> {
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    let text = (!rest.is_empty()).then(|| rest.to_owned());
    let file = || match &text {
        Some(path) => Ok(from_home(path)),
        None => Err(Failure::usage(format!("{name} takes a file; give its path"))),
    };
    let alone = |command| match &text {
        None => Ok(command),
        Some(text) => Err(Failure::usage(format!("{name} takes no argument; remove `{text}`"))),
    };
    match name {
        "/help" | "/?" => alone(Command::Help),
        "/system" if matches!(rest, "\"\"" | "''") => Ok(Command::System(Some(String::new()))),
        "/system" => Ok(Command::System(text)),
        "/clear" => alone(Command::Clear),
        "/regen" => alone(Command::Regen),
        "/undo" => alone(Command::Undo),
        "/save" => file().map(Command::Save),
        "/read" => file().map(Command::Read),
        "/show" => alone(Command::Show),
        "/think" => alone(Command::Think),
        "/tool" => match text {
            Some(text) => Ok(Command::Tool(text)),
            None => Err(Failure::usage("/tool takes the function's result; give a text or JSON")),
        },
        "/image" | "/audio" => Err(Failure::usage(format!(
            "{name} is not supported: a model needs its vision or audio encoder (mmproj) for that, and only text \
             models run; describe it in words"
        ))),
        "/model" => Ok(Command::Model(text.as_deref().map(from_home))),
        "/load" => file().map(Command::Load),
        "/set" => match rest.split_once([' ', '=', '\t']) {
            Some((flag, value)) => {
                Ok(Command::Set(Some((flag.to_owned(), value.trim().to_owned()))))
            }
            None if rest.is_empty() => Ok(Command::Set(None)),
            None => Ok(Command::Set(Some((rest.to_owned(), String::new())))),
        },
        "/stats" => alone(Command::Stats),
        "/exit" | "/quit" | "/bye" => alone(Command::Exit),
        _ => Err(Failure::usage(format!(
            "no command {name}; /help lists them, and a space before the / makes it a message"
        ))),
    }
}

/// A path, in which `~` at the beginning is the user's own folder, as in a shell.
fn from_home(path: &str) -> PathBuf {
    let below = path.strip_prefix("~/").or_else(|| (path == "~").then_some(""));
    below.and_then(folders::home).unwrap_or_else(|| PathBuf::from(path))
}

/// All commands, one per line.
pub fn help() -> String {
    let width = COMMANDS.iter().map(|(name, takes, _)| name.len() + takes.len()).max();
    let width = width.unwrap_or(0) + 1;
    let mut lines: Vec<String> = COMMANDS
        .iter()
        .map(|(name, takes, does)| format!("  {:width$}  {does}", format!("{name} {takes}")))
        .collect();
    lines.push(
        "Alt-Enter, or \\ at the end of a line, begins a new line; \"\"\" begins and ends a message \
         of several lines."
            .into(),
    );
    lines.push("Ctrl-C stops an answer; a second one exits.".into());
    lines.join("\n")
}

/// The commands that begin with `typed`.
pub fn beginning_with(typed: &str) -> impl Iterator<Item = &'static str> {
    let is_command = typed.starts_with('/');
    let names = COMMANDS.iter().map(|(name, ..)| *name);
    names.filter(move |name| is_command && name.starts_with(typed))
}

/// Whether a file name is being typed.
pub fn takes_a_file(typed: &str) -> bool {
    let files = COMMANDS.iter().filter(|(name, takes, _)| *takes == "FILE" || *name == "/model");
    files.map(|(name, ..)| name).any(|name| {
        typed.strip_prefix(name).is_some_and(|rest| rest.starts_with(char::is_whitespace))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_understood_and_no_other() {
        for (name, takes, _) in COMMANDS {
            let given = if takes.is_empty() { "" } else { " temp 0.5" };
            assert!(parse(&format!("{name}{given}")).is_ok(), "{name}");
            assert!(help().contains(name), "{name}");
            if takes.is_empty() {
                assert!(parse(&format!("{name} x")).is_err(), "{name}");
            }
        }
        let set = Command::Set(Some(("top-k".into(), "5".into())));
        assert_eq!(parse("/set top-k=5").ok(), Some(set));
        assert!(parse("/usr/bin").is_err() && parse("/save").is_err());
        assert_eq!(
            parse("/set stop").ok(),
            Some(Command::Set(Some(("stop".into(), String::new()))))
        );
        for empty in ["\"\"", "''"] {
            let system = parse(&format!("/system {empty}")).ok();
            assert_eq!(system, Some(Command::System(Some(String::new()))));
        }
        let home = folders::home("a b.json").unwrap();
        assert_eq!(parse("/save ~/a b.json").ok(), Some(Command::Save(home)));
        let other = PathBuf::from("~other/a");
        assert_eq!(parse("/load ~other/a").ok(), Some(Command::Load(other)));
        assert_eq!(
            beginning_with("/s").collect::<Vec<_>>(),
            ["/system", "/save", "/show", "/set", "/stats"]
        );
        assert!(beginning_with("s").next().is_none());
        assert!(takes_a_file("/save a") && !takes_a_file("/save") && !takes_a_file("/set a"));
    }
}
