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
//! use std::ops::ControlFlow;
//! use std::path::Path;
//! use bilayer_engine::session::Settings;
//! use bilayer_engine::{Cancel, Model, OpenOptions};
//! use bilayer_measure::bench::{Bench, Method, Setup, Test};
//!
//! let model = Model::open(Path::new("model.gguf"), OpenOptions::default())?;
//! let test = Test { prompt: 512, generate: 128, ..Test::default() };
//! let setup = Setup::new(&Settings::default(), &[test]);
//! let mut bench = Bench::new(&model);
//! bench.ready(&setup, 0, &mut |_| ControlFlow::Continue(()))?;
//! let measured = bench.run(test, &Method::default(), &mut |_| (), &Cancel::new())?;
//! # Ok::<(), bilayer_measure::Error>(())
//! ```

pub mod bench;
mod cosine;
pub mod cost;
pub mod devices;
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

/// Tokens that are in progress at once, unless another number is asked for, as in llama.cpp.
pub const BATCH_SIZE: usize = 2048;

pub use cosine::cosine;
pub use error::Error;
