//! Infill (llama.cpp 2024): where text is filled in between two others, end it or keep its clear continuations.
//!
//! If the tokens that end the text are likely enough, only they stay. Else candidates whose text begins another's count
//! as one, the more likely of both, and what is not likely then is dropped; if no text is left, the text ends. Candidates
//! keep their logits, so the draw is among those left by their own probabilities.

use std::fmt;
use std::sync::Arc;

use bilayer_text::Tokenizer;

use super::options::outside;
use super::{Bound, Candidate, Link, Listed, Options, Phase, normalize, sort_front};

/// The sampler.
pub(super) const LINK: Link = Link {
    name: "infill",
    listed: Listed::Asked('i'),
    aliases: &[],
    phase: Phase::Truncation,
    parameters: &[],
    check: |options, _| {
        let is_named = options.samplers.is_some() && options.is_listed("infill");
        match is_named && options.infill.is_none() {
            true => Err(outside("samplers", &"infill", "without infill, which needs a vocabulary")),
            false => Ok(()),
        }
    },
    is_on: |options| options.infill.is_some(),
    bound: |_| Bound::All,
    apply: |chain| {
        if let Some(Infill(tokenizer)) = &chain.options.infill {
            apply(chain.candidates, tokenizer, chain.ending);
        }
    },
};

/// Turns the sampler on: it compares the texts of tokens.
#[derive(Clone)]
pub struct Infill(Arc<Tokenizer>);

impl Infill {
    /// The sampler for the vocabulary of the answer.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Infill {
        Infill(tokenizer)
    }
}

impl PartialEq for Infill {
    fn eq(&self, other: &Infill) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Infill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Infill")
    }
}

/// Most likely candidates whose texts are compared, each with each.
const COMPARED: usize = 256;

/// Least probability of a text that stays, before the probabilities of those left are scaled to 1.
const LEAST: f64 = 0.2;

/// The token that ends a text, unless a bias forbids it.
pub(super) fn ending(options: &Options) -> Option<u32> {
    let tokenizer = &options.infill.as_ref()?.0;
    let is_forbidden = |id| options.logit_bias.contains(&(id, f32::NEG_INFINITY));
    let ends = tokenizer.eos().into_iter().filter(|&id| tokenizer.is_end(id));
    ends.chain(tokenizer.ends().iter().copied()).find(|&id| !is_forbidden(id))
}

/// Keeps the tokens that end the text, or the likely continuations; `ending` if there are none. At least one stays. Sums
/// in f64.
pub fn apply(candidates: &mut Vec<Candidate>, tokenizer: &Tokenizer, ending: Option<u32>) {
    normalize(candidates);
    let is_end = |c: &Candidate| tokenizer.is_end(c.id);
    let sum = |candidates: &[Candidate]| candidates.iter().map(|c| f64::from(c.p)).sum::<f64>();
    let ends: f64 = candidates.iter().filter(|c| is_end(c)).map(|c| f64::from(c.p)).sum();
    let texts = sum(candidates) - ends;
    if 3.0 * ends * candidates.len() as f64 > texts {
        candidates.retain(is_end);
        return;
    }
    sort_front(candidates, COMPARED);
    candidates.truncate(COMPARED);
    let best = candidates[0];
    combine(candidates, tokenizer);
    candidates.retain(|c| f64::from(c.p) >= LEAST || is_end(c));
    let texts = candidates.iter().filter(|c| !is_end(c)).count();
    if candidates.is_empty() {
        candidates.push(ending.map_or(best, |id| Candidate { id, logit: 0.0, p: 1.0 }));
    } else if texts > 0 {
        let least = sum(candidates) / (texts + 1) as f64;
        candidates.retain(|c| f64::from(c.p) >= least || is_end(c));
    }
}

/// Adds the probability of each candidate whose text begins another's, or is begun by it, to the more likely of both; the
/// other's becomes 0. Tokens without text are left alone. At most [`COMPARED`] candidates.
fn combine(candidates: &mut [Candidate], tokenizer: &Tokenizer) {
    let mut texts: [&[u8]; COMPARED] = [&[]; COMPARED];
    for (text, c) in texts.iter_mut().zip(candidates.iter()) {
        *text = tokenizer.text(c.id).unwrap_or_default();
    }
    for short in 0..candidates.len() {
        for long in 0..candidates.len() {
            let is_left = candidates[short].p > 0.0 && candidates[long].p > 0.0;
            let begins = !texts[short].is_empty() && texts[long].starts_with(texts[short]);
            if short == long || !is_left || !begins {
                continue;
            }
            let is_longer_likelier = candidates[long].p > candidates[short].p;
            let (into, from) = if is_longer_likelier { (long, short) } else { (short, long) };
            candidates[into].p += std::mem::take(&mut candidates[from].p);
        }
    }
}

#[cfg(test)]
mod tests {
    use bilayer_text::Vocabulary;

    use super::super::{Options, Row, Sampler};
    use super::*;

    /// Token 0 ends a text.
    const TEXTS: [&str; 9] = ["<end>", "a", "ab", "abc", "x", "y", "z", "q", "b"];

    fn tokenizer() -> Arc<Tokenizer> {
        let mut types = vec![1; TEXTS.len()];
        types[0] = 3;
        let vocabulary = Vocabulary {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: TEXTS.map(Into::into).to_vec(),
            types,
            merges: vec!["a b".into()],
            eos: Some(0),
            ..Vocabulary::default()
        };
        Arc::new(Tokenizer::new(vocabulary).expect("a vocabulary"))
    }

    /// The ids left of candidates with these probabilities, by rising id.
    fn left(p: &[(u32, f32)], ending: Option<u32>) -> Vec<u32> {
        let candidate = |&(id, p): &(u32, f32)| Candidate { id, logit: p.ln(), p: 0.0 };
        let mut candidates: Vec<Candidate> = p.iter().map(candidate).collect();
        apply(&mut candidates, &tokenizer(), ending);
        let mut ids: Vec<u32> = candidates.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        ids
    }

    #[test]
    fn a_likely_end_ends_the_text() {
        // 3 * 0.12 * 3 candidates is more than 0.88.
        assert_eq!(left(&[(0, 0.12), (1, 0.53), (4, 0.35)], Some(0)), [0]);
        // 3 * 0.05 * 3 is less than 0.95; the end stays beside the texts.
        assert_eq!(left(&[(0, 0.05), (1, 0.50), (4, 0.45)], Some(0)), [0, 1, 4]);
    }

    #[test]
    fn texts_that_begin_others_count_as_one() {
        // a, ab and abc are 0.66 together, ab is the likeliest of them; x has more than a third.
        let p = [(1, 0.25), (2, 0.30), (3, 0.11), (4, 0.34)];
        assert_eq!(left(&p, Some(0)), [2, 4]);
        // With less than a third it goes.
        let p = [(0, 0.01), (1, 0.30), (2, 0.35), (3, 0.12), (4, 0.22)];
        assert_eq!(left(&p, Some(0)), [0, 2]);
        // Nothing is 0.2 but a with all that it begins.
        let p = [(1, 0.15), (2, 0.14), (3, 0.13), (4, 0.19), (5, 0.19), (6, 0.19)];
        assert_eq!(left(&p, Some(0)), [1]);
    }

    #[test]
    fn without_a_clear_text_the_text_ends() {
        let p: Vec<(u32, f32)> = (3..9).map(|id| (id, 1.0 / 6.0)).collect();
        assert_eq!(left(&p, Some(0)), [0]);
        assert_eq!(left(&p, None).len(), 1, "the likeliest, where nothing may end the text");
    }

    #[test]
    fn the_chain_ends_only_texts_that_may_end() {
        let infill = Some(Infill::new(tokenizer()));
        let forbidden = vec![(0, f32::NEG_INFINITY)];
        let greedy = Options { infill, temperature: 0.0, top_k: 6, ..Options::default() };
        let logits = [-9.0, -9.0, -9.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0];
        let select = |options: &Options, row: Row<'_>| {
            let sampler = Sampler::new(options.clone(), TEXTS.len(), 8);
            sampler.expect("options").sample_row(row, None).expect("a token")
        };
        assert_eq!(select(&greedy, Row::Logits(&logits)), 0, "no text is clear");
        let best: Vec<(u32, f32)> = (3..9).map(|id| (id, logits[id as usize])).collect();
        assert_eq!((greedy.needs(), select(&greedy, Row::Best(&best))), (Some(6), 0));
        let endless = Options { logit_bias: forbidden, ..greedy.clone() };
        assert_eq!(select(&endless, Row::Logits(&logits)), 4);
        let plain = Options { infill: None, ..greedy };
        assert_eq!((plain.needs(), select(&plain, Row::Logits(&logits))), (Some(1), 4));
    }
}
