//! Where the parts of a model go: the embedding, each layer, the head.

use std::fmt::Write;

use bilayer_graph::Graph;

/// A device index for every part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// What comes before the layers.
    pub embedding: usize,
    /// Each layer.
    pub layers: Vec<usize>,
    /// What comes after the layers.
    pub output: usize,
}

impl Placement {
    /// All of a model of `layers` layers on one device.
    pub fn single(layers: u32, device: usize) -> Self {
        Placement { embedding: device, layers: vec![device; layers as usize], output: device }
    }

    /// `count` parts on `device` and the rest on `host`: the output head first, then the last layers, as
    /// `-ngl` means it. `layers + 1` and more is everything; the embedding stays with the host, which looks up
    /// a few rows of it and would gain nothing by moving it.
    pub fn offload(layers: u32, count: u32, host: usize, device: usize) -> Self {
        let mut placement = Placement::single(layers, host);
        if count > 0 {
            placement.output = device;
            let first = layers.saturating_sub(count - 1) as usize;
            placement.layers[first..].fill(device);
        }
        placement
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
        graph.nodes.iter().map(|node| node.layer).enumerate().map(device).collect()
    }

    /// The parts from last to first, equal neighbours as one: `out:gpu 31-12:gpu 11-0:cpu`.
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
    fn a_map_follows_every_change_of_device() {
        let labels = ["cpu".to_owned(), "gpu".to_owned()];
        let placement = Placement { embedding: 0, layers: vec![1, 0, 0, 1], output: 0 };
        assert_eq!(placement.map(&labels), "out:cpu 3:gpu 2-1:cpu 0:gpu");
    }
}
