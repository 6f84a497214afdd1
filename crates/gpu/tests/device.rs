//! The promise that a device opens, knows its subgroups, and says what went wrong instead of ending the process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on stops there")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bilayer_gpu::caps::{Few, Input};
use bilayer_gpu::device::{Device, DeviceOptions};
use bilayer_gpu::{Error, Keep, Opened, Options, attention, decode, open};

#[path = "../../../tests/support/required.rs"]
mod required;

use required::{skip, skip_matrices};

/// Any adapter, a software one too; without one the test says so, or fails where one must be.
fn device(options: DeviceOptions) -> Option<Device> {
    match open(None, options).or_else(|_| open(Some("software"), options)) {
        Ok(device) => Some(device),
        Err(error) => {
            skip(format_args!("no adapter ({error})"));
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
            Err(Error::NoAdapter { .. }) => skip("no software adapter"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Files in memory.
#[derive(Debug, Default)]
struct Kept(Mutex<BTreeMap<String, Vec<u8>>>);

impl Keep for Kept {
    fn load(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().unwrap().get(name).cloned()
    }

    fn store(&self, name: &str, bytes: &[u8]) {
        self.0.lock().unwrap().insert(name.to_owned(), bytes.to_owned());
    }
}

/// The first start measures and keeps the choice, a later one takes what was kept, and a choice of another device is measured
/// again.
#[test]
fn tiles_are_measured_once() {
    let kept = Arc::new(Kept::default());
    let open = |tile| {
        let kernels = DeviceOptions { as_hardware: true, tile, ..DeviceOptions::default() };
        let device = Some("software".to_owned());
        let keeper: Arc<dyn Keep> = kept.clone();
        Opened::open(&Options { device, kernels, keeper: Some(keeper), ..Options::default() })
    };
    let opened = match open(None) {
        Ok(opened) => opened,
        Err(Error::NoAdapter { .. }) => return skip("no software adapter"),
        Err(error) => panic!("{error}"),
    };
    let caps = opened.device().caps();
    eprintln!("{}: {:?}", opened.facts().level, caps.coop);
    assert!(caps.tiles().contains(&caps.tile), "{caps:?}");
    assert!(opened.facts().level.ends_with(&format!("tiles {}", caps.tile)), "{caps:?}");
    let name = kept.0.lock().unwrap().keys().find(|name| name.starts_with("tiles ")).cloned();
    let name = name.expect("the choice is kept");
    // Whatever is the fastest, what is kept is taken, and what cannot be is not.
    for (tile, input) in [("f32 64x64", Input::Floats), ("q8 64x64", Input::Quantized)] {
        kept.store(&name, format!("{tile} 2e10").as_bytes());
        assert_eq!(open(None).unwrap().device().caps().tile.input, input, "{tile}");
    }
    kept.store(&name, b"coop 96x64 9e99");
    let measured = open(None).unwrap();
    assert!(caps.tiles().contains(&measured.device().caps().tile));
    assert_ne!(kept.load(&name).unwrap(), b"coop 96x64 9e99");
    match (caps.coop, open(Some(Input::Halves))) {
        (Some(_), Ok(forced)) => {
            let caps = forced.device().caps();
            assert_eq!((caps.tile.input, caps.coop_attends), (Input::Halves, true));
        }
        (None, Err(error)) => {
            assert!(error.to_string().contains("no tiles of the form"), "{error}");
            skip_matrices("no adapter with cooperative matrices", "coop-check");
        }
        (coop, other) => {
            panic!("{coop:?}: {}", other.map_or_else(|e| e.to_string(), |_| "opened".into()))
        }
    }
}

/// Products that emit the next product's input, and inputs that are quantized: compared with others, used where the first start
/// found them faster, and not where the driver rejects them.
#[test]
fn products_of_few_columns_are_measured_once() {
    let kernels =
        DeviceOptions { as_hardware: true, tile: Some(Input::Floats), ..DeviceOptions::default() };
    let named = |device: Option<&str>| {
        Opened::open(&Options { device: device.map(str::to_owned), kernels, ..Options::default() })
    };
    let open = || named(None).or_else(|_| named(Some("software")));
    let Ok(opened) = open() else { return skip(format_args!("no adapter")) };
    let plain = Few { emits: false, ..Few::PRESUMED };
    let (took, emitting) = decode::compare(&opened, [plain, Few::PRESUMED]).unwrap();
    let emitting = emitting.expect("both give the same results");
    eprintln!("a token takes {took:?}, with products that emit {emitting:?}");
    assert!(!took.is_zero() && !emitting.is_zero());
    // Inputs that are all quantized, and none.
    for quantized_bytes in [0, u64::MAX] {
        let other = Few { quantized_bytes, ..plain };
        let (_, took) = decode::compare(&opened, [plain, other]).unwrap();
        assert!(took.is_some_and(|took| !took.is_zero()), "{other:?} gives the same results");
    }

    let kept = Kept::default();
    let choose = |opened: &Opened| decode::choose(opened, Some((&kept, "a card"))).unwrap();
    let rejecting = open().unwrap();
    rejecting.device().reject("made_squares");
    assert!(!choose(&rejecting).emits, "the driver rejects them");
    let name = kept.0.lock().unwrap().keys().next().cloned().expect("the choice is kept");
    let text = String::from_utf8(kept.load(&name).unwrap()).unwrap();
    assert!(text.starts_with("plain "), "{text}");
    assert!(!choose(&opened).emits, "what is kept is taken");
    for (text, expected) in [
        ("emits 0", Few { emits: true, quantized_bytes: 0 }),
        ("plain 18446744073709551615", Few { emits: false, quantized_bytes: u64::MAX }),
    ] {
        kept.store(&name, text.as_bytes());
        assert_eq!(choose(&rejecting), expected, "what is kept is taken");
    }
    for damaged in ["damaged", "emits", "plain 7"] {
        kept.store(&name, damaged.as_bytes());
        assert!(!choose(&rejecting).emits, "what is damaged is measured again");
    }
}

/// Attention is timed at the first start, with the kernels that the device has, and kept.
#[test]
fn attention_is_measured_once() {
    let options = DeviceOptions { as_hardware: true, ..DeviceOptions::default() };
    let [Some(device), Some(rejecting)] = [(); 2].map(|()| device(options)) else { return };
    let kept = Kept::default();
    let choose = || attention::choose(&device, Some((&kept, "a card"))).unwrap();
    let measured = choose().expect("it is measured");
    eprintln!("{measured:?}");
    assert!(measured.rates.single > 1e8 && measured.rates.tiled > 1e8, "{measured:?}");
    let name = kept.0.lock().unwrap().keys().next().cloned().expect("the choice is kept");
    kept.store(&name, b"split 2e10 3e11");
    let read = choose().unwrap();
    assert_eq!((read.coop, read.rates.single, read.rates.tiled), (false, 2e10, 3e11));
    kept.store(&name, b"split 2e10");
    let again = choose().unwrap();
    assert_ne!(kept.load(&name).unwrap(), b"split 2e10", "what is damaged is measured again");
    assert!(again.rates.single > 1e8, "{again:?}");
    rejecting.reject("first_seen(own");
    assert_eq!(attention::choose(&rejecting, None).unwrap(), None, "the driver rejects it");
}
