//! Speculative decoding: a drafter proposes tokens, and one step of the model verifies all of them.
//!
//! A step of few tokens spends its time on reading the weights, so verifying several draft tokens takes hardly longer
//! than generating one token. Drafting does not change the answer: greedy answers are identical with and without draft
//! tokens, and sampled ones have the same distribution ([`DraftToken`]).
//!
//! This requires that the model computes the same logits for a token alone and among others. The step that verifies
//! draft tokens requests it ([`Wanted::Verified`](crate::session::Wanted::Verified)). On the CPU it holds bit for bit
//! for up to [`CHECKED_ROWS`] tokens per step. Longer drafts may select the other of two nearly equally likely tokens.
//!
//! A drafter may use any method, with one restriction: whether it drafts a token, and how many follow, must not depend
//! on random numbers except through the preceding tokens. If tokens were discarded because of their own value, they
//! would be too rare in the answers.

use std::ops::DerefMut;

use bilayer_settings::Setting;

use crate::Error;
use crate::sampling::{Candidate, DraftToken, Options};
use crate::session::{Session, Spent, Warning};

mod drafts;
mod lookup;
mod model;
mod mtp;
mod proposer;
mod weigh;

pub use drafts::{DraftSettings, Drafted, Drafts, Source};
pub use lookup::Lookup;
pub use model::DraftModel;
pub use mtp::MtpDrafter;
pub use weigh::{Acceptance, Weighed, weigh};

/// Largest [`Bounds::draft_max`] and [`Bounds::draft_min`].
pub const DRAFT_MAX: u32 = 64;

/// Maximum tokens of a step for which the CPU computes each row with the bits that it would have alone: the answer's
/// last token and the draft tokens after it.
pub const CHECKED_ROWS: usize = bilayer_graph::EXACT_ROWS_MAX;

/// Proposes draft tokens. After an error of any method but [`Drafter::begin`] the answer goes on without draft tokens, with a
/// [`Warning`] of the model's session. Where several answers run, one whose drafter finds the KV cache of its own model full
/// takes another drafter later, without a warning.
pub trait Drafter: Send {
    /// Starts an answer whose tokens are selected by `options`.
    ///
    /// # Errors
    /// The drafter does not support the options.
    fn begin(&mut self, options: &Options) -> Result<(), Error>;

    /// Appends up to `most` draft tokens after `text` to an empty draft; it may leave it empty.
    ///
    /// # Errors
    /// Those of the drafter's own model.
    fn draft(&mut self, text: Text<'_>, most: usize, draft: &mut Draft) -> Result<(), Error>;

    /// Receives what the model's session has just computed, if its purpose is
    /// [`Purpose::WithHidden`](crate::session::Purpose::WithHidden): the tokens from position `start` on, which replace
    /// those that stood there, and their hidden states `[tokens, width]`.
    ///
    /// # Errors
    /// Those of [`Drafter::draft`].
    fn see(&mut self, start: usize, tokens: &[u32], hidden: &[f32]) -> Result<(), Error> {
        let _ = (start, tokens, hidden);
        Ok(())
    }

    /// Drafts what follows if all of the last draft is accepted, on devices that the model does not use, while
    /// `is_busy` says that the model's host still verifies it. The next [`Drafter::draft`] uses it if that came true.
    ///
    /// # Errors
    /// Those of [`Drafter::draft`].
    fn draft_ahead(&mut self, is_busy: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        let _ = is_busy;
        Ok(())
    }

    /// Adds the time spent in its own steps since the last call to `all`.
    fn move_spent(&mut self, all: &mut Spent) {
        let _ = all;
    }

    /// Warnings of its own session since the last call. They are taken over by the model's session, as [`Warning::Draft`].
    fn take_warnings(&mut self) -> Vec<Warning> {
        Vec::new()
    }
}

/// Takes over a drafter's warnings. A drafter that did not work is dropped, with a warning: the answer needs no draft tokens.
/// Whether it worked.
pub(crate) fn settle<D>(
    drafter: &mut Option<D>,
    worked: Result<(), Error>,
    session: &mut Session,
) -> bool
where
    D: DerefMut<Target: Drafter>,
{
    let warnings = drafter.as_mut().map(|drafter| drafter.take_warnings());
    for warning in warnings.into_iter().flatten() {
        session.warn(Warning::Draft(Box::new(warning)));
    }
    let Err(error) = worked else { return true };
    session.warn(Warning::NotDrafted { reason: error.to_string() });
    *drafter = None;
    false
}

/// Makes a drafter for each of several answers.
pub trait DrafterSource: Send {
    /// A drafter for one more answer; `None` if there is no room for its text.
    ///
    /// # Errors
    /// Those of the drafter's own model.
    fn drafter(&mut self) -> Result<Option<Box<dyn Drafter>>, Error>;
}

/// Limits on drafting; names are the command line's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Maximum draft tokens.
    pub draft_max: usize,
    /// Minimum draft tokens: prompt lookup ignores shorter matches, and a draft model proposes at least this many
    /// regardless of their probability.
    pub draft_min: usize,
    /// A draft model stops when its best token is less probable than this.
    pub draft_p_min: f32,
    /// Whether a draft model on a GPU drafts while the CPU computes for the model.
    pub draft_ahead: bool,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { draft_max: CHECKED_ROWS - 1, draft_min: 0, draft_p_min: 0.75, draft_ahead: true }
    }
}

impl Bounds {
    /// Checks that all are in range.
    ///
    /// # Errors
    /// [`Error::Setting`] for the first that is not.
    pub fn check(&self) -> Result<(), Error> {
        let counts =
            [(Setting::DraftMax, self.draft_max, 1), (Setting::DraftMin, self.draft_min, 0)];
        for (setting, found, low) in counts {
            if !(low..=DRAFT_MAX as usize).contains(&found) {
                let expected = format!("between {low} and {DRAFT_MAX}");
                return Err(Error::setting(setting, found, expected));
            }
        }
        if !(0.0..=1.0).contains(&self.draft_p_min) {
            return Err(Error::setting(Setting::DraftPMin, self.draft_p_min, "between 0 and 1"));
        }
        Ok(())
    }
}

/// A text whose last token is not in its sequence yet.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// All tokens but the last.
    pub held: &'a [u32],
    /// The last one.
    pub last: u32,
}

impl Text<'_> {
    /// Number of its tokens, one at least.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.held.len() + 1
    }

    /// The token at index `at`, which is below the length.
    pub fn get(&self, at: usize) -> u32 {
        *self.held.get(at).unwrap_or(&self.last)
    }

    /// The tokens from `from` on.
    pub fn from(&self, from: usize) -> impl Iterator<Item = u32> + '_ {
        (from..self.len()).map(|at| self.get(at))
    }
}

/// Draft tokens, in order.
#[derive(Debug, Default)]
pub struct Draft {
    tokens: Vec<u32>,
    /// Distributions of all draft tokens, concatenated.
    chances: Vec<Candidate>,
    /// End of each one's distribution.
    ends: Vec<usize>,
}

impl Draft {
    /// Adds a token without a distribution.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.ends.push(self.chances.len());
    }

    /// Adds a token drawn from a distribution.
    pub fn push_drawn(&mut self, token: u32, chances: &[Candidate]) {
        let start = self.chances.len();
        // A certain token needs no distribution.
        if chances.len() > 1 {
            self.chances.extend_from_slice(chances);
            self.chances[start..].sort_unstable_by_key(|c| c.id);
        }
        self.push(token);
    }

    /// The tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// A draft token with its distribution, if it exists.
    pub fn get(&self, at: usize) -> Option<DraftToken<'_>> {
        let start = if at == 0 { 0 } else { *self.ends.get(at - 1)? };
        let chances = &self.chances[start..*self.ends.get(at)?];
        Some(DraftToken { token: self.tokens[at], chances })
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.chances.clear();
        self.ends.clear();
    }
}
