//! Names of a session's kernels by their work, for timelines.

use std::collections::HashMap;

use bilayer_engine::session::Session;

/// Ops that take nearly all of the time; a kernel that has one is named by those alone.
const HEAVY: [&str; 3] = ["matmul", "attend", "experts"];

/// The name and the work of the kernel that runs each graph node.
pub struct Names<'s> {
    session: &'s Session,
    /// Name and nodes of each kernel.
    kernels: Vec<(String, Vec<u32>)>,
    /// The kernel of a node.
    of_node: HashMap<u32, usize>,
}

impl<'s> Names<'s> {
    /// The session's kernels with their current placement.
    pub fn of(session: &'s Session) -> Names<'s> {
        let (mut kernels, mut of_node) = (Vec::new(), HashMap::new());
        for kernel in session.kernels() {
            let labels: Vec<String> =
                kernel.nodes.iter().map(|&node| session.label(node)).collect();
            let name = format!("{} ({})", work(&labels), kernel.name);
            let nodes: Vec<u32> = kernel.nodes.to_vec();
            of_node.extend(nodes.iter().map(|&node| (node, kernels.len())));
            kernels.push((name, nodes));
        }
        Names { session, kernels, of_node }
    }

    /// The name of the kernel that runs a node.
    pub fn get(&self, node: u32) -> String {
        let kernel = self.of_node.get(&node).map(|&kernel| self.kernels[kernel].0.clone());
        kernel.unwrap_or_else(|| format!("node {node}"))
    }

    /// Bytes of weights that the kernel of a node reads in a step of `tokens` tokens.
    pub fn bytes(&self, node: u32, tokens: usize) -> u64 {
        let kernel = self.of_node.get(&node).map(|&kernel| &self.kernels[kernel].1);
        kernel.map_or(0, |nodes| self.session.read_bytes(nodes, tokens))
    }
}

/// `layer 3 attn_q+attn_k` of `layer 3 attn_norm (rms_norm)`, `layer 3 attn_q (matmul)`, `layer 3 attn_k (matmul)`.
fn work(labels: &[String]) -> String {
    let split = |label: &'_ String| -> (String, String) {
        let (name, stem) = label.rsplit_once(" (").unwrap_or((label, ""));
        (name.to_owned(), stem.trim_end_matches(')').to_owned())
    };
    let parts: Vec<(String, String)> = labels.iter().map(split).collect();
    let is_heavy = |(_, stem): &&(String, String)| HEAVY.contains(&stem.as_str());
    let has_heavy = parts.iter().any(|part| is_heavy(&part));
    let chosen = parts.iter().filter(|part| !has_heavy || is_heavy(part));
    let names: Vec<&str> = chosen.map(|(name, _)| name.as_str()).collect();
    // The layer is written once.
    let layer = names.first().and_then(|name| name.rsplit_once(' ')).map_or("", |(layer, _)| layer);
    let is_shared = !layer.is_empty()
        && names.iter().all(|name| name.rsplit_once(' ').is_some_and(|(own, _)| own == layer));
    if !is_shared {
        return names.join("+");
    }
    let bare: Vec<&str> = names.iter().map(|name| &name[layer.len() + 1..]).collect();
    format!("{layer} {}", bare.join("+"))
}

#[cfg(test)]
mod tests {
    use super::work;

    #[test]
    fn kernels_are_named_by_their_heavy_ops() {
        let cases: [(&[&str], &str); 4] = [
            (
                &[
                    "layer 3 attn_norm (rms_norm)",
                    "layer 3 attn_q (matmul)",
                    "layer 3 attn_k (matmul)",
                ],
                "layer 3 attn_q+attn_k",
            ),
            (&["layer 0 ffn_norm (rms_norm)"], "layer 0 ffn_norm"),
            (
                &["layer 0 l_out (add)", "layer 1 attn_norm (rms_norm)"],
                "layer 0 l_out+layer 1 attn_norm",
            ),
            (&["result_norm (rms_norm)", "output (matmul)"], "output"),
        ];
        for (labels, expected) in cases {
            let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
            assert_eq!(work(&labels), expected);
        }
    }
}
