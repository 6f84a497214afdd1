//! What a model's graph is recorded for.

use bilayer_models::{Encoder, Pooling};

/// The output of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// The model's own purpose: a decoder's logits, an encoder's scores or, without a head, its hidden states.
    #[default]
    Own,
    /// An encoder's hidden states, all rows or one per text; `None` uses the file's pooling.
    Embed(Option<Pooling>),
    /// The scores of an encoder's head.
    Score,
    /// A decoder's logits, with the hidden states that its MTP block continues
    /// ([`Session::hidden`](crate::session::Session::hidden)).
    WithHidden,
    /// The logits of a decoder's MTP block, each step of which is given hidden states
    /// ([`Session::give_hidden`](crate::session::Session::give_hidden)), and hidden states for its own next step.
    Mtp,
}

impl Purpose {
    /// Makes an encoder's recording end accordingly.
    pub(crate) fn apply(self, encoder: &mut Encoder) {
        if let Purpose::Embed(pooling) = self {
            encoder.scores = false;
            encoder.pooling = pooling.unwrap_or(encoder.pooling);
        }
    }
}
