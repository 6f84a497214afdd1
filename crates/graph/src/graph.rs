//! The recorded graph: nodes in execution order, values, weights and caches.

use crate::{CacheId, Experts, Op, Rows, Value, Weight, WeightId};

/// What is known of a value before anything runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    /// Elements of one row.
    pub width: usize,
    /// Whether it has a row per token or per wanted output.
    pub rows: Rows,
}

/// What a backend must reserve for one layer's cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheInfo {
    /// The layer it belongs to.
    pub layer: u32,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// The widest window that reads it; `None` when all positions are read.
    pub window: Option<u32>,
}

impl CacheInfo {
    /// Elements of one token's keys (and as many of its values).
    pub fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

/// One recorded op with its place and name.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// The layer it belongs to; `None` for embedding and head.
    pub layer: Option<u32>,
    /// The field's usual name of what it makes, such as `attn_norm` or `ffn_out`.
    pub name: &'static str,
}

impl Node {
    /// `layer 3 ffn_out`, or `result_norm` outside the layers.
    pub fn label(&self) -> String {
        match self.layer {
            Some(layer) => format!("layer {layer} {}", self.name),
            None => self.name.to_owned(),
        }
    }
}

/// A model as plain data: what to compute, over which weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Ops in execution order; each reads only values made before it.
    pub nodes: Vec<Node>,
    /// All values; `Value(i)` is entry `i`.
    pub values: Vec<ValueInfo>,
    /// All weights; `WeightId(i)` is entry `i`.
    pub weights: Vec<Weight>,
    /// All caches; `CacheId(i)` is entry `i`.
    pub caches: Vec<CacheInfo>,
    /// What the model is run for: logits `[R, vocab]` of a decoder; of an encoder hidden states `[R, width]` or scores
    /// `[R, labels]`.
    pub logits: Value,
}

impl Graph {
    /// Adds a search for the `k` largest logits of each row and returns what it makes, `[R, 2k]`. The logits stay
    /// what the graph is run for.
    pub fn top_k(&mut self, k: usize) -> Value {
        let input = self.logits;
        let vocab = self.width(input);
        assert!((1..=vocab).contains(&k), "the best {k} of {vocab}");
        assert!(vocab <= 1 << f32::MANTISSA_DIGITS, "places are exact in f32");
        let out = Value(self.values.len() as u32);
        self.values.push(ValueInfo { width: 2 * k, rows: self.rows(input) });
        self.nodes.push(Node { op: Op::TopK { input, k, out }, layer: None, name: "result_top_k" });
        out
    }

    /// Elements of one row of a value.
    pub fn width(&self, value: Value) -> usize {
        self.values[value.0 as usize].width
    }

    /// Whether a value has a row per token or per output.
    pub fn rows(&self, value: Value) -> Rows {
        self.values[value.0 as usize].rows
    }

    /// Whether a step must hold whole sequences, because some attention keeps nothing for the next step.
    pub fn takes_whole_sequences(&self) -> bool {
        let keeps_nothing = |node: &Node| matches!(&node.op, Op::Attend(a) if a.cache.is_none());
        self.nodes.iter().any(keeps_nothing)
    }

    /// The weight of an id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// The cache of an id.
    pub fn cache(&self, id: CacheId) -> &CacheInfo {
        &self.caches[id.0 as usize]
    }

    /// The share of a node's matrices that a step of so many tokens reads: of experts those that some token goes to, as
    /// many as there are if each goes anywhere alike; of other matrices all.
    pub fn share(&self, node: usize, tokens: usize) -> f64 {
        let Op::Experts(experts) = &self.nodes[node].op else { return 1.0 };
        let used = self.width(experts.route) as f64 / 2.0;
        let idle = 1.0 - (used / self.experts(experts) as f64).min(1.0);
        1.0 - idle.powf(tokens as f64)
    }

    /// Bytes of a node's matrices that a step of so many tokens reads.
    pub fn matrix_bytes(&self, node: usize, tokens: usize) -> f64 {
        let matrices = self.nodes[node].op.matrices().iter();
        matrices.map(|&id| self.weight(id).bytes() as f64).sum::<f64>() * self.share(node, tokens)
    }

    /// How many experts a row may go to.
    pub fn experts(&self, experts: &Experts) -> usize {
        experts.stack.iter().map(|&id| self.weight(id).stacked).sum()
    }

    /// Number of layers: one more than the highest layer any node belongs to.
    pub fn layers(&self) -> u32 {
        self.nodes.iter().filter_map(|n| n.layer).max().map_or(0, |last| last + 1)
    }

    /// Number of weights; those of a tensor used twice (a tied head) count once.
    pub fn parameters(&self) -> usize {
        self.weights.iter().map(|w| w.rows * w.cols).sum()
    }

    /// Bytes of all weights as stored; a tensor used twice (a tied head) counts once.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(Weight::bytes).sum()
    }
}
