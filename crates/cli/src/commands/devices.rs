//! `bilayer devices`: lists the devices of this machine and their read bandwidth.

use bilayer_cpu::Cpu;
use bilayer_cpu::host::{Node, Topology};
use bilayer_engine::Error;
use bilayer_engine::placement::{Adapter, Measured, adapters, measured};
use bilayer_graph::Backend;
use bilayer_scheduler::Bytes;
use serde_json::{Value, json};

use crate::args::Devices;
use crate::failure::Failure;
use crate::output;

/// Lists the devices.
pub fn execute(args: &Devices) -> Result<u8, Failure> {
    let facts = Cpu::new(bilayer_cpu::Options::default()).map_err(Error::Cpu)?.facts().clone();
    let gbps = bilayer_cpu::probe::read_gbps(facts.threads);
    let adapters: Vec<Listed> = adapters().into_iter().enumerate().map(Listed::measured).collect();
    let nodes = Topology::of_this_process().nodes;
    if args.json {
        let node = |node: &Node| json!({ "node": node.number, "cpus": node.cpus, "memory_bytes": node.memory_bytes });
        let document = json!({
            "cpu": {
                "level": facts.level,
                "threads": facts.threads,
                "memory_bytes": facts.memory_bytes,
                "read_gbps": gbps,
                "numa": nodes.iter().map(node).collect::<Value>(),
            },
            "adapters": adapters.iter().map(adapter).collect::<Value>(),
        });
        output::json(&document)?;
        return Ok(0);
    }
    let mut lines = vec![format!(
        "cpu  {} threads, {}, {}, reads {gbps:.1} GB/s",
        facts.threads,
        facts.level,
        Bytes(facts.memory_bytes)
    )];
    lines.extend(numa(&nodes));
    lines.extend(listing(&adapters));
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
    output::text(
        &(listing(&adapters().into_iter().map(Listed::plain).collect::<Vec<_>>()).join("\n")
            + "\n"),
    )?;
    Ok(0)
}

/// A GPU, and its read bandwidth and kernels if measured.
struct Listed {
    facts: Adapter,
    measured: Option<Measured>,
}

impl Listed {
    fn measured((number, facts): (usize, Adapter)) -> Listed {
        Listed { facts, measured: measured(number) }
    }

    fn plain(facts: Adapter) -> Listed {
        Listed { facts, measured: None }
    }
}

fn listing(adapters: &[Listed]) -> Vec<String> {
    let line = |(number, listed): (usize, &Listed)| {
        let a = &listed.facts;
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
    match adapters {
        [] => vec!["no GPUs".to_owned()],
        _ => adapters.iter().enumerate().map(line).collect(),
    }
}

fn adapter(listed: &Listed) -> Value {
    let a = &listed.facts;
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
