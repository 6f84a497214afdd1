//! What the kernels of a segment take in a step.

use bilayer_graph::{OpTime, Step};
use bilayer_scheduler::{AttentionWork, KernelWork, Speed, StepRows};

/// Fills `times` with the kernels of a step, one after the other, and returns the seconds of all.
pub fn run(kernels: &[KernelWork], step: &Step<'_>, speed: Speed, times: &mut Vec<OpTime>) -> f64 {
    times.clear();
    let rows = StepRows { tokens: step.tokens.len(), outputs: step.outputs.len() };
    let mut seconds = 0.0;
    for kernel in kernels {
        let took = kernel.seconds(rows, speed, &|work| attention(work, step));
        let (start_ns, ns) = ((seconds * 1e9) as u64, (took * 1e9) as u64);
        times.push(OpTime { node: kernel.nodes[0], start_ns, ns });
        seconds += took;
    }
    seconds
}

/// Bytes of keys and values, which are read once for each sequence, and operations.
fn attention(work: &AttentionWork, step: &Step<'_>) -> (f64, f64) {
    let (mut bytes, mut ops) = (0.0, 0.0);
    for span in step.spans {
        let end = span.first_position + span.rows;
        let mut first = end;
        for position in span.first_position..end {
            let seen = work.op.sees(span, position);
            first = first.min(seen.start);
            ops += work.seen_ops() * seen.len() as f64;
        }
        bytes += f64::from(end - first) * work.token_bytes;
    }
    (bytes, ops)
}
