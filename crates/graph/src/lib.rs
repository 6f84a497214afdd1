//! The vocabulary of a transformer: ops, values, weights, the recorder, backends and the reference executor.
//!
//! **Purpose.** An architecture is recorded once into a [`Graph`] of LLM-sized ops over ids; a scheduler
//! cuts the graph into [`Segment`]s; a [`Backend`] compiles and runs them. [`reference::Reference`] is the
//! naive backend every other one is tested against.
//!
//! **What it does not know.** Files, metadata keys, architectures' names, devices. It does no input or output.
//!
//! **Read first.** [`Op`], [`Graph`], [`Backend`].
//!
//! ```
//! use bilayer_graph::{Catalog, Entry, Recorder};
//! use bilayer_quant::Type;
//!
//! struct Two;
//! impl Catalog for Two {
//!     fn find(&self, name: &str) -> Option<Entry> {
//!         (name == "w").then(|| Entry { ty: Type::F32, shape: vec![3, 2] })
//!     }
//! }
//! let mut recorder = Recorder::new(&Two);
//! let table = recorder.matrix("w", 3, 2)?;
//! let hidden = recorder.embed("embed", table); // [T, 2]
//! let logits = recorder.matmul("head", hidden, table, None); // [T, 3]
//! let graph = recorder.finish(logits);
//! assert_eq!(graph.width(logits), 3);
//! # Ok::<(), bilayer_graph::Error>(())
//! ```

mod backend;
mod clock;
mod distance;
mod error;
pub mod fuse;
mod graph;
mod lora;
mod op;
mod recorder;
pub mod reference;
pub mod slots;
mod split;
mod step;
mod weight;

pub use backend::{
    Backend, CachePages, Facts, Holding, Kernel, Limits, Link, MappedWeight, OpTime, Segment,
    SegmentId, StreamedLayer, host_room, host_zeros,
};
pub use clock::Clock;
pub use distance::{Buckets, DistanceBias};
pub use error::{Error, panic_text};
pub use graph::{CacheInfo, Graph, Node, StateInfo, ValueInfo, share_of};
pub use lora::Lora;
pub use op::{
    Activation, Attend, CacheId, Columns, Experts, Groups, Ids, Op, OpKind, Pairs, Precision, Rope,
    Route, Rows, Scan, Score, Stack, StateId, Temperature, Update, Value, Values, Window,
};
pub use recorder::{Catalog, Entry, Recorder};
pub use split::{NO_EXPERT, Part, ResidentStack, SplitMixture};
pub use step::{EXACT_ROWS_MAX, Exactness, PAGE_TOKENS, PageCopy, Span, StateSpan, Step};
pub use weight::{Weight, WeightId};

/// Reference-counted bytes: a slice of a file map, of an embedded file, or of owned memory.
pub type SharedBytes = bytes::Bytes;
