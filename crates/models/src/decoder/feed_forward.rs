//! The feed-forward without experts: gated, or an activation alone.

use bilayer_graph::{Activation, Error, Recorder, Value};

use super::{Block, Projection};
use crate::{Config, Experts, FeedForward};

impl Block<'_> {
    /// Feed-forward of the normed input: `[.., width]` to `[.., width]`.
    pub(super) fn feed_forward(&self, normed: Value, r: &mut Recorder<'_>) -> Result<Value, Error> {
        let Config { width, activation, feed_forward, .. } = *self.config;
        let inner = self.layer.feed_forward;
        let whole = |stem| Projection::whole(stem, inner);
        let is_sparse = |experts: &&Experts| self.layer.experts && !experts.beside;
        if let Some(experts) = self.config.experts.as_ref().filter(is_sparse) {
            return self.mixture(r, normed, normed, experts);
        }
        let has_gate = r.has(&self.tensor("ffn_gate.weight"));
        let act = match feed_forward {
            FeedForward::Plain => self.ungated(r, normed, &whole("ffn_up"), activation)?,
            FeedForward::GatedIfAny(plain) if !has_gate => {
                self.ungated(r, normed, &whole("ffn_up"), plain)?
            }
            FeedForward::GatedInOne if !has_gate => {
                self.gated(r, normed, Projection::in_one("ffn_up", [inner, inner]))?
            }
            FeedForward::Gated | FeedForward::GatedInOne | FeedForward::GatedIfAny(_) => {
                self.gated(r, normed, [whole("ffn_gate"), whole("ffn_up")])?
            }
        }; // [.., feed_forward]
        self.linear(r, "ffn_down", act, &Projection::whole("ffn_down", width)) // [.., width]
    }

    /// `activation(up(x))`: `[.., width]` to `[.., feed_forward]`.
    pub(super) fn ungated(
        &self,
        r: &mut Recorder<'_>,
        input: Value,
        up: &Projection<'_>,
        activation: Activation,
    ) -> Result<Value, Error> {
        let up = self.linear(r, "ffn_up", input, up)?;
        Ok(r.gate("ffn_act", up, None, activation))
    }

    /// `activation(gate(x)) * up(x)`: `[.., width]` to `[.., feed_forward]`.
    pub(super) fn gated(
        &self,
        r: &mut Recorder<'_>,
        input: Value,
        [gate, up]: [Projection<'_>; 2],
    ) -> Result<Value, Error> {
        let gate = self.linear(r, "ffn_gate", input, &gate)?;
        let up = self.linear(r, "ffn_up", input, &up)?;
        Ok(r.gate("ffn_act", gate, Some(up), self.config.activation))
    }
}
