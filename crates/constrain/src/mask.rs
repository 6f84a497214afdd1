//! A set of tokens.

use llguidance::toktrie::SimpleVob;

/// The tokens that may come next: a bit for each token of the vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask(pub(crate) SimpleVob);

impl Mask {
    /// Whether a token may come next. Tokens outside the vocabulary may not.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }

    /// The tokens that may come next, by rising id.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let len = self.0.len() as u32;
        self.0.iter().take_while(move |&token| token < len)
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.iter().count()
    }

    /// The bits of the tokens from `64 * block` on, the lowest id in the lowest bit. Those of tokens outside the vocabulary are
    /// not set.
    pub fn block(&self, block: usize) -> u64 {
        let word = |at: usize| self.0.as_slice().get(at).copied().map_or(0, u64::from);
        let bits = word(2 * block) | word(2 * block + 1) << 32;
        match self.0.len().saturating_sub(64 * block) {
            left @ ..64 => bits & !(u64::MAX << left),
            _ => bits,
        }
    }
}
