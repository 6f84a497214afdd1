//! `bilayer devices`: lists the devices of this machine and their read bandwidth.

use bilayer_engine::placement::adapters;
use bilayer_measure::devices::{Devices as Found, Gpu, Node, devices};
use bilayer_scheduler::Bytes;
use serde_json::{Value, json};

use crate::args::Devices;
use crate::failure::Failure;
use crate::output;

/// Lists the devices.
pub fn execute(args: &Devices) -> Result<u8, Failure> {
    let Found { cpu, gpus } = devices()?;
    if args.json {
        let node = |node: &Node| json!({ "node": node.number, "cpus": node.cpus, "memory_bytes": node.memory_bytes });
        let document = json!({
            "cpu": {
                "level": cpu.level,
                "threads": cpu.threads,
                "memory_bytes": cpu.memory_bytes,
                "read_gbps": cpu.read_gbps,
                "numa": cpu.nodes.iter().map(node).collect::<Value>(),
            },
            "adapters": gpus.iter().map(adapter).collect::<Value>(),
        });
        output::json(&document)?;
        return Ok(0);
    }
    let mut lines = vec![format!(
        "cpu  {}, {}, {}, reads {:.1} GB/s",
        output::counted(cpu.threads, ["thread", "threads"]),
        cpu.level,
        Bytes(cpu.memory_bytes),
        cpu.read_gbps
    )];
    lines.extend(numa(&cpu.nodes));
    lines.extend(listing(&gpus));
    output::text(&(lines.join("\n") + "\n"))?;
    Ok(0)
}

/// The NUMA nodes, if there are several.
fn numa(nodes: &[Node]) -> Vec<String> {
    if nodes.len() < 2 {
        return Vec::new();
    }
    let line = |node: &Node| {
        let count = match node.cpus.len() {
            0 => "memory only".to_owned(),
            count => format!("{count} CPUs"),
        };
        format!("     NUMA node {}: {count}, {}", node.number, Bytes(node.memory_bytes))
    };
    nodes.iter().map(line).collect()
}

/// Prints the GPUs, for `--list-devices`.
pub fn list() -> Result<u8, Failure> {
    let plain = |adapter| Gpu { adapter, measured: None };
    let gpus: Vec<Gpu> = adapters().into_iter().map(plain).collect();
    output::text(&(listing(&gpus).join("\n") + "\n"))?;
    Ok(0)
}

fn listing(gpus: &[Gpu]) -> Vec<String> {
    let line = |(number, listed): (usize, &Gpu)| {
        let a = &listed.adapter;
        let free = a.free_bytes.map_or(String::new(), |free| format!(" ({} free)", Bytes(free)));
        let unified = if a.unified { ", shared with the CPU" } else { "" };
        let name = a.name.escape_debug();
        let found = listed.measured.as_ref();
        let reads =
            found.map_or(String::new(), |found| format!(", reads {:.1} GB/s", found.read_gbps));
        let level = found.map_or(&a.backend, |found| &found.level);
        format!(
            "{number:<4} {name}: {}, {}, {}{free}{unified}{reads}; {}; {}",
            a.kind,
            level,
            Bytes(a.memory_bytes),
            a.driver.escape_debug(),
            a.features.join(" ")
        )
    };
    match gpus {
        [] => vec!["no GPUs".to_owned()],
        _ => gpus.iter().enumerate().map(line).collect(),
    }
}

fn adapter(listed: &Gpu) -> Value {
    let a = &listed.adapter;
    json!({
        "name": a.name,
        "backend": a.backend,
        "kind": a.kind,
        "driver": a.driver,
        "memory_bytes": a.memory_bytes,
        "free_bytes": a.free_bytes,
        "unified": a.unified,
        "read_gbps": listed.measured.as_ref().map(|found| found.read_gbps),
        "level": listed.measured.as_ref().map(|found| &found.level),
        "features": a.features,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_nodes_are_listed() {
        let node = |number, cpus: usize| Node {
            number,
            cpus: (0..cpus).collect(),
            memory_bytes: 64 << 30,
        };
        assert!(numa(&[node(0, 8)]).is_empty());
        assert_eq!(
            numa(&[node(0, 8), node(2, 0)]),
            ["     NUMA node 0: 8 CPUs, 64.0 GiB", "     NUMA node 2: memory only, 64.0 GiB"]
        );
    }
}
