//! Makes model files: of checkpoints, random ones of real shapes, and quantized ones of others.
//!
//! **Purpose.** [`convert`] makes a file of a checkpoint folder, tensor by tensor. [`synth`] writes valid GGUF files with random weights in the shapes of known models, as fast as the
//! disk takes them, so that speed, placement and memory can be measured without a download. [`mix`] says which type
//! each tensor gets in a mix such as Q4_K_M, [`mod@quantize`] makes a file of such a mix from another, and [`imatrix`] keeps
//! what each column of its matrices is worth in files, and adds such files up.
//!
//! **What it does not know.** Devices, kernels, sessions, command lines.
//!
//! **Read first.** [`convert::Convert`], [`mix::Mix`], [`synth::Shape`], [`synth::Synth`], [`quantize::Quantize`].
//!
//! ```
//! use bilayer_convert::mix::Mix;
//! use bilayer_convert::synth::{Shape, Synth};
//!
//! let synth = Synth::new(Shape::find("tiny")?, Mix::find("Q4_K_M")?);
//! let file = bilayer_gguf::File::from_bytes("tiny", synth.to_bytes()?)?;
//! let (config, _) = bilayer_models::read(&file)?;
//! assert_eq!(config.layers.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod budget;
mod checkpoint;
pub mod convert;
mod error;
pub mod imatrix;
pub mod mix;
mod place;
pub mod quantize;
mod stream;
pub mod synth;

pub use error::Error;
pub use stream::Progress;
