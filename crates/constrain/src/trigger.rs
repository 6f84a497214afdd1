//! Texts at which a grammar begins: found in free text, also across tokens.

use std::sync::Arc;

use llguidance::toktrie::SimpleVob;

use crate::{Mask, Tokens};

/// White space tokens allowed between a trigger and the text that the grammar describes.
const BLANKS_MAX: usize = 2;

/// Tags around text in which a trigger means nothing, such as reasoning. It begins where only white space came before:
/// at the beginning, and after earlier text of that kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tags<'t> {
    /// The tag before it.
    pub open: &'t str,
    /// The tag after it.
    pub close: &'t str,
    /// Whether the text begins behind the first tag.
    pub is_open: bool,
}

/// Where a grammar begins in a text that is free up to there; the grammar describes this beginning as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starts<'t> {
    /// It begins with any of these texts.
    pub texts: &'t [String],
    /// It begins with this character where only white space or text between tags came before.
    pub first: Option<u8>,
}

/// The beginning of a grammar.
pub struct Begun {
    /// The text that the grammar has to read.
    pub text: Vec<u8>,
    /// How many tokens of white space may follow that the grammar does not describe.
    pub blanks: usize,
}

/// Watches free text for its trigger.
#[derive(Clone)]
pub struct Trigger {
    about: Arc<About>,
    tokens: Tokens,
    /// The last bytes of the text, fewer than the longest text that is looked for.
    seen: Vec<u8>,
    region: Region,
}

/// Where the text is that comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Region {
    /// Behind white space or so many bytes of the opening tag.
    Start(usize),
    /// Between the tags.
    Inside,
    /// In text that is watched.
    Watched,
}

/// What does not change with the text.
#[derive(Clone)]
struct About {
    /// The trigger is any of these.
    texts: Vec<Sought>,
    /// Bytes of the longest of them.
    len: usize,
    /// The character that is a trigger where only white space or text between tags came before.
    first: Option<u8>,
    /// Whether the grammar describes the trigger as well.
    includes: bool,
    /// The tags around text that is not watched.
    tags: Option<[Vec<u8>; 2]>,
    is_optional: bool,
    /// The tokens of free text.
    free: Mask,
    /// Tokens of white space only.
    blanks: Mask,
    /// Tokens that begin with `first`, white space aside, and go on as the grammar does not.
    refused: Vec<u32>,
}

/// A text that is looked for.
#[derive(Clone)]
struct Sought {
    text: Vec<u8>,
    /// `completing[k]`: tokens that complete the text after its first `k` bytes and go on with more than white space, but
    /// not as the grammar does.
    completing: Vec<Vec<u32>>,
}

impl Trigger {
    /// A trigger that must appear before the text ends.
    pub fn required(tokens: &Tokens, text: &[u8]) -> Trigger {
        Trigger::new(
            tokens,
            &[text],
            |_, _| false,
            |free| {
                tokens.shared.ends.iter().for_each(|&end| free.disallow_token(end));
                false
            },
        )
    }

    /// A trigger without which the text may end.
    pub fn optional(tokens: &Tokens, text: &[u8]) -> Trigger {
        Trigger::new(tokens, &[text], |_, _| false, |_| true)
    }

    /// The beginnings of a grammar, which mean nothing between tags, and without which the text may end. `accepts` says
    /// whether a text and then another may begin what the grammar describes.
    pub fn starts(
        tokens: &Tokens,
        starts: Starts<'_>,
        tags: Tags<'_>,
        mut accepts: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Trigger {
        let texts: Vec<&[u8]> = starts.texts.iter().map(String::as_bytes).collect();
        let Trigger { about, tokens, seen, .. } =
            Trigger::new(tokens, &texts, &mut accepts, |_| true);
        let region = if tags.is_open { Region::Inside } else { Region::Start(0) };
        let first = starts.first.filter(|first| !tags.open.as_bytes().starts_with(&[*first]));
        let tags = [tags.open, tags.close].map(|tag| tag.as_bytes().to_vec());
        let goes_on = |id: &u32| {
            let text = spelling(&tokens, *id).trim_ascii_start();
            text.first().copied() == first && first.is_some() && !accepts(&[], text)
        };
        let refused = (0..tokens.len() as u32).filter(goes_on).collect();
        let about = About { tags: Some(tags), first, includes: true, refused, ..(*about).clone() };
        Trigger { about: Arc::new(about), tokens, seen, region }
    }

    /// `accepts` says whether a text of the trigger and then another may begin the grammar; `ends` adjusts the tokens of
    /// free text and says whether the trigger is optional.
    fn new(
        tokens: &Tokens,
        texts: &[&[u8]],
        mut accepts: impl FnMut(&[u8], &[u8]) -> bool,
        ends: impl FnOnce(&mut SimpleVob) -> bool,
    ) -> Trigger {
        let trie = tokens.trie();
        let (mut free, mut blanks) = (trie.alloc_token_set(), trie.alloc_token_set());
        let sought =
            |text: &&[u8]| Sought { text: text.to_vec(), completing: vec![Vec::new(); text.len()] };
        let mut texts: Vec<Sought> = texts.iter().map(sought).collect();
        for id in 0..tokens.len() as u32 {
            let bytes = spelling(tokens, id);
            if bytes.is_empty() {
                continue;
            }
            free.allow_token(id);
            if is_blank(bytes) && !trie.is_special_token(id) {
                blanks.allow_token(id);
            }
            for Sought { text, completing } in &mut texts {
                let mut is_refused = |rest: &[u8]| !is_blank(rest) && !accepts(text, rest);
                if find(bytes, text).is_some_and(|end| is_refused(&bytes[end..])) {
                    free.disallow_token(id);
                }
                for (k, completing) in completing.iter_mut().enumerate().skip(1) {
                    if bytes.strip_prefix(&text[k..]).is_some_and(&mut is_refused) {
                        completing.push(id);
                    }
                }
            }
        }
        let is_optional = ends(&mut free);
        let (free, blanks) = (Mask(free), Mask(blanks));
        let len = texts.iter().map(|sought| sought.text.len()).max().unwrap_or(1);
        let about = About {
            texts,
            len,
            first: None,
            includes: false,
            tags: None,
            is_optional,
            free,
            blanks,
            refused: Vec::new(),
        };
        let seen = Vec::with_capacity(len);
        Trigger { about: Arc::new(about), tokens: tokens.clone(), seen, region: Region::Watched }
    }

    /// The tokens that may come next.
    pub fn mask(&self) -> Mask {
        let mut mask = self.about.free.clone();
        if self.region == Region::Inside {
            return mask;
        }
        if self.region == Region::Start(0) {
            self.about.refused.iter().for_each(|&id| mask.0.disallow_token(id));
        }
        for Sought { text, completing } in &self.about.texts {
            for (k, completing) in completing.iter().enumerate().skip(1) {
                if self.seen.ends_with(&text[..k]) {
                    completing.iter().for_each(|&id| mask.0.disallow_token(id));
                }
            }
        }
        mask
    }

    /// Appends a token; returns how the grammar begins if the trigger has appeared.
    pub fn push(&mut self, token: u32) -> Option<Begun> {
        let (tokens, about) = (self.tokens.clone(), self.about.clone());
        let bytes = spelling(&tokens, token);
        for (at, &byte) in bytes.iter().enumerate() {
            if self.region == Region::Start(0) && about.first == Some(byte) {
                return Some(Begun { text: bytes[at..].to_vec(), blanks: 0 });
            }
            if let Some(found) = self.push_byte(byte) {
                let rest = &bytes[at + 1..];
                return Some(match (about.includes, is_blank(rest)) {
                    (false, _) => Begun { text: Vec::new(), blanks: BLANKS_MAX },
                    (true, true) => {
                        Begun { text: about.texts[found].text.clone(), blanks: BLANKS_MAX }
                    }
                    (true, false) => {
                        Begun { text: [&about.texts[found].text, rest].concat(), blanks: 0 }
                    }
                });
            }
        }
        None
    }

    /// Appends a byte; returns which text has appeared.
    fn push_byte(&mut self, byte: u8) -> Option<usize> {
        let about = self.about.clone();
        self.seen.push(byte);
        if let (Some([open, close]), Region::Start(_) | Region::Inside) = (&about.tags, self.region)
        {
            self.region = match self.region {
                Region::Start(0) if is_blank(&[byte]) && !open.starts_with(&[byte]) => {
                    Region::Start(0)
                }
                Region::Start(count) if open.get(count) != Some(&byte) => Region::Watched,
                Region::Start(count) if count + 1 < open.len() => Region::Start(count + 1),
                Region::Inside if self.seen.ends_with(close) => Region::Start(0),
                _ => Region::Inside,
            };
            let is_closed = self.region == Region::Start(0) && self.seen.ends_with(close);
            if is_closed {
                self.seen.clear();
            }
            if self.region == Region::Inside {
                self.keep(close.len());
                return None;
            }
        }
        let found = about.texts.iter().position(|sought| self.seen.ends_with(&sought.text));
        self.keep(about.len);
        found
    }

    /// Keeps what may be the beginning of a text of `len` bytes.
    fn keep(&mut self, len: usize) {
        let surplus = self.seen.len().saturating_sub(len - 1);
        self.seen.drain(..surplus);
    }

    /// Tokens of white space only.
    pub fn blanks(&self) -> &Mask {
        &self.about.blanks
    }

    /// Whether the text may end before the trigger.
    pub fn is_optional(&self) -> bool {
        self.about.is_optional
    }
}

/// The bytes of a token, those of a control token without its mark.
fn spelling(tokens: &Tokens, id: u32) -> &[u8] {
    let trie = tokens.trie();
    let bytes = trie.token(id);
    if trie.is_special_token(id) { &bytes[1..] } else { bytes }
}

/// Where the first `text` in `bytes` ends.
fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text).map(|at| at + text.len())
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| b" \t\r\n".contains(byte))
}
