//! Measures how fast a device takes streamed weights, and how much of that passes beside its kernels.

use std::collections::{BTreeMap, HashSet};

use bilayer_engine::Error;
use bilayer_engine::session::Subject;
use bilayer_graph::{Backend, Graph, Holding, Limits, StreamedLayer, Weight, WeightId};
use bilayer_scheduler::Upload;

use super::{Apart, Bench, Between, End, Prompt, bytes_of, segments};

/// Number of repetitions, of which the shortest counts.
const REPEATS: usize = 3;

/// Streams a layer to one slot while the device is idle, and while it computes a step of `tokens` tokens with another layer
/// from the other slot. `None` for devices that read weights where the file has them.
///
/// # Errors
/// The device fails, or the file lacks a tensor.
pub fn measured(
    subject: &Subject<'_>,
    backend: &mut dyn Backend,
    layers: &[usize],
    prompt: Prompt<Apart>,
    limits: Limits,
) -> Result<Option<Upload>, Error> {
    let (graph, facts) = (subject.graph, backend.facts());
    // The first of them is the last layer, which computes a prompt's last row only.
    let &[copied, used, ..] = layers else { return Ok(None) };
    if !(facts.is_async && facts.copies_weights) || graph.takes_whole_sequences() {
        return Ok(None);
    }
    let end = End::of(facts);
    let segment = segments(graph, &[used], end);
    let ids = |layer: usize| -> HashSet<WeightId> {
        let nodes = graph.nodes.iter().filter(|node| node.layer == Some(layer as u32));
        nodes.flat_map(|node| node.op.weights()).collect()
    };
    let matrices = |of: &HashSet<WeightId>, other: &HashSet<WeightId>| {
        let mut ids: Vec<WeightId> = of.difference(other).copied().collect();
        ids.retain(|&id| !graph.weight(id).is_vector());
        ids.sort_unstable();
        ids
    };
    let (first, second) = (ids(used), ids(copied));
    let slots = [matrices(&first, &second), matrices(&second, &first)];
    let mut streamed = Vec::new();
    for (slot, ids) in slots.iter().enumerate() {
        let with_bytes = |&id: &WeightId| {
            let weight = graph.weight(id);
            Ok::<_, Error>((weight, bytes_of(subject, weight)?))
        };
        let weights = ids.iter().map(with_bytes).collect::<Result<_, _>>()?;
        streamed.push(StreamedLayer { slot, weights });
    }
    let held = segment.iter().flat_map(|part| &graph.nodes[part.nodes.clone()]);
    let held: HashSet<WeightId> = held.flat_map(|node| node.op.weights()).collect();
    let held: Vec<&Weight> = graph
        .weights
        .iter()
        .filter(|weight| held.contains(&weight.id) && !slots[0].contains(&weight.id))
        .collect();
    backend.reserve(&Holding { weights: &held, streamed: &streamed, ..Holding::default() })?;
    for weight in held {
        backend.load(weight, bytes_of(subject, weight)?)?;
    }
    let mut parts = [const { Vec::new() }; 3];
    for part in segment {
        let id = backend.compile(&part.segment(graph), limits)?;
        parts[0].push((part, id));
    }
    let mut bench = Bench { graph, backend, parts, values: BTreeMap::new() };
    stream(graph, bench.backend, &slots[0])?;
    let copy = |backend: &mut dyn Backend| stream(graph, backend, &slots[1]);
    let clock = bench.backend.clock();
    let mut shortest = |tokens: usize, before: Between<'_>, between: Between<'_>| {
        let mut ms = f64::INFINITY;
        for _ in 0..REPEATS {
            let began = clock.now();
            before(bench.backend)?;
            bench.step_with(0, tokens, 1, between)?;
            ms = ms.min(clock.since(began).as_secs_f64() * 1e3);
        }
        Ok::<_, Error>(ms)
    };
    let (alone, idle) = (shortest(1, &nothing, &nothing)?, shortest(1, &copy, &nothing)?);
    let tokens = prompt.tokens;
    let (busy, both) = (shortest(tokens, &nothing, &nothing)?, shortest(tokens, &nothing, &copy)?);
    let bytes: usize = slots[1].iter().map(|&id| graph.weight(id).bytes()).sum();
    let copy_ms = idle - alone;
    if bytes == 0 || copy_ms <= 0.0 {
        return Ok(None);
    }
    // Inputs and outputs cross before and after the kernels.
    let kernels_ms = (busy - prompt.walls.segment).max(0.0);
    let hidden = (busy + copy_ms - both) / kernels_ms.min(copy_ms).max(f64::MIN_POSITIVE);
    Ok(Some(Upload { gbps: bytes as f64 / (copy_ms * 1e6), overlap: hidden.clamp(0.0, 1.0) }))
}

/// Copies weights.
fn stream(
    graph: &Graph,
    backend: &mut dyn Backend,
    weights: &[WeightId],
) -> Result<(), bilayer_graph::Error> {
    weights.iter().try_for_each(|&id| backend.stream(id, 0..graph.weight(id).rows))
}

/// Copies nothing.
fn nothing(_: &mut dyn Backend) -> Result<(), bilayer_graph::Error> {
    Ok(())
}
