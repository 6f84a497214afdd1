//! An OpenAI-compatible HTTP server over the engine.
//!
//! **Purpose.** [`run`] listens, turns HTTP requests into requests of the engine's
//! [`Executor`](bilayer_engine::requests::Executor), and its events into responses and streams. Models are loaded on
//! first use, and a model's session is owned by one thread.
//!
//! **What it does not know.** Files, devices, kernels: a [`config::Offer`] opens a session. Flags: `cli` fills
//! [`config::Config`].
//!
//! **Read first.** [`config::Config`], `router.rs` (the routes), `worker.rs` (the thread that owns a session).
//!
//! ```no_run
//! use bilayer_server::{Notice, Stopper, config::Config, run};
//!
//! fn serve(config: Config) -> Result<(), bilayer_server::Error> {
//!     let stopper = Stopper::default();
//!     run(config, &stopper, |notice| {
//!         if let Notice::Listening(urls) = notice {
//!             eprintln!("listening on {}", urls.join(", "));
//!         }
//!     })
//! }
//! ```

mod adapters;
mod admission;
mod answers;
mod api;
mod app;
pub mod batch;
mod blocking;
mod body;
mod check;
pub mod config;
mod constraints;
mod conversation;
mod encoders;
mod endpoint;
mod endpoints;
mod error;
mod fields;
mod keys;
pub mod log;
mod memory;
mod metrics;
mod models;
mod origins;
mod params;
mod prompt;
mod router;
mod serve;
mod slot_files;
mod splitter;
mod sse;
mod thread;
mod translate;
mod worker;
#[cfg(test)]
mod worker_model;

/// The locks that handlers and the worker share, which a model checker replaces.
mod sync {
    pub(crate) use std::sync::{Mutex, PoisonError};
}

pub use check::{check, endpoints};
pub use params::Defaults;
pub use serve::{Error, Notice, Stopper, addresses, run};
