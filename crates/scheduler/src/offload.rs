//! From what the user asks for to a plan: how many layers are offloaded, how they are split over the devices, what is
//! pinned elsewhere, and the most that fits.

use std::collections::{BTreeMap, BTreeSet};

use bilayer_graph::{Facts, Graph, Op, WeightId};

use crate::plan::{Strictness, placed};
use crate::split::Splitter;
use crate::{
    Budget, Error, ExpertCache, ExpertUses, Machine, OpOffload, Placement, Plan, Predicted, experts,
};

/// How much is offloaded.
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

/// What the user asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// How much is offloaded.
    pub offload: Offload,
    /// How much of that each offload device gets, in the machine's order and any unit; devices beyond the end get
    /// nothing. Without any share the split follows measured times and free memory.
    pub shares: Vec<f64>,
    /// Weights whose ops run on a given device of the machine, whatever their layer does. Where there is no such
    /// device, a pin has no effect.
    pub pins: Vec<(WeightId, usize)>,
    /// Caches and the attention over them stay with the host.
    pub cache_on_host: bool,
    /// When weights that the host holds are streamed.
    pub op_offload: OpOffload,
    /// Device memory for experts whose layers' others are with the host.
    pub experts: ExpertCache,
    /// How often experts are used, if known.
    pub uses: Option<ExpertUses>,
}

/// The machine's places: the host is always the first device.
pub(crate) const HOST: usize = 0;

/// The plan of a request on a machine of a host and any number of devices to offload to.
///
/// What a device cannot run stays with the host, and the plan's notes say so. The host maps the file, so weights
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
    match graph.splits.is_empty() {
        true => experts::cached(graph, machine, budget, request),
        false => layered(graph, machine, budget, request),
    }
}

/// The plan of a graph whose mixtures are split already, or stay whole.
pub(crate) fn layered(
    graph: &Graph,
    machine: &Machine,
    budget: &Budget,
    request: &Request,
) -> Result<Plan, Error> {
    let parts = graph.layers() + 1;
    if machine.devices.len() < 2 {
        let placement = Placement::single(graph.layers(), HOST);
        return placed(graph, machine, budget, &placement, Strictness::MappedHost);
    }
    let work = Work { graph, machine, budget, request };
    let splitter = Splitter::new(&work);
    let of = |count: u32| splitter.plan(count);
    let max = most(machine, parts, of);
    let mut plan = match request.offload {
        Offload::Auto => auto(machine, parts, max, of)?,
        Offload::All => counted(parts, max, of)?,
        Offload::Count(count) => counted(count.min(parts), max, of)?,
        Offload::Percent(percent) => {
            let percent = u32::from(percent.min(100));
            counted((parts * percent + 50) / 100, max, of)?
        }
    };
    plan.notes.extend(splitter.note(&plan));
    Ok(plan)
}

/// The largest number of `parts` that fits. The more parts are offloaded, the more memory the device needs and the less the
/// host, so that the device's refusal rules out all larger numbers. Of several devices, one may get less of more.
fn most(machine: &Machine, parts: u32, of: impl Fn(u32) -> Result<Plan, Error>) -> Option<u32> {
    if machine.devices.len() > HOST + 2 {
        return (0..=parts).rev().find(|&count| of(count).is_ok());
    }
    let host = &machine.labels()[HOST];
    let is_too_large = |count| match of(count) {
        Err(Error::DoesNotFit { what, .. }) => what.device != *host,
        _ => false,
    };
    // Nothing is left to be streamed, for which fewer need memory.
    if of(parts).is_ok() {
        return Some(parts);
    }
    let (mut low, mut high) = (0, parts);
    while low + 1 < high {
        let middle = low.midpoint(high);
        *if is_too_large(middle) { &mut high } else { &mut low } = middle;
    }
    of(low).is_ok().then_some(low)
}

/// So many parts, of which `max` fit.
fn counted(
    wanted: u32,
    max: Option<u32>,
    of: impl Fn(u32) -> Result<Plan, Error>,
) -> Result<Plan, Error> {
    let mut plan = of(wanted).map_err(|error| match error {
        Error::DoesNotFit { what, .. } => Error::DoesNotFit { what, largest: max },
        other => other,
    })?;
    plan.gpu_layers = wanted;
    plan.max_gpu_layers = max.unwrap_or(0);
    Ok(plan)
}

/// Gain below which fewer offloaded parts are as good: predictions are not that exact.
const WORTH: f64 = 0.01;

/// As many of `parts` as give the shortest answer of all numbers that fit, where times are known; else as many as fit.
fn auto(
    machine: &Machine,
    parts: u32,
    max: Option<u32>,
    of: impl Fn(u32) -> Result<Plan, Error>,
) -> Result<Plan, Error> {
    let Some(max) = max else { return of(0) };
    let most = of(max)?;
    let most_ms = most.predicted.as_ref().map_or(f64::NAN, |most| most.decode_ms);
    let mut best: Option<(u32, Plan)> = None;
    if most.predicted.is_some() {
        for count in 0..=max {
            let Ok(plan) = of(count) else { continue };
            let gains =
                |(_, best): &(u32, Plan)| plan.answer_ms() < best.answer_ms() * (1.0 - WORTH);
            if best.as_ref().is_none_or(gains) {
                best = Some((count, plan));
            }
        }
    }
    let (count, mut plan) = best.unwrap_or((max, most));
    plan.gpu_layers = count;
    plan.max_gpu_layers = max;
    let why = match (&plan.predicted, of(0).map(|none| none.predicted)) {
        (Some(found), Ok(Some(none))) => {
            let choice = Choice { count, max, parts, devices: machine.devices.len() - 1 };
            choice.why(found, &none, most_ms)
        }
        (Some(_), Err(_)) => format!(
            "{count} of {parts} layers give the shortest answer; the CPU alone has no room for the model"
        ),
        _ => format!(
            "{count} of {parts} layers is the most that fits; chosen by memory, not by measured speed"
        ),
    };
    plan.notes.push(why);
    Ok(plan)
}

/// What `auto` chose, and among what.
struct Choice {
    count: u32,
    max: u32,
    parts: u32,
    /// Devices beside the host.
    devices: usize,
}

impl Choice {
    /// Why a count was chosen: the predictions for it, for nothing and, milliseconds a token, for the most.
    fn why(&self, found: &Predicted, none: &Predicted, most_ms: f64) -> String {
        let Choice { count, max, parts, devices } = *self;
        let gain = none.answer_ms() / found.answer_ms().max(f64::MIN_POSITIVE);
        let (gpu, are) = if devices == 1 { ("GPU", "is") } else { ("GPUs", "are") };
        match count {
            0 if max == 0 => format!("nothing fits on the {gpu}"),
            0 => format!(
                "no layer is offloaded: the {gpu} {are} slower than the CPU ({:.2} ms a token on the CPU \
                 alone, {most_ms:.2} with {max} layers on the {gpu})",
                none.decode_ms
            ),
            _ => format!(
                "{count} of {parts} layers give the shortest answer: {gain:.2} times as fast as the CPU \
                 alone{}",
                if count == max && max < parts { "; more does not fit" } else { "" }
            ),
        }
    }
}

/// What is placed where, and what is asked of it.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    pub graph: &'a Graph,
    pub machine: &'a Machine,
    pub budget: &'a Budget,
    pub request: &'a Request,
}

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

/// What of a node a device cannot run.
pub(crate) fn lacks(graph: &Graph, node: usize, facts: &Facts) -> Option<String> {
    let op = &graph.nodes[node].op;
    let stem = op.kind().stem();
    if !facts.ops.contains(&op.kind()) {
        return Some(stem.to_owned());
    }
    let ty = op.weights().map(|id| graph.weight(id).ty).find(|ty| !facts.types.contains(ty))?;
    Some(format!("{stem} with weights of {ty}"))
}
