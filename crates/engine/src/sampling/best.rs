//! The best tokens of a row of logits, found in one pass.

use bilayer_constrain::Mask;

use super::{Candidate, by_logit};

/// Largest number of best tokens that are found before sampling.
pub(crate) const BEST_MAX: usize = 256;

/// Logits compared with the threshold at once; a block without a larger one is skipped. As many as [`Mask::block`] has.
const BLOCK: usize = 64;

/// Replaces `found` by the `k` most likely tokens of `logits [vocab]` that a mask allows, most likely first, lower id first on
/// ties.
///
/// The row is read once: a token is looked at only if its block has a logit above the least of the best so far. Blocks without
/// an allowed token are not read.
pub(crate) fn best(logits: &[f32], k: usize, mask: Option<&Mask>, found: &mut Vec<Candidate>) {
    let k = k.min(logits.len());
    found.clear();
    if k == 0 {
        return;
    }
    // Twice as many as wanted are collected before the lesser half is dropped.
    let most = 2 * k + BLOCK;
    found.reserve(most + BLOCK);
    let mut threshold = f32::NEG_INFINITY;
    for (number, block) in logits.chunks(BLOCK).enumerate() {
        let allowed = mask.map_or(u64::MAX, |mask| mask.block(number));
        if allowed == 0 {
            continue;
        }
        let first = (number * BLOCK) as u32;
        let top = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // At equal logits the lower id wins, and it was found before.
        if found.len() >= k && top <= threshold {
            continue;
        }
        let has_threshold = found.len() >= k;
        let candidates = block.iter().enumerate().filter(|&(at, _)| allowed >> at & 1 == 1);
        let above = candidates.filter(|(_, logit)| !has_threshold || **logit > threshold);
        found.extend(above.map(|(at, &logit)| Candidate { id: first + at as u32, logit, p: 0.0 }));
        if found.len() >= most || (!has_threshold && found.len() >= k) {
            found.select_nth_unstable_by(k - 1, by_logit);
            threshold = found[k - 1].logit;
            found.truncate(k);
        }
    }
    found.sort_unstable_by(by_logit);
    found.truncate(k);
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use bilayer_constrain::{Constraint, Grammar, Limits, Token, Tokens};

    use super::best;

    #[test]
    fn it_is_the_front_of_the_sorted_row() {
        let mut random = ChaCha8Rng::seed_from_u64(5);
        for (vocab, k) in [(1, 1), (63, 40), (64, 64), (1000, 1), (5000, 40), (5000, 256), (10, 20)]
        {
            // Few distinct values, so that ties occur.
            let logits: Vec<f32> =
                (0..vocab).map(|_| (random.next_u32() % 97) as f32 - 50.0).collect();
            let mut sorted: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            sorted.truncate(k);
            let mut found = Vec::new();
            best(&logits, k, None, &mut found);
            let found: Vec<_> = found.iter().map(|c| (c.id, c.logit)).collect();
            assert_eq!(found, sorted, "{vocab} {k}");
        }
    }

    #[test]
    fn it_has_only_what_a_mask_allows() {
        // 59 and 127 letters of 400, between which there are three blocks without any.
        let letters: Vec<[u8; 2]> = (0..400u16).map(u16::to_be_bytes).collect();
        let tokens = letters.iter().map(|bytes| Token::Text(bytes)).chain([Token::Control(b"<e>")]);
        let tokens = Tokens::new(tokens, &[400]).unwrap();
        let grammar = Grammar::regex(r"\x00[\x05-\x3f]|\x01[\x01-\x7f]");
        let mut constraint = Constraint::new(&tokens, &grammar, Limits::default()).unwrap();
        let mask = constraint.mask().unwrap();
        assert_eq!(mask.count(), 59 + 127);
        let mut random = ChaCha8Rng::seed_from_u64(9);
        for k in [1, 7, 64, 180, 401] {
            // A head may have more rows than the vocabulary has tokens.
            let logits: Vec<f32> = (0..500).map(|_| (random.next_u32() % 97) as f32).collect();
            let mut sorted: Vec<_> = mask.iter().map(|id| (id, logits[id as usize])).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            sorted.truncate(k);
            let mut found = Vec::new();
            best(&logits, k, Some(mask), &mut found);
            let found: Vec<_> = found.iter().map(|c| (c.id, c.logit)).collect();
            assert_eq!(found, sorted, "{k}");
        }
    }
}
