//! Mixture-of-experts settings, read from metadata.

use bilayer_graph::{Groups, Score};

use crate::keys::Keys;
use crate::{Error, limits};

/// The experts of a layer: gated feed-forwards, some of which each token is routed to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts per token.
    pub used: usize,
    /// Groups to which a token's experts are confined.
    pub groups: Option<Groups>,
    /// Width of an expert's hidden state.
    pub feed_forward: usize,
    /// How the router's logits become weights.
    pub score: Score,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// Whether a token's only expert is weighted at its input instead of its output.
    pub weighed_input: bool,
    /// Whether they run beside the layer's own feed-forward, each with norms of its own, and the router reads the
    /// residual stream.
    pub beside: bool,
    /// The shared expert, which every token passes through.
    pub shared: Option<Shared>,
}

/// A gated feed-forward beside the routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Width of its hidden state.
    pub feed_forward: usize,
    /// Whether its output is weighted by the sigmoid of a learned logit instead of 1.
    pub weighed: bool,
}

/// An architecture's default for the experts' weights if `expert_weights_norm` is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// The router's scores.
    Scores,
    /// The scores divided by their sum over the chosen experts.
    Shares,
}

impl Experts {
    /// Reads the keys, with `usual` as the architecture's default. A count of 0 means no mixture.
    ///
    /// # Errors
    /// A key is absent, of another kind or out of bounds.
    pub(crate) fn read(keys: &Keys<'_>, usual: Weights) -> Result<Option<Experts>, Error> {
        let count = keys.opt_size("expert_count", 0..=limits::EXPERTS)?.unwrap_or(0);
        if count == 0 {
            return Ok(None);
        }
        let width = |name| keys.opt_size(name, 0..=limits::WIDTH);
        let (score, of_chosen) = match keys.opt_size("expert_gating_func", 0..=3)? {
            // Absent or 0: files written before the key existed use softmax.
            None | Some(0 | 1) => (Score::Softmax, false),
            Some(2) => (Score::Sigmoid, false),
            // The softmax over the chosen experts equals the softmax over all, divided by its sum over the
            // chosen.
            Some(_) => (Score::Softmax, true),
        };
        let normalise = keys.opt_flag("expert_weights_norm")?;
        let feed_forward = match width("expert_feed_forward_length")?.unwrap_or(0) {
            0 => keys.size("feed_forward_length", 1..=limits::WIDTH)?,
            width => width,
        };
        let used = keys.size("expert_used_count", 1..=count)?;
        Ok(Some(Experts {
            count,
            used,
            groups: groups(keys, count, used)?,
            feed_forward,
            score,
            normalise: of_chosen || normalise.unwrap_or(usual == Weights::Shares),
            scale: keys.positive_or_zero("expert_weights_scale")?.unwrap_or(1.0),
            weighed_input: false,
            beside: false,
            shared: None,
        }))
    }

    /// Scores of kind `usual`, unless the file says which.
    pub(crate) fn scored(self, keys: &Keys<'_>, usual: Score) -> Experts {
        match keys.metadata.opt_usize(&keys.key("expert_gating_func")) {
            Ok(Some(1..)) => self,
            _ => Experts { score: usual, ..self },
        }
    }

    /// Adds the shared expert, by its width or by the number of experts that it stands for.
    ///
    /// # Errors
    /// A key is of another kind or out of bounds.
    pub(crate) fn with_shared(self, keys: &Keys<'_>) -> Result<Experts, Error> {
        let count = keys.opt_size("expert_shared_count", 0..=limits::EXPERTS)?.unwrap_or(0);
        let width = keys.opt_size("expert_shared_feed_forward_length", 0..=limits::WIDTH)?;
        let feed_forward = width.unwrap_or(count.saturating_mul(self.feed_forward));
        let shared = (feed_forward > 0).then_some(Shared { feed_forward, weighed: false });
        Ok(Experts { shared, ..self })
    }
}

/// The groups of `count` experts of which `used` are chosen. No key says how many experts of a group count for its score:
/// two, unless the architecture decides otherwise.
fn groups(keys: &Keys<'_>, count: usize, used: usize) -> Result<Option<Groups>, Error> {
    let name = "expert_group_count";
    let groups = keys.opt_size(name, 0..=Groups::MAX)?.unwrap_or(0);
    if groups < 2 {
        return Ok(None);
    }
    if !count.is_multiple_of(groups) {
        return Err(keys.value(name, format!("a divisor of the {count} experts"), groups));
    }
    let least = used.div_ceil(count / groups);
    let used = keys.size("expert_group_used_count", least..=groups)?;
    Ok(Some(Groups { count: groups, used, best: 2 }))
}

#[cfg(test)]
mod tests {
    use bilayer_gguf::Value;
    use bilayer_graph::{Groups, Op, Score};
    use bilayer_quant::Type;

    use crate::tiny::changed;
    use crate::{Experts, Outline, find, record};

    const MIXTRAL: [(&str, Value); 2] =
        [("expert_count", Value::U32(4)), ("expert_used_count", Value::U32(2))];

    #[test]
    fn a_llama_with_experts_is_a_mixtral() {
        let llama = find("llama").unwrap();
        let experts = changed(llama, &MIXTRAL).unwrap().experts.unwrap();
        let expected = Experts {
            count: 4,
            used: 2,
            groups: None,
            feed_forward: 96,
            score: Score::Softmax,
            normalise: true,
            scale: 1.0,
            weighed_input: false,
            beside: false,
            shared: None,
        };
        assert_eq!(experts, expected);
        let none = changed(llama, &[("expert_count", 0u32.into())]).unwrap();
        assert_eq!((none.experts, none.layers[0].experts), (None, false));
    }

    #[test]
    fn keys_change_width_score_and_weights() {
        let more = [
            ("expert_feed_forward_length", 32u32.into()),
            ("expert_gating_func", 2u32.into()),
            ("expert_weights_norm", false.into()),
            ("expert_weights_scale", 2.5f32.into()),
            ("leading_dense_block_count", 1u32.into()),
        ];
        let all = [&MIXTRAL[..], &more].concat();
        let config = changed(find("llama").unwrap(), &all).unwrap();
        let experts = config.experts.unwrap();
        assert_eq!((experts.feed_forward, experts.score), (32, Score::Sigmoid));
        assert_eq!((experts.normalise, experts.scale), (false, 2.5));
        assert_eq!(
            config.layers.iter().map(|l| l.experts).collect::<Vec<_>>(),
            [false, true, true]
        );
    }

    #[test]
    fn groups_hold_as_many_experts_as_a_token_uses() {
        let of = |count: u32, used: u32| {
            let more = [
                ("expert_group_count", Value::U32(count)),
                ("expert_group_used_count", Value::U32(used)),
            ];
            changed(find("llama").unwrap(), &[&MIXTRAL[..], &more].concat())
        };
        let groups = |count, used| of(count, used).unwrap().experts.unwrap().groups;
        assert_eq!(groups(1, 1), None);
        assert_eq!(groups(2, 1), Some(Groups { count: 2, used: 1, best: 2 }));
        for (count, used) in [(2, 0), (2, 3), (4, 1)] {
            let error = of(count, used).unwrap_err().to_string();
            assert!(error.contains("llama.expert_group_used_count"), "{error}");
        }
    }

    #[test]
    fn a_softmax_over_the_chosen_makes_shares() {
        let more = [("expert_gating_func", 3u32.into()), ("expert_weights_norm", false.into())];
        let config = changed(find("llama").unwrap(), &[&MIXTRAL[..], &more].concat()).unwrap();
        let experts = config.experts.unwrap();
        assert_eq!((experts.score, experts.normalise), (Score::Softmax, true));
    }

    #[test]
    fn odd_counts_are_refused_by_key() {
        let cases = [
            ("expert_count", Value::U32(4097)),
            ("expert_used_count", Value::U32(0)),
            ("expert_used_count", Value::U32(5)),
            ("expert_gating_func", Value::U32(4)),
            ("expert_weights_scale", Value::F32(-1.0)),
            ("leading_dense_block_count", Value::U32(4)),
            ("expert_group_count", Value::U32(3)),
            ("expert_group_count", Value::U32(65)),
        ];
        for case in cases {
            let (name, all) = (case.0, [&MIXTRAL[..], &[case]].concat());
            let message = changed(find("llama").unwrap(), &all).unwrap_err().to_string();
            assert!(message.contains(&format!("llama.{name}")), "{name}: {message}");
        }
    }

    #[test]
    fn experts_are_one_tensor_or_many() {
        let config = changed(find("llama").unwrap(), &MIXTRAL).unwrap();
        let names = |optional: &[&str]| {
            let outline = Outline::new(Type::F32, optional);
            let graph = record(&config, &outline).unwrap();
            let weights = graph.weights.iter().filter(|weight| weight.name.contains("blk.1.ffn"));
            let shown = |w: &bilayer_graph::Weight| {
                format!("{} {}x{}x{}", &w.name[6..], w.stacked, w.rows / w.stacked, w.cols)
            };
            weights.map(shown).collect::<Vec<_>>().join(", ")
        };
        let stacked = "ffn_norm.weight 1x1x64, ffn_gate_inp.weight 1x4x64, \
            ffn_gate_exps.weight 4x96x64, ffn_up_exps.weight 4x96x64, ffn_down_exps.weight 4x64x96";
        assert_eq!(names(&[]), stacked);
        let split = "ffn_norm.weight 1x1x64, ffn_gate_inp.weight 1x4x64, \
            ffn_gate_exps.weight 4x96x64, ffn_up.0.weight 1x96x64, ffn_up.1.weight 1x96x64, \
            ffn_up.2.weight 1x96x64, ffn_up.3.weight 1x96x64, ffn_down_exps.weight 4x64x96";
        assert_eq!(names(&["blk.1.ffn_up.0.weight"]), split);
    }

    /// As in llama.cpp's conversions of NVFP4 checkpoints. The factors of the last products are on the weights, unless these
    /// are on the input, as in Llama 4.
    #[test]
    fn products_of_experts_have_factors() {
        let all = ["gate", "up", "down"].map(|name| format!("blk.1.ffn_{name}_exps.scale"));
        let optional: Vec<&str> = all.iter().map(String::as_str).collect();
        for (name, on_products) in [("llama", 2), ("llama4", 3)] {
            let more = if name == "llama" { &MIXTRAL[..] } else { &[] };
            let config = changed(find(name).unwrap(), more).unwrap();
            let graph = record(&config, &Outline::new(Type::F32, &optional)).unwrap();
            let factors = graph.nodes.iter().filter_map(|node| match &node.op {
                Op::Experts(op) => op.factors,
                _ => None,
            });
            let names = factors.map(|id| graph.weight(id).name.as_str()).collect::<Vec<_>>();
            assert_eq!(names, optional[..on_products], "{name}");
            let route = graph.nodes.iter().find_map(|node| match &node.op {
                Op::Route(op) => op.factors,
                _ => None,
            });
            let route = route.map(|id| graph.weight(id).name.as_str());
            assert_eq!(route, optional.get(on_products).copied(), "{name}");
        }
        // With a bias the file is refused, since the factors have no use.
        let config = changed(find("llama").unwrap(), &MIXTRAL).unwrap();
        let biased = [optional[1], "blk.1.ffn_up_exps.bias"];
        let graph = record(&config, &Outline::new(Type::F32, &biased)).unwrap();
        assert!(graph.weights.iter().all(|weight| weight.name != optional[1]));
    }
}
