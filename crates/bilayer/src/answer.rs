//! Answers in the making, as iterators of tokens.

use bilayer_engine::generate::{self, Generation};
use bilayer_engine::tools::{Parser, Reply};

use crate::{Error, Statistics, Stop, Token};

/// An answer in the making: an iterator of its tokens. After an error there are no more. Dropping it ends the answer.
pub struct Answer<'m> {
    generation: Generation<'m>,
    prompt_tokens: usize,
    /// Takes the answer apart; `None` outside conversations.
    parser: Option<Parser>,
    has_failed: bool,
}

impl<'m> Answer<'m> {
    pub(crate) fn new(
        generation: Generation<'m>,
        prompt_tokens: usize,
        parser: Option<Parser>,
    ) -> Answer<'m> {
        Answer { generation, prompt_tokens, parser, has_failed: false }
    }

    /// Tokens of the whole prompt, with those that the KV cache held already.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// The rest of an answer in a conversation, taken apart into reasoning, text and calls of functions; of another prompt,
    /// all is text. Marks that are control tokens are seen if the request has [tools](crate::Request::tools) or
    /// [shows them](crate::Request::show_control).
    ///
    /// # Errors
    /// As [`Answer::text`].
    pub fn reply(mut self) -> Result<Reply, Error> {
        let content = self.rest()?;
        Ok(self.parse(&content))
    }

    /// Takes apart a text that was put together from this answer's tokens, once it has ended, as [`Answer::reply`] does, with
    /// the text that an interrupted answer withheld. Later calls find text alone.
    pub fn parse(&mut self, text: &str) -> Reply {
        let text = text.to_owned() + &self.generation.finish();
        match self.parser.take() {
            Some(parser) => Reply::of(parser, &text, self.stop()),
            None => Reply { content: text, ..Reply::default() },
        }
    }

    /// The rest of the answer as one text, as the model wrote it.
    ///
    /// # Errors
    /// A device failed; the model's file was truncated or changed in place; the model computed a value that is not finite; no
    /// token is left to choose from.
    pub fn text(mut self) -> Result<String, Error> {
        self.rest()
    }

    fn rest(&mut self) -> Result<String, Error> {
        let mut text = String::new();
        for token in &mut *self {
            text += &token?.text;
        }
        Ok(text + &self.generation.finish())
    }

    /// Why the answer ended, once it has.
    pub fn stop(&self) -> Option<Stop> {
        self.generation.stop()
    }

    /// Times and counts so far.
    pub fn statistics(&self) -> Statistics {
        self.generation.statistics()
    }
}

impl Iterator for Answer<'_> {
    type Item = Result<Token, Error>;

    fn next(&mut self) -> Option<Result<Token, Error>> {
        if self.has_failed {
            return None;
        }
        let token = self.generation.next();
        self.has_failed = token.is_err();
        token.map_err(Error::from).transpose()
    }
}

/// Several answers in the making: an iterator of their tokens, each with the number of its request, from 0. After an error
/// there are no more.
pub struct Batch<'m> {
    batch: generate::Batch<'m>,
    has_failed: bool,
}

impl<'m> Batch<'m> {
    pub(crate) fn new(batch: generate::Batch<'m>) -> Batch<'m> {
        Batch { batch, has_failed: false }
    }

    /// Why the answer to a request ended, once it has.
    pub fn stop(&self, number: usize) -> Option<Stop> {
        self.batch.stop(number)
    }
}

impl Iterator for Batch<'_> {
    type Item = Result<(usize, Token), Error>;

    fn next(&mut self) -> Option<Result<(usize, Token), Error>> {
        if self.has_failed {
            return None;
        }
        let token = self.batch.next();
        self.has_failed = token.is_err();
        token.map_err(Error::from).transpose()
    }
}
