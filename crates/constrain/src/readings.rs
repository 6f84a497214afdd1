//! The parsers that follow a text: several where a grammar with tokens can read a token as text, too.
//!
//! llguidance gives up the text wherever a rule names the token. So such grammars name stand-ins, which no text has: a
//! token is read as its stand-in by one parser and as its text by another.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;

use crate::Tokens;

/// Most parsers. Of more, those that allow the same tokens next count as one, and then the first are kept. That may cost
/// texts that the grammar allows, and never allows others.
const READINGS_MAX: usize = 8;

/// The ways in which a text can be read.
#[derive(Clone)]
pub struct Readings {
    parsers: Vec<Matcher>,
    /// For grammars that name tokens.
    names: Option<Arc<Names>>,
}

/// The tokens that a grammar names.
struct Names {
    named: Vec<u32>,
    /// All other tokens, except those that end a text.
    others: SimpleVob,
}

impl Readings {
    /// A parser at the beginning of a text, for a grammar that names tokens.
    pub fn new(parser: Matcher, tokens: &Tokens, named: Vec<u32>) -> Readings {
        let names = (!named.is_empty()).then(|| {
            let trie = tokens.trie();
            let mut others = trie.alloc_token_set();
            let is_other = |id: &u32| {
                let is_used = !trie.token(*id).is_empty();
                is_used && !named.contains(id) && !tokens.shared.ends.contains(id)
            };
            (0..tokens.len() as u32).filter(is_other).for_each(|id| others.allow_token(id));
            Arc::new(Names { named, others })
        });
        Readings { parsers: vec![parser], names }
    }

    /// The tokens that may come next.
    ///
    /// # Errors
    /// No token may, or the limits are exceeded.
    pub fn mask(&mut self) -> Result<SimpleVob, String> {
        let (mut all, mut failed) = (None::<SimpleVob>, String::new());
        for parser in &mut self.parsers {
            let mask = match (parser.compute_mask_or_eos(), &self.names) {
                (Ok(mask), None) => mask,
                (Ok(mask), Some(names)) => names.meant(&mask),
                (Err(error), _) => {
                    failed = error.to_string();
                    continue;
                }
            };
            match &mut all {
                Some(all) => all.or(&mask),
                all => *all = Some(mask),
            }
        }
        all.ok_or(failed)
    }

    /// Appends tokens to the text.
    ///
    /// # Errors
    /// They are not allowed, or the limits are exceeded.
    pub fn consume(&mut self, tokens: &[u32]) -> Result<(), String> {
        let (Some(names), parsers) = (self.names.clone(), &mut self.parsers) else {
            let consumed = self.parsers.iter_mut().try_for_each(|one| one.consume_tokens(tokens));
            return consumed.map_err(|error| error.to_string());
        };
        for &token in tokens {
            let (mut next, mut failed) = (Vec::new(), String::new());
            for mut parser in parsers.drain(..) {
                let ids = names.stand_in(token).into_iter().chain([token]);
                let ids: Vec<u32> = ids.filter(|&id| reads(&mut parser, &[id])).collect();
                let copies = std::iter::repeat_n(parser, ids.len());
                for (mut parser, id) in copies.zip(ids) {
                    match parser.consume_token(id) {
                        Ok(()) => next.push(parser),
                        Err(error) => failed = error.to_string(),
                    }
                }
            }
            if next.is_empty() {
                return Err(failed);
            }
            *parsers = bounded(next);
        }
        Ok(())
    }

    /// Whether these tokens may come next.
    pub fn accepts(&mut self, tokens: &[u32]) -> bool {
        match (&self.names, &mut self.parsers[..]) {
            (None, [parser]) => reads(parser, tokens),
            _ => self.clone().consume(tokens).is_ok(),
        }
    }

    /// Whether the text may end here.
    pub fn may_end(&mut self) -> bool {
        let may_end = |one: &mut Matcher| is_complete(one) || one.is_accepting().unwrap_or(false);
        self.parsers.iter_mut().any(may_end)
    }

    /// Whether the text is complete and nothing may follow.
    pub fn is_complete(&self) -> bool {
        self.parsers.iter().any(is_complete) && self.parsers.iter().all(Matcher::is_stopped)
    }
}

impl Names {
    /// What a parser reads in place of a token, if a grammar can name the token.
    fn stand_in(&self, token: u32) -> Option<u32> {
        let is_other = || self.others.is_allowed(token).then_some(self.named.len());
        let at = self.named.iter().position(|&id| id == token).or_else(is_other);
        at.map(|at| self.first() + at as u32)
    }

    /// The first stand-in.
    fn first(&self) -> u32 {
        self.others.len() as u32
    }

    /// The tokens that a mask with stand-ins means.
    fn meant(&self, mask: &SimpleVob) -> SimpleVob {
        let mut meant = match mask.is_allowed(self.first() + self.named.len() as u32) {
            true => self.others.clone(),
            false => SimpleVob::alloc_with_capacity(self.others.len(), self.others.len() + 1),
        };
        let is_text = |id: &u32| *id < self.first();
        mask.iter().take_while(is_text).for_each(|id| meant.allow_token(id));
        for (stand_in, &id) in (self.first()..).zip(&self.named) {
            if mask.is_allowed(stand_in) {
                meant.allow_token(id);
            }
        }
        meant
    }
}

fn reads(parser: &mut Matcher, tokens: &[u32]) -> bool {
    parser.validate_tokens(tokens).is_ok_and(|taken| taken == tokens.len())
}

fn is_complete(parser: &Matcher) -> bool {
    let reason = parser.stop_reason();
    reason != StopReason::NotStopped && reason.is_ok()
}

/// As many parsers as are followed.
fn bounded(mut parsers: Vec<Matcher>) -> Vec<Matcher> {
    if parsers.len() > READINGS_MAX {
        let mut masks = Vec::with_capacity(parsers.len());
        parsers.retain_mut(|parser| {
            let mask = parser.compute_mask_or_eos().ok().filter(|mask| !masks.contains(mask));
            let is_new = mask.is_some();
            masks.extend(mask);
            is_new
        });
        parsers.truncate(READINGS_MAX);
    }
    parsers
}
