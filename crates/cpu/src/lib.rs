//! The CPU backend: SIMD kernels on quantized weights, chosen at run time.
//!
//! **Purpose.** [`Cpu`] implements [`bilayer_graph::Backend`] on the host's cores, on weights in their
//! mapped GGUF layout.
//!
//! **What it does not know.** Files, metadata, architectures, other devices.
//!
//! **Read first.** [`Cpu`], [`level::Level`], [`dot::Dot`] and [`gemm::Gemm`].
//!
//! ```
//! use bilayer_cpu::{Cpu, Options};
//! use bilayer_graph::Backend;
//!
//! let cpu = Cpu::new(Options { threads: Some(2), ..Options::default() })?;
//! assert_eq!(cpu.facts().threads, 2);
//! # Ok::<(), bilayer_cpu::Error>(())
//! ```

pub mod activations;
mod backend;
mod bytes;
mod cache;
pub mod dot;
pub mod gemm;
mod held;
pub mod host;
mod lanes;
pub mod level;
mod lowering;
mod math;
mod matrix;
mod memory;
#[cfg(target_arch = "aarch64")]
mod neon;
pub mod numa;
mod ops;
mod panel;
mod pieces;
mod plan;
mod pool;
#[cfg(test)]
mod pool_model;
#[cfg(test)]
mod pool_tests;
pub mod probe;
mod program;
mod quantizer;
mod slots;
pub mod softmax;
mod stage;
mod state;
mod stream;
mod sync;
mod tile;
mod types;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use backend::{Cpu, Error, Options};

/// Name in messages.
pub(crate) const NAME: &str = "cpu";
