//! Descriptions of machines in TOML files.
//!
//! ```toml
//! [cpu]
//! name = "16 cores, two channels of DDR5-5600"
//! memory = "64GiB"
//! read_gbps = 65        # memory read bandwidth, 10^9 bytes per second
//! tops = 0.5            # compute, 10^12 operations per second; optional
//!
//! [gpu]                 # optional; for several, use [[gpu]] tables
//! name = "RTX 4090"
//! memory = "24GiB"
//! read_gbps = 800
//! tops = 80
//! ```

use std::path::Path;

use bilayer_graph::Facts;
use bilayer_scheduler::Machine;
use serde::Deserialize;

use crate::args::size;
use crate::failure::Failure;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cpu: Device,
    /// One table, or one per GPU.
    gpu: Option<toml::Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Device {
    name: String,
    memory: String,
    read_gbps: f64,
    tops: Option<f64>,
}

/// Reads the description.
///
/// # Errors
/// The file does not exist or is not a valid description.
pub fn read(path: &Path) -> Result<Machine, Failure> {
    let text = crate::output::file(path)?;
    parse(&text).map_err(|reason| Failure::usage(reason).in_file(path))
}

fn parse(text: &str) -> Result<Machine, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    let gpus = match file.gpu {
        None => Vec::new(),
        Some(toml::Value::Array(gpus)) => gpus,
        Some(gpu) => vec![gpu],
    };
    let mut devices = vec![device("cpu", file.cpu, Facts::host)?];
    for gpu in gpus {
        let gpu = gpu.try_into().map_err(|error| format!("gpu: {error}"))?;
        devices.push(device("gpu", gpu, |name, bytes| Facts::offload("gpu", name, bytes))?);
    }
    Ok(Machine::new(devices))
}

fn device(
    key: &str,
    device: Device,
    described: impl Fn(String, u64) -> Facts,
) -> Result<Facts, String> {
    for (name, value) in [("read_gbps", Some(device.read_gbps)), ("tops", device.tops)] {
        if value.is_some_and(|value| !(value.is_finite() && value > 0.0)) {
            return Err(format!("{key}.{name} must be more than 0"));
        }
    }
    let memory_bytes = size(&device.memory).map_err(|error| format!("{key}.memory: {error}"))?;
    let read_gbps = Some(device.read_gbps);
    Ok(Facts { read_gbps, tops: device.tops, ..described(device.name, memory_bytes) })
}

#[cfg(test)]
mod tests {
    use super::parse;

    const CPU: &str = "[cpu]\nname = \"c\"\nmemory = \"64GiB\"\nread_gbps = 65\n";

    #[test]
    fn a_machine_is_read() {
        let text =
            format!("{CPU}[gpu]\nname = \"g\"\nmemory = \"24GiB\"\nread_gbps = 800\ntops = 80\n");
        let machine = parse(&text).unwrap();
        let [cpu, gpu] = &machine.devices[..] else { panic!() };
        assert_eq!((cpu.family, cpu.memory_bytes, cpu.read_gbps), ("cpu", 64 << 30, Some(65.0)));
        assert_eq!((gpu.family, gpu.name.as_str(), gpu.tops), ("gpu", "g", Some(80.0)));
        assert_eq!(parse(CPU).unwrap().devices.len(), 1);
        let gpu = |name| format!("[[gpu]]\nname = \"{name}\"\nmemory = \"1GiB\"\nread_gbps = 9\n");
        let machine = parse(&format!("{CPU}{}{}", gpu("a"), gpu("b"))).unwrap();
        assert_eq!(machine.labels(), ["cpu", "gpu0", "gpu1"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("", "cpu"),
            ("[cpu]\nname = \"c\"\nmemory = \"64GiB\"\n", "read_gbps"),
            ("[cpu]\nname = \"c\"\nmemory = \"lots\"\nread_gbps = 1\n", "cpu.memory"),
            ("[cpu]\nname = \"c\"\nmemory = \"1GiB\"\nread_gbps = 0\n", "cpu.read_gbps"),
            ("[cpu]\nname = \"c\"\nmemory = \"1GiB\"\nread_gbps = 1\nspeed = 2\n", "speed"),
        ];
        let gpu = "[[gpu]]\nname = \"g\"\nmemory = \"1GiB\"\nread_gbps = 1\nspeed = 2\n";
        let cases = cases.map(|(text, names)| (text.to_owned(), names));
        for (text, names) in cases.into_iter().chain([(format!("{CPU}{gpu}"), "gpu: unknown")]) {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(names), "{text:?}: {error}");
        }
    }
}
