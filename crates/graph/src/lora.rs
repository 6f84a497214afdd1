//! Low-rank adapters (LoRA): matrices of a low rank whose product is added to a matrix of the model.

use crate::WeightId;

/// An adapter: for the matrix `name [rows, cols]` of the model it may have `{prefix}{name}.lora_a [rank, cols]` and
/// `{prefix}{name}.lora_b [rows, rank]`; `out += factor * (input x transpose(a)) x transpose(b)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// What precedes the names of its tensors.
    pub prefix: String,
    /// How strongly it is applied; 1 is as it was trained.
    pub scale: f32,
    /// The numerator of its own factor, `alpha / rank`; without it that is 1.
    pub alpha: Option<f32>,
}

impl Lora {
    /// The names of its tensors for the matrix `name`: the one from the input down to the rank, and the one up from it.
    pub fn tensors(&self, name: &str) -> [String; 2] {
        ["a", "b"].map(|part| format!("{}{name}.lora_{part}", self.prefix))
    }

    /// The factor of what it adds.
    pub fn factor(&self, rank: usize) -> f32 {
        self.scale * self.alpha.map_or(1.0, |alpha| alpha / rank as f32)
    }
}

/// What an adapter adds to the products with one matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LowRank {
    pub down: WeightId,
    pub up: WeightId,
    pub factor: f32,
}
