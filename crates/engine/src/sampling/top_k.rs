//! Top-k (Fan et al. 2018): keep the k most likely.

use super::{Candidate, sort_front};

/// Keeps the `k` most likely, in order; 0 keeps all as they are.
pub fn apply(candidates: &mut Vec<Candidate>, k: usize) {
    if k == 0 {
        return;
    }
    sort_front(candidates, k);
    candidates.truncate(k);
}
