//! Accepts or rejects a draft token without changing the distribution: rejection sampling of speculative decoding.
//!
//! A token drafted with probability `q` is accepted with probability `min(1, p / q)`; otherwise another one is drawn
//! in proportion to `max(0, p - q)`. Together they select each token with its `p` (Leviathan et al. 2023, algorithm
//! 1). Mirostat's surprise is that of `p`, so candidates keep their probabilities here.

use super::Candidate;

/// A draft of the next token, proposed before its distribution was known.
#[derive(Clone, Copy, Debug)]
pub struct DraftToken<'a> {
    /// The token.
    pub token: u32,
    /// The distribution it was drawn from, by rising id. Empty if it was certain: then it is accepted if it equals
    /// the token drawn without it.
    pub chances: &'a [Candidate],
}

impl DraftToken<'_> {
    /// The probability of drafting a token.
    fn chance(&self, token: u32) -> f32 {
        let found = self.chances.binary_search_by_key(&token, |c| c.id);
        found.map_or(0.0, |at| self.chances[at].p)
    }
}

/// The draft token, or another one. `uniform` returns numbers in `[0, 1)` that are independent of the draft. Sums in
/// f64.
pub fn choose(
    candidates: &[Candidate],
    draft: &DraftToken<'_>,
    uniform: &mut impl FnMut() -> f32,
) -> u32 {
    let p = candidates.iter().find(|c| c.id == draft.token).map_or(0.0, |c| c.p);
    if uniform() * draft.chance(draft.token) < p {
        return draft.token;
    }
    let left = |c: &Candidate| f64::from((c.p - draft.chance(c.id)).max(0.0));
    let total: f64 = candidates.iter().map(left).sum();
    let at = f64::from(uniform()) * total;
    let mut cumulated = 0.0;
    for c in candidates {
        cumulated += left(c);
        if at < cumulated {
            return c.id;
        }
    }
    // Only due to rounding: the last candidate with any remainder is selected.
    candidates.iter().rev().find(|c| left(c) > 0.0).map_or(draft.token, |c| c.id)
}
