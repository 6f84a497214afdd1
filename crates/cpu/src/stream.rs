//! Weight rows as streams of bytes, and the prefetching of what follows in them.

/// A byte range of several rows.
#[derive(Clone, Copy)]
pub(crate) struct PanelRows<'a> {
    /// The rows, starting with the first one.
    pub weights: &'a [u8],
    /// Distance between rows.
    pub row_bytes: usize,
    /// Offset of the range in each row.
    pub start: usize,
    /// Bytes of the range in each row.
    pub len: usize,
}

impl PanelRows<'_> {
    /// The byte range of row `row`.
    #[inline(always)]
    pub fn row(&self, row: usize) -> &[u8] {
        let start = row * self.row_bytes + self.start;
        &self.weights[start..start + self.len]
    }

    /// Prefetches the byte ranges of `count` rows, as far as the weights go. A panel reads more streams than the
    /// hardware prefetcher follows.
    pub fn prefetch(&self, count: usize) {
        for row in 0..count {
            let start = row * self.row_bytes + self.start;
            let Some(bytes) = self.weights.get(start..start + self.len) else { break };
            prefetch(bytes);
        }
    }
}

/// Prefetches bytes into the second-level cache.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8]) {
    prefetch_lines(bytes.as_ptr(), bytes.len().div_ceil(64));
}

/// Prefetches bytes at any address, mapped or not: a prefetch affects only the caches.
#[inline(always)]
pub(crate) fn prefetch_lines(start: *const u8, lines: usize) {
    for line in 0..lines {
        let line = start.wrapping_add(64 * line);
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: prefetching reads nothing and is part of x86-64.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
        }
        #[cfg(target_arch = "aarch64")]
        crate::neon::prefetch_outer(line);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}

/// Cache lines to prefetch during a computation: prefetching them all at once would delay its loads.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    start: *const u8,
    lines: usize,
}

impl Ahead {
    /// The bytes that follow some weights, as many as these.
    pub fn of(weights: &[u8]) -> Ahead {
        Ahead { start: weights.as_ptr_range().end, lines: weights.len().div_ceil(64) }
    }

    /// Splits into `count` parts of about equal size, in order.
    #[inline(always)]
    pub fn split(self, count: usize) -> Split {
        let count = count.max(1);
        let (lines, more) = (self.lines / count, self.lines % count);
        Split { start: self.start, lines, more, count, carried: 0 }
    }

    /// Prefetches all lines.
    #[inline(always)]
    pub fn fetch(self) {
        prefetch_lines(self.start, self.lines);
    }
}

/// The parts of an [`Ahead`], computed without a division per part, which the smallest kernels would notice.
pub(crate) struct Split {
    /// Start of the next part.
    start: *const u8,
    /// Minimum lines per part.
    lines: usize,
    /// Number of parts with one line more, spread evenly over `count`.
    more: usize,
    count: usize,
    carried: usize,
}

impl Split {
    /// Prefetches the next part. Beyond `count` parts it continues in the same way.
    #[inline(always)]
    pub fn part(&mut self) -> Ahead {
        self.carried += self.more;
        let one = self.carried >= self.count;
        self.carried -= if one { self.count } else { 0 };
        let part = Ahead { start: self.start, lines: self.lines + usize::from(one) };
        self.start = self.start.wrapping_add(64 * part.lines);
        part
    }
}
