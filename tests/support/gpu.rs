//! Backends on a GPU; a software adapter counts.

#![allow(dead_code, reason = "each test file uses its part")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::sync::OnceLock;

use bilayer_gpu::device::DeviceOptions;
use bilayer_gpu::{Gpu, Opened, Options};

/// Variants of the GPU backend, with limits on the features they use.
const VARIANTS: [(&str, DeviceOptions); 4] = [
    ("gpu", DeviceOptions { block_bytes: None, ..PLAIN }),
    ("gpu without subgroups", DeviceOptions { subgroups: false, checked: true, ..PLAIN }),
    // Packed dot products, tiles and large workgroups.
    ("gpu as hardware", DeviceOptions { as_hardware: true, ..PLAIN }),
    // Every large matrix is split into parts.
    ("gpu with small blocks", DeviceOptions { block_bytes: Some(64 << 10), ..PLAIN }),
];

const PLAIN: DeviceOptions = DeviceOptions {
    block_bytes: None,
    subgroups: true,
    as_hardware: false,
    checked: false,
    timeout: std::time::Duration::from_secs(30),
};

/// The variants, opened once per process. Without a GPU there are none, which is reported once, or fails if
/// `BILAYER_REQUIRE_GPU=1`.
pub fn opened() -> &'static [(&'static str, Opened)] {
    static OPENED: OnceLock<Vec<(&'static str, Opened)>> = OnceLock::new();
    OPENED.get_or_init(|| {
        let open = |kernels| {
            let named = |device: Option<&str>| {
                let device = device.map(str::to_owned);
                Opened::open(&Options { device, kernels, ..Options::default() })
            };
            named(None).or_else(|_| named(Some("software")))
        };
        let mut opened = Vec::new();
        for (name, kernels) in VARIANTS {
            match open(kernels) {
                Ok(device) => opened.push((name, device)),
                Err(error) => {
                    let required = std::env::var("BILAYER_REQUIRE_GPU").is_ok_and(|v| v == "1");
                    assert!(!required, "an adapter is required: {error}");
                    println!("skipped: no adapter ({error})");
                    break;
                }
            }
        }
        opened
    })
}

/// A backend of the first variant.
pub fn gpu() -> Option<Gpu> {
    opened().first().map(|(_, opened)| opened.backend())
}
