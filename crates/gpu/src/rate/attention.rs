//! Operations a second of attention.

use bilayer_graph::{Error as GraphError, PAGE_TOKENS};
use bilayer_quant::Type;

use super::{Timed, rate_of};
use crate::caps::Caps;
use crate::device::Device;
use crate::kernel::Source;
use crate::kernels::attend::{SplitKey, SplitParams};
use crate::kernels::cache::{CacheLayout, CacheType};
use crate::kernels::view::View;

/// Heads as many models have them: four query heads for each key-value head, all in halves.
const HEADS: u32 = 32;
const KV_HEADS: u32 = 8;
const HEAD_DIM: usize = 128;

/// Query heads per key-value head.
pub const GROUP: u32 = HEADS / KV_HEADS;

/// Rows of queries, as in a step of a prompt: with cooperative matrices a workgroup has sixteen of them, and 256 workgroups fill
/// a GPU.
const ROWS: u32 = 512;

/// Keys to try, until attention takes long enough to be timed.
const KEYS: [u32; 3] = [32, 256, 4096];

/// The kernel's variant before its tiles are chosen.
pub fn key() -> Option<SplitKey> {
    Some(SplitKey::plain(CacheType::of(Type::F16, HEAD_DIM)?, HEAD_DIM))
}

/// Operations a second of attention by a variant of [`key`] as `caps` has it, as
/// [`group_operations`](SplitKey::group_operations) counts them.
///
/// # Errors
/// No memory for some 40 MB, the driver rejects the kernel, or the device was lost.
pub fn measure(device: &Device, caps: &Caps, key: &SplitKey) -> Result<f64, GraphError> {
    let source = key.source(caps);
    rate_of(device, &KEYS, |keys| attention(device, &source, (key, keys)))
}

/// Attention to a cache of zeros, the first row of each tile to so many keys.
fn attention(
    device: &Device,
    source: &Source,
    (key, keys): (&SplitKey, u32),
) -> Result<Timed, GraphError> {
    use wgpu::BufferUsages as Use;
    let tiles: Vec<[u32; 4]> = (0..ROWS)
        .step_by(key.tile_rows as usize)
        .map(|first| [first, key.tile_rows.min(ROWS - first), keys - 1, 0])
        .collect();
    let pages = (keys + key.tile_rows).div_ceil(PAGE_TOKENS as u32);
    let mut step = vec![ROWS, 0, tiles.len() as u32, 0, 1, 0, 0, 0];
    let tiles_at = step.len() as u32;
    step.extend(tiles.iter().flatten());
    let pages_at = step.len() as u32;
    step.extend(0..pages);
    let width = HEADS as usize * HEAD_DIM;
    let view = View::of_floats(0, width);
    let params = SplitParams {
        q: view,
        out: view,
        tiles_at,
        pages_at,
        tile_words: 4,
        heads: HEADS,
        kv_heads: KV_HEADS,
        group: GROUP,
        window: u32::MAX,
        scale: 1.0,
        chunk: u32::MAX,
        ..SplitParams::default()
    };
    let layout = CacheLayout {
        ty: key.key,
        kv_heads: KV_HEADS as usize,
        head_dim: HEAD_DIM,
        pages: pages as usize,
    };
    let floats = 4 * u64::from(ROWS) * width as u64;
    let mut buffers = vec![
        device.filled("params", bytemuck::bytes_of(&params), Use::UNIFORM)?,
        device.filled("step", bytemuck::cast_slice(&step), Use::STORAGE)?,
    ];
    for bytes in [floats, layout.bytes(), layout.bytes(), floats, 16] {
        buffers.push(device.buffer("attention", bytes, Use::STORAGE)?);
    }
    let groups = key.groups(KV_HEADS, GROUP);
    let operations = key.group_operations(keys) as f64 * tiles.len() as f64 * f64::from(groups);
    let grid = [tiles.len() as u32, groups, 1];
    Timed::new(device, source, &buffers, (grid, operations))
}
