//! How the rows of a step that are for prompts are divided among them.
//!
//! The oldest prompt has them, but half are for prompts with less than half as many tokens left, the shortest first. A
//! short prompt that comes behind a long one has its answer begun soon, and the long one takes at most twice as long as alone, however
//! many short ones come. One that is not so much shorter waits: two in turn would both end when the second ends, and the mean wait
//! would be longer. What a prompt has no use for goes to the next.

/// The rows of each prompt, given how many tokens of each are left, in the order of arrival.
pub(super) fn divide(rows: usize, left: &[usize]) -> Vec<usize> {
    let mut given = vec![0; left.len()];
    let mut free = rows;
    let mut give = |at: usize, most: usize| {
        let more = most.min(free).min(left[at] - given[at]);
        given[at] += more;
        free -= more;
    };
    if left.is_empty() {
        return given;
    }
    give(0, rows.div_ceil(2));
    short(left).into_iter().chain(0..left.len()).for_each(|at| give(at, rows));
    given
}

/// The places of prompts with so few tokens left that they are computed beside the oldest, the shortest first.
pub(super) fn short(left: &[usize]) -> Vec<usize> {
    let mut short: Vec<usize> = (1..left.len()).filter(|&at| 2 * left[at] < left[0]).collect();
    short.sort_by_key(|&at| left[at]);
    short
}

#[cfg(test)]
mod tests {
    use super::divide;

    #[test]
    fn the_oldest_has_half_and_shorter_ones_the_rest() {
        assert!(divide(64, &[]).is_empty());
        assert_eq!(divide(64, &[1000]), [64]);
        assert_eq!(divide(64, &[20]), [20]);
        assert_eq!(divide(64, &[1000, 499]), [32, 32]);
        assert_eq!(divide(9, &[1000, 499]), [5, 4]);
        assert_eq!(divide(1, &[1000, 499]), [1, 0]);
        assert_eq!(divide(64, &[1000, 500]), [64, 0]);
        // The shortest first, and of two as short ones the earlier.
        assert_eq!(divide(64, &[1000, 400, 30]), [32, 2, 30]);
        assert_eq!(divide(64, &[1000, 400, 400]), [32, 32, 0]);
        // What the others have no use for is the oldest's, and what it has none for that of the next.
        assert_eq!(divide(64, &[1000, 3, 4]), [57, 3, 4]);
        assert_eq!(divide(64, &[10, 500, 20]), [10, 54, 0]);
        assert_eq!(divide(64, &[50, 500, 20]), [44, 0, 20]);
        assert_eq!(divide(64, &[5, 6, 7]), [5, 6, 7]);
        assert_eq!(divide(0, &[5, 6]), [0, 0]);
    }
}
