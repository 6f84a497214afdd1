//! A mixture of experts in place of the feed-forward.

use bilayer_graph::{Error, Recorder, Route, Score, Value};

use super::{Block, Projection};
use crate::{Experts, Shared};

impl Block<'_> {
    /// `sum over the chosen experts of weight * down(activation(gate(x)) * up(x))`, plus the shared expert:
    /// `[.., width]` to `[.., width]`.
    pub(super) fn mixture(
        &self,
        r: &mut Recorder<'_>,
        input: Value,
        experts: &Experts,
    ) -> Result<Value, Error> {
        let Experts { count, feed_forward: inner, .. } = *experts;
        let width = self.config.width;
        let router = Projection::whole("ffn_gate_inp", count);
        let logits = self.linear(r, "ffn_moe_logits", input, &router)?; // [.., experts]
        let bias = r.optional_vector(&self.tensor("exp_probs_b.bias"), count)?;
        let route = Route {
            logits,
            bias,
            used: experts.used,
            score: experts.score,
            normalise: experts.normalise,
            scale: experts.scale,
            out: logits, // replaced by the recorder
        };
        let route = r.route("ffn_moe_topk", route); // [.., 2 used]
        let product = |r: &mut Recorder<'_>, name, stem: &str, input, shape| {
            self.experts(r, name, stem, (input, route), shape)
        };
        let shape = [count, inner, width];
        let gate = product(r, "ffn_moe_gate", "ffn_gate", input, shape)?; // [.., used * inner]
        let up = product(r, "ffn_moe_up", "ffn_up", input, shape)?; // [.., used * inner]
        let act = r.gate("ffn_moe_act", gate, Some(up), self.config.activation);
        let shape = [count, width, inner];
        let down = product(r, "ffn_moe_down", "ffn_down", act, shape)?; // [.., used * width]
        let out = r.mix("ffn_moe_out", down, route); // [.., width]
        match &experts.shared {
            None => Ok(out),
            Some(shared) => {
                let shared = self.shared(r, input, shared)?;
                Ok(r.add("ffn_out", out, shared)) // [.., width]
            }
        }
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
            true => Some(r.stack_vector(&vector, [count, rows])?),
            false => None,
        };
        let out = input; // replaced by the recorder
        Ok(r.experts(name, bilayer_graph::Experts { input, route, stack, bias, out }))
    }

    /// The shared expert: `[.., width]` to `[.., width]`.
    fn shared(&self, r: &mut Recorder<'_>, input: Value, shared: &Shared) -> Result<Value, Error> {
        let inner = ["ffn_gate_shexp", "ffn_up_shexp"]
            .map(|stem| Projection::whole(stem, shared.feed_forward));
        let act = self.gated(r, input, inner)?; // [.., feed_forward]
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
            score: Score::Sigmoid,
            normalise: false,
            scale: 1.0,
            out: logits, // replaced by the recorder
        };
        let route = r.route("ffn_shexp_weight", route); // [.., 2]
        Ok(r.mix("ffn_shexp_weighed", out, route)) // [.., width]
    }
}
