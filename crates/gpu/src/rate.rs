//! How many operations a second a GPU does, in products of matrices and in attention: by this, work is cut into dispatches
//! and submits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bilayer_graph::Error as GraphError;

use crate::device::{Device, Pipeline};
use crate::kernel::Source;
use crate::kernels::attend::SplitKey;

pub mod attention;
pub mod products;

/// Operations per second, a multiplication and an addition counted as two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceRates {
    /// Of products of many columns.
    pub products: f64,
    /// Of attention.
    pub attention: AttentionRates,
}

/// Operations per second of attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionRates {
    /// With tiles of one row, as in decode.
    pub single: f64,
    /// With tiles of several rows.
    pub tiled: f64,
}

/// Operations per second of products assumed of any device until measured.
pub const RATE_MIN: f64 = 1e10;

/// How many times as long an operation of attention is assumed to take as one of a product, until measured.
const ATTENTION_SLOWER: f64 = 4.0;

impl DeviceRates {
    /// The rates of a device with that rate of products, until its attention is measured.
    pub fn of_products(products: f64) -> DeviceRates {
        DeviceRates { products, attention: AttentionRates::assumed(products) }
    }

    /// The lower ones of both.
    #[must_use]
    pub fn min(self, other: DeviceRates) -> DeviceRates {
        let attention = self.attention.min(other.attention);
        DeviceRates { products: self.products.min(other.products), attention }
    }

    /// How many times as long an operation of the attention takes as one of a product.
    pub fn slower(&self, key: &SplitKey) -> f64 {
        self.products / self.attention.of(key)
    }
}

impl AttentionRates {
    /// Those of a device with that rate of products, until measured.
    pub fn assumed(products: f64) -> AttentionRates {
        let rate = products / ATTENTION_SLOWER;
        AttentionRates { single: rate, tiled: rate }
    }

    /// The higher ones of both.
    #[must_use]
    pub fn max(self, other: AttentionRates) -> AttentionRates {
        AttentionRates { single: self.single.max(other.single), tiled: self.tiled.max(other.tiled) }
    }

    /// The lower ones of both.
    #[must_use]
    pub fn min(self, other: AttentionRates) -> AttentionRates {
        AttentionRates { single: self.single.min(other.single), tiled: self.tiled.min(other.tiled) }
    }

    /// The rate of a kernel's form.
    pub fn of(&self, key: &SplitKey) -> f64 {
        if key.tile_rows == 1 { self.single } else { self.tiled }
    }
}

/// What is long enough to be timed: a submit alone takes some tenths of a millisecond.
const LONG_ENOUGH: Duration = Duration::from_millis(3);

/// Dispatches of the largest size in a submit, at most: a fast GPU needs many for [`LONG_ENOUGH`].
const DISPATCHES_MAX: u32 = 256;

/// How long a GPU computes before it is timed: idle, it runs at a fraction of its clock.
const WARM_UP: Duration = Duration::from_millis(100);

/// Operations a second of what `make` makes of the first of the sizes that takes long enough; of the last one in as many
/// dispatches as that takes.
fn rate_of(
    device: &Device,
    sizes: &[u32],
    make: impl Fn(u32) -> Result<Timed, GraphError>,
) -> Result<f64, GraphError> {
    let mut rate = 0.0;
    for (at, &size) in sizes.iter().enumerate() {
        let timed = make(size)?;
        let most = if at + 1 == sizes.len() { DISPATCHES_MAX } else { 1 };
        let (took, dispatches) = timed.time(device, most)?;
        rate = timed.operations * f64::from(dispatches) / took.as_secs_f64().max(1e-6);
        if took >= LONG_ENOUGH {
            break;
        }
    }
    Ok(rate)
}

/// A dispatch, ready to run.
struct Timed {
    pipeline: Arc<Pipeline>,
    group: wgpu::BindGroup,
    grid: [u32; 3],
    operations: f64,
}

impl Timed {
    /// A dispatch of a kernel over all of these buffers, the uniform first, with its grid and its operations.
    fn new(
        device: &Device,
        source: &Source,
        buffers: &[wgpu::Buffer],
        (grid, operations): ([u32; 3], f64),
    ) -> Result<Timed, GraphError> {
        let pipeline = device.pipeline(source)?;
        let resources: Vec<_> = buffers.iter().map(wgpu::Buffer::as_entire_binding).collect();
        let group = device.bind_group(&pipeline, &resources);
        Ok(Timed { pipeline, group, grid, operations })
    }

    /// Runs it again and again for so long.
    fn run_for(&self, device: &Device, duration: Duration) -> Result<(), GraphError> {
        let (began, mut dispatches) = (Instant::now(), 1);
        while began.elapsed() < duration {
            if self.run(device, dispatches)? < LONG_ENOUGH {
                dispatches = (2 * dispatches).min(DISPATCHES_MAX);
            }
        }
        device.check()
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
