//! Grids: the weights that blocks of a type can have, for quantizers that round weight by weight and correct the others.

/// The multiples of a block's scale within the range of the type's codes.
#[derive(Clone, Copy)]
pub struct Grid {
    /// Weights of a block; of a whole row if `None`.
    pub(crate) block: Option<usize>,
    /// The lowest and the highest code.
    pub(crate) codes: [f64; 2],
    pub(crate) scale: fn(&[f32]) -> f32,
    pub(crate) write: fn(&[f32], f32, &mut [u8]),
}

impl Grid {
    /// The number of weights with one scale in a row of `cols`.
    #[must_use]
    pub fn block(&self, cols: usize) -> usize {
        self.block.unwrap_or(cols)
    }

    /// The scale that [`Type::quantize`](crate::Type::quantize) chooses for a block of values.
    #[must_use]
    pub fn scale(&self, values: &[f32]) -> f32 {
        (self.scale)(values)
    }

    /// The weight nearest to `value` under a scale.
    #[must_use]
    pub fn nearest(&self, value: f32, scale: f32) -> f32 {
        if scale == 0.0 {
            return 0.0;
        }
        let [low, high] = self.codes;
        (f64::from(value) / f64::from(scale)).round().clamp(low, high) as f32 * scale
    }

    /// Writes a block of weights of that scale without loss: each is [`Grid::nearest`] to itself, and of a sparse type a
    /// group has no more than the type keeps.
    pub fn write(&self, values: &[f32], scale: f32, block: &mut [u8]) {
        (self.write)(values, scale, block);
    }
}
