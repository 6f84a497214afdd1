//! The recorded graph: nodes in execution order, values, weights and caches.

use std::ops::Range;

use bilayer_quant::Type;
use bilayer_quant::cache::{BLOCK, head_bytes};

use crate::{
    Attend, CacheId, Experts, Op, Part, Rows, SplitMixture, StateId, Value, Weight, WeightId,
    Window,
};

/// The static properties of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueInfo {
    /// Elements per row.
    pub width: usize,
    /// Whether it has one row per token or per requested output.
    pub rows: Rows,
}

/// The dimensions of one layer's cache.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheInfo {
    /// The layer it belongs to.
    pub layer: u32,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Elements of one head of keys.
    pub head_dim: usize,
    /// Elements at the start of each key that are its value; `None` if values are stored beside the keys and are as
    /// long.
    pub values_in_keys: Option<usize>,
    /// The widest window that reads it; `None` if all positions are read.
    pub window: Option<Window>,
}

impl CacheInfo {
    /// Elements of one token's keys.
    pub fn width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of one token's values that are stored beside its keys.
    pub fn value_width(&self) -> usize {
        if self.values_in_keys.is_some() { 0 } else { self.width() }
    }

    /// Elements that are stored for one token.
    pub fn stored_width(&self) -> usize {
        self.width() + self.value_width()
    }

    /// Bytes of one token's keys and values of these types, without padding.
    pub fn token_bytes(&self, keys: Type, values: Type) -> u64 {
        let values = match self.values_in_keys {
            None => head_bytes(values, self.head_dim),
            Some(_) => 0,
        };
        self.kv_heads as u64 * (head_bytes(keys, self.head_dim) + values) as u64
    }

    /// What two caches of one size have in common: heads, elements of a head, and the values in its keys.
    pub fn shape(&self) -> (usize, usize, Option<usize>) {
        (self.kv_heads, self.head_dim, self.values_in_keys)
    }

    /// What about its keys precludes the Hadamard transform ([`Limits::hadamard_keys`](crate::Limits::hadamard_keys)).
    pub fn no_hadamard(&self) -> Option<String> {
        match (self.values_in_keys, self.head_dim) {
            (Some(_), _) => Some("keys that have the values".to_owned()),
            (None, dim) if dim.is_multiple_of(BLOCK) => None,
            (None, dim) => {
                Some(format!("heads of {dim} elements, which is no multiple of {BLOCK}"))
            }
        }
    }

    /// Elements of one head of values.
    pub fn value_dim(&self) -> usize {
        self.values_in_keys.unwrap_or(self.head_dim)
    }
}

impl Attend {
    /// The temporary cache for keys and values of an attention without a cache: F32, because rounding would save no
    /// lasting memory.
    pub fn scratch(&self) -> CacheInfo {
        let Attend { kv_heads, head_dim, window, .. } = *self;
        CacheInfo { layer: 0, kv_heads, head_dim, values_in_keys: self.v.in_keys(), window }
    }
}

/// The size of one layer's state of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// The layer it belongs to.
    pub layer: u32,
    /// Its elements, f32.
    pub elements: usize,
}

/// One recorded op with its layer and name.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// The layer it belongs to; `None` for embedding and head.
    pub layer: Option<u32>,
    /// The usual name of its result, such as `attn_norm` or `ffn_out`.
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

/// A model as plain data: what to compute, with which weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Ops in execution order; each reads only values computed before it.
    pub nodes: Vec<Node>,
    /// All values; `Value(i)` is entry `i`.
    pub values: Vec<ValueInfo>,
    /// All weights; `WeightId(i)` is entry `i`.
    pub weights: Vec<Weight>,
    /// All caches; `CacheId(i)` is entry `i`.
    pub caches: Vec<CacheInfo>,
    /// All states of sequences; `StateId(i)` is entry `i`.
    pub states: Vec<StateInfo>,
    /// Hidden states `[T, width]` of another graph of the same model that this one continues. No op computes them: they are
    /// an input of each segment that reads them.
    pub given: Option<Value>,
    /// Hidden states that another graph continues, `[T, width]` or `[R, width]`.
    pub hidden: Option<Value>,
    /// The model's result: logits `[R, vocab]` of a decoder; hidden states `[R, width]` or scores `[R, labels]` of an
    /// encoder.
    pub logits: Value,
    /// Mixtures whose experts are in two parts.
    pub splits: Vec<SplitMixture>,
}

impl Graph {
    /// Appends a search for the `k` largest logits of each row and returns its value, `[R, 2k]`. The logits remain
    /// the graph's result.
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

    /// Elements per row of a value.
    pub fn width(&self, value: Value) -> usize {
        self.values[value.0 as usize].width
    }

    /// Whether a value has one row per token or per output.
    pub fn rows(&self, value: Value) -> Rows {
        self.values[value.0 as usize].rows
    }

    /// Whether a step must consist of whole sequences, because some attention has no cache, or their rows are pooled.
    pub fn takes_whole_sequences(&self) -> bool {
        let is_whole = |node: &Node| match &node.op {
            Op::Attend(attend) => attend.cache.is_none(),
            Op::Pool { .. } => true,
            _ => false,
        };
        self.nodes.iter().any(is_whole)
    }

    /// A weight by id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// A cache by id.
    pub fn cache(&self, id: CacheId) -> &CacheInfo {
        &self.caches[id.0 as usize]
    }

    /// A state by id.
    pub fn state(&self, id: StateId) -> &StateInfo {
        &self.states[id.0 as usize]
    }

    /// The split mixture that a node belongs to, and the part.
    pub fn part_of(&self, node: usize) -> Option<(usize, Part)> {
        let part = |(number, split): (usize, &SplitMixture)| Some((number, split.part(node)?));
        self.splits.iter().enumerate().find_map(part)
    }

    /// Whether any of some nodes reads residents.
    pub fn reads_residents(&self, nodes: Range<usize>) -> bool {
        let mut weights = self.nodes[nodes].iter().flat_map(|node| node.op.weights());
        weights.any(|id| self.weight(id).is_resident)
    }

    /// The router's result from which a value is made that no node computes; `None` for other values.
    pub fn routed_by(&self, value: Value) -> Option<Value> {
        self.splits.iter().find(|split| split.reads(value).is_some()).map(|split| split.route)
    }

    /// The share of a split mixture's matrices that a step of `tokens` tokens is expected to read; `None` for other
    /// nodes.
    fn split_share(&self, node: usize, tokens: usize) -> Option<f64> {
        let Op::Experts(experts) = &self.nodes[node].op else { return None };
        let (number, part) = self.part_of(node)?;
        Some(self.splits[number].used(part, tokens) / self.experts(experts) as f64)
    }

    /// The fraction of a node's matrices that a step of `tokens` tokens reads: for experts the expected fraction with
    /// uniform routing, or with the uses of a split mixture; for other matrices 1.
    pub fn share(&self, node: usize, tokens: usize) -> f64 {
        let Op::Experts(experts) = &self.nodes[node].op else { return 1.0 };
        if let Some(share) = self.split_share(node, tokens) {
            return share;
        }
        share_of(self.width(experts.route) / 2, self.experts(experts), tokens)
    }

    /// Bytes of a node's matrices that a step of `tokens` tokens reads.
    pub fn matrix_bytes(&self, node: usize, tokens: usize) -> f64 {
        let matrices = self.nodes[node].op.matrices().iter();
        matrices.map(|&id| self.weight(id).bytes() as f64).sum::<f64>() * self.share(node, tokens)
    }

    /// Whether a node has matrices of which each row needs only some: those of a mixture of experts.
    pub fn is_sparse(&self, node: &Node) -> bool {
        let Op::Experts(experts) = &node.op else { return false };
        self.width(experts.route) / 2 < self.experts(experts)
    }

    /// Whether any node [is sparse](Graph::is_sparse).
    pub fn has_experts(&self) -> bool {
        self.nodes.iter().any(|node| self.is_sparse(node))
    }

    /// Number of experts that a row can be routed to.
    pub fn experts(&self, experts: &Experts) -> usize {
        experts.stack.iter().map(|&id| self.weight(id).stacked).sum()
    }

    /// Number of layers: the highest layer of any node plus one.
    pub fn layers(&self) -> u32 {
        self.nodes.iter().filter_map(|n| n.layer).max().map_or(0, |last| last + 1)
    }

    /// The nodes of each layer, ascending.
    pub fn layer_nodes(&self) -> Vec<Vec<usize>> {
        let mut layers = vec![Vec::new(); self.layers() as usize];
        for (number, node) in self.nodes.iter().enumerate() {
            if let Some(layer) = node.layer {
                layers[layer as usize].push(number);
            }
        }
        layers
    }

    /// Number of weight elements; a tensor used twice (a tied head) counts once.
    pub fn parameters(&self) -> usize {
        self.weights.iter().map(|w| w.rows * w.cols).sum()
    }

    /// Bytes of all weights as stored; a tensor used twice (a tied head) counts once.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(Weight::bytes).sum()
    }
}

/// The share of `experts` that `tokens` tokens are expected to use, `used` each, with uniform routing.
pub fn share_of(used: usize, experts: usize, tokens: usize) -> f64 {
    let idle = 1.0 - (used as f64 / experts as f64).min(1.0);
    1.0 - idle.powf(tokens as f64)
}
