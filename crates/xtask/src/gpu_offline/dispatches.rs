//! Dispatches of a decoder's token, by which its time is predicted. `tests/gpu.rs` counts them.

/// Those of a layer whose matrices are of one type: query, key and value; rotation; attention and its merge; output; gate and up;
/// down (docs/internals/gpu.md).
pub const LAYER: usize = 7;

/// One more where a layer's values have another type.
pub const OTHER_VALUES: usize = 1;

/// Those outside of layers: embedding, the first norm, the wanted rows of two values, output matrix.
pub const OTHERS: usize = 5;
