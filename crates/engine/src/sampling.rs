//! From logits to a token: a chain of pure samplers over a list of candidates, seeded.
//!
//! Logit bias comes first and the draw last. [`Samplers`] is the order of the others; llama.cpp's default is penalties, DRY,
//! top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature, with infill before the temperature and adaptive-p after it
//! if they are on. With mirostat its own truncation, before the draw, replaces all others. Temperature 0 takes the most
//! likely of the candidates at its place in the order, the lowest id where several tie, and truncations before it run only
//! with infill.
//!
//! A [`Constraint`] comes before all of them: tokens that its grammar forbids are no candidates, with any options and
//! whether or not they were drafted.
//!
//! Random numbers are the first words of a ChaCha8 stream keyed by the seed (little-endian, zero-padded), one
//! 32-bit word per draw, so a seed gives the same text with every release.

use std::fmt;
use std::sync::Arc;

use bilayer_constrain::Constraint;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

mod adaptive_p;
mod best;
mod breakers;
mod draft_token;
mod draw;
mod dry;
mod greedy;
mod infill;
mod logit_bias;
mod logprobs;
mod min_p;
mod mirostat;
mod options;
mod parameter;
mod penalties;
mod samplers;
mod temperature;
mod top_k;
mod top_n_sigma;
mod top_p;
mod typical;
mod xtc;

use best::{BEST_MAX, best};
pub use breakers::Breakers;
pub use draft_token::DraftToken;
pub use infill::Infill;
pub use logprobs::{TokenLogprob, logprobs};
pub use options::{BREAKERS, Dry, Mirostat, Options, OptionsError, Xtc};
pub use parameter::{Field, Parameter, parameters};
pub use samplers::Samplers;

/// A candidate token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its unnormalized log-probability.
    pub logit: f32,
    /// Its probability, set by normalization.
    pub p: f32,
}

/// The available logits for the next token.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// All logits, `[vocab]`, finite.
    Logits(&'a [f32]),
    /// Only the best tokens, with their logits. If there are at least [`Sampler::needs`], the result is identical.
    Best(&'a [(u32, f32)]),
}

/// Errors of sampling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Every candidate's logit is minus infinity.
    #[error("no token is left to choose from: the logit biases exclude all")]
    NothingLeft,
    /// The constraint cannot be followed any further.
    #[error(transparent)]
    Constraint(#[from] bilayer_constrain::Error),
}

/// The samplers in their default order; a new one is a file with a [`Link`] and a line here.
const LINKS: &[Link] = &[
    logit_bias::LINK,
    penalties::LINK,
    dry::LINK,
    top_n_sigma::LINK,
    top_k::LINK,
    typical::LINK,
    top_p::LINK,
    min_p::LINK,
    xtc::LINK,
    infill::LINK,
    temperature::LINK,
    adaptive_p::LINK,
    mirostat::LINK,
];

/// A sampler: a link of the chain.
struct Link {
    /// Its name, with `_` between words.
    name: &'static str,
    /// How a list of samplers has it.
    listed: Listed,
    /// Its other names in lists.
    aliases: &'static [&'static str],
    phase: Phase,
    /// Its parameters that are numbers.
    parameters: &'static [Parameter],
    /// Fails on the first of its options that is outside its range for a vocabulary of so many tokens.
    check: fn(&Options, usize) -> Result<(), OptionsError>,
    /// Whether the options make it do anything.
    is_on: fn(&Options) -> bool,
    /// Which tokens it needs.
    bound: fn(&Options) -> Bound,
    apply: fn(&mut Chain<'_>),
}

impl Link {
    /// Its letter in lists.
    fn letter(&self) -> Option<char> {
        match self.listed {
            Listed::Never => None,
            Listed::Usual(letter) | Listed::Asked(letter) => Some(letter),
        }
    }
}

impl PartialEq for Link {
    fn eq(&self, other: &Link) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// How a list of samplers has a sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    /// Not at all: it runs with every list.
    Never,
    /// By its name or this letter; it is in the default list.
    Usual(char),
    /// By its name or this letter; it is not in the default list. Without a list it runs if it is on.
    Asked(char),
}

/// What a sampler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Changes the logits of tokens that it finds by [`find`].
    Logits,
    /// Drops some of the candidates, unless mirostat is on or the choice is greedy.
    Truncation,
    /// Changes all logits, or takes the most likely candidate.
    Temperature,
    /// Moves the text towards a target; after all others.
    Target,
}

/// The tokens that a sampler needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    /// It lowers the logits of at most so many tokens and examines no others.
    Lowers(usize),
    /// It keeps so many of the most likely ones and examines no others.
    Keeps(usize),
    /// It needs all.
    All,
}

/// What samplers work on.
struct Chain<'a> {
    options: &'a Options,
    candidates: &'a mut Vec<Candidate>,
    /// Tokens accepted so far, oldest first.
    history: &'a [u32],
    dry: &'a mut dry::State,
    adaptive: &'a mut adaptive_p::State,
    rng: &'a mut ChaCha8Rng,
    mirostat_mu: f32,
    /// The token that [`infill`] ends a text with, unless it is forbidden.
    ending: Option<u32>,
    /// Whether the candidates are by rising id.
    is_by_id: bool,
}

impl Chain<'_> {
    /// Applies samplers.
    fn run(&mut self, links: &[&Link]) -> Result<(), Error> {
        let mut may_be_excluded = true;
        for link in links {
            if link.phase == Phase::Logits {
                if !self.is_by_id {
                    self.sort_by_id();
                }
                may_be_excluded = true;
            } else {
                if std::mem::take(&mut may_be_excluded) {
                    self.drop_excluded()?;
                }
                self.is_by_id = false;
            }
            (link.apply)(self);
        }
        if may_be_excluded { self.drop_excluded() } else { Ok(()) }
    }

    /// Prepares for samplers that find tokens.
    fn sort_by_id(&mut self) {
        self.candidates.sort_unstable_by_key(|c| c.id);
        self.candidates.iter_mut().for_each(|c| c.p = 0.0);
        self.is_by_id = true;
    }

    /// Drops the candidates whose logit is minus infinity. Sums above all numbers become the highest number.
    fn drop_excluded(&mut self) -> Result<(), Error> {
        self.candidates.retain_mut(|c| {
            if c.logit == f32::INFINITY {
                c.logit = f32::MAX;
            }
            c.logit > f32::NEG_INFINITY
        });
        if self.candidates.is_empty() { Err(Error::NothingLeft) } else { Ok(()) }
    }
}

/// A sampler chain with its state. Memory for the logits is taken when the first token is selected.
#[derive(Debug)]
pub struct Sampler {
    options: Options,
    /// The samplers that run, in order.
    links: Vec<&'static Link>,
    /// [`Options::needs`].
    needs: Option<usize>,
    rng: ChaCha8Rng,
    candidates: Vec<Candidate>,
    /// Tokens accepted so far, oldest first.
    history: Vec<u32>,
    /// Tokens that the history keeps.
    context: usize,
    dry: dry::State,
    adaptive: adaptive_p::State,
    mirostat_mu: f32,
    constraint: Option<Constraint>,
}

impl Sampler {
    /// A sampler for a vocabulary of `vocab` tokens and at most `context` accepted tokens.
    ///
    /// # Errors
    /// An option outside its range.
    pub fn new(options: Options, vocab: usize, context: usize) -> Result<Sampler, OptionsError> {
        options.check(vocab)?;
        let mut key = [0u8; 32];
        key[..8].copy_from_slice(&options.seed.to_le_bytes());
        Ok(Sampler {
            rng: ChaCha8Rng::from_seed(key),
            // A waiting request has a sampler too: memory is taken with the first token.
            candidates: Vec::new(),
            history: Vec::new(),
            context,
            dry: dry::State::default(),
            adaptive: adaptive_p::State::new(&options),
            mirostat_mu: options.mirostat.map_or(0.0, |m| 2.0 * m.tau),
            constraint: None,
            links: options.chain(),
            needs: options.needs(),
            options,
        })
    }

    /// The options it was made with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Lets only tokens be selected that `constraint` allows, from the next one on. Each selected token advances it;
    /// tokens given to [`accept`](Sampler::accept), such as a prompt's, do not.
    pub fn set_constraint(&mut self, constraint: Constraint) {
        self.constraint = Some(constraint);
    }

    /// Ends DRY's matches at these tokens; without them nothing does. Several samplers may share them.
    pub fn set_breakers(&mut self, breakers: Arc<Breakers>) {
        self.dry.breakers = breakers;
    }

    /// Whether the constraint is complete, so that no further token may be selected. Never true without one.
    pub fn is_complete(&self) -> bool {
        self.constraint.as_ref().is_some_and(Constraint::is_complete)
    }

    /// The number of best tokens that suffice, as [`Options::needs`]; `None`, all, with a constraint, which may forbid
    /// any number of the best.
    pub fn needs(&self) -> Option<usize> {
        self.needs.filter(|_| self.constraint.is_none())
    }

    /// Adds a token of the prompt or answer to the history used by penalties.
    pub fn accept(&mut self, token: u32) {
        if self.history.len() == self.context.max(1) {
            self.history.remove(0);
        }
        self.history.push(token);
    }

    /// Replaces the history by `tokens`, keeping the last ones that fit the context.
    pub(crate) fn follow(&mut self, tokens: impl Iterator<Item = u32>) {
        self.history.clear();
        tokens.for_each(|token| self.accept(token));
    }

    /// Selects a token from finite `logits [vocab]` and accepts it.
    ///
    /// # Errors
    /// [`Error::NothingLeft`], [`Error::Constraint`].
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, Error> {
        self.sample_row(Row::Logits(logits), None)
    }

    /// Selects a token from a row and accepts it. A draft token, proposed without knowing the row, is used if
    /// possible without changing the distribution.
    ///
    /// # Errors
    /// [`Error::NothingLeft`], [`Error::Constraint`].
    pub fn sample_row(
        &mut self,
        row: Row<'_>,
        draft: Option<DraftToken<'_>>,
    ) -> Result<u32, Error> {
        self.distribute(row)?;
        self.draw(draft)
    }

    /// The final distribution over the next token: all possible tokens, with probabilities that sum to 1.
    ///
    /// # Errors
    /// [`Error::NothingLeft`], [`Error::Constraint`].
    pub(crate) fn distribute(&mut self, row: Row<'_>) -> Result<&[Candidate], Error> {
        let Sampler { options, links, needs, rng, candidates, history, context, .. } = self;
        let Sampler { dry, adaptive, mirostat_mu, constraint, .. } = self;
        history.reserve_exact(context.saturating_sub(history.len()));
        let options: &Options = options;
        let mask = constraint.as_mut().map(Constraint::mask).transpose()?;
        let allows = |id: &u32| mask.is_none_or(|mask| mask.allows(*id));
        let ending = infill::ending(options).filter(allows);
        candidates.clear();
        let candidate = |(id, logit)| Candidate { id, logit, p: 0.0 };
        let mut is_by_id = false;
        match (row, *needs) {
            // Most of a large vocabulary is passed over in blocks.
            (Row::Logits(logits), Some(needs)) if needs <= BEST_MAX => {
                best(logits, needs, mask, candidates);
            }
            (Row::Logits(logits), _) => {
                is_by_id = true;
                let all = (0..).zip(logits.iter().copied());
                candidates.extend(all.filter(|(id, _)| allows(id)).map(candidate));
            }
            (Row::Best(best), _) => {
                let all = best.iter().copied();
                candidates.extend(all.filter(|(id, _)| allows(id)).map(candidate));
            }
        }
        let mirostat_mu = *mirostat_mu;
        let mut chain = Chain {
            options,
            candidates,
            history,
            dry,
            adaptive,
            rng,
            mirostat_mu,
            ending,
            is_by_id,
        };
        chain.run(links)?;
        if !options.is_greedy() {
            normalize(candidates);
        }
        Ok(candidates)
    }

    /// The last distribution.
    pub(crate) fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Selects a token from the last distribution and accepts it.
    ///
    /// # Errors
    /// [`Error::Constraint`].
    pub(crate) fn draw(&mut self, draft: Option<DraftToken<'_>>) -> Result<u32, Error> {
        let Sampler { options, rng, candidates, adaptive, mirostat_mu, .. } = self;
        let is_greedy = options.is_greedy();
        let token = if is_greedy {
            candidates[0].id
        } else {
            match draft.filter(|draft| !draft.chances.is_empty()) {
                Some(draft) => draft_token::choose(candidates, &draft, &mut || uniform(rng)),
                None => draw::choose(candidates, uniform(rng)),
            }
        };
        if let Some(mirostat) = options.mirostat.as_ref().filter(|_| !is_greedy) {
            mirostat::observe(candidates, mirostat, mirostat_mu, token);
        } else if options.adaptive_target >= 0.0 && !is_greedy {
            adaptive.observe(candidates, options.adaptive_decay, token);
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        self.accept(token);
        Ok(token)
    }
}

/// The candidate that is token `id`, of candidates by rising id.
fn find(candidates: &mut [Candidate], id: u32) -> Option<&mut Candidate> {
    let at = match candidates.get(id as usize).is_some_and(|c| c.id == id) {
        true => id as usize,
        false => candidates.binary_search_by_key(&id, |c| c.id).ok()?,
    };
    candidates.get_mut(at)
}

/// A number in `[0, 1)` with 24 random bits.
fn uniform(rng: &mut ChaCha8Rng) -> f32 {
    (rng.next_u32() >> 8) as f32 / (1u32 << 24) as f32
}

/// Sets every candidate's probability to its share after softmax; sums in f64.
fn normalize(candidates: &mut [Candidate]) {
    let max = candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for c in candidates.iter_mut() {
        c.p = (c.logit - max).exp();
        sum += f64::from(c.p);
    }
    let scale = (1.0 / sum) as f32;
    for c in candidates.iter_mut() {
        c.p *= scale;
    }
}

/// Most likely first; equal logits by id.
fn by_logit(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Moves the `count` most likely candidates to the front, in order; the rest follows in any order.
fn sort_front(candidates: &mut [Candidate], count: usize) {
    if count < candidates.len() {
        candidates.select_nth_unstable_by(count, by_logit);
        candidates[..count].sort_unstable_by(by_logit);
    } else {
        candidates.sort_unstable_by(by_logit);
    }
}

/// Number of most likely candidates, sorted at the front, that `enough` requires: it receives growing sorted prefixes
/// until it returns a length or all are sorted. Sorting a 128k vocabulary for the 50 tokens that matter would cost
/// more than a small model's step.
fn sorted_front(
    candidates: &mut [Candidate],
    enough: impl Fn(&[Candidate]) -> Option<usize>,
) -> usize {
    let mut front = 128;
    loop {
        sort_front(candidates, front);
        let sorted = front.min(candidates.len());
        if let Some(length) = enough(&candidates[..sorted]) {
            return length;
        }
        if sorted == candidates.len() {
            return sorted;
        }
        front *= 4;
    }
}

#[cfg(test)]
mod tests;
