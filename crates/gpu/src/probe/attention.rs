//! Checks attention with cooperative matrices, which has kernels of its own: where it is wrong, others compute it.

use bilayer_graph::{Error as GraphError, PAGE_TOKENS};
use bilayer_quant::Type;
use half::f16;

use crate::device::Device;
use crate::kernels::attend::{SplitKey, SplitParams};
use crate::kernels::cache::{CacheLayout, CacheType, Half};
use crate::kernels::view::View;

/// Query heads, all of one key-value head.
const HEADS: usize = 4;

/// Elements of heads that are checked: values are in workgroup memory whole, and most models have these.
const HEAD_DIMS: [usize; 2] = [64, 128];

/// Rows of queries, and tokens before them: the last of the two pages is not full.
const ROWS: usize = 16;
const BEFORE: usize = 24;

/// The places of the pages in the cache.
const PAGES: [u32; 2] = [1, 0];

/// Factor on the scores.
const SCALE: f32 = 0.05;

/// Bound on the relative error: queries and weights are within 2^-11 of themselves.
const BOUND: f64 = 2e-3;

/// Whether the device computes attention as it would with the matrices and tiles that were chosen for it. True of one that
/// uses none.
pub fn attends(device: &Device) -> bool {
    HEAD_DIMS.iter().all(|&head_dim| attends_with(device, head_dim))
}

fn attends_with(device: &Device, head_dim: usize) -> bool {
    let Some(key) = key(device, head_dim) else { return true };
    let Ok(found) = run(device, &key) else { return false };
    let square = |x: f64| x * x;
    let expected = expected(head_dim);
    let off: f64 = expected.iter().zip(&found).map(|(e, f)| square(e - f64::from(*f))).sum();
    let whole: f64 = expected.iter().map(|&e| square(e)).sum();
    // False of what is no number.
    (off / whole).sqrt() < BOUND
}

fn key(device: &Device, head_dim: usize) -> Option<SplitKey> {
    let ty = CacheType::of(Type::F16, head_dim)?;
    SplitKey::plain(ty, head_dim).tiled_coop(device.caps(), HEADS as u32)
}

/// Numbers that halves hold and that do not repeat with strides, to 2.
fn number(i: usize) -> f32 {
    f32::from((i.wrapping_mul(2_654_435_761) >> 7) as u8 as i8) / 64.0
}

/// `[ROWS, HEADS * head_dim]`.
fn queries(head_dim: usize) -> Vec<f32> {
    (0..ROWS * HEADS * head_dim).map(number).collect()
}

/// Keys, or values: `[2 * PAGE_TOKENS, head_dim]`. Those beyond the last token are no numbers.
fn cached(half: Half, head_dim: usize) -> Vec<f32> {
    let first = if half == Half::Keys { 77_777 } else { 99_991 };
    let all = (0..2 * PAGE_TOKENS * head_dim).map(|i| number(first + i));
    let held = (BEFORE + ROWS) * head_dim;
    all.enumerate().map(|(i, x)| if i < held { x } else { f32::NAN }).collect()
}

/// `[ROWS, HEADS * head_dim]`.
fn run(device: &Device, key: &SplitKey) -> Result<Vec<f32>, GraphError> {
    let head_dim = key.head_dim as usize;
    let layout = CacheLayout { ty: key.key, kv_heads: 1, head_dim, pages: 2 };
    let cache = |half| {
        let values = cached(half, head_dim);
        let mut pages: Vec<&[f32]> = values.chunks(PAGE_TOKENS * head_dim).collect();
        pages.reverse();
        pages.into_iter().flat_map(|page| layout.encode(half, page)).collect::<Vec<u8>>()
    };
    let tile = [0, ROWS as u32, BEFORE as u32, 0];
    // One part of the keys, one tile, and the pages.
    let mut step: Vec<u32> = vec![ROWS as u32, 0, 1, 0, 1, 0, 0, 0];
    let tiles_at = step.len() as u32;
    step.extend(tile);
    let pages_at = step.len() as u32;
    step.extend(PAGES);
    let view = View::of_floats(0, HEADS * head_dim);
    let params = SplitParams {
        q: view,
        out: view,
        tiles_at,
        pages_at,
        tile_words: tile.len() as u32,
        heads: HEADS as u32,
        kv_heads: 1,
        group: HEADS as u32,
        window: u32::MAX,
        scale: SCALE,
        chunk: u32::MAX,
        ..SplitParams::default()
    };
    let queries = queries(head_dim);
    let out = vec![0; 4 * queries.len()];
    let (keys, values) = (cache(Half::Keys), cache(Half::Values));
    let data = [
        bytemuck::cast_slice(&step),
        bytemuck::cast_slice(&queries),
        &keys,
        &values,
        &out,
        &[0; 16],
    ];
    let groups = [1, key.groups(1, HEADS as u32), 1];
    let params = bytemuck::bytes_of(&params);
    let results = device.run(&key.source(device.caps()), params, &data, groups)?;
    let place = data.len() - 2;
    Ok(results[place].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
}

/// `[ROWS, HEADS * head_dim]`.
fn expected(head_dim: usize) -> Vec<f64> {
    let queries = queries(head_dim);
    let [keys, values] = [Half::Keys, Half::Values].map(|half| cached(half, head_dim));
    let of_token = |all: &[f32], token: usize, i: usize| {
        f64::from(f16::from_f32(all[token * head_dim + i]).to_f32())
    };
    let vectors = queries.chunks_exact(head_dim).enumerate();
    vectors
        .flat_map(|(at, query)| {
            let tokens = BEFORE + at / HEADS + 1;
            let score = |token| -> f64 {
                let terms = query.iter().enumerate();
                terms.map(|(i, &q)| f64::from(q) * of_token(&keys, token, i)).sum()
            };
            let weights: Vec<f64> =
                (0..tokens).map(|token| (f64::from(SCALE) * score(token)).exp()).collect();
            let total: f64 = weights.iter().sum();
            let element = |i| {
                let terms = weights.iter().enumerate();
                terms.map(|(token, w)| w * of_token(&values, token, i)).sum::<f64>() / total
            };
            (0..head_dim).map(element).collect::<Vec<f64>>()
        })
        .collect()
}
