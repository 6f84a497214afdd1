//! Products of few tokens: sixteen rows are unpacked and multiplied a few columns at a time.
//!
//! **The idea.** With hundreds of tokens, unpacking 256 columns into a panel costs little beside multiplying them; with
//! eight it takes as long. Loads, shuffles and stores come first then, and products after them, though they use
//! different parts of the core. Units of 32 to 128 columns, as many as share bytes of codes, are short enough that the core
//! begins to unpack the next one while it multiplies. Codes stay in registers: the core waits for vectors that it has just
//! stored.
//!
//! Measured: benches/record/epyc-genoa-2vcpu/2026-11-30-few.md.

use crate::panel::Panel;
use crate::stream::{Ahead, PanelRows};

#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
pub(super) use avx512::of as avx512;

/// Maximum tokens.
pub(crate) const TOKENS: usize = 8;

/// The kernel of a type.
#[derive(Clone, Copy)]
pub(crate) struct Fused {
    /// Adds a product to results of sixteen rows. Unsafe to call on a CPU without the level.
    pub run: unsafe fn(product: &mut Product<'_>, strip: &mut [f32]),
    /// Number of tokens from which it is faster than [`crate::dot`].
    pub tokens_min: usize,
}

/// Sixteen rows times some tokens.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "the kernels are those of x86-64")
)]
pub(crate) struct Product<'a> {
    /// The rows, with a whole number of 256 columns.
    pub rows: PanelRows<'a>,
    /// Columns.
    pub cols: usize,
    /// Lines to prefetch meanwhile.
    pub ahead: Ahead,
    /// Whether the rows have not been prefetched yet.
    pub cold: bool,
    /// The packed activations, a single chunk.
    pub packed: &'a [u8],
    /// Number of tokens, at most [`TOKENS`].
    pub tokens: usize,
    /// Where scales are unpacked.
    pub panel: &'a mut Panel,
    /// Distance from a token's results to those of the next.
    pub stride: usize,
}
