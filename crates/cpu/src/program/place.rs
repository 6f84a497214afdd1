//! Liveness analysis: places buffers that are never in use together in the same memory.

use std::cmp::Reverse;

use crate::memory::lines;

/// A buffer to be placed: in use from item `first` to item `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) bytes: usize,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// An offset per request, and the total bytes: the largest first, each at the lowest offset that is free while it is
/// in use. Small buffers fit into the gaps between large ones, not the other way round. Offsets are whole cache
/// lines.
pub(crate) fn place(requests: &[Request]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&at| (Reverse(requests[at].bytes), requests[at].first));
    let mut offsets = vec![0; requests.len()];
    let mut total = 0;
    // Sorted by offset.
    let mut placed: Vec<usize> = Vec::with_capacity(requests.len());
    for at in order {
        let request = requests[at];
        let bytes = lines(request.bytes);
        let mut offset = 0;
        for &other in &placed {
            let Request { bytes: other_bytes, first, last } = requests[other];
            if last < request.first || request.last < first {
                continue;
            }
            if offset + bytes <= offsets[other] {
                break;
            }
            offset = offset.max(offsets[other] + lines(other_bytes));
        }
        offsets[at] = offset;
        total = total.max(offset + bytes);
        placed.insert(placed.partition_point(|&other| offsets[other] <= offset), at);
    }
    (offsets, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_in_use_together_never_overlap() {
        // A fixed sequence of pseudo-random requests (Knuth's MMIX generator).
        let mut seed = 7u64;
        let mut random = |below: usize| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let requests: Vec<Request> = (0..200)
            .map(|_| {
                let first = random(60);
                Request { bytes: 1 + random(5000), first, last: first + random(8) }
            })
            .collect();
        let (offsets, total) = place(&requests);
        for (a, one) in requests.iter().enumerate() {
            assert!(offsets[a] % 64 == 0 && offsets[a] + one.bytes <= total);
            for (b, other) in requests.iter().enumerate().skip(a + 1) {
                let together = one.first <= other.last && other.first <= one.last;
                let apart =
                    offsets[a] + one.bytes <= offsets[b] || offsets[b] + other.bytes <= offsets[a];
                assert!(!together || apart, "{a} {one:?} and {b} {other:?}");
            }
        }
        let all: usize = requests.iter().map(|r| r.bytes).sum();
        assert!(total < all / 3, "{total} of {all} bytes: memory is shared");
    }
}
