//! From what the user asks for to a plan: with experts in device memory, or without.

use bilayer_graph::Graph;

use crate::counts::layered;
use crate::{Budget, Error, Machine, Plan, Request, residents};

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
        true => residents::cached(graph, machine, budget, request),
        false => layered(graph, machine, budget, request),
    }
}
