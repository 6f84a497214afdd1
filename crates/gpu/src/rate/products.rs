//! Operations a second of products of many columns.

use bilayer_graph::Error as GraphError;
use bilayer_quant::Type;

use super::{Timed, WARM_UP, rate_of};
use crate::caps::{Caps, Input};
use crate::device::Device;
use crate::kernels::matmul::{
    COLUMNS_TILED, Epilogue, GemvKey, GemvParams, Matrix, columns_tiled, input_of, rows_of,
};
use crate::kernels::view::View;

/// The matrix: as a small model has them.
const ROWS: u32 = 1024;
const COLS: usize = 2048;

/// Columns to try, until a product takes long enough to be timed.
const COLUMNS: [u32; 3] = [COLUMNS_TILED, 8 * COLUMNS_TILED, 64 * COLUMNS_TILED];

/// Computes products until the GPU runs at full speed.
///
/// # Errors
/// Those of [`measure`].
pub fn warm_up(device: &Device, caps: &Caps) -> Result<(), GraphError> {
    product(device, caps, COLUMNS[0])?.run_for(device, WARM_UP)
}

/// Operations a second of products of many columns of a Q4_K matrix as `caps` has them.
///
/// # Errors
/// No memory for some 60 MB, or the device was lost.
pub fn measure(device: &Device, caps: &Caps) -> Result<f64, GraphError> {
    rate_of(device, &COLUMNS, |columns| product(device, caps, columns))
}

/// A product with so many columns of zeros.
fn product(device: &Device, caps: &Caps, columns: u32) -> Result<Timed, GraphError> {
    use wgpu::BufferUsages as Use;
    let ty = Type::Q4_K;
    let input = input_of(caps, ty, COLUMNS_TILED);
    let rows = rows_of(caps, input, COLUMNS_TILED, Epilogue::Plain, ROWS);
    let key = GemvKey::plain(ty, columns_tiled(caps, input), rows, input);
    let row_blocks = COLS / ty.block_weights;
    let blocks = ROWS as usize * row_blocks;
    let mut params = GemvParams {
        x: View { at: 0, stride: (COLS / input.element_values()) as u32 },
        out: [0, ROWS],
        units: (COLS / 64) as u32,
        rows: ROWS,
        row_blocks: row_blocks as u32,
        ..GemvParams::default()
    };
    params.matrices[0] = Matrix { blocks: blocks as u32, ..Matrix::default() };
    let values = u64::from(columns) * COLS as u64;
    let inputs = match input {
        Input::Floats => vec![4 * values],
        Input::Quantized => vec![values, values / 2],
        Input::Halves => vec![2 * values, 4 * u64::from(columns)],
    };
    let step: Vec<u8> = columns.to_le_bytes().repeat(8);
    let mut buffers = vec![
        device.filled("params", bytemuck::bytes_of(&params), Use::UNIFORM)?,
        device.filled("step", &step, Use::STORAGE)?,
    ];
    for bytes in inputs {
        buffers.push(device.buffer("input", bytes, Use::STORAGE)?);
    }
    buffers.push(device.buffer("out", 4 * u64::from(columns * ROWS), Use::STORAGE)?);
    let weights = device.buffer("weights", (blocks * ty.block_bytes) as u64, Use::STORAGE)?;
    buffers.extend([weights.clone(), weights]);
    let operations = 2.0 * f64::from(ROWS) * COLS as f64 * f64::from(columns);
    Timed::new(device, &key.source(caps), &buffers, (key.grid(ROWS, columns), operations))
}
