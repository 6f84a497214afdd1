//! Probes the subgroup size, which drivers do not report reliably, and checks a device's results.

use std::cmp::Ordering;

use bilayer_graph::Error as GraphError;
use bilayer_quant::Type;
use half::f16;
use minijinja::context;

use crate::adapter::Adapter;
use crate::caps::Api;
use crate::device::Device;
use crate::kernel::{Access, Source};
use crate::kernels::matmul::{Chosen, Epilogue, GemvKey, GemvParams, Matrix, rows_of, takes_ints};
use crate::kernels::view::View;
use crate::kernels::weights::Layout;
use crate::render::render;

/// The threads of a workgroup that is one subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subgroup {
    /// How many they are.
    pub threads: u32,
    /// Whether larger workgroups may have larger subgroups.
    pub varies: bool,
}

/// Subgroups smaller than this are not used where their size varies: most lanes of a wide unit would idle.
const VARYING_MIN: u32 = 32;

/// The size of all subgroups if it is uniform, or the smallest size where drivers choose it per kernel.
///
/// # Errors
/// The device was lost.
pub fn subgroup(adapter: &Adapter, device: &Device) -> Result<Option<Subgroup>, GraphError> {
    if !adapter.raw().features().contains(wgpu::Features::SUBGROUP) {
        return Ok(None);
    }
    let info = adapter.raw().get_info();
    // Apple's GPUs always run 32; Metal's adapter only reports between 4 and 64.
    let apple = device.caps().api == Api::Metal && info.name.contains("Apple");
    if info.subgroup_min_size != info.subgroup_max_size && !apple {
        let threads = info.subgroup_min_size;
        if !threads.is_power_of_two() || !(VARYING_MIN..=128).contains(&threads) {
            return Ok(None);
        }
        // The built-in size may be the larger one, half of whose lanes are idle then.
        let [_, subgroups, _] = sizes(device, threads)?;
        return Ok((subgroups == 1).then_some(Subgroup { threads, varies: true }));
    }
    let [size, ..] = sizes(device, 128)?;
    if !size.is_power_of_two() || !(4..=128).contains(&size) {
        return Ok(None);
    }
    let fixed =
        sizes(device, 128)? == [size, 128 / size, 0] && sizes(device, size)? == [size, 1, 0];
    Ok(fixed.then_some(Subgroup { threads: size, varies: false }))
}

/// Size and number of subgroups in a workgroup, and threads that disagree.
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

/// Bytes to multiply by others, and the sum of the products.
const BYTES: [[i8; 4]; 2] = [[1, 127, -1, -128], [3, -2, -128, 127]];
const BYTES_PRODUCT: i32 = 3 - 254 + 128 - 16_256;

/// Whether the driver's compiler takes packed dot products and they are right. On DX12 it is one that the user has, and
/// DXC up to early 2025 refuses what naga writes.
pub fn has_dot4(device: &Device) -> bool {
    let source = Source {
        name: "probe dot4".to_owned(),
        wgsl: render("parts/probe_dot4", context! {}),
        bindings: vec![Access::Write],
        workgroup: [1; 3],
    };
    let mut params = [0; 16];
    for (to, bytes) in params.chunks_exact_mut(4).zip(BYTES) {
        to.copy_from_slice(&bytes.map(i8::cast_unsigned));
    }
    let read = device.run(&source, &params, &[&[0; 16]], [1, 1, 1]);
    read.is_ok_and(|read| read[0].starts_with(&BYTES_PRODUCT.to_le_bytes()))
}

/// Operations per second assumed of any device until measured.
pub const RATE_MIN: f64 = 1e10;

/// Rows and columns of the self-check's matrix.
const CHECK_ROWS: usize = 256;
const CHECK_COLS: usize = 512;

/// Bound on the relative error of the self-check, which is exact except for rounding of sums.
const CHECK_BOUND: f64 = 1e-4;

/// Runs a product and compares it with the host's, so that a driver with wrong results is detected before a model
/// runs. Returns the operations per second that matrix products achieve.
///
/// # Errors
/// The results are wrong, or the device was lost.
pub fn check(device: &Device) -> Result<f64, crate::Error> {
    let lost = |error: GraphError| crate::Error::SelfCheck {
        adapter: device.name().to_owned(),
        reason: error.to_string(),
    };
    let case = Case::new(device);
    let found = case.run(device).map_err(lost)?;
    let expected = case.expected();
    let square = |x: f64| x * x;
    let off: f64 = expected.iter().zip(&found).map(|(e, f)| square(e - f64::from(*f))).sum();
    let whole: f64 = expected.iter().map(|&e| square(e)).sum();
    let error = (off / whole).sqrt();
    // Not `>`: the error may be NaN.
    if !matches!(error.partial_cmp(&CHECK_BOUND), Some(Ordering::Less)) {
        return Err(crate::Error::SelfCheck {
            adapter: device.name().to_owned(),
            reason: format!("a product of {CHECK_ROWS} x {CHECK_COLS} is off by {error:e}"),
        });
    }
    // A software adapter counts as the slowest: short dispatches cost it little.
    match device.caps().software {
        true => Ok(RATE_MIN),
        false => Ok(crate::rate::measure(device).map_err(lost)?.max(RATE_MIN)),
    }
}

/// A product of a Q8_0 matrix, in split layout, with one column.
struct Case {
    source: Source,
    params: GemvParams,
    groups: [u32; 3],
    scales: Vec<f16>,
    quants: Vec<i8>,
    column: Vec<i8>,
    ints: bool,
}

/// The scale of a column's integers.
const STEP: f32 = 1.0 / 64.0;

impl Case {
    fn new(device: &Device) -> Case {
        let caps = device.caps();
        let ty = Type::Q8_0;
        let key = GemvKey {
            ty,
            layout: Layout::of(ty),
            columns: 1,
            rows: rows_of(caps, 1, Epilogue::Plain, CHECK_ROWS as u32),
            ints: takes_ints(caps, ty),
            matrices: 1,
            bias: false,
            chosen: Chosen::None,
            ragged: false,
            epilogue: Epilogue::Plain,
        };
        let row_blocks = CHECK_COLS / ty.block_weights;
        let blocks = CHECK_ROWS * row_blocks;
        // Numbers that do not repeat with the layout's strides.
        let small = |i: usize| ((i * 2_654_435_761) >> 7) as u8 as i8;
        let mut matrices = [Matrix::default(); 3];
        matrices[0].blocks = blocks as u32;
        let stride = if key.ints { CHECK_COLS / 16 } else { CHECK_COLS / 4 };
        Case {
            params: GemvParams {
                x: View { at: 0, stride: stride as u32 },
                out: [0, CHECK_ROWS as u32],
                units: (CHECK_COLS / 64) as u32,
                rows: CHECK_ROWS as u32,
                row_blocks: row_blocks as u32,
                matrices,
                ..GemvParams::default()
            },
            groups: key.grid(CHECK_ROWS as u32, 1),
            scales: (0..blocks).map(|i| f16::from_f32(0.01 + 0.001 * (i % 7) as f32)).collect(),
            quants: (0..CHECK_ROWS * CHECK_COLS).map(small).collect(),
            column: (0..CHECK_COLS).map(|i| small(i * 31 + 5).max(-127)).collect(),
            ints: key.ints,
            source: key.source(caps),
        }
    }

    fn run(&self, device: &Device) -> Result<Vec<f32>, GraphError> {
        let step: Vec<u32> = vec![1; 8];
        let floats: Vec<f32> = self.column.iter().map(|&x| f32::from(x) * STEP).collect();
        let sums: Vec<[f32; 2]> = self
            .column
            .chunks_exact(16)
            .map(|piece| [STEP, STEP * piece.iter().map(|&x| f32::from(x)).sum::<f32>()])
            .collect();
        // One plane after another: scales, then quants.
        let mut weights: Vec<u8> = bytemuck::cast_slice(&self.scales).to_vec();
        weights.extend_from_slice(bytemuck::cast_slice(&self.quants));
        let out = vec![0; CHECK_ROWS * 4];
        let mut data: Vec<&[u8]> = vec![bytemuck::cast_slice(&step)];
        if self.ints {
            data.extend([bytemuck::cast_slice(&self.column), bytemuck::cast_slice(&sums)]);
        } else {
            data.push(bytemuck::cast_slice(&floats));
        }
        data.extend([out.as_slice(), &weights, &weights]);
        let params = bytemuck::bytes_of(&self.params);
        let results = device.run(&self.source, params, &data, self.groups)?;
        let place = data.len() - 3;
        Ok(results[place].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
    }

    fn expected(&self) -> Vec<f64> {
        let rows = self.quants.chunks_exact(CHECK_COLS);
        let row_blocks = CHECK_COLS / 32;
        rows.enumerate()
            .map(|(row, quants)| {
                let weight = |(i, &q): (usize, &i8)| {
                    let scale = self.scales[row * row_blocks + i / 32].to_f64();
                    scale * f64::from(q) * f64::from(self.column[i]) * f64::from(STEP)
                };
                quants.iter().enumerate().map(weight).sum()
            })
            .collect()
    }
}
