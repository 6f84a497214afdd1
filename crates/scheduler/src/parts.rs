//! The plan of a number of parts on each device: with what is pinned elsewhere, or cannot run there.

use std::collections::{BTreeMap, BTreeSet};

use bilayer_graph::{Graph, Op, WeightId};

use crate::experts;
use crate::machine::HOST;
use crate::plan::{Strictness, lacks, placed};
use crate::request::Work;
use crate::{Error, Placement, Plan};

impl Work<'_> {
    /// The plan with so many parts on each offload device, less what it cannot run, changed by the pins.
    pub fn plan(&self, counts: &[u32]) -> Result<Plan, Error> {
        let Work { graph, machine, budget, request } = *self;
        let split: Vec<(usize, u32)> = (HOST + 1..).zip(counts.iter().copied()).collect();
        let mut placement = Placement::split(graph.layers(), HOST, &split);
        let offloads = counts.iter().any(|&count| count > 0);
        let pins = request.pins.iter().filter(|(_, device)| *device < machine.devices.len());
        let pins: BTreeMap<WeightId, usize> = pins.copied().collect();
        let usual = placement.devices(graph);
        let labels = machine.labels();
        let home = experts::device(machine);
        let (mut places, mut notes) = (usual.clone(), BTreeSet::new());
        for (number, node) in graph.nodes.iter().enumerate() {
            let is_resident = |id| graph.weight(id).is_resident;
            let pinned = match () {
                () if node.op.weights().any(is_resident) => Some(home),
                // Fewer bytes cross than if the device joined and mixed the experts' results.
                () if graph.splits.iter().any(|split| split.join == number) => Some(HOST),
                () => node.op.weights().find_map(|weight| pins.get(&weight)).copied(),
            };
            places[number] = pinned.unwrap_or_else(|| nearest(graph, number, &places));
            let attends = matches!(node.op, Op::Attend(_) | Op::Rope { .. } | Op::HeadNorm { .. });
            if request.cache_on_host && attends && offloads {
                places[number] = HOST;
            }
            let device = places[number];
            if device != HOST
                && let Some(lacking) = lacks(graph, number, &machine.devices[device])
            {
                places[number] = HOST;
                let label = &labels[device];
                notes.insert(format!("{lacking} stays on the host: {label} cannot run it"));
            }
        }
        let moved = (0..usual.len()).filter(|&number| places[number] != usual[number]);
        placement.exceptions = moved.map(|number| (number, places[number])).collect();
        let mut plan = placed(graph, machine, budget, &placement, Strictness::MappedHost)?;
        plan.notes.extend(notes);
        self.streamed(plan)
    }
}

/// Where a node runs that nobody has pinned: with its layer; or, without weights or a cache, where most of what its layer
/// has made for it lies, so that what joins or weighs the results of pinned matrices runs beside them.
fn nearest(graph: &Graph, number: usize, places: &[usize]) -> usize {
    let node = &graph.nodes[number];
    let usual = places[number];
    if matches!(node.op, Op::Attend(_)) || node.op.weights().next().is_some() {
        return usual;
    }
    let mut widths: BTreeMap<usize, usize> = BTreeMap::new();
    for value in node.op.inputs() {
        let maker = graph.nodes[..number].iter().rposition(|made| made.op.out() == value);
        if let Some(maker) = maker.filter(|&maker| graph.nodes[maker].layer == node.layer) {
            *widths.entry(places[maker]).or_default() += graph.width(value);
        }
    }
    let here = widths.get(&usual).copied().unwrap_or(0);
    match widths.into_iter().max_by_key(|(_, width)| *width) {
        Some((place, width)) if width > here => place,
        _ => usual,
    }
}
