//! Adds up what devices would hold, and prints sizes.

use std::collections::BTreeSet;
use std::fmt;

use bilayer_graph::{Facts, Graph, Op, Value, WeightId};
use bilayer_quant::Type;

use crate::{Budget, PlannedSegment};

/// A size in bytes that prints in the unit that suits it, with three significant digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut size = self.0 as f64;
        let mut unit = 0;
        // 999.5 would print as 1000.
        while size >= 999.5 && unit + 1 < UNITS.len() {
            size /= 1024.0;
            unit += 1;
        }
        let decimals = match size {
            _ if unit == 0 => 0,
            size if size < 9.995 => 2,
            size if size < 99.95 => 1,
            _ => 0,
        };
        f.pad(&format!("{size:.decimals$} {}", UNITS[unit]))
    }
}

/// A sum that stays at the top where a hostile file's numbers would overflow it: it fits nowhere then.
pub(crate) fn sum(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().fold(0, u64::saturating_add)
}

/// The weights that nodes read, each once.
pub(crate) fn weights(graph: &Graph, nodes: impl IntoIterator<Item = usize>) -> BTreeSet<WeightId> {
    nodes.into_iter().flat_map(|node| graph.nodes[node].op.weights()).collect()
}

/// Bytes of weights as a device stores them.
pub(crate) fn weight_bytes(graph: &Graph, weights: &BTreeSet<WeightId>, facts: &Facts) -> u64 {
    let bytes = |id| {
        let weight = graph.weight(id);
        let converted = facts.converted.iter().find(|(from, _)| *from == weight.ty);
        match converted {
            Some((_, to)) => {
                let blocks = weight.cols.div_ceil(to.block_weights) as u64;
                (weight.rows as u64).saturating_mul(blocks).saturating_mul(to.block_bytes as u64)
            }
            None => weight.bytes() as u64,
        }
    };
    sum(weights.iter().map(|&id| bytes(id)))
}

/// The most bytes of values that are alive at once while a segment runs, in the largest step, with the keys and values of an
/// attention that keeps none: a value lives from its node, or from the start if it is an input, to its last reader, or to the end if it is an output.
pub(crate) fn activation_bytes(graph: &Graph, segment: &PlannedSegment, budget: &Budget) -> u64 {
    let bytes = |value: Value| budget.value_bytes(&graph.values[value.0 as usize]);
    let nodes = &graph.nodes[segment.nodes.clone()];
    // The last of the segment's nodes that reads each value.
    let mut last_reader = vec![None; graph.values.len()];
    for (i, node) in nodes.iter().enumerate() {
        node.op.inputs().for_each(|value| last_reader[value.0 as usize] = Some(i));
    }
    let mut alive = sum(segment.inputs.iter().map(|&value| bytes(value)));
    let mut peak = alive;
    for (i, node) in nodes.iter().enumerate() {
        let out = node.op.out();
        alive = alive.saturating_add(bytes(out));
        peak = peak.max(alive.saturating_add(scratch_bytes(&node.op, budget)));
        let unread = last_reader[out.0 as usize].is_none() && !segment.outputs.contains(&out);
        let read: BTreeSet<Value> = node.op.inputs().collect();
        let done = read.into_iter().filter(|&value| {
            last_reader[value.0 as usize] == Some(i) && !segment.outputs.contains(&value)
        });
        alive = alive.saturating_sub(sum(done.chain(unread.then_some(out)).map(bytes)));
    }
    peak
}

/// Bytes of keys and values that an op needs only while it runs.
fn scratch_bytes(op: &Op, budget: &Budget) -> u64 {
    match op {
        Op::Attend(attend) if attend.cache.is_none() => {
            let types = Budget { key_type: Type::F32, value_type: Type::F32, ..*budget };
            types.kv_bytes(&attend.scratch())
        }
        _ => 0,
    }
}

/// Bytes of the values that enter and leave a segment, in the largest step.
pub(crate) fn staging_bytes(graph: &Graph, segment: &PlannedSegment, budget: &Budget) -> u64 {
    let crossing = segment.inputs.iter().chain(&segment.outputs);
    sum(crossing.map(|value| budget.value_bytes(&graph.values[value.0 as usize])))
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn sizes_print_in_their_unit() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1536, "1.50 KiB"),
            (10 << 20, "10.0 MiB"),
            (999 << 20, "999 MiB"),
            (1000 << 20, "0.98 GiB"),
            (123 << 30, "123 GiB"),
            (u64::MAX, "16777216 TiB"),
        ];
        for (bytes, shown) in cases {
            assert_eq!(Bytes(bytes).to_string(), shown);
        }
        assert_eq!(format!("[{:>9}]", Bytes(1536)), "[ 1.50 KiB]");
    }
}
