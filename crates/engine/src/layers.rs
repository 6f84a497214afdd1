//! Runs a model on the CPU one layer at a time over several sequences, so that a layer's weights can be changed before
//! the layers after it run.
//!
//! [`Layers::new`] runs what comes before the first layer, and [`Layers::run`] the next layer, with the weights of any
//! copy of the model. Between layers memory holds the values that later layers read, usually one hidden state, for
//! every token of every sequence: 4 bytes · width · tokens. Each layer has a backend of its own, so weights of one layer
//! are in use at a time. Keys and values that later layers read (shared KV layers) are kept as well.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bilayer_graph::{
    Backend, CacheId, CachePages, Exactness, Graph, Holding, Limits, Op, PAGE_TOKENS, Segment,
    Span, StateSpan, Step, Value, WeightId,
};

use crate::placing::Placing;
use crate::purpose::Purpose;
use crate::{Error, Model, devices};

/// A model between two of its layers.
pub struct Layers {
    /// For the longest sequence.
    graph: Graph,
    context: usize,
    threads: Option<usize>,
    /// The nodes of each layer.
    layers: Vec<Range<usize>>,
    /// The layer that runs next.
    next: usize,
    sequences: Vec<Sequence>,
}

struct Sequence {
    tokens: Vec<u32>,
    /// Values of earlier nodes that later layers read, `[tokens, width]`.
    values: BTreeMap<Value, Vec<f32>>,
    /// Caches of earlier layers that later layers read.
    caches: BTreeMap<CacheId, CachePages>,
}

/// The values of one sequence at one layer.
pub struct LayerValues<'a> {
    before: &'a BTreeMap<Value, Vec<f32>>,
    made: &'a BTreeMap<Value, Vec<f32>>,
}

impl LayerValues<'_> {
    /// A value that the layer computes and that was asked for, or one that it reads, `[tokens, width]`.
    pub fn get(&self, value: Value) -> Option<&[f32]> {
        self.made.get(&value).or_else(|| self.before.get(&value)).map(Vec::as_slice)
    }
}

/// What happens to a layer's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// They are only looked at: the layer can run again.
    Repeat,
    /// They are kept for the layer after it, which is the next one.
    Advance,
}

impl Layers {
    /// Runs everything before the first layer for all sequences, of which each has at least one token.
    ///
    /// # Errors
    /// Layers whose nodes are not consecutive; those of [`Model::graph_for`]; a device error.
    pub fn new(
        model: &Model,
        sequences: Vec<Vec<u32>>,
        threads: Option<usize>,
    ) -> Result<Layers, Error> {
        let context = sequences.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let graph = model.graph_for(context, Purpose::Own)?;
        let layers = graph.layer_nodes().into_iter().map(|nodes| {
            let (first, last) = (*nodes.first()?, *nodes.last()?);
            (last - first + 1 == nodes.len()).then_some(first..last + 1)
        });
        let layers: Vec<Range<usize>> = layers.collect::<Option<_>>().ok_or_else(|| {
            let expected = "a model whose layers are computed one after the other";
            Error::setting("layer by layer", model.name(), expected)
        })?;
        let sequence =
            |tokens| Sequence { tokens, values: BTreeMap::new(), caches: BTreeMap::new() };
        let sequences = sequences.into_iter().map(sequence).collect();
        let mut this = Layers { graph, context, threads, layers, next: 0, sequences };
        let before = 0..this.layers.first().map_or(0, |nodes| nodes.start);
        if !before.is_empty() {
            this.pass(model, before, &[], Then::Advance, &mut |_, _| true)?;
        }
        Ok(this)
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layer that [`Layers::run`] runs next.
    pub fn next_layer(&self) -> usize {
        self.next
    }

    /// The hidden state that the next layer reads: the value that the layer before it computed last, or the embedding.
    pub fn hidden(&self) -> Option<Value> {
        let start = self.layers.get(self.next)?.start;
        if self.next > 0 {
            return Some(self.graph.nodes[start - 1].op.out());
        }
        let last = self.result(self.layers.len() - 1);
        let width = self.graph.width(last);
        let read = self.graph.nodes[start..].iter().flat_map(|node| node.op.inputs());
        let made: BTreeSet<Value> =
            self.graph.nodes[..start].iter().map(|node| node.op.out()).collect();
        read.into_iter().find(|value| made.contains(value) && self.graph.width(*value) == width)
    }

    /// The value that a layer computes last.
    pub fn result(&self, layer: usize) -> Value {
        self.graph.nodes[self.layers[layer].end - 1].op.out()
    }

    /// Runs the next layer of every sequence with the weights of `model`, a copy of the first one that differs only in
    /// weights. `each` receives the number of a sequence with the values that the layer reads and those of `watched` that
    /// it computes, and stops the work by returning false; returns whether all sequences ran.
    ///
    /// # Panics
    /// If all layers have run.
    ///
    /// # Errors
    /// A device error, an op without a kernel.
    pub fn run(
        &mut self,
        model: &Model,
        watched: &[Value],
        then: Then,
        each: &mut dyn FnMut(usize, &LayerValues<'_>) -> bool,
    ) -> Result<bool, Error> {
        let nodes = self.layers[self.next].clone();
        let is_whole = self.pass(model, nodes, watched, then, each)?;
        if then == Then::Advance && is_whole {
            self.next += 1;
        }
        Ok(is_whole)
    }

    fn pass(
        &mut self,
        model: &Model,
        nodes: Range<usize>,
        watched: &[Value],
        then: Then,
        each: &mut dyn FnMut(usize, &LayerValues<'_>) -> bool,
    ) -> Result<bool, Error> {
        // Another type of a weight changes the graph's weights, and nothing else.
        let graph = model.graph_for(self.context, Purpose::Own)?;
        let end = self.layers.last().map_or(0, |last| last.end);
        let later = &graph.nodes[nodes.end..end.max(nodes.end)];
        let own: BTreeSet<Value> = graph.nodes[nodes.clone()].iter().map(|n| n.op.out()).collect();
        let read: BTreeSet<Value> =
            graph.nodes[nodes.clone()].iter().flat_map(|node| node.op.inputs()).collect();
        let inputs: Vec<Value> =
            read.iter().filter(|value| !own.contains(value)).copied().collect();
        let needed: BTreeSet<Value> = later.iter().flat_map(|node| node.op.inputs()).collect();
        let mut outputs: BTreeSet<Value> =
            watched.iter().filter(|value| own.contains(value)).copied().collect();
        if then == Then::Advance {
            outputs.extend(own.intersection(&needed));
        }
        if outputs.is_empty() {
            // Something has to be waited for.
            outputs.extend(graph.nodes[nodes.clone()].last().map(|node| node.op.out()));
        }
        let caches = Caches::new(&graph, &nodes, later);
        let mut one = CompiledLayer::compile(self, model, &graph, &nodes, &inputs, &outputs)?;
        for (number, sequence) in self.sequences.iter_mut().enumerate() {
            for (&cache, data) in sequence.caches.iter().filter(|(c, _)| caches.read.contains(c)) {
                let pages = pages(sequence.tokens.len());
                one.backend.restore(cache, &pages, data)?;
            }
            let made = one.step(&graph, sequence, &inputs, &outputs)?;
            let values = LayerValues { before: &sequence.values, made: &made };
            if !each(number, &values) {
                return Ok(false);
            }
            if then == Then::Advance {
                for &cache in &caches.kept {
                    let data = one.backend.save(cache, &pages(sequence.tokens.len()))?;
                    sequence.caches.insert(cache, data);
                }
                sequence.values.extend(made);
                sequence.values.retain(|value, _| needed.contains(value));
            }
        }
        Ok(true)
    }

    fn limits(&self) -> Limits {
        let pages = self.context.div_ceil(PAGE_TOKENS);
        Limits { fuse: false, ..Limits::new(self.context, pages) }
    }
}

/// The pages of a sequence that is alone in the cache.
fn pages(tokens: usize) -> Vec<u32> {
    (0..tokens.div_ceil(PAGE_TOKENS) as u32).collect()
}

/// The caches of some nodes that other layers have, too.
struct Caches {
    /// Those of earlier layers.
    read: BTreeSet<CacheId>,
    /// Those that later layers read.
    kept: BTreeSet<CacheId>,
}

impl Caches {
    fn new(graph: &Graph, nodes: &Range<usize>, later: &[bilayer_graph::Node]) -> Caches {
        let of = |nodes: &[bilayer_graph::Node]| -> BTreeSet<CacheId> {
            let caches = nodes.iter().filter_map(|node| match &node.op {
                Op::Attend(attend) => attend.cache,
                _ => None,
            });
            caches.collect()
        };
        let (before, own) = (of(&graph.nodes[..nodes.start]), of(&graph.nodes[nodes.clone()]));
        let kept = own.intersection(&of(later)).copied().collect();
        Caches { read: own.intersection(&before).copied().collect(), kept }
    }
}

/// Some nodes, compiled on a backend of their own.
struct CompiledLayer {
    backend: Box<dyn Backend>,
    segment: bilayer_graph::SegmentId,
    has_state: bool,
}

impl CompiledLayer {
    fn compile(
        layers: &Layers,
        model: &Model,
        graph: &Graph,
        nodes: &Range<usize>,
        inputs: &[Value],
        outputs: &BTreeSet<Value>,
    ) -> Result<CompiledLayer, Error> {
        let options = bilayer_cpu::Options { threads: layers.threads, ..Default::default() };
        let mut backend = devices::host(&Placing::cpu(), options)?;
        let ids: BTreeSet<WeightId> =
            graph.nodes[nodes.clone()].iter().flat_map(|node| node.op.weights()).collect();
        let weights: Vec<_> = ids.into_iter().map(|id| graph.weight(id)).collect();
        backend.reserve(&Holding { weights: &weights, ..Holding::default() })?;
        let file = model.file();
        for weight in weights {
            let missing = || bilayer_graph::Error::MissingTensor { name: weight.name.clone() };
            let tensor = file.tensor(&weight.name).ok_or_else(missing)?;
            backend.load(weight, file.bytes(tensor).slice(weight.range_in_tensor()))?;
        }
        let segment = Segment {
            graph,
            nodes: nodes.clone(),
            inputs: inputs.to_vec(),
            outputs: outputs.iter().copied().collect(),
        };
        let segment = backend.compile(&segment, layers.limits())?;
        let has_state = graph.nodes[nodes.clone()].iter().any(|node| node.op.state().is_some());
        Ok(CompiledLayer { backend, segment, has_state })
    }

    /// The outputs of a whole sequence.
    fn step(
        &mut self,
        graph: &Graph,
        sequence: &Sequence,
        inputs: &[Value],
        outputs: &BTreeSet<Value>,
    ) -> Result<BTreeMap<Value, Vec<f32>>, Error> {
        let tokens = &sequence.tokens;
        let rows = tokens.len() as u32;
        let span = Span { first_row: 0, rows, first_position: 0, first_page: 0 };
        let state = StateSpan { first_row: 0, rows, from: None, to: 0 };
        let step = Step {
            tokens,
            spans: &[span],
            pages: &pages(tokens.len()),
            outputs: &(0..rows).collect::<Vec<_>>(),
            states: if self.has_state { std::slice::from_ref(&state) } else { &[] },
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        for &value in inputs {
            let data = sequence.values.get(&value).expect("earlier nodes kept what is read");
            self.backend.write(value, data)?;
        }
        self.backend.submit(self.segment, &step)?;
        let mut made = BTreeMap::new();
        for &value in outputs {
            let mut data = vec![0.0; tokens.len() * graph.width(value)];
            self.backend.read(value, &mut data)?;
            made.insert(value, data);
        }
        Ok(made)
    }
}
