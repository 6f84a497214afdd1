//! Descriptions of machines in TOML.
//!
//! ```toml
//! [cpu]
//! name = "16 cores, two channels of DDR5-5600"
//! memory = "64GiB"
//! read_gbps = 65        # memory read bandwidth, 10^9 bytes per second
//! tops = 0.5            # compute, 10^12 operations per second; a plan can do without
//!
//! [gpu]                 # optional; for several, use [[gpu]] tables
//! name = "RTX 4090"
//! memory = "24GiB"
//! read_gbps = 800
//! tops = 80
//! upload_gbps = 25      # from the host's memory, 10^9 bytes per second; all that follow are optional
//! download_gbps = 25    # to the host's memory
//! submit_us = 20        # microseconds of the host for each submit
//! kernel_us = 4         # microseconds between kernels
//! wait_us = 20          # microseconds from the end of the work until the host goes on
//! lost_at = 100         # the submit at which the device is lost, to try what a program then does
//! out_of_memory_at = 90 # the submit that the device refuses for lack of memory
//! ```

use std::ops::RangeInclusive;

use bilayer_graph::{Facts, Link};
use bilayer_scheduler::{Bytes, Machine};
use serde::Deserialize;

use crate::Error;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tables {
    cpu: Table,
    /// One table, or one per GPU.
    gpu: Option<toml::Value>,
}

/// A device.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    name: String,
    memory: String,
    read_gbps: f64,
    tops: Option<f64>,
    upload_gbps: Option<f64>,
    download_gbps: Option<f64>,
    #[serde(default)]
    submit_us: f64,
    #[serde(default)]
    kernel_us: f64,
    #[serde(default)]
    wait_us: f64,
    /// GPUs only.
    lost_at: Option<u64>,
    /// GPUs only.
    out_of_memory_at: Option<u64>,
}

/// What a text describes.
pub(crate) struct Described {
    pub(crate) machine: Machine,
    /// Of each device.
    pub(crate) faults: Vec<Faults>,
}

/// When a device fails, by the number of the submit, from 1, among those of all sessions on it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// From this one on it is lost.
    pub(crate) lost_at: Option<u64>,
    /// This one is refused for lack of memory.
    pub(crate) out_of_memory_at: Option<u64>,
}

/// Reads the description of a machine: the host, then its GPUs.
///
/// # Errors
/// [`Error::Description`], which names the key.
pub fn machine(text: &str) -> Result<Machine, Error> {
    described(text).map(|described| described.machine)
}

/// What is wrong with a text, in one line, with the number of the line if it is known.
fn problem(error: &toml::de::Error, text: &str) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    let before = error.span().and_then(|span| text.get(..span.start));
    match before {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

/// Reads a whole description.
pub(crate) fn described(text: &str) -> Result<Described, Error> {
    let tables: Tables =
        toml::from_str(text).map_err(|error| Error::Description(problem(&error, text)))?;
    let gpus = match tables.gpu {
        None => Vec::new(),
        Some(toml::Value::Array(gpus)) => gpus,
        Some(gpu) => vec![gpu],
    };
    if let Some((key, _)) = tables.cpu.faults().into_iter().find(|(_, at)| at.is_some()) {
        return Err(Error::Description(format!("cpu.{key}: only a GPU fails")));
    }
    let mut devices = vec![device("cpu", tables.cpu, Facts::host)?];
    let mut faults = vec![Faults::default()];
    for gpu in gpus {
        let gpu: Table = gpu
            .try_into()
            .map_err(|error| Error::Description(format!("gpu: {}", problem(&error, text))))?;
        if let Some((key, _)) = gpu.faults().into_iter().find(|(_, at)| *at == Some(0)) {
            return Err(Error::Description(format!("gpu.{key} must be more than 0")));
        }
        let Table { lost_at, out_of_memory_at, .. } = gpu;
        faults.push(Faults { lost_at, out_of_memory_at });
        devices.push(device("gpu", gpu, |name, bytes| Facts::offload("gpu", name, bytes))?);
    }
    Ok(Described { machine: Machine::new(devices), faults })
}

impl Table {
    /// The submits at which it fails.
    fn faults(&self) -> [(&'static str, Option<u64>); 2] {
        [("lost_at", self.lost_at), ("out_of_memory_at", self.out_of_memory_at)]
    }
}

/// Rates with which a step takes no time that a clock cannot add: from a byte or a thousand operations a second on.
const RATES: RangeInclusive<f64> = 1e-9..=1e9;

fn device(key: &str, table: Table, facts: impl Fn(String, u64) -> Facts) -> Result<Facts, Error> {
    let wrong = |what: String| Error::Description(format!("{key}.{what}"));
    let rates = [
        ("read_gbps", Some(table.read_gbps)),
        ("tops", table.tops),
        ("upload_gbps", table.upload_gbps),
        ("download_gbps", table.download_gbps),
    ];
    for (name, value) in rates {
        if value.is_some_and(|value| !RATES.contains(&value)) {
            let (least, most) = (RATES.start(), RATES.end());
            return Err(wrong(format!("{name} must be between {least} and {most}")));
        }
    }
    let times = [
        ("submit_us", table.submit_us),
        ("kernel_us", table.kernel_us),
        ("wait_us", table.wait_us),
    ];
    for (name, value) in times {
        if !(0.0..=1e6).contains(&value) {
            return Err(wrong(format!("{name} must be between 0 and 1000000")));
        }
    }
    let memory_bytes =
        Bytes::parse(&table.memory, 0).map_err(|error| wrong(format!("memory: {error}")))?.0;
    let link = Link {
        upload_gbps: table.upload_gbps,
        download_gbps: table.download_gbps,
        submit_us: table.submit_us,
        kernel_us: table.kernel_us,
        wait_us: table.wait_us,
    };
    let (read_gbps, tops) = (Some(table.read_gbps), table.tops);
    let facts = facts(table.name, memory_bytes);
    // Times that are kept under it depend on all its figures.
    let identity = format!("{} {read_gbps:?} {tops:?} {link:?}", facts.name);
    Ok(Facts { read_gbps, tops, link, identity, level: "described".to_owned(), ..facts })
}

#[cfg(test)]
mod tests {
    use super::machine;

    const CPU: &str = "[cpu]\nname = \"c\"\nmemory = \"64GiB\"\nread_gbps = 65\n";

    #[test]
    fn a_machine_is_read() {
        let gpu = "[gpu]\nname = \"g\"\nmemory = \"24GiB\"\nread_gbps = 800\ntops = 80\n";
        let found = machine(&format!("{CPU}{gpu}upload_gbps = 25\nwait_us = 3\n")).unwrap();
        let [cpu, gpu] = &found.devices[..] else { panic!() };
        assert_eq!((cpu.family, cpu.memory_bytes, cpu.read_gbps), ("cpu", 64 << 30, Some(65.0)));
        assert_eq!((gpu.family, gpu.name.as_str(), gpu.tops), ("gpu", "g", Some(80.0)));
        assert_eq!((gpu.link.upload_gbps, gpu.link.wait_us), (Some(25.0), 3.0));
        assert_eq!((gpu.link.download_gbps, gpu.link.submit_us), (None, 0.0));
        assert_eq!(machine(CPU).unwrap().devices.len(), 1);
        let gpu = |name| format!("[[gpu]]\nname = \"{name}\"\nmemory = \"1GiB\"\nread_gbps = 9\n");
        let found = machine(&format!("{CPU}{}{}", gpu("a"), gpu("b"))).unwrap();
        assert_eq!(found.labels(), ["cpu", "gpu0", "gpu1"]);
        // Times that are kept for one machine are not those of another.
        let slower = machine(&CPU.replace("65", "60")).unwrap();
        assert_ne!(slower.devices[0].identity, machine(CPU).unwrap().devices[0].identity);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let device = "name = \"c\"\nmemory = \"1GiB\"\nread_gbps = 1\n";
        let cases = [
            (String::new(), "cpu"),
            ("[cpu]\nname = \"c\"\nmemory = \"64GiB\"\n".to_owned(), "read_gbps"),
            (format!("[cpu]\n{}", device.replace("1GiB", "lots")), "cpu.memory"),
            (format!("[cpu]\n{}", device.replace("1GiB", "-1GiB")), "cpu.memory"),
            (format!("[cpu]\n{}", device.replace("read_gbps = 1", "read_gbps = 0")), "read_gbps"),
            (
                format!("[cpu]\n{}", device.replace("read_gbps = 1", "read_gbps = 1e-300")),
                "cpu.read_gbps must be between 0.000000001 and 1000000000",
            ),
            (format!("[cpu]\n{device}tops = inf\n"), "cpu.tops must be between"),
            (format!("[cpu]\n{device}speed = 2\n"), "speed"),
            (format!("[cpu]\n{device}wait_us = -1\n"), "cpu.wait_us"),
            (format!("[cpu]\n{device}[gpu]\n{device}upload_gbps = 0\n"), "gpu.upload_gbps"),
            (format!("[cpu]\n{device}[[gpu]]\n{device}speed = 2\n"), "gpu: unknown"),
            (format!("[cpu]\n{device}lost_at = 3\n"), "cpu.lost_at"),
            (format!("[cpu]\n{device}[gpu]\n{device}lost_at = 0\n"), "gpu.lost_at"),
            (format!("[cpu]\n{device}out_of_memory_at = 3\n"), "cpu.out_of_memory_at"),
            (
                format!("[cpu]\n{device}[gpu]\n{device}out_of_memory_at = 0\n"),
                "gpu.out_of_memory_at",
            ),
        ];
        for (text, names) in cases {
            let error = machine(&text).unwrap_err().to_string();
            assert!(error.contains(names), "{text:?}: {error}");
        }
    }
}
