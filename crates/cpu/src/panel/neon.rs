//! Writing into panels, four rows at a time.

use crate::neon::intrinsics::*;

use super::ROWS;
use crate::neon::{load_floats, store_floats};

/// Writes values of rows `first..first + 4`, each row's times its factor, into one line per column.
#[inline(always)]
pub(crate) fn columns(rows: [(&[f32], f32); 4], first: usize, to: &mut [[f32; ROWS]]) {
    for (part, to) in to.chunks_mut(4).enumerate() {
        let values =
            transpose(rows.map(|(row, factor)| {
                vmulq_n_f32(load_floats(&row.as_chunks::<4>().0[part]), factor)
            }));
        for (to, value) in to.iter_mut().zip(values) {
            let to = to[first..].first_chunk_mut().expect("four rows");
            store_floats(to, value);
        }
    }
}

/// Transposes four vectors of four.
#[inline(always)]
pub(crate) fn transpose([a, b, c, d]: [float32x4_t; 4]) -> [float32x4_t; 4] {
    let low = [vtrn1q_f32(a, b), vtrn1q_f32(c, d)].map(vreinterpretq_f64_f32);
    let high = [vtrn2q_f32(a, b), vtrn2q_f32(c, d)].map(vreinterpretq_f64_f32);
    [
        vtrn1q_f64(low[0], low[1]),
        vtrn1q_f64(high[0], high[1]),
        vtrn2q_f64(low[0], low[1]),
        vtrn2q_f64(high[0], high[1]),
    ]
    .map(vreinterpretq_f32_f64)
}
