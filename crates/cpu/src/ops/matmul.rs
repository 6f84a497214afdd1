//! Matrix products: one input, several weights; GEMV for few rows and GEMM for many.
//!
//! Three stages. [`Prepare`] normalizes the input, if a norm was fused, and for few rows converts it for the GEMV
//! kernels; [`Pack`] packs many rows for GEMM. Both do so once for all weights with equal requirements. [`Multiply`]
//! runs chunks of weight rows and stores the results: plus bias and residual, or through an activation or gate.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bilayer_graph::{Activation, Exactness, Graph, Node, Op, Precision, Value, Weight};
use bilayer_quant::Type;

use crate::activations::{Activations, Format};
use crate::dot::{Dot, dot, dot_fine};
use crate::gemm::{Gemm, Packed, Packing, TOKENS_MIN_MAX, gemm, gemm_fine, gemm_rounded};
use crate::level::{Level, dispatch};
use crate::lowering::Holdings;
use crate::matrix::{Matrix, Vector};
#[cfg(debug_assertions)]
use crate::memory::claims;
use crate::numa::Nodes;
use crate::ops::norm::Norm;
use crate::stage::{Buffer, Context, Stage};
use crate::state::State;
pub(crate) use cuts::{Band, Cuts};
use store::{Place, Residual, Store};

mod cuts;
mod store;

/// One weight with its kernels.
pub(crate) struct Linear {
    weight: Matrix,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    row_bytes: usize,
    bias: Option<Vector>,
    factor: Option<Vector>,
    dot: Dot,
    /// The kernels for many inputs, and for those of prompts alone.
    gemm: Gemm,
    prompts: Gemm,
    /// Number of inputs from which these are used.
    many: usize,
}

/// The shape of a [`Linear`].
pub(crate) struct Shape {
    pub(crate) ty: Type,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) precision: Precision,
}

/// Number of rows from which GEMM kernels are used, for each value that matrices are multiplied with: when they are faster
/// for all of these, so that results do not depend on which of them are fused.
pub(crate) fn many(graph: &Graph, level: Level) -> HashMap<Value, usize> {
    let mut many = HashMap::new();
    for Node { op, .. } in &graph.nodes {
        let precision = match op {
            Op::MatMul { precision, .. } => *precision,
            _ => Precision::Coarse,
        };
        for &id in op.matrices() {
            let Weight { ty, cols, .. } = *graph.weight(id);
            let (_, gemm) = kernels(precision, ty, cols, level);
            let of = many.entry(op.inputs().next().expect("a product's input")).or_default();
            *of = gemm.tokens_min.max(*of);
        }
    }
    many
}

fn kernels(precision: Precision, ty: Type, cols: usize, level: Level) -> (Dot, Gemm) {
    match precision {
        Precision::Coarse => (dot(ty, cols, level), gemm(ty, cols, level)),
        Precision::Fine => (dot_fine(ty, cols, level), gemm_fine(ty, cols, level)),
    }
}

impl Linear {
    /// `weight [rows, cols]`, `bias [rows]`, with GEMM kernels for `many` inputs or more.
    pub(crate) fn new(
        weight: Matrix,
        shape: &Shape,
        bias: Option<Vector>,
        many: usize,
        &Holdings { level, fast_prefill, .. }: &Holdings<'_>,
    ) -> Linear {
        let &Shape { ty, rows, cols, precision } = shape;
        let row_bytes = weight.len() / rows.max(1);
        let (dot, gemm) = kernels(precision, ty, cols, level);
        let prompts = match precision {
            Precision::Coarse if fast_prefill => gemm_rounded(ty, cols, level),
            _ => gemm,
        };
        Linear { weight, rows, cols, row_bytes, bias, factor: None, dot, gemm, prompts, many }
    }

    /// The product times `factor [1]`, if there is one.
    pub(crate) fn times(self, factor: Option<Vector>) -> Linear {
        Linear { factor, ..self }
    }

    /// Computes rows of the product with all prepared inputs, plus bias: `out [count, band.rows.len()]`.
    pub(crate) fn product(
        &self,
        inputs: &Inputs<'_>,
        band: &Band,
        rest: &mut [u8],
        out: &mut [f32],
    ) {
        self.multiply(inputs, band, rest, out);
        self.with_bias(band, |bias| {
            let Some(bias) = bias else { return };
            for out in out.chunks_exact_mut(bias.len()) {
                out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
            }
        });
    }

    /// Hands the bias of rows to `read`.
    fn with_bias(&self, band: &Band, read: impl FnOnce(Option<&[f32]>)) {
        match &self.bias {
            Some(bias) => bias.with(band.rows.clone(), |bias| read(Some(bias))),
            None => read(None),
        }
    }

    /// [`Linear::product`] without the bias.
    fn multiply(&self, inputs: &Inputs<'_>, band: &Band, rest: &mut [u8], out: &mut [f32]) {
        let range = band.rows.clone();
        let bytes = range.start * self.row_bytes..range.end * self.row_bytes;
        #[cfg(debug_assertions)]
        self.weight.portion(&bytes).into_iter().for_each(claims::reads_from);
        self.weight.with(bytes, |weights| {
            if inputs.count.few {
                let data = inputs.columns(self.dot.format);
                let columns = Activations { data, cols: self.cols, count: inputs.count.rows };
                self.dot.run(weights, columns, out);
            } else {
                let gemm = if inputs.count.only_prompts { &self.prompts } else { &self.gemm };
                let data = inputs.packed(gemm.packing);
                let packed = Packed { data, tokens: inputs.count.rows };
                match band.follows {
                    true => gemm.run_on(weights, packed, rest, out),
                    false => gemm.run(weights, packed, rest, out),
                }
            }
        });
        if let Some(factor) = &self.factor {
            factor.with(0..1, |factor| out.iter_mut().for_each(|out| *out *= factor[0]));
        }
    }
}

/// One output of a group.
pub(crate) enum Product {
    /// A product, optionally through an activation, optionally plus a residual of equal shape, which may share memory
    /// with the sum.
    Plain {
        linear: Box<Linear>,
        activation: Option<Activation>,
        residual: Option<Buffer>,
        out: Buffer,
    },
    /// `activation(gate) * up`; both of equal shape.
    Gated { gate: Box<Linear>, up: Box<Linear>, activation: Activation, out: Buffer },
}

impl Product {
    fn out(&self) -> &Buffer {
        match self {
            Product::Plain { out, .. } | Product::Gated { out, .. } => out,
        }
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> + Clone {
        let (first, second) = match self {
            Product::Plain { linear, .. } => (&**linear, None),
            Product::Gated { gate, up, .. } => (&**gate, Some(&**up)),
        };
        std::iter::once(first).chain(second)
    }
}

/// The number of inputs, and the kernels for it.
#[derive(Clone, Copy)]
pub(crate) struct Count {
    pub(crate) rows: usize,
    /// Whether GEMV kernels are used instead of GEMM.
    pub(crate) few: bool,
    /// Whether they are of prompts alone, for which GEMM may round weights.
    pub(crate) only_prompts: bool,
}

impl Count {
    /// Every choice of kernels for this many inputs.
    pub(crate) fn all(rows: usize) -> [Count; 3] {
        [(true, false), (false, false), (false, true)].map(|(few, only_prompts)| Count {
            rows,
            few,
            only_prompts,
        })
    }
}

/// The input formats of some products, each once.
#[derive(Clone)]
pub(crate) struct Layouts {
    pub(crate) cols: usize,
    /// Number of inputs from which all products use GEMM.
    many: usize,
    pub(crate) formats: Vec<Format>,
    packings: Vec<Packing>,
    /// Those of prompts alone.
    prompts: Vec<Packing>,
}

impl Layouts {
    pub(crate) fn of<'a>(
        cols: usize,
        linears: impl Iterator<Item = &'a Linear> + Clone,
    ) -> Layouts {
        let many = linears.clone().map(|linear| linear.many).max().unwrap_or(1);
        Layouts {
            cols,
            many,
            formats: each_once(linears.clone().map(|linear| linear.dot.format)),
            packings: each_once(linears.clone().map(|linear| linear.gemm.packing)),
            prompts: each_once(linears.map(|linear| linear.prompts.packing)),
        }
    }

    /// The packings of a step.
    pub(crate) fn packings(&self, count: Count) -> &[Packing] {
        if count.only_prompts { &self.prompts } else { &self.packings }
    }

    /// Maximum tokens per packed chunk.
    pub(crate) fn tokens_most(&self) -> usize {
        let packings = self.packings.iter().chain(&self.prompts);
        packings.map(|packing| packing.tokens_most()).max().unwrap_or(0)
    }

    /// The count for this many inputs in a step. Rows of verified drafts must have the bits that each would have
    /// alone, from GEMV kernels.
    pub(crate) fn count(&self, rows: usize, state: &State) -> Count {
        let many = match state.exactness {
            Exactness::Fastest => self.many,
            Exactness::PerRow => TOKENS_MIN_MAX,
        };
        Count { rows, few: rows < many, only_prompts: state.only_prompts }
    }

    /// Bytes for this many inputs; a multiple of 64.
    pub(crate) fn bytes(&self, count: Count) -> usize {
        if count.few {
            self.formats.iter().map(|format| count.rows * format.column_bytes(self.cols)).sum()
        } else {
            self.packings(count).iter().map(|packing| packing.bytes(count.rows)).sum()
        }
    }

    /// Maximum bytes for this many inputs in any step.
    pub(crate) fn bytes_max(&self, rows: usize) -> usize {
        let counts = Count::all(rows).into_iter().filter(|of| !of.few || rows < TOKENS_MIN_MAX);
        counts.map(|count| self.bytes(count)).fold(0, usize::max)
    }
}

fn each_once<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// Names of GEMV kernels with the number of their weights: `q4_k.avx2 x2 q6_k.avx2`.
pub(crate) fn names<'a>(linears: impl Iterator<Item = &'a Linear>) -> impl Iterator<Item = String> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for linear in linears {
        match counts.iter_mut().find(|(name, _)| *name == linear.dot.name) {
            Some((_, count)) => *count += 1,
            None => counts.push((linear.dot.name, 1)),
        }
    }
    counts.into_iter().map(|(name, count)| match count {
        1 => name.to_owned(),
        _ => format!("{name} x{count}"),
    })
}

/// Products with one input.
pub(crate) struct Group {
    /// The norm that computes the input, and its own input.
    pub(crate) norm: Option<(Norm, Buffer)>,
    /// The input, after the norm.
    pub(crate) input: Buffer,
    pub(crate) parts: Vec<Product>,
    /// How each output is split.
    cuts: Vec<Cuts>,
    /// Offset of the prepared inputs in the arena.
    pub(crate) prepared_offset: usize,
    layouts: Layouts,
}

impl Group {
    /// Products shared by the threads of some nodes.
    pub(crate) fn new(
        norm: Option<(Norm, Buffer)>,
        input: Buffer,
        parts: Vec<Product>,
        nodes: &Nodes,
    ) -> Group {
        let layouts = Layouts::of(input.width, parts.iter().flat_map(Product::linears));
        let cuts = parts.iter().map(|part| Cuts::new(part.linears(), nodes)).collect();
        Group { norm, input, parts, cuts, prepared_offset: 0, layouts }
    }

    /// The outputs and how each is split.
    fn parts(&self) -> impl Iterator<Item = (&Product, &Cuts)> {
        self.parts.iter().zip(&self.cuts)
    }

    /// A name such as `rms_norm matmul q4_k.avx2 x2 q6_k.avx2`: the fused norm, each GEMV kernel with its number of
    /// weights, and what is fused after them.
    pub(crate) fn name(&self) -> String {
        let kernels = names(self.parts.iter().flat_map(Product::linears));
        let norm = self.norm.iter().map(|(norm, _)| norm.stem().to_owned());
        let gated = self.parts.iter().any(|part| {
            matches!(part, Product::Gated { .. } | Product::Plain { activation: Some(_), .. })
        });
        let added =
            self.parts.iter().any(|part| matches!(part, Product::Plain { residual: Some(_), .. }));
        let behind = [(gated, "gate"), (added, "add")].into_iter().filter(|(is, _)| *is);
        let words = norm.chain(["matmul".to_owned()]).chain(kernels);
        words.chain(behind.map(|(_, name)| name.to_owned())).collect::<Vec<_>>().join(" ")
    }

    /// Bytes of the prepared inputs for up to `rows` rows.
    pub(crate) fn prepared_bytes(&self, rows: usize) -> usize {
        (1..=rows).map(|count| self.layouts.bytes_max(count)).max().unwrap_or(0)
    }

    /// The stages of the group; `rows` is the maximum rows of its input.
    pub(crate) fn stages(self, rows: usize) -> Vec<Box<dyn Stage>> {
        let group = Arc::new(self);
        vec![
            Box::new(Prepare(group.clone())),
            Box::new(Pack(group.clone())),
            Box::new(Multiply { group, rows }),
        ]
    }

    /// The inputs of a step.
    fn count(&self, state: &State) -> Count {
        self.layouts.count(state.rows(self.input.rows), state)
    }

    /// The prepared inputs, written by an earlier stage.
    fn inputs<'a>(&'a self, context: &Context<'a>) -> Inputs<'a> {
        let count = self.count(context.state);
        let data = context.read(self.prepared_offset, self.layouts.bytes(count));
        Inputs { layouts: &self.layouts, count, data }
    }

    /// The bytes of the prepared inputs in any step.
    fn prepared(&self, state: &State) -> Range<usize> {
        let bytes = self.prepared_bytes(state.rows_max(self.input.rows));
        self.prepared_offset..self.prepared_offset + bytes
    }
}

/// Prepared inputs: columns of each format for few, packed chunks for many.
pub(crate) struct Inputs<'a> {
    pub(crate) layouts: &'a Layouts,
    pub(crate) count: Count,
    pub(crate) data: &'a [u8],
}

impl<'a> Inputs<'a> {
    fn columns(&self, format: Format) -> &'a [u8] {
        let bytes = |format: Format| self.count.rows * format.column_bytes(self.layouts.cols);
        let before = self.layouts.formats.iter().take_while(|f| **f != format);
        let start: usize = before.map(|format| bytes(*format)).sum();
        &self.data[start..start + bytes(format)]
    }

    fn packed(&self, packing: Packing) -> &'a [u8] {
        let packings = self.layouts.packings(self.count);
        let before = packings.iter().take_while(|p| **p != packing);
        let start: usize = before.map(|packing| packing.bytes(self.count.rows)).sum();
        &self.data[start..start + packing.bytes(self.count.rows)]
    }
}

/// Normalizes rows of the input; for few rows also prepares their columns.
struct Prepare(Arc<Group>);

impl Stage for Prepare {
    fn chunks(&self, state: &State) -> usize {
        let count = self.0.count(state);
        match &self.0.norm {
            _ if count.few => count.rows,
            Some(_) => self.0.input.row_chunks(state),
            None => 0,
        }
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        let normalized = self.0.norm.is_some().then(|| self.0.input.region(state));
        normalized.into_iter().chain([self.0.prepared(state)]).collect()
    }

    fn run(&self, context: Context<'_>, chunk: usize) {
        let group = &*self.0;
        let Count { rows: count, few, .. } = group.count(context.state);
        let rows =
            if few { chunk..chunk + 1 } else { group.input.chunk_range(context.state, chunk) };
        let width = group.input.width;
        let at = rows.start * width..rows.end * width;
        let x = match &group.norm {
            None => group.input.elements(&context, at),
            Some((norm, source)) => {
                // SAFETY: each chunk normalizes different rows.
                let x = unsafe { group.input.elements_mut(&context, at) };
                for (row, x) in rows.zip(x.chunks_exact_mut(width)) {
                    norm.apply(context.level, source.get(&context, row..row + 1), x);
                }
                x
            }
        };
        if !few {
            return;
        }
        let mut start = group.prepared_offset;
        for format in &group.layouts.formats {
            let bytes = format.column_bytes(width);
            // SAFETY: each chunk and format has its own column.
            let column = unsafe { context.write(start + chunk * bytes, bytes) };
            format.prepare(context.level, x, column);
            start += count * bytes;
        }
    }
}

/// Packs many rows of the input for the GEMM kernels.
struct Pack(Arc<Group>);

impl Stage for Pack {
    fn chunks(&self, state: &State) -> usize {
        let count = self.0.count(state);
        if count.few {
            return 0;
        }
        self.0.layouts.packings(count).iter().map(|packing| packing.chunks(count.rows)).sum()
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        vec![self.0.prepared(state)]
    }

    fn run(&self, context: Context<'_>, mut chunk: usize) {
        let group = &*self.0;
        let count = group.count(context.state);
        let rows = count.rows;
        let x = group.input.get(&context, 0..rows);
        let mut start = group.prepared_offset;
        for packing in group.layouts.packings(count) {
            if chunk < packing.chunks(rows) {
                let bytes = packing.chunk_bytes(rows);
                // SAFETY: each chunk has its own bytes.
                let out = unsafe { context.write(start + chunk * bytes, bytes) };
                return packing.pack(chunk, x, rows, out);
            }
            chunk -= packing.chunks(rows);
            start += packing.bytes(rows);
        }
    }
}

/// Runs chunks of weight rows.
struct Multiply {
    group: Arc<Group>,
    /// Maximum rows of the input.
    rows: usize,
}

impl Multiply {
    /// Number of a node's chunks.
    fn chunks_of(&self, state: &State, node: usize) -> usize {
        let count = self.group.count(state);
        if count.rows == 0 {
            return 0;
        }
        self.group.cuts.iter().map(|cuts| cuts.chunks(count, node)).sum()
    }

    /// Number of nodes.
    fn nodes(&self) -> usize {
        self.group.cuts.first().map_or(0, Cuts::nodes)
    }
}

/// The chunks of a node are those of all parts with its rows.
impl Stage for Multiply {
    fn chunks(&self, state: &State) -> usize {
        (0..self.nodes()).map(|node| self.chunks_of(state, node)).sum()
    }

    fn end(&self, state: &State, _: &Nodes, node: usize) -> usize {
        (0..=node).map(|node| self.chunks_of(state, node)).sum()
    }

    fn scratch_bytes(&self) -> usize {
        let parts = self.group.parts();
        parts.map(|(part, cuts)| cuts.scratch_bytes(part.linears(), self.rows)).max().unwrap_or(0)
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        self.group.parts.iter().map(|part| part.out().region(state)).collect()
    }

    fn run(&self, mut context: Context<'_>, mut chunk: usize) {
        let scratch = std::mem::take(&mut context.scratch);
        let inputs = self.group.inputs(&context);
        let nodes = 0..self.nodes();
        for (node, (part, cuts)) in
            nodes.flat_map(|node| self.group.parts().map(move |part| (node, part)))
        {
            let chunks = cuts.chunks(inputs.count, node);
            if chunk >= chunks {
                chunk -= chunks;
                continue;
            }
            let tile_bytes = cuts.tile_bytes(inputs.count);
            for band in cuts.bands(inputs.count, node, chunk) {
                tile(&context, part, &inputs, &band, tile_bytes, scratch);
            }
            return;
        }
    }
}

/// Computes some rows of an output and stores them.
fn tile(
    context: &Context<'_>,
    part: &Product,
    inputs: &Inputs<'_>,
    band: &Band,
    tile_bytes: usize,
    scratch: &mut [u8],
) {
    let rows = band.rows.len();
    let (one, rest) = scratch.split_at_mut(tile_bytes);
    let (two, rest) = rest.split_at_mut(tile_bytes);
    let one = &mut bytemuck::cast_slice_mut::<u8, f32>(one)[..rows * inputs.count.rows];
    let place = |out| Place { context, out, columns: band.rows.clone() };
    match part {
        Product::Plain { linear, activation, residual, out } => {
            linear.multiply(inputs, band, rest, one);
            let residual = residual.map(|residual| match residual == *out {
                true => Residual::Place,
                false => Residual::Of(residual.get(context, 0..inputs.count.rows)),
            });
            let (activation, place) = (*activation, place(*out));
            linear.with_bias(band, |bias| {
                let results = &*one;
                let store = Store { results, up: None, bias, activation, residual, place: &place };
                dispatch(context.level, store);
            });
        }
        Product::Gated { gate, up, activation, out } => {
            let two = &mut bytemuck::cast_slice_mut::<u8, f32>(two)[..rows * inputs.count.rows];
            gate.product(inputs, band, rest, one);
            up.product(inputs, band, rest, two);
            let (up, activation, place) = (Some(&*two), Some(*activation), &place(*out));
            let store = Store { results: one, up, bias: None, activation, residual: None, place };
            dispatch(context.level, store);
        }
    }
}
