//! Loading, sessions, cache book-keeping, generation, sampling.
//!
//! **Purpose.** From a model file to text: [`Model`] opens and understands a file, [`Session`](session::Session)
//! places it on devices and steps tokens through it, [`Generation`](generate::Generation) turns a prompt into an
//! answer, [`Conversation`](conversation::Conversation) turns messages into prompts, and
//! [`Encoder`](encode::Encoder) turns texts into vectors or scores. [`Layers`](layers::Layers) runs one layer at a time.
//!
//! **What it does not know.** Flags, terminals, sockets, how speed and quality are measured. It prints nothing.
//!
//! **Read first.** [`Model`], [`session::Session`], [`generate::Generation`].
//!
//! ```no_run
//! use std::path::Path;
//!
//! use bilayer_engine::generate::{Generation, Request};
//! use bilayer_engine::sampling::{Options, Sampler};
//! use bilayer_engine::session::{Session, Settings};
//! use bilayer_engine::{Model, OpenOptions};
//! use bilayer_text::Encode;
//!
//! let model = Model::open(Path::new("model.gguf"), OpenOptions::default())?;
//! let mut session = Session::new(&model, Settings::default())?;
//! let encode = Encode { add_special: true, parse_special: true };
//! let prompt = model.tokenizer().encode("Once upon a time", encode)?;
//!
//! let sequence = session.open()?;
//! let sampler = Sampler::new(Options::default(), session.vocab(), session.context())?;
//! let request = Request { predict: Some(64), ..Request::new(&prompt) };
//! let mut answer = Generation::new(&model, &mut session, sequence, sampler, request)?;
//! while let Some(token) = answer.next()? {
//!     print!("{}", token.text);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cancel;
mod control;
pub mod conversation;
mod devices;
mod digest;
pub mod encode;
mod error;
mod expert_counts;
mod file;
pub mod generate;
pub mod inspect;
mod kept;
pub mod layers;
mod lora;
mod model;
pub mod placement;
mod placing;
mod purpose;
pub mod requests;
pub mod sampling;
mod seed;
pub mod session;
mod settings;
mod times;
pub mod tools;
mod vocabulary;

pub use bilayer_constrain as constrain;
pub use bilayer_cpu::host::return_free_memory;
pub use bilayer_gguf::{MetadataOverride, OpenOptions};
pub use bilayer_graph::{SharedBytes, panic_text};
pub use bilayer_text::Encode;
pub use cancel::Cancel;
pub use control::ControlVector;
pub use error::{Error, Exit};
pub use expert_counts::expert_counts;
pub use file::{open_file, open_with};
pub use lora::{LoraFile, Strength};
pub use model::{Adapters, Model, problems, tokenizer};
pub use seed::new_seed;
pub use vocabulary::{FillInMiddle, chat_templates, vocabulary};
