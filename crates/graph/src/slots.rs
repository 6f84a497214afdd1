//! Assigns memory slots to buffers with disjoint lifetimes. Backends lay out their activations with it, and the
//! scheduler predicts their size with it.

use std::collections::BTreeMap;

/// A buffer's lifetime, from the step that first uses it to the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The first step.
    pub first: usize,
    /// The last step.
    pub last: usize,
    /// Its size.
    pub bytes: u64,
    /// Only buffers of one class share memory: a device may read beyond what was written, and must find there what
    /// buffers of equal shape leave.
    pub class: usize,
}

/// The slot of each buffer, and the slots' sizes: largest buffer first, each takes the first slot whose buffers are
/// not alive at the same time, or a new one. A slot is thus as large as its first buffer, and small ones fill its
/// gaps.
pub fn assign(lives: &[Life]) -> (Vec<usize>, Vec<u64>) {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&buffer| (std::cmp::Reverse(lives[buffer].bytes), lives[buffer].first));
    let (mut slots, mut sizes) = (vec![0; lives.len()], Vec::<u64>::new());
    // The class of each slot, and its occupied intervals: ends by beginnings.
    let mut taken: Vec<(usize, BTreeMap<usize, usize>)> = Vec::new();
    for buffer in order {
        let Life { first, last, bytes, class } = lives[buffer];
        // Occupied intervals do not overlap, so the last one that begins in time ends last.
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
        // The third reuses the slot of the first, and small buffers fill the gaps of large slots.
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
