//! A mixture of experts in place of the feed-forward.

use bilayer_graph::{Error, Recorder, Route, Score, Value, WeightId};

use super::{Block, Projection, norm};
use crate::{Experts, FeedForward, Shared};

impl Block<'_> {
    /// `sum over the chosen experts of weight * down(activation(gate(x)) * up(x))`, plus the shared expert:
    /// `[.., width]` to `[.., width]`. The router reads `routed_by`.
    pub(super) fn mixture(
        &self,
        r: &mut Recorder<'_>,
        input: Value,
        routed_by: Value,
        experts: &Experts,
    ) -> Result<Value, Error> {
        let Experts { count, feed_forward: inner, .. } = *experts;
        let width = self.config.width;
        let router = Projection::whole("ffn_gate_inp", count);
        let logits = self.linear(r, "ffn_moe_logits", routed_by, &router)?; // [.., experts]
        let factors = self.down_factors(r, experts)?;
        let bias = r.optional_vector(&self.tensor("exp_probs_b.bias"), count)?;
        let route = Route {
            logits,
            bias,
            used: experts.used,
            groups: experts.groups,
            score: experts.score,
            normalise: experts.normalise,
            scale: experts.scale,
            factors,
            out: logits, // replaced by the recorder
        };
        let route = r.route("ffn_moe_topk", route); // [.., 2 used]
        let shape = [count, inner, width];
        let routed = match experts.weighed_input {
            true => r.mix("ffn_moe_weighed", input, route), // [.., width]
            false => input,
        };
        let act = self.hidden_of_experts(r, (routed, route), shape)?; // [.., used * inner]
        let shape = [count, width, inner];
        let down = self.experts(r, "ffn_moe_down", "ffn_down", (act, route), shape)?; // [.., used * width]
        let out = match experts.weighed_input {
            true => down,
            false => r.mix("ffn_moe_out", down, route), // [.., width]
        };
        match &experts.shared {
            None => Ok(out),
            Some(shared) => {
                let shared = self.shared(r, input, shared)?;
                Ok(r.add("ffn_out", out, shared)) // [.., width]
            }
        }
    }

    /// Whether factors on the products with the experts' last matrices are factors on the weights: not where the weights are
    /// on the input, nor where biases follow the products.
    fn weighs_by_factors(&self, r: &Recorder<'_>) -> bool {
        let weighs_input = self.config.experts.as_ref().is_some_and(|known| known.weighed_input);
        !weighs_input && !r.has(&self.tensor("ffn_down_exps.bias"))
    }

    /// Factors on the weights, `[1, experts]`.
    fn down_factors(
        &self,
        r: &mut Recorder<'_>,
        experts: &Experts,
    ) -> Result<Option<WeightId>, Error> {
        if !self.weighs_by_factors(r) {
            return Ok(None);
        }
        // The second is ollama's.
        let names = ["ffn_down_exps.scale", "ffn_gate_inp.per_expert_scale"];
        let name = names.map(|name| self.tensor(name)).into_iter().find(|name| r.has(name));
        name.map(|name| r.vector(&name, experts.count)).transpose()
    }

    /// The hidden states of the chosen experts, `activation(gate(x)) * up(x)` or `activation(up(x))`: `[.., used * inner]`.
    fn hidden_of_experts(
        &self,
        r: &mut Recorder<'_>,
        (input, route): (Value, Value),
        [count, inner, width]: [usize; 3],
    ) -> Result<Value, Error> {
        let product = |r: &mut Recorder<'_>, name, stem: &str, rows| {
            self.experts(r, name, stem, (input, route), [count, rows, width])
        };
        let activation = self.config.activation;
        if self.config.feed_forward == FeedForward::Plain {
            let up = product(r, "ffn_moe_up", "ffn_up", inner)?;
            return Ok(r.gate("ffn_moe_act", up, None, activation));
        }
        let [gate, up] = match r.has(&self.tensor("ffn_gate_up_exps.weight")) {
            true => {
                let both = product(r, "ffn_moe_gate_up", "ffn_gate_up", 2 * inner)?;
                let half = |r: &mut Recorder<'_>, name, range| r.part(name, both, 2 * inner, range);
                [half(r, "ffn_moe_gate", 0..inner), half(r, "ffn_moe_up", inner..2 * inner)]
            }
            false => [
                product(r, "ffn_moe_gate", "ffn_gate", inner)?,
                product(r, "ffn_moe_up", "ffn_up", inner)?,
            ],
        };
        Ok(r.gate("ffn_moe_act", gate, Some(up), activation))
    }

    /// The feed-forward of the normed input plus the experts on the residual stream, each with norms of its own:
    /// `[.., width]`.
    pub(super) fn beside(
        &self,
        r: &mut Recorder<'_>,
        input: Value,
        residual: Value,
        experts: &Experts,
    ) -> Result<Value, Error> {
        let normed = |r: &mut Recorder<'_>, name, stem: &str, value| {
            norm(self.config, r, name, &self.tensor(stem), value)
        };
        let dense = self.feed_forward(input, r)?;
        let dense = normed(r, "ffn_norm_1", "post_ffw_norm_1", dense)?;
        let gain = r.vector(&self.tensor("ffn_gate_inp.scale"), self.config.width)?;
        let routed_by = r.rms_norm("ffn_moe_inp", residual, Some(gain), self.config.norm_eps);
        let root = (self.config.width as f32).sqrt();
        let routed_by = r.scale("ffn_moe_inp_scaled", routed_by, 1.0 / root);
        let input = normed(r, "ffn_moe_norm", "pre_ffw_norm_2", residual)?;
        let sparse = self.mixture(r, input, routed_by, experts)?;
        let sparse = normed(r, "ffn_norm_2", "post_ffw_norm_2", sparse)?;
        Ok(r.add("ffn_out", dense, sparse))
    }

    /// Products with the matrices `[rows, cols]` of the chosen experts: `[.., cols]`, or `[.., used * cols]`, to
    /// `[.., used * rows]`.
    fn experts(
        &self,
        r: &mut Recorder<'_>,
        name: &'static str,
        stem: &str,
        (input, route): (Value, Value),
        shape: [usize; 3],
    ) -> Result<Value, Error> {
        let all = self.tensor(&format!("{stem}_exps.weight"));
        let each = |expert| self.tensor(&format!("{stem}.{expert}.weight"));
        let stack = r.stack(&all, each, shape)?;
        let [count, rows, _] = shape;
        let stem = format!("{stem}_exps");
        let vector = self.tensor(&format!("{stem}.bias"));
        let bias = match self.config.biased.contains(&stem.as_str()) || r.has(&vector) {
            true => Some(r.expert_vectors(&vector, [count, rows])?),
            false => None,
        };
        let factors = self.tensor(&format!("{stem}.scale"));
        let is_apart = stem != "ffn_down_exps" || !self.weighs_by_factors(r);
        // A file with both is refused for a tensor without use.
        let factors = match is_apart && bias.is_none() && r.has(&factors) {
            true => Some(r.expert_factors(&factors, count)?),
            false => None,
        };
        let out = input; // replaced by the recorder
        Ok(r.experts(name, bilayer_graph::Experts { input, route, stack, bias, factors, out }))
    }

    /// The shared expert: `[.., width]` to `[.., width]`.
    fn shared(&self, r: &mut Recorder<'_>, input: Value, shared: &Shared) -> Result<Value, Error> {
        let by = |stem| Projection::whole(stem, shared.feed_forward);
        let act = match self.config.feed_forward {
            FeedForward::Plain => {
                self.ungated(r, input, &by("ffn_up_shexp"), self.config.activation)?
            }
            _ => self.gated(r, input, [by("ffn_gate_shexp"), by("ffn_up_shexp")])?,
        }; // [.., feed_forward]
        let down = Projection::whole("ffn_down_shexp", self.config.width);
        let out = self.linear(r, "ffn_shexp", act, &down)?; // [.., width]
        if !shared.weighed {
            return Ok(out);
        }
        // Its weight is a router with a single expert.
        let router = Projection::whole("ffn_gate_inp_shexp", 1);
        let logits = self.linear(r, "ffn_shexp_logit", input, &router)?; // [.., 1]
        let route = Route {
            logits,
            bias: None,
            used: 1,
            groups: None,
            score: Score::Sigmoid,
            normalise: false,
            scale: 1.0,
            factors: None,
            out: logits, // replaced by the recorder
        };
        let route = r.route("ffn_shexp_weight", route); // [.., 2]
        Ok(r.mix("ffn_shexp_weighed", out, route)) // [.., width]
    }
}
