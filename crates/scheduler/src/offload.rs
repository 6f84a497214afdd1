//! From what the user asks for to a plan: how many layers go to the adapter, what is pinned elsewhere, and the most that
//! fits.

use std::collections::{BTreeMap, BTreeSet};

use bilayer_graph::{Facts, Graph, Op, WeightId};

use crate::plan::{Strictness, placed};
use crate::{Budget, Error, Machine, Placement, Plan, Predicted};

/// How much goes to the adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// What gives the shortest answer where times are known, else as much as fits.
    #[default]
    Auto,
    /// Everything but the embedding.
    All,
    /// The head and the last layers, so many parts in all: `layers + 1` is everything.
    Count(u32),
    /// So many hundredths of `layers + 1` parts.
    Percent(u8),
}

/// The processor or the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The machine's first device.
    Host,
    /// Its second.
    Device,
}

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// How much goes to the adapter.
    pub offload: Offload,
    /// Weights whose ops run on a given side, whatever their layer does.
    pub pins: Vec<(WeightId, Side)>,
    /// Caches and the attention over them stay with the host.
    pub cache_on_host: bool,
}

/// The machine's places: the host is always the first device.
const HOST: usize = 0;

/// The plan of a request on a machine of a host and perhaps one adapter.
///
/// What the adapter cannot run stays with the host, and the plan's notes say so. The host maps the file, so weights
/// beyond its memory are slow but no error; they are noted too.
///
/// # Errors
/// There is no device, or what is asked for does not fit; then the error has the most that does.
pub fn offload(
    graph: &Graph,
    machine: &Machine,
    budget: &Budget,
    request: &Request,
) -> Result<Plan, Error> {
    let parts = graph.layers() + 1;
    let Some(device) = (1..machine.devices.len()).next() else {
        let placement = Placement::single(graph.layers(), HOST);
        return placed(graph, machine, budget, &placement, Strictness::MappedHost);
    };
    let of = |count: u32| Work { graph, machine, budget, request, device }.plan(count);
    let wanted = match request.offload {
        Offload::Auto => return auto(parts, of),
        Offload::All => parts,
        Offload::Count(count) => count.min(parts),
        Offload::Percent(percent) => {
            let percent = u32::from(percent.min(100));
            (parts * percent + 50) / 100
        }
    };
    let max = (0..=parts).rev().find(|&count| of(count).is_ok());
    let mut plan = of(wanted).map_err(|error| match (error, max) {
        (Error::DoesNotFit { what, .. }, max) => Error::DoesNotFit { what, largest: max },
        (other, _) => other,
    })?;
    plan.gpu_layers = wanted;
    plan.max_gpu_layers = max.unwrap_or(0);
    Ok(plan)
}

/// Gain below which fewer parts on the adapter are as good: predictions are not that exact.
const WORTH: f64 = 0.01;

/// As many parts as give the shortest answer, where times are known; else as many as fit.
fn auto(parts: u32, of: impl Fn(u32) -> Result<Plan, Error>) -> Result<Plan, Error> {
    let Some((max, most)) = (0..=parts).rev().find_map(|count| of(count).ok().map(|p| (count, p)))
    else {
        return of(0);
    };
    let (count, mut plan) = match most.predicted {
        None => (max, most),
        Some(_) => {
            let mut best = (0, of(0)?);
            for count in 1..=max {
                let Ok(plan) = of(count) else { continue };
                let ms =
                    |plan: &Plan| plan.predicted.as_ref().map_or(f64::MAX, Predicted::answer_ms);
                if ms(&plan) < ms(&best.1) * (1.0 - WORTH) {
                    best = (count, plan);
                }
            }
            best
        }
    };
    plan.gpu_layers = count;
    plan.max_gpu_layers = max;
    let why = match (&plan.predicted, of(0)?.predicted) {
        (Some(found), Some(none)) => chosen(count, max, parts, found, &none, of(max)?.predicted),
        _ => format!(
            "{count} of {parts} parts is the most that fits; chosen by memory, not by measured speed"
        ),
    };
    plan.notes.push(why);
    Ok(plan)
}

/// Why a count was chosen.
fn chosen(
    count: u32,
    max: u32,
    parts: u32,
    found: &Predicted,
    none: &Predicted,
    most: Option<Predicted>,
) -> String {
    let most = most.map_or(f64::NAN, |most| most.decode_ms);
    let gain = none.answer_ms() / found.answer_ms().max(f64::MIN_POSITIVE);
    match count {
        0 if max == 0 => "nothing fits on the adapter".to_owned(),
        0 => format!(
            "no part is offloaded: this adapter is slower than this processor ({:.2} ms a token on the \
             processor alone, {most:.2} with {max} parts on the adapter)",
            none.decode_ms
        ),
        _ => format!(
            "{count} of {parts} parts give the shortest answer: {gain:.2} times as fast as the processor \
             alone{}",
            if count == max && max < parts { "; more does not fit" } else { "" }
        ),
    }
}

struct Work<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    budget: &'a Budget,
    request: &'a Request,
    device: usize,
}

impl Work<'_> {
    /// The plan with `count` parts on the device, less what it cannot run, changed by the pins.
    fn plan(&self, count: u32) -> Result<Plan, Error> {
        let Work { graph, machine, budget, request, device } = *self;
        let mut placement = Placement::offload(graph.layers(), count, HOST, device);
        let pins: BTreeMap<WeightId, Side> = request.pins.iter().copied().collect();
        let usual = placement.devices(graph);
        let (mut places, mut notes) = (usual.clone(), BTreeSet::new());
        for (number, node) in graph.nodes.iter().enumerate() {
            let pinned = node.op.weights().find_map(|weight| pins.get(&weight));
            places[number] = match pinned {
                Some(Side::Host) => HOST,
                Some(Side::Device) => device,
                None => nearest(graph, number, &places),
            };
            let attends = matches!(node.op, Op::Attend(_) | Op::Rope { .. } | Op::HeadNorm { .. });
            if request.cache_on_host && attends && count > 0 {
                places[number] = HOST;
            }
            if places[number] == device
                && let Some(lacking) = lacks(graph, number, &machine.devices[device])
            {
                places[number] = HOST;
                notes.insert(format!("{lacking} stays on the host: the adapter cannot run it"));
            }
        }
        let moved = (0..usual.len()).filter(|&number| places[number] != usual[number]);
        placement.exceptions = moved.map(|number| (number, places[number])).collect();
        let mut plan = placed(graph, machine, budget, &placement, Strictness::MappedHost)?;
        plan.notes.extend(notes);
        Ok(plan)
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

/// What of a node a device cannot run.
fn lacks(graph: &Graph, node: usize, facts: &Facts) -> Option<String> {
    let op = &graph.nodes[node].op;
    let stem = op.kind().stem();
    if !facts.ops.contains(&op.kind()) {
        return Some(stem.to_owned());
    }
    let ty = op.weights().map(|id| graph.weight(id).ty).find(|ty| !facts.types.contains(ty))?;
    Some(format!("{stem} with weights of {ty}"))
}
