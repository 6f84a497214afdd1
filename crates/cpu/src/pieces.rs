//! Splits the rows of a matrix that is read once among threads: large pieces first, small ones last.
//!
//! ***The idea.** Long sequential reads get the most out of memory, and every new position costs a start-up; but all
//! threads wait for the one with the last piece. Therefore each piece is a fixed share of the remainder (guided
//! scheduling): the first ones are megabytes, the last ones the smallest worth a claim. Threads claim pieces one by
//! one, so a slow core takes fewer and delays the others by a small one at most.

use std::ops::Range;

/// A piece is the remainder divided by this many times the threads: a core at a quarter of the others' speed then has
/// no more in its first piece than an even share.
const SHARES: usize = 4;

/// The consecutive pieces of a range of rows.
pub(crate) struct Pieces {
    ends: Box<[usize]>,
}

impl Pieces {
    /// All rows in one piece, for a thread with which nobody shares them.
    pub(crate) fn whole(rows: usize) -> Pieces {
        Pieces { ends: (rows > 0).then_some(rows).into_iter().collect() }
    }

    /// Pieces of at least `least` rows, except the last, whose ends are multiples of `least`, for `threads` threads and
    /// those that help them.
    pub(crate) fn new(rows: usize, least: usize, threads: usize) -> Pieces {
        let mut ends = Vec::new();
        let mut start = 0;
        while start < rows {
            let left = rows - start;
            let share = left / (SHARES * threads);
            start = (start + (share / least).max(1) * least).min(rows);
            // A remainder that is not worth a claim is added to the last piece.
            if rows - start < least {
                start = rows;
            }
            ends.push(start);
        }
        Pieces { ends: ends.into() }
    }

    /// Number of pieces.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The rows of a piece.
    pub(crate) fn range(&self, piece: usize) -> Range<usize> {
        let start = if piece == 0 { 0 } else { self.ends[piece - 1] };
        start..self.ends[piece]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The finish time of the last thread, if threads of these speeds (rows per second) claim pieces in turn.
    fn time(pieces: &Pieces, speeds: &[f64]) -> f64 {
        let mut clocks = vec![0.0_f64; speeds.len()];
        for piece in 0..pieces.len() {
            let next = (0..speeds.len()).min_by(|&a, &b| clocks[a].total_cmp(&clocks[b]));
            let thread = next.expect("a thread");
            clocks[thread] += pieces.range(piece).len() as f64 / speeds[thread];
        }
        clocks.into_iter().fold(0.0, f64::max)
    }

    #[test]
    fn pieces_are_all_rows_in_order_and_grow_shorter() {
        for threads in [1, 2, 3, 16] {
            for rows in [0, 1, 15, 16, 17, 100, 8192, 128_256] {
                let pieces = Pieces::new(rows, 16, threads);
                let mut end = 0;
                for piece in 0..pieces.len() {
                    let range = pieces.range(piece);
                    assert_eq!(range.start, end);
                    assert!(!range.is_empty() && range.start.is_multiple_of(16), "{range:?}");
                    let longer =
                        pieces.len() > piece + 2 && range.len() < pieces.range(piece + 1).len();
                    assert!(!longer, "{threads} threads, {rows} rows, piece {piece}");
                    end = range.end;
                }
                assert_eq!(end, rows);
            }
        }
        assert_eq!(Pieces::whole(8192).range(0), 0..8192);
        assert_eq!((Pieces::whole(8192).len(), Pieces::whole(0).len()), (1, 0));
    }

    #[test]
    fn cores_of_different_speeds_end_together() {
        for speeds in [&[1.0, 1.0][..], &[1.0, 0.25], &[1.0, 0.5, 0.5], &[1.0, 1.0, 0.3, 0.3]] {
            let pieces = Pieces::new(8192, 32, speeds.len());
            let best = 8192.0 / speeds.iter().sum::<f64>();
            let took = time(&pieces, speeds);
            assert!(took < 1.06 * best, "{speeds:?}: {took:.0}, at best {best:.0}");
        }
    }
}
