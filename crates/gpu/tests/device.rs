//! The promise that a device opens, knows its subgroups, and says what went wrong instead of ending the process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use std::time::Duration;

use bilayer_gpu::device::{Device, DeviceOptions};
use bilayer_gpu::{Error, Opened, Options, open};

/// Any adapter, a software one too; without one the test says so, or fails where one must be.
fn device(options: DeviceOptions) -> Option<Device> {
    match open(None, options).or_else(|_| open(Some("software"), options)) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(std::env::var_os("BILAYER_REQUIRE_GPU").is_none(), "{error}");
            eprintln!("skipped: no adapter");
            None
        }
    }
}

#[test]
fn the_subgroup_size_is_found() {
    let Some(device) = device(DeviceOptions::default()) else { return };
    eprintln!("{}: {:?}", device.name(), device.caps());
    if device.caps().software {
        assert_eq!(device.caps().subgroup.map(u32::is_power_of_two), Some(true));
    }
    let plain = DeviceOptions { subgroups: false, ..DeviceOptions::default() };
    let Some(device) = self::device(plain) else { return };
    assert_eq!(device.caps().subgroup, None);
}

#[test]
fn an_unknown_adapter_is_an_error_that_lists_the_known() {
    let Err(error) = open(Some("no such adapter"), DeviceOptions::default()) else { panic!() };
    assert!(matches!(error, Error::NoAdapter { .. }));
    assert!(error.to_string().contains("no such adapter"), "{error}");
}

#[test]
fn no_room_and_loss_are_errors() {
    let Some(device) = device(DeviceOptions::default()) else { return };
    let huge = device.buffer("huge", 1 << 60, wgpu::BufferUsages::STORAGE);
    assert!(matches!(huge, Err(bilayer_graph::Error::OutOfMemory { .. })), "{huge:?}");
    let small = device.buffer("small", 1 << 10, wgpu::BufferUsages::STORAGE);
    assert!(small.is_ok(), "the device goes on: {small:?}");
    device.destroy();
    assert!(matches!(device.finish(), Err(bilayer_graph::Error::DeviceLost { .. })));
}

/// However busy the CPU that it computes on, and whatever the time-out.
#[test]
fn a_software_adapter_is_not_lost_for_being_slow() {
    for as_hardware in [false, true] {
        let kernels =
            DeviceOptions { timeout: Duration::ZERO, as_hardware, ..DeviceOptions::default() };
        let device = Some("software".to_owned());
        match Opened::open(&Options { device, kernels, ..Options::default() }) {
            Ok(opened) => opened.device().finish().unwrap(),
            Err(Error::NoAdapter { .. }) => eprintln!("skipped: no software adapter"),
            Err(error) => panic!("{error}"),
        }
    }
}
