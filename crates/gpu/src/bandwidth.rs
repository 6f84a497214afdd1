//! Measures the memory read bandwidth of a GPU's kernels.

use std::time::Instant;

use bilayer_graph::Error as GraphError;
use minijinja::context;

use crate::device::Device;
use crate::kernel::{Access, Source};
use crate::render::render;

/// Bytes read: more than any GPU's cache, and than a CPU's, whose software adapter is slow.
const BYTES: u64 = 256 << 20;

/// Workgroups, and threads of each: enough to fill any GPU.
const GROUPS: u32 = 2048;
const THREADS: u32 = 256;

/// Passes over the memory in the longer of two runs: the fewest that take [`LONG_ENOUGH`] more than one does.
const PASSES: [u32; 3] = [5, 33, 257];

/// What is long enough: a submit alone takes some tenths of a millisecond, more or less.
const LONG_ENOUGH: f64 = 0.01;

/// Number of rounds; the fastest counts.
const ROUNDS: usize = 3;

/// The kernel: each thread sums what it reads, so that no read is optimized away.
pub(crate) fn source() -> Source {
    Source {
        name: "read".to_owned(),
        wgsl: render("parts/read", context! { threads => THREADS }),
        bindings: vec![Access::Read, Access::Write],
        workgroup: [THREADS, 1, 1],
    }
}

/// Read bandwidth in 10^9 bytes per second: from the time of several passes minus that of one.
///
/// # Errors
/// Out of memory, or the device was lost.
pub fn measure(device: &Device) -> Result<f64, GraphError> {
    use wgpu::BufferUsages as Use;
    let limits = device.device.limits();
    let most = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
    let bytes = BYTES.min(most) / (1 << 20) * (1 << 20);
    let vectors = (bytes / 16) as u32;
    let source = source();
    let pipeline = device.pipeline(&source)?;
    let params: Vec<u8> = [vectors, GROUPS * THREADS, 0, 0].map(u32::to_le_bytes).concat();
    let params = device.filled("params", &params, Use::UNIFORM)?;
    let memory = device.buffer("memory", bytes, Use::STORAGE)?;
    let sums = u64::from(4 * GROUPS * THREADS);
    let sums = device.buffer("sums", sums, Use::STORAGE)?;
    let bindings =
        [params.as_entire_binding(), memory.as_entire_binding(), sums.as_entire_binding()];
    let group = device.bind_group(&pipeline, &bindings);
    let run = |passes: u32| -> Result<f64, GraphError> {
        let mut encoder = device.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, &group, &[]);
            (0..passes).for_each(|_| pass.dispatch_workgroups(GROUPS, 1, 1));
        }
        let began = Instant::now();
        device.submit(Some(encoder.finish()));
        device.finish()?;
        Ok(began.elapsed().as_secs_f64())
    };
    run(1)?;
    let mut best: f64 = 0.0;
    let mut passes = PASSES[0];
    for more in PASSES {
        passes = more;
        if run(passes)? - run(1)? >= LONG_ENOUGH {
            break;
        }
    }
    for _ in 0..ROUNDS {
        let more = run(passes)? - run(1)?;
        if more > 0.0 {
            best = best.max(f64::from(passes - 1) * bytes as f64 / more / 1e9);
        }
    }
    device.check()?;
    Ok(best)
}
