//! Embedding: one table row per token, selected by id, segment or position, dequantized by the type's scalar code.

use bilayer_graph::{Ids, Op};

use crate::lowering::Lowering;
use crate::stage::{Rowwise, Stage};

/// The stage of an [`Op::Embed`]: copies row `ids[t]` of `table [vocab, width]` to `out [T, width]`.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let &Op::Embed { table, ids, out } = lowering.op(node) else {
        unreachable!("the table of ops")
    };
    let (weight, table) = lowering.weight(table);
    let (ty, row_bytes) = (weight.ty, weight.row_bytes());
    let out = lowering.buffer(out);
    Rowwise::light(out, move |context, rows, results| {
        let ids = match ids {
            Ids::Tokens => &context.state.tokens[rows],
            Ids::Positions => &context.state.positions[rows],
            Ids::Segments { .. } => &context.state.segments[rows],
        };
        for (&id, out) in ids.iter().zip(results.chunks_exact_mut(out.width)) {
            let first = id as usize * row_bytes;
            table.with(first..first + row_bytes, |row| {
                ty.dequantize(row, out).expect("loading has checked the table's bytes");
            });
        }
    })
}
