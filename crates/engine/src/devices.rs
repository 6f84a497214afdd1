//! The devices there are: the host, and one table of backends that layers are offloaded to.
//!
//! A new backend is a crate that implements [`Backend`] and one row of the table `BACKENDS`; what its devices can do
//! is data in their [`Facts`].

use std::path::Path;

use bilayer_cpu::Cpu;
use bilayer_graph::{Backend, Facts};

use crate::Error;
use crate::placement::{Placing, SplitMode};

/// A backend of devices beside the host.
struct Row {
    /// Label of its devices in a plan's map.
    name: &'static str,
    /// Opens a device.
    open: fn(&Wanted<'_>) -> Result<Box<dyn Backend>, Error>,
    /// What is known of a device before it is opened.
    facts: fn(&Wanted<'_>) -> Result<Facts, Error>,
    /// Its adapters, the best first.
    adapters: fn() -> Vec<Adapter>,
    /// 10^9 bytes a second that its kernels read on an adapter, which is opened for it.
    read_gbps: fn(&str) -> Option<f64>,
}

/// Which device of a backend is to be opened.
struct Wanted<'a> {
    /// An adapter: a number in the order of the backend's own, `software`, or a part of a name. Without it the best
    /// that is no software adapter.
    name: Option<&'a str>,
    /// Folder for what drivers compile.
    kept: Option<&'a Path>,
}

/// Every backend but the host's.
const BACKENDS: &[Row] = &[
    #[cfg(feature = "gpu")]
    {
        use std::sync::Arc;

        use bilayer_gpu::{Gpu, Keep, Options};

        use crate::kept::Kept;

        #[derive(Debug)]
        struct Keeper(Kept);

        impl Keep for Keeper {
            fn load(&self, name: &str) -> Option<Vec<u8>> {
                self.0.load(name)
            }

            fn store(&self, name: &str, bytes: &[u8]) {
                self.0.store(name, bytes);
            }
        }

        fn unavailable(error: &bilayer_gpu::Error) -> Error {
            Error::Unavailable { reason: error.to_string() }
        }

        Row {
            name: "gpu",
            open: |wanted| {
                let keeper = wanted.kept.map(|folder| Arc::new(Keeper(Kept::new(folder))) as _);
                let device = wanted.name.map(str::to_owned);
                let options = Options { device, keeper, ..Options::default() };
                Ok(Box::new(Gpu::open(&options).map_err(|error| unavailable(&error))?))
            },
            facts: |wanted| bilayer_gpu::facts(wanted.name).map_err(|error| unavailable(&error)),
            adapters: || {
                let known = bilayer_gpu::adapters().into_iter().map(|a| Adapter {
                    name: a.name,
                    backend: a.api.to_owned(),
                    kind: a.kind.name().to_owned(),
                    driver: a.driver,
                    bus: a.bus,
                    memory_bytes: a.memory_bytes,
                    free_bytes: a.free_bytes,
                    unified: a.unified,
                    features: a.features,
                });
                known.collect()
            },
            read_gbps: |name| bilayer_gpu::read_gbps(Some(name)).ok(),
        }
    },
];

/// An adapter: a device of a backend beside the host, as its driver describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapter {
    /// The driver's name for it.
    pub name: String,
    /// `vulkan`, `metal` or `dx12`.
    pub backend: String,
    /// `discrete`, `integrated`, `virtual`, `other` or `software`.
    pub kind: String,
    /// The driver with its version.
    pub driver: String,
    /// Where it is plugged in; empty where the driver does not tell.
    pub bus: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Bytes of it that are free, where the driver tells.
    pub free_bytes: Option<u64>,
    /// Whether it shares the host's memory.
    pub unified: bool,
    /// Which features that we use it has.
    pub features: Vec<String>,
}

/// Every backend's adapters in one list, the best of each first; none in a build without backends.
pub fn adapters() -> Vec<Adapter> {
    BACKENDS.iter().flat_map(|row| (row.adapters)()).collect()
}

/// 10^9 bytes a second that kernels read on an adapter, by its number in [`adapters`]: opens it, which takes a second
/// or two. `None` where that fails.
pub fn read_gbps(number: usize) -> Option<f64> {
    let (row, name) =
        BACKENDS.iter().find_map(|row| Some((row, local(row, &number.to_string())?)))?;
    (row.read_gbps)(&name)
}

/// Starts the host's threads.
///
/// # Errors
/// A level this CPU does not run, a number of threads out of range, no threads from the system.
pub fn host(options: bilayer_cpu::Options) -> Result<Box<dyn Backend>, Error> {
    Ok(Box::new(Cpu::new(options)?))
}

/// Devices beside the host, open or described, and why there are not more.
pub struct Offloads<T> {
    /// The devices, in the order that layers are split over them.
    pub devices: Vec<T>,
    /// Why a device is missing, where one was wanted by default but cannot be had.
    pub notes: Vec<String>,
}

/// Opens the devices that are asked for; none where everything stays on the host.
///
/// # Errors
/// A device was named and cannot be had; `main-gpu` names none of them.
pub fn open(placing: &Placing) -> Result<Offloads<Box<dyn Backend>>, Error> {
    all(placing, |row, wanted| (row.open)(wanted))
}

/// What is known of the devices that [`open`] would open.
///
/// # Errors
/// As [`open`].
pub fn facts(placing: &Placing) -> Result<Offloads<Facts>, Error> {
    all(placing, |row, wanted| (row.facts)(wanted))
}

/// What `of` finds of each device that is asked for.
fn all<T>(
    placing: &Placing,
    of: impl Fn(&Row, &Wanted<'_>) -> Result<T, Error>,
) -> Result<Offloads<T>, Error> {
    let mut found = Offloads { devices: Vec::new(), notes: Vec::new() };
    if !placing.offloads() {
        return Ok(found);
    }
    let is_named = !placing.devices.is_empty();
    for name in chosen(placing)? {
        let first = |name: Option<&str>| {
            let mut refused = Error::NoGpuSupport;
            for row in BACKENDS {
                let Some(name) = name.map_or(Some(None), |name| local(row, name).map(Some)) else {
                    continue;
                };
                let wanted = Wanted { name: name.as_deref(), kept: placing.kept.as_deref() };
                match of(row, &wanted) {
                    Ok(device) => return Ok(device),
                    Err(error) if matches!(refused, Error::NoGpuSupport) => refused = error,
                    Err(_) => {}
                }
            }
            Err(refused)
        };
        match first(name.as_deref()) {
            Ok(device) => found.devices.push(device),
            Err(error) if is_named => return Err(error),
            Err(error) => found.notes.push(error.to_string()),
        }
    }
    if found.devices.is_empty() {
        found.notes.iter_mut().for_each(|note| *note += "; all runs on the CPU");
    }
    Ok(found)
}

/// The names of the devices that are asked for; `None` is the best there is.
fn chosen(placing: &Placing) -> Result<Vec<Option<String>>, Error> {
    let mut names: Vec<Option<String>> = placing.devices.iter().cloned().map(Some).collect();
    if names.is_empty() {
        let usual = usual(&adapters());
        names = match &usual[..] {
            [] | [_] => vec![None],
            several => several.iter().map(|number| Some(number.to_string())).collect(),
        };
    }
    let main = placing.main_gpu.unwrap_or(0);
    if main >= names.len() {
        return Err(Error::Setting {
            name: "main-gpu",
            found: main.to_string(),
            expected: format!("below {}, the number of GPUs in use", names.len()),
        });
    }
    Ok(match placing.split_mode {
        SplitMode::Layer => names,
        SplitMode::None => vec![names.swap_remove(main)],
    })
}

/// The adapters that are used where none is named: all discrete GPUs behind the best one's interface, each once however
/// many drivers it has; without a discrete one the best that is no software adapter.
fn usual(adapters: &[Adapter]) -> Vec<usize> {
    let Some(best) = adapters.iter().position(|adapter| adapter.kind != "software") else {
        return Vec::new();
    };
    let is_twin = |place: usize| {
        let bus = &adapters[place].bus;
        !bus.is_empty() && adapters[..place].iter().any(|other| other.bus == *bus)
    };
    let more = (best + 1..adapters.len()).filter(|&place| {
        let other = &adapters[place];
        let alike = other.kind == "discrete" && adapters[best].kind == "discrete";
        alike && other.backend == adapters[best].backend && !is_twin(place)
    });
    std::iter::once(best).chain(more).collect()
}

/// An adapter's name as its backend knows it: numbers count all backends' adapters. `None` where a number is not one
/// of the backend's.
fn local(row: &Row, name: &str) -> Option<String> {
    let Ok(number) = name.parse::<usize>() else { return Some(name.to_owned()) };
    let before = BACKENDS.iter().take_while(|other| other.name != row.name);
    let before: usize = before.map(|other| (other.adapters)().len()).sum();
    Some(number.checked_sub(before)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::{Adapter, chosen, usual};
    use crate::placement::{Placing, SplitMode};

    fn adapter(kind: &str, backend: &str, bus: &str) -> Adapter {
        Adapter {
            name: "a".to_owned(),
            backend: backend.to_owned(),
            kind: kind.to_owned(),
            driver: String::new(),
            bus: bus.to_owned(),
            memory_bytes: 1 << 30,
            free_bytes: None,
            unified: false,
            features: Vec::new(),
        }
    }

    #[test]
    fn every_discrete_gpu_is_used_once() {
        let cases: [(&[Adapter], &[usize]); 5] = [
            (&[], &[]),
            (&[adapter("software", "vulkan", "")], &[]),
            (&[adapter("integrated", "vulkan", ""), adapter("integrated", "vulkan", "")], &[0]),
            (
                &[
                    adapter("discrete", "vulkan", "1:0"),
                    adapter("discrete", "vulkan", "2:0"),
                    adapter("discrete", "vulkan", "1:0"),
                    adapter("discrete", "dx12", "3:0"),
                    adapter("integrated", "vulkan", "0:2"),
                    adapter("software", "vulkan", ""),
                ],
                &[0, 1],
            ),
            // Without a bus they cannot be told apart from two that are alike.
            (&[adapter("discrete", "metal", ""), adapter("discrete", "metal", "")], &[0, 1]),
        ];
        for (adapters, expected) in cases {
            assert_eq!(usual(adapters), expected, "{adapters:?}");
        }
    }
    #[test]
    fn one_of_several_is_chosen_by_its_place() {
        let placing = |split_mode, main_gpu| Placing {
            devices: vec!["a".to_owned(), "a".to_owned(), "b".to_owned()],
            split_mode,
            main_gpu,
            ..Placing::default()
        };
        let of = |split_mode, main_gpu| {
            let names = chosen(&placing(split_mode, main_gpu)).ok()?;
            Some(names.into_iter().flatten().collect::<Vec<_>>().join(" "))
        };
        assert_eq!(of(SplitMode::Layer, None).as_deref(), Some("a a b"));
        assert_eq!(of(SplitMode::None, None).as_deref(), Some("a"));
        assert_eq!(of(SplitMode::None, Some(2)).as_deref(), Some("b"));
        assert_eq!(of(SplitMode::Layer, Some(3)), None);
    }
}
