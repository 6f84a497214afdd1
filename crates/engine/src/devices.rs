//! The available devices: the host, and a table of backends to which layers are offloaded.
//!
//! A new backend is a crate that implements [`Backend`] and one row of the table `BACKENDS`; the capabilities of its
//! devices are data in their [`Facts`].

use bilayer_cpu::Cpu;
use bilayer_graph::{Backend, Facts};
use bilayer_scheduler::Machine;
use bilayer_settings::Setting;
use bilayer_simulate::{Execution, Simulation};

use crate::Error;
use crate::placing::{Placing, SplitMode};

/// A backend for devices other than the host.
struct Row {
    /// Label of its devices in a plan's map.
    name: &'static str,
    /// Whether the machine on which a model is placed has its devices.
    is_there: fn(&Placing) -> bool,
    /// Opens a device.
    open: fn(&Wanted<'_>) -> Result<Box<dyn Backend>, Error>,
    /// Describes a device without opening it.
    facts: fn(&Wanted<'_>) -> Result<Facts, Error>,
    /// Lists its adapters, the best first.
    adapters: fn(&Placing) -> Vec<Adapter>,
    /// Opens an adapter and measures it.
    measure: fn(&str) -> Option<Measured>,
}

/// What is found out of an adapter by opening it.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The bandwidth at which kernels read its memory, GB/s (10^9 bytes per second).
    pub read_gbps: f64,
    /// The kernels chosen for it: [`Facts::level`].
    pub level: String,
}

/// The device of a backend to open.
struct Wanted<'a> {
    /// An adapter: its number among the backend's, `software`, or a part of its name. `None` is the best one that is
    /// not a software adapter.
    name: Option<&'a str>,
    /// The placement for which it is opened.
    placing: &'a Placing,
    /// Its index among the GPUs in use.
    #[cfg_attr(
        not(feature = "gpu"),
        expect(dead_code, reason = "simulated devices have no margin")
    )]
    gpu: usize,
    /// The options of the host, with which simulated devices compute.
    host: bilayer_cpu::Options,
}

/// All backends except the host's.
const BACKENDS: &[Row] = &[
    #[cfg(feature = "gpu")]
    {
        use std::sync::Arc;

        use bilayer_gpu::device::DeviceOptions;
        use bilayer_gpu::{Gpu, Keep, Options};

        use crate::kept::Kept;

        #[derive(Debug)]
        struct Keeper(Kept);

        impl Keep for Keeper {
            fn load(&self, name: &str) -> Option<Vec<u8>> {
                self.0.load(name)
            }

            fn store(&self, name: &str, bytes: &[u8]) {
                // It is compiled again when it is missed.
                let _ = self.0.store(name, bytes);
            }
        }

        fn unavailable(error: &bilayer_gpu::Error) -> Error {
            Error::Unavailable { reason: error.to_string() }
        }

        Row {
            name: "gpu",
            is_there: |placing| placing.simulated.is_none(),
            open: |wanted| {
                let kept = wanted.placing.kept.as_deref();
                let keeper = kept.map(|folder| Arc::new(Keeper(Kept::new(folder))) as _);
                let device = wanted.name.map(str::to_owned);
                let margin_bytes = wanted.placing.margin_of(wanted.gpu);
                let kernels = DeviceOptions { margin_bytes, ..DeviceOptions::default() };
                let options = Options { device, keeper, kernels, ..Options::default() };
                Ok(Box::new(Gpu::open(&options).map_err(|error| unavailable(&error))?))
            },
            facts: |wanted| bilayer_gpu::facts(wanted.name).map_err(|error| unavailable(&error)),
            adapters: |_| {
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
            measure: |name| {
                let options = Options { device: Some(name.to_owned()), ..Options::default() };
                let opened = bilayer_gpu::Opened::open(&options).ok()?;
                let level = opened.facts().level.clone();
                Some(Measured { read_gbps: opened.read_gbps().ok()?, level })
            },
        }
    },
    Row {
        name: "simulated",
        is_there: |placing| placing.simulated.is_some(),
        open: |wanted| {
            let (simulation, number) = simulated(wanted)?;
            Ok(Box::new(simulation.device(number, computing(simulation, wanted.host)?)))
        },
        facts: |wanted| {
            simulated(wanted).map(|(simulation, number)| simulation.devices()[number].clone())
        },
        adapters: |placing| {
            let devices = placing.simulated.iter().flat_map(|of| &of.devices()[1..]);
            let listed = |facts: &Facts| Adapter {
                name: facts.name.clone(),
                backend: "simulated".to_owned(),
                kind: "discrete".to_owned(),
                driver: facts.level.clone(),
                bus: String::new(),
                memory_bytes: facts.memory_bytes,
                free_bytes: None,
                unified: false,
                features: Vec::new(),
            };
            devices.map(listed).collect()
        },
        // A simulation is asked for by its placement.
        measure: |_| None,
    },
];

/// The simulated device that is wanted: its number in the simulation, where 0 is the host.
fn simulated<'a>(wanted: &Wanted<'a>) -> Result<(&'a Simulation, usize), Error> {
    let unavailable = |reason: String| Error::Unavailable { reason };
    let none = || unavailable("the machine is not simulated".to_owned());
    let simulation = wanted.placing.simulated.as_ref().ok_or_else(none)?;
    let cards = &simulation.devices()[1..];
    let place = match wanted.name {
        None => Some(0),
        Some(name) => match name.parse() {
            Ok(number) => Some(number),
            Err(_) => cards.iter().position(|facts| facts.name.contains(name)),
        },
    };
    let found = place.filter(|&place| place < cards.len()).ok_or_else(|| {
        let name = wanted.name.map_or(String::new(), |name| format!(" `{name}`"));
        unavailable(format!("the simulated machine has no GPU{name}"))
    })?;
    Ok((simulation, found + 1))
}

/// What a simulated device computes with, if it does.
fn computing(
    simulation: &Simulation,
    options: bilayer_cpu::Options,
) -> Result<Option<Box<dyn Backend>>, Error> {
    Ok(match simulation.execution() {
        Execution::Compute => Some(Box::new(Cpu::new(options)?)),
        Execution::ScheduleOnly => None,
    })
}

/// The backends whose devices a placement may use.
fn backends(placing: &Placing) -> impl Iterator<Item = &'static Row> {
    BACKENDS.iter().filter(|row| (row.is_there)(placing))
}

/// A GPU as one of its drivers presents it: wgpu's adapter. A GPU with two drivers has two.
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
    /// Its bus address; empty if the driver does not report it.
    pub bus: String,
    /// Total memory, bytes.
    pub memory_bytes: u64,
    /// Free memory, bytes, if the driver reports it.
    pub free_bytes: Option<u64>,
    /// Whether it shares the host's memory.
    pub unified: bool,
    /// The supported features, among those that we use.
    pub features: Vec<String>,
}

/// The adapters of this machine in one list, each backend's best first; empty in a build without backends.
pub fn adapters() -> Vec<Adapter> {
    adapters_for(&Placing::default())
}

/// The adapters that a placement may use.
fn adapters_for(placing: &Placing) -> Vec<Adapter> {
    backends(placing).flat_map(|row| (row.adapters)(placing)).collect()
}

/// Opens an adapter, given by its number in [`adapters`], which takes a second or two, and measures it; `None` if that
/// fails.
pub fn measured(number: usize) -> Option<Measured> {
    let placing = Placing::default();
    let (row, name) = backends(&placing)
        .find_map(|row| Some((row, local(row, &number.to_string(), &placing)?)))?;
    (row.measure)(&name)
}

/// Starts the host's threads. The host of a simulated machine computes with them, if it computes.
///
/// # Errors
/// The CPU lacks the instruction level, the number of threads is out of range, or threads cannot be started.
pub fn host(placing: &Placing, options: bilayer_cpu::Options) -> Result<Box<dyn Backend>, Error> {
    Ok(match &placing.simulated {
        None => Box::new(Cpu::new(options)?),
        Some(simulation) => Box::new(simulation.device(0, computing(simulation, options)?)),
    })
}

/// Devices other than the host, opened or described, and why others are missing.
pub struct Offloads<T> {
    /// The devices, in the order in which layers are split over them.
    pub devices: Vec<T>,
    /// Why default devices are unavailable.
    pub missing: Vec<String>,
}

impl<T> Offloads<T> {
    /// What a plan says of missing devices.
    pub fn notes(&self) -> Vec<String> {
        let rest = if self.devices.is_empty() { "; all runs on the CPU" } else { "" };
        self.missing.iter().map(|reason| format!("{reason}{rest}")).collect()
    }
}

/// Opens the requested devices beside a host with these options; none if everything stays on the host.
///
/// # Errors
/// A named device is unavailable; `main-gpu` is out of range.
pub fn open(
    placing: &Placing,
    host: bilayer_cpu::Options,
) -> Result<Offloads<Box<dyn Backend>>, Error> {
    all(placing, host, |row, wanted| (row.open)(wanted))
}

/// Describes the devices that [`open`] would open.
///
/// # Errors
/// Those of [`open`].
pub fn facts(placing: &Placing) -> Result<Offloads<Facts>, Error> {
    all(placing, bilayer_cpu::Options::default(), |row, wanted| (row.facts)(wanted))
}

/// The machine that open devices are.
pub fn machine(backends: &[Box<dyn Backend>]) -> Machine {
    Machine::new(backends.iter().map(|backend| backend.facts().clone()).collect())
}

/// Applies `of` to each requested device.
fn all<T>(
    placing: &Placing,
    host: bilayer_cpu::Options,
    of: impl Fn(&Row, &Wanted<'_>) -> Result<T, Error>,
) -> Result<Offloads<T>, Error> {
    let mut found = Offloads { devices: Vec::new(), missing: Vec::new() };
    if !placing.offloads() {
        return Ok(found);
    }
    let is_named = !placing.devices.is_empty();
    for name in chosen(placing)? {
        let first = |name: Option<&str>| {
            let mut refused = Error::NoGpuSupport;
            for row in backends(placing) {
                let local = |name| local(row, name, placing).map(Some);
                let Some(name) = name.map_or(Some(None), local) else { continue };
                let gpu = found.devices.len();
                let wanted = Wanted { name: name.as_deref(), placing, gpu, host };
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
            Err(error) => found.missing.push(error.to_string()),
        }
    }
    Ok(found)
}

/// The names of the requested devices; `None` is the best one.
fn chosen(placing: &Placing) -> Result<Vec<Option<String>>, Error> {
    let mut names: Vec<Option<String>> = placing.devices.iter().cloned().map(Some).collect();
    if names.is_empty() {
        let usual = usual(&adapters_for(placing));
        names = match &usual[..] {
            [] | [_] => vec![None],
            several => several.iter().map(|number| Some(number.to_string())).collect(),
        };
    }
    let main = placing.main_gpu.unwrap_or(0);
    if main >= names.len() {
        let expected = format!("below {}, the number of GPUs in use", names.len());
        return Err(Error::setting(Setting::MainGpu, main, expected));
    }
    Ok(match placing.split_mode {
        SplitMode::Layer => names,
        SplitMode::None => vec![names.swap_remove(main)],
    })
}

/// The adapters used by default: all discrete GPUs with the same API as the best one, each once even if it has several
/// drivers. Adapters of one bus are one GPU, except those of DX12's one driver: there wgpu takes two equal GPUs to be on the
/// bus of the first. If there is no discrete GPU, the best one that is not a software adapter.
fn usual(adapters: &[Adapter]) -> Vec<usize> {
    let Some(best) = adapters.iter().position(|adapter| adapter.kind != "software") else {
        return Vec::new();
    };
    let is_twin = |place: usize| {
        let Adapter { bus, backend, driver, .. } = &adapters[place];
        let is_same = |other: &Adapter| {
            let are_equal = other.backend == *backend && other.driver == *driver;
            other.bus == *bus && !(backend == "dx12" && are_equal)
        };
        !bus.is_empty() && adapters[..place].iter().any(is_same)
    };
    let more = (best + 1..adapters.len()).filter(|&place| {
        let other = &adapters[place];
        let alike = other.kind == "discrete" && adapters[best].kind == "discrete";
        alike && other.backend == adapters[best].backend && !is_twin(place)
    });
    std::iter::once(best).chain(more).collect()
}

/// Converts a number in the list of all backends' adapters to the backend's own; names are unchanged. `None` if the
/// number belongs to an earlier backend.
fn local(row: &Row, name: &str, placing: &Placing) -> Option<String> {
    let Ok(number) = name.parse::<usize>() else { return Some(name.to_owned()) };
    let before = backends(placing).take_while(|other| other.name != row.name);
    let before: usize = before.map(|other| (other.adapters)(placing).len()).sum();
    Some(number.checked_sub(before)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::{Adapter, Offloads, chosen, usual};
    use crate::placing::{Placing, SplitMode};

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
        let cases: [(&[Adapter], &[usize]); 6] = [
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
            (&[adapter("discrete", "dx12", "1:0"), adapter("discrete", "dx12", "1:0")], &[0, 1]),
            // Without a bus they cannot be told apart from two that are alike.
            (&[adapter("discrete", "metal", ""), adapter("discrete", "metal", "")], &[0, 1]),
        ];
        for (adapters, expected) in cases {
            assert_eq!(usual(adapters), expected, "{adapters:?}");
        }
    }

    #[test]
    fn notes_tell_where_all_runs_without_a_device() {
        let missing = || vec!["no driver".to_owned()];
        let none = Offloads::<()> { devices: Vec::new(), missing: missing() };
        assert_eq!(none.notes(), ["no driver; all runs on the CPU"]);
        let one = Offloads { devices: vec![()], missing: missing() };
        assert_eq!(one.notes(), missing());
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
