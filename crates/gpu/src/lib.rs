//! The GPU backend: WGSL kernels on Vulkan, Metal and DX12 through wgpu.
//!
//! **Purpose.** Runs segments of the graph on a GPU.
//!
//! **What it does not know.** Models, files, other devices, and the reasons for a placement.
//!
//! **Read first.** [`Caps`](caps::Caps), [`Device`](device::Device), [`kernels`].

mod adapter;
pub mod attention;
mod backend;
mod bandwidth;
mod cache;
pub mod caps;
pub mod decode;
pub mod device;
mod error;
pub mod kernel;
pub mod kernels;
mod memory;
mod open;
mod patience;
mod pipeline_cache;
mod probe;
pub mod profiles;
mod program;
mod rate;
pub mod render;
#[cfg(test)]
#[path = "../../../tests/support/required.rs"]
mod required;
mod slots;
mod staging;
mod tiles;
mod unified;
mod vulkan;
mod weights;

pub use adapter::{Adapter, AdapterFacts, AdapterKind, adapters, find};
pub use backend::{Gpu, Opened};
pub use error::Error;
pub use open::{Options, facts, open, open_adapter};
pub use pipeline_cache::Keep;
pub use weights::device_bytes;
