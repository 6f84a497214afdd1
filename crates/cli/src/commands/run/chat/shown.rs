//! How an answer is shown in a chat: wrapped at the edge of the terminal, its reasoning dimmed and folded to a line,
//! calls of functions by name and arguments.

use std::time::Instant;

use bilayer_engine::generate::Stop;
use bilayer_engine::tools;
use bilayer_text::chat::reply::{Delta, Parser};

use super::wrap::Wrap;
use crate::failure::Failure;
use crate::{output, terminal};

/// Shows an answer piece by piece.
pub struct Shown {
    /// Takes the answer apart; `None` shows it as the model writes it.
    parser: Option<Parser>,
    wrap: Wrap,
    /// The reasoning so far.
    reasoning: String,
    /// When reasoning began, until it is folded.
    thinking: Option<Instant>,
    /// Whether the cursor is at the start of a line.
    is_fresh: bool,
}

impl Shown {
    /// For one answer.
    pub fn new(parser: Option<Parser>) -> Shown {
        let (wrap, reasoning) = (Wrap::default(), String::new());
        Shown { parser, wrap, reasoning, thinking: None, is_fresh: true }
    }

    /// Shows a piece.
    pub fn push(&mut self, piece: &str) -> Result<(), Failure> {
        let Some(parser) = &mut self.parser else { return self.write(piece) };
        let deltas = parser.push(piece);
        self.show(deltas)
    }

    /// Shows what is left at the end. Returns the reasoning.
    pub fn finish(mut self, stop: Stop) -> Result<String, Failure> {
        if let Some(parser) = &mut self.parser {
            let deltas = tools::end(parser, Some(stop));
            self.show(deltas)?;
        }
        self.fold()?;
        Ok(self.reasoning)
    }

    fn show(&mut self, deltas: Vec<Delta>) -> Result<(), Failure> {
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => {
                    self.reasoning += &text;
                    self.thinking.get_or_insert_with(Instant::now);
                    self.peek()?;
                }
                Delta::Content(text) => {
                    self.fold()?;
                    self.write(&text)?;
                }
                Delta::Call { name, .. } => {
                    self.fold()?;
                    let line = if self.is_fresh { "" } else { "\n" };
                    self.write(&format!("{line}calls {name} "))?;
                }
                Delta::Arguments { text, .. } => self.write(&text)?,
            }
        }
        Ok(())
    }

    fn write(&mut self, text: &str) -> Result<(), Failure> {
        self.is_fresh = text.chars().last().map_or(self.is_fresh, |last| last == '\n');
        match terminal::columns() {
            Some(columns) => output::text(&self.wrap.wrapped(text, columns)),
            None => output::text(text),
        }
    }

    /// Shows the end of the reasoning on one line.
    fn peek(&self) -> Result<(), Failure> {
        let Some(columns) = terminal::columns() else { return Ok(()) };
        let end = Wrap::last_columns(&self.reasoning, columns.saturating_sub(2));
        output::text(&format!("\r\x1b[K{}", terminal::dimmed(&end)))
    }

    /// Replaces that line by how long the reasoning took.
    fn fold(&mut self) -> Result<(), Failure> {
        let Some(began) = self.thinking.take() else { return Ok(()) };
        let seconds = began.elapsed().as_secs_f64();
        let words = self.reasoning.split_whitespace().count();
        let line = format!("(reasoned for {seconds:.1} s, {words} words; /think shows it)");
        match terminal::columns() {
            Some(_) => output::text(&format!("\r\x1b[K{}\n", terminal::dimmed(&line))),
            None => {
                output::note(&line);
                Ok(())
            }
        }
    }
}
