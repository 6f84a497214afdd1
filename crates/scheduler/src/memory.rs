//! Adds up what devices would hold, and prints sizes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use bilayer_graph::fuse::{self, Item, Kind, Part};
use bilayer_graph::slots::{self, Life};
use bilayer_graph::{Facts, Graph, Value, WeightId};

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

/// A value of 16, as integers with a scale and a sum, in bytes; widths are rounded up to 64 values.
const QUANTIZED_BYTES: u64 = 24;
const QUANTIZED_MULTIPLE: usize = 64;

/// How a value lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    Floats,
    Integers,
}

/// Bytes that a segment's values take in the largest step, by the rules that devices lay them out by: nothing that
/// disappears where ops are joined, floats only where somebody reads floats, and one place for values that do not live
/// at the same time.
pub(crate) fn activation_bytes(
    graph: &Graph,
    segment: &PlannedSegment,
    budget: &Budget,
    facts: &Facts,
) -> u64 {
    let items = fuse::joined(&segment.segment(graph));
    let mut lives: BTreeMap<(Value, Form), (usize, usize)> = BTreeMap::new();
    let mut born: HashMap<Value, usize> = segment.inputs.iter().map(|&value| (value, 0)).collect();
    for (at, item) in items.iter().enumerate() {
        born.extend(item.writes(graph).into_iter().map(|value| (value, at)));
    }
    let mut read = |value: Value, form: Form, at: usize| {
        let first = born.get(&value).copied().unwrap_or(at);
        lives.entry((value, form)).or_insert((first, first)).1 = at;
    };
    for (at, item) in items.iter().enumerate() {
        let (of_floats, of_integers) = forms(graph, item, facts);
        of_floats.into_iter().for_each(|value| read(value, Form::Floats, at));
        of_integers.into_iter().for_each(|value| read(value, Form::Integers, at));
    }
    // What comes and goes is not shared with anything.
    for &value in segment.inputs.iter().chain(&segment.outputs) {
        lives.insert((value, Form::Floats), (0, items.len()));
    }
    for (value, at) in born {
        if !lives.contains_key(&(value, Form::Floats))
            && !lives.contains_key(&(value, Form::Integers))
        {
            lives.insert((value, Form::Floats), (at, at));
        }
    }
    let bytes = |value: Value, form: Form| {
        let info = &graph.values[value.0 as usize];
        match form {
            Form::Floats => budget.value_bytes(info),
            Form::Integers => {
                let pieces = info.width.next_multiple_of(QUANTIZED_MULTIPLE) as u64 / 16;
                let rows = budget.value_bytes(info) / (4 * info.width.max(1)) as u64;
                rows.saturating_mul(pieces).saturating_mul(QUANTIZED_BYTES)
            }
        }
    };
    let lives: Vec<Life> = lives
        .into_iter()
        .map(|((value, form), (first, last))| Life { first, last, bytes: bytes(value, form) })
        .collect();
    sum(slots::assign(&lives).1)
}

/// The values that an item reads as floats, and as integers.
fn forms(graph: &Graph, item: &Item, facts: &Facts) -> (Vec<Value>, Vec<Value>) {
    let Kind::Multiply { input, norm, parts } = &item.kind else {
        return (item.reads(graph), Vec::new());
    };
    let matmuls = parts.iter().flat_map(|part| match part {
        Part::Plain { matmul, .. } => vec![*matmul],
        Part::Gated { gate, up, .. } => vec![*gate, *up],
    });
    let types: Vec<_> = matmuls
        .filter_map(|node| graph.nodes[node].op.matrix())
        .map(|id| graph.weight(id).ty)
        .collect();
    let integers = types.iter().any(|ty| facts.quantized.contains(ty));
    let floats = types.iter().any(|ty| !facts.quantized.contains(ty));
    let others = item.reads(graph).into_iter().filter(|value| norm.is_some() || value != input);
    let mut of_floats: Vec<Value> = others.collect();
    if floats {
        of_floats.push(*input);
    }
    (of_floats, if integers { vec![*input] } else { Vec::new() })
}

/// Bytes that values take on their way into a segment and out of it, in the largest step.
pub(crate) fn staging_bytes(
    graph: &Graph,
    segment: &PlannedSegment,
    budget: &Budget,
    facts: &Facts,
) -> u64 {
    let outputs: &[Value] = if facts.reads_in_place { &[] } else { &segment.outputs };
    let crossing = segment.inputs.iter().chain(outputs);
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
