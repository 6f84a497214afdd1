//! [`Op::MatMul`](bilayer_graph::Op::MatMul): matrices of any type with a loader, times one to eight columns, or many by
//! tiles; and the products of [`Op::Experts`](bilayer_graph::Op::Experts), in which the route says what meets what.

use bilayer_graph::Activation;
use bilayer_quant::Type;
use bytemuck::{Pod, Zeroable};
use minijinja::{Value, context};

use super::bindings::{kernel, numbered};
use super::gate::activation_name;
use super::team::Team;
use super::view::View;
use super::weights::{Layout, is_ints, is_strided, loader_name, pairs};
use crate::caps::{Caps, Vendor};
use crate::kernel::{Source, fold};

/// Most columns of one workgroup.
pub const COLUMNS_MAX: u32 = 8;

/// Columns of a tile.
pub const COLUMNS_TILED: u32 = 64;

/// Rows of a tile; of two gated matrices half as many of each.
const ROWS_TILED: u32 = 64;

/// Threads that make a tile.
const THREADS_TILED: u32 = 256;

/// Most matrices of one dispatch.
pub const MATRICES_MAX: usize = 3;

/// What becomes of a product before it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// Nothing.
    Plain,
    /// A value is added.
    Residual,
    /// The first matrix's product goes through the activation and is multiplied with the second's.
    Gate(Activation),
}

/// Which of several matrices a column meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chosen {
    /// There is one for all.
    None,
    /// A column is a pair of a row and a place in its route, which has the expert; one column a workgroup.
    Pair,
    /// The columns of a workgroup are a group of [`super::experts`]: pairs of one expert.
    Group,
}

/// Which text. Bindings, in order: `step`, `xq` and `xs` if the input is quantized, else `x`; `vectors` with a bias;
/// `residual`; `route` of pairs or `table` of groups; `out` (written); the weights, twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemvKey {
    /// The matrices' type.
    pub ty: Type,
    /// How they lie.
    pub layout: Layout,
    /// Columns of a workgroup: 1, 2, 4 or 8, or [`COLUMNS_TILED`] for the kernel that goes by tiles.
    pub columns: u32,
    /// Rows of a workgroup.
    pub rows: u32,
    /// The input is quantized.
    pub ints: bool,
    /// Matrices of one input.
    pub matrices: u32,
    /// A bias is added.
    pub bias: bool,
    /// What chooses the matrix.
    pub chosen: Chosen,
    /// Floats of the input end before the last unit of 64 does, and others follow.
    pub ragged: bool,
    /// The rest.
    pub epilogue: Epilogue,
}

/// A matrix in a block of weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Matrix {
    /// Where it begins, bytes.
    pub base: u32,
    /// Its quantization blocks.
    pub blocks: u32,
    /// The first of the dispatch's rows that is its own.
    pub first_row: u32,
    /// Fills the last sixteen bytes.
    pub zero: u32,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct GemvParams {
    /// View of the input in quads; of a quantized one, 0 and the pieces of a row.
    pub x: View,
    /// Where the result's first row begins, and from row to row, in floats.
    pub out: [u32; 2],
    /// The same of the residual.
    pub residual: [u32; 2],
    /// The first column of the dispatch.
    pub first_column: u32,
    /// Where the step has the number of columns.
    pub columns_at: u32,
    /// Units of 64 weights in a row.
    pub units: u32,
    /// Rows of all matrices.
    pub rows: u32,
    /// Quantization blocks of a row.
    pub row_blocks: u32,
    /// Place of the bias in `vectors`, in floats.
    pub bias: u32,
    /// The matrices.
    pub matrices: [Matrix; MATRICES_MAX],
    /// Which of the experts' matrices meet what.
    pub experts: Experts,
}

/// The part of the uniform that products of experts read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Experts {
    /// Where the route's first row begins, and from row to row, in floats.
    pub route: [u32; 2],
    /// Experts of a row.
    pub used: u32,
    /// From expert to expert of a row of the input, in quads, or pieces of a quantized one; 0 where they share it.
    pub pitch: u32,
    /// Rows of the stack of all matrices that the part of the weights has: the first, and how many.
    pub part: [u32; 2],
    /// Where the table of groups has the pairs, in words.
    pub pairs_at: u32,
    /// Fills the last sixteen bytes.
    pub zero: u32,
}

impl GemvKey {
    fn is_tiled(&self) -> bool {
        self.columns == COLUMNS_TILED
    }

    /// Sums that a thread keeps for each column.
    fn slots(&self) -> u32 {
        match self.epilogue {
            Epilogue::Gate(_) => 2 * self.rows,
            _ => self.rows,
        }
    }

    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let team = match self.is_tiled() {
            true => Team { threads: THREADS_TILED, ..Team::small(caps) },
            false => Team::small(caps),
        };
        let at = numbered(&[
            ("step", true),
            ("xq", self.ints),
            ("xs", self.ints),
            ("x", !self.ints),
            ("vectors", self.bias),
            ("residual", self.epilogue == Epilogue::Residual),
            ("route", self.chosen == Chosen::Pair),
            ("table", self.chosen == Chosen::Group),
            ("out", true),
            ("weights", true),
            ("words", true),
        ]);
        let gate = match self.epilogue {
            Epilogue::Gate(activation) => activation_name(activation),
            _ => "",
        };
        let shared = context! { ..loader_context(self.ty, self.layout), ..team.context() };
        let context = context! {
            at, gate,
            activation => gate,
            slots => self.slots(),
            rows => self.rows,
            columns => self.columns,
            matrices => self.matrices,
            bias => self.bias,
            residual => self.epilogue == Epilogue::Residual,
            ints_x => self.ints,
            experts => match self.chosen {
                Chosen::None => "",
                Chosen::Pair => "pair",
                Chosen::Group => "group",
            },
            ragged => self.ragged,
            pairs => if caps.software { pairs(self.ty) } else { 0 },
            ..shared
        };
        let template = if self.is_tiled() { "matmul/tile" } else { "matmul/gemv" };
        kernel(self.name(team), template, context, team.threads)
    }

    fn name(&self, team: Team) -> String {
        let epilogue = match self.epilogue {
            Epilogue::Plain => "",
            Epilogue::Residual => " add",
            Epilogue::Gate(activation) => &format!(" {}", activation_name(activation)),
        };
        format!(
            "{}{} {} {}{}{} {}x{} m{}{}{epilogue} {}",
            match self.chosen {
                Chosen::None => "matmul",
                Chosen::Pair => "experts/pair",
                Chosen::Group => "experts/group",
            },
            if self.is_tiled() { "/tile" } else { "" },
            self.ty.name.to_lowercase(),
            if self.ints { "q8" } else { "f32" },
            if self.layout == Layout::Raw { " raw" } else { "" },
            if self.ragged { " ragged" } else { "" },
            self.rows,
            self.columns,
            self.matrices,
            if self.bias { " bias" } else { "" },
            team.name()
        )
    }

    /// Workgroups for `rows` rows (of the gate alone, if gated) and `columns` columns.
    pub fn grid(&self, rows: u32, columns: u32) -> [u32; 3] {
        if self.is_tiled() {
            return [rows.div_ceil(self.rows), 1, columns.div_ceil(COLUMNS_TILED)];
        }
        let [x, y] = fold(rows.div_ceil(self.rows));
        [x, y, columns.div_ceil(self.columns)]
    }
}

/// What parts/weights.wgsl wants to know of a type.
pub(crate) fn loader_context(ty: Type, layout: Layout) -> Value {
    let planes: Vec<Value> = ty
        .planes
        .iter()
        .map(|plane| context! { name => plane.name, offset => plane.offset, len => plane.len })
        .collect();
    context! {
        planes,
        loader => loader_name(ty),
        layout => match layout { Layout::Raw => "raw", Layout::Split => "split" },
        block_bytes => ty.block_bytes,
        ints => is_ints(ty),
        strided => is_strided(ty),
    }
}

/// Whether products of a type take their input quantized.
pub fn takes_ints(caps: &Caps, ty: Type) -> bool {
    caps.dot4 && is_ints(ty)
}

/// Matrices of fewer rows are not worth the compilation of a kernel with many sums.
const ROWS_MANY: u32 = 1024;

/// Rows of a workgroup: enough loads in flight, not too many sums. A software adapter pays for each load of each lane,
/// so that many rows and columns share what is loaded there; spilled sums cost less.
pub fn rows_of(caps: &Caps, columns: u32, epilogue: Epilogue, matrix_rows: u32) -> u32 {
    let rows = match (caps.software, columns) {
        (_, COLUMNS_TILED) => ROWS_TILED,
        (true, _) if matrix_rows < ROWS_MANY => 2,
        (true, 2..=4) => 4,
        (true, _) => 8,
        (false, 1..=2) if caps.vendor == Vendor::Amd => 4,
        (false, 1..=4) => 2,
        (false, _) => 1,
    };
    match epilogue {
        Epilogue::Gate(_) => (rows / 2).max(1),
        _ => rows,
    }
}
