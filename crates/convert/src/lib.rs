//! Makes model files: converted from checkpoints, quantized from other files, or random in the shapes of real
//! models.
//!
//! ***Purpose.** [`convert`] turns a checkpoint folder into a GGUF file, tensor by tensor. [`synth`] writes valid files
//! with random weights in the shapes of known models at disk speed, so that speed, placement and memory can be
//! measured without a download. [`mix`] decides each tensor's type in a mix such as Q4_K_M, [`mod@quantize`] quantizes
//! a file to such a mix, [`mod@prune`] sets weights to zero, [`smooth`] moves
//! outliers of activations into weights, and [`imatrix`] reads, writes and combines importance matrices.
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
mod calibration;
mod checkpoint;
pub mod convert;
mod error;
pub mod imatrix;
pub mod mix;
mod overwrite;
pub mod prune;
pub mod quantize;
pub mod smooth;
mod stream;
pub mod synth;

pub use calibration::Calibration;
pub use error::Error;
pub use stream::Progress;
