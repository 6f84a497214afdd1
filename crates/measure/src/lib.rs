//! Measurements on top of the engine: speed, quality, time per op, calibration data.
//!
//! **Purpose.** How fast a model is ([`bench`](mod@bench)), how much each offloaded layer gains ([`profile`]), where the
//! time of a step goes ([`trace`]), how long a model's layers take on each device ([`timing`], by which sessions place
//! layers), whether two devices compute the same results ([`verify`]), how well a model predicts a text
//! ([`perplexity`]), which columns of a matrix matter ([`imatrix`]), how good and fast models are on a team's own cases
//! ([`evaluate`]), how many servers a load needs ([`fleet`]), what tokens cost ([`cost`], [`power`]).
//!
//! **What it does not know.** Flags, terminals, charts, sockets. It prints nothing. The engine does not depend on it: a
//! session that places layers by measured times receives [`timing::device`] in its settings.
//!
//! **Read first.** [`bench::Bench`], [`profile::Profile`], [`trace::Timeline`].
//!
//! ```no_run
//! use std::path::Path;
//! use bilayer_engine::placement::Placing;
//! use bilayer_engine::session::Overlap;
//! use bilayer_engine::{Cancel, Model, OpenOptions};
//! use bilayer_measure::bench::{Bench, Method, Setup, Test};
//!
//! let model = Model::open(Path::new("model.gguf"), OpenOptions::default())?;
//! let setup = Setup {
//!     threads: None,
//!     cpu_level: None,
//!     fast_prefill: false,
//!     numa: Default::default(),
//!     context: 640,
//!     parallel: 1,
//!     ubatch_size: 512,
//!     cache_type_k: bilayer_quant::Type::F16,
//!     cache_type_v: bilayer_quant::Type::F16,
//!     hadamard_keys: false,
//!     fuse: true,
//!     overlap: Overlap::Auto,
//!     trace_events: None,
//!     placings: vec![Placing::default()],
//! };
//! let mut bench = Bench::new(&model);
//! bench.ready(&setup, 0, &mut |_| ())?;
//! let test = Test { prompt: 512, generate: 128, ..Test::default() };
//! let method = Method { repetitions: 5, warm_up: true, batch_size: 2048, probe: false };
//! let measured = bench.run(test, &method, &mut |_| (), &Cancel::new())?;
//! # Ok::<(), bilayer_measure::Error>(())
//! ```

pub mod bench;
mod cosine;
pub mod cost;
mod error;
pub mod evaluate;
pub mod fleet;
pub mod imatrix;
pub mod links;
pub mod perplexity;
pub mod power;
pub mod products;
pub mod profile;
pub mod timing;
pub mod trace;
pub mod verify;

pub use cosine::cosine;
pub use error::Error;
