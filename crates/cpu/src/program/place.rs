//! Liveness: which buffers may lie in the same memory, because they are never in use together.

use crate::memory::lines;

/// A buffer to be placed: in use from item `first` to item `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) bytes: usize,
    pub(crate) first: usize,
    pub(crate) last: usize,
}

/// An offset for each request, and the bytes of all: in order of first use, each at the lowest place that
/// is free while it is in use. Offsets are whole cache lines.
pub(crate) fn place(requests: &[Request]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    // Of those that begin together the largest comes first: small ones fit into the gaps.
    order.sort_by_key(|&at| (requests[at].first, std::cmp::Reverse(requests[at].bytes)));
    let mut offsets = vec![0; requests.len()];
    let mut total = 0;
    // Offset, end, and the last item of each buffer in use, by offset.
    let mut used: Vec<(usize, usize, usize)> = Vec::new();
    for at in order {
        let request = requests[at];
        used.retain(|&(_, _, last)| last >= request.first);
        let bytes = lines(request.bytes);
        let mut offset = 0;
        let mut slot = 0;
        for (index, &(start, end, _)) in used.iter().enumerate() {
            if offset + bytes <= start {
                break;
            }
            offset = offset.max(end);
            slot = index + 1;
        }
        used.insert(slot, (offset, offset + bytes, request.last));
        offsets[at] = offset;
        total = total.max(offset + bytes);
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
