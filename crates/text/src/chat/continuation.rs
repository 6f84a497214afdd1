//! Prompts that end within an answer, which the model continues.

use serde_json::{Value as Json, json};

use super::reply::Format;
use super::{Inputs, Prompt, Segment, Template};
use crate::{Error, Tokenizer};

/// Stands for the content that is continued: letters alone, which no template escapes, trims or searches for.
const PLACE: &str = "Quavernilox";

/// See [`Template::continuation`].
pub fn prompt(
    template: &Template,
    inputs: &Inputs<'_>,
    tokenizer: &Tokenizer,
) -> Result<Prompt, Error> {
    let Some((last, earlier)) = inputs.messages.split_last() else {
        return template.conversation(inputs, tokenizer);
    };
    let format = Format::of(template.source());
    let (open, close) = format.thinking_tags();
    let text = last.get("content").and_then(Json::as_str).unwrap_or_default();
    let (reasoning, answer) = text.split_at(reasoning_end(text, close));
    let open_reasoning = text.trim_start().strip_prefix(open).filter(|_| reasoning.is_empty());
    let started = || {
        let inputs = Inputs { messages: earlier, add_generation_prompt: true, ..inputs.clone() };
        template.conversation(&inputs, tokenizer)
    };
    if let Some(rest) = open_reasoning {
        let prompt = started()?;
        // The prompt may begin the reasoning itself.
        let is_open = format.opens_thinking(&prompt.text);
        return Ok(extended(prompt, if is_open { rest.trim_start() } else { text }));
    }
    let beside = last.get("reasoning_content").and_then(Json::as_str).unwrap_or_default();
    if text.trim().is_empty()
        && beside.trim().is_empty()
        && let Ok(prompt) = started()
    {
        // Nothing has begun.
        return Ok(prompt);
    }
    let placed = placed(template, inputs, tokenizer, reasoning);
    // Templates of DeepSeek-R1 leave out the reasoning in a message.
    let thought = reasoning.trim().trim_start_matches(open).trim_end_matches(close).trim();
    // Templates of Mistral write the instructions only where the last message is the user's.
    let instructions = earlier.iter().filter(|message| message["role"] == "system");
    let mut instructions = instructions.filter_map(|message| message["content"].as_str());
    match placed {
        Some(prompt)
            if prompt.text.contains(thought)
                && instructions.all(|text| prompt.text.contains(text.trim())) =>
        {
            Ok(extended(prompt, answer))
        }
        placed => match (started(), placed) {
            (Ok(prompt), _) => {
                let begun = format.opens_thinking(&prompt.text);
                let rest = text.trim_start().strip_prefix(open).filter(|_| begun);
                Ok(extended(prompt, rest.map_or(text, str::trim_start)))
            }
            (Err(_), Some(prompt)) => Ok(extended(prompt, answer)),
            (Err(error), None) => Err(error),
        },
    }
}

/// The number of bytes of `text` up to the end of its reasoning and the blanks after that; 0 if it ends none.
fn reasoning_end(text: &str, close: &str) -> usize {
    let Some(at) = text.rfind(close) else { return 0 };
    text.len() - text[at + close.len()..].trim_start().len()
}

/// The prompt up to the place of the last message's content after its reasoning; `None` if the template refuses the
/// messages or writes the content nowhere.
fn placed(
    template: &Template,
    inputs: &Inputs<'_>,
    tokenizer: &Tokenizer,
    reasoning: &str,
) -> Option<Prompt> {
    let mut messages = inputs.messages.to_vec();
    let last = messages.last_mut()?.as_object_mut()?;
    last.insert("content".to_owned(), json!(format!("{reasoning}{PLACE}")));
    // The name by which the template of gpt-oss knows the reasoning before an answer.
    if let Some(thought) = last.get("reasoning_content").filter(|text| text.is_string()).cloned() {
        last.entry("thinking").or_insert(thought);
    }
    let inputs = Inputs { messages: &messages, add_generation_prompt: false, ..inputs.clone() };
    let mut prompt = template.conversation(&inputs, tokenizer).ok()?;
    prompt.text.truncate(prompt.text.rfind(PLACE)?);
    while let Some(segment) = prompt.segments.pop() {
        let Segment::Text(mut text) = segment else { continue };
        let Some(at) = text.rfind(PLACE) else { continue };
        text.truncate(at);
        if !text.is_empty() {
            prompt.segments.push(Segment::Text(text));
        }
        return Some(prompt);
    }
    None
}

/// A prompt with the beginning of the answer.
fn extended(mut prompt: Prompt, text: &str) -> Prompt {
    prompt.text += text;
    prompt.answer_bytes = text.len();
    // One text with what comes before: a text of its own could begin with a space token.
    match prompt.segments.last_mut() {
        _ if text.is_empty() => {}
        Some(Segment::Text(last)) => last.push_str(text),
        _ => prompt.segments.push(Segment::Text(text.to_owned())),
    }
    prompt
}

impl Prompt {
    /// The part of the text that ends with the tag that begins or ends reasoning in the beginning of the answer, or where the
    /// answer begins: [`Format::opens_thinking`] of it says whether the answer goes on with reasoning.
    pub fn opening(&self, format: &Format) -> &str {
        let begins = self.text.len() - self.answer_bytes;
        let (open, close) = format.thinking_tags();
        let answer = &self.text[begins..];
        // A tag that begins reasoning means nothing within an answer.
        let opened = answer.trim_start().strip_prefix(open).map(|rest| answer.len() - rest.len());
        let closed = answer.rfind(close).map(|at| at + close.len());
        &self.text[..begins + closed.or(opened).unwrap_or(0)]
    }
}
