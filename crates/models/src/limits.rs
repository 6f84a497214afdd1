//! Upper bounds on what metadata may declare; published models stay far below them.

/// Layers.
pub const LAYERS: usize = 10_000;
/// Width of the hidden state, of a head and of the feed-forward.
pub const WIDTH: usize = 1 << 20;
/// Query or key-value heads of a layer.
pub const HEADS: usize = 1 << 14;
/// Rows that a convolution sums; published models have 3 or 4.
pub const TAPS: usize = 16;
/// Elements of a row of a head's state; published models have 64 to 256.
pub const STATE_DIM: usize = 1 << 10;
/// Experts of a layer.
pub const EXPERTS: usize = 1 << 12;
/// Tokens of the vocabulary.
pub const VOCAB: usize = 1 << 24;
/// Tokens of context.
pub const CONTEXT: usize = 1 << 30;
