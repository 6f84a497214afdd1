//! Small models of known sizes, and machines with known times.

use bilayer_graph::{
    Activation, Attend, Catalog, Entry, Experts, Facts, Graph, Recorder, Route, Score, Value,
    Values, WeightId, Window,
};
use bilayer_quant::Type;
use bilayer_scheduler::{Basis, Budget, Cost, DeviceTimes, Machine, Times};

/// Elements of a hidden state.
pub const WIDTH: usize = 64;
/// Elements between the matrices of a feed-forward network, and of an expert.
pub const FFN: usize = 128;
/// Tokens of the vocabulary.
pub const VOCAB: usize = 256;
/// Elements of the matrices of attention: of queries and results, and of keys and values of half as many heads.
pub const ATTENTION: u64 = 2 * 64 * 64 + 2 * 32 * 64;
/// Elements of the matrices of a feed-forward network or an expert.
pub const NETWORK: u64 = 3 * 128 * 64;
/// Bytes of a dense layer in F32, with two norms.
pub const LAYER_BYTES: u64 = 4 * (ATTENTION + NETWORK + 2 * 64);
/// Bytes of a token in a layer's cache, F16.
pub const TOKEN_BYTES: u64 = 2 * (32 + 32);
pub const GIB: u64 = 1 << 30;

/// A directory that has a tensor of every name and shape, in the type for its name.
pub struct Typed<'f>(pub &'f dyn Fn(&str) -> Type);

impl Catalog for Typed<'_> {
    fn find(&self, _: &str) -> Option<Entry> {
        None
    }

    fn find_as(&self, name: &str, expected: &[u64]) -> Option<Entry> {
        Some(Entry { ty: (self.0)(name), shape: expected.to_vec() })
    }
}

pub const F32: Typed<'static> = Typed(&|_| Type::F32);

/// The type of matrices; vectors are F32.
pub fn matrices(ty: Type) -> impl Fn(&str) -> Type {
    move |name| if name.contains("norm") { Type::F32 } else { ty }
}

/// A product with the matrix of a name.
pub fn product(of: &mut Recorder<'_>, name: &str, input: Value, rows: usize) -> Value {
    let weight = of.matrix(name, rows, of.width(input)).unwrap();
    of.matmul("product", input, weight, None)
}

/// The norm of a name.
pub fn norm(of: &mut Recorder<'_>, name: &str, input: Value) -> Value {
    let gain = of.vector(name, of.width(input)).unwrap();
    of.rms_norm("norm", input, Some(gain), 1e-5)
}

pub fn embedding(of: &mut Recorder<'_>, width: usize) -> Value {
    let table = of.matrix("table", VOCAB, width).unwrap();
    of.embed("embed", table)
}

/// The norm and the product of the rows that are asked for.
pub fn head(mut of: Recorder<'_>, hidden: Value) -> Graph {
    of.layer(None);
    let rows = of.rows_wanted("rows", hidden);
    let rows = norm(&mut of, "norm", rows);
    let logits = product(&mut of, "head", rows, VOCAB);
    of.finish(logits)
}

/// Four heads of 16 queries, and two of keys and values; the rows and what attention adds to them.
pub fn attention(
    of: &mut Recorder<'_>,
    layer: u32,
    hidden: Value,
    window: Option<Window>,
) -> Value {
    let cache = of.cache(2, 16, window);
    let normed = norm(of, &format!("{layer}.attn_norm"), hidden);
    let q = product(of, &format!("{layer}.q"), normed, 64);
    let k = product(of, &format!("{layer}.k"), normed, 32);
    let v = product(of, &format!("{layer}.v"), normed, 32);
    let out = of.attend("attn", attend(q, k, v, Some(cache), window));
    let out = product(of, &format!("{layer}.o"), out, WIDTH);
    of.add("sum", out, hidden)
}

pub fn attend(
    q: Value,
    k: Value,
    v: Value,
    cache: Option<bilayer_graph::CacheId>,
    window: Option<Window>,
) -> Attend {
    Attend {
        q,
        k,
        v: Values::Beside(v),
        out: Value(0),
        cache,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        scale: 0.25,
        window,
        softcap: None,
        sinks: None,
        bias: None,
    }
}

fn network(of: &mut Recorder<'_>, layer: u32, hidden: Value) -> Value {
    let normed = norm(of, &format!("{layer}.ffn_norm"), hidden);
    let gate = product(of, &format!("{layer}.gate"), normed, FFN);
    let up = product(of, &format!("{layer}.up"), normed, FFN);
    let wide = of.gate("act", gate, Some(up), Activation::Silu);
    let out = product(of, &format!("{layer}.down"), wide, WIDTH);
    of.add("sum", out, hidden)
}

/// Layers of attention and a feed-forward network, and a head.
pub fn dense(layers: u32) -> Graph {
    dense_of(layers, Type::F32)
}

pub fn dense_of(layers: u32, ty: Type) -> Graph {
    let of_name = matrices(ty);
    let catalog = Typed(&of_name);
    let mut of = Recorder::new(&catalog);
    let mut hidden = embedding(&mut of, WIDTH);
    for layer in 0..layers {
        of.layer(Some(layer));
        hidden = attention(&mut of, layer, hidden, None);
        hidden = network(&mut of, layer, hidden);
    }
    head(of, hidden)
}

/// A mixture of so many experts, of which a token uses so many.
pub fn mixture(
    of: &mut Recorder<'_>,
    layer: u32,
    hidden: Value,
    experts: usize,
    used: usize,
) -> Value {
    let normed = norm(of, &format!("{layer}.ffn_norm"), hidden);
    let logits = product(of, &format!("{layer}.router"), normed, experts);
    let route = of.route(
        "topk",
        Route {
            logits,
            bias: None,
            used,
            groups: None,
            score: Score::Softmax,
            normalise: true,
            scale: 1.0,
            factors: None,
            out: Value(0),
        },
    );
    let one = |of: &mut Recorder<'_>, name: &str, input: Value, rows: usize, cols: usize| {
        let name = format!("{layer}.{name}_exps");
        let stack = of.stack(&name, |_| String::new(), [experts, rows, cols]).unwrap();
        of.experts(
            "experts",
            Experts { input, route, stack, bias: None, factors: None, out: Value(0) },
        )
    };
    let gate = one(of, "gate", normed, FFN, WIDTH);
    let up = one(of, "up", normed, FFN, WIDTH);
    let wide = of.gate("act", gate, Some(up), Activation::Silu);
    let out = one(of, "down", wide, WIDTH, FFN);
    let out = of.mix("mix", out, route);
    of.add("sum", out, hidden)
}

/// Layers of attention and a mixture of experts, and a head.
pub fn sparse(layers: u32, experts: usize, used: usize) -> Graph {
    sparse_of(layers, experts, used, Type::F32)
}

pub fn sparse_of(layers: u32, experts: usize, used: usize, ty: Type) -> Graph {
    let of_name = matrices(ty);
    let catalog = Typed(&of_name);
    let mut of = Recorder::new(&catalog);
    let mut hidden = embedding(&mut of, WIDTH);
    for layer in 0..layers {
        of.layer(Some(layer));
        hidden = attention(&mut of, layer, hidden, None);
        hidden = mixture(&mut of, layer, hidden, experts, used);
    }
    head(of, hidden)
}

/// The weight of a name.
pub fn weight(graph: &Graph, name: &str) -> WeightId {
    let found = graph.weights.iter().find(|weight| weight.name == name);
    found.unwrap_or_else(|| panic!("no weight {name}")).id
}

pub fn host(memory_bytes: u64) -> Facts {
    Facts::host("a host", memory_bytes)
}

pub fn gpu(memory_bytes: u64) -> Facts {
    Facts::offload("gpu", "a card", memory_bytes)
}

/// A host of any size and cards of so many bytes.
pub fn cards(bytes: &[u64]) -> Machine {
    let cards = bytes.iter().map(|&bytes| gpu(bytes));
    Machine::new(std::iter::once(host(64 * GIB)).chain(cards).collect())
}

/// Steps of 8 tokens and 2 rows, in a context of two pages.
pub const BUDGET: Budget = Budget {
    context: 64,
    states: 3,
    tokens: 8,
    outputs: 2,
    key_type: Type::F16,
    value_type: Type::F16,
    margin_bytes: 0,
};

/// A cost of one token, of a batch, and per token of a prompt by micro-batches and in one step; not of a short prompt.
pub fn cost([decode_ms, batch_ms, prefill_ms, prompt_ms]: [f64; 4]) -> Cost {
    Cost {
        decode_ms,
        batch_ms: Some(batch_ms),
        short_ms: None,
        prefill_ms: Some(prefill_ms),
        prompt_ms: Some(prompt_ms),
    }
}

/// Times of a device on which all layers take the same.
pub fn alike(
    layers: u32,
    embedding: Cost,
    layer: Cost,
    output: Cost,
    segment: Cost,
) -> DeviceTimes {
    let layers = vec![layer; layers as usize];
    DeviceTimes { embedding, layers, output, segment, upload: None }
}

pub fn measured(devices: Vec<DeviceTimes>) -> Option<Times> {
    Some(Times { basis: Basis::Measured, devices })
}

/// Fails unless the figures are equal but for rounding.
#[track_caller]
pub fn assert_close(found: f64, expected: f64) {
    let equal = (found - expected).abs() <= 1e-9 * expected.abs().max(1e-9);
    assert!(equal, "{found} instead of {expected}");
}
