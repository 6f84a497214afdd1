//! What the user asks for, and all that a plan is made of.

use std::collections::BTreeMap;

use bilayer_graph::{Graph, WeightId};

use crate::{Budget, Machine};

/// How much is offloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// What gives the shortest answer where times are known, else as much as fits.
    #[default]
    Auto,
    /// Everything but the embedding.
    All,
    /// The head and the last layers, so many parts in all: `layers + 1` is everything.
    Count(u32),
    /// So many hundredths of `layers + 1` parts.
    Percent(u8),
}

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// How much is offloaded.
    pub offload: Offload,
    /// How much of that each offload device gets, in the machine's order and any unit; devices beyond the end get
    /// nothing. Without any share the split follows measured times and free memory.
    pub shares: Vec<f64>,
    /// Weights whose ops run on a given device of the machine, whatever their layer does. Where there is no such
    /// device, a pin has no effect.
    pub pins: Vec<(WeightId, usize)>,
    /// Caches and the attention over them stay with the host.
    pub cache_on_host: bool,
    /// When weights that the host holds are streamed.
    pub op_offload: OpOffload,
    /// Device memory for experts whose layers' others are with the host.
    pub experts: ExpertCache,
    /// How often experts are used, if known.
    pub uses: Option<ExpertUses>,
}

/// Device memory for experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertCache {
    /// None: experts are where their layers are.
    #[default]
    Off,
    /// What is left, if that is predicted to be faster.
    Auto,
    /// So many bytes at most.
    Bytes(u64),
}

/// How often experts are used.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertUses {
    /// Where the counts are from, for people.
    pub source: String,
    /// Of each layer, how often each expert was used, in any unit.
    pub layers: BTreeMap<u32, Vec<f64>>,
}

/// When weights that the host holds are streamed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpOffload {
    /// In steps of so many tokens that it is predicted to be faster.
    #[default]
    Auto,
    /// Never.
    Never,
    /// In steps of at least so many tokens.
    From(usize),
}

/// What is placed where, and what is asked of it.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub graph: &'a Graph,
    pub machine: &'a Machine,
    pub budget: &'a Budget,
    pub request: &'a Request,
}
