//! The plan to try after a device failed: without what is streamed to it or resident there, or with fewer of its layers; the
//! devices and the host that it is made for.
//!
//! A device that runs out of memory while the session is prepared keeps the share of its layers that its memory is of the
//! memory planned, or half of them if the memory is not known to be less, and so on, then none; a lost device keeps none.

use bilayer_graph::Backend;
use bilayer_scheduler::{Loss, Machine, Placement, Plan};

use super::warning::Warning;
use crate::placing::Placing;
use crate::{Error, devices};

/// The index of the host.
const HOST: usize = 0;

/// Takes streaming out of a plan whose device has failed; returns the warning. `None` if nothing is streamed there.
pub fn unstreamed(plan: &mut Plan, device: usize, error: &bilayer_graph::Error) -> Option<Warning> {
    let streams_there = plan.streaming.as_ref().is_some_and(|of| of.device == device);
    streams_there.then(|| {
        plan.without_streaming();
        Warning::NotStreamed { error: error.clone() }
    })
}

/// The plan with the residents' ops on the host, where they find none, if a device with residents has failed. `None` if it
/// has none.
pub fn uncached(
    plan: &Plan,
    device: usize,
    make: impl FnOnce(&Placement) -> Result<Plan, bilayer_scheduler::Error>,
) -> Option<Result<Plan, bilayer_scheduler::Error>> {
    let experts = plan.experts.as_ref().filter(|of| of.device == device)?;
    let mut placement = plan.placement.clone();
    for node in experts.nodes.iter().flat_map(Clone::clone) {
        placement.exceptions.insert(node, HOST);
    }
    Some(make(&placement))
}

/// The index of the fallback device, which cannot be lost; a CPU backend is added if there is none.
pub fn host(
    backends: &mut Vec<Box<dyn Backend>>,
    options: bilayer_cpu::Options,
) -> Result<usize, Error> {
    let known = backends.iter().position(|backend| !backend.facts().can_be_lost);
    if let Some(place) = known {
        return Ok(place);
    }
    backends.push(devices::host(&Placing::cpu(), options)?);
    Ok(backends.len() - 1)
}

/// The machine on which parts of a plan are placed again: devices other than the host have the memory budgeted in the
/// plan.
pub fn machine(backends: &[Box<dyn Backend>], plan: &Plan, host: usize) -> Machine {
    let mut machine = devices::machine(backends);
    let planned = machine.devices.iter_mut().zip(&plan.devices).enumerate();
    for (_, (facts, planned)) in planned.filter(|(place, _)| *place != host) {
        facts.memory_bytes = planned.budget_bytes;
    }
    machine
}

/// A device that failed while a plan was prepared.
#[derive(Clone, Copy)]
pub struct Refusal<'a> {
    /// The device.
    pub device: usize,
    /// The device that takes what does not fit on the others.
    pub host: usize,
    /// All devices that have failed so far.
    pub refused: &'a [usize],
    /// Bytes of its memory that it holds or that are free, if its driver tells.
    pub available_bytes: Option<u64>,
    /// Its error.
    pub error: &'a bilayer_graph::Error,
}

/// The plan to try after a device failed with the plan `tried`: the device keeps some of the last of its layers ([`kept`]),
/// and nothing if it was lost; `make` places the rest. `None` if the device had nothing.
pub fn reduced(
    tried: &Plan,
    failed: &Refusal<'_>,
    make: impl FnOnce(&Placement, &Loss<'_>) -> Result<Plan, bilayer_scheduler::Error>,
) -> Result<Option<Plan>, Error> {
    let placement = &tried.placement;
    let Refusal { device, host, refused, available_bytes, error } = *failed;
    let layers = placement.layers.iter().filter(|&&of| of == device).count();
    let others = [placement.embedding, placement.output];
    let mut others = others.iter().chain(placement.exceptions.values());
    if layers == 0 && !others.any(|&of| of == device) {
        return Ok(None);
    }
    let is_lost = matches!(error, bilayer_graph::Error::DeviceLost { .. });
    let used_bytes = tried.devices[device].used_bytes;
    let keeps = if is_lost { 0 } else { kept(layers, used_bytes, available_bytes) };
    Ok(Some(make(placement, &Loss { device, keeps, host, closed: refused })?))
}

/// How many of its layers a device keeps that had no memory for what was planned: as many as fit in what it has, or half if that
/// is not known to be less.
fn kept(layers: usize, used_bytes: u64, available_bytes: Option<u64>) -> usize {
    match available_bytes {
        Some(available) if available < used_bytes => {
            let fit = layers as u128 * u128::from(available) / u128::from(used_bytes);
            (fit as usize).min(layers.saturating_sub(1))
        }
        _ => layers / 2,
    }
}

#[cfg(test)]
mod tests {
    use super::kept;

    #[test]
    fn layers_are_kept_as_far_as_there_is_memory() {
        let gib = |gib: u64| gib << 30;
        for (available, expected) in [(9, 28), (5, 16), (1, 3), (0, 0), (10, 16), (12, 16)] {
            assert_eq!(kept(32, gib(10), Some(gib(available))), expected, "{available} GiB");
        }
        assert_eq!(kept(32, gib(10), None), 16);
        assert_eq!(kept(1, 10, Some(9)), 0, "fewer each time");
        assert_eq!((kept(1, 10, None), kept(0, 10, Some(9)), kept(0, 0, Some(0))), (0, 0, 0));
    }
}
