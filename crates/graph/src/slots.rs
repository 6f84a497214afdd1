//! Memory that buffers share whose lifetimes do not meet. Backends lay their activations out by it, and the scheduler
//! counts by it what they will take.

use std::collections::BTreeMap;

/// A buffer from the step that first uses it to the one that last does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The first step.
    pub first: usize,
    /// The last step.
    pub last: usize,
    /// Its size.
    pub bytes: u64,
    /// Only buffers of one class share: where a device reads beyond what was written, what lies there must be what buffers
    /// of the same shape leave.
    pub class: usize,
}

/// Which slot each buffer gets, and the slots' sizes: the largest first, each takes the first slot whose buffers do not
/// live when it does, or a new one. So a slot is as large as its first buffer, and small ones fill its gaps.
pub fn assign(lives: &[Life]) -> (Vec<usize>, Vec<u64>) {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&buffer| (std::cmp::Reverse(lives[buffer].bytes), lives[buffer].first));
    let (mut slots, mut sizes) = (vec![0; lives.len()], Vec::<u64>::new());
    // The class of each slot, and when it is taken: ends by beginnings.
    let mut taken: Vec<(usize, BTreeMap<usize, usize>)> = Vec::new();
    for buffer in order {
        let Life { first, last, bytes, class } = lives[buffer];
        // What is taken does not overlap, so the last that begins in time ends last.
        let is_free = |(of, taken): &(usize, BTreeMap<usize, usize>)| {
            *of == class && taken.range(..=last).next_back().is_none_or(|(_, &end)| end < first)
        };
        let slot = taken.iter().position(is_free).unwrap_or_else(|| {
            sizes.push(bytes);
            taken.push((class, BTreeMap::new()));
            sizes.len() - 1
        });
        taken[slot].1.insert(first, last);
        slots[buffer] = slot;
    }
    (slots, sizes)
}

#[cfg(test)]
mod tests {
    use super::{Life, assign};

    #[test]
    fn only_what_does_not_live_together_shares() {
        let life = |first, last, bytes| Life { first, last, bytes, class: 0 };
        // The third takes the place of the first, and the small ones what is left of large places.
        let lives =
            [life(0, 1, 100), life(1, 3, 100), life(2, 4, 90), life(0, 0, 10), life(2, 5, 8)];
        let (slots, sizes) = assign(&lives);
        assert_eq!(slots, [0, 1, 0, 1, 2]);
        assert_eq!(sizes, [100, 100, 8]);
        for (i, a) in lives.iter().enumerate() {
            for (j, b) in lives.iter().enumerate().skip(i + 1) {
                let together = a.first <= b.last && b.first <= a.last;
                assert!(!(together && slots[i] == slots[j]), "{i} and {j}");
            }
            assert!(sizes[slots[i]] >= a.bytes);
        }
        assert_eq!(assign(&[]), (vec![], vec![]));
        let apart = [life(0, 0, 9), Life { class: 1, ..life(1, 1, 9) }, life(2, 2, 9)];
        assert_eq!(assign(&apart).0, [0, 1, 0]);
    }
}
