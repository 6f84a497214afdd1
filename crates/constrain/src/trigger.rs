//! A text after which a grammar begins: found in free text, also across tokens.

use std::sync::Arc;

use llguidance::toktrie::SimpleVob;

use crate::{Mask, Tokens};

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

/// Watches free text for its trigger.
#[derive(Clone)]
pub struct Trigger {
    about: Arc<About>,
    tokens: Tokens,
    /// The last bytes of the text, fewer than the text that is looked for.
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
struct About {
    text: Vec<u8>,
    /// The tags around text that is not watched.
    tags: Option<[Vec<u8>; 2]>,
    is_optional: bool,
    /// The tokens of free text.
    free: Mask,
    /// Tokens of white space only.
    blanks: Mask,
    /// `completing[k]`: tokens that complete the trigger after its first `k` bytes and go on with more than white
    /// space, which would be text before the grammar.
    completing: Vec<Vec<u32>>,
}

impl Trigger {
    /// A trigger that must appear before the text ends.
    pub fn required(tokens: &Tokens, text: &[u8]) -> Trigger {
        Trigger::new(tokens, text, |free| {
            tokens.shared.ends.iter().for_each(|&end| free.disallow_token(end));
            false
        })
    }

    /// A trigger without which the text may end.
    pub fn optional(tokens: &Tokens, text: &[u8]) -> Trigger {
        Trigger::new(tokens, text, |_| true)
    }

    /// `ends` adjusts the tokens of free text and says whether the trigger is optional.
    fn new(tokens: &Tokens, text: &[u8], ends: impl FnOnce(&mut SimpleVob) -> bool) -> Trigger {
        let trie = tokens.trie();
        let (mut free, mut blanks) = (trie.alloc_token_set(), trie.alloc_token_set());
        let mut completing = vec![Vec::new(); text.len()];
        for id in 0..tokens.len() as u32 {
            let bytes = spelling(tokens, id);
            if bytes.is_empty() {
                continue;
            }
            free.allow_token(id);
            if is_blank(bytes) && !trie.is_special_token(id) {
                blanks.allow_token(id);
            }
            if find(bytes, text).is_some_and(|end| !is_blank(&bytes[end..])) {
                free.disallow_token(id);
            }
            for (k, completing) in completing.iter_mut().enumerate().skip(1) {
                if bytes.strip_prefix(&text[k..]).is_some_and(|rest| !is_blank(rest)) {
                    completing.push(id);
                }
            }
        }
        let is_optional = ends(&mut free);
        let (free, blanks) = (Mask(free), Mask(blanks));
        let about =
            About { text: text.to_vec(), tags: None, is_optional, free, blanks, completing };
        let seen = Vec::with_capacity(text.len());
        Trigger { about: Arc::new(about), tokens: tokens.clone(), seen, region: Region::Watched }
    }

    /// The trigger, which means nothing between tags.
    pub fn outside(self, tags: Tags<'_>) -> Trigger {
        let region = if tags.is_open { Region::Inside } else { Region::Start(0) };
        let About { text, is_optional, free, blanks, completing, .. } = &*self.about;
        let about = About {
            text: text.clone(),
            tags: Some([tags.open, tags.close].map(|tag| tag.as_bytes().to_vec())),
            is_optional: *is_optional,
            free: free.clone(),
            blanks: blanks.clone(),
            completing: completing.clone(),
        };
        Trigger { about: Arc::new(about), region, ..self }
    }

    /// The tokens that may come next.
    pub fn mask(&self) -> Mask {
        let mut mask = self.about.free.clone();
        if self.region == Region::Inside {
            return mask;
        }
        for k in 1..=self.seen.len() {
            if self.seen.ends_with(&self.about.text[..k]) {
                self.about.completing[k].iter().for_each(|&id| mask.0.disallow_token(id));
            }
        }
        mask
    }

    /// Appends a token; true if the trigger has appeared.
    pub fn push(&mut self, token: u32) -> bool {
        let tokens = self.tokens.clone();
        spelling(&tokens, token).iter().any(|&byte| self.push_byte(byte))
    }

    fn push_byte(&mut self, byte: u8) -> bool {
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
                return false;
            }
        }
        let is_found = self.seen.ends_with(&about.text);
        self.keep(about.text.len());
        is_found
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
