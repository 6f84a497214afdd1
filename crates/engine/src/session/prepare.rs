//! From a model and settings to a session: plan, devices, weights, compiled segments, buffers.

use std::collections::BTreeSet;
use std::time::Instant;

use bilayer_cpu::Cpu;
use bilayer_graph::{Backend, Graph, Limits, PAGE_TOKENS, Rows, Segment, Value};
use bilayer_scheduler::{Budget, Machine, Plan, plan};

use super::{Batch, Carried, Compiled, Session, Settings, Spent, load};
use crate::cache::Pages;
use crate::{Error, Model};

/// Prepares a session on the processor alone.
pub fn session(model: &Model, mut settings: Settings<'_>) -> Result<Session, Error> {
    let began = Instant::now();
    let (threads, level) = (settings.threads, settings.cpu_level);
    let cpu = Cpu::new(bilayer_cpu::Options { threads, level })?;
    let backends: Vec<Box<dyn Backend>> = vec![Box::new(cpu)];
    on(model, backends, &plan, &mut settings, began)
}

/// How a session's plan is made.
pub type Planner<'p> =
    dyn Fn(&Graph, &Machine, &Budget) -> Result<Plan, bilayer_scheduler::Error> + 'p;

/// Prepares a session on devices that are already there.
pub fn on(
    model: &Model,
    mut backends: Vec<Box<dyn Backend>>,
    planner: &Planner<'_>,
    settings: &mut Settings<'_>,
    began: Instant,
) -> Result<Session, Error> {
    let graph = model.graph().clone();
    let limits = limits(settings, model);
    let machine = Machine { devices: backends.iter().map(|b| b.facts().clone()).collect() };
    let plan = planner(&graph, &machine, &budget(&limits))?;
    load::weights(model, &graph, &plan, &mut backends, settings)?;
    let carried = carried(&graph, &plan, limits);
    let segments = compile(&graph, &plan, &mut backends, &carried, limits)?;
    let vocab = graph.width(graph.logits);
    let context = settings.context(model.config().context);
    Ok(Session {
        cache: Pages::new(limits.pages, limits.sequences, context),
        batch: reserved(limits),
        logits: vec![0.0; limits.outputs * vocab],
        spent: Spent::default(),
        load: began.elapsed(),
        graph,
        plan,
        backends,
        segments,
        carried,
        limits,
        vocab,
    })
}

/// The bounds of every step, from the settings.
fn limits(settings: &Settings<'_>, model: &Model) -> Limits {
    let context = settings.context(model.config().context);
    let pages = context.div_ceil(PAGE_TOKENS) * settings.sequences;
    Limits {
        tokens: settings.ubatch_size.min(context * settings.sequences),
        outputs: settings.outputs.unwrap_or(settings.sequences),
        sequences: settings.sequences,
        pages,
        page_entries: pages,
        key_type: settings.cache_type_k,
        value_type: settings.cache_type_v,
        fuse: settings.fuse,
        timings: settings.timings,
        check: false,
    }
}

/// What the plan must count besides the weights.
fn budget(limits: &Limits) -> Budget {
    Budget {
        context: limits.pages * PAGE_TOKENS,
        tokens: limits.tokens,
        outputs: limits.outputs,
        key_type: limits.key_type,
        value_type: limits.value_type,
        margin_bytes: 0,
    }
}

/// A buffer for each value that crosses from one segment to another.
fn carried(graph: &Graph, plan: &Plan, limits: Limits) -> Vec<Carried> {
    let values: BTreeSet<Value> =
        plan.segments.iter().flat_map(|segment| segment.inputs.iter().copied()).collect();
    let carry = |value| {
        let (rows, width) = (graph.rows(value), graph.width(value));
        let most = match rows {
            Rows::Tokens => limits.tokens,
            Rows::Outputs => limits.outputs,
        };
        Carried { value, rows, width, data: vec![0.0; most * width] }
    };
    values.into_iter().map(carry).collect()
}

/// Compiles every segment of the plan.
pub fn compile(
    graph: &Graph,
    plan: &Plan,
    backends: &mut [Box<dyn Backend>],
    carried: &[Carried],
    limits: Limits,
) -> Result<Vec<Compiled>, Error> {
    let place = |value: &Value| carried.iter().position(|c| c.value == *value);
    let mut compiled = Vec::with_capacity(plan.segments.len());
    for planned in &plan.segments {
        let segment = Segment {
            graph,
            nodes: planned.nodes.clone(),
            inputs: planned.inputs.clone(),
            outputs: planned.outputs.clone(),
        };
        compiled.push(Compiled {
            device: planned.device,
            id: backends[planned.device].compile(&segment, limits)?,
            inputs: planned.inputs.iter().filter_map(place).collect(),
            outputs: planned.outputs.iter().filter_map(place).collect(),
        });
    }
    Ok(compiled)
}

fn reserved(limits: Limits) -> Batch {
    Batch {
        tokens: Vec::with_capacity(limits.tokens),
        spans: Vec::with_capacity(limits.sequences),
        pages: Vec::with_capacity(limits.page_entries),
        outputs: Vec::with_capacity(limits.outputs),
        copies: Vec::with_capacity(2 * limits.sequences),
    }
}
