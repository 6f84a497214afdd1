//! GEMM: products of several tokens with weights in their GGUF layout.
//!
//! The activations are packed once per product ([`Packing`]). Each work item takes a panel of weight rows, unpacks
//! 256 columns of it at a time into the first-level cache in the order of the instructions, and sweeps all packed
//! tokens over it, accumulating in f32. Unpacked weights are not kept, so prefill reads the same memory map as
//! decode; unpacking costs a few per cent from a hundred tokens on.
//!
//! ```
//! use bilayer_cpu::gemm::gemm;
//! use bilayer_cpu::level::Level;
//! use bilayer_quant::Type;
//!
//! // [rows, cols] = [2, 4], [tokens, cols] = [3, 4].
//! let weights: Vec<u8> = [1.0f32, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0].map(f32::to_le_bytes).concat();
//! let x = [1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 1.0, 5.0, 0.0, 0.0, 0.0];
//! let gemm = gemm(Type::F32, 4, Level::Scalar);
//! let packed = gemm.packing.pack_all(&x, 3);
//! let mut scratch = vec![0; gemm.scratch_bytes(3)];
//! let mut out = [0.0; 6];
//! gemm.run(&weights, packed.get(), &mut scratch, &mut out);
//! assert_eq!(out, [1.0, 10.0, 0.0, 1.0, 5.0, 5.0]);
//! ```

use bilayer_quant::Type;

use crate::activations::{Format, SPAN};
use crate::level::Level;
use crate::panel::{self, Quants, ROWS};
use crate::tile::{self, Rounding, Tiling};
use crate::types;

mod float;
mod integer;
pub(crate) mod packing;
#[cfg(target_arch = "x86_64")]
mod tiled;
mod whole_row;

pub use packing::{Packed, PackedChunks, Packing};

use float::Float;
use integer::Integer;
pub(crate) use whole_row::WholeRow;

/// Number of tokens from which products of all types are computed here; fewer may be computed by [`crate::dot`], and are
/// where [`Exactness::PerRow`](bilayer_graph::Exactness::PerRow) is asked for.
pub const TOKENS_MIN_MAX: usize = tile::TOKENS_MIN_MAX;

/// The kernel for products with one weight type: the result of [`gemm`].
#[derive(Clone, Copy)]
pub struct Gemm {
    /// Name of the kernels, such as `int8 avx512vnni`.
    pub name: &'static str,
    /// The number of rows that [`Gemm::run`] processes at a time: pass it or a multiple.
    pub panel_rows: usize,
    /// Number of tokens from which this is faster than [`crate::dot`]; at most [`TOKENS_MIN_MAX`].
    pub tokens_min: usize,
    /// The packing of the activations.
    pub packing: Packing,
    row_bytes: usize,
    path: Path,
    /// The kernels where the packing has another format for few tokens.
    few: Option<Path>,
    /// Whether the weights are rounded, but for few tokens.
    is_rounded: bool,
}

#[derive(Clone, Copy)]
enum Path {
    Integer(Integer),
    WholeRow(WholeRow),
    Float(Float),
    #[cfg(target_arch = "x86_64")]
    Tiled(tiled::Tiled),
}

impl Path {
    /// Rows processed at a time.
    fn rows(self) -> usize {
        match self {
            Path::Integer(integer) => integer.rows(),
            Path::Float(_) | Path::WholeRow(_) => ROWS,
            #[cfg(target_arch = "x86_64")]
            Path::Tiled(_) => tiled::RUN_ROWS,
        }
    }

    /// Scratch size in bytes.
    fn scratch_bytes(self, tokens: usize) -> usize {
        let strip = match self {
            #[cfg(target_arch = "x86_64")]
            Path::Tiled(_) => tiled::Tiled::strip_bytes(tokens),
            _ => tokens * self.rows() * 4,
        };
        let own = match self {
            Path::Integer(_) => size_of::<integer::Scratch>(),
            Path::WholeRow(_) => size_of::<whole_row::Scratch>(),
            Path::Float(_) => size_of::<float::Scratch>(),
            #[cfg(target_arch = "x86_64")]
            Path::Tiled(_) => size_of::<tiled::Scratch>(),
        };
        own + strip
    }
}

/// The kernel for weights of type `ty` with rows of `cols` columns, at a level available on this CPU. Always
/// succeeds: types without kernels of their own are dequantized to f32.
///
/// # Panics
/// If `cols` is not a whole number of the type's blocks.
pub fn gemm(ty: Type, cols: usize, level: Level) -> Gemm {
    if types::is_whole_row(ty, cols) {
        return whole_row::gemm(ty, cols, level);
    }
    with(panel::quants(ty), Tiling::of(level).float_format(ty), ty, cols, level)
}

/// [`gemm`] with activations as f32 or bf16, or in eight bits with outliers apart, never in eight bits alone.
///
/// # Panics
/// Those of [`gemm`].
pub fn gemm_fine(ty: Type, cols: usize, level: Level) -> Gemm {
    if types::is_whole_row(ty, cols) {
        return gemm(ty, cols, level);
    }
    with(None, Format::F32, ty, cols, level)
}

/// The kernel with the integer kernels of `quants`, or with floats in a format.
fn with(
    quants: Option<&'static Quants>,
    floats: Format,
    ty: Type,
    cols: usize,
    level: Level,
) -> Gemm {
    assert!(level.is_available(), "level {level} does not run here");
    let row_bytes = ty.row_bytes(cols).expect("rows are whole blocks");
    let tiling = Tiling::of(level);
    let fast = quants.filter(|quants| (tiling.fill)(quants).is_some());
    let fused = quants.and((tiling.fused)(ty)).filter(|_| cols.is_multiple_of(SPAN));
    let tokens_min = match fused {
        Some(fused) => fused.tokens_min,
        None => fast.map_or(TOKENS_MIN_MAX, tiling.tokens_min),
    };
    #[cfg(target_arch = "x86_64")]
    if tiling.has_matrix_unit {
        let packing = Packing::new(Format::Tiles { planes: tiled::planes(ty) }, cols, level)
            .with_few(quants.map(|quants| (tiled::TOKENS_MIN, tiling.format(quants))));
        let few = quants.map(|quants| Path::Integer(Integer::new(quants, fused, packing)));
        let path = Path::Tiled(tiled::Tiled::new(ty, level));
        return Gemm {
            name: "bf16 amx",
            panel_rows: tiled::RUN_ROWS,
            tokens_min,
            packing,
            row_bytes,
            path,
            few,
            is_rounded: false,
        };
    }
    let [integer_name, float_name] = tiling.names;
    match quants {
        Some(quants) => {
            let packing = Packing::new(tiling.format(quants), cols, level);
            let integer = Integer::new(quants, fused, packing);
            let (panel_rows, path) = (integer.rows(), Path::Integer(integer));
            let (name, few, is_rounded) = (integer_name, None, false);
            Gemm { name, panel_rows, tokens_min, packing, row_bytes, path, few, is_rounded }
        }
        None => {
            let packing = Packing::new(floats, cols, level);
            let path = Path::Float(Float::new(ty, packing));
            let (name, panel_rows, few, is_rounded) = (float_name, ROWS, None, false);
            Gemm { name, panel_rows, tokens_min, packing, row_bytes, path, few, is_rounded }
        }
    }
}

/// [`gemm`] which rounds the weights to eight bits, with one scale per 256 columns of a row, for numbers of tokens from
/// which that is faster at the level: the result of a prompt then deviates about as if the weights were Q8_0. Equal to
/// [`gemm`] where nothing is gained.
///
/// # Panics
/// Those of [`gemm`].
pub fn gemm_rounded(ty: Type, cols: usize, level: Level) -> Gemm {
    let exact = gemm(ty, cols, level);
    let tiling = Tiling::of(level);
    let rounding = (tiling.rounding)(panel::quants(ty));
    let (Some(round), Some(Rounding { form, tokens_min })) = (panel::round(ty), rounding) else {
        return exact;
    };
    if types::is_whole_row(ty, cols) || !cols.is_multiple_of(SPAN) {
        return exact;
    }
    let quants = Quants::rounded(round, form);
    let few = (tokens_min, exact.packing.format);
    let packing = Packing::new(tiling.format(&quants), cols, level).with_few(Some(few));
    let integer = Integer::new(&quants, None, packing);
    let (panel_rows, path) = (exact.panel_rows.max(integer.rows()), Path::Integer(integer));
    Gemm { panel_rows, packing, path, few: Some(exact.path), is_rounded: true, ..exact }
}

impl Gemm {
    /// Scratch size of [`Gemm::run`] in bytes, per thread.
    pub fn scratch_bytes(&self, tokens: usize) -> usize {
        let few_max = self.packing.many().map_or(tokens, |many| tokens.min(many - 1));
        let few = self.few.map(|few| few.scratch_bytes(few_max));
        // The caller's buffer may start at any address.
        self.path.scratch_bytes(tokens).max(few.unwrap_or(0)) + 64
    }

    /// Number of tokens from which the weights are rounded, if they are at all.
    pub fn rounds_from(&self) -> Option<usize> {
        self.packing.many().filter(|_| self.is_rounded)
    }

    /// Whether weights are rounded for this number of tokens.
    #[cfg(test)]
    fn rounds(&self, tokens: usize) -> bool {
        self.rounds_from().is_some_and(|many| tokens >= many)
    }

    /// The kernels for this number of tokens.
    fn path(&self, tokens: usize) -> Path {
        match self.few {
            Some(few) if self.packing.is_few(tokens) => few,
            _ => self.path,
        }
    }

    /// Multiplies consecutive rows of weights in their GGUF layout with the packed activations and overwrites `out`
    /// `[tokens, rows]` f32. Any number of rows is allowed; [`Gemm::panel_rows`] are processed at a time.
    ///
    /// Sums of integer products are exact within a scale's columns; sums over scales are f32, in column order. With AVX2,
    /// codes of a full byte are first multiplied by their scales and rounded to twelve bits (`tile/avx2_wide.rs`). `scratch`
    /// has [`Gemm::scratch_bytes`] and may be uninitialized.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn run(&self, weights: &[u8], packed: Packed<'_>, scratch: &mut [u8], out: &mut [f32]) {
        self.multiply(Weights { bytes: weights, cold: true }, packed, scratch, out);
    }

    /// [`Gemm::run`] for the rows after those of the previous call, which has already prefetched them.
    ///
    /// # Panics
    /// If a length is wrong.
    pub fn run_on(&self, weights: &[u8], packed: Packed<'_>, scratch: &mut [u8], out: &mut [f32]) {
        self.multiply(Weights { bytes: weights, cold: false }, packed, scratch, out);
    }

    fn multiply(
        &self,
        Weights { bytes: weights, cold }: Weights<'_>,
        packed: Packed<'_>,
        scratch: &mut [u8],
        out: &mut [f32],
    ) {
        let rows = weights.len() / self.row_bytes;
        assert_eq!(weights.len(), rows * self.row_bytes, "whole rows");
        assert_eq!(out.len(), rows * packed.tokens, "out is [tokens, rows]");
        assert_eq!(packed.data.len(), self.packing.bytes(packed.tokens), "packed activations");
        if out.is_empty() {
            return;
        }
        let start = scratch.as_ptr().align_offset(64);
        let scratch = &mut scratch[start..];
        let (path, packing) = (self.path(packed.tokens), self.packing.at(packed.tokens));
        let panels = weights.chunks(path.rows() * self.row_bytes);
        for (index, weights) in panels.enumerate() {
            let cold = index == 0 && cold;
            let run = PanelProduct { weights, row_bytes: self.row_bytes, packing, packed, cold };
            let mut out = Out { values: &mut out[index * path.rows()..], stride: rows };
            match path {
                Path::Integer(integer) => {
                    let (own, rest) = scratch.split_at_mut(size_of::<integer::Scratch>());
                    let own = bytemuck::from_bytes_mut(own);
                    out.add_to(&run, rest, |strip, stride| integer.run(&run, own, strip, stride));
                }
                Path::WholeRow(whole_row) => {
                    let (own, rest) = scratch.split_at_mut(size_of::<whole_row::Scratch>());
                    let own = bytemuck::from_bytes_mut(own);
                    out.write(&run, rest, |strip, stride| whole_row.run(&run, own, strip, stride));
                }
                Path::Float(float) => {
                    let (own, rest) = scratch.split_at_mut(size_of::<float::Scratch>());
                    let own = bytemuck::from_bytes_mut(own);
                    out.add_to(&run, rest, |strip, stride| float.run(&run, own, strip, stride));
                }
                #[cfg(target_arch = "x86_64")]
                Path::Tiled(tiled) => {
                    let (own, rest) = scratch.split_at_mut(size_of::<tiled::Scratch>());
                    let strip = &mut rest[..tiled::Tiled::strip_bytes(packed.tokens)];
                    tiled.run(&run, bytemuck::from_bytes_mut(own), strip, &mut out);
                }
            }
        }
    }
}

/// Prefetch distance for activations, in chunks.
const CHUNKS_AHEAD: usize = 2;

/// Weight rows in their GGUF layout.
struct Weights<'a> {
    bytes: &'a [u8],
    /// Whether the first of them have not been prefetched yet.
    cold: bool,
}

/// The inputs of a panel's product.
struct PanelProduct<'a> {
    /// At most [`Gemm::panel_rows`] rows in their GGUF layout.
    weights: &'a [u8],
    /// Bytes per row.
    row_bytes: usize,
    /// The packing of the activations.
    packing: Packing,
    /// The packed activations.
    packed: Packed<'a>,
    /// Whether these weights have not been prefetched yet.
    cold: bool,
}

impl PanelProduct<'_> {
    fn rows(&self) -> usize {
        self.weights.len() / self.row_bytes
    }
}

/// The output of a panel; a token's results are `stride` after those of the previous token.
struct Out<'a> {
    values: &'a mut [f32],
    stride: usize,
}

impl Out<'_> {
    /// Lets `add` accumulate onto zeros, 32 rows at a time: in place if the rows are a multiple of 32, otherwise in
    /// `rest`.
    fn add_to(
        &mut self,
        run: &PanelProduct<'_>,
        rest: &mut [u8],
        add: impl FnOnce(&mut [f32], usize),
    ) {
        let width = run.rows().next_multiple_of(ROWS);
        self.write(run, rest, |strip, stride| {
            for token in strip.chunks_mut(stride) {
                token[..width].fill(0.0);
            }
            add(strip, stride);
        });
    }

    /// Lets `write` overwrite the results, 32 rows at a time; see [`Out::add_to`].
    fn write(
        &mut self,
        run: &PanelProduct<'_>,
        rest: &mut [u8],
        write: impl FnOnce(&mut [f32], usize),
    ) {
        let (rows, tokens) = (run.rows(), run.packed.tokens);
        let width = rows.next_multiple_of(ROWS);
        if width == rows {
            return write(&mut *self.values, self.stride);
        }
        let strip = bytemuck::cast_slice_mut(&mut rest[..tokens * width * 4]);
        write(strip, width);
        for (out, strip) in self.values.chunks_mut(self.stride).zip(strip.chunks_exact(width)) {
            out[..rows].copy_from_slice(&strip[..rows]);
        }
    }
}

#[cfg(test)]
mod tests;
