//! The best tokens of a row of logits, found in one pass.

use super::{Candidate, by_logit};

/// Logits compared with the threshold at once; a block without a larger one is skipped.
const BLOCK: usize = 64;

/// Replaces `best` by the `k` most likely tokens of `logits [vocab]`, most likely first, lower id first on ties.
///
/// The row is read once: a token is looked at only if its block has a logit above the least of the best so far.
pub(crate) fn best(logits: &[f32], k: usize, best: &mut Vec<(u32, f32)>) {
    let k = k.min(logits.len());
    best.clear();
    if k == 0 {
        return;
    }
    // Twice as many as wanted are collected before the lesser half is dropped.
    let most = 2 * k + BLOCK;
    let mut found: Vec<Candidate> = Vec::with_capacity(most + BLOCK);
    let mut threshold = f32::NEG_INFINITY;
    for (block, first) in logits.chunks(BLOCK).zip((0u32..).step_by(BLOCK)) {
        let top = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // At equal logits the lower id wins, and it was found before.
        if found.len() >= k && top <= threshold {
            continue;
        }
        let has_threshold = found.len() >= k;
        let candidates = block.iter().zip(first..);
        let above = candidates.filter(|(logit, _)| !has_threshold || **logit > threshold);
        found.extend(above.map(|(&logit, id)| Candidate { id, logit, p: 0.0 }));
        if found.len() >= most || (!has_threshold && found.len() >= k) {
            found.select_nth_unstable_by(k - 1, by_logit);
            threshold = found[k - 1].logit;
            found.truncate(k);
        }
    }
    found.sort_unstable_by(by_logit);
    found.truncate(k);
    best.extend(found.iter().map(|candidate| (candidate.id, candidate.logit)));
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

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
            best(&logits, k, &mut found);
            assert_eq!(found, sorted, "{vocab} {k}");
        }
    }
}
