//! Probes the subgroup size, which drivers do not report reliably, and checks a device's results.

use std::cmp::Ordering;

use bilayer_graph::Error as GraphError;
use bilayer_quant::Type;
use half::f16;
use minijinja::context;

use crate::adapter::Adapter;
use crate::caps::{Api, Caps, Coop, Input, Subgroup};
use crate::device::Device;
use crate::kernel::{Access, Source};
use crate::kernels::matmul::{
    COLUMNS_TILED, Epilogue, GemvKey, GemvParams, Matrix, columns_tiled, input_of, rows_of,
};
use crate::kernels::view::View;
use crate::render::render;

mod attention;

pub use attention::attends;

/// Subgroups smaller than this are not used where their size varies: most lanes of a wide unit would idle.
const VARYING_MIN: u32 = 32;

/// The size of all subgroups if it is uniform, or the smallest size where drivers choose it per kernel. `None` as well where
/// threads are not lanes in order, as kernels take them to be.
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
        let [_, subgroups, _, strays] = sizes(device, threads)?;
        return Ok((subgroups == 1 && strays == 0).then_some(Subgroup { threads, varies: true }));
    }
    let [size, ..] = sizes(device, 128)?;
    if !size.is_power_of_two() || !(4..=128).contains(&size) {
        return Ok(None);
    }
    let fixed =
        sizes(device, 128)? == [size, 128 / size, 0, 0] && sizes(device, size)? == [size, 1, 0, 0];
    Ok(fixed.then_some(Subgroup { threads: size, varies: false }))
}

/// Size and number of subgroups in a workgroup, threads that disagree, and threads that are not the lane of their number.
fn sizes(device: &Device, threads: u32) -> Result<[u32; 4], GraphError> {
    let source = Source {
        name: format!("probe {threads}"),
        wgsl: render("parts/probe", context! { threads }),
        bindings: vec![Access::Write],
        workgroup: [threads, 1, 1],
    };
    let read = device.run(&source, &[0; 16], &[&[0; 16]], [1, 1, 1])?;
    let words: Vec<u32> = read[0].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    Ok([words[0], words[1], words[2], words[3]])
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

/// Threads of the kernel that looks for cooperative matrices: several subgroups of most sizes.
const COOP_THREADS: u32 = 128;

/// Cooperative matrices of `edge` rows and columns, if the device multiplies them and its subgroups are of one size then.
pub fn coop(device: &Device, edge: u32) -> Option<Coop> {
    let source = coop_source(edge);
    let product = vec![0; (4 * edge * edge) as usize];
    let read = device.run(&source, &[0; 16], &[&[0; 16], &product], [1, 1, 1]).ok()?;
    let words: Vec<u32> = read[0].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    let [subgroup, count] = [words[0], words[1]];
    let found: Vec<f32> = read[1].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    let expected = (0..edge * edge).map(|at| {
        let (column, row) = (f64::from(at / edge), f64::from(at % edge));
        let terms = (0..edge).map(|k| (row + 3.0 * f64::from(k)) * (f64::from(k) - 2.0 * column));
        terms.sum::<f64>() as f32
    });
    // A tile is computed by four subgroups, each of which has whole numbers of values of a matrix in each thread.
    let fits = subgroup.is_power_of_two() && subgroup <= 64 && subgroup * count == COOP_THREADS;
    (fits && expected.eq(found)).then_some(Coop { edge, subgroup })
}

/// The kernel that multiplies two cooperative matrices.
pub(crate) fn coop_source(edge: u32) -> Source {
    Source {
        name: format!("probe coop {edge}"),
        wgsl: render("parts/probe_coop", context! { coop => edge, threads => COOP_THREADS }),
        bindings: vec![Access::Write, Access::Write],
        workgroup: [COOP_THREADS, 1, 1],
    }
}

/// Rows and columns of the self-check's matrix.
const CHECK_ROWS: usize = 256;
const CHECK_COLS: usize = 512;

/// Columns with which tiles are checked: the second tile is not full.
const CHECK_COLUMNS_TILED: u32 = 2 * COLUMNS_TILED + 8;

/// Bound on the relative error of the self-check, which is exact except for rounding of sums.
const CHECK_BOUND: f64 = 1e-4;

/// Bound on it for weights rounded to halves: each is within 2^-11 of itself.
const CHECK_BOUND_HALVES: f64 = 5e-4;

/// Runs a product with one column and compares it with the host's, so that a driver with wrong results is detected before
/// a model runs.
///
/// # Errors
/// The results are wrong, or the device was lost.
pub fn check(device: &Device) -> Result<(), crate::Error> {
    check_columns(device, device.caps(), (1, 1))
}

/// As [`check`], of products of many columns as `caps` has them, by each kernel that computes tiles.
///
/// # Errors
/// As [`check`].
pub fn check_tile(device: &Device, caps: &Caps) -> Result<(), crate::Error> {
    let tiled = columns_tiled(caps, input_of(caps, Case::TYPE, COLUMNS_TILED));
    check_columns(device, caps, (CHECK_COLUMNS_TILED, tiled))?;
    match tiled > COLUMNS_TILED {
        true => check_columns(device, caps, (COLUMNS_TILED, COLUMNS_TILED)),
        false => Ok(()),
    }
}

/// Checks a product of so many columns by the kernel that computes so many at once.
fn check_columns(device: &Device, caps: &Caps, columns: (u32, u32)) -> Result<(), crate::Error> {
    let wrong = |reason| crate::Error::SelfCheck { adapter: device.name().to_owned(), reason };
    let case = Case::new(caps, columns);
    let found = case.run(device).map_err(|error| wrong(error.to_string()))?;
    let expected = case.expected();
    let square = |x: f64| x * x;
    let off: f64 = expected.iter().zip(&found).map(|(e, f)| square(e - f64::from(*f))).sum();
    let whole: f64 = expected.iter().map(|&e| square(e)).sum();
    let error = (off / whole).sqrt();
    let bound = match case.input {
        Input::Halves => CHECK_BOUND_HALVES,
        Input::Floats | Input::Quantized => CHECK_BOUND,
    };
    // Not `>`: the error may be NaN.
    match error.partial_cmp(&bound) {
        Some(Ordering::Less) => Ok(()),
        _ => Err(wrong(format!(
            "{}: a product of {CHECK_ROWS} x {CHECK_COLS} is off by {error:e}",
            case.source.name
        ))),
    }
}

/// A product of a Q8_0 matrix, in split layout.
struct Case {
    source: Source,
    params: GemvParams,
    groups: [u32; 3],
    scales: Vec<f16>,
    quants: Vec<i8>,
    /// `[columns, CHECK_COLS]`.
    x: Vec<i8>,
    columns: u32,
    input: Input,
}

/// The scale of the columns' integers.
const STEP: f32 = 1.0 / 64.0;

impl Case {
    const TYPE: Type = Type::Q8_0;

    fn new(caps: &Caps, (columns, of_key): (u32, u32)) -> Case {
        let ty = Case::TYPE;
        let input = input_of(caps, ty, of_key.min(COLUMNS_TILED));
        let rows = rows_of(caps, input, of_key, Epilogue::Plain, CHECK_ROWS as u32);
        let key = GemvKey::plain(ty, of_key, rows, input);
        let row_blocks = CHECK_COLS / ty.block_weights;
        let blocks = CHECK_ROWS * row_blocks;
        // Numbers that do not repeat with the layout's strides.
        let small = |i: usize| ((i * 2_654_435_761) >> 7) as u8 as i8;
        let mut matrices = [Matrix::default(); 3];
        matrices[0].blocks = blocks as u32;
        let stride = CHECK_COLS / input.element_values();
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
            groups: key.grid(CHECK_ROWS as u32, columns),
            scales: (0..blocks).map(|i| f16::from_f32(0.01 + 0.001 * (i % 7) as f32)).collect(),
            quants: (0..CHECK_ROWS * CHECK_COLS).map(small).collect(),
            x: (0..columns as usize * CHECK_COLS).map(|i| small(i * 31 + 5).max(-127)).collect(),
            columns,
            input,
            source: key.source(caps),
        }
    }

    /// `[columns, CHECK_ROWS]`.
    fn run(&self, device: &Device) -> Result<Vec<f32>, GraphError> {
        let step: Vec<u32> = vec![self.columns; 8];
        let inputs: Vec<Vec<u8>> = match self.input {
            Input::Floats => {
                let floats = self.x.iter().flat_map(|&x| (f32::from(x) * STEP).to_le_bytes());
                vec![floats.collect()]
            }
            Input::Quantized => {
                let sums = self.x.chunks_exact(16).flat_map(|piece| {
                    let sum = piece.iter().map(|&x| f32::from(x)).sum::<f32>();
                    [STEP, STEP * sum].map(f32::to_le_bytes).concat()
                });
                vec![bytemuck::cast_slice(&self.x).to_vec(), sums.collect()]
            }
            Input::Halves => {
                let halves = self.x.iter().flat_map(|&x| f16::from_f32(x.into()).to_le_bytes());
                vec![halves.collect(), STEP.to_le_bytes().repeat(self.columns as usize)]
            }
        };
        // One plane after another: scales, then quants.
        let mut weights: Vec<u8> = bytemuck::cast_slice(&self.scales).to_vec();
        weights.extend_from_slice(bytemuck::cast_slice(&self.quants));
        let out = vec![0; 4 * CHECK_ROWS * self.columns as usize];
        let mut data: Vec<&[u8]> = vec![bytemuck::cast_slice(&step)];
        data.extend(inputs.iter().map(Vec::as_slice));
        data.extend([out.as_slice(), &weights, &weights]);
        let params = bytemuck::bytes_of(&self.params);
        let results = device.run(&self.source, params, &data, self.groups)?;
        let place = data.len() - 3;
        Ok(results[place].chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
    }

    /// `[columns, CHECK_ROWS]`.
    fn expected(&self) -> Vec<f64> {
        let row_blocks = CHECK_COLS / 32;
        let columns = self.x.chunks_exact(CHECK_COLS);
        columns
            .flat_map(|x| {
                let rows = self.quants.chunks_exact(CHECK_COLS);
                rows.enumerate().map(move |(row, quants)| {
                    let term = |(i, &q): (usize, &i8)| {
                        let scale = self.scales[row * row_blocks + i / 32].to_f64();
                        scale * f64::from(q) * f64::from(x[i]) * f64::from(STEP)
                    };
                    quants.iter().enumerate().map(term).sum()
                })
            })
            .collect()
    }
}
