//! How many operations a second a GPU does in matrix products: by this, work is cut into dispatches and submits.

use std::time::{Duration, Instant};

use bilayer_graph::Error as GraphError;
use bilayer_quant::Type;

use crate::caps::{Caps, Input};
use crate::device::Device;
use crate::kernels::matmul::{
    COLUMNS_TILED, Epilogue, GemvKey, GemvParams, Matrix, input_of, rows_of,
};
use crate::kernels::view::View;

/// The matrix: as a small model has them.
const ROWS: u32 = 1024;
const COLS: usize = 2048;

/// Columns to try, until a product takes long enough to be timed.
const COLUMNS: [u32; 3] = [COLUMNS_TILED, 8 * COLUMNS_TILED, 64 * COLUMNS_TILED];

/// What is long enough: a submit alone takes some tenths of a millisecond.
const LONG_ENOUGH: Duration = Duration::from_millis(3);

/// Operations a second of products of many columns of a Q8_0 matrix as `caps` has them, a multiplication and an addition
/// counted as two.
///
/// # Errors
/// No memory for some 60 MB, or the device was lost.
pub fn measure(device: &Device, caps: &Caps) -> Result<f64, GraphError> {
    let mut rate = 0.0;
    for columns in COLUMNS {
        let took = product(device, caps, columns)?;
        let operations = 2.0 * f64::from(ROWS) * COLS as f64 * f64::from(columns);
        rate = operations / took.as_secs_f64().max(1e-6);
        if took >= LONG_ENOUGH {
            break;
        }
    }
    Ok(rate)
}

/// The time of one product with so many columns of zeros, the better of two after one that is not timed.
fn product(device: &Device, caps: &Caps, columns: u32) -> Result<Duration, GraphError> {
    use wgpu::BufferUsages as Use;
    let ty = Type::Q8_0;
    let input = input_of(caps, ty, COLUMNS_TILED);
    let rows = rows_of(caps, input, COLUMNS_TILED, Epilogue::Plain, ROWS);
    let key = GemvKey::plain(ty, COLUMNS_TILED, rows, input);
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
    let pipeline = device.pipeline(&key.source(caps))?;
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
    let resources: Vec<_> = buffers.iter().map(wgpu::Buffer::as_entire_binding).collect();
    let group = device.bind_group(&pipeline, &resources);
    let [x, y, z] = key.grid(ROWS, columns);
    let run = || -> Result<Duration, GraphError> {
        let mut encoder = device.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
        let began = Instant::now();
        device.queue.submit([encoder.finish()]);
        device.finish()?;
        Ok(began.elapsed())
    };
    run()?;
    let best = run()?.min(run()?);
    device.check()?;
    Ok(best)
}
