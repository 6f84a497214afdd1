//! Loads the weights of a plan to the devices whose segments read them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use bilayer_graph::{
    Backend, CacheId, Graph, Holding, MappedWeight, Op, ResidentStack, SharedBytes, SplitMixture,
    StateId, StreamedLayer, Value, Weight, WeightId,
};
use bilayer_scheduler::Plan;

use super::experts;
use super::failed::Failed;
use crate::settings::{Progress, Stage};
use crate::{Error, Model};

/// A model being placed, or moved.
#[derive(Clone, Copy)]
pub struct Change<'a> {
    pub model: &'a Model,
    pub graph: &'a Graph,
    /// The current plan of the devices, if any.
    pub from: Option<&'a Plan>,
    pub to: &'a Plan,
    /// Values stored in every step.
    pub watched: &'a [Value],
}

/// The device of each cache under a plan.
pub fn caches(graph: &Graph, plan: &Plan) -> BTreeMap<CacheId, usize> {
    devices(graph, plan, |op| match op {
        Op::Attend(attend) => attend.cache,
        _ => None,
    })
}

/// The device of each state under a plan.
pub fn states(graph: &Graph, plan: &Plan) -> BTreeMap<StateId, usize> {
    devices(graph, plan, Op::state)
}

/// The device under a plan of each thing that an op has.
fn devices<T: Ord>(
    graph: &Graph,
    plan: &Plan,
    of: impl Fn(&Op) -> Option<T>,
) -> BTreeMap<T, usize> {
    let on = |device| move |thing| (thing, device);
    let nodes = plan.segments.iter().flat_map(|segment| {
        segment.nodes.clone().map(|node| (&graph.nodes[node].op, segment.device))
    });
    nodes.filter_map(|(op, device)| of(op).map(on(device))).collect()
}

/// The device of each thing under a plan: [`caches`] or [`states`].
type Devices<T> = fn(&Graph, &Plan) -> BTreeMap<T, usize>;

impl Change<'_> {
    /// Caches or states that move, with their old and new device.
    pub fn moved<T: Ord>(&self, devices: Devices<T>) -> Vec<(T, usize, usize)> {
        let to = devices(self.graph, self.to);
        let from = self.from.map(|plan| devices(self.graph, plan)).unwrap_or_default();
        let both = from.into_iter().map(|(thing, device)| {
            let to = to[&thing];
            (thing, device, to)
        });
        both.filter(|(_, from, to)| from != to).collect()
    }

    /// Caches or states that stay on a device.
    fn kept<T: Ord>(&self, devices: Devices<T>, device: usize) -> Vec<T> {
        let to = devices(self.graph, self.to);
        let from = self.from.map(|plan| devices(self.graph, plan)).unwrap_or_default();
        let stays = |(thing, on): &(T, usize)| *on == device && to[thing] == device;
        from.into_iter().filter(stays).map(|(thing, _)| thing).collect()
    }
}

/// Announces to each device what it will hold.
pub fn reserve(change: &Change<'_>, backends: &mut [Box<dyn Backend>]) -> Result<(), Failed> {
    let wanted = wanted(change.graph, change.to);
    for (device, backend) in backends.iter_mut().enumerate() {
        let mine = wanted.iter().filter(|&&(of, _)| of == device);
        let weights: Vec<&Weight> = mine.map(|&(_, id)| change.graph.weight(id)).collect();
        let holds = |plan: &Plan| plan.segments.iter().any(|segment| segment.device == device);
        let streamed = &streamed(change, device).map_err(Failed::on(device))?;
        let is_used = !weights.is_empty() || !streamed.is_empty();
        if is_used || change.from.is_some_and(holds) {
            let caches = change.kept(caches, device);
            let states = change.kept(states, device);
            let mapped: Vec<MappedWeight> =
                weights.iter().filter_map(|weight| change.model.mapped(weight)).collect();
            let (weights, mapped, caches, states) = (&weights, &mapped, &caches, &states);
            let holding = Holding { weights, mapped, caches, states, streamed };
            backend.reserve(&holding).map_err(Failed::on(device))?;
        }
    }
    Ok(())
}

/// The weights that are streamed to a device, stage by stage.
fn streamed<'a>(
    change: &Change<'a>,
    device: usize,
) -> Result<Vec<StreamedLayer<'a>>, bilayer_graph::Error> {
    let Change { graph, to: plan, .. } = *change;
    let streaming = plan.streaming.iter().filter(|streaming| streaming.device == device);
    let mut layers = Vec::new();
    for stage in streaming.flat_map(|streaming| &streaming.stages) {
        let Some(slot) = stage.slot() else { continue };
        let with_bytes = |&id: &WeightId| {
            let weight = graph.weight(id);
            Ok((weight, bytes_of(change, weight)?))
        };
        let weights = stage.weights.iter().map(with_bytes).collect::<Result<_, _>>()?;
        layers.push(StreamedLayer { slot, weights });
    }
    Ok(layers)
}

/// Brings the residents of a weight to their slots, which have the first experts.
fn residents(
    change: &Change<'_>,
    weight: &Weight,
    backend: &mut dyn Backend,
) -> Result<(), bilayer_graph::Error> {
    let Change { model, graph, .. } = *change;
    for (split, stack) in stacks(graph).filter(|(_, stack)| stack.slots == weight.id) {
        for (slot, &expert) in split.residents.iter().enumerate() {
            let bytes = experts::matrix(model, graph, stack, expert)?;
            backend.exchange(weight, slot, &bytes)?;
        }
    }
    Ok(())
}

/// The stacks of residents.
fn stacks(graph: &Graph) -> impl Iterator<Item = (&SplitMixture, &ResidentStack)> {
    graph.splits.iter().flat_map(|split| split.stacks.iter().map(move |stack| (split, stack)))
}

/// A weight's bytes in the file; of residents those of the first experts.
fn bytes_of(change: &Change<'_>, weight: &Weight) -> Result<SharedBytes, bilayer_graph::Error> {
    if let Some((_, stack)) = stacks(change.graph).find(|(_, stack)| stack.slots == weight.id) {
        return experts::first(change.model, change.graph, stack);
    }
    let file = change.model.file();
    let missing = || bilayer_graph::Error::MissingTensor { name: weight.name.clone() };
    let tensor = file.tensor(&weight.name).ok_or_else(missing)?;
    Ok(file.bytes(tensor).slice(weight.range_in_tensor()))
}

/// Loads each device's weights, device by device in graph order. File pages of weights copied to a GPU are released,
/// unless another device reads the map: after a full offload almost nothing of the file stays in memory. Ends with
/// [`Error::Interrupted`] after the weight at which `progress` breaks.
pub fn weights(
    change: &Change<'_>,
    backends: &mut [Box<dyn Backend>],
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), Failed> {
    let Change { model, graph, to: plan, .. } = *change;
    let wanted = wanted(graph, plan);
    let copies: Vec<bool> = backends.iter().map(|b| b.facts().copies_weights).collect();
    let releases = releases(graph, &wanted, &copies);
    let total_bytes = wanted.iter().map(|&(_, weight)| graph.weight(weight).bytes() as u64).sum();
    let mut done_bytes = 0;
    for (place, &(device, weight)) in wanted.iter().enumerate() {
        let weight = graph.weight(weight);
        let bytes = bytes_of(change, weight).map_err(Failed::on(device))?;
        backends[device].load(weight, bytes).map_err(Failed::on(device))?;
        if weight.is_resident && copies[device] {
            residents(change, weight, backends[device].as_mut()).map_err(Failed::on(device))?;
        }
        let file = model.file();
        if releases.contains(&place)
            && let Some(tensor) = file.tensor(&weight.name)
        {
            file.release(tensor);
        }
        done_bytes += weight.bytes() as u64;
        if progress(Progress { stage: Stage::Loading, done_bytes, total_bytes }).is_break() {
            return Err(Failed::Other(Error::Interrupted));
        }
    }
    // Of the file that is loaded, whatever becomes of it; reading it notices a disk that fails.
    model.digest();
    // Reading a tensor also reads pages of its neighbours, including released ones.
    let file = model.file();
    let gone = releases.iter().map(|&place| &graph.weight(wanted[place].1).name);
    gone.filter_map(|name| file.tensor(name)).for_each(|tensor| file.release(tensor));
    file.check_unchanged().map_err(|error| Failed::Other(Error::File(error)))
}

/// All devices' weights, each once, in loading order.
fn wanted(graph: &Graph, plan: &Plan) -> Vec<(usize, WeightId)> {
    let mut wanted = BTreeSet::new();
    for segment in &plan.segments {
        for node in &graph.nodes[segment.nodes.clone()] {
            wanted.extend(node.op.weights().map(|weight| (segment.device, weight)));
        }
    }
    for stage in plan.streaming.iter().flat_map(|streaming| &streaming.stages) {
        let nodes = graph.nodes[stage.segment.nodes.clone()].iter();
        let held = nodes.flat_map(|node| node.op.weights());
        let held = held.filter(|weight| !stage.weights.contains(weight));
        wanted.extend(held.map(|weight| (stage.segment.device, weight)));
    }
    wanted.into_iter().collect()
}

/// The indices in `wanted` after which a tensor's pages are no longer needed: the last of its weights is loaded, and
/// every device that has one `copies` it.
fn releases(graph: &Graph, wanted: &[(usize, WeightId)], copies: &[bool]) -> HashSet<usize> {
    let mut last: HashMap<&str, Option<usize>> = HashMap::new();
    for (place, &(device, weight)) in wanted.iter().enumerate() {
        let entry = last.entry(&graph.weight(weight).name).or_insert(Some(place));
        *entry = entry.and(copies[device].then_some(place));
    }
    last.into_values().flatten().collect()
}

#[cfg(test)]
mod tests {
    use bilayer_graph::{Catalog, Entry, Graph, Recorder, WeightId};
    use bilayer_quant::Type;

    use super::releases;

    struct Square;

    impl Catalog for Square {
        fn find(&self, _: &str) -> Option<Entry> {
            Some(Entry { ty: Type::F32, shape: vec![4, 2] })
        }
    }

    /// Weights 0 and 1 are halves of one tensor, 2 is another.
    fn graph() -> Graph {
        let mut recorder = Recorder::new(&Square);
        let halves =
            [0, 2].map(|first| recorder.matrix_rows("both", 4, first, 2, 2).expect("fits"));
        let table = recorder.matrix("table", 4, 2).expect("fits");
        assert_eq!((halves, table), ([WeightId(0), WeightId(1)], WeightId(2)));
        let logits = recorder.embed("embed", table);
        recorder.finish(logits)
    }

    #[test]
    fn pages_go_after_the_last_weight_that_nobody_keeps() {
        let (graph, w) = (graph(), WeightId);
        let of = |wanted: &[_], copies: &[bool]| {
            let mut places: Vec<usize> = releases(&graph, wanted, copies).into_iter().collect();
            places.sort_unstable();
            places
        };
        let all = [(1, w(0)), (1, w(1)), (1, w(2))];
        assert_eq!(of(&all, &[false, true]), [1, 2]);
        assert_eq!(of(&all, &[false, false]), [0; 0]);
        let tied = [(0, w(2)), (1, w(0)), (1, w(1)), (1, w(2))];
        assert_eq!(of(&tied, &[false, true]), [2], "the CPU still reads the table");
        let apart = [(0, w(1)), (1, w(0))];
        assert_eq!(of(&apart, &[false, true]), [0; 0], "half of a tensor is still read");
    }
}
