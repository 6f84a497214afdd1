//! The CPU backend: SIMD kernels on quantized weights, chosen at run time.
//!
//! **Purpose.** [`Cpu`](backend) implements `bilayer_graph::Backend` on the host's cores, on weights in
//! their mapped GGUF layout.
//!
//! **What it does not know.** Files, metadata, architectures, other devices.

pub mod columns;
pub mod dot;
pub mod gemm;
pub mod level;
mod panel;
mod tile;
