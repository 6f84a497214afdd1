//! Cuts a placed graph into segments: consecutive nodes on one device, and the values that cross between them.

use std::ops::Range;

use bilayer_graph::{Graph, Segment, Value};
use serde::{Serialize, Serializer};

use crate::Placement;

/// Consecutive nodes on one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedSegment {
    /// Index of the device in the machine.
    pub device: usize,
    /// The graph nodes it runs.
    pub nodes: Range<usize>,
    /// Values that it reads and does not compute: those of earlier segments, and given ones; ascending.
    #[serde(serialize_with = "numbers")]
    pub inputs: Vec<Value>,
    /// Values that later segments read, and the logits; ascending.
    #[serde(serialize_with = "numbers")]
    pub outputs: Vec<Value>,
}

impl PlannedSegment {
    /// The segment for a backend to compile.
    pub fn segment<'g>(&self, graph: &'g Graph) -> Segment<'g> {
        let (inputs, outputs) = (self.inputs.clone(), self.outputs.clone());
        Segment { graph, nodes: self.nodes.clone(), inputs, outputs }
    }
}

/// The segments of `graph` under a placement, in execution order. Values that return to a device also pass through
/// the host: a segment's inputs are all values that it did not compute itself. Parts of split mixtures are segments of
/// their own.
pub fn cut(graph: &Graph, placement: &Placement) -> Vec<PlannedSegment> {
    let devices = placement.devices(graph).into_iter().enumerate();
    let places = devices.map(|(node, device)| (device, graph.part_of(node)));
    cut_apart(graph, &places.collect::<Vec<_>>())
}

/// The segments of `graph` with nodes on given devices, also cut wherever the second figure differs.
pub(crate) fn cut_apart<F: PartialEq>(graph: &Graph, places: &[(usize, F)]) -> Vec<PlannedSegment> {
    let mut segments: Vec<PlannedSegment> = Vec::new();
    for (node, (device, _)) in places.iter().enumerate() {
        match segments.last_mut() {
            Some(last) if places[last.nodes.start] == places[node] => last.nodes.end = node + 1,
            _ => {
                let (inputs, outputs) = (Vec::new(), Vec::new());
                let (device, nodes) = (*device, node..node + 1);
                segments.push(PlannedSegment { device, nodes, inputs, outputs });
            }
        }
    }

    // The segment that computes each value; none for a given one.
    let mut maker = vec![None; graph.values.len()];
    for (number, segment) in segments.iter().enumerate() {
        for node in &graph.nodes[segment.nodes.clone()] {
            maker[node.op.out().0 as usize] = Some(number);
        }
    }
    for number in 0..segments.len() {
        for node in &graph.nodes[segments[number].nodes.clone()] {
            for value in node.op.inputs() {
                let made_in = maker[value.0 as usize];
                if made_in == Some(number) {
                    continue;
                }
                insert(&mut segments[number].inputs, value);
                // The host makes the routes of a mixture's parts of the router's result.
                let routed = graph.routed_by(value);
                if let Some((router, route)) =
                    routed.and_then(|of| Some((maker[of.0 as usize]?, of)))
                {
                    insert(&mut segments[router].outputs, route);
                }
                if let Some(made_in) = made_in {
                    insert(&mut segments[made_in].outputs, value);
                }
            }
        }
    }
    if let Some(last) = maker[graph.logits.0 as usize] {
        insert(&mut segments[last].outputs, graph.logits);
    }
    segments
}

/// Inserts `value` in order unless present.
fn insert(values: &mut Vec<Value>, value: Value) {
    if let Err(place) = values.binary_search(&value) {
        values.insert(place, value);
    }
}

fn numbers<S: Serializer>(values: &[Value], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| value.0))
}
