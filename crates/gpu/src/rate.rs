//! How many operations a second a GPU does in matrix products: by this, work is cut into dispatches and submits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bilayer_graph::Error as GraphError;
use bilayer_quant::Type;

use crate::caps::{Caps, Input};
use crate::device::{Device, Pipeline};
use crate::kernels::matmul::{
    COLUMNS_TILED, Epilogue, GemvKey, GemvParams, Matrix, columns_tiled, input_of, rows_of,
};
use crate::kernels::view::View;

/// The matrix: as a small model has them.
const ROWS: u32 = 1024;
const COLS: usize = 2048;

/// Columns to try, until a product takes long enough to be timed.
const COLUMNS: [u32; 3] = [COLUMNS_TILED, 8 * COLUMNS_TILED, 64 * COLUMNS_TILED];

/// What is long enough: a submit alone takes some tenths of a millisecond.
const LONG_ENOUGH: Duration = Duration::from_millis(3);

/// Dispatches of the most columns in a submit, at most: a fast GPU needs many for [`LONG_ENOUGH`].
const DISPATCHES_MAX: u32 = 256;

/// How long a GPU computes before it is timed: idle, it runs at a fraction of its clock.
const WARM_UP: Duration = Duration::from_millis(100);

/// Computes products until the GPU runs at full speed.
///
/// # Errors
/// Those of [`measure`].
pub fn warm_up(device: &Device, caps: &Caps) -> Result<(), GraphError> {
    let product = Product::new(device, caps, COLUMNS[0])?;
    let (began, mut dispatches) = (Instant::now(), 1);
    while began.elapsed() < WARM_UP {
        if product.run(device, dispatches)? < LONG_ENOUGH {
            dispatches = (2 * dispatches).min(DISPATCHES_MAX);
        }
    }
    device.check()
}

/// Operations a second of products of many columns of a Q4_K matrix as `caps` has them, a multiplication and an addition
/// counted as two.
///
/// # Errors
/// No memory for some 60 MB, or the device was lost.
pub fn measure(device: &Device, caps: &Caps) -> Result<f64, GraphError> {
    let mut rate = 0.0;
    for columns in COLUMNS {
        let product = Product::new(device, caps, columns)?;
        let most = if columns == COLUMNS[COLUMNS.len() - 1] { DISPATCHES_MAX } else { 1 };
        let (took, dispatches) = product.time(device, most)?;
        let operations = 2.0 * f64::from(ROWS) * COLS as f64 * f64::from(columns);
        rate = operations * f64::from(dispatches) / took.as_secs_f64().max(1e-6);
        if took >= LONG_ENOUGH {
            break;
        }
    }
    Ok(rate)
}

/// A product with so many columns of zeros, ready to run.
struct Product {
    pipeline: Arc<Pipeline>,
    group: wgpu::BindGroup,
    grid: [u32; 3],
}

impl Product {
    fn new(device: &Device, caps: &Caps, columns: u32) -> Result<Product, GraphError> {
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
        Ok(Product { pipeline, group, grid: key.grid(ROWS, columns) })
    }

    /// The time of a submit with enough dispatches, `most` at most, and their number; the better of two.
    fn time(&self, device: &Device, most: u32) -> Result<(Duration, u32), GraphError> {
        let mut dispatches = 1;
        // The first one is not timed: the GPU wakes up.
        self.run(device, 1)?;
        loop {
            let took = self.run(device, dispatches)?;
            if took >= LONG_ENOUGH || 2 * dispatches > most {
                let took = took.min(self.run(device, dispatches)?);
                device.check()?;
                return Ok((took, dispatches));
            }
            dispatches *= 2;
        }
    }

    fn run(&self, device: &Device, dispatches: u32) -> Result<Duration, GraphError> {
        let mut encoder = device.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&self.pipeline.pipeline);
            pass.set_bind_group(0, &self.group, &[]);
            let [x, y, z] = self.grid;
            (0..dispatches).for_each(|_| pass.dispatch_workgroups(x, y, z));
        }
        let began = Instant::now();
        device.submit(Some(encoder.finish()));
        device.finish()?;
        Ok(began.elapsed())
    }
}
