//! Tests the executor as a whole on a graph small enough for mental arithmetic; shared by the ops' tests.

use bilayer_quant::Type;

use super::Reference;
use crate::{
    Attend, Backend, Catalog, Entry, Error, Exactness, Graph, Limits, PageCopy, Recorder, Segment,
    SegmentId, SharedBytes, Span, Step, Value, Values,
};

/// Small limits.
pub(crate) fn limits() -> Limits {
    Limits {
        outputs: 2,
        sequences: 2,
        states: 4,
        key_type: Type::F32,
        value_type: Type::F32,
        fuse: false,
        ..Limits::new(4, 2)
    }
}

/// Asserts that every pair differs by at most `bound`, relative to values above 1.
pub(crate) fn assert_near(found: &[f32], expected: &[f32], bound: f32) {
    assert_eq!(found.len(), expected.len());
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs() / expected.abs().max(1.0);
        assert!(error <= bound, "element {i}: {found}, expected {expected}");
    }
}

struct Tables;

impl Catalog for Tables {
    fn find(&self, name: &str) -> Option<Entry> {
        let shape = match name {
            "table" | "head" => vec![3, 2],
            "gain" => vec![2],
            _ => return None,
        };
        Some(Entry { ty: Type::F32, shape })
    }
}

fn bytes(floats: &[f32]) -> SharedBytes {
    floats.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>().into()
}

/// Embed, attend to the embeddings as queries, keys and values, select, project.
fn graph() -> Graph {
    let mut recorder = Recorder::new(&Tables);
    let table = recorder.matrix("table", 3, 2).unwrap();
    let head = recorder.matrix("head", 3, 2).unwrap();
    let x = recorder.embed("x", table);
    recorder.layer(Some(0));
    let attend = Attend {
        q: x,
        k: x,
        v: Values::Beside(x),
        out: Value(0),
        cache: Some(recorder.cache(1, 2, None)),
        heads: 1,
        kv_heads: 1,
        head_dim: 2,
        scale: 0.0, // every score 0: the plain mean of the values
        window: None,
        softcap: None,
        sinks: None,
        bias: None,
    };
    let mean = recorder.attend("mean", attend);
    recorder.layer(None);
    let wanted = recorder.rows_wanted("wanted", mean);
    let logits = recorder.matmul("logits", wanted, head, None);
    recorder.finish(logits)
}

fn ready(graph: &Graph, table: &[f32], limits: Limits) -> (Reference, SegmentId) {
    let mut reference = Reference::new();
    reference.load(&graph.weights[0], bytes(table)).unwrap();
    reference.load(&graph.weights[1], bytes(&[1.0, 0.0, 0.0, 1.0, 1.0, -1.0])).unwrap();
    let nodes = 0..graph.nodes.len();
    let segment = Segment { graph, nodes, inputs: vec![], outputs: vec![graph.logits] };
    let id = reference.compile(&segment, limits).unwrap();
    (reference, id)
}

const TABLE: [f32; 6] = [2.0, 4.0, 6.0, 0.0, 10.0, 20.0];

fn step<'a>(tokens: &'a [u32], spans: &'a [Span], pages: &'a [u32]) -> Step<'a> {
    Step {
        tokens,
        spans,
        pages,
        outputs: &[1],
        states: &[],
        copies: &[],
        top_k: 0,
        exactness: Exactness::Fastest,
    }
}

const TWO: [Span; 1] = [Span { first_row: 0, rows: 2, first_position: 0, first_page: 0 }];

#[test]
fn a_segment_runs_from_tokens_to_logits() {
    let graph = graph();
    let (mut reference, id) = ready(&graph, &TABLE, Limits { timings: true, ..limits() });
    reference.submit(id, &step(&[0, 1], &TWO, &[1])).unwrap();
    let mut logits = [0.0; 3];
    reference.read(graph.logits, &mut logits).unwrap();
    assert_near(&logits, &[4.0, 2.0, 2.0], 1e-6); // the mean of rows 0 and 1 is (4, 2)
    // Every value can be read, and every node has its time.
    let mut embedded = [0.0; 4];
    reference.read(Value(0), &mut embedded).unwrap();
    assert_eq!(embedded, [2.0, 4.0, 6.0, 0.0]);
    let timed: Vec<u32> = reference.timings(id).iter().map(|t| t.node).collect();
    assert_eq!(timed, [0, 1, 2, 3]);
    let names: Vec<_> = reference.kernels(id).into_iter().map(|k| k.name).collect();
    assert_eq!(names[3], "matmul reference");
}

#[test]
fn pages_are_copied_before_the_step() {
    let graph = graph();
    let (mut reference, id) = ready(&graph, &TABLE, limits());
    reference.submit(id, &step(&[0, 1], &TWO, &[0])).unwrap();
    let spans = [Span { first_row: 0, rows: 1, first_position: 2, first_page: 0 }];
    let copies = [PageCopy { from: 0, to: 1 }];
    let next = Step { outputs: &[0], copies: &copies, ..step(&[2], &spans, &[1]) };
    reference.submit(id, &next).unwrap();
    let mut logits = [0.0; 3];
    reference.read(graph.logits, &mut logits).unwrap();
    assert_near(&logits, &[6.0, 8.0, -2.0], 1e-6); // ((2, 4) + (6, 0) + (10, 20)) / 3
}

#[test]
fn steps_beyond_the_limits_are_refused() {
    let graph = graph();
    let (mut reference, id) = ready(&graph, &TABLE, limits());
    let long = [Span { first_row: 0, rows: 5, first_position: 0, first_page: 0 }];
    let one = |first_row| Span { first_row, rows: 1, first_position: 0, first_page: first_row };
    let three = [one(0), one(1), one(2)];
    let cases = [
        (step(&[0; 5], &long, &[0]), "tokens", 4, 5),
        (Step { outputs: &[0, 1, 1], ..step(&[0; 2], &TWO, &[0]) }, "outputs", 2, 3),
        (step(&[0; 3], &three, &[0, 1]), "sequences", 2, 3),
        (step(&[0; 2], &TWO, &[0, 1, 1]), "page entries", 2, 3),
        (step(&[0; 2], &TWO, &[2]), "pages", 2, 3),
    ];
    for (step, what, limit, found) in cases {
        assert_eq!(reference.submit(id, &step), Err(Error::Limit { what, limit, found }));
    }
}

#[test]
fn a_value_that_is_not_finite_is_named_when_asked() {
    let graph = graph();
    let table = [1.0, f32::INFINITY, 0.0, 0.0, 0.0, 0.0];
    let (mut reference, id) = ready(&graph, &table, Limits { check: true, ..limits() });
    reference.submit(id, &step(&[1, 0], &TWO, &[0])).unwrap();
    let error = reference.read(graph.logits, &mut [0.0; 3]).unwrap_err();
    assert_eq!(error, Error::NotFinite { label: "x".to_owned(), op: "embed" });
    // The next step starts fresh.
    reference.submit(id, &step(&[1, 2], &TWO, &[0])).unwrap();
    reference.read(graph.logits, &mut [0.0; 3]).unwrap();
}

#[test]
fn weights_must_be_loaded_and_whole() {
    let graph = graph();
    let mut reference = Reference::new();
    let error = reference.load(&graph.weights[0], bytes(&[0.0; 5])).unwrap_err();
    assert_eq!(error, Error::WeightBytes { name: "table".to_owned(), expected: 24, found: 20 });
    let nodes = 0..graph.nodes.len();
    let segment = Segment { graph: &graph, nodes, inputs: vec![], outputs: vec![graph.logits] };
    let error = reference.compile(&segment, limits()).unwrap_err();
    assert!(matches!(error, Error::WeightNotLoaded { name, .. } if name == "table"));
}

#[test]
fn two_halves_joined_by_a_value_give_the_same_logits() {
    let graph = graph();
    let (mut whole, id) = ready(&graph, &TABLE, limits());
    let step = step(&[0, 1], &TWO, &[0]);
    whole.submit(id, &step).unwrap();
    let mut expected = [0.0; 3];
    whole.read(graph.logits, &mut expected).unwrap();

    for cut in 1..graph.nodes.len() {
        let carried = graph.nodes[cut - 1].op.out();
        let mut low = Reference::new();
        let mut high = Reference::new();
        low.load(&graph.weights[0], bytes(&TABLE)).unwrap();
        high.load(&graph.weights[1], bytes(&[1.0, 0.0, 0.0, 1.0, 1.0, -1.0])).unwrap();
        let g = &graph;
        let first = Segment { graph: g, nodes: 0..cut, inputs: vec![], outputs: vec![carried] };
        let second = Segment {
            graph: g,
            nodes: cut..graph.nodes.len(),
            inputs: vec![carried],
            outputs: vec![graph.logits],
        };
        let first = low.compile(&first, limits()).unwrap();
        let second = high.compile(&second, limits()).unwrap();
        low.submit(first, &step).unwrap();
        let mut hidden = vec![0.0; super::rows_of(&graph.values[carried.0 as usize], &step) * 2];
        low.read(carried, &mut hidden).unwrap();
        high.write(carried, &hidden).unwrap();
        high.submit(second, &step).unwrap();
        let mut logits = [0.0; 3];
        high.read(graph.logits, &mut logits).unwrap();
        assert_eq!(logits, expected, "cut at {cut}");
    }
}
