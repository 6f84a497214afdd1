//! What the files of ops make their stages from: the graph, its weights, and where its values lie.

use std::collections::HashMap;
use std::sync::Arc;

use bilayer_graph::{CacheId, Graph, Op, Rope, Rows, StateId, Value, Weight, WeightId};

use crate::cache::Cache;
use crate::held::Held;
use crate::level::Level;
use crate::matrix::{Matrix, Residents, Vector, floats};
use crate::numa::Nodes;
use crate::slots::Slots;
use crate::stage::Buffer;

/// The backend's state for lowering a segment.
pub(crate) struct Holdings<'a> {
    pub(crate) weights: &'a HashMap<WeightId, Held>,
    pub(crate) residents: &'a Residents,
    pub(crate) caches: &'a HashMap<CacheId, Arc<Cache>>,
    pub(crate) states: &'a HashMap<StateId, Arc<Slots>>,
    /// Temporary caches of attention without a cache, one per shape.
    pub(crate) scratch: &'a [Arc<Cache>],
    pub(crate) level: Level,
    /// Whether products of prompts may round the weights.
    pub(crate) fast_prefill: bool,
    pub(crate) nodes: &'a Nodes,
}

/// A segment on its way to stages.
pub(crate) struct Lowering<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) holdings: &'a Holdings<'a>,
    /// Location of each value; absent for those fused away.
    pub(crate) buffers: HashMap<Value, Buffer>,
    pub(crate) tables: Vec<RopeTable>,
}

/// A RoPE table of the program: `[T, 2 * pairs]`.
pub(crate) struct RopeTable {
    pub(crate) rope: Rope,
    pub(crate) buffer: Buffer,
    /// Whether a stage uses it.
    pub(crate) used: bool,
    /// Whether the stage that fills it exists already.
    pub(crate) made: bool,
}

impl<'a> Lowering<'a> {
    pub(crate) fn new(graph: &'a Graph, holdings: &'a Holdings<'a>) -> Lowering<'a> {
        Lowering { graph, holdings, buffers: HashMap::new(), tables: Vec::new() }
    }

    /// The op of a node.
    pub(crate) fn op(&self, node: usize) -> &'a Op {
        &self.graph.nodes[node].op
    }

    /// A weight's description and its matrix.
    pub(crate) fn weight(&self, id: WeightId) -> (&'a Weight, Matrix) {
        (self.graph.weight(id), self.matrix(id, 0))
    }

    /// The `number`-th of a weight's matrices.
    pub(crate) fn matrix(&self, id: WeightId, number: usize) -> Matrix {
        if let Some(matrix) = self.holdings.residents.matrix(id, number) {
            return matrix;
        }
        self.holdings.weights[&id].matrix(number, self.graph.weight(id).stacked)
    }

    /// Where a value lies.
    pub(crate) fn buffer(&self, value: Value) -> Buffer {
        self.buffers[&value]
    }

    /// The slots of a state.
    pub(crate) fn slots(&self, state: StateId) -> Arc<Slots> {
        self.holdings.states[&state].clone()
    }

    /// A vector weight as f32.
    pub(crate) fn vector(&self, id: WeightId) -> Arc<[f32]> {
        let weight = self.graph.weight(id);
        floats(weight, &self.holdings.weights[&id].bytes(weight.stacked))
    }

    /// The vectors of a stack as f32.
    pub(crate) fn vectors(&self, id: WeightId) -> Vec<Vector> {
        let weight = self.graph.weight(id);
        self.holdings.residents.vectors(id).unwrap_or_else(|| {
            let bytes = self.holdings.weights[&id].bytes(weight.stacked);
            let parts = bytes.chunks_exact(bytes.len() / weight.stacked);
            parts.map(|bytes| Vector::Fixed(floats(weight, bytes))).collect()
        })
    }

    /// The table of a RoPE, which is filled before its first use.
    pub(crate) fn table(&mut self, rope: &Rope) -> Buffer {
        let index = self.table_index(rope).expect("placing has met every rotation");
        self.tables[index].used = true;
        self.tables[index].buffer
    }

    /// Adds the table of a RoPE, without a place yet.
    pub(crate) fn add_table(&mut self, rope: &Rope) {
        if self.table_index(rope).is_none() {
            let width = 2 * rope.frequencies.len();
            let buffer = Buffer { offset: 0, width, rows: Rows::Tokens };
            self.tables.push(RopeTable { rope: rope.clone(), buffer, used: false, made: false });
        }
    }

    fn table_index(&self, rope: &Rope) -> Option<usize> {
        // The pairing does not affect the angles.
        let same = |known: &Rope| Rope { pairs: rope.pairs, ..known.clone() } == *rope;
        self.tables.iter().position(|table| same(&table.rope))
    }
}
