//! Products with weights: several with one input in one dispatch if their matrices have equal layout, split by the
//! blocks that contain them and, if there are many, by columns.

use bilayer_graph::fuse::FusedProduct;
use bilayer_graph::{
    Activation, Error as GraphError, Ids, Node, Op, OpKind, Precision, Rows, Value, WeightId,
};
use bilayer_quant::Type;

use super::super::draft::{
    DraftChoice, DraftDispatch, Grid, Operand, View, always, is_split, rows_to,
};
use super::emit::Emission;
use super::plain::QuantizedReaders;
use super::{Forms, Halves, Lowering, Quantized, dispatch};
use crate::caps::Input;
use crate::kernels::embed::{EmbedKey, EmbedParams};
use crate::kernels::matmul::{
    COLUMNS_MAX, COLUMNS_TILED, Chosen, Emit, Epilogue, GemvKey, GemvParams, MATRICES_MAX, Matrix,
    columns_tiled, input_of, rows_emitting, rows_of,
};
use crate::kernels::view::{View as Quads, pieces};
use crate::weights::{Placed, RowRange, device_type};

/// Numbers of columns with a kernel of their own; the last one also serves more. Large tiles are beyond these.
const COLUMNS: [u32; 4] = [1, 2, 4, COLUMNS_MAX];

/// Numbers of columns with a kernel of their own on hardware, where workgroups may compute tiles.
const COLUMNS_OF_HARDWARE: [u32; 5] = [1, 2, 4, COLUMNS_MAX, COLUMNS_TILED];

/// Products in one dispatch: matrices of one type in one block, all with a bias or none.
struct Job {
    nodes: Vec<usize>,
    /// Location of the result; columns of the dispatch are rows of this view.
    out: View,
    /// The first column of the view that is written.
    first: u32,
    matrices: Vec<(RowRange, WeightId)>,
    bias: Option<WeightId>,
    /// The first element of the bias.
    bias_first: u32,
    residual: Option<View>,
    gate: Option<Activation>,
    /// The value that it makes, if it makes one alone and whole.
    makes: Option<Value>,
}

impl Job {
    /// The matrices in sequence, and the total rows of results.
    fn layout(&self) -> ([Matrix; MATRICES_MAX], u32) {
        let (mut matrices, mut rows) = ([Matrix::default(); MATRICES_MAX], 0);
        for (to, (part, _)) in matrices.iter_mut().zip(&self.matrices) {
            *to = Matrix { base: part.base, blocks: part.blocks, first_row: rows, zero: 0 };
            rows += part.rows;
        }
        match self.gate {
            Some(_) => (matrices, self.matrices[0].0.rows),
            None => (matrices, rows),
        }
    }

    fn epilogue(&self) -> Epilogue {
        match (self.gate, self.residual) {
            (Some(activation), _) => Epilogue::Gate(activation),
            (None, Some(_)) => Epilogue::Residual,
            (None, None) => Epilogue::Plain,
        }
    }
}

impl Lowering<'_> {
    /// The forms in which the products read their input.
    pub(super) fn forms(&self, parts: &[FusedProduct]) -> Vec<Forms> {
        let nodes = parts.iter().flat_map(FusedProduct::matmuls);
        let forms = nodes.flat_map(|node| match self.op(node) {
            // Few columns of many rows are read, too, where few rows have an expert in common.
            Op::Experts(experts) => {
                let forms = self.experts_forms(experts);
                vec![forms, Forms { many: forms.few, ..forms }]
            }
            _ => vec![self.matmul_forms(node)],
        });
        forms.collect()
    }

    /// The forms in which a product with one matrix reads its input.
    fn matmul_forms(&self, node: usize) -> Forms {
        let Op::MatMul { weight, precision, input, .. } = self.op(node) else {
            unreachable!("a product")
        };
        let ty = device_type(self.graph.weight(*weight));
        match precision {
            Precision::Coarse => self.forms_of(ty, self.rows_max(self.graph.rows(*input))),
            _ => Forms { few: Input::Floats, many: Input::Floats },
        }
    }

    /// The forms of inputs that may be rounded, of products with a type and at most so many columns.
    pub(super) fn forms_of(&self, ty: Type, columns: usize) -> Forms {
        let few = input_of(self.caps, ty, 1);
        let is_tiled = !self.caps.software && columns > COLUMNS_MAX as usize;
        Forms { few, many: if is_tiled { input_of(self.caps, ty, COLUMNS_TILED) } else { few } }
    }

    /// Lowers products of one input.
    pub(super) fn multiply(
        &mut self,
        input: Value,
        parts: &[FusedProduct],
    ) -> Result<(), GraphError> {
        self.prepare(input, parts);
        let mut plain: Vec<usize> = Vec::new();
        for part in parts {
            match part {
                FusedProduct::Plain { matmul, residual: None }
                | FusedProduct::Activated { matmul, .. } => plain.push(*matmul),
                FusedProduct::Plain { matmul, residual: Some(residual) } => {
                    let other = self.view(residual.other);
                    let out = self.op(residual.node).out();
                    let nodes = [*matmul, residual.node];
                    self.single(input, *matmul, &nodes, out, Some(other))?;
                }
                FusedProduct::Gated { gate, up, node } => self.gated(input, [*gate, *up], *node)?,
            }
        }
        while !plain.is_empty() {
            let together = self.alike(&plain);
            plain.retain(|node| !together.contains(node));
            match together[..] {
                [node] => {
                    let out = self.op(node).out();
                    self.single(input, node, &[node], out, None)?;
                }
                _ => self.together(input, &together)?,
            }
        }
        for part in parts {
            if let FusedProduct::Activated { matmul, node } = part {
                let Op::Gate { activation, out, .. } = self.op(*node) else {
                    unreachable!("an activation")
                };
                let product = self.op(*matmul).out();
                self.gate_of(&[*node], *out, (product, None), *activation);
            }
        }
        Ok(())
    }

    /// Brings the input of products into the forms that they require, unless its kernel does.
    pub(super) fn prepare(&mut self, input: Value, parts: &[FusedProduct]) {
        let forms = self.forms(parts);
        let is_halved = forms.iter().any(|forms| forms.many == Input::Halves);
        if is_halved && !self.halves.contains_key(&input) {
            self.halve(input);
        }
        let is_quantized = |forms: &Forms| [forms.few, forms.many].contains(&Input::Quantized);
        if !forms.iter().any(is_quantized) {
            return;
        }
        let readers = match self.wanted(input).quantized_many {
            true => QuantizedReaders::All,
            false => QuantizedReaders::FewColumns,
        };
        if self.merged.remove(&input) {
            self.quantize(input, Some((is_split, 0)), readers);
        } else if self.quantized_by_maker.remove(&input) {
            let rows = rows_to(self.graph.rows(input));
            self.quantize(input, Some((rows, self.caps.emit_columns())), readers);
        } else if !self.quantized.contains_key(&input) {
            let rows = rows_to(self.graph.rows(input));
            let late =
                !self.caps.software && self.weight_bytes(parts) < self.caps.few.quantized_bytes;
            if late {
                self.late.insert(input);
            }
            let skipped = late.then(|| (rows, self.rows_late(input, parts)));
            self.quantize(input, skipped, readers);
        }
    }

    /// The most rows for which no product reads a late value in quantized form: one, or more if only experts read it.
    fn rows_late(&self, input: Value, parts: &[FusedProduct]) -> u32 {
        let routed = parts.iter().flat_map(FusedProduct::matmuls).find_map(|node| {
            let Op::Experts(experts) = self.op(node) else { return None };
            Some(self.rows_of_pairs(experts))
        });
        let is_multiplied =
            |node: &Node| matches!(node.op, Op::MatMul { input: of, .. } if of == input);
        let experts_alone = routed.filter(|_| !self.graph.nodes.iter().any(is_multiplied));
        experts_alone.unwrap_or(1)
    }

    /// Bytes of the matrices that products of one row read.
    fn weight_bytes(&self, parts: &[FusedProduct]) -> u64 {
        let bytes = |id: &WeightId| {
            let weight = self.graph.weight(*id);
            let ty = device_type(weight);
            (weight.rows * weight.cols.div_ceil(ty.block_weights) * ty.block_bytes) as u64
        };
        let nodes = parts.iter().flat_map(FusedProduct::matmuls);
        let all = nodes.map(|node| match self.op(node) {
            Op::MatMul { weight, .. } => bytes(weight),
            Op::Experts(experts) => {
                let used = (self.graph.width(experts.route) / 2) as u64;
                let stack: u64 = experts.stack.iter().map(bytes).sum();
                used * stack / self.graph.experts(experts).max(1) as u64
            }
            _ => 0,
        });
        all.sum()
    }

    /// Matrix, weights and bias of a product.
    fn matmul(&self, node: usize) -> Result<(WeightId, Placed, Option<WeightId>), GraphError> {
        let Op::MatMul { weight, bias, .. } = self.op(node) else { unreachable!("a product") };
        match self.holdings.weights.placed(*weight) {
            Some(placed) => Ok((*weight, placed.clone(), *bias)),
            None => Err(self.unsupported(OpKind::MatMul, "a weight that was not loaded")),
        }
    }

    /// The first of `nodes` and those that one dispatch can run with it.
    fn alike(&self, nodes: &[usize]) -> Vec<usize> {
        let kind = |node: usize| {
            let (_, placed, bias) = self.matmul(node).ok()?;
            let [part] = placed.parts[..] else { return None };
            let quads = self.graph.width(self.op(node).out()).is_multiple_of(4);
            let forms = self.matmul_forms(node);
            (bias.is_none() && quads).then_some((placed.ty, part.home, forms))
        };
        let first = kind(nodes[0]);
        let alike = nodes[1..].iter().filter(|&&node| first.is_some() && kind(node) == first);
        std::iter::once(nodes[0]).chain(alike.copied()).take(MATRICES_MAX).collect()
    }

    /// Several matrices in one dispatch, with results side by side.
    fn together(&mut self, input: Value, nodes: &[usize]) -> Result<(), GraphError> {
        let values: Vec<Value> = nodes.iter().map(|&node| self.op(node).out()).collect();
        let views = self.views_of(&values);
        let mut matrices = Vec::new();
        for &node in nodes {
            let (id, placed, _) = self.matmul(node)?;
            matrices.push((placed.parts[0], id));
        }
        let job = Job {
            nodes: nodes.to_vec(),
            out: views[0],
            first: 0,
            matrices,
            bias: None,
            bias_first: 0,
            residual: None,
            gate: None,
            makes: None,
        };
        self.job(input, &[job], Some(values[0]));
        Ok(())
    }

    /// One matrix, in one dispatch per part.
    fn single(
        &mut self,
        input: Value,
        node: usize,
        nodes: &[usize],
        out: Value,
        residual: Option<View>,
    ) -> Result<(), GraphError> {
        let (id, placed, bias) = self.matmul(node)?;
        let view = self.view(out);
        let job = |part: &RowRange| Job {
            nodes: nodes.to_vec(),
            out: view,
            first: part.first_row,
            matrices: vec![(*part, id)],
            bias,
            bias_first: part.first_row,
            residual,
            gate: None,
            makes: (placed.parts.len() == 1).then_some(out),
        };
        let jobs: Vec<Job> = placed.parts.iter().map(job).collect();
        self.job(input, &jobs, Some(out));
        Ok(())
    }

    /// Gate and up in one dispatch if their layouts match, otherwise one after the other.
    fn gated(&mut self, input: Value, sides: [usize; 2], node: usize) -> Result<(), GraphError> {
        let Op::Gate { activation, out, .. } = self.op(node) else { unreachable!("a gate") };
        let (gate, up) = (self.matmul(sides[0])?, self.matmul(sides[1])?);
        let alike = gate.1.ty == up.1.ty
            && gate.1.parts.len() == 1
            && up.1.parts.len() == 1
            && gate.1.parts[0].home == up.1.parts[0].home
            && self.matmul_forms(sides[0]) == self.matmul_forms(sides[1])
            && gate.2.is_none()
            && up.2.is_none();
        if !alike {
            let values = sides.map(|side| self.op(side).out());
            for (side, value) in sides.into_iter().zip(values) {
                self.single(input, side, &[side], value, None)?;
            }
            let [gate, up] = values;
            self.gate_of(&[node], *out, (gate, Some(up)), *activation);
            return Ok(());
        }
        let view = self.view(*out);
        let job = Job {
            nodes: vec![sides[0], sides[1], node],
            out: view,
            first: 0,
            matrices: vec![(gate.1.parts[0], gate.0), (up.1.parts[0], up.0)],
            bias: None,
            bias_first: 0,
            residual: None,
            gate: Some(*activation),
            makes: Some(*out),
        };
        self.job(input, &[job], Some(*out));
        Ok(())
    }

    /// Adds a stage that runs jobs with one input, in the variant for the number of columns.
    fn job(&mut self, input: Value, jobs: &[Job], makes: Option<Value>) {
        let rows = self.graph.rows(input);
        let most = self.rows_max(rows) as u32;
        let mut choices = Vec::new();
        let tiled = columns_tiled(self.caps, self.matmul_forms(jobs[0].nodes[0]).many);
        let mut kinds =
            if self.caps.software { COLUMNS.to_vec() } else { COLUMNS_OF_HARDWARE.to_vec() };
        kinds.extend((!self.caps.software && tiled > COLUMNS_TILED).then_some(tiled));
        for &columns in &kinds {
            let last = columns >= most || Some(&columns) == kinds.last();
            let mut dispatches = Vec::new();
            let most = if last { most } else { columns };
            for job in jobs {
                dispatches.extend(self.windows(input, job, columns, most));
            }
            let (when, bound) = if last { (always as _, 0) } else { (rows_to(rows), columns) };
            choices.push(DraftChoice { when, bound, dispatches });
            if last {
                break;
            }
        }
        let name = choices[0].dispatches[0].source.name.clone();
        let nodes: Vec<usize> = jobs[0].nodes.clone();
        self.push(&nodes, name, makes, choices);
    }

    /// The dispatches of a job: one per maximum number of columns that may run at once.
    fn windows(&mut self, input: Value, job: &Job, columns: u32, most: u32) -> Vec<DraftDispatch> {
        let (part, id) = job.matrices[0];
        let placed = self.holdings.weights.placed(id).expect("looked up before");
        let (ty, layout, cols) = (placed.ty, placed.layout, placed.cols as usize);
        // All products of a dispatch read their input in equal form, and the first node is one of them.
        let late = columns == 1 && self.late.contains(&input);
        let forms = self.matmul_forms(job.nodes[0]);
        let form = match (columns >= COLUMNS_TILED, late) {
            (true, _) => forms.many,
            (false, false) => forms.few,
            (false, true) => Input::Floats,
        };
        let epilogue = job.epilogue();
        let rows = rows_of(self.caps, form, columns, epilogue, part.rows);
        let few = columns <= self.caps.emit_columns();
        let factor = self.factor(input).filter(|_| few);
        let makes = job.makes.filter(|_| few);
        let emission = makes.and_then(|value| self.emission(value, epilogue));
        let key = GemvKey {
            ty,
            layout,
            columns,
            rows: if emission.is_some() { rows_emitting(self.caps, rows) } else { rows },
            input: form,
            matrices: job.matrices.len() as u32,
            bias: job.bias.is_some(),
            factors: false,
            chosen: Chosen::None,
            ragged: false,
            epilogue,
            scaled: factor.is_some(),
            emit: emission.as_ref().map_or(Emit::None, |emission| emission.emit),
        };
        let (matrices, rows) = job.layout();
        let operations = 2 * job.matrices.iter().map(|(part, _)| u64::from(part.rows)).sum::<u64>();
        let operations = operations * cols as u64;
        let at_once = self.columns_at_once(operations, columns);

        let emitted = emission.as_ref().map(|emission| emission.params).unwrap_or_default();
        let squares = factor.map(|(_, squares)| squares);
        let (x, operands) = self.operands((input, form), job, squares, emission);
        let bias = job.bias.map_or(0, |bias| 4 * self.vector(bias) + job.bias_first);
        let input_rows = self.graph.rows(input);
        let mut params = GemvParams {
            x,
            out: [job.out.offset + job.first, job.out.stride],
            residual: job.residual.map_or([0; 2], |r| [r.offset + job.first, r.stride]),
            first_column: 0,
            columns_at: columns_at(input_rows),
            units: cols.div_ceil(64) as u32,
            rows,
            row_blocks: part.row_blocks,
            bias,
            matrices,
            norm: factor.map(|(norm, _)| norm).unwrap_or_default(),
            emitted,
            ..GemvParams::default()
        };
        let source = key.source(self.caps);
        let mut dispatches = Vec::new();
        for first in (0..most).step_by(at_once as usize) {
            let mut grid = Grid::new(input_rows, operations, move |_, count| key.grid(rows, count));
            grid.window = [first, at_once];
            params.first_column = first;
            dispatches.push(dispatch(source.clone(), &params, operands.clone(), grid));
        }
        dispatches
    }

    /// What a product binds, and the view of its input's rows.
    fn operands(
        &mut self,
        (input, form): (Value, Input),
        job: &Job,
        squares: Option<Operand>,
        emission: Option<Emission>,
    ) -> (Quads, Vec<Operand>) {
        let mut operands = vec![Operand::Step];
        let x = self.read(input, form, &mut operands);
        operands.extend(squares);
        let has_gain = emission.as_ref().is_some_and(|emission| emission.has_gain);
        operands.extend((job.bias.is_some() || has_gain).then_some(Operand::Vectors));
        operands.extend(job.residual.map(|view| Operand::Buffer(view.buffer)));
        operands.push(Operand::Buffer(job.out.buffer));
        operands.extend(emission.into_iter().flat_map(|emission| emission.written));
        let weights = Operand::Weights(job.matrices[0].0.home);
        operands.extend([weights, weights]);
        (x, operands)
    }

    /// Binds a product's input in a form; returns the view of its rows.
    pub(super) fn read(&mut self, input: Value, form: Input, operands: &mut Vec<Operand>) -> Quads {
        let values = 16 * pieces(self.graph.width(input));
        let stride = (values / form.element_values()) as u32;
        match form {
            Input::Floats => {
                let view = self.view(input);
                operands.push(Operand::Buffer(view.buffer));
                view.of()
            }
            Input::Quantized => {
                let Quantized { q, s } = self.quantized(input);
                operands.extend([q, s].map(Operand::Buffer));
                Quads { at: 0, stride }
            }
            Input::Halves => {
                let Halves { h, s } = self.halves(input);
                operands.extend([h, s].map(Operand::Buffer));
                Quads { at: 0, stride }
            }
        }
    }

    /// Columns per dispatch, so that none runs too long.
    pub(super) fn columns_at_once(&self, operations: u64, columns: u32) -> u32 {
        let most =
            (self.holdings.rates.products * super::DISPATCH_SECONDS / operations as f64) as u32;
        (most / columns * columns).max(columns)
    }

    /// Lowers an [`Op::Embed`]: rows of a table, from each block that holds some of it.
    pub(super) fn embed(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Embed { table, ids, out } = *self.op(node) else { unreachable!("its kind") };
        let Some(placed) = self.holdings.weights.placed(table).cloned() else {
            return Err(self.unsupported(OpKind::Embed, "a table that was not loaded"));
        };
        let view = self.view(out);
        let (ids_at, ids_stride) = match ids {
            Ids::Tokens => (self.words.layout().tokens, 1),
            // A position and an offset in the page tables per row.
            Ids::Positions => {
                self.words.bound_positions(self.graph.weight(table).rows);
                (self.words.layout().rows, 2)
            }
            Ids::Segments { .. } => (self.words.layout().segments, 1),
        };
        let (key, width) = (EmbedKey { ty: placed.ty, layout: placed.layout }, view.width as usize);
        let mut dispatches = Vec::new();
        for part in &placed.parts {
            let params = EmbedParams {
                out: view.of(),
                ids_at,
                units: width.div_ceil(64) as u32,
                quads: view.width.div_ceil(4),
                row_blocks: part.row_blocks,
                base: part.base,
                blocks: part.blocks,
                first_row: part.first_row,
                rows: part.rows,
                ids_stride,
                zero: 0,
            };
            let operands = vec![
                Operand::Step,
                Operand::Buffer(view.buffer),
                Operand::Weights(part.home),
                Operand::Weights(part.home),
            ];
            let grid =
                Grid::new(view.rows, width as u64, move |_, rows| EmbedKey::grid(rows, width));
            dispatches.push(dispatch(key.source(self.caps), &params, operands, grid));
        }
        let name = dispatches[0].source.name.clone();
        let choices = vec![DraftChoice { when: always, bound: 0, dispatches }];
        self.push(&[node], name, Some(out), choices);
        Ok(())
    }
}

/// Offset of the number of rows of a kind in the step.
pub(super) fn columns_at(rows: Rows) -> u32 {
    match rows {
        Rows::Tokens => 0,
        Rows::Outputs => 1,
    }
}
