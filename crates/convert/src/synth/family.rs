//! What depends on the family of a random model.

/// Settings that depend on the model family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Family {
    /// Causal, with RoPE.
    Decoder {
        rope_base: f32,
        /// Factor by which Llama 3's rule extends the context.
        longer: Option<f32>,
        /// Whether queries and keys are normalized per head.
        head_norms: bool,
        /// `tokenizer.ggml.pre`.
        pre: &'static str,
    },
    /// Bidirectional, with learned positions.
    Encoder,
}
