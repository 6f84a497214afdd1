//! Memory that buffers share whose lifetimes do not meet. Backends lay their activations out by it, and the scheduler
//! counts by it what they will take.

/// A buffer from the step that first uses it to the one that last does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// The first step.
    pub first: usize,
    /// The last step.
    pub last: usize,
    /// Its size.
    pub bytes: u64,
}

/// Which slot each buffer gets, and the slots' sizes: in the order of their beginnings, each takes the smallest slot
/// that is free and large enough, or a new one.
pub fn assign(lives: &[Life]) -> (Vec<usize>, Vec<u64>) {
    let mut order: Vec<usize> = (0..lives.len()).collect();
    order.sort_by_key(|&buffer| (lives[buffer].first, std::cmp::Reverse(lives[buffer].bytes)));
    let (mut slots, mut sizes) = (vec![0; lives.len()], Vec::<u64>::new());
    let mut free_from: Vec<usize> = Vec::new();
    for buffer in order {
        let Life { first, last, bytes } = lives[buffer];
        let fits =
            (0..sizes.len()).filter(|&slot| free_from[slot] <= first && sizes[slot] >= bytes);
        let slot = fits.min_by_key(|&slot| sizes[slot]).unwrap_or_else(|| {
            sizes.push(bytes);
            free_from.push(0);
            sizes.len() - 1
        });
        slots[buffer] = slot;
        free_from[slot] = last + 1;
    }
    (slots, sizes)
}

#[cfg(test)]
mod tests {
    use super::{Life, assign};

    #[test]
    fn only_what_does_not_live_together_shares() {
        let life = |first, last, bytes| Life { first, last, bytes };
        // The second large one takes the first's place, the small one between them the best that is free.
        let lives =
            [life(0, 1, 100), life(1, 3, 100), life(2, 4, 90), life(2, 2, 10), life(3, 5, 8)];
        let (slots, sizes) = assign(&lives);
        assert_eq!(slots, [0, 1, 0, 2, 2]);
        assert_eq!(sizes, [100, 100, 10]);
        for (i, a) in lives.iter().enumerate() {
            for (j, b) in lives.iter().enumerate().skip(i + 1) {
                let together = a.first <= b.last && b.first <= a.last;
                assert!(!(together && slots[i] == slots[j]), "{i} and {j}");
            }
            assert!(sizes[slots[i]] >= a.bytes);
        }
        assert_eq!(assign(&[]), (vec![], vec![]));
    }
}
