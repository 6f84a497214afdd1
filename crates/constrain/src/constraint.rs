//! A constraint: a grammar, the text so far, and which tokens may come next.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::toktrie::InferenceCapabilities;
use llguidance::{Logger, Matcher, ParserFactory, TokenParser};

use crate::error::reason;
use crate::grammar::{Prepared, top_level};
use crate::readings::Readings;
use crate::schema::trials::{self, Trials};
use crate::trigger::{Starts, Tags, Trigger};
use crate::{Error, Grammar, Limits, Mask, Tokens, lark};

/// Stack of the thread that compiles a grammar: llguidance follows references between rules recursively.
const STACK_BYTES: usize = 128 << 20;

/// Follows a text token by token and says which tokens may come next.
///
/// Call [`mask`](Constraint::mask), choose a token from it, [`accept`](Constraint::accept) it, and stop once
/// [`is_complete`](Constraint::is_complete). A clone goes on independently from the same place and shares what the
/// lexer has computed, as the samples of one request should.
///
/// A mask allocates a bit per token, and the parser keeps a few hundred bytes per byte of text; nothing else is
/// allocated per token.
#[derive(Clone)]
pub struct Constraint {
    tokens: Tokens,
    readings: Readings,
    stage: Stage,
    /// The mask of this place, if it was computed.
    mask: Option<Mask>,
    /// See [`notes`](Constraint::notes).
    notes: Arc<[String]>,
}

#[derive(Clone)]
enum Stage {
    /// The text before the trigger is free.
    Waiting(Trigger),
    /// The trigger has appeared; so many tokens of white space may follow before the grammar begins.
    Gap { left: usize, trigger: Trigger },
    /// The grammar describes the text.
    Following,
    /// The text has ended.
    Ended,
}

impl Constraint {
    /// Compiles a grammar for a vocabulary. Nothing is accepted yet.
    ///
    /// # Errors
    /// The grammar is invalid, not supported, or exceeds the limits; the error says where.
    pub fn new(tokens: &Tokens, grammar: &Grammar, limits: Limits) -> Result<Constraint, Error> {
        let work = || {
            let prepared = grammar.prepare(tokens, &limits)?;
            compile(tokens, grammar, prepared, &limits)
        };
        let (readings, notes) = thread::scope(|scope| {
            let builder = thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
            let failed = |reason| Error::Grammar { what: grammar.what(), reason };
            let thread = builder
                .spawn_scoped(scope, work)
                .map_err(|error| failed(format!("no thread to compile it: {error}")))?;
            thread.join().unwrap_or_else(|_| Err(failed("it cannot be compiled".to_owned())))
        })?;
        let (stage, notes) = (Stage::Following, notes.into());
        Ok(Constraint { tokens: tokens.clone(), readings, stage, mask: None, notes })
    }

    /// What was left out of schemas in a Lark grammar that are followed as far as possible, and why, a line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Lets the grammar begin only after `text` has appeared, such as `</think>`. The text up to there is free but
    /// may not end. Two tokens of white space are allowed after it. An empty text changes nothing.
    #[must_use]
    pub fn after(self, text: &str) -> Constraint {
        self.triggered(text, Trigger::required)
    }

    /// Like [`after`](Constraint::after), but the text may also end before `text` has appeared, so the grammar may
    /// never begin: for answers that may contain a tool call.
    #[must_use]
    pub fn once(self, text: &str) -> Constraint {
        self.triggered(text, Trigger::optional)
    }

    /// Lets the grammar begin at the first of `starts`, which it describes as well, and which mean nothing between
    /// `tags`. The text up to there is free and may end. Two tokens of white space are allowed after a text of `starts`.
    #[must_use]
    pub fn once_outside(mut self, starts: Starts<'_>, tags: Tags<'_>) -> Constraint {
        let tokens = &self.tokens;
        let mut begun: HashMap<Vec<u8>, Readings> = HashMap::new();
        let accepts = |text: &[u8], rest: &[u8]| {
            let readings = begun.entry(text.to_vec()).or_insert_with(|| {
                let mut readings = self.readings.clone();
                // What cannot read the text accepts nothing behind it.
                let _ = readings.consume(&tokens.tokens_of(text));
                readings
            });
            readings.accepts(&tokens.tokens_of(rest))
        };
        self.stage = Stage::Waiting(Trigger::starts(tokens, starts, tags, accepts));
        self.mask = None;
        self
    }

    fn triggered(
        mut self,
        text: &str,
        trigger: impl FnOnce(&Tokens, &[u8]) -> Trigger,
    ) -> Constraint {
        if !text.is_empty() {
            self.stage = Stage::Waiting(trigger(&self.tokens, text.as_bytes()));
            self.mask = None;
        }
        self
    }

    /// The tokens that may come next. Tokens that end a text are among them exactly where the text may end, and alone
    /// where nothing else may follow.
    ///
    /// # Errors
    /// [`Error::Stuck`]: no token continues the text, or the limits per token are exceeded.
    pub fn mask(&mut self) -> Result<&Mask, Error> {
        if self.mask.is_none() {
            self.mask = Some(self.compute()?);
        }
        self.mask.as_ref().ok_or(Error::Stuck { reason: String::new() })
    }

    fn compute(&mut self) -> Result<Mask, Error> {
        match &self.stage {
            Stage::Waiting(trigger) => Ok(trigger.mask()),
            Stage::Gap { left, trigger } if *left > 0 => {
                let trigger = trigger.clone();
                let mut mask = self.grammar_mask()?;
                mask.0.or(&trigger.blanks().0);
                Ok(mask)
            }
            Stage::Gap { .. } | Stage::Following => self.grammar_mask(),
            Stage::Ended => Ok(Mask(self.tokens.trie().eos_token_set())),
        }
    }

    fn grammar_mask(&mut self) -> Result<Mask, Error> {
        let may_end = self.readings.may_end();
        match self.readings.mask() {
            Ok(bits) => Ok(Mask(bits)),
            // A vocabulary without tokens that end a text.
            Err(_) if may_end => {
                self.stage = Stage::Ended;
                Ok(Mask(self.tokens.trie().eos_token_set()))
            }
            Err(error) => Err(stuck(&error)),
        }
    }

    /// Appends a token to the text.
    ///
    /// # Errors
    /// [`Error::NotAllowed`] if the mask does not allow it; [`Error::Stuck`] if the limits per token are exceeded.
    pub fn accept(&mut self, token: u32) -> Result<(), Error> {
        if !self.mask()?.allows(token) {
            return Err(Error::NotAllowed { token });
        }
        self.mask = None;
        let is_end = self.tokens.shared.ends.contains(&token);
        match &mut self.stage {
            _ if is_end => self.stage = Stage::Ended,
            Stage::Waiting(trigger) => {
                if let Some(begun) = trigger.push(token) {
                    self.stage = Stage::Gap { left: begun.blanks, trigger: trigger.clone() };
                    self.read(&begun.text)?;
                }
            }
            Stage::Gap { left, trigger } if *left > 0 && trigger.blanks().allows(token) => {
                if self.readings.accepts(&[token]) {
                    self.follow(token)?;
                } else {
                    *left -= 1;
                }
            }
            _ => self.follow(token)?,
        }
        Ok(())
    }

    /// Lets the grammar read the text that it begins with.
    fn read(&mut self, text: &[u8]) -> Result<(), Error> {
        let tokens = self.tokens.tokens_of(text);
        self.readings.consume(&tokens).map_err(|error| stuck(&error))
    }

    /// Lets the grammar consume a token that it allows.
    fn follow(&mut self, token: u32) -> Result<(), Error> {
        self.stage = Stage::Following;
        self.readings.consume(&[token]).map_err(|error| stuck(&error))?;
        if self.tokens.shared.ends.is_empty() && self.may_end() {
            // Without a token that ends the text, only an empty mask does.
            self.mask()?;
        }
        Ok(())
    }

    /// Whether the text may end here.
    pub fn may_end(&mut self) -> bool {
        match &self.stage {
            Stage::Waiting(trigger) => trigger.is_optional(),
            Stage::Gap { .. } | Stage::Following => self.readings.may_end(),
            Stage::Ended => true,
        }
    }

    /// Whether the text is complete and nothing may follow.
    pub fn is_complete(&self) -> bool {
        match &self.stage {
            Stage::Waiting(_) => false,
            Stage::Gap { .. } | Stage::Following => self.readings.is_complete(),
            Stage::Ended => true,
        }
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

/// Compiles what was prepared; the notes say what was left out of schemas.
fn compile(
    tokens: &Tokens,
    grammar: &Grammar,
    mut prepared: Prepared,
    limits: &Limits,
) -> Result<(Readings, Vec<String>), Error> {
    let named = prepared.take_tokens();
    let factory = match named.is_empty() {
        true => &tokens.shared.factory,
        false => tokens.with_stand_ins()?,
    };
    let build = |grammar| build(factory, grammar, limits);
    let readings = |parser| Readings::new(Matcher::new(Ok(parser)), tokens, named);
    let built = build(prepared.top_level());
    let fails = |part| build(top_level(part)).err().map(|error| reason(&error));
    match (built, prepared) {
        (Ok(parser), Prepared::Lark(checked)) => Ok((readings(parser), checked.notes)),
        (Ok(parser), _) => Ok((readings(parser), Vec::new())),
        (Err(message), Prepared::Schema(schema)) => {
            Err(trials::locate(&schema, &reason(&message), &mut Trials::new(&fails)))
        }
        (Err(message), Prepared::Lark(checked)) => {
            let relaxed = lark::relax(&checked, &mut Trials::new(&fails))?;
            let (checked, built) = match relaxed {
                Some(relaxed) => {
                    let built = build(relaxed.top_level());
                    (relaxed, built)
                }
                None => (checked, Err(message)),
            };
            // Where each schema can be compiled, all of them together may be too large.
            let rest = built.is_err().then(|| lark::leave_out_counts(&checked)).flatten();
            let (checked, built) = match rest {
                Some(rest) => {
                    let built = build(rest.top_level());
                    (rest, built)
                }
                None => (checked, built),
            };
            let parser = built.map_err(|message| grammar.refused(&message))?;
            Ok((readings(parser), checked.notes))
        }
        (Err(message), Prepared::Text { .. }) => Err(grammar.refused(&message)),
    }
}

fn build(
    factory: &ParserFactory,
    grammar: TopLevelGrammar,
    limits: &Limits,
) -> Result<TokenParser, String> {
    let init = GrammarInit::Serialized(grammar);
    let (quiet, plain) = (Logger::new(0, 0), InferenceCapabilities::default());
    let parser = factory.create_parser_from_init_ext(init, quiet, plain, limits.parser());
    parser.map_err(|error| error.to_string())
}

fn stuck(message: &str) -> Error {
    // llguidance's name for it.
    let reason = match message.contains("NoExtensionBias") {
        true => "no text that it allows begins so".to_owned(),
        false => reason(message),
    };
    Error::Stuck { reason }
}
