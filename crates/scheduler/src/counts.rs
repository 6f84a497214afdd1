//! How many parts are offloaded: so many, the most that fit, or as many as give the shortest answer.

use bilayer_graph::Graph;

use crate::machine::HOST;
use crate::plan::{Strictness, placed};
use crate::request::Work;
use crate::split::Splitter;
use crate::{Budget, Error, Machine, Offload, Placement, Plan, Predicted, Request};

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
