//! Taking a guess without changing the distribution: the rejection scheme of speculative decoding.
//!
//! A token guessed with chance `q` is taken with chance `min(1, p / q)`, else another is drawn in proportion to
//! `max(0, p - q)`: both ways together choose each token with its `p` (Leviathan et al. 2023, algorithm 1).
//! Mirostat's surprise is that of `p`, so what is left here of the candidates keeps their probabilities.

use super::Candidate;

/// A guess of the next token, made before its distribution was known.
#[derive(Clone, Copy, Debug)]
pub struct Guess<'a> {
    /// The token.
    pub token: u32,
    /// The distribution it was drawn from, by rising id. Empty where it was certain: then it is right when it is what is
    /// drawn without it, and nothing else has to be done.
    pub chances: &'a [Candidate],
}

impl Guess<'_> {
    /// With which chance a token was guessed.
    fn chance(&self, token: u32) -> f32 {
        let found = self.chances.binary_search_by_key(&token, |c| c.id);
        found.map_or(0.0, |at| self.chances[at].p)
    }
}

/// The guess, or another token. `uniform` gives numbers in `[0, 1)` of which the guess knew nothing. Sums in f64.
pub fn choose(
    candidates: &[Candidate],
    guess: &Guess<'_>,
    uniform: &mut impl FnMut() -> f32,
) -> u32 {
    let p = candidates.iter().find(|c| c.id == guess.token).map_or(0.0, |c| c.p);
    if uniform() * guess.chance(guess.token) < p {
        return guess.token;
    }
    let left = |c: &Candidate| f64::from((c.p - guess.chance(c.id)).max(0.0));
    let total: f64 = candidates.iter().map(left).sum();
    let at = f64::from(uniform()) * total;
    let mut cumulated = 0.0;
    for c in candidates {
        cumulated += left(c);
        if at < cumulated {
            return c.id;
        }
    }
    // Rounding alone made the two differ, or kept the sum just below: the last one with anything left stands for it.
    candidates.iter().rev().find(|c| left(c) > 0.0).map_or(guess.token, |c| c.id)
}
