//! The state of one answer: its reply, its draft tokens, its times and counts.

use std::time::{Duration, Instant};

use bilayer_graph::{Clock, PAGE_TOKENS};

use super::report::{PositionLogprobs, Served};
use super::request::{Item, Progress};
use crate::Error;
use crate::generate::speculate::{Draft, Drafter, DrafterSource, Text, settle};
use crate::generate::{Choice, Reply, Token};
use crate::sampling::{self, Row};
use crate::session::{CacheError, Reading, Session, Top, Wanted};

/// An answer in the making.
pub(super) struct Answer {
    pub reply: Reply<'static>,
    pub prompt_logprobs: Option<(usize, Vec<PositionLogprobs>)>,
    pub drafter: Option<Box<dyn Drafter>>,
    /// Generated tokens from which it may take a drafter: never after one has failed.
    pub drafts_from: usize,
    pub draft: Draft,
    pub served: Served,
    /// The session's clock.
    pub clock: Clock,
    pub arrived: Instant,
    pub started: Option<Instant>,
    pub first: Option<Instant>,
    /// When the last token was reported.
    pub last: Option<Instant>,
}

/// Rows that a step read for an item.
pub(super) struct ItemRows<'a> {
    pub data: &'a [f32],
    pub reading: Reading,
}

impl ItemRows<'_> {
    /// One of them.
    fn row(&self, at: usize) -> ItemRows<'_> {
        let width = self.reading.width;
        ItemRows { data: &self.data[at * width..][..width], ..*self }
    }
}

impl Answer {
    /// Number of best tokens of a row that suffice; `None` if all logits are needed.
    pub fn needs(&self) -> Option<usize> {
        let needs_all = self.prompt_logprobs.is_some() || self.reply.request.logprobs.is_some();
        if needs_all { None } else { self.reply.sampler.needs() }
    }

    /// Drafts up to `most` tokens after a text, with a drafter of its own.
    pub fn draft(
        &mut self,
        source: &mut dyn DrafterSource,
        text: Text<'_>,
        most: usize,
    ) -> Result<(), Error> {
        self.draft.clear();
        let of_answer = self.reply.request.predict.unwrap_or(usize::MAX);
        let most = most.min(of_answer.saturating_sub(self.reply.generated + 1));
        if most == 0 {
            return Ok(());
        }
        if !self.has_drafter(source)? {
            return Ok(());
        }
        let Some(drafter) = &mut self.drafter else { return Ok(()) };
        drafter.draft(text, most, &mut self.draft)?;
        drafter.move_spent(&mut self.served.spent);
        Ok(())
    }

    /// Lets the drafter see the tokens of an item that were run, if the session gives their hidden states.
    pub fn see(
        &mut self,
        source: Option<&mut (dyn DrafterSource + '_)>,
        item: &Item,
        tokens: &[u32],
        hidden: &[f32],
    ) -> Result<(), Error> {
        let Some(source) = source.filter(|_| !hidden.is_empty()) else { return Ok(()) };
        if self.has_drafter(source)?
            && let Some(drafter) = &mut self.drafter
        {
            drafter.see(item.start, &tokens[item.start..item.end], hidden)?;
            drafter.move_spent(&mut self.served.spent);
        }
        Ok(())
    }

    /// Takes a drafter from the source, if there is none yet. Whether there is one.
    fn has_drafter(&mut self, source: &mut dyn DrafterSource) -> Result<bool, Error> {
        if self.drafter.is_none()
            && self.reply.generated >= self.drafts_from
            && let Some(mut drafter) = source.drafter()?
        {
            drafter.begin(self.reply.sampler.options())?;
            self.drafter = Some(drafter);
        }
        Ok(self.drafter.is_some())
    }

    /// Takes over its drafter's warnings; after a failure it goes on without draft tokens. If the texts of other answers fill
    /// the draft model's KV cache, it gives up its part of that and tries again a page of tokens later.
    pub fn settle(&mut self, worked: Result<(), Error>, session: &mut Session) {
        if let Err(Error::Cache(CacheError::Full { .. })) = worked {
            settle(&mut self.drafter, Ok(()), session);
            self.drafter = None;
            self.drafts_from = self.reply.generated + PAGE_TOKENS;
        } else if !settle(&mut self.drafter, worked, session) {
            self.drafts_from = usize::MAX;
        }
    }

    /// Uses the rows of an item. Selects the next token if the item asks for it and one is wanted, and more as long
    /// as they are the draft tokens.
    pub fn advance(
        &mut self,
        item: &Item,
        tokens: &[u32],
        rows: &ItemRows<'_>,
    ) -> Result<Vec<Token>, Error> {
        if let Some((top, found)) = &mut self.prompt_logprobs {
            // After a preemption the prompt is computed again.
            found.truncate(item.start);
            for (row, at) in rows.data.chunks_exact(rows.reading.width).zip(item.start..) {
                if let Some(&next) = tokens.get(at + 1) {
                    found.push(sampling::logprobs(row, next, *top));
                }
            }
        }
        let mut selected = Vec::new();
        if !item.selects || self.reply.ends_before_a_token().is_some() {
            return Ok(selected);
        }
        let drafted = match item.wanted {
            Wanted::Verified => item.end - item.start - 1,
            _ => 0,
        };
        let drafted = drafted.min(self.draft.tokens().len());
        self.served.drafted += drafted;
        self.served.drafts += usize::from(drafted > 0);
        let first = rows.data.len() / rows.reading.width - 1 - drafted;
        for at in 0..=drafted {
            let token = self.select(at, &rows.row(first + at))?;
            let is_accepted = self.draft.tokens().get(at) == Some(&token.id) && at < drafted;
            selected.push(token);
            if !is_accepted {
                break;
            }
            self.served.accepted += 1;
            if self.reply.stop.is_some() {
                break;
            }
        }
        self.draft.clear();
        Ok(selected)
    }

    /// Selects the token of a row, at which draft token `at` is proposed if there is one.
    fn select(&mut self, at: usize, row: &ItemRows<'_>) -> Result<Token, Error> {
        let best: Vec<(u32, f32)>;
        let found = match row.reading.top_k {
            Some(_) => {
                // The step may have found more, for another request.
                let needs = self.reply.sampler.needs().unwrap_or(usize::MAX);
                best = Top::new(row.reading, row.data).row(0).take(needs).collect();
                Row::Best(&best)
            }
            None => Row::Logits(row.data),
        };
        // Log-probabilities are of all tokens.
        let logits = row.reading.top_k.is_none().then_some(row.data);
        let draft = self.draft.get(at);
        let now = self.clock.now();
        let elapsed =
            self.first.map_or(Duration::ZERO, |first| now.saturating_duration_since(first));
        let choice = Choice { row: found, logits, draft, room: usize::MAX, elapsed };
        self.reply.choose(&choice)
    }

    /// Notes how far it came: `held` tokens are in the cache.
    pub fn note(&mut self, progress: &Progress, held: usize) {
        self.served.cached = progress.cached;
        self.served.preempted = progress.preempted;
        self.served.slot = progress.slot;
        let processed = held.min(self.served.prompt);
        self.served.processed = match self.reply.generated {
            0 => processed,
            // The prompt was computed, even if parts of it left a full context since.
            _ => self.served.prompt,
        };
        self.time();
    }

    /// Time since the token before, of a token that is reported now.
    pub fn gap(&mut self) -> Option<Duration> {
        let now = self.clock.now();
        self.last.replace(now).map(|last| now - last)
    }

    /// Notes the time of the token that was just selected.
    fn time(&mut self) {
        let now = self.clock.now();
        let started = self.started.unwrap_or(now);
        self.served.queued = started.saturating_duration_since(self.arrived);
        self.served.generated = self.reply.generated;
        if self.reply.generated == 0 {
            self.served.prefill = now - started;
            return;
        }
        if self.first.is_none() {
            self.first = Some(now);
            self.served.prefill = now - started;
        }
        self.served.decode = now - self.first.unwrap_or(now);
    }
}
