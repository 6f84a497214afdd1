//! How the heads of a cache are divided among NUMA nodes, and the chunks of attention with them.
//!
//! A node's heads are consecutive, and so is their memory. The threads that write and read a head are those of its node, so
//! the system takes its pages from that node when keys are first written to them.

use std::ops::Range;

use crate::numa::Nodes;

/// The heads of a cache, by node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Heads {
    /// The end of each node's heads; one if they are not divided.
    ends: Vec<usize>,
}

impl Heads {
    /// Heads that belong to no node.
    pub(crate) fn shared(count: usize) -> Heads {
        Heads { ends: vec![count] }
    }

    /// Heads in proportion to the threads of nodes; shared if there are fewer heads than nodes, where some nodes would have
    /// nothing of their own to do.
    pub(crate) fn divided(count: usize, nodes: &Nodes) -> Heads {
        match count < nodes.count() {
            true => Heads::shared(count),
            false => {
                Heads { ends: (0..nodes.count()).map(|node| nodes.end(count, node)).collect() }
            }
        }
    }

    /// Number of heads.
    fn count(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The heads of a part.
    fn part(&self, part: usize) -> Range<usize> {
        part.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[part]
    }

    /// The part that has a head.
    fn part_of(&self, head: usize) -> usize {
        self.ends.partition_point(|&end| end <= head)
    }

    /// The heads of a head's part, whose memory follows that of the parts before it.
    pub(crate) fn beside(&self, head: usize) -> Range<usize> {
        self.part(self.part_of(head))
    }

    /// Number of chunks of attention, one per head and item.
    pub(crate) fn chunks(&self, items: usize) -> usize {
        items * self.count()
    }

    /// The end of a node's chunks of attention.
    pub(crate) fn end(&self, items: usize, nodes: &Nodes, node: usize) -> usize {
        match self.ends.len() == nodes.count() {
            true => items * self.ends[node],
            false => nodes.end(self.chunks(items), node),
        }
    }

    /// The item and the head of a chunk.
    pub(crate) fn chunk(&self, items: usize, chunk: usize) -> (usize, usize) {
        let heads = self.beside(chunk / items);
        let within = chunk - items * heads.start;
        (within / heads.len(), heads.start + within % heads.len())
    }

    /// Asserts that the chunk that this thread runs belongs to the node with a head.
    #[cfg(debug_assertions)]
    pub(crate) fn check(&self, head: usize) {
        if self.ends.len() > 1 {
            crate::memory::claims::reads_from(self.part_of(head));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Heads;
    use crate::host::Topology;
    use crate::numa::{Nodes, Numa};

    #[test]
    fn each_chunk_is_one_item_and_head_of_its_node() {
        let described = [(8, 2, 2), (8, 2, 3), (3, 2, 4), (2, 3, 3), (1, 2, 2), (5, 4, 7)];
        for (heads, nodes, threads) in described {
            let nodes = Nodes::new(Numa::Simulate(nodes), &Topology::default(), threads);
            let of = Heads::divided(heads, &nodes);
            for items in [1, 2, 5] {
                let chunks = 0..of.chunks(items);
                let mut places: Vec<_> = chunks.map(|chunk| of.chunk(items, chunk)).collect();
                let mut start = 0;
                for node in 0..nodes.count() {
                    let end = of.end(items, &nodes, node);
                    let is_shared = heads < nodes.count();
                    let own = |&(_, head): &(usize, usize)| is_shared || of.part_of(head) == node;
                    assert!(places[start..end].iter().all(own), "{of:?} {items} {node}");
                    start = end;
                }
                assert_eq!(start, places.len());
                places.sort_unstable();
                let all = (0..items).flat_map(|item| (0..heads).map(move |head| (item, head)));
                assert!(places.into_iter().eq(all), "{of:?} {items}");
            }
        }
    }

    #[test]
    fn heads_are_divided_in_proportion_to_threads() {
        let nodes =
            |count, threads| Nodes::new(Numa::Simulate(count), &Topology::default(), threads);
        assert_eq!(Heads::divided(8, &nodes(2, 4)).ends, [4, 8]);
        assert_eq!(Heads::divided(8, &nodes(2, 3)).ends, [5, 8]);
        assert_eq!(Heads::divided(1, &nodes(2, 4)), Heads::shared(1));
        assert_eq!(Heads::divided(8, &Nodes::one(4)), Heads::shared(8));
    }
}
