//! Where parts of a placed model go when their device refuses them or is lost.

use bilayer_graph::Graph;

use crate::{Budget, Error, Machine, Placement, Plan, place_mapped};

/// A device that must give up parts.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// The device.
    pub device: usize,
    /// How many of its last layers it keeps; with none it loses the head and everything else too.
    pub keeps: usize,
    /// Who takes what no other device has room for.
    pub host: usize,
    /// Devices that take nothing.
    pub closed: &'a [usize],
}

/// The plan of a placement after a loss: the other devices take as many of the lost parts as fit, the head and the last
/// layers first, and the host takes the rest. Weights that the host reads in the file's map may exceed its memory, as in [`offload`].
///
/// # Errors
/// The host cannot run the rest, or has no room.
///
/// [`offload`]: crate::offload()
pub fn displaced(
    graph: &Graph,
    machine: &Machine,
    budget: &Budget,
    placement: &Placement,
    loss: &Loss<'_>,
) -> Result<Plan, Error> {
    let Loss { device, keeps, host, closed } = *loss;
    let mut placement = placement.clone();
    let head = placement.layers.len();
    let mut lost: Vec<usize> = (0..head).rev().filter(|&l| placement.layers[l] == device).collect();
    lost.drain(..keeps.min(lost.len()));
    if keeps == 0 {
        if placement.output == device {
            lost.insert(0, head);
        }
        let exceptions = placement.exceptions.values_mut();
        exceptions.chain([&mut placement.embedding]).for_each(|of| {
            if *of == device {
                *of = host;
            }
        });
    }
    move_to(&mut placement, &lost, host);
    let takers = (0..machine.devices.len())
        .filter(|other| ![device, host].contains(other) && !closed.contains(other));
    let mut rest = &lost[..];
    for taker in takers {
        let fits = |&count: &usize| {
            let mut tried = placement.clone();
            move_to(&mut tried, &rest[..count], taker);
            place_mapped(graph, machine, budget, &tried).is_ok()
        };
        let most = (1..=rest.len()).rev().find(fits).unwrap_or(0);
        move_to(&mut placement, &rest[..most], taker);
        rest = &rest[most..];
    }
    place_mapped(graph, machine, budget, &placement)
}

/// Places parts, layers or the head after them, on a device.
fn move_to(placement: &mut Placement, parts: &[usize], device: usize) {
    for &part in parts {
        match placement.layers.get_mut(part) {
            Some(layer) => *layer = device,
            None => placement.output = device,
        }
    }
}
