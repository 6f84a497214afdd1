//! The ops: twenty-two LLM-sized kinds, plain data over value and weight ids.
//!
//! Every op computes exactly one value. Shapes are written `[rows, width]`, row-major, f32. `T` is the number of
//! tokens in the step, `R` the number of rows whose logits are requested.

use std::ops::Range;
use std::sync::Arc;

use crate::{DistanceBias, Span, WeightId};

mod positions;

pub use positions::{Pairs, Rope, Temperature, Window};

/// An activation of the graph: `[T, width]` or `[R, width]` f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(pub u32);

/// One layer's key and value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub u32);

/// One layer's state of each sequence: a fixed number of elements that sum up all its tokens so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// The symbolic number of rows of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rows {
    /// One row per token of the step: `T`.
    Tokens,
    /// One row per entry of [`crate::Step::outputs`]: `R`.
    Outputs,
}

/// The index into the table of an [`Op::Embed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ids {
    /// The token id.
    Tokens,
    /// The token's position in its sequence; the table has a row for every possible position.
    Positions,
    /// The number of `separator` tokens before the token in its span, at most the table's last row: 0 in the first
    /// text of a pair and 1 in the second. Meaningful only if a step consists of whole sequences.
    Segments {
        /// The token that ends a text.
        separator: u32,
    },
}

/// The activation function of [`Op::Gate`], of a gate `x`; the factor is `up`, if present, unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`, the tanh form of Hendrycks and Gimpel 2016.
    GeluTanh,
    /// `0.5 x (1 + erf(x / sqrt(2)))`, the exact form of Hendrycks and Gimpel 2016.
    Gelu,
    /// `y / (1 + exp(-1.702 y))` of `y = min(x, 7)`, with the factor `clamp(up, -7, 7) + 1`: gpt-oss's `swiglu`
    /// (OpenAI 2025).
    ClampedSwiglu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x`.
    Identity,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2` (So et al. 2021).
    SquaredRelu,
}

impl Activation {
    /// All activation functions.
    pub const ALL: [Activation; 8] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ClampedSwiglu,
        Activation::Sigmoid,
        Activation::Identity,
        Activation::Relu,
        Activation::SquaredRelu,
    ];
    /// The clamp limit of [`Activation::ClampedSwiglu`].
    pub const SWIGLU_LIMIT: f32 = 7.0;
    /// The slope of its sigmoid.
    pub const SWIGLU_SLOPE: f32 = 1.702;
}

/// The precision of a product's input if its weights are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// The input may be quantized to 8 bits with a scale shared by many elements.
    Coarse,
    /// Each element is within 1/256 of its value: for rows whose elements differ widely in magnitude. With weights of one
    /// scale per row, whose inputs have one scale, too, the largest elements of a row do not widen the steps of the others.
    Fine,
}

/// Where the values of an attention are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// New values `[T, kv_heads * head_dim]`, stored beside the keys.
    Beside(Value),
    /// The first elements of each key, so many, are its value: only keys are stored. Needs a cache.
    InKeys(usize),
}

impl Values {
    /// The values that are stored beside the keys.
    pub fn beside(self) -> Option<Value> {
        match self {
            Values::Beside(value) => Some(value),
            Values::InKeys(_) => None,
        }
    }

    /// Elements of a value in a key, if values are there.
    pub fn in_keys(self) -> Option<usize> {
        match self {
            Values::Beside(_) => None,
            Values::InKeys(width) => Some(width),
        }
    }
}

/// Attention of the step's tokens over keys and values of their sequences.
///
/// With a cache it is causal: new keys and values are appended to those of earlier steps, and a token attends to
/// itself and all tokens before it. Without a cache it is bidirectional within the step and nothing is stored: every
/// span is a whole sequence, and each of its tokens attends to all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Attend {
    /// Queries `[T, heads * head_dim]`, already rotated.
    pub q: Value,
    /// New keys `[T, kv_heads * head_dim]`, already rotated.
    pub k: Value,
    /// The values.
    pub v: Values,
    /// `[T, heads * value_dim]`, where `value_dim` is [`Attend::value_dim`].
    pub out: Value,
    /// The cache of the keys and values; `None` if attention is bidirectional.
    pub cache: Option<CacheId>,
    /// Query heads; a multiple of `kv_heads`. Query head `h` reads key-value head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// Key-value heads.
    pub kv_heads: usize,
    /// Elements of one head of queries and keys.
    pub head_dim: usize,
    /// Factor on the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Which of the earlier tokens a token attends to; `None` means all.
    pub window: Option<Window>,
    /// Scores become `softcap * tanh(score / softcap)` before the mask.
    pub softcap: Option<f32>,
    /// `[1, heads]` F32: one extra logit per head in the softmax's denominator, without a value.
    pub sinks: Option<WeightId>,
    /// What is added to scaled and capped scores by the distance of query and key.
    pub bias: Option<DistanceBias>,
}

/// The conversion of a router's logits to scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Score {
    /// `exp(x) / sum of exp(x)` over all experts.
    Softmax,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

/// Groups of experts with adjacent indices, of which the best are chosen before their experts. A group's score is the sum
/// of its best experts' scores, bias included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Groups {
    /// Number of groups of equal size.
    pub count: usize,
    /// Groups per row; they have as many experts as a row uses.
    pub used: usize,
    /// Experts that count for a group's score: one or two.
    pub best: usize,
}

impl Groups {
    /// Maximum number of groups.
    pub const MAX: usize = 64;
}

/// The router: which experts a row goes to, and their weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The router's logits `[rows, experts]`.
    pub logits: Value,
    /// `[1, experts]` F32: added to the scores for selection, but not in the weights.
    pub bias: Option<WeightId>,
    /// Experts per row.
    pub used: usize,
    /// Groups to which a row's experts are confined.
    pub groups: Option<Groups>,
    /// The conversion of logits to scores.
    pub score: Score,
    /// Whether the weights of a row's experts are divided by their sum.
    pub normalise: bool,
    /// Factor on the weights.
    pub scale: f32,
    /// `[1, experts]` F32: a further factor for each expert.
    pub factors: Option<WeightId>,
    /// `[rows, 2 used]`: weights, best expert first, lower index first on ties; then the experts' indices as
    /// integers. A row's experts are distinct. For a row with NaN or infinity the weights are NaN and the experts are
    /// the first ones.
    pub out: Value,
}

/// The matrices of a layer's experts, all of one shape and type.
pub type Stack = Arc<[WeightId]>;

/// Products of each row with the matrices of its experts; 0 where the route has [`crate::NO_EXPERT`].
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// `[rows, cols]`, shared by a row's experts; or `[rows, used * cols]`, one input per expert.
    pub input: Value,
    /// The result of an [`Op::Route`], `[rows, 2 used]`.
    pub route: Value,
    /// One weight that contains all experts' matrices contiguously ([`crate::Weight::stacked`]), or one weight per
    /// expert.
    pub stack: Stack,
    /// `[experts, rows of a matrix]`, stacked like the matrices: the bias of each expert.
    pub bias: Option<WeightId>,
    /// `[experts, 1]`, stacked like the matrices: what the products of each expert are multiplied by. There is no bias then.
    pub factors: Option<WeightId>,
    /// `[rows, used * rows of a matrix]`, in the order of the route.
    pub out: Value,
}

/// Consecutive columns of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The value.
    pub value: Value,
    /// The first column.
    pub first: usize,
}

/// A linear recurrence over time, each head by itself.
///
/// Of a row and a head, with `step = softplus(dt + bias)`, the state `S [head_dim, state_dim]` decays to `exp(step * decay) *
/// S`, then [`Update`] adds to it, and `out = S c`. Columns of `b` and `c` are multiplied by their factors first. In the
/// terms of linear attention `x`, `b` and `c` are values, keys and queries.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// `[T, heads * head_dim]`.
    pub x: Columns,
    /// `[T, groups * state_dim]`.
    pub b: Columns,
    /// `[T, groups * state_dim]`, of the same value as `b`.
    pub c: Columns,
    /// Factor on `b`.
    pub b_factor: f32,
    /// Factor on `c`.
    pub c_factor: f32,
    /// `[T, heads]`.
    pub dt: Value,
    /// `[1, heads]`: added to `dt`.
    pub bias: WeightId,
    /// `[1, heads]`: rates of decay, below 0.
    pub decay: WeightId,
    /// What a row adds to the state.
    pub update: Update,
    /// Heads; a multiple of `groups * neighbours`.
    pub heads: usize,
    /// Groups of `b` and `c`.
    pub groups: usize,
    /// Consecutive heads of the same group: head `h` reads group `h / neighbours % groups`.
    pub neighbours: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements of a row of a head's state.
    pub state_dim: usize,
    /// `[heads, head_dim, state_dim]`.
    pub state: StateId,
    /// `[T, heads * head_dim]`.
    pub out: Value,
}

/// What a row adds to the decayed state `S` of a [`Scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// `step * x b^T`, and to the result `skip * x` (Mamba 2, Dao and Gu 2024).
    Sum {
        /// `[1, heads]`.
        skip: WeightId,
    },
    /// `sigmoid(beta) * (x - S b) b^T` (gated delta net, Yang et al. 2024).
    Delta {
        /// `[T, heads]`.
        beta: Value,
    },
}

impl Update {
    /// The further value that it reads.
    pub fn beta(&self) -> Option<Value> {
        match *self {
            Update::Sum { .. } => None,
            Update::Delta { beta } => Some(beta),
        }
    }

    /// The weight that it reads.
    pub fn skip(&self) -> Option<WeightId> {
        match *self {
            Update::Sum { skip } => Some(skip),
            Update::Delta { .. } => None,
        }
    }
}

impl Attend {
    /// Elements of one head of values.
    pub fn value_dim(&self) -> usize {
        self.v.in_keys().unwrap_or(self.head_dim)
    }

    /// Positions that the token at `position` of `span` attends to.
    pub fn sees(&self, span: &Span, position: u32) -> Range<u32> {
        let first = self.window.map_or(0, |window| window.first(position));
        assert!(first <= position, "a window of 0 sees nothing");
        match (self.cache, self.window) {
            (Some(_), _) => first..position + 1,
            (None, window) => {
                let end = span.first_position + span.rows;
                let ahead = match window {
                    Some(Window::Last(n)) => n,
                    Some(Window::Chunk(_)) => 1,
                    None => u32::MAX,
                };
                first.max(span.first_position)..position.saturating_add(ahead).min(end)
            }
        }
    }

    /// The weight with the biases of distances, if they are in one.
    pub fn table(&self) -> Option<WeightId> {
        match &self.bias {
            Some(DistanceBias::Buckets(buckets)) => Some(buckets.table),
            Some(DistanceBias::Slopes(_)) | None => None,
        }
    }
}

/// One operation of the graph.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each op's formula says what its fields are")]
pub enum Op {
    /// Row `ids[t]` of `table [vocab, width]` to `out [T, width]`.
    Embed { table: WeightId, ids: Ids, out: Value },
    /// `out[r, i] = gain[i] * x[r, i] / sqrt(mean_j x[r, j]^2 + eps)`; a missing gain is all ones.
    RmsNorm { input: Value, gain: Option<WeightId>, eps: f32, out: Value },
    /// `out[r, i] = gain[i] * (x[r, i] - mean) / sqrt(variance + eps) + bias[i]` (biased variance).
    LayerNorm { input: Value, gain: WeightId, bias: Option<WeightId>, eps: f32, out: Value },
    /// [`Op::RmsNorm`] over every `head_dim` elements, or [`Op::LayerNorm`] without a bias if `centered`; `gain` is `[1,
    /// head_dim]`, shared by the heads, or of a whole row.
    HeadNorm {
        input: Value,
        gain: Option<WeightId>,
        head_dim: usize,
        centered: bool,
        eps: f32,
        out: Value,
    },
    /// `out [rows, weight.rows] = input [rows, weight.cols] x transpose(weight) + bias`.
    MatMul {
        input: Value,
        weight: WeightId,
        bias: Option<WeightId>,
        precision: Precision,
        out: Value,
    },
    /// Rotates every `head_dim` elements by their token's position.
    Rope { input: Value, head_dim: usize, rope: Rope, out: Value },
    /// Cache append, mask, softmax and weighted sum.
    Attend(Attend),
    /// Causal convolution over time, each channel by itself: `out[t, c] = bias[c] + sum_j weight[c, j] * x[t - taps +
    /// 1 + j, c]` of `x = input [T, channels]`, preceded by the last `taps - 1` rows of the sequence, which are its
    /// state `[taps - 1, channels]` (zeros at first); `weight [1, channels * taps]`, `bias [1, channels]`.
    Conv { input: Value, weight: WeightId, bias: Option<WeightId>, state: StateId, out: Value },
    /// A linear recurrence over time.
    Scan(Scan),
    /// `out = activation(gate) * up`, elementwise, or [`Activation`]'s factor of `up`; without `up`,
    /// `activation(gate)`.
    Gate { gate: Value, up: Option<Value>, activation: Activation, out: Value },
    /// `out = a + b`, elementwise.
    Add { a: Value, b: Value, out: Value },
    /// `out = factor * input`, times the temperature at the row's position, if there is one (rows are then tokens), and
    /// times the weight `by [1, 1]`, if there is one.
    Scale {
        input: Value,
        factor: f32,
        temperature: Option<Temperature>,
        by: Option<WeightId>,
        out: Value,
    },
    /// `out = cap * tanh(input / cap)`.
    SoftCap { input: Value, cap: f32, out: Value },
    /// Of every `stride` elements of a row the `width` from `first` on.
    Part { input: Value, stride: usize, first: usize, width: usize, out: Value },
    /// The inverse of [`Op::Part`]: each group of `out` is `widths[0]` elements of `a`, then `widths[1]` of `b`.
    Join { a: Value, b: Value, widths: [usize; 2], out: Value },
    /// `out[i] = input[outputs[i]]`: from `[T, width]` to `[R, width]`.
    Rows { input: Value, out: Value },
    /// `out[i]` is the mean of the rows of `input` from the first row of the span that contains row `outputs[i]` up
    /// to that row: from `[T, width]` to `[R, width]`.
    Pool { input: Value, out: Value },
    /// The [`Step::top_k`](crate::Step::top_k) largest elements of each row, lower index first on ties: `out [rows, 2k]` has
    /// `k` places for values, then `k` for indices as integers; the rest is zero. NaN or infinity yields NaN everywhere.
    TopK { input: Value, k: usize, out: Value },
    /// The router.
    Route(Route),
    /// `out [T, 2 experts]`: the route that sends each row to all experts in order, with weights of 1. An
    /// [`Op::Experts`] with an input per expert then multiplies each head of a row by a matrix of its own.
    RouteAll { experts: usize, out: Value },
    /// Products with the chosen experts' matrices.
    Experts(Experts),
    /// `out [rows, width]` = the sum of the chosen experts' results `input [rows, used * width]`, weighted by
    /// `route`.
    Mix { input: Value, route: Value, out: Value },
}

/// What an op makes, reads and needs.
struct Operands {
    out: Value,
    inputs: [Option<Value>; 4],
    /// But for the matrices that [`Op::matrices`] names.
    weights: [Option<WeightId>; 3],
}

/// The table of ops: of each its kind, its stem, the fields that the rest of the line names, the value it makes, those it
/// reads in the order of its fields, and its weights besides matrices.
macro_rules! ops {
    ($($kind:ident $stem:literal $fields:tt: $out:expr, [$($input:expr),*], [$($weight:expr),*];)*) => {
        /// The kind of an [`Op`] without its operands; its name is the stem of all files that implement it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "each is documented at its namesake in `Op`")]
        pub enum OpKind {
            $($kind,)*
        }

        impl OpKind {
            /// All kinds, in the order of [`Op`].
            pub const ALL: [OpKind; [$($stem),*].len()] = [$(OpKind::$kind),*];

            /// The stem of the reference function, the CPU file, the shader and the profile row.
            pub fn stem(self) -> &'static str {
                match self {
                    $(OpKind::$kind => $stem,)*
                }
            }
        }

        impl Op {
            /// The op's kind.
            pub fn kind(&self) -> OpKind {
                match self {
                    $(Op::$kind { .. } => OpKind::$kind,)*
                }
            }

            fn operands(&self) -> Operands {
                match self {
                    $(Op::$kind $fields => {
                        let inputs: &[Option<Value>] = &[$($input),*];
                        let weights: &[Option<WeightId>] = &[$($weight),*];
                        Operands { out: *$out, inputs: padded(inputs), weights: padded(weights) }
                    })*
                }
            }
        }
    };
}

ops! {
    Embed "embed" { table, out, .. }: out, [], [Some(*table)];
    RmsNorm "rms_norm" { input, gain, out, .. }: out, [Some(*input)], [*gain];
    LayerNorm "layer_norm" { input, gain, bias, out, .. }: out, [Some(*input)], [Some(*gain), *bias];
    HeadNorm "head_norm" { input, gain, out, .. }: out, [Some(*input)], [*gain];
    MatMul "matmul" { input, bias, out, .. }: out, [Some(*input)], [*bias];
    Rope "rope" { input, rope, out, .. }: out, [Some(*input)], [rope.factors];
    Attend "attend" (op): &op.out, [Some(op.q), Some(op.k), op.v.beside()], [op.sinks, op.table()];
    Conv "conv" { input, weight, bias, out, .. }: out, [Some(*input)], [Some(*weight), *bias];
    Scan "scan" (op): &op.out, [Some(op.x.value), Some(op.b.value), Some(op.dt), op.update.beta()],
        [Some(op.bias), Some(op.decay), op.update.skip()];
    Gate "gate" { gate, up, out, .. }: out, [Some(*gate), *up], [];
    Add "add" { a, b, out }: out, [Some(*a), Some(*b)], [];
    Scale "scale" { input, by, out, .. }: out, [Some(*input)], [*by];
    SoftCap "soft_cap" { input, out, .. }: out, [Some(*input)], [];
    Part "part" { input, out, .. }: out, [Some(*input)], [];
    Join "join" { a, b, out, .. }: out, [Some(*a), Some(*b)], [];
    Rows "rows" { input, out }: out, [Some(*input)], [];
    Pool "pool" { input, out }: out, [Some(*input)], [];
    TopK "top_k" { input, out, .. }: out, [Some(*input)], [];
    Route "route" (op): &op.out, [Some(op.logits)], [op.bias, op.factors];
    RouteAll "route_all" { out, .. }: out, [], [];
    Experts "experts" (op): &op.out, [Some(op.input), Some(op.route)], [op.bias, op.factors];
    Mix "mix" { input, route, out }: out, [Some(*input), Some(*route)], [];
}

/// The operands that an op has, then none.
fn padded<T: Copy, const N: usize>(operands: &[Option<T>]) -> [Option<T>; N] {
    assert!(operands.len() <= N, "`Operands` has room for {N}");
    std::array::from_fn(|i| operands.get(i).copied().flatten())
}

impl Op {
    /// The value that the op computes.
    pub fn out(&self) -> Value {
        self.operands().out
    }

    /// The values the op reads, in the order of its fields.
    pub fn inputs(&self) -> impl Iterator<Item = Value> + use<> {
        self.operands().inputs.into_iter().flatten()
    }

    /// The state that the op advances.
    pub fn state(&self) -> Option<StateId> {
        match self {
            Op::Conv { state, .. } => Some(*state),
            Op::Scan(op) => Some(op.state),
            _ => None,
        }
    }

    /// The matrices that the op reads: completely in every step, or for experts the fraction given by
    /// [`crate::Graph::share`]; an embedding table is read only by a few rows.
    pub fn matrices(&self) -> &[WeightId] {
        match self {
            Op::MatMul { weight, .. } => std::slice::from_ref(weight),
            Op::Experts(experts) => &experts.stack,
            _ => &[],
        }
    }

    /// The weights the op reads.
    pub fn weights(&self) -> impl Iterator<Item = WeightId> + use<'_> {
        self.matrices().iter().copied().chain(self.operands().weights.into_iter().flatten())
    }
}
