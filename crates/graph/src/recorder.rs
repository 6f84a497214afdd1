//! The recorder: one method per op that appends a node and returns its value.

use std::collections::HashMap;

use bilayer_quant::Type;

use crate::lora::LowRank;
use crate::{
    Activation, Attend, CacheId, CacheInfo, Error, Graph, Ids, Lora, Node, Op, Precision, Rope,
    Rows, Scan, Stack, StateId, StateInfo, Temperature, Value, ValueInfo, Values, Weight, WeightId,
    Window,
};

mod mixture;

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
    caches: Vec<CacheInfo>,
    states: Vec<StateInfo>,
    /// What adapters add to the products with a matrix.
    low_ranks: HashMap<WeightId, Vec<LowRank>>,
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
            caches: Vec::new(),
            states: Vec::new(),
            low_ranks: HashMap::new(),
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

    /// The matrix `name`, `[rows, cols]`.
    ///
    /// # Errors
    /// The tensor is missing, has another shape, or a type whose blocks do not fit its rows.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, Error> {
        self.matrix_rows(name, rows, 0, rows, cols)
    }

    /// Rows `first_row..first_row + rows` of the matrix `name`, `[tensor_rows, cols]`.
    ///
    /// # Errors
    /// Those of [`Recorder::matrix`].
    pub fn matrix_rows(
        &mut self,
        name: &str,
        tensor_rows: usize,
        first_row: usize,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, Error> {
        assert!(first_row + rows <= tensor_rows, "{name}: rows outside the tensor");
        let expected = [tensor_rows as u64, cols as u64];
        let ty = self.check(name, &expected)?;
        let known = self.weights.len();
        let id = self.weight(Weight {
            id: WeightId(0),
            name: name.to_owned(),
            ty,
            rows,
            cols,
            first_row,
            stacked: 1,
            layer: self.layer,
        });
        if id.0 as usize == known {
            for lora in self.catalog.loras() {
                self.adapt(id, lora, tensor_rows)?;
            }
        }
        Ok(id)
    }

    /// Adds an adapter's matrices for a matrix of a tensor of `tensor_rows`, if it has them.
    fn adapt(&mut self, id: WeightId, lora: &Lora, tensor_rows: usize) -> Result<(), Error> {
        let Weight { name, first_row, rows, cols, .. } = self.weight_of(id).clone();
        let [down, up] = lora.tensors(&name);
        let Some(entry) = self.catalog.find(&down) else { return Ok(()) };
        let rank = match *entry.shape {
            [.., rank, _] => rank as usize,
            _ => 1,
        };
        let down = self.matrix(&down, rank, cols)?;
        let up = self.matrix_rows(&up, tensor_rows, first_row, rows, rank)?;
        let factor = lora.factor(rank);
        self.low_ranks.entry(id).or_default().push(LowRank { down, up, factor });
        Ok(())
    }

    /// The matrices of `experts` experts, `[rows, cols]` each: the tensor `name`, `[experts, rows, cols]`; or, as
    /// written by early converters, separate tensors named `each(expert)`.
    ///
    /// # Errors
    /// Those of [`Recorder::matrix`]; experts of different types.
    pub fn stack(
        &mut self,
        name: &str,
        each: impl Fn(usize) -> String,
        [experts, rows, cols]: [usize; 3],
    ) -> Result<Stack, Error> {
        if self.has(&each(0)) {
            let stack: Result<Stack, Error> =
                (0..experts).map(|expert| self.matrix(&each(expert), rows, cols)).collect();
            let stack = stack?;
            let ty = self.weight_of(stack[0]).ty;
            return match stack.iter().map(|&id| self.weight_of(id)).find(|other| other.ty != ty) {
                None => Ok(stack),
                Some(other) => {
                    let (name, found) = (other.name.clone(), other.ty);
                    Err(Error::StackType { name, expected: ty, found })
                }
            };
        }
        let ty = self.check(name, &[experts, rows, cols].map(|size| size as u64))?;
        let weight = self.weight(Weight {
            id: WeightId(0),
            name: name.to_owned(),
            ty,
            rows: experts * rows,
            cols,
            first_row: 0,
            stacked: experts,
            layer: self.layer,
        });
        Ok(Stack::from([weight]))
    }

    /// The vector `name` of `len` elements: a norm's gain, a bias. It must be stored as F32, F16 or BF16.
    ///
    /// # Errors
    /// The tensor is missing, has another shape or is block-quantized.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<WeightId, Error> {
        self.vector_part(name, len, 0, len)
    }

    /// Elements `first..first + len` of the vector `name`, which has `tensor_len`: the bias of one of several fused
    /// matrices. `first` is a multiple of `len`, as it always is with grouped-query attention.
    ///
    /// # Errors
    /// Those of [`Recorder::vector`].
    pub fn vector_part(
        &mut self,
        name: &str,
        tensor_len: usize,
        first: usize,
        len: usize,
    ) -> Result<WeightId, Error> {
        assert!(first + len <= tensor_len, "{name}: elements outside the tensor");
        assert!(first.is_multiple_of(len), "{name}: a part is a row of that length");
        self.vector_of(name, &[tensor_len as u64], first, len)
    }

    /// Elements `first..first + len` of the tensor `name` of that shape.
    fn vector_of(
        &mut self,
        name: &str,
        shape: &[u64],
        first: usize,
        len: usize,
    ) -> Result<WeightId, Error> {
        let ty = self.check(name, shape)?;
        if ty.block_weights != 1 {
            return Err(Error::VectorType { name: name.to_owned(), found: ty });
        }
        Ok(self.weight(Weight {
            id: WeightId(0),
            name: name.to_owned(),
            ty,
            rows: 1,
            cols: len,
            first_row: first / len,
            stacked: 1,
            layer: self.layer,
        }))
    }

    /// One vector of `len` elements per expert, contiguous: the tensor `name`, `[experts, len]`.
    ///
    /// # Errors
    /// Those of [`Recorder::vector`].
    pub fn stack_vector(
        &mut self,
        name: &str,
        [experts, len]: [usize; 2],
    ) -> Result<WeightId, Error> {
        self.vector_of(name, &[experts as u64, len as u64], 0, experts * len)
    }

    /// The vector `name`, if the file contains it.
    ///
    /// # Errors
    /// Those of [`Recorder::vector`], except for a missing tensor.
    pub fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<WeightId>, Error> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
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
        self.push(name, Op::Embed { table, ids, out })
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
        self.push(name, Op::HeadNorm { input, gain: Some(gain), head_dim, eps, out })
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
        self.push(name, Op::HeadNorm { input, gain: Some(gain), head_dim: group, eps, out })
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
        self.push(name, Op::HeadNorm { input, gain: None, head_dim, eps, out })
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
        let mut sum = self.push(name, Op::MatMul { input, weight, bias, precision, out });
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
        let Recorder { nodes, values, weights, caches, states, .. } = self;
        Graph { nodes, values, weights, caches, states, logits }
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

    /// A weight requested twice (a tied head) is stored once.
    fn weight(&mut self, weight: Weight) -> WeightId {
        let same = |w: &&Weight| {
            w.name == weight.name
                && (w.first_row, w.rows, w.cols) == (weight.first_row, weight.rows, weight.cols)
        };
        if let Some(known) = self.weights.iter().find(same) {
            return known.id;
        }
        let id = WeightId(self.weights.len() as u32);
        self.weights.push(Weight { id, ..weight });
        id
    }

    /// The type of tensor `name`, after checking that its shape is `expected` (ignoring leading ones).
    fn check(&self, name: &str, expected: &[u64]) -> Result<Type, Error> {
        let entry = self
            .catalog
            .find_as(name, expected)
            .ok_or_else(|| Error::MissingTensor { name: name.to_owned() })?;
        let significant = |shape: &[u64]| -> Vec<u64> {
            let ones = shape.iter().take_while(|&&d| d == 1).count();
            shape[ones.min(shape.len().saturating_sub(1))..].to_vec()
        };
        if significant(&entry.shape) != significant(expected) {
            return Err(Error::TensorShape {
                name: name.to_owned(),
                expected: expected.to_vec(),
                found: entry.shape,
            });
        }
        let cols = expected[expected.len() - 1];
        if !cols.is_multiple_of(entry.ty.block_weights as u64) {
            return Err(Error::TensorBlock { name: name.to_owned(), ty: entry.ty, cols });
        }
        Ok(entry.ty)
    }
}
