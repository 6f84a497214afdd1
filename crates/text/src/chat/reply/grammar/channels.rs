//! Grammars of replies made of messages with headers.

use super::super::Format;
use super::super::families::{Channels, Syntax};
use super::super::out::Tool;
use super::{Writer, controls};
use crate::Tokenizer;

/// See [`Format::answer_grammar`].
pub fn answer_grammar(
    format: &Format,
    answer: &str,
    tokenizer: Option<&Tokenizer>,
) -> Option<String> {
    let Syntax::Channels(channels) = &format.family.calls else { return None };
    let mut writer = Writer { controls: tokenizer.map(controls), ..Writer::default() };
    let answer = writer.channel_answer(channels, answer)?;
    let thought = writer.channel_thought(channels);
    Some(format!("start: {thought} {answer}\n{}", writer.lines))
}

impl Channels {
    /// What precedes the function's name in a header.
    pub fn recipient(&self) -> &'static str {
        if self.markup.is_some() { " to=" } else { " to=functions." }
    }
}

impl Writer {
    /// `None` if there is an answer and its header is not known.
    pub fn channels(
        &mut self,
        channels: &Channels,
        tools: &[&Tool],
        answer: Option<&str>,
    ) -> Option<String> {
        // Markup of calls is written as templates do.
        let is_lazy = std::mem::take(&mut self.is_lazy);
        let header: Vec<String> =
            channels.header.iter().map(|part| self.any_of(part) + "? ").collect();
        let header = header.concat() + &self.text("<|message|>");
        let calls: Vec<String> = tools
            .iter()
            .map(|tool| {
                let name = self.text(&tool.name);
                let body = match channels.markup {
                    None => self.arguments(tool),
                    Some(framed) => self.framed(framed, &[tool]),
                };
                format!("{name} {header} {body}")
            })
            .collect();
        let call = self.rule("", &calls.join(" | "));
        let to = self.text(channels.recipient());
        if is_lazy {
            return Some(format!("{to} {call}"));
        }
        // The channel may come before the recipient or after it.
        let channel = channels.header.first().map(|part| self.any_of(part) + "? ");
        let call = format!("{}{to} {call}", channel.unwrap_or_default());
        let message = match answer {
            None => call,
            Some(answer) => format!("({call} | {})", self.channel_answer(channels, answer)?),
        };
        let thought = self.channel_thought(channels);
        Some(format!("{thought} {message}"))
    }

    /// A message with an answer; `None` if its header is not known.
    fn channel_answer(&mut self, channels: &Channels, answer: &str) -> Option<String> {
        if channels.markup.is_some() {
            return None;
        }
        let head = self.text("<|channel|>final<|message|>");
        Some(format!("{head} {}", self.rule("", answer)))
    }

    /// A message with reasoning, which may be missing, and the beginning of the next message.
    fn channel_thought(&mut self, channels: &Channels) -> String {
        let end = channels.ends[0];
        let thought = match channels.markup {
            None => "<|channel|>analysis<|message|>",
            Some(_) => " to=self<|message|>",
        };
        let thought = self.text(thought);
        let rest = self.until(end);
        let start = self.text("<|start|>assistant");
        format!("({thought} {rest} {start})?")
    }
}
