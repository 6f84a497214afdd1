//! From a graph, a machine and a budget to a plan: which device runs what, and whether it fits.
//!
//! **Purpose.** [`plan`] decides, before anything is loaded, which device holds which layers, cuts the graph into
//! segments at the boundaries, and adds up the memory. A plan is plain data that can be printed, compared and
//! written as JSON.
//!
//! **What it does not know.** Devices (only their [`Facts`](bilayer_graph::Facts)), files, clocks. It is pure:
//! the same input gives the same plan.
//!
//! **Read first.** [`Plan`], [`Placement`], [`cut`].
//!
//! ```
//! use bilayer_graph::{Backend, Catalog, Entry, Recorder, reference::Reference};
//! use bilayer_quant::Type;
//! use bilayer_scheduler::{Budget, Machine, plan};
//!
//! struct One;
//! impl Catalog for One {
//!     fn find(&self, _: &str) -> Option<Entry> {
//!         Some(Entry { ty: Type::F32, shape: vec![3, 2] })
//!     }
//! }
//! let mut recorder = Recorder::new(&One);
//! let table = recorder.matrix("table", 3, 2)?;
//! let hidden = recorder.embed("embed", table);
//! let logits = recorder.matmul("head", hidden, table, None);
//! let graph = recorder.finish(logits);
//!
//! let machine = Machine::new(vec![Reference::new().facts().clone()]);
//! let plan = plan(&graph, &machine, &Budget::default())?;
//! assert_eq!(plan.map, "out:reference");
//! assert_eq!(plan.devices[0].weight_bytes, 3 * 2 * 4); // tied: counted once
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bytes;
mod counts;
mod cut;
mod displace;
mod error;
mod experts;
mod growth;
mod kernels;
mod machine;
pub mod map;
mod memory;
mod offload;
mod parts;
mod placement;
mod plan;
mod request;
mod residents;
mod split;
mod stream;
mod times;

pub use bytes::Bytes;
pub use cut::{PlannedSegment, cut};
pub use displace::{Loss, displaced};
pub use error::{Error, Excess};
pub use experts::{ExpertLayer, ExpertPlan, Mixture, SplitChoice, mixtures, split_experts};
pub use growth::Growth;
pub use kernels::{AttentionWork, KernelWork, Speed, StepRows, kernels};
pub use machine::{Budget, Machine};
pub use memory::working_bytes;
pub use offload::offload;
pub use placement::Placement;
pub use plan::{DevicePlan, LayerPlan, Plan, place, place_mapped, plan};
pub use request::{ExpertCache, ExpertUses, Offload, OpOffload, Request};
pub use stream::{
    PromptTimes, RoutedStreaming, STREAM_BATCHES, STREAM_SLOTS, STREAM_TOKENS, StreamBuffers,
    StreamStage, StreamedExperts, Streaming, stream_batches,
};
pub use times::{
    ANSWER_TOKENS, BATCH_TOKENS, Basis, Cost, Demand, DeviceTimes, Groups, PROMPT_TOKENS,
    Predicted, SHORT_TOKENS, Times, Upload, overlaps, timed_tokens,
};
