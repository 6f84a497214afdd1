//! What a weight is on the device: its type and layout, the memory it takes, and the rows that are uploaded at once.

use std::ops::Range;

use bilayer_graph::Weight;
use bilayer_quant::Type;

use crate::kernels::weights::{Layout, stored};
use crate::staging::CHUNK_BYTES;

/// Binding alignment within a block in bytes, the maximum required by any GPU.
pub(super) const ALIGNMENT: u64 = 256;

/// Alignment of a weight in a window in bytes, which kernels read in vectors.
pub(super) const WINDOW_ALIGNMENT: usize = 16;

/// In split layout, rows are padded to a multiple of this many weights.
pub const ROW_MULTIPLE: usize = 64;

/// In split layout, the number of quantization blocks of a matrix is rounded up to a multiple of this, so that every
/// plane begins at a multiple of 16 bytes.
const BLOCKS_MULTIPLE: usize = 16;

/// The type of a weight on the device.
pub fn device_type(weight: &Weight) -> Type {
    if is_vector(weight) {
        return Type::F32;
    }
    stored(weight.ty)
}

/// Whether the weight is a norm gain, a bias or similar, or a stack of such, which are stored as floats.
pub(super) fn is_vector(weight: &Weight) -> bool {
    weight.is_vector() && weight.ty.block_weights == 1
}

/// A range of rows of a matrix in a block of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRange {
    /// Its container.
    pub home: Home,
    /// Offset in it, bytes.
    pub base: u32,
    /// Quantization blocks, rounded up as required by the layout.
    pub blocks: u32,
    /// Quantization blocks per row.
    pub row_blocks: u32,
    /// The matrix's row that is row 0 of this range.
    pub first_row: u32,
    /// Rows.
    pub rows: u32,
}

/// A weight on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Its type on the device.
    pub ty: Type,
    /// Its layout on the device.
    pub layout: Layout,
    /// Weights per row.
    pub cols: u32,
    /// Its rows, in order; several ranges if it exceeds a block.
    pub parts: Vec<RowRange>,
}

/// The container of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// A block of the device's memory.
    Block(usize),
    /// A window on the file.
    Window(usize),
}

/// The wanted rows of a range that are uploaded at once: the first row and their number. They begin where every plane is
/// aligned for a copy: at multiples of four rows, or at any row of whole words that is stored as in the file.
pub(super) fn rows_at_once(
    (weight, placed): (&Weight, &Placed),
    part: &RowRange,
    wanted: &Range<usize>,
) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (all, first_row) = (part.rows as usize, part.first_row as usize);
    let is_aligned = placed.layout == Layout::Raw && row_bytes(placed).is_multiple_of(4);
    let multiple = if is_aligned { 1 } else { 4 };
    let from = wanted.start.saturating_sub(first_row) / multiple * multiple;
    let to = wanted.end.saturating_sub(first_row).next_multiple_of(multiple).min(all);
    let row_bytes = weight.row_bytes();
    let most = (CHUNK_BYTES / row_bytes.max(1)).max(1).next_multiple_of(4);
    (from..to).step_by(most).map(move |row| (row, most.min(to - row)))
}

/// A weight's layout on the device, without a location.
pub(super) fn shape(weight: &Weight) -> Placed {
    let ty = device_type(weight);
    // Kernels find a bias of an expert by its number, without padding between them.
    let layout = match is_vector(weight) && weight.stacked > 1 {
        true => Layout::Raw,
        false => Layout::of(ty),
    };
    Placed { ty, layout, cols: weight.cols as u32, parts: Vec::new() }
}

/// Whether shaders can read a weight directly from the file: residents are exchanged, so they are copied.
pub(super) fn is_read_in_place(weight: &Weight) -> bool {
    let Placed { ty, layout, .. } = shape(weight);
    layout == Layout::Raw && ty == weight.ty && !is_vector(weight) && !weight.is_resident
}

/// A weight that is read at an offset of a window.
pub(super) fn in_window(weight: &Weight, home: Home, at: usize) -> Placed {
    let mut placed = shape(weight);
    let row_blocks = row_blocks(&placed);
    placed.parts.push(RowRange {
        home,
        base: at as u32,
        blocks: (weight.rows * row_blocks) as u32,
        row_blocks: row_blocks as u32,
        first_row: 0,
        rows: weight.rows as u32,
    });
    placed
}

/// Quantization blocks of a row on the device.
pub(super) fn row_blocks(placed: &Placed) -> usize {
    let cols = placed.cols as usize;
    match placed.layout {
        Layout::Raw => cols / placed.ty.block_weights,
        Layout::Split => cols.next_multiple_of(ROW_MULTIPLE).div_ceil(placed.ty.block_weights),
    }
}

pub(super) fn row_bytes(placed: &Placed) -> u64 {
    (row_blocks(placed) * placed.ty.block_bytes) as u64
}

/// Maximum rows of a range that fills a block of memory, including the rounding of its quantization blocks; at least
/// one.
pub(super) fn most_rows(placed: &Placed, block_bytes: u64) -> usize {
    let mut rows = (block_bytes / row_bytes(placed)) as usize / 4 * 4;
    while rows > 4 && extent(placed, rows).1 > block_bytes {
        rows -= 4;
    }
    rows.max(1)
}

/// Blocks and bytes of this many rows.
pub(super) fn extent(placed: &Placed, rows: usize) -> (usize, u64) {
    let blocks = rows * row_blocks(placed);
    let blocks = match placed.layout {
        Layout::Raw => blocks,
        Layout::Split => blocks.next_multiple_of(BLOCKS_MULTIPLE),
    };
    (blocks, (blocks * placed.ty.block_bytes) as u64)
}

/// Bytes of a weight on any GPU.
pub fn device_bytes(weight: &Weight) -> u64 {
    extent(&shape(weight), weight.rows).1.next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use bilayer_graph::WeightId;

    use super::*;

    #[test]
    fn no_part_is_larger_than_its_block() {
        for ty in [Type::Q4_K, Type::Q6_K, Type::Q8_0, Type::Q4_0, Type::F16, Type::F32] {
            for cols in [256, 768, 1536, 4096] {
                let layout = Layout::of(ty);
                let placed = Placed { ty, layout, cols, parts: Vec::new() };
                for block_bytes in [64 << 10, 1 << 20, 128 << 20] {
                    let rows = most_rows(&placed, block_bytes);
                    let (_, bytes) = extent(&placed, rows);
                    assert!(bytes <= block_bytes, "{ty} of {cols}: {bytes} of {block_bytes}");
                    // And less than eight rows are left over, and less than sixteen quantization blocks.
                    let over = block_bytes - bytes;
                    let most = 8 * row_bytes(&placed) + 16 * ty.block_bytes as u64;
                    assert!(over < most, "{ty} of {cols}: {over} left over");
                }
            }
        }
    }

    #[test]
    fn uploads_begin_where_every_plane_is_aligned() {
        // A part with the rows from 8 on.
        let at = |ty: Type, stacked: usize| {
            let (id, name) = (WeightId(0), String::new());
            let (rows, cols, first_row, layer) = (16, 256, 0, None);
            let weight =
                Weight { id, name, ty, rows, cols, first_row, stacked, is_resident: true, layer };
            let home = Home::Block(0);
            let part = RowRange { home, base: 0, blocks: 0, row_blocks: 0, first_row: 8, rows: 8 };
            [3..9, 9..10, 3..8].map(|wanted| {
                rows_at_once((&weight, &shape(&weight)), &part, &wanted).collect::<Vec<_>>()
            })
        };
        let apart = [vec![(0, 1)], vec![(1, 1)], vec![]];
        let fours = [vec![(0, 4)], vec![(0, 4)], vec![]];
        // Matrices whose blocks are whole vectors, and vectors of experts.
        assert_eq!(at(Type::Q4_K, 1), apart);
        assert_eq!(at(Type::F32, 16), apart);
        assert_eq!(at(Type::Q6_K, 1), fours);
        assert_eq!(at(Type::F32, 1), fours);
    }
}
