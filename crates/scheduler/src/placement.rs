//! The placement of a model's parts: the embedding, each layer, the head.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use bilayer_graph::Graph;

/// A device index per part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The embedding.
    pub embedding: usize,
    /// Each layer.
    pub layers: Vec<usize>,
    /// The output head.
    pub output: usize,
    /// Nodes placed on another device than their part.
    pub exceptions: BTreeMap<usize, usize>,
}

impl Placement {
    /// A whole model of `layers` layers on one device.
    pub fn single(layers: u32, device: usize) -> Self {
        Placement {
            embedding: device,
            layers: vec![device; layers as usize],
            output: device,
            exceptions: BTreeMap::new(),
        }
    }

    /// `count` parts on `device` and the rest on `host`: the output head first, then the last layers, as `-ngl`
    /// specifies. `layers + 1` and more means everything; the embedding stays on the host, which only looks up a few
    /// of its rows.
    pub fn offload(layers: u32, count: u32, host: usize, device: usize) -> Self {
        Placement::split(layers, host, &[(device, count.min(layers + 1))])
    }

    /// As [`Placement::offload`], with the offloaded parts split over devices: the first gets the first of these layers,
    /// the last one the last layers and the head. `split` has at most `layers + 1` parts in all.
    pub fn split(layers: u32, host: usize, split: &[(usize, u32)]) -> Self {
        let mut placement = Placement::single(layers, host);
        let count: u32 = split.iter().map(|(_, count)| count).sum();
        assert!(count <= layers + 1, "no more parts than there are");
        let mut next = layers + 1 - count;
        for &(device, count) in split {
            let end = next + count;
            placement.layers[next.min(layers) as usize..end.min(layers) as usize].fill(device);
            if count > 0 && end > layers {
                placement.output = device;
            }
            next = end;
        }
        placement
    }

    /// Parts on a device: layers, and the head.
    pub(crate) fn parts(&self, device: usize) -> u32 {
        let layers = self.layers.iter().filter(|&&of| of == device).count();
        layers as u32 + u32::from(self.output == device)
    }

    /// The device of each node of `graph`.
    pub(crate) fn devices(&self, graph: &Graph) -> Vec<usize> {
        assert_eq!(self.layers.len(), graph.layers() as usize, "a device for each layer");
        let first_layer = graph.nodes.iter().position(|node| node.layer.is_some()).unwrap_or(0);
        let device = |(i, layer): (usize, Option<u32>)| match layer {
            Some(layer) => self.layers[layer as usize],
            None if i < first_layer => self.embedding,
            None => self.output,
        };
        let usual = graph.nodes.iter().map(|node| node.layer).enumerate();
        usual
            .map(|(i, layer)| {
                self.exceptions.get(&i).copied().unwrap_or_else(|| device((i, layer)))
            })
            .collect()
    }

    /// The map, listing all devices of parts that exceptions split: `3:gpu+cpu`.
    pub(crate) fn map_of(&self, graph: &Graph, labels: &[String]) -> String {
        if self.exceptions.is_empty() {
            return self.map(labels);
        }
        let devices = self.devices(graph);
        let name = |main: usize, nodes: &[usize]| {
            let others: BTreeSet<usize> =
                nodes.iter().map(|&n| devices[n]).filter(|&device| device != main).collect();
            others.iter().fold(labels[main].clone(), |name, &other| name + "+" + &labels[other])
        };
        let first_layer = graph.nodes.iter().position(|node| node.layer.is_some()).unwrap_or(0);
        let head = (first_layer..devices.len()).filter(|&n| graph.nodes[n].layer.is_none());
        let mut parts = vec![("out".to_owned(), name(self.output, &head.collect::<Vec<_>>()))];
        for (layer, nodes) in graph.layer_nodes().iter().enumerate().rev() {
            parts.push((layer.to_string(), name(self.layers[layer], nodes)));
        }
        let runs = parts.chunk_by(|a, b| a.0 != "out" && a.1 == b.1);
        let run = |run: &[(String, String)]| match run {
            [one] => format!("{}:{}", one.0, one.1),
            many => format!("{}-{}:{}", many[0].0, many[many.len() - 1].0, many[0].1),
        };
        runs.map(run).collect::<Vec<_>>().join(" ")
    }

    /// The parts from last to first, with equal neighbours merged: `out:gpu 31-12:gpu 11-0:cpu`.
    pub fn map(&self, labels: &[String]) -> String {
        let mut map = format!("out:{}", labels[self.output]);
        let mut end = self.layers.len();
        while end > 0 {
            let device = self.layers[end - 1];
            let run = self.layers[..end].iter().rev().take_while(|&&d| d == device).count();
            let (first, last) = (end - run, end - 1);
            let range = if run == 1 { format!("{last}") } else { format!("{last}-{first}") };
            write!(map, " {range}:{}", labels[device]).expect("a string takes everything");
            end = first;
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Placement;

    #[test]
    fn offloading_takes_the_head_first_and_then_the_last_layers() {
        let labels = ["cpu".to_owned(), "gpu".to_owned()];
        let cases = [
            (0, "out:cpu 3-0:cpu"),
            (1, "out:gpu 3-0:cpu"),
            (2, "out:gpu 3:gpu 2-0:cpu"),
            (4, "out:gpu 3-1:gpu 0:cpu"),
            (5, "out:gpu 3-0:gpu"),
            (99, "out:gpu 3-0:gpu"),
        ];
        for (count, map) in cases {
            let placement = Placement::offload(4, count, 0, 1);
            assert_eq!(placement.map(&labels), map, "-ngl {count}");
            assert_eq!(placement.embedding, 0);
        }
    }

    #[test]
    fn a_split_goes_from_the_first_layers_to_the_head() {
        let labels = ["cpu", "gpu0", "gpu1", "gpu2"].map(str::to_owned);
        let cases = [
            ([0, 0, 0], "out:cpu 3-0:cpu"),
            ([1, 0, 0], "out:gpu0 3-0:cpu"),
            ([2, 1, 0], "out:gpu1 3-2:gpu0 1-0:cpu"),
            ([0, 2, 2], "out:gpu2 3:gpu2 2-1:gpu1 0:cpu"),
            ([3, 1, 1], "out:gpu2 3:gpu1 2-0:gpu0"),
        ];
        for (counts, map) in cases {
            let split: Vec<_> = (1..).zip(counts).collect();
            let placement = Placement::split(4, 0, &split);
            assert_eq!(placement.map(&labels), map, "{counts:?}");
            assert_eq!([1, 2, 3].map(|device| placement.parts(device)), counts);
        }
    }

    #[test]
    fn a_map_follows_every_change_of_device() {
        let labels = ["cpu".to_owned(), "gpu".to_owned()];
        let exceptions = BTreeMap::new();
        let placement = Placement { embedding: 0, layers: vec![1, 0, 0, 1], output: 0, exceptions };
        assert_eq!(placement.map(&labels), "out:cpu 3:gpu 2-1:cpu 0:gpu");
    }
}
