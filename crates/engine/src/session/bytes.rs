//! Bytes of weights that a step reads: the bound of decode speed when memory-bound.

use bilayer_graph::{Facts, Graph, Op, Weight};
use bilayer_scheduler::Plan;

use super::Session;

impl Session {
    /// Whether a step multiplies matrices on the host.
    pub fn computes_on_host(&self) -> bool {
        self.pipeline.segments.iter().any(|segment| segment.is_longest)
    }
}

/// Bytes of weights that a step of `tokens` tokens reads on each of a plan's devices, as stored by the device.
/// Matrices and vectors are read completely, an embedding table one row per token, experts as used
/// ([`Graph::share`]); what two ops read counts twice.
pub fn step_bytes(graph: &Graph, plan: &Plan, devices: &[&Facts], tokens: usize) -> Vec<u64> {
    let mut bytes = vec![0; devices.len()];
    for segment in &plan.segments {
        let facts = devices[segment.device];
        let nodes = segment.nodes.clone();
        bytes[segment.device] +=
            nodes.map(|node| node_bytes(graph, facts, node, tokens)).sum::<u64>();
    }
    bytes
}

/// Bytes of weights that one node reads in such a step, as stored by its device.
pub fn node_bytes(graph: &Graph, facts: &Facts, node: usize, tokens: usize) -> u64 {
    let op = &graph.nodes[node].op;
    let rows = |weight: &Weight| match op {
        Op::Embed { .. } => tokens as u64,
        _ => weight.rows as u64,
    };
    let weights = op.weights().map(|id| graph.weight(id));
    let all: u64 = weights.map(|w| rows(w) * facts.row_bytes(w)).sum();
    (all as f64 * graph.share(node, tokens)) as u64
}

#[cfg(test)]
mod tests {
    use bilayer_graph::{Backend, Catalog, Entry, Facts, Graph, Recorder, reference::Reference};
    use bilayer_quant::Type;
    use bilayer_scheduler::{Budget, Machine, plan};

    use super::step_bytes;

    struct Tied;

    impl Catalog for Tied {
        fn find(&self, _: &str) -> Option<Entry> {
            Some(Entry { ty: Type::Q8_0, shape: vec![100, 64] })
        }
    }

    fn graph() -> Graph {
        let mut recorder = Recorder::new(&Tied);
        let table = recorder.matrix("table", 100, 64).unwrap();
        let hidden = recorder.embed("embed", table);
        let logits = recorder.matmul("head", hidden, table, None);
        recorder.finish(logits)
    }

    #[test]
    fn a_tied_table_is_read_once_as_a_row_and_once_whole() {
        let graph = graph();
        let mut facts = Reference::new().facts().clone();
        let of = |facts: &Facts, tokens| {
            let machine = Machine::new(vec![facts.clone()]);
            let plan = plan(&graph, &machine, &Budget::default()).unwrap();
            step_bytes(&graph, &plan, &[facts], tokens)
        };
        assert_eq!(of(&facts, 1), [(1 + 100) * 2 * 34]);
        assert_eq!(of(&facts, 4), [(4 + 100) * 2 * 34]);
        facts.converted = vec![(Type::Q8_0, Type::F16)];
        assert_eq!(of(&facts, 1), [(1 + 100) * 64 * 2]);
    }
}
