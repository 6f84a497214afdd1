//! GEMV: dot products of consecutive weight rows with a few activation columns, straight from GGUF bytes.
//!
//! Decode reads every weight once per token, so it is bound by memory bandwidth, and kernels must not slow the stream
//! down. The rules that all kernels here follow:
//!
//! - Rows are read as one sequential stream, prefetched [`AHEAD`] bytes in front: hardware prefetchers stop at page
//!   boundaries, and two rows at a time would be two streams.
//! - Nothing is repacked. A block is unpacked once in registers and multiplied with up to eight columns.
//! - Products and sums inside a block are exact integers; a block's sum is scaled and accumulated in f32. The kernels
//!   of one type differ between levels only in f32 summation order, except IQ4_XS: at AVX2 its activations have one
//!   scale per 256, as in prefill, and one per 32 at the other levels.
//!
//! There are two dense kernel families: `k` kernels multiply blocks of 256 with [`Format::Q8x256`], `quad` kernels
//! multiply four blocks of 32 at a time with [`Format::Q8x32`]; `sparse.rs` looks activations up by place, `whole_row.rs`
//! sums rows with one scale as integers. A family's loop is written once per level (`scalar.rs`, `avx2.rs`, `avxvnni.rs`,
//! `avx512.rs` and `avx512vl.rs`, `neon.rs`), for all types whose bits `types/` states. Types without that dequantize
//! each block and use the f32 dot product (`float.rs`).

use bilayer_quant::Type;
use bytemuck::Pod;

use crate::activations::{Activations, Format};
use crate::bytes::f16_at;
use crate::level::{Level, halves_512};
use crate::stream::prefetch_lines;
use crate::types::{self, Quads, for_each_type};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512vl;
#[cfg(target_arch = "x86_64")]
mod avxvnni;
mod float;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
mod sparse;
mod whole_row;

/// Prefetch distance in bytes: three pages, so that the stream does not stall where hardware prefetchers restart.
/// benches/record compares distances.
pub const AHEAD: usize = 12 << 10;

/// Prefetch distance for floats.
const AHEAD_FLOATS: usize = 8 << 10;

/// Prefetches the lines `ahead` bytes behind those of a block into the second-level cache. In the first one they would replace
/// activations, and wait for memory in the few buffers by which it is filled: on Zen 4 two threads read rows of Q4_K of 14336
/// weights at 28 GB/s then, instead of 50, and rows of F16 of 4096 at 32 instead of 48.
#[inline(always)]
fn prefetch(block: &[u8], ahead: usize) {
    prefetch_lines(block.as_ptr().wrapping_add(ahead), block.len().div_ceil(64));
}

/// Bytes of rows that are still in the second-level cache for a second group of columns.
const TILE_BYTES: usize = 128 << 10;

/// Makes kernels for the numbers of columns: what `$kernel` is for each `$columns`.
macro_rules! kernels {
    ($columns:ident in [$($count:literal)+] => $kernel:expr) => {
        &[$((
            $count,
            {
                const $columns: usize = $count;
                $kernel
            },
        )),+]
    };
}

/// Makes a table entry from level, name, format and [`kernels`].
macro_rules! entry {
    ($level:ident, $name:expr, $format:ident, $columns:ident in $counts:tt => $kernel:expr) => {
        Entry {
            level: Level::$level,
            name: $name,
            format: Format::$format,
            kernels: kernels!($columns in $counts => $kernel),
            halved: None,
        }
    };
}
use {entry, kernels};

/// The entries of a type with blocks of 256.
macro_rules! super_block {
    ($stem:ident::$type:ident) => {{
        type T = types::$stem::$type;
        const ALL: &[Entry] = &[
            entry!(Scalar, concat!(stringify!($stem), ".scalar"), Q8x256, C in [1 4] => scalar::k::<T, C>),
            #[cfg(target_arch = "x86_64")]
            entry!(Avx2, concat!(stringify!($stem), ".avx2"), Q8x256, C in [1 2 3 4] => avx2::k::<T, C>),
            #[cfg(target_arch = "x86_64")]
            entry!(AvxVnni, concat!(stringify!($stem), ".avxvnni"), Q8x256, C in [1 2 4] => avxvnni::k::<T, C>),
            #[cfg(target_arch = "x86_64")]
            Entry {
                halved: Some(kernels!(C in [1 2 4 8] => avx512vl::k::<T, C>)),
                ..entry!(Avx512Vnni, concat!(stringify!($stem), ".avx512vnni"), Q8x256, C in [1 2 4 8] => avx512::k::<T, C>)
            },
            #[cfg(target_arch = "aarch64")]
            entry!(Neon, concat!(stringify!($stem), ".neon"), Q8x256, C in [1 2 4] => neon::plain::<neon::OfBlocks<T>, C>),
            #[cfg(target_arch = "aarch64")]
            entry!(NeonDotprod, concat!(stringify!($stem), ".neon-dotprod"), Q8x256, C in [1 2 4] => neon::dotprod::<neon::OfBlocks<T>, C>),
        ];
        ALL
    }};
}

/// The entries of a type that is unpacked four blocks of 32 at a time.
macro_rules! quads {
    ($stem:ident::$type:ident) => {{
        type T = types::$stem::$type;
        const BYTES: usize = <T as Quads>::BYTES;
        const ALL: &[Entry] = &[
            entry!(Scalar, concat!(stringify!($stem), ".scalar"), Q8x32, C in [1 4] => scalar::quad::<T, BYTES, C>),
            #[cfg(target_arch = "x86_64")]
            entry!(Avx2, concat!(stringify!($stem), ".avx2"), Q8x32, C in [1 2 3 4] => avx2::quad::<T, BYTES, C>),
            #[cfg(target_arch = "x86_64")]
            entry!(AvxVnni, concat!(stringify!($stem), ".avxvnni"), Q8x32, C in [1 2 4] => avxvnni::quad::<T, BYTES, C>),
            #[cfg(target_arch = "x86_64")]
            entry!(Avx512Vnni, concat!(stringify!($stem), ".avx512vnni"), Q8x32, C in [1 2 4 8] => avx512::quad::<T, BYTES, C>),
            #[cfg(target_arch = "aarch64")]
            entry!(Neon, concat!(stringify!($stem), ".neon"), Q8x32, C in [1 2 4] => neon::plain::<neon::OfQuads<T, BYTES>, C>),
            #[cfg(target_arch = "aarch64")]
            entry!(NeonDotprod, concat!(stringify!($stem), ".neon-dotprod"), Q8x32, C in [1 2 4] => neon::dotprod::<neon::OfQuads<T, BYTES>, C>),
        ];
        ALL
    }};
}

/// The entries of a type with both traits, such as IQ4_XS: at AVX2 it is multiplied as the K types are, with one
/// product and one 32-bit sum per 32 weights, where floats would need two and a shuffle.
macro_rules! both {
    ($stem:ident::$type:ident) => {{
        const QUADS: &[Entry] = quads!($stem::$type);
        #[cfg(target_arch = "x86_64")]
        const ALL: &[Entry] = &[
            QUADS[0],
            entry!(Avx2, concat!(stringify!($stem), ".avx2"), Q8x256, C in [1 2 3 4] => avx2::k::<types::$stem::$type, C>),
            QUADS[2],
            QUADS[3],
        ];
        #[cfg(not(target_arch = "x86_64"))]
        const ALL: &[Entry] = QUADS;
        ALL
    }};
}

/// All dense quantized types with kernels of their own.
macro_rules! table {
    ($($ty:ident $stem:ident::$type:ident $family:ident;)*) => {
        &[$((Type::$ty, $family!($stem::$type)),)*]
    };
}
const TABLE: &[(Type, &[Entry])] = for_each_type!(table);

/// The kernels of a type for rows of `cols` weights.
fn entries(ty: Type, cols: usize) -> &'static [Entry] {
    if types::is_whole_row(ty, cols) {
        return whole_row::ENTRIES;
    }
    let mut all = TABLE.iter().chain(sparse::TABLE).chain(&float::TABLE);
    all.find(|(of, _)| *of == ty).map_or(float::GENERIC, |(_, entries)| entries)
}

/// An entry of a type's table: the kernels of a level.
#[derive(Clone, Copy)]
struct Entry {
    level: Level,
    name: &'static str,
    format: Format,
    kernels: Kernels,
    /// Those for CPUs that compute 512 bits in two halves ([`halves_512`]), where they are others.
    halved: Option<Kernels>,
}

impl Entry {
    /// The kernels for this CPU.
    fn kernels(&self) -> Kernels {
        self.halved.filter(|_| halves_512()).unwrap_or(self.kernels)
    }
}

/// Kernels by number of columns, in rising order, the first for one column.
type Kernels = &'static [(usize, Kernel)];

/// Computes a [`Job`]; unsafe to call on a CPU without its level.
type Kernel = unsafe fn(&mut Job<'_>);

/// A dot kernel for rows of one type and length.
#[derive(Clone, Copy)]
pub struct Dot {
    /// Type and level, such as `q4_k.avx512vnni`, or the fallback's, such as `generic.avx2`.
    pub name: &'static str,
    /// The required activation format.
    pub format: Format,
    /// Maximum number of columns per pass over the weights; more are processed in groups.
    pub columns_max: usize,
    ty: Type,
    cols: usize,
    kernels: Kernels,
}

/// The best kernel for rows of `cols` weights of type `ty` at or below `level`; the generic kernel as a last resort.
///
/// # Panics
/// If `cols` is not a whole number of blocks of `ty`, or if this CPU lacks `level`.
#[must_use]
pub fn dot(ty: Type, cols: usize, level: Level) -> Dot {
    best(entries(ty, cols), ty, cols, level)
}

/// [`dot`] with f32 activations: blocks of quantized weights are dequantized. Types whose activations keep outliers apart
/// ([`Format::Q8Row`]) are multiplied as by [`dot`].
///
/// # Panics
/// Those of [`dot`].
#[must_use]
pub fn dot_fine(ty: Type, cols: usize, level: Level) -> Dot {
    let is_fine = ty.block_weights == 1 || types::is_whole_row(ty, cols);
    let entries = if is_fine { entries(ty, cols) } else { float::GENERIC };
    best(entries, ty, cols, level)
}

fn best(entries: &'static [Entry], ty: Type, cols: usize, level: Level) -> Dot {
    assert!(level.is_available(), "this CPU does not support {level}");
    assert!(cols.is_multiple_of(ty.block_weights), "{cols} columns are not whole {ty} blocks");
    let entry = entries
        .iter()
        .filter(|entry| entry.level <= level && entry.level.is_available())
        .max_by_key(|entry| entry.level)
        .expect("every table has a scalar line");
    let (name, format, kernels) = (entry.name, entry.format, entry.kernels());
    let columns_max = kernels.last().map_or(1, |(width, _)| *width);
    Dot { name, format, columns_max, ty, cols, kernels }
}

impl Dot {
    /// Bytes of one weight row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.ty.row_bytes(self.cols).expect("`dot` has checked the columns")
    }

    /// Computes `out[c * rows + r]` = weight row `r` · column `c`.
    ///
    /// `weights` are consecutive rows in GGUF layout at any address, `out` is `[columns, rows]`. Accumulates in f32.
    /// Any number of columns is allowed; up to `columns_max` need only one pass over the weights.
    ///
    /// # Panics
    /// If sizes are inconsistent or the column data is not aligned.
    pub fn run(&self, weights: &[u8], columns: Activations<'_>, out: &mut [f32]) {
        let row_bytes = self.row_bytes();
        assert_eq!(columns.cols, self.cols, "columns of another length");
        let column_bytes = self.format.column_bytes(self.cols);
        assert_eq!(columns.data.len(), columns.count * column_bytes, "bytes of the columns");
        if row_bytes == 0 || columns.count == 0 || weights.is_empty() {
            out.fill(0.0);
            return;
        }
        assert!(weights.len().is_multiple_of(row_bytes), "{} bytes: no whole rows", weights.len());
        let rows = weights.len() / row_bytes;
        assert_eq!(out.len(), rows * columns.count, "results");
        let one_group = columns.count <= self.columns_max;
        let tile_rows = if one_group { rows } else { (TILE_BYTES / row_bytes).max(1) };
        for (tile, weights) in weights.chunks(tile_rows * row_bytes).enumerate() {
            let mut first = 0;
            while first < columns.count {
                let (width, kernel) = self.kernel(columns.count - first);
                let mut job = Job {
                    ty: self.ty,
                    weights,
                    row_bytes,
                    columns,
                    first,
                    out,
                    rows,
                    row: tile * tile_rows,
                };
                // SAFETY: `dot` has checked that this CPU supports the kernel's level.
                unsafe { kernel(&mut job) };
                first += width;
            }
        }
    }

    /// The kernel for the next of `count` remaining columns: the narrowest that covers them all with at most a
    /// quarter idle, otherwise the widest without idle columns.
    fn kernel(&self, count: usize) -> (usize, Kernel) {
        let fits = self.kernels.iter().find(|(width, _)| *width >= count);
        match fits {
            Some(fits) if 4 * count >= 3 * fits.0 => *fits,
            _ => *self
                .kernels
                .iter()
                .rev()
                .find(|(width, _)| *width <= count)
                .expect("every line has a kernel for one column"),
        }
    }
}

/// The work of one kernel call: consecutive rows times a group of columns.
struct Job<'a> {
    ty: Type,
    /// The rows.
    weights: &'a [u8],
    row_bytes: usize,
    columns: Activations<'a>,
    /// The first column of the group.
    first: usize,
    /// Results of all rows and columns, `[columns, rows]`.
    out: &'a mut [f32],
    rows: usize,
    /// Index of the first row of `weights` among all rows.
    row: usize,
}

impl<'a> Job<'a> {
    /// The columns of the group; if fewer than `C` are left, the last one is repeated.
    fn columns<T: Pod, const C: usize>(&self) -> [&'a [T]; C] {
        let last = self.columns.count - 1;
        std::array::from_fn(|c| self.columns.column(last.min(self.first + c)))
    }

    /// The rows, in order.
    fn rows(&self) -> std::slice::ChunksExact<'a, u8> {
        self.weights.chunks_exact(self.row_bytes)
    }

    /// Stores the results of row `index` of the job, except those of repeated columns.
    fn store<const C: usize>(&mut self, index: usize, sums: [f32; C]) {
        for (c, sum) in sums.into_iter().take(self.columns.count - self.first).enumerate() {
            self.out[(self.first + c) * self.rows + self.row + index] = sum;
        }
    }
}

/// Unrolls `step` for each of `C` columns: the compiler stops unrolling loops at eight columns, and the accumulators
/// would be spilled.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn each<const C: usize>(mut step: impl FnMut(usize)) {
    const { assert!(C <= 8) };
    if C > 0 {
        step(0);
    }
    if C > 1 {
        step(1);
    }
    if C > 2 {
        step(2);
    }
    if C > 3 {
        step(3);
    }
    if C > 4 {
        step(4);
    }
    if C > 5 {
        step(5);
    }
    if C > 6 {
        step(6);
    }
    if C > 7 {
        step(7);
    }
}

/// A row in groups of `N` bytes.
struct Groups<'a, const N: usize> {
    whole: &'a [[u8; N]],
    /// The remainder of the row, zero-padded: the padding is harmless for every type, since the columns are zero
    /// there too.
    tail: [u8; N],
    count: usize,
}

impl<'a, const N: usize> Groups<'a, N> {
    #[inline(always)]
    fn of(row: &'a [u8]) -> Self {
        let (whole, rest) = row.as_chunks::<N>();
        let mut tail = [0; N];
        if !rest.is_empty() {
            tail[..rest.len()].copy_from_slice(rest);
        }
        Groups { whole, tail, count: whole.len() + usize::from(!rest.is_empty()) }
    }

    /// The groups in order, with a single counter: chained iterators would check at every step which of them is
    /// active.
    #[inline(always)]
    fn iter(&self) -> impl Iterator<Item = &[u8; N]> {
        (0..self.count).map(|group| {
            let group = self.whole.get(group).unwrap_or(&self.tail);
            // Selected once here rather than at every byte read.
            #[cfg(target_arch = "x86_64")]
            let group = crate::x86::apart(group);
            group
        })
    }
}

#[cfg(test)]
mod tests;
