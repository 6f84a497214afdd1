//! Input of messages: a terminal with history and completion, or a pipe.

use std::borrow::Cow;
use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, Config, Context, Editor, Helper};

#[cfg(unix)]
use super::ahead::{Ahead, Arrived};
use super::pace::Pace;
use super::{command, message};
use crate::args::RunArgs;
use crate::failure::{Failure, IO};
use crate::folders;
#[cfg(unix)]
use crate::output;
use crate::terminal::{self, CtrlC};

/// Messages in the history.
const HISTORY: usize = 1000;

/// An input event.
pub enum Line {
    /// A whole message or command.
    Text(String),
    /// Ctrl-C.
    Interrupted,
    /// End of input.
    End,
}

/// A source of messages.
pub enum Lines {
    /// A terminal.
    Terminal(Box<Terminal>),
    /// A pipe.
    Pipe,
}

/// A terminal with line editing.
pub struct Terminal {
    editor: Editor<Assistance, FileHistory>,
    history: Option<PathBuf>,
    pace: Pace,
    /// Unless the terminal only delivers whole lines.
    #[cfg(unix)]
    ahead: Option<Ahead>,
}

impl Lines {
    /// Standard input, with the history of earlier chats at a terminal unless there is only one turn.
    pub fn new(args: &RunArgs) -> Result<Lines, Failure> {
        if !io::stdin().is_terminal() {
            return Ok(Lines::Pipe);
        }
        terminal::keep();
        let behavior =
            if io::stdout().is_terminal() { Behavior::Stdio } else { Behavior::PreferTerm };
        let config = Config::builder().max_history_size(HISTORY).map(|config| {
            config.auto_add_history(true).history_ignore_space(true).behavior(behavior).build()
        });
        let mut editor = config.and_then(Editor::with_config).map_err(|error| failed(&error))?;
        editor.set_helper(Some(Assistance { files: FilenameCompleter::new() }));
        let pace = Pace::default();
        pace.watch(&mut editor);
        let folder = folders::state().filter(|_| !args.chat.single_turn);
        let history = folder.map(|folder| folder.join("chat_history"));
        if let Some(path) = &history {
            // A missing or unreadable history is an empty one.
            let _ = editor.load_history(path);
        }
        let terminal = Terminal {
            editor,
            history,
            pace,
            #[cfg(unix)]
            ahead: terminal::moves_cursor().then(Ahead::default),
        };
        terminal.silence(CtrlC::Signal);
        Ok(Lines::Terminal(Box::new(terminal)))
    }

    /// Whether it is a terminal.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Lines::Terminal(_))
    }

    /// Waits for the next message.
    pub fn next(&mut self) -> Result<Line, Failure> {
        match self {
            Lines::Terminal(terminal) => terminal.next(),
            Lines::Pipe => piped(),
        }
    }
}

impl Terminal {
    #[cfg(unix)]
    fn next(&mut self) -> Result<Line, Failure> {
        self.silence(CtrlC::Character);
        // The editor may hold more of what came at once with its last line.
        let arrived = match &mut self.ahead {
            Some(ahead) if !self.pace.is_hasty() => {
                // A terminal that can marks pasted text from here on.
                output::text("\x1b[?2004h> ")?;
                ahead.next().map_err(|error| failed(&error.into()))?
            }
            _ => Arrived::Key,
        };
        let line = match arrived {
            Arrived::Key => self.edit(""),
            Arrived::Begun(text) => self.edit(&text),
            Arrived::Line(text) => {
                output::text(&format!("{text}\n\x1b[?2004l"))?;
                // A message that is not kept is still a message.
                let _ = self.editor.add_history_entry(&text);
                Ok(self.said(&text))
            }
            Arrived::Interrupted => {
                output::text("\n")?;
                Ok(Line::Interrupted)
            }
            Arrived::End => Ok(Line::End),
        };
        self.silence(CtrlC::Signal);
        line
    }

    #[cfg(not(unix))]
    fn next(&mut self) -> Result<Line, Failure> {
        self.edit("")
    }

    /// Lets the user edit a line that begins with `text`.
    fn edit(&mut self, text: &str) -> Result<Line, Failure> {
        self.pace.begin();
        match self.editor.readline_with_initial("> ", (text, "")) {
            Ok(text) => Ok(self.said(&text)),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(failed(&error)),
        }
    }

    fn said(&mut self, text: &str) -> Line {
        if let Some(path) = &self.history {
            keep(&mut self.editor, path);
        }
        Line::Text(message::said(text))
    }

    /// Keeps what is typed during an answer out of it.
    fn silence(&self, ctrl_c: CtrlC) {
        #[cfg(unix)]
        if self.ahead.is_some() {
            terminal::silence(ctrl_c);
        }
        #[cfg(not(unix))]
        let _ = ctrl_c;
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        terminal::restore();
    }
}

/// Appends new messages to the history at once, since a chat may be killed.
fn keep(editor: &mut Editor<Assistance, FileHistory>, path: &Path) {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    // Failure to save the history does not disturb a chat.
    let _ = made.map(|()| editor.append_history(path));
}

/// The next message from a pipe. A message cut off by the end counts as complete.
fn piped() -> Result<Line, Failure> {
    let mut text = String::new();
    loop {
        let read = io::stdin().lock().read_line(&mut text).map_err(|error| {
            Failure::Line(IO, format!("standard input cannot be read: {error}; give UTF-8 text"))
        })?;
        if read == 0 {
            let is_over = text.is_empty();
            return Ok(if is_over { Line::End } else { Line::Text(message::said(&text)) });
        }
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if message::is_complete(line) {
            return Ok(Line::Text(message::said(line)));
        }
    }
}

fn failed(error: &ReadlineError) -> Failure {
    Failure::Line(IO, format!("the terminal cannot be read: {error}; pipe the messages in"))
}

/// Line editing: completes commands and file names, and joins messages of several lines.
pub struct Assistance {
    files: FilenameCompleter,
}

impl Completer for Assistance {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        at: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = &line[..at];
        if command::takes_a_file(typed) {
            return self.files.complete(line, at, context);
        }
        let pair = |name: &str| Pair { display: name.to_owned(), replacement: format!("{name} ") };
        Ok((0, command::beginning_with(typed).map(pair).collect()))
    }
}

impl Validator for Assistance {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match message::is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Hinter for Assistance {
    type Hint = String;
}

impl Highlighter for Assistance {
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        Cow::Borrowed(line)
    }
}

impl Helper for Assistance {}
