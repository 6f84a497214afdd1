//! The generation loop: prefill, sample, decode, stop.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use bilayer_graph::EXACT_ROWS_MAX;
use bilayer_text::StopStrings;

use crate::sampling::{Sampler, TokenLogprob};
use crate::session::{CacheError, Calls, OutputRows, Run, SequenceId, Session, Spent, Wanted};
use crate::{Cancel, Error, Model};
pub(crate) use reply::{Choice, Reply};
use speculate::{Draft, Drafter, Text, settle};

mod batch;
mod lines;
mod reply;
pub mod speculate;

pub use batch::Batch;

/// A generation request.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The prompt, at least one token.
    pub prompt: Cow<'a, [u32]>,
    /// Maximum tokens to generate; `None` continues until the text or the context ends.
    pub predict: Option<usize>,
    /// Time after the first token from which on the next end of a line ends the answer. A [`Batch`] has no such limit.
    pub predict_time: Option<Duration>,
    /// Spaces or tabs that each line but the first begins with. The first line with fewer ends the answer, which keeps
    /// them but not what follows them. 0 is no limit.
    pub indent: usize,
    /// Texts that end the answer and are not part of it.
    pub stops: StopStrings,
    /// Continue after end-of-text tokens.
    pub ignore_eos: bool,
    /// Emit control tokens as text.
    pub show_control: bool,
    /// Number of most likely tokens to report with each.
    pub logprobs: Option<usize>,
    /// The distribution that these are of.
    pub distribution: Distribution,
    /// Cancels the answer.
    pub cancel: Cancel,
    /// How strongly the answer has each adapter of a model whose adapters' strength can be set; `None` is as they were
    /// opened.
    pub lora: Option<Vec<f32>>,
    /// How the answer goes on when the context is full; without, it ends there. A [`Batch`] ends it in either case.
    pub shift: Option<Shift>,
}

/// The distribution that log-probabilities are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// The model's, before any sampler.
    #[default]
    Raw,
    /// The one that the token was drawn from, after all samplers.
    Sampled,
}

/// Which tokens leave a full context. Those that stay are computed again at their new positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// Number of first tokens that stay.
    pub keep: usize,
    /// Number of tokens after them that leave; `None` is half of them. An eighth of the context leaves at least, since the
    /// others are computed again each time.
    pub discard: Option<usize>,
}

/// The least share of a full context that leaves it is one of so many.
const LEAST_SHARE: usize = 8;

impl Shift {
    /// Of `held` tokens, how many stay at the beginning and how many leave after them.
    pub(crate) fn of(self, held: usize) -> (usize, usize) {
        let keep = self.keep.min(held.saturating_sub(4));
        let discard = self.discard.filter(|&discard| discard > 0).unwrap_or((held - keep) / 2);
        let most = (held - keep).max(1);
        (keep, discard.clamp((held / LEAST_SHARE).clamp(1, most), most))
    }
}

impl<'a> Request<'a> {
    /// Continues `prompt` until the text or the context ends.
    pub fn new(prompt: impl Into<Cow<'a, [u32]>>) -> Request<'a> {
        Request {
            prompt: prompt.into(),
            predict: None,
            predict_time: None,
            indent: 0,
            stops: StopStrings::default(),
            ignore_eos: false,
            show_control: false,
            logprobs: None,
            distribution: Distribution::Raw,
            cancel: Cancel::new(),
            lora: None,
            shift: None,
        }
    }
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The model ended the text, or the sampler's constraint is complete.
    EndOfText,
    /// One of the request's stop strings appeared.
    Text(usize),
    /// The requested number of tokens or time was reached, or a line is not indented enough.
    Length,
    /// The context is full.
    Context,
    /// The caller interrupted.
    Interrupted,
}

impl Stop {
    /// The name used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Stop::EndOfText => "end",
            Stop::Text(_) => "stop",
            Stop::Length => "length",
            Stop::Context => "context",
            Stop::Interrupted => "interrupted",
        }
    }
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Text that is final; may be empty, and may belong to earlier tokens too.
    pub text: String,
    /// Log-probabilities of the token and of the most likely ones, if requested.
    pub logprobs: Option<(TokenLogprob, Vec<TokenLogprob>)>,
}

/// Times and counts of one answer.
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Prompt tokens that were run.
    pub prompt_tokens: usize,
    /// Time to run them.
    pub prompt: Duration,
    /// From the start of the prompt to the first token.
    pub first_token: Duration,
    /// Tokens generated.
    pub generated: usize,
    /// Time from the selection of the first token to that of the last.
    pub generate: Duration,
    /// Device time, including a draft model's.
    pub spent: Spent,
    /// Steps after prefill.
    pub steps: usize,
    /// Draft tokens.
    pub drafted: usize,
    /// Accepted draft tokens.
    pub accepted: usize,
    /// Time spent on drafting.
    pub drafting: Duration,
    /// How often tokens left the full context.
    pub shifted: usize,
}

/// An answer in progress. Call [`Generation::next`] until it returns `None`.
///
/// With a drafter, the sequence contains unverified draft tokens until the answer is dropped.
pub struct Generation<'s> {
    session: &'s mut Session,
    sequence: SequenceId,
    reply: Reply<'s>,
    drafter: Option<&'s mut dyn Drafter>,
    /// The tokens of the last step: one of the answer, then draft tokens.
    run: Vec<u32>,
    draft: Draft,
    /// The model's rows after each of them.
    rows: OutputRows,
    /// The row from which the next token is selected; the draft tokens before it were accepted.
    at: usize,
    /// Number of tokens of the sequence that belong to the answer or precede it.
    held: usize,
    /// The last selected token, which may not have been run yet.
    pending: Option<u32>,
    statistics: Statistics,
    /// Whether the prompt was run. Its time may be zero by a coarse clock.
    is_prefilled: bool,
    began: Instant,
}

impl<'s> Generation<'s> {
    /// Prepares an answer in `sequence`; nothing runs yet.
    ///
    /// # Errors
    /// The prompt is empty or does not fit the context.
    pub fn new(
        model: &Model,
        session: &'s mut Session,
        sequence: SequenceId,
        sampler: Sampler,
        request: Request<'s>,
    ) -> Result<Generation<'s>, Error> {
        let needed = session.len(sequence) + request.prompt.len();
        let context = session.context();
        if request.prompt.is_empty() {
            return Err(empty_prompt());
        }
        if needed > context {
            return Err(CacheError::Context { needed, context }.into());
        }
        session.adapt(sequence, request.lora.as_deref())?;
        let began = session.clock().now();
        Ok(Generation {
            rows: rows(session, &sampler, &request, 1),
            reply: Reply::new(model, sampler, request),
            drafter: None,
            run: Vec::with_capacity(1),
            draft: Draft::default(),
            at: 0,
            held: session.len(sequence),
            session,
            sequence,
            pending: None,
            statistics: Statistics::default(),
            is_prefilled: false,
            began,
        })
    }

    /// Lets `drafter` draft tokens: up to one less than the session's limit of output rows.
    ///
    /// # Errors
    /// Those of [`Drafter::begin`].
    pub fn with_drafter(mut self, drafter: &'s mut dyn Drafter) -> Result<Generation<'s>, Error> {
        drafter.begin(self.reply.sampler.options())?;
        let most = self.most_rows();
        self.rows = rows(self.session, &self.reply.sampler, &self.reply.request, most);
        self.run.reserve(most);
        self.drafter = Some(drafter);
        settle(&mut self.drafter, Ok(()), self.session);
        Ok(self)
    }

    /// Runs the prompt; `each` receives the number of finished tokens. [`Generation::next`] does this automatically.
    ///
    /// # Errors
    /// Those of [`Session::prefill`].
    pub fn prefill(&mut self, each: &mut dyn FnMut(usize)) -> Result<(), Error> {
        let Generation { session, sequence, reply, rows, drafter, .. } = self;
        let Reply { request, sampler, stop, .. } = reply;
        self.began = session.clock().now();
        session.take_spent();
        for &token in session.tokens(*sequence) {
            sampler.accept(token);
        }
        let before = session.len(*sequence);
        let going = &mut |done: usize| {
            each(done);
            !request.cancel.is_cancelled()
        };
        let of = (&mut **session, *sequence, &*request.prompt);
        if !prefill(of, drafter, rows, going)? {
            *stop = Some(Stop::Interrupted);
        }
        for &token in request.prompt.iter() {
            sampler.accept(token);
        }
        self.held = session.len(*sequence);
        // Fewer than asked for after an interruption.
        self.statistics.prompt_tokens = self.held - before;
        self.statistics.prompt = self.session.clock().since(self.began);
        self.session.move_spent(&mut self.statistics.spent);
        self.is_prefilled = true;
        Ok(())
    }

    /// The next token, or `None` once the answer has ended.
    ///
    /// # Errors
    /// Those of [`Session::step`] and [`Sampler::sample`].
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator of results would go on after an error"
    )]
    pub fn next(&mut self) -> Result<Option<Token>, Error> {
        if !self.is_prefilled {
            self.prefill(&mut |_| ())?;
        }
        self.reply.stop = self.reply.stop.or_else(|| self.reply.ends_before_a_token());
        if self.reply.stop.is_some() {
            return Ok(None);
        }
        if let Some(token) = self.pending.take()
            && !self.was_drafted(token)
        {
            match self.reply.request.shift {
                Some(shift) if self.held + 1 >= self.session.context() => {
                    self.shift(shift, token)?;
                }
                _ => self.step(token)?,
            }
            if self.reply.stop.is_some() {
                return Ok(None);
            }
        }
        let draft = self.draft.get(self.at);
        let logits = self.reply.request.logprobs.map(|_| self.rows.logits(self.at));
        let room = self.session.context().saturating_sub(self.held);
        let room = room.max(usize::from(self.reply.request.shift.is_some()));
        let elapsed = match self.statistics.generated {
            0 => Duration::ZERO,
            _ => self.session.clock().since(self.began).saturating_sub(self.statistics.first_token),
        };
        let choice = Choice { row: self.rows.row(self.at), logits, draft, room, elapsed };
        let token = self.reply.choose(&choice)?;
        self.statistics.accepted += usize::from(draft.is_some_and(|draft| draft.token == token.id));
        self.pending = Some(token.id);
        self.count();
        Ok(Some(token))
    }

    /// Returns withheld text of an answer that was cancelled or abandoned. Any other answer emitted all of it with
    /// its last token.
    pub fn finish(&mut self) -> String {
        self.reply.finish()
    }

    /// Why the answer ended, if it has.
    pub fn stop(&self) -> Option<Stop> {
        self.reply.stop
    }

    /// Times and counts so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics.clone()
    }

    /// Whether the token equals the next draft token, so that the logits after it are known.
    fn was_drafted(&mut self, token: u32) -> bool {
        let was_drafted = self.draft.tokens().get(self.at) == Some(&token);
        self.at += usize::from(was_drafted);
        self.held += usize::from(was_drafted);
        was_drafted
    }

    /// Runs the token, and draft tokens after it.
    fn step(&mut self, token: u32) -> Result<(), Error> {
        self.go_back()?;
        let most = self.most_drafted();
        let Generation { session, sequence, drafter, run, draft, rows, held, .. } = self;
        draft.clear();
        let mut worked = Ok(());
        if let Some(drafter) = drafter.as_mut().filter(|_| most > 0) {
            let began = session.clock().now();
            let text = Text { held: session.tokens(*sequence), last: token };
            worked = drafter.draft(text, most, draft);
            self.statistics.drafting += session.clock().since(began);
            drafter.move_spent(&mut self.statistics.spent);
        }
        if !settle(drafter, worked, session) {
            draft.clear();
        }
        self.statistics.drafted += draft.tokens().len();
        run.clear();
        run.push(token);
        run.extend_from_slice(draft.tokens());
        let tokens = &run[..];
        let run = Run { sequence: *sequence, tokens, wanted: Wanted::Verified };
        let mut worked = Ok(());
        let mut draft_ahead = |is_busy: &mut dyn FnMut() -> bool| {
            worked = drafter.as_mut().map_or(Ok(()), |drafter| drafter.draft_ahead(is_busy));
        };
        rows.fill(session.step_beside(&[run], rows.reading, Some(&mut draft_ahead))?);
        if let (Some(drafter), Ok(())) = (drafter.as_mut(), &worked) {
            worked = drafter.see(*held, tokens, session.hidden());
        }
        settle(drafter, worked, session);
        *held += 1;
        self.at = 0;
        self.statistics.steps += 1;
        Ok(())
    }

    /// Removes the rejected draft tokens of the last step from the sequence. What lies behind the last usable checkpoint
    /// is run again, each token as if alone, since that is how it was run before.
    fn go_back(&mut self) -> Result<(), Error> {
        let most = self.most_rows().min(EXACT_ROWS_MAX);
        let Generation { session, sequence, run, rows, held, drafter, .. } = self;
        let mut there = session.resumable(*sequence, *held);
        run.clear();
        run.extend_from_slice(&session.tokens(*sequence)[there..*held]);
        session.truncate(*sequence, *held);
        for tokens in run.chunks(most) {
            let again = Run { sequence: *sequence, tokens, wanted: Wanted::Verified };
            session.step_reading(&[again], rows.reading)?;
            if let Some(of) = drafter {
                let worked = of.see(there, tokens, session.hidden());
                settle(drafter, worked, session);
            }
            there += tokens.len();
        }
        Ok(())
    }

    /// Runs the token in a context that tokens have left.
    fn shift(&mut self, shift: Shift, token: u32) -> Result<(), Error> {
        let Generation { session, sequence, reply, rows, draft, held, drafter, .. } = self;
        draft.clear();
        let (keep, discard) = shift.of(*held);
        let tokens = session.tokens(*sequence)[..*held].to_vec();
        // With states, a sequence may have to go back further than to what is kept.
        let there = session.truncate(*sequence, keep);
        let again = [&tokens[there..keep], &tokens[keep + discard..], &[token]].concat();
        let cancel = &reply.request.cancel;
        let going = &mut |_| !cancel.is_cancelled();
        let of = (&mut **session, *sequence, &again[..]);
        if !prefill(of, drafter, rows, going)? {
            reply.stop = Some(Stop::Interrupted);
        }
        *held = session.len(*sequence);
        self.at = 0;
        self.statistics.steps += 1;
        self.statistics.shifted += 1;
        Ok(())
    }

    /// Maximum output rows of a step.
    fn most_rows(&self) -> usize {
        let limits = self.session.limits();
        limits.outputs.min(limits.tokens)
    }

    /// Number of useful draft tokens after the next step's token.
    fn most_drafted(&self) -> usize {
        // A context that shifts does so at the same token as without drafts.
        let spare = usize::from(self.reply.request.shift.is_some());
        let of_context = self.session.context().saturating_sub(self.held + spare);
        let of_answer = match self.reply.request.predict {
            Some(most) => most.saturating_sub(self.reply.generated),
            None => usize::MAX,
        };
        self.most_rows().min(of_context).min(of_answer).saturating_sub(1)
    }

    fn count(&mut self) {
        let elapsed = self.session.clock().since(self.began);
        if self.statistics.generated == 0 {
            self.statistics.first_token = elapsed;
        }
        self.statistics.generated = self.reply.generated;
        self.statistics.generate = elapsed.saturating_sub(self.statistics.first_token);
        self.session.move_spent(&mut self.statistics.spent);
    }
}

impl Drop for Generation<'_> {
    /// Removes unused draft tokens from the sequence.
    fn drop(&mut self) {
        self.session.truncate(self.sequence, self.held);
    }
}

/// Appends tokens to a sequence, as [`Session::prefill`] does, and lets a drafter see them. Whether all were run.
fn prefill(
    (session, sequence, tokens): (&mut Session, SequenceId, &[u32]),
    drafter: &mut Option<&mut dyn Drafter>,
    rows: &mut OutputRows,
    each: &mut dyn FnMut(usize) -> bool,
) -> Result<bool, Error> {
    let start = session.len(sequence);
    let mut seen = Ok(());
    let mut see = |first: usize, hidden: &[f32], width: usize| {
        let part = &tokens[first..][..hidden.len() / width];
        if let (Some(drafter), Ok(())) = (drafter.as_mut(), &seen) {
            seen = drafter.see(start + first, part, hidden);
        }
    };
    let width = session.hidden_width();
    let hidden = &mut |first: usize, hidden: &[f32]| see(first, hidden, width);
    let mut calls = Calls { hidden: Some(hidden), ..Calls::each(each) };
    let row = session.prefill_calling(sequence, tokens, rows.reading, &mut calls)?;
    let is_whole = row.map(|row| rows.fill(row)).is_some();
    settle(drafter, seen, session);
    Ok(is_whole)
}

/// Runs `tokens` in a new sequence and passes their logits `[rows, vocab]` to `each`, as many rows at a time as the
/// session supports. Stops and returns false if `each` returns false.
///
/// # Errors
/// There are no tokens; those of [`Session::step`]; errors of `each`.
pub fn logits<E: From<Error>>(
    session: &mut Session,
    tokens: &[u32],
    each: &mut dyn FnMut(&[f32]) -> Result<bool, E>,
) -> Result<bool, E> {
    if tokens.is_empty() {
        return Err(empty_prompt().into());
    }
    let sequence = session.open().map_err(E::from)?;
    let rows = session.limits().outputs.min(session.limits().tokens);
    let goes_on = tokens.chunks(rows).try_fold(true, |goes_on, tokens| {
        let run = Run { sequence, tokens, wanted: Wanted::All };
        if goes_on { each(session.step(&[run]).map_err(E::from)?) } else { Ok(false) }
    });
    session.close(sequence);
    goes_on
}

/// Memory for the logits of a text of so many tokens, `[tokens, vocab]`, empty.
///
/// # Errors
/// The context or the memory is too small for them.
pub fn room_for_logits(session: &Session, needed: usize) -> Result<Vec<f32>, Error> {
    let context = session.context();
    if needed > context {
        return Err(CacheError::Context { needed, context }.into());
    }
    Ok(bilayer_graph::host_room(
        &format!("the logits of {needed} tokens"),
        needed * session.vocab(),
    )?)
}

/// The error for a prompt without tokens.
pub(crate) fn empty_prompt() -> Error {
    Error::setting("prompt", "empty", "at least one token")
}

/// Allocates `count` rows of the required kind.
fn rows(session: &Session, sampler: &Sampler, request: &Request<'_>, count: usize) -> OutputRows {
    match request.logprobs {
        Some(_) => OutputRows::all(session, count),
        None => OutputRows::new(session, sampler.needs(), count),
    }
}

#[cfg(test)]
mod tests {
    use super::Shift;

    #[test]
    fn an_eighth_of_a_full_context_leaves_it_at_least() {
        let of = |keep, discard| Shift { keep, discard }.of(800);
        assert_eq!(of(0, None), (0, 400));
        assert_eq!(of(100, Some(0)), (100, 350));
        for (discard, leave) in [(1, 100), (99, 100), (200, 200), (900, 800)] {
            assert_eq!(of(0, Some(discard)), (0, leave));
        }
        // Where little is left to leave, all of it may.
        assert_eq!(of(790, Some(1)), (790, 10));
        assert_eq!(of(900, Some(1)), (796, 4));
        assert_eq!(Shift { keep: 0, discard: Some(1) }.of(4), (0, 1));
    }
}
