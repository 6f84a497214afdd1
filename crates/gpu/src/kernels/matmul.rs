//! [`Op::MatMul`](bilayer_graph::Op::MatMul): GEMV with matrices of any type with a loader and one to eight columns,
//! GEMM by tiles for many; and the products of [`Op::Experts`](bilayer_graph::Op::Experts), where the route selects
//! the matrices.

use bilayer_graph::Activation;
use bilayer_quant::Type;
use bytemuck::{Pod, Zeroable};
use minijinja::{Value, context};

use super::bindings::{kernel, numbered};
use super::gate::activation_name;
use super::team::Team;
use super::view::View;
use super::weights::{Layout, ints, is_ints, loader_name, pairs};
use crate::caps::{Api, Caps, Coop, Input, Vendor};
use crate::kernel::{Source, fold};

/// Maximum columns per workgroup.
pub const COLUMNS_MAX: u32 = 8;

/// Columns per tile, at least.
pub const COLUMNS_TILED: u32 = 64;

/// Rows per tile without cooperative matrices; with two gated matrices half as many of each.
const ROWS_TILED: u32 = 64;

/// Threads per tile, unless it is computed with cooperative matrices.
const THREADS_TILED: u32 = 256;

/// Subgroups per tile of cooperative matrices: two of rows by one for so many columns.
const SUBGROUPS_DOWN: u32 = 2;
const SUBGROUP_COLUMNS: u32 = 32;

/// Maximum matrices per dispatch.
pub const MATRICES_MAX: usize = 3;

/// The epilogue of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// None.
    Plain,
    /// A residual is added.
    Residual,
    /// The first matrix's product passes through the activation and is multiplied with the second's.
    Gate(Activation),
}

/// The selection of a column's matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Chosen {
    /// A single matrix.
    None,
    /// A column is a pair of a row and a slot in its route, which names the expert; one column per workgroup.
    Pair,
    /// The columns of a workgroup are a group of [`super::experts`]: pairs of one expert.
    Group,
}

/// What a product of few columns computes of its result for the next product, so that this needs no kernel between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Emit {
    /// Nothing.
    None,
    /// The result quantized.
    Quantized,
    /// The input of the products after an RMS norm of the result, in this form (floats or quantized), but for the norm's
    /// factor, which those products apply ([`GemvKey::scaled`]): the result times the norm's gain, and sums of its squares.
    Norm(Input),
}

impl Emit {
    /// Rows of a workgroup that emits: a piece of quantized activations.
    pub const ROWS: u32 = 16;

    /// The form in which a value is emitted, if it is.
    fn form(self) -> Option<Input> {
        match self {
            Emit::None => None,
            Emit::Quantized => Some(Input::Quantized),
            Emit::Norm(form) => Some(form),
        }
    }
}

/// Which text. Bindings, in order: `step`; `xq` and `xs` of a quantized input, `xh` and `xs` of halves, else `x`;
/// `squares` of a norm whose factor is applied; `vectors` with a bias or factors, for experts the weights that contain them, and
/// with a gain; `residual`; `route` of pairs or `table` of groups; `out` (written); what is emitted (written): `yq` and `ys` if
/// quantized, else `y`, and `squares_out` before a norm; the weights, twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GemvKey {
    /// The matrices' type.
    pub ty: Type,
    /// Their layout.
    pub layout: Layout,
    /// Columns per workgroup: 1, 2, 4 or 8, or at least [`COLUMNS_TILED`] for the tiled kernel.
    pub columns: u32,
    /// Rows per workgroup; of one that emits, per team of its threads.
    pub rows: u32,
    /// The form of the input; halves only for the tiled kernel.
    pub input: Input,
    /// Number of matrices with one input.
    pub matrices: u32,
    /// Whether a bias is added.
    pub bias: bool,
    /// Whether products of experts are multiplied by a factor of each, which are where biases would be.
    pub factors: bool,
    /// How the matrix is selected.
    pub chosen: Chosen,
    /// Whether the input's floats end within the last unit of 64 and are followed by others.
    pub ragged: bool,
    /// The epilogue.
    pub epilogue: Epilogue,
    /// Whether the factor of an RMS norm, which the input lacks, is applied; only with few columns.
    pub scaled: bool,
    /// What is computed for the next product; only with few columns.
    pub emit: Emit,
}

/// A matrix in a block of weights.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Matrix {
    /// Its offset, bytes.
    pub base: u32,
    /// Its quantization blocks.
    pub blocks: u32,
    /// Its first row within the dispatch.
    pub first_row: u32,
    /// Fills the last sixteen bytes.
    pub zero: u32,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct GemvParams {
    /// View of the input in elements of its form.
    pub x: View,
    /// Where the result's first row begins, and from row to row, in floats.
    pub out: [u32; 2],
    /// Offset of the residual's first row, and the row stride, in floats.
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
    /// Place of the bias or factors in `vectors`, in floats; those of experts follow each other.
    pub bias: u32,
    /// The matrices.
    pub matrices: [Matrix; MATRICES_MAX],
    /// The experts' selection.
    pub experts: Experts,
    /// The norm of the input.
    pub norm: Norm,
    /// What is emitted.
    pub emitted: Emitted,
}

/// The part of the uniform used by products that apply the factor of a norm.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct Norm {
    /// Elements of the norm's row.
    pub width: f32,
    /// Added to the mean square.
    pub eps: f32,
    /// Quads of sums of squares of a row.
    pub quads: u32,
    /// Fills the last sixteen bytes.
    pub zero: u32,
}

/// The part of the uniform used by products that emit the next product's input.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Emitted {
    /// Offset of the norm's gain in `vectors`, in floats.
    pub gain: u32,
    /// Offset of the floats, in quads.
    pub at: u32,
    /// From row to row, in quads of floats or in pieces.
    pub stride: u32,
    /// Fills the last sixteen bytes.
    pub zero: u32,
}

/// The part of the uniform used by products of experts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Experts {
    /// Where the route's first row begins, and from row to row, in floats.
    pub route: [u32; 2],
    /// Experts of a row.
    pub used: u32,
    /// Distance between the inputs of a row's experts, in elements of their form; 0 if shared.
    pub pitch: u32,
    /// Rows of the stacked matrices in this part of the weights: the first, and their number.
    pub part: [u32; 2],
    /// Where the table of groups has the pairs, in words.
    pub pairs_at: u32,
    /// Fills the last sixteen bytes.
    pub zero: u32,
}

impl GemvKey {
    /// One matrix in the layout of its type, every row of it, without bias and epilogue.
    pub fn plain(ty: Type, columns: u32, rows: u32, input: Input) -> GemvKey {
        GemvKey {
            ty,
            layout: Layout::of(ty),
            columns,
            rows,
            input,
            matrices: 1,
            bias: false,
            factors: false,
            chosen: Chosen::None,
            ragged: false,
            epilogue: Epilogue::Plain,
            scaled: false,
            emit: Emit::None,
        }
    }

    /// Teams of a workgroup, of which each computes as many rows.
    fn teams(&self) -> u32 {
        match self.emit {
            Emit::None => 1,
            Emit::Quantized | Emit::Norm(_) => Emit::ROWS / self.rows,
        }
    }

    fn is_tiled(&self) -> bool {
        self.columns >= COLUMNS_TILED
    }

    /// Accumulators per thread and column.
    fn slots(&self) -> u32 {
        match self.epilogue {
            Epilogue::Gate(_) => 2 * self.rows,
            _ => self.rows,
        }
    }

    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let coop = caps.coop.filter(|_| self.input == Input::Halves);
        let team = match (coop, self.is_tiled()) {
            (Some(Coop { subgroup, .. }), _) => {
                let subgroups = SUBGROUPS_DOWN * self.columns / SUBGROUP_COLUMNS;
                Team { threads: subgroups * subgroup, subgroup }
            }
            (None, true) => Team::small(caps).of(THREADS_TILED, caps),
            (None, false) if self.teams() > 1 => Team::small(caps).among(self.teams(), caps),
            (None, false) => Team::small(caps),
        };
        let (form, is_norm) = (self.emit.form(), matches!(self.emit, Emit::Norm(_)));
        let teams = self.teams();
        let at = numbered(&[
            ("step", true),
            ("xq", self.input == Input::Quantized),
            ("xh", self.input == Input::Halves),
            ("xs", self.input != Input::Floats),
            ("x", self.input == Input::Floats),
            ("squares", self.scaled),
            ("vectors", self.bias || self.factors || is_norm),
            ("residual", self.epilogue == Epilogue::Residual),
            ("route", self.chosen == Chosen::Pair),
            ("table", self.chosen == Chosen::Group),
            ("out", true),
            ("yq", form == Some(Input::Quantized)),
            ("ys", form == Some(Input::Quantized)),
            ("y", form == Some(Input::Floats)),
            ("squares_out", is_norm),
            ("weights", true),
            ("words", true),
        ]);
        let gate = match self.epilogue {
            Epilogue::Gate(activation) => activation_name(activation),
            _ => "",
        };
        let shared = context! { ..loader_context(self.ty, self.layout), ..team.context() };
        let context = context! {
            at, gate, teams,
            activation => gate,
            slots => self.slots(),
            rows => self.rows,
            columns => self.columns,
            matrices => self.matrices,
            bias => self.bias,
            factors => self.factors,
            residual => self.epilogue == Epilogue::Residual,
            ints_x => self.input == Input::Quantized,
            halves_x => self.input == Input::Halves,
            coop => coop.map_or(0, |coop| coop.edge),
            // naga has no such loads for Metal, and on AMD eight bytes to rows 144 bytes apart use half of the banks.
            wide => caps.api == Api::Vulkan && caps.vendor != Vendor::Amd,
            experts => match self.chosen {
                Chosen::None => "",
                Chosen::Pair => "pair",
                Chosen::Group => "group",
            },
            ragged => self.ragged,
            pairs => if caps.software { pairs(self.ty) } else { 0 },
            // Loads in flight hide a GPU's latency; in software they are only wasted on short rows.
            unroll => if caps.software { 1 } else { 4 },
            ..shared
        };
        let template = match (coop, self.is_tiled()) {
            (Some(_), _) => "matmul/coop",
            (None, true) => "matmul/tile",
            (None, false) => "matmul/gemv",
        };
        kernel(self.name(team), template, context, teams * team.threads)
    }

    fn name(&self, team: Team) -> String {
        let epilogue = match self.epilogue {
            Epilogue::Plain => "",
            Epilogue::Residual => " add",
            Epilogue::Gate(activation) => &format!(" {}", activation_name(activation)),
        };
        let emit = match self.emit {
            Emit::None => "",
            Emit::Quantized => " q8",
            Emit::Norm(Input::Quantized) => " norm q8",
            Emit::Norm(_) => " norm f32",
        };
        format!(
            "{}{} {} {}{}{}{} {}x{} m{}{}{}{epilogue}{emit} {}",
            match self.chosen {
                Chosen::None => "matmul",
                Chosen::Pair => "experts/pair",
                Chosen::Group => "experts/group",
            },
            if self.is_tiled() { "/tile" } else { "" },
            self.ty.name.to_lowercase(),
            match self.input {
                Input::Floats => "f32",
                Input::Quantized => "q8",
                Input::Halves => "coop",
            },
            if self.layout == Layout::Raw { " raw" } else { "" },
            if self.ragged { " ragged" } else { "" },
            if self.scaled { " scaled" } else { "" },
            self.rows * self.teams(),
            self.columns,
            self.matrices,
            if self.bias { " bias" } else { "" },
            if self.factors { " factors" } else { "" },
            team.name()
        )
    }

    /// Workgroups for `rows` rows (of the gate alone, if gated) and `columns` columns.
    pub fn grid(&self, rows: u32, columns: u32) -> [u32; 3] {
        if self.is_tiled() {
            return [rows.div_ceil(self.rows), 1, columns.div_ceil(self.columns)];
        }
        let [x, y] = fold(rows.div_ceil(self.rows * self.teams()));
        [x, y, columns.div_ceil(self.columns)]
    }
}

/// The template variables of parts/weights.wgsl for a type.
pub(crate) fn loader_context(ty: Type, layout: Layout) -> Value {
    let planes: Vec<Value> = ty
        .planes
        .iter()
        .map(|plane| context! { name => plane.name, offset => plane.offset, len => plane.len })
        .collect();
    let ints = ints(ty);
    context! {
        planes,
        loader => loader_name(ty),
        layout => match layout { Layout::Raw => "raw", Layout::Split => "split" },
        block_bytes => ty.block_bytes,
        ints => ints.is_some(),
        strided => ints.is_some_and(|ints| ints.strided),
        group => ints.map(|ints| ints.group),
        zero => ints.and_then(|ints| ints.zero),
    }
}

/// Whether products of few columns with a type read their input quantized.
pub fn takes_ints(caps: &Caps, ty: Type) -> bool {
    input_of(caps, ty, 1) == Input::Quantized
}

/// The form in which products of so many columns with a type read their input, if it may be rounded.
pub fn input_of(caps: &Caps, ty: Type, columns: u32) -> Input {
    let wanted = match (columns >= COLUMNS_TILED, caps.dot4) {
        (true, _) => caps.tile.input,
        (false, true) => Input::Quantized,
        (false, false) => Input::Floats,
    };
    match wanted {
        Input::Quantized if caps.dot4 && is_ints(ty) => Input::Quantized,
        Input::Halves if caps.coop.is_some() && is_half(ty) => Input::Halves,
        _ => Input::Floats,
    }
}

/// Columns of the largest tiles of products that read their input in a form.
pub fn columns_tiled(caps: &Caps, input: Input) -> u32 {
    match input {
        Input::Halves => caps.tile.columns,
        Input::Floats | Input::Quantized => COLUMNS_TILED,
    }
}

/// Whether halves hold a type's weights: those of at most 16 bits, unless they are larger than 65504.
fn is_half(ty: Type) -> bool {
    8 * ty.block_bytes <= 16 * ty.block_weights
}

/// Matrices with fewer rows do not justify compiling a kernel with many accumulators.
const ROWS_MANY: u32 = 1024;

/// Rows per workgroup: enough loads in flight, few enough accumulators. A software adapter pays for every load of
/// every lane, so many rows and columns share loads; spilled accumulators cost less. Without packed dot products AMD's
/// registers do not hold four rows and two columns of floats.
pub fn rows_of(
    caps: &Caps,
    input: Input,
    columns: u32,
    epilogue: Epilogue,
    matrix_rows: u32,
) -> u32 {
    let rows = match (caps.software, columns) {
        (_, COLUMNS_TILED..) if input == Input::Halves => caps.tile.rows,
        (_, COLUMNS_TILED..) => ROWS_TILED,
        (true, _) if matrix_rows < ROWS_MANY => 2,
        (true, 2..=4) => 4,
        (true, _) => 8,
        (false, 1) if caps.vendor == Vendor::Amd => 4,
        (false, 2) if caps.vendor == Vendor::Amd && caps.dot4 => 4,
        (false, 1..=4) => 2,
        (false, _) => 1,
    };
    match epilogue {
        Epilogue::Gate(_) => (rows / 2).max(1),
        _ => rows,
    }
}

/// Maximum threads of a workgroup that emits.
const THREADS_EMITTING: u32 = 256;

/// Rows per team of a workgroup that emits, from those of one that does not: its teams are few enough.
pub fn rows_emitting(caps: &Caps, rows: u32) -> u32 {
    rows.max(Emit::ROWS * caps.lanes() / THREADS_EMITTING)
}
