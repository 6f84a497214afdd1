//! Prepares a session from a model and settings: plan, devices, weights, compiled segments, buffers.

use std::ops::ControlFlow;
use std::time::Instant;

use bilayer_graph::{Backend, Clock, Graph, Limits, OpKind, Value};
use bilayer_scheduler::{
    Budget, ExpertCache, Machine, Plan, Streaming, Times, displaced, overlaps, place_mapped,
    split_experts,
};

use super::batch::Batch;
use super::cache::Pages;
use super::experts::Experts;
use super::failed::{Failed, is_recoverable};
use super::hidden::Hidden;
use super::lanes::Lanes;
use super::load::Change;
use super::pipeline::{self, Carried, Compiled, Pipeline, Reading};
use super::reduced::{self, Refusal};
use super::stream::{self, Stream};
use super::strengths::{self, Strengths};
use super::trace::Trace;
use super::warning::Warning;
use super::waves::Waves;
use super::{Prefill, Session, Spent, load};
use crate::expert_counts::Learned;
use crate::kept::Kept;
use crate::placement::{self, numa_note};
use crate::settings::{Overlap, Progress, Settings, Stage, limits_of};
use crate::times::{Decoding, Subject};
use crate::{Error, Model, devices};

/// Prepares a session on the devices requested by the settings.
pub fn session(model: &Model, mut settings: Settings<'_>) -> Result<Session, Error> {
    let options = settings.cpu_options();
    // Beside the opening of devices, the plan and the weights.
    model.begin_digest();
    let mut backends = vec![devices::host(&settings.placing, options)?];
    let began = backends[0].clock().now();
    let found = devices::open(&settings.placing, options)?;
    let notes = found.notes();
    backends.extend(found.devices);
    let mut placing = settings.placing.clone();
    if !settings.watched.is_empty() {
        // Values within a mixture would be those of one part.
        placing.expert_cache = ExpertCache::Off;
    }
    let placing = placing.with_learned(model);
    let planner = |graph: &Graph, machine: &Machine, budget: &Budget| {
        let mut plan = placing.plan(graph, machine, budget)?;
        plan.notes.extend(notes.iter().cloned());
        plan.notes.extend(numa_note(&placing, options, &plan));
        Ok(plan)
    };
    measured(model, backends, &planner, &mut settings, began)
}

/// Prepares a session on existing devices; the planner receives the times of the model's parts that the settings
/// request.
pub fn measured(
    model: &Model,
    mut backends: Vec<Box<dyn Backend>>,
    planner: &Planner<'_>,
    settings: &mut Settings<'_>,
    began: Instant,
) -> Result<Session, Error> {
    let (timing, notes) = timing(model, settings, &mut backends)?;
    let times = timing.as_ref().map(|timing| timing.times.clone());
    let timed = |graph: &Graph, machine: &Machine, budget: &Budget| {
        planner(graph, &Machine { times: times.clone(), ..machine.clone() }, budget)
    };
    let mut session = on(model, backends, &timed, settings, began)?;
    session.plan.notes.extend(notes);
    Ok(Session { timing, ..session })
}

/// Times of the model's parts on the session's devices, and where they are stored.
pub struct Timing {
    pub times: Times,
    pub kept: Kept,
    pub name: String,
}

/// The times that the settings request: stored ones, or measured now. Alone, the CPU gets every layer whatever its times are:
/// then they are measured only on request. Also notes for the plan if some could not be measured or stored.
fn timing(
    model: &Model,
    settings: &mut Settings<'_>,
    backends: &mut [Box<dyn Backend>],
) -> Result<(Option<Timing>, Vec<String>), Error> {
    let Some(folder) = &settings.placing.kept else { return Ok((None, Vec::new())) };
    let kept = Kept::new(folder);
    let graph = settings.graph(model)?;
    let subject = Subject { model, graph: &graph, limits: limits_of(settings, model) };
    let name = subject.name(backends.iter().map(|backend| backend.facts()));
    if settings.placing.remeasure {
        kept.remove(&name);
    }
    let known = subject.known(backends.len(), &name, &kept);
    let decides = backends.len() > 1 || settings.placing.remeasure;
    let mut notes = Vec::new();
    let times = match (known, settings.time_device.filter(|_| decides)) {
        (None, Some(time_device)) => {
            let begun = Progress { stage: Stage::Measuring, done_bytes: 0, total_bytes: 0 };
            if settings.tell(begun).is_break() {
                return Err(Error::Interrupted);
            }
            let times = subject.measure(time_device, backends, &mut notes);
            // What lacked memory may have it at the next start.
            if notes.is_empty() {
                notes.extend(times.as_ref().and_then(|times| stored(times, &kept, &name).err()));
            }
            times
        }
        (known, _) => known,
    };
    Ok((times.map(|times| Timing { times, kept, name }), notes))
}

/// Stores measured times, or says that they cannot be.
fn stored(times: &Times, kept: &Kept, name: &str) -> Result<(), String> {
    let text = serde_json::to_vec(times).map_err(std::io::Error::from);
    text.and_then(|text| kept.store(name, &text)).map_err(|error| {
        let folder = kept.folder().display();
        format!("{folder}: measured times cannot be kept: {error}; the next start measures again")
    })
}

/// Makes a session's plan.
pub type Planner<'p> = dyn Fn(&Graph, &Machine, &Budget) -> Result<Plan, Error> + 'p;

/// The book-keeping of the KV cache.
fn pages(settings: &Settings<'_>, limits: &Limits, model: &Model) -> Pages {
    let context = settings.context(model.config().context);
    Pages::new(limits.pages, settings.open_sequences(), context).with_states(limits.states)
}

/// Prepares a session on open devices. If a device runs out of memory or is lost, less is placed on it, with a warning.
fn on(
    model: &Model,
    mut backends: Vec<Box<dyn Backend>>,
    planner: &Planner<'_>,
    settings: &mut Settings<'_>,
    began: Instant,
) -> Result<Session, Error> {
    let mut graph = settings.graph(model)?;
    let given = strengths::give(&mut graph, model);
    let limits = limits_of(settings, model);
    let mut plan = planner(&graph, &devices::machine(&backends), &Budget::of(&limits))?;
    plan.notes.extend_from_slice(model.tokenizer().notes());
    if let Some(experts) = &plan.experts {
        graph = split_experts(&graph, &experts.choices);
    }
    let read = read(settings, &mut graph, &mut plan, &backends);
    let mut warnings = Vec::new();
    let parts =
        equipped(model, &graph, &mut backends, (&mut plan, &read), (settings, &mut warnings))?;
    // Steps may be smaller than those planned for.
    let limits = limits_of(settings, model);
    let learns = settings.placing.expert_uses.is_none();
    let learned = Learned::of(model, &settings.placing).filter(|_| learns);
    let experts = Experts::new(&graph, &plan, (learns, learned));
    let logits = Reading { value: graph.logits, width: graph.width(graph.logits), top_k: None };
    let width = logits.width.max(read.best.map_or(0, |best| 2 * best.k));
    let clock = clock(&backends);
    let divides = read.watched.is_empty() && overlaps(&graph, &plan.segments);
    let pipeline = Pipeline {
        order: pipeline::order(&parts.segments),
        batches: (0..=plan.segments.len()).map(|_| Batch::reserved(&limits)).collect(),
        lanes: Lanes::new(backends.len(), began),
        trace: trace(settings, &plan, began),
        clock: clock.clone(),
        spent: Spent::of(backends.len()),
        overlap: divides && settings.overlap != Overlap::Off,
        results: vec![0.0; limits.outputs * width],
        reading: logits,
        backends,
        segments: parts.segments,
        carried: parts.carried,
        given,
        experts,
        given_hidden: Hidden::new(&graph, graph.given, &limits),
        hidden: Hidden::new(&graph, graph.hidden, &limits),
        filled: 0,
    };
    let waves = Waves::new(&limits, logits, clock.now());
    Ok(Session {
        model: model.clone(),
        purpose: settings.purpose,
        cache: pages(settings, &limits, model),
        strengths: Strengths::new(model),
        starts: Vec::with_capacity(limits.sequences),
        copies: Vec::with_capacity(2 * limits.sequences),
        are_copies_held: false,
        overlap: if divides { settings.overlap } else { Overlap::Off },
        overlap_wanted: settings.overlap,
        divides,
        prefill: Prefill::default(),
        graph,
        plan,
        pipeline,
        stream: parts.stream,
        logits,
        read,
        limits,
        host: settings.cpu_options(),
        warnings,
        moves: 0,
        timing: None,
        decoding: Decoding::default(),
        lost: None,
        waves,
    })
}

/// Compiles a plan. If a step is too large for a device, steps get smaller; if a device runs out of memory or is lost, less is
/// placed on it.
fn equipped(
    model: &Model,
    graph: &Graph,
    backends: &mut Vec<Box<dyn Backend>>,
    (plan, read): (&mut Plan, &Read),
    (settings, warnings): (&mut Settings<'_>, &mut Vec<Warning>),
) -> Result<Parts, Error> {
    let mut refused = Vec::new();
    loop {
        let limits = limits_of(settings, model);
        let progress = &mut |progress| settings.tell(progress);
        let change = Change { model, graph, from: None, to: plan, watched: &read.watched };
        let (device, error) = match equip(&change, backends, limits, progress) {
            Ok(parts) => return Ok(parts),
            Err(Failed::Device { device, error })
                if is_recoverable(backends[device].as_ref(), &error) =>
            {
                (device, error)
            }
            Err(failed) => return Err(failed.into()),
        };
        if let bilayer_graph::Error::StepTooLarge { most, .. } = error {
            settings.ubatch_size = settings.ubatch_size.min(most);
            // An encoder may need more for a whole text.
            if limits_of(settings, model).tokens < limits.tokens {
                warnings.push(Warning::SmallerSteps { error });
                continue;
            }
        }
        if let Some(streaming) = reduced::unstreamed(plan, device, &error) {
            warnings.push(streaming);
            continue;
        }
        if let Some(whole) = reduced::uncached(plan, device, |placement| {
            let machine = reduced::machine(backends, plan, 0);
            place_mapped(graph, &machine, &Budget::of(&limits), placement)
        }) {
            *plan = whole?;
            read.add(graph, plan);
            warnings.push(Warning::NotCached { error });
            continue;
        }
        refused.push(device);
        let home = reduced::host(backends, settings.cpu_options())?;
        // The host is the first device. Where one could not be opened, the lists differ.
        let free = placement::gpu_bytes(&settings.placing);
        let gpu = device.checked_sub(1).filter(|_| free.len() + 1 == backends.len());
        let free = gpu.and_then(|gpu| free.get(gpu).copied());
        let held = backends[device].held_bytes();
        let available_bytes = held.zip(free).map(|(held, free)| held.saturating_add(free));
        let refusal =
            Refusal { device, host: home, refused: &refused, available_bytes, error: &error };
        let less = reduced::reduced(plan, &refusal, |placement, loss| {
            let machine = reduced::machine(backends, plan, home);
            displaced(graph, &machine, &Budget::of(&limits), placement, loss)
        });
        let mut less = less?.ok_or_else(|| error.clone())?;
        read.add(graph, &mut less);
        let from = std::mem::replace(plan, less).map;
        warnings.push(Warning::Reduced { error, from, to: plan.map.clone() });
    }
}

/// What the settings read besides logits, added to graph and plan.
fn read(
    settings: &mut Settings<'_>,
    graph: &mut Graph,
    plan: &mut Plan,
    backends: &[Box<dyn Backend>],
) -> Read {
    let best = settings.top_k.and_then(|k| best(graph, plan, k, backends));
    let watched = std::mem::take(&mut settings.watched);
    let read = Read { best, watched, hidden: graph.hidden };
    if !read.watched.is_empty() || graph.hidden.is_some() {
        plan.without_streaming();
    }
    read.add(graph, plan);
    read
}

/// The clock of a session on these devices.
pub fn clock(backends: &[Box<dyn Backend>]) -> Clock {
    backends.first().map_or_else(Clock::system, |backend| backend.clock())
}

/// The trace requested by the settings.
fn trace(settings: &Settings<'_>, plan: &Plan, epoch: Instant) -> Option<Trace> {
    let labels: Vec<String> = plan.devices.iter().map(|device| device.label.clone()).collect();
    settings.trace_events.map(|events| Trace::new(epoch, events, &labels))
}

/// The search for the best tokens of each requested row.
#[derive(Clone, Copy)]
pub struct Best {
    /// `[R, 2k]`.
    pub value: Value,
    /// The most that a step can ask for.
    pub k: usize,
}

/// Adds the search to the graph and to the end of the plan, if the head's device supports it: elsewhere, all logits
/// would be transferred. Its `[R, 2k]` of memory are not budgeted.
fn best(
    graph: &mut Graph,
    plan: &mut Plan,
    k: usize,
    backends: &[Box<dyn Backend>],
) -> Option<Best> {
    let k = k.min(graph.width(graph.logits));
    let last = plan.segments.last_mut()?;
    if k == 0 || !backends[last.device].facts().ops.contains(&OpKind::TopK) {
        return None;
    }
    let value = graph.top_k(k);
    last.nodes.end = graph.nodes.len();
    let streamed = plan.streaming.iter_mut().flat_map(Streaming::paths_mut);
    let streamed = streamed.filter_map(|stages| stages.last_mut());
    streamed.for_each(|stage| stage.segment.nodes.end = graph.nodes.len());
    Some(Best { value, k })
}

/// The values read from a step besides logits and transfers.
#[derive(Clone, Default)]
pub struct Read {
    /// The best tokens.
    pub best: Option<Best>,
    /// Stored values.
    pub watched: Vec<Value>,
    /// Hidden states for another graph.
    pub hidden: Option<Value>,
}

impl Read {
    /// Adds them to a plan of the graph.
    pub fn add(&self, graph: &Graph, plan: &mut Plan) {
        let watched = self.watched.iter().copied();
        let others = self.best.map(|best| best.value).into_iter().chain(self.hidden);
        for value in watched.chain(others) {
            let streamed = plan.streaming.iter_mut().flat_map(Streaming::paths_mut);
            let streamed = streamed.flatten().map(|stage| &mut stage.segment);
            for segment in plan.segments.iter_mut().chain(streamed) {
                let mut made = graph.nodes[segment.nodes.clone()].iter().map(|n| n.op.out());
                if made.any(|out| out == value)
                    && let Err(place) = segment.outputs.binary_search(&value)
                {
                    segment.outputs.insert(place, value);
                }
            }
        }
    }
}

/// A plan's state on its devices.
pub struct Parts {
    pub segments: Vec<Compiled>,
    pub carried: Vec<Carried>,
    pub stream: Option<Stream>,
}

/// Loads a plan's weights and compiles its segments.
pub fn equip(
    change: &Change<'_>,
    backends: &mut [Box<dyn Backend>],
    limits: Limits,
    progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Parts, Failed> {
    let Change { graph, to: plan, watched, .. } = *change;
    load::reserve(change, backends)?;
    for planned in &plan.segments {
        let device = planned.device;
        let ready = backends[device].ready(&planned.segment(graph), limits);
        ready.map_err(Failed::on(device))?;
    }
    load::weights(change, backends, progress)?;
    let carried = pipeline::carried(graph, plan, &limits, watched);
    let segments = pipeline::compile(graph, plan, backends, &carried, limits)?;
    let stream = stream::compile(graph, plan, backends, &segments, limits)?;
    Ok(Parts { segments, carried, stream })
}
