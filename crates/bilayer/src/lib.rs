//! Run large language models from GGUF files, on the CPU, the GPU, or both at once.
//!
//! A model that does not fit the GPU's memory is split: some layers run on the GPU, the others on the CPU, and hidden states
//! cross between them. This crate opens a file, decides what runs where, and generates.
//!
//! # Open a model
//!
//! [`Model::open`] places the model by itself: as many layers as fit go to the GPU, the rest stays on the CPU. With
//! [`Builder::cache_dir`] it is the number of layers with the shortest predicted answer, by times that the first run measures.
//! Without a GPU everything runs on the CPU.
//!
//! ```
//! # let path = "crates/cli/assets/demo.gguf";
//! let model = bilayer::Model::open(path)?;
//! println!("{}: {}", model.name(), model.plan().map);
//! # Ok::<(), bilayer::Error>(())
//! ```
//!
//! # Generate
//!
//! [`Model::generate`] takes a text, a list of tokens or a list of messages, and returns an iterator of tokens. Each item is a
//! `Result`; after an error there are no more. Dropping the iterator ends the answer.
//!
//! ```
//! use bilayer::{Model, Request, Sampling};
//!
//! # let path = "crates/cli/assets/demo.gguf";
//! let mut model = Model::open(path)?;
//! let sampling = Sampling { temperature: 0.7, seed: 42, ..Sampling::default() };
//! let request = Request::new("ROMEO:\n").max_tokens(20).stop("\n\n").sampling(sampling);
//! for token in model.generate(request)? {
//!     print!("{}", token?.text);
//! }
//! # Ok::<(), bilayer::Error>(())
//! ```
//!
//! The same request gives the same text each time: a new text needs a new [`Sampling::seed`].
//!
//! # Chat
//!
//! [`Model::chat`] renders messages by the model's own chat template. Give it the whole conversation each time; what the KV
//! cache already holds of it is not computed again.
//!
//! ```
//! use bilayer::{Message, Model, Request};
//!
//! # let path = "crates/cli/assets/demo.gguf";
//! # let mut model = Model::builder(path).chat_template("chatml").open()?;
//! let mut messages = vec![Message::system("You are terse."), Message::user("Who are you?")];
//! let answer = model.chat(Request::new(&messages[..]).max_tokens(16))?.text()?;
//! messages.push(Message::assistant(answer));
//! # Ok::<(), bilayer::Error>(())
//! ```
//!
//! # Embed
//!
//! An encoder such as BERT turns each text into a vector. It has length 1 unless the checkpoint has no `Normalize` module
//! ([`Builder::norm`] sets it); the dot product of two such vectors is the similarity of the texts.
//!
//! ```no_run
//! let mut model = bilayer::Model::open("all-minilm-l6-v2.gguf")?;
//! let vectors = model.embed(&["a cat", "a kitten", "a tax return"])?;
//! let similarity = |a: usize, b: usize| -> f32 {
//!     vectors[a].iter().zip(&vectors[b]).map(|(x, y)| x * y).sum()
//! };
//! assert!(similarity(0, 1) > similarity(0, 2));
//! # Ok::<(), bilayer::Error>(())
//! ```
//!
//! # Rerank and classify
//!
//! An encoder with a head scores texts: [`Model::rerank`] gives the relevance of documents to a query, [`Model::classify`] the
//! probabilities of labels, of texts or of pairs of texts.
//!
//! ```no_run
//! let mut model = bilayer::Model::open("bge-reranker-base.gguf")?;
//! let documents = ["Paris is the capital of France.", "Bread is made of flour."];
//! let scores = model.rerank("What is the capital of France?", &documents)?;
//! assert!(scores[0] > scores[1]);
//! # Ok::<(), bilayer::Error>(())
//! ```
//!
//! # Draft
//!
//! Speculative decoding makes answers faster without changing them: [`Builder::draft_model`] takes drafts from a smaller model,
//! [`Builder::lookup`] from the text itself, [`Builder::mtp`] from the model's block for multi-token prediction.
//!
//! ```
//! use bilayer::{Model, Request};
//!
//! # let path = "crates/cli/assets/demo.gguf";
//! let mut model = Model::builder(path).lookup().context(256).open()?;
//! let answer = model.generate(Request::new("ROMEO:\n").greedy().max_tokens(16))?.text()?;
//! # Ok::<(), bilayer::Error>(())
//! ```
//!
//! # Place
//!
//! [`Model::builder`] overrides what [`Model::open`] decides. [`Builder::plan`] says what would run where and how much memory
//! it takes, without loading anything.
//!
//! ```
//! use bilayer::{CacheType, GpuLayers, Model};
//!
//! # let path = "crates/cli/assets/demo.gguf";
//! let plan = Model::builder(path).gpu_layers(0).context(512).plan()?;
//! println!("{plan}");
//!
//! let mut model = Model::builder(path)
//!     .gpu_layers(GpuLayers::Count(0)) // everything on the CPU
//!     .threads(2)
//!     .context(512)
//!     .cache_type(CacheType::Q8_0)
//!     .progress(|progress| eprintln!("{} of {}", progress.done_bytes, progress.total_bytes))
//!     .open()?;
//! # Ok::<(), bilayer::Error>(())
//! ```
//!
//! [`adapters`] lists the GPUs of this machine, which [`Builder::device`] takes by name or number.
//!
//! # Stop
//!
//! A [`Cancel`] handle ends an answer, or any other call, from elsewhere: it can be cloned and sent to another thread. A call
//! that has no partial result fails with [`Exit::Interrupted`]; the measurements of [`Builder`], such as [`Builder::bench`],
//! return `Ok(None)`.
//!
//! ```
//! use bilayer::{Model, Stop};
//!
//! # let path = "crates/cli/assets/demo.gguf";
//! let mut model = Model::open(path)?;
//! let cancel = model.cancel_handle();
//! let mut answer = model.generate("ROMEO:\n")?;
//! answer.next();
//! cancel.cancel(); // from any thread
//! assert!(answer.next().is_none());
//! assert_eq!(answer.stop(), Some(Stop::Interrupted));
//! # Ok::<(), bilayer::Error>(())
//! ```
//!
//! # Measure
//!
//! [`Model::logits`] gives the model's raw predictions, [`Answer::statistics`] the times of an answer,
//! [`Builder::bench`] the model's speed, [`Builder::perplexity`] how well it predicts a text, and [`Builder::profile`] what each
//! offloaded layer buys on this machine.
//!
//! ```
//! # let path = "crates/cli/assets/demo.gguf";
//! let mut model = bilayer::Model::open(path)?;
//! let logits = model.logits("ROMEO:\n")?;
//! println!("{} positions, {} logits each", logits.rows(), logits.vocab());
//! # Ok::<(), bilayer::Error>(())
//! ```
//!
//! # Errors
//!
//! Every function that can fail returns [`Error`], which says what is wrong, where, and what was expected.
//! [`Error::advice`] is the next step and [`Error::exit_code`] the code that a program should end with; both are those of the
//! command line `bilayer`. [`message()`] is both texts, with settings named as in [`Builder`].
//!
//! ```
//! let error = bilayer::Model::open("missing.gguf").err().expect("there is no such file");
//! assert_eq!(error.exit_code() as u8, 66);
//! ```
//!
//! # Make model files
//!
//! [`mod@convert`] makes a file of a checkpoint, [`mod@quantize`] one in smaller types, and [`mod@prune`] sets weights to zero or
//! removes layers, as the commands of these names do. [`mod@synth`] makes random models in the shapes of known ones.
//!
//! # Download
//!
//! `hub` gives the file of a model on Hugging Face, which is downloaded unless it is in the cache that other programs share;
//! `Hub` does it with progress, another token or folder, or without connections.
//!
//! ```no_run
//! # #[cfg(feature = "hub")] {
//! let model = bilayer::Model::open(bilayer::hub("ggml-org/gemma-3-1b-it-GGUF:Q4_K_M")?)?;
//! # let _ = model;
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! `hub` (default) downloads models. `gpu` (default) runs layers on Vulkan, Metal and DX12. `cli` (default) builds the program `bilayer` and everything that only
//! it needs; a program that uses the library turns it off:
//! `bilayer = { version = "0.1", default-features = false, features = ["gpu"] }`.

mod answer;
pub mod bench {
    //! What [`Builder::bench`](crate::Builder::bench) runs and measures.

    pub use bilayer_engine::session::Spent;
    pub use bilayer_measure::bench::{Measured, Method, Summary, Test};
}
mod builder;
pub mod convert;
mod encode;
#[cfg(feature = "hub")]
mod hub;
mod measure;
mod message;
mod model;
pub mod inspect {
    //! What a model file contains, and what prevents it from running.

    pub use bilayer_engine::inspect::{Inspection, TensorInfo};
}
pub mod perplexity {
    //! What [`Builder::perplexity`](crate::Builder::perplexity) reports.

    pub use bilayer_measure::perplexity::{Divergence, Estimate, Mean, Report};
}
pub mod prune;
pub mod quantize;
mod request;
pub mod settings {
    //! Settings by name: what [`Builder::set`](crate::Builder::set) takes.

    pub use crate::builder::{Value, names};
}
pub mod synth;
mod tokenizer;
pub mod verify {
    //! What [`Builder::verify`](crate::Builder::verify) compares and reports.

    pub use bilayer_measure::verify::{Ends, OpError, Report, Side, Verified};
}

pub use answer::{Answer, Batch};
#[doc(inline)]
pub use bilayer_engine::conversation::{Function, Message, MessagesError, Role, ToolCall};
#[doc(inline)]
pub use bilayer_engine::encode::{Excess, Norm, Pooling, extract, route};
#[doc(inline)]
pub use bilayer_engine::generate::{Statistics, Stop, Token};
#[doc(inline)]
pub use bilayer_engine::placement::{
    Adapter, CpuLevel, Execution, Numa, Simulation, SimulationError, SplitMode, adapters, target,
};
#[doc(inline)]
pub use bilayer_engine::sampling::{
    Dry, Mirostat, Options as Sampling, OptionsError as SamplingError, Parameter, Samplers,
    TokenLogprob, Xtc, parameters,
};
#[doc(inline)]
pub use bilayer_engine::session::{Overlap, Progress, Stage, Warning};
#[doc(inline)]
pub use bilayer_engine::tools::{Reply, Tools, ToolsError};
// For the interfaces to other languages.
#[doc(hidden)]
pub use bilayer_engine::panic_text;
#[doc(inline)]
pub use bilayer_engine::{Cancel, Encode, Exit, MetadataOverride};
#[doc(inline)]
pub use bilayer_measure::Error;
#[doc(inline)]
pub use bilayer_measure::profile::{Options as ProfileOptions, Profile};
#[doc(inline)]
pub use bilayer_measure::{cost, devices, evaluate, fleet, power};
#[doc(inline)]
pub use bilayer_scheduler::{ExpertCache, OpOffload, Plan};
#[doc(inline)]
pub use bilayer_settings::Phrase;
pub use builder::{Builder, CacheType, GpuLayers};
pub use encode::{Label, Text};
#[cfg(feature = "hub")]
pub use hub::{Access, AccessToken, Hub, HubError, Places, Repo, Transfer, Wanted, hub};
pub use measure::Benched;
pub use message::message;
pub use model::{Logits, Model};
pub use request::{Prompt, Request};
pub use tokenizer::Tokenizer;

/// Handles move between threads.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<Model>();
    is_send::<Answer<'static>>();
    is_send::<Batch<'static>>();
    is_send::<Cancel>();
    is_send::<Request>();
    is_send::<Tokenizer>();
};
