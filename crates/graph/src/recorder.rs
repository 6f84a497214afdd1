//! The recorder: one method per op that appends a node and returns its value.

use std::collections::HashMap;

use bilayer_quant::Type;

use crate::lora::LowRank;
use crate::{
    Activation, Attend, CacheId, CacheInfo, DistanceBias, Graph, Ids, Lora, Node, Op, Precision,
    Rope, Rows, Scan, StateId, StateInfo, Temperature, Value, ValueInfo, Values, Weight, WeightId,
    Window,
};

mod mixture;
mod weights;

/// A tensor directory's entry for a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its type.
    pub ty: Type,
    /// Dimensions, rightmost contiguous.
    pub shape: Vec<u64>,
}

/// A tensor directory.
pub trait Catalog {
    /// Finds a tensor by name.
    fn find(&self, name: &str) -> Option<Entry>;

    /// Finds a tensor by name; the recording requires shape `expected`. A model that does not exist yet returns just
    /// that shape, so that its tensors can be listed, sized or generated.
    fn find_as(&self, name: &str, expected: &[u64]) -> Option<Entry> {
        let _ = expected;
        self.find(name)
    }

    /// Low-rank adapters, whose tensors are in the directory.
    fn loras(&self) -> &[Lora] {
        &[]
    }
}

/// Records a model. Shapes of outside tensors are checked and give errors; widths between ops are our own and are
/// asserted.
pub struct Recorder<'c> {
    catalog: &'c dyn Catalog,
    layer: Option<u32>,
    nodes: Vec<Node>,
    values: Vec<ValueInfo>,
    weights: Vec<Weight>,
    /// The weights of each tensor: a file may have thousands.
    of_tensor: HashMap<String, Vec<WeightId>>,
    caches: Vec<CacheInfo>,
    states: Vec<StateInfo>,
    given: Option<Value>,
    hidden: Option<Value>,
    /// What adapters add to the products with a matrix.
    low_ranks: HashMap<WeightId, Vec<LowRank>>,
    /// The factors of matrices that a file stores without them, `[1, 1]`.
    factors: HashMap<WeightId, WeightId>,
}

impl<'c> Recorder<'c> {
    /// A recorder that looks weights up in `catalog`.
    pub fn new(catalog: &'c dyn Catalog) -> Self {
        Recorder {
            catalog,
            layer: None,
            nodes: Vec::new(),
            values: Vec::new(),
            weights: Vec::new(),
            of_tensor: HashMap::new(),
            caches: Vec::new(),
            states: Vec::new(),
            given: None,
            hidden: None,
            low_ranks: HashMap::new(),
            factors: HashMap::new(),
        }
    }

    /// Sets the layer of the following ops; `None` for embedding and head.
    pub fn layer(&mut self, layer: Option<u32>) {
        self.layer = layer;
    }

    /// Whether the file has a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.catalog.find(name).is_some()
    }

    /// Adds a cache of the current layer, of keys and values of equal length.
    pub fn cache(&mut self, kv_heads: usize, head_dim: usize, window: Option<Window>) -> CacheId {
        self.cache_of(kv_heads, head_dim, None, window)
    }

    /// Adds a cache of the current layer; `values_in_keys` as in [`CacheInfo`].
    pub fn cache_of(
        &mut self,
        kv_heads: usize,
        head_dim: usize,
        values_in_keys: Option<usize>,
        window: Option<Window>,
    ) -> CacheId {
        let layer = self.layer.expect("a cache belongs to a layer");
        self.caches.push(CacheInfo { layer, kv_heads, head_dim, values_in_keys, window });
        CacheId(self.caches.len() as u32 - 1)
    }

    /// Adds a state of the current layer: so many elements a sequence.
    pub fn state(&mut self, elements: usize) -> StateId {
        let layer = self.layer.expect("a state belongs to a layer");
        self.states.push(StateInfo { layer, elements });
        StateId(self.states.len() as u32 - 1)
    }

    /// Hidden states `[T, width]` that another graph has computed; there is one such value.
    pub fn given(&mut self, width: usize) -> Value {
        assert_eq!(self.given, None, "one value is given");
        let value = self.value(width, Rows::Tokens);
        self.given = Some(value);
        value
    }

    /// Names the hidden states that another graph continues.
    pub fn keep_hidden(&mut self, value: Value) {
        self.hidden = Some(value);
    }

    /// Embedding rows of the step's tokens: `[T, table.cols]`.
    pub fn embed(&mut self, name: &'static str, table: WeightId) -> Value {
        self.embed_by(name, table, Ids::Tokens)
    }

    /// Embedding rows of the tokens' positions: `[T, table.cols]`.
    pub fn embed_positions(&mut self, name: &'static str, table: WeightId) -> Value {
        self.embed_by(name, table, Ids::Positions)
    }

    /// Embedding rows of the tokens' text index within their sequence, where each text ends with `separator`: `[T,
    /// table.cols]`.
    pub fn embed_segments(&mut self, name: &'static str, table: WeightId, separator: u32) -> Value {
        self.embed_by(name, table, Ids::Segments { separator })
    }

    fn embed_by(&mut self, name: &'static str, table: WeightId, ids: Ids) -> Value {
        let out = self.value(self.weight_of(table).cols, Rows::Tokens);
        let rows = self.push(name, Op::Embed { table, ids, out });
        let factor = self.factors.get(&table).copied();
        factor.map_or(rows, |by| self.scale_by("weight_scale", rows, by))
    }

    /// RMS norm over each row.
    pub fn rms_norm(
        &mut self,
        name: &'static str,
        input: Value,
        gain: Option<WeightId>,
        eps: f32,
    ) -> Value {
        gain.inspect(|&g| assert_eq!(self.weight_of(g).cols, self.width(input), "{name}"));
        let out = self.like(input);
        self.push(name, Op::RmsNorm { input, gain, eps, out })
    }

    /// Layer norm over each row.
    pub fn layer_norm(
        &mut self,
        name: &'static str,
        input: Value,
        gain: WeightId,
        bias: Option<WeightId>,
        eps: f32,
    ) -> Value {
        assert_eq!(self.weight_of(gain).cols, self.width(input), "{name}");
        let out = self.like(input);
        self.push(name, Op::LayerNorm { input, gain, bias, eps, out })
    }

    /// RMS norm over each head of `gain`'s length.
    pub fn head_norm(
        &mut self,
        name: &'static str,
        input: Value,
        gain: WeightId,
        eps: f32,
    ) -> Value {
        let head_dim = self.weight_of(gain).cols;
        assert_eq!(self.width(input) % head_dim, 0, "{name}");
        let out = self.like(input);
        let gain = Some(gain);
        self.push(name, Op::HeadNorm { input, gain, head_dim, centered: false, eps, out })
    }

    /// RMS norm over each group of so many elements, with a gain for the whole row.
    pub fn group_norm(
        &mut self,
        name: &'static str,
        input: Value,
        (gain, group): (WeightId, usize),
        eps: f32,
    ) -> Value {
        assert_eq!(self.weight_of(gain).cols, self.width(input), "{name}");
        assert_eq!(self.width(input) % group, 0, "{name}");
        let out = self.like(input);
        let (gain, head_dim) = (Some(gain), group);
        self.push(name, Op::HeadNorm { input, gain, head_dim, centered: false, eps, out })
    }

    /// Layer norm over each head of so many elements, with a gain for the whole row and without a bias.
    pub fn head_layer_norm(
        &mut self,
        name: &'static str,
        input: Value,
        (gain, head_dim): (WeightId, usize),
        eps: f32,
    ) -> Value {
        assert_eq!(self.weight_of(gain).cols, self.width(input), "{name}");
        assert_eq!(self.width(input) % head_dim, 0, "{name}");
        let out = self.like(input);
        let gain = Some(gain);
        self.push(name, Op::HeadNorm { input, gain, head_dim, centered: true, eps, out })
    }

    /// RMS norm over each head of `head_dim` elements, without a gain.
    pub fn head_unit(
        &mut self,
        name: &'static str,
        input: Value,
        head_dim: usize,
        eps: f32,
    ) -> Value {
        assert_eq!(self.width(input) % head_dim, 0, "{name}");
        let out = self.like(input);
        self.push(name, Op::HeadNorm { input, gain: None, head_dim, centered: false, eps, out })
    }

    /// `input x transpose(weight) + bias`: `[rows, weight.rows]`.
    pub fn matmul(
        &mut self,
        name: &'static str,
        input: Value,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> Value {
        self.matmul_of(name, input, weight, bias, Precision::Coarse)
    }

    /// [`Recorder::matmul`] with a precision of the input.
    pub fn matmul_of(
        &mut self,
        name: &'static str,
        input: Value,
        weight: WeightId,
        bias: Option<WeightId>,
        precision: Precision,
    ) -> Value {
        assert_eq!(self.weight_of(weight).cols, self.width(input), "{name}");
        bias.inspect(|&b| assert_eq!(self.weight_of(b).cols, self.weight_of(weight).rows));
        let out = self.value(self.weight_of(weight).rows, self.rows(input));
        // On the input, since the bias has no part in it; an adapter reads the input itself.
        let factor = self.factors.get(&weight).copied();
        let scaled = factor.map_or(input, |by| self.scale_by("weight_scale", input, by));
        let mut sum = self.push(name, Op::MatMul { input: scaled, weight, bias, precision, out });
        for LowRank { down, up, factor } in self.low_ranks.get(&weight).cloned().unwrap_or_default()
        {
            let narrow = self.matmul("lora_a", input, down, None);
            let narrow = self.scale("lora_scale", narrow, factor);
            let wide = self.matmul("lora_b", narrow, up, None);
            sum = self.add("lora", sum, wide);
        }
        sum
    }

    /// Rotates each head by its token's position.
    pub fn rope(
        &mut self,
        name: &'static str,
        input: Value,
        head_dim: usize,
        rope: &Rope,
    ) -> Value {
        assert!(2 * rope.frequencies.len() <= head_dim, "{name}");
        assert_eq!(self.width(input) % head_dim, 0, "{name}");
        assert_eq!(self.rows(input), Rows::Tokens, "{name}: positions belong to tokens");
        let out = self.like(input);
        self.push(name, Op::Rope { input, head_dim, rope: rope.clone(), out })
    }

    /// Attention; `attend.out` is overwritten here.
    pub fn attend(&mut self, name: &'static str, mut attend: Attend) -> Value {
        assert_eq!(attend.heads % attend.kv_heads, 0, "{name}");
        assert_eq!(self.width(attend.q), attend.heads * attend.head_dim, "{name}");
        assert_eq!(self.width(attend.k), attend.kv_heads * attend.head_dim, "{name}");
        match attend.v {
            Values::Beside(v) => {
                assert_eq!(self.width(v), attend.kv_heads * attend.head_dim, "{name}");
            }
            Values::InKeys(width) => {
                assert!((1..=attend.head_dim).contains(&width), "{name}: {width} elements of keys");
                assert!(attend.cache.is_some(), "{name}: values in keys are cached");
            }
        }
        if let Some(id) = attend.cache {
            let held = self.caches[id.0 as usize].values_in_keys;
            assert_eq!(held, attend.v.in_keys(), "{name}: the cache has the values elsewhere");
        }
        match &attend.bias {
            Some(DistanceBias::Slopes(slopes)) => {
                assert_eq!(slopes.len(), attend.heads, "{name}: a slope for each head");
                assert!(slopes.iter().all(|slope| slope.is_finite()), "{name}: {slopes:?}");
            }
            Some(DistanceBias::Buckets(buckets)) => {
                assert!(buckets.are_valid(), "{name}: {buckets:?}");
                let biases = self.weight_of(buckets.table).cols;
                assert_eq!(biases, buckets.count * attend.heads, "{name}: a bias for each head");
            }
            None => {}
        }
        attend.out = self.value(attend.heads * attend.value_dim(), Rows::Tokens);
        self.push(name, Op::Attend(attend))
    }

    /// Convolution of each channel over time, with `weight [1, channels * taps]`; adds its state.
    pub fn conv(
        &mut self,
        name: &'static str,
        input: Value,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> Value {
        let (channels, weights) = (self.width(input), self.weight_of(weight).cols);
        assert!(weights > channels && weights.is_multiple_of(channels), "{name}: two taps or more");
        assert_eq!(self.rows(input), Rows::Tokens, "{name}: time belongs to tokens");
        bias.inspect(|&b| assert_eq!(self.weight_of(b).cols, channels, "{name}"));
        let state = self.state(weights - channels);
        let out = self.like(input);
        self.push(name, Op::Conv { input, weight, bias, state, out })
    }

    /// A linear recurrence over time; adds its state. `scan.state` and `scan.out` are overwritten here.
    pub fn scan(&mut self, name: &'static str, mut scan: Scan) -> Value {
        let Scan { heads, groups, neighbours, head_dim, state_dim, .. } = scan;
        assert!(heads > 0 && heads.is_multiple_of(groups * neighbours), "{name}: {heads} heads");
        assert_eq!(scan.b.value, scan.c.value, "{name}");
        let columns = [
            (scan.x, heads * head_dim),
            (scan.b, groups * state_dim),
            (scan.c, groups * state_dim),
        ];
        for (columns, width) in columns {
            assert!(columns.first + width <= self.width(columns.value), "{name}: {columns:?}");
        }
        for of_head in [Some(scan.dt), scan.update.beta()].into_iter().flatten() {
            assert_eq!(self.width(of_head), heads, "{name}");
            assert_eq!(self.rows(of_head), Rows::Tokens, "{name}: time belongs to tokens");
        }
        for of_head in [Some(scan.bias), Some(scan.decay), scan.update.skip()].into_iter().flatten()
        {
            assert_eq!(self.weight_of(of_head).cols, heads, "{name}");
        }
        scan.state = self.state(heads * head_dim * state_dim);
        scan.out = self.value(heads * head_dim, Rows::Tokens);
        self.push(name, Op::Scan(scan))
    }

    /// `activation(gate)`, times [`Activation`]'s factor of `up` if present.
    pub fn gate(
        &mut self,
        name: &'static str,
        gate: Value,
        up: Option<Value>,
        activation: Activation,
    ) -> Value {
        up.inspect(|&up| assert_eq!(self.width(gate), self.width(up), "{name}"));
        let out = self.like(gate);
        self.push(name, Op::Gate { gate, up, activation, out })
    }

    /// `a + b`.
    pub fn add(&mut self, name: &'static str, a: Value, b: Value) -> Value {
        assert_eq!(self.values[a.0 as usize], self.values[b.0 as usize], "{name}");
        let out = self.like(a);
        self.push(name, Op::Add { a, b, out })
    }

    /// `factor * input`.
    pub fn scale(&mut self, name: &'static str, input: Value, factor: f32) -> Value {
        let out = self.like(input);
        self.push(name, Op::Scale { input, factor, temperature: None, by: None, out })
    }

    /// `input` times the temperature at each row's position.
    pub fn temper(&mut self, name: &'static str, input: Value, by: Temperature) -> Value {
        assert_eq!(self.rows(input), Rows::Tokens, "{name}: positions belong to tokens");
        assert!(by.length > 0, "{name}");
        let out = self.like(input);
        self.push(name, Op::Scale { input, factor: 1.0, temperature: Some(by), by: None, out })
    }

    /// `input` times a weight of one element.
    pub fn scale_by(&mut self, name: &'static str, input: Value, by: WeightId) -> Value {
        assert_eq!(self.weight_of(by).cols, 1, "{name}");
        let out = self.like(input);
        self.push(name, Op::Scale { input, factor: 1.0, temperature: None, by: Some(by), out })
    }

    /// Of every `stride` elements of a row those of `range`.
    pub fn part(
        &mut self,
        name: &'static str,
        input: Value,
        stride: usize,
        range: std::ops::Range<usize>,
    ) -> Value {
        let groups = self.width(input) / stride;
        assert_eq!(groups * stride, self.width(input), "{name}");
        assert!(!range.is_empty() && range.end <= stride, "{name}: {range:?} of {stride}");
        let (first, width) = (range.start, range.len());
        let out = self.value(groups * width, self.rows(input));
        self.push(name, Op::Part { input, stride, first, width, out })
    }

    /// Groups of `widths[0]` elements of `a`, then `widths[1]` of `b`.
    pub fn join(&mut self, name: &'static str, a: Value, b: Value, widths: [usize; 2]) -> Value {
        let groups = self.width(a) / widths[0];
        let found = [self.width(a), self.width(b)];
        assert_eq!(found, widths.map(|width| groups * width), "{name}: as many groups of each");
        assert_eq!(self.rows(a), self.rows(b), "{name}");
        let out = self.value(groups * (widths[0] + widths[1]), self.rows(a));
        self.push(name, Op::Join { a, b, widths, out })
    }

    /// `cap * tanh(input / cap)`.
    pub fn soft_cap(&mut self, name: &'static str, input: Value, cap: f32) -> Value {
        let out = self.like(input);
        self.push(name, Op::SoftCap { input, cap, out })
    }

    /// The rows whose logits are requested: from `[T, width]` to `[R, width]`.
    pub fn rows_wanted(&mut self, name: &'static str, input: Value) -> Value {
        assert_eq!(self.rows(input), Rows::Tokens, "{name}");
        let out = self.value(self.width(input), Rows::Outputs);
        self.push(name, Op::Rows { input, out })
    }

    /// The mean over each requested row's sequence up to that row: from `[T, width]` to `[R, width]`.
    pub fn pool(&mut self, name: &'static str, input: Value) -> Value {
        assert_eq!(self.rows(input), Rows::Tokens, "{name}");
        let out = self.value(self.width(input), Rows::Outputs);
        self.push(name, Op::Pool { input, out })
    }

    /// Elements per row of `value`.
    pub fn width(&self, value: Value) -> usize {
        self.values[value.0 as usize].width
    }

    /// Finishes the recording; `logits` is the model's result.
    pub fn finish(self, logits: Value) -> Graph {
        let Recorder { nodes, values, weights, caches, states, given, hidden, .. } = self;
        let splits = Vec::new();
        Graph { nodes, values, weights, caches, states, given, hidden, logits, splits }
    }

    fn rows(&self, value: Value) -> Rows {
        self.values[value.0 as usize].rows
    }

    fn weight_of(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    fn like(&mut self, value: Value) -> Value {
        self.value(self.width(value), self.rows(value))
    }

    fn value(&mut self, width: usize, rows: Rows) -> Value {
        self.values.push(ValueInfo { width, rows });
        Value(self.values.len() as u32 - 1)
    }

    fn push(&mut self, name: &'static str, op: Op) -> Value {
        let out = op.out();
        self.nodes.push(Node { op, layer: self.layer, name });
        out
    }
}
