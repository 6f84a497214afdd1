//! Backends on a GPU; a software adapter counts.

#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::OnceLock;

use bilayer_gpu::caps::Input;
use bilayer_gpu::device::DeviceOptions;
use bilayer_gpu::{Gpu, Opened, Options};

#[path = "required.rs"]
pub mod required;

use required::{skip, skip_matrices};

/// Variants of the GPU backend, with limits on the features they use.
const VARIANTS: [(&str, DeviceOptions); 6] = [
    ("gpu", DeviceOptions { block_bytes: None, ..PLAIN }),
    ("gpu without subgroups", DeviceOptions { subgroups: false, checked: true, ..PLAIN }),
    // Packed dot products, tiles and large workgroups.
    ("gpu as hardware", DeviceOptions { tile: Some(Input::Quantized), ..HARDWARE }),
    // Every large matrix is split into parts, and attention into many dispatches.
    (
        "gpu with small blocks",
        DeviceOptions { block_bytes: Some(64 << 10), rate: Some(20_000_000), ..PLAIN },
    ),
    // Tiles of cooperative matrices, which not every adapter has.
    ("gpu with matrices", MATRICES),
    // As most GPUs have them. Mesa's software adapter lists matrices of 8, and computes these too.
    ("gpu with matrices of 16", DeviceOptions { coop_edge: Some(16), ..MATRICES }),
];

const MATRICES: DeviceOptions = DeviceOptions { tile: Some(Input::Halves), ..HARDWARE };

const HARDWARE: DeviceOptions = DeviceOptions { as_hardware: true, ..PLAIN };

const PLAIN: DeviceOptions = DeviceOptions {
    block_bytes: None,
    binding_bytes: None,
    subgroups: true,
    as_hardware: false,
    checked: false,
    tile: None,
    coop_edge: None,
    timeout: std::time::Duration::from_secs(30),
    rate: None,
    margin_bytes: None,
};

/// The variants, each opened when it is first asked for: opening one compiles kernels and times a product. Without a GPU
/// there are none, which is reported once, or fails if `BILAYER_REQUIRE_GPU=1`.
pub fn opened() -> impl Iterator<Item = (&'static str, &'static Opened)> {
    static OPENED: [OnceLock<Option<Opened>>; VARIANTS.len()] =
        [const { OnceLock::new() }; VARIANTS.len()];
    VARIANTS.iter().zip(&OPENED).map_while(|((name, kernels), opened)| {
        opened.get_or_init(|| open(*kernels)).as_ref().map(|opened| (*name, opened))
    })
}

/// The variants that compute with cooperative matrices. Without one a test says that it is skipped, or fails if
/// `BILAYER_REQUIRE_COOP=1`.
pub fn with_matrices() -> Vec<(&'static str, &'static Opened)> {
    let has_matrices =
        |(_, opened): &(_, &Opened)| opened.device().caps().tile.input == Input::Halves;
    let found: Vec<_> = opened().filter(has_matrices).collect();
    if found.is_empty() {
        skip_matrices("no adapter with cooperative matrices", "coop-check");
    }
    found
}

/// Opens a device that no other test uses.
pub fn apart() -> Option<Opened> {
    open(PLAIN)
}

/// A backend that treats a software adapter like hardware.
pub fn as_hardware() -> Option<Gpu> {
    opened().find(|(name, _)| *name == "gpu as hardware").map(|(_, opened)| opened.backend())
}

/// Opens a device that no other test uses, a software adapter like hardware without subgroup operations.
pub fn as_hardware_without_subgroups() -> Option<Opened> {
    open(DeviceOptions { tile: Some(Input::Quantized), subgroups: false, ..HARDWARE })
}

/// A backend whose kernels bind so many bytes at once.
pub fn that_binds(bytes: u64) -> Option<Gpu> {
    open(DeviceOptions { binding_bytes: Some(bytes), ..PLAIN }).map(|opened| opened.backend())
}

/// Opens a GPU, or else a software adapter.
fn open(kernels: DeviceOptions) -> Option<Opened> {
    let named = |device: Option<&str>| {
        let device = device.map(str::to_owned);
        Opened::open(&Options { device, kernels, ..Options::default() })
    };
    match named(None).or_else(|_| named(Some("software"))) {
        Ok(opened) => Some(opened),
        Err(error) if kernels.tile == Some(Input::Halves) => {
            eprintln!("no cooperative matrices: {error}");
            None
        }
        Err(error) => {
            skip(format_args!("no GPU ({error})"));
            None
        }
    }
}

/// A backend of the first variant.
pub fn gpu() -> Option<Gpu> {
    opened().next().map(|(_, opened)| opened.backend())
}
