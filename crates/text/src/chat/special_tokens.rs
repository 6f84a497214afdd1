//! Finds the special tokens in a rendering that were written by the template itself.
//!
//! The text alone does not tell: `<|im_end|>` may come from a message. Therefore the conversation is rendered once
//! unchanged and once more with marks that survive what templates do to texts:
//!
//! 1. **Masked messages.** In all texts of the conversation, every character that identifies special tokens (`<`, `|`,
//!    `[` and similar) is replaced by a private-use character. If the result, unmasked, equals the plain rendering,
//!    then every special token still spelled out is the template's, and whatever is masked belongs to a message. A
//!    template may trim, split, join and repeat: one character stays one character.
//! 2. **Marked template.** A template that searches for `</think>` in a message does not find it masked, and the result
//!    differs. Then the roles are swapped: in the template's source each special token becomes one private-use
//!    character, and the messages are unchanged. Only those characters become tokens. Tokens that a template
//!    concatenates (`'<|' + role + '|>'`) are plain text this way, which is why this method comes second.
//! 3. **Marked template, except tokens in messages.** A template that searches for a special token in a message must
//!    find it. Those tokens stay text everywhere in this prompt.
//!
//! Every method yields the characters of the plain rendering, and none creates a token from message text. A token that
//! a template builds around a bare word (`<|` + role + `|>`) is the template's own.
//!
//! Special tokens are control tokens, and user-defined ones that have a bracket and a bar, or either if the template spells
//! them: some vocabularies give markers such as `<|tool_call>` this type. Other user-defined tokens are matched in every
//! text.

use std::collections::HashSet;

use crate::special::{Fragment, Matcher};
use crate::{Encode, Error, Tokenizer};

use super::{Inputs, Template, source};

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The whole prompt as text.
    pub text: String,
    /// The prompt in segments.
    pub segments: Vec<Segment>,
    /// User-defined tokens that only the template writes; they are not looked for in text.
    pub markers: Vec<u32>,
    /// Bytes at the end of the text that are the beginning of the answer.
    pub answer_bytes: usize,
}

/// A segment of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Segment {
    /// Plain text, even if it reads like a special token.
    Text(String),
    /// A special token that the template wrote.
    Token(u32),
}

/// First private-use character of planes 15 and 16.
const PRIVATE: u32 = 0xF_0000;

/// Characters are reserved in blocks of this size; one unused block is chosen.
const BLOCK: u32 = 4096;

/// See [`Template::prompt`].
pub fn prompt(
    template: &Template,
    inputs: &Inputs<'_>,
    tokenizer: &Tokenizer,
) -> Result<Prompt, Error> {
    let text = template.render(inputs)?;
    let entangled = || Error::Entangled { name: template.name().to_owned() };
    let base = free_block(template, inputs).ok_or_else(entangled)?;
    let own = user_defined(template, tokenizer);
    let markers: Vec<u32> = own.iter().map(|(_, id)| *id).collect();
    let special: Vec<(&str, u32)> = tokenizer.controls().chain(own).collect();
    if let Some(segments) = masked(template, inputs, tokenizer, &special, base, &text) {
        return Ok(Prompt { text, segments, markers, answer_bytes: 0 });
    }
    if let Some(segments) = marked(template, inputs, tokenizer, &special, base, &text) {
        return Ok(Prompt { text, segments, markers, answer_bytes: 0 });
    }
    let is_held = |token: &str| {
        let mut held = false;
        inputs.texts(&mut |text| held |= text.contains(token));
        held
    };
    let rest: Vec<(&str, u32)> = special.into_iter().filter(|(token, _)| !is_held(token)).collect();
    let segments = marked(template, inputs, tokenizer, &rest, base, &text);
    Ok(Prompt { segments: segments.ok_or_else(entangled)?, text, markers, answer_bytes: 0 })
}

/// The user-defined tokens that are markers: those with a bracket and a bar, and those with either that the template spells.
fn user_defined<'t>(template: &Template, tokenizer: &'t Tokenizer) -> Vec<(&'t str, u32)> {
    let matcher = tokenizer.user_defined();
    let found: HashSet<u32> = matcher
        .split(template.source())
        .into_iter()
        .filter_map(|fragment| match fragment {
            Fragment::Token(id) => Some(id),
            Fragment::Text(_) => None,
        })
        .collect();
    let is_marker = |&(token, id): &(&str, u32)| {
        let (bracket, bar) = (token.contains(['<', '>', '[']), token.contains(['|', '｜']));
        bracket && bar || (bracket || bar) && found.contains(&id)
    };
    matcher.tokens().filter(is_marker).collect()
}

/// Method 1: masks in the messages.
fn masked(
    template: &Template,
    inputs: &Inputs<'_>,
    tokenizer: &Tokenizer,
    special: &[(&str, u32)],
    base: u32,
    plain: &str,
) -> Option<Vec<Segment>> {
    let markers = markers(special);
    let hide = |c: char| match markers.binary_search(&c) {
        Ok(at) => char::from_u32(base + at as u32).unwrap_or(c),
        Err(_) => c,
    };
    let show = |c: char| {
        let at = u32::from(c).checked_sub(base).map(|at| at as usize);
        at.and_then(|at| markers.get(at)).copied().unwrap_or(c)
    };
    let mut is_needed = false;
    inputs.texts(&mut |text| is_needed |= text.chars().any(|c| hide(c) != c));
    let hidden = if is_needed {
        let write = |text: &str| text.chars().map(hide).collect();
        template.run(template.source(), inputs, &write).ok()?
    } else {
        plain.to_owned()
    };
    if !hidden.chars().map(show).eq(plain.chars()) {
        return None;
    }
    let fragments = tokenizer.special().split(&hidden).into_iter();
    Some(
        fragments
            .map(|fragment| segment(fragment, |text| text.chars().map(show).collect()))
            .collect(),
    )
}

/// Methods 2 and 3: marks for `tokens` in the template.
fn marked(
    template: &Template,
    inputs: &Inputs<'_>,
    tokenizer: &Tokenizer,
    tokens: &[(&str, u32)],
    base: u32,
    plain: &str,
) -> Option<Vec<Segment>> {
    let spelled = |token: &str| {
        let special = [&inputs.bos_token, &inputs.eos_token];
        template.source().contains(token) || special.iter().any(|text| text.contains(token))
    };
    // Characters from `base` on; a block limits the number of tokens, which no template exceeds.
    let marks = (base..base + BLOCK).filter_map(char::from_u32).map(String::from);
    let marks: Vec<(String, &str, u32)> = tokens
        .iter()
        .filter(|(token, _)| spelled(token))
        .zip(marks)
        .map(|(&(token, id), mark)| (mark, token, id))
        .collect();
    let tokens = Matcher::new(marks.iter().zip(0..).map(|((_, token, _), at)| (*token, at, false)));
    let mark = |text: &str| -> String {
        let fragments = tokens.split(text).into_iter();
        fragments
            .map(|fragment| match fragment {
                Fragment::Text(text) => text,
                Fragment::Token(at) => &marks[at as usize].0,
            })
            .collect()
    };
    let changed = source::with_texts(template.source(), mark);
    let bos_token = mark(&inputs.bos_token);
    let eos_token = mark(&inputs.eos_token);
    let inputs = Inputs { bos_token, eos_token, ..inputs.clone() };
    let rendered = template.run(&changed, &inputs, &str::to_owned).ok()?;
    let strips = |id| tokenizer.special().strips(id);
    let marked = Matcher::new(marks.iter().map(|(mark, _, id)| (mark.as_str(), *id, strips(*id))));
    let readable =
        Matcher::new(marks.iter().zip(0..).map(|((mark, ..), at)| (mark.as_str(), at, false)));
    let fragments = readable.split(&rendered).into_iter();
    let read: String = fragments
        .map(|fragment| match fragment {
            Fragment::Text(text) => text,
            Fragment::Token(at) => marks[at as usize].1,
        })
        .collect();
    let fragments = marked.split(&rendered).into_iter();
    (read == plain).then(|| fragments.map(|fragment| segment(fragment, str::to_owned)).collect())
}

fn segment(fragment: Fragment<'_>, read: impl Fn(&str) -> String) -> Segment {
    match fragment {
        Fragment::Text(text) => Segment::Text(read(text)),
        Fragment::Token(id) => Segment::Token(id),
    }
}

/// The characters that identify special tokens, sorted: those of each token that do not occur in words, or all if the
/// token is a word.
fn markers(special: &[(&str, u32)]) -> Vec<char> {
    let is_wordy = |c: char| c.is_alphanumeric() || c.is_whitespace() || c == '_';
    let mut markers: Vec<char> = Vec::new();
    for (token, _) in special {
        let is_word = token.chars().all(is_wordy);
        markers.extend(token.chars().filter(|&c| is_word || !is_wordy(c)));
    }
    markers.sort_unstable();
    markers.dedup();
    markers.truncate(BLOCK as usize);
    markers
}

/// The start of a block of private-use characters that occurs in neither template nor inputs.
fn free_block(template: &Template, inputs: &Inputs<'_>) -> Option<u32> {
    // One bit per block of the two planes.
    let mut used = 0u32;
    let mut look = |text: &str| {
        for c in text.chars().filter(|&c| u32::from(c) >= PRIVATE) {
            used |= 1 << ((u32::from(c) - PRIVATE) / BLOCK);
        }
    };
    look(template.source());
    inputs.texts(&mut look);
    let block = used.trailing_ones();
    (block < 32).then_some(PRIVATE + block * BLOCK)
}

impl Tokenizer {
    /// The tokens of a rendered conversation: special tokens only where the template wrote them. A vocabulary that
    /// adds `bos` to texts ([`Encode::add_special`]) adds it if the template did not write it.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>, Error> {
        let mut ids = Vec::with_capacity(prompt.text.len() / 3 + 2);
        for segment in &prompt.segments {
            match segment {
                Segment::Token(id) => ids.push(*id),
                Segment::Text(text) => {
                    let tokens = self.encode_except(text, Encode::default(), &prompt.markers)?;
                    ids.extend(tokens);
                }
            }
        }
        if let Some(first) = self.first().filter(|first| ids.first() != Some(first)) {
            ids.insert(0, first);
        }
        Ok(ids)
    }
}
