//! Mixtures of experts: the route, products by route, the sum.
//!
//! With few pairs of row and expert, each pair is a separate column whose workgroups read the expert's index from the
//! route, without involving the host. With many, pairs are sorted by expert first, and an expert's pairs run
//! together.
//!
//! Stacked matrices are split into as many parts as other matrices, at any row. A part's dispatch has workgroups for
//! all experts' rows; those whose rows are elsewhere end at once.

use bilayer_graph::fuse::FusedProduct;
use bilayer_graph::{Error as GraphError, Experts, Op, OpKind, Value, WeightId};

use super::super::draft::{
    Counts, DraftChoice, DraftDispatch, Grid, Operand, View, always, rows_to,
};
use super::plain::elements;
use super::product::columns_at;
use super::{Forms, Lowering, dispatch};
use crate::caps::{Caps, Input};
use crate::kernel::GROUPS_MAX;
use crate::kernels::experts::{EXPERTS_MAX, ExpertsKey, ExpertsParams, groups, pairs_at};
use crate::kernels::matmul::{
    COLUMNS_MAX, COLUMNS_TILED, Chosen, Emit, Epilogue, Experts as Meeting, GemvKey, GemvParams,
    MATRICES_MAX, Matrix, input_of, rows_of,
};
use crate::kernels::mix::{MixKey, MixParams};
use crate::kernels::route::{RouteKey, RouteParams};
use crate::weights::{Placed, RowRange, device_type};

/// Average pairs per expert from which groups of eight are formed, and from which tiles.
const PAIRS_GROUPED: u32 = 2;
const PAIRS_TILED: u32 = 16;

/// The groups of a route: a buffer, and its sections.
#[derive(Clone, Copy)]
pub(super) struct Table {
    buffer: usize,
    /// Offset of the pairs, in words.
    pairs_at: u32,
}

/// The experts' matrices of a product.
struct Stack {
    /// Ranges of rows of the stack, each with its first row.
    parts: Vec<(u32, RowRange)>,
    placed: Placed,
    /// Rows per matrix.
    rows: u32,
    experts: u32,
    /// The experts' biases or factors, one after the other.
    beside: Option<Beside>,
}

/// What each expert has beside its matrix.
#[derive(Clone, Copy)]
enum Beside {
    Bias(RowRange),
    Factors(RowRange),
}

impl Beside {
    fn range(self) -> RowRange {
        match self {
            Beside::Bias(range) | Beside::Factors(range) => range,
        }
    }
}

/// Products by route in one dispatch: a part of a stack, or of two with equal layout.
struct Job<'a> {
    input: Value,
    route: Value,
    stack: &'a Stack,
    /// The first row of the stack in this part, and the part of each matrix.
    first: u32,
    parts: Vec<RowRange>,
    epilogue: Epilogue,
    out: View,
}

/// How columns are grouped for a number of rows.
#[derive(Clone, Copy, PartialEq)]
struct Way {
    chosen: Chosen,
    columns: u32,
    /// Maximum rows, unless it is the last one.
    rows_max: u32,
}

impl Lowering<'_> {
    /// Lowers an [`Op::Route`].
    pub(super) fn route(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Route(route) = self.op(node) else { unreachable!("its kind") };
        let (x, y) = (self.view(route.logits), self.view(route.out));
        let params = RouteParams {
            x: [x.offset, x.stride],
            out: [y.offset, y.stride],
            experts: x.width,
            used: route.used as u32,
            bias: route.bias.map_or(0, |bias| 4 * self.vector(bias)),
            normalise: u32::from(route.normalise),
            scale: route.scale,
            no_number: f32::NAN.to_bits(),
            factors: route.factors.map_or(0, |factors| 4 * self.vector(factors)),
            group_size: route.groups.map_or(0, |groups| x.width / groups.count as u32),
            groups: route.groups.map_or(0, |groups| groups.count as u32),
            groups_used: route.groups.map_or(0, |groups| groups.used as u32),
            zero: [0; 2],
        };
        let vectors = route.bias.or(route.factors).map(|_| Operand::Vectors);
        let mut operands: Vec<Operand> = vectors.into_iter().collect();
        operands.extend([x, y].map(|view| Operand::Buffer(view.buffer)));
        let operations = u64::from(x.width) * route.used as u64;
        let grid = Grid::new(y.rows, operations, |_, rows| RouteKey::grid(rows));
        let (score, bias) = (route.score, route.bias.is_some());
        let group_best = route.groups.map(|groups| groups.best as u32);
        let key = RouteKey { score, bias, factors: route.factors.is_some(), group_best };
        let routed = dispatch(key.source(self.caps), &params, operands, grid);
        self.stage(&[node], Some(route.out), routed);
        Ok(())
    }

    /// Lowers an [`Op::Mix`].
    pub(super) fn mix(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Mix { input, route, out } = *self.op(node) else { unreachable!("its kind") };
        let [x, route, y] = [input, route, out].map(|value| self.view(value));
        self.whole_quads(OpKind::Mix, y.width)?;
        let params = MixParams {
            x: x.of(),
            out: y.of(),
            route: [route.offset, route.stride],
            quads: y.row_quads(),
            used: route.width / 2,
        };
        let operands = [x, route, y].map(|view| Operand::Buffer(view.buffer)).to_vec();
        let grid = elements(&y, MixKey::grid);
        self.stage(&[node], Some(out), dispatch(MixKey.source(self.caps), &params, operands, grid));
        Ok(())
    }

    fn whole_quads(&self, op: OpKind, width: u32) -> Result<(), GraphError> {
        match width.is_multiple_of(4) {
            true => Ok(()),
            false => Err(self.unsupported(op, "results that are no multiple of four wide")),
        }
    }

    /// The forms in which experts read their input: each expert's own input must begin at a unit, unless it is floats.
    pub(super) fn experts_forms(&self, experts: &Experts) -> Forms {
        let weight = self.graph.weight(experts.stack[0]);
        let shared = self.graph.width(experts.input) == weight.cols;
        if !shared && !weight.cols.is_multiple_of(64) {
            return Forms { few: Input::Floats, many: Input::Floats };
        }
        self.forms_of(device_type(weight), usize::MAX)
    }

    /// Lowers products of one input by one route.
    pub(super) fn mixture(
        &mut self,
        input: Value,
        route: Value,
        parts: &[FusedProduct],
    ) -> Result<(), GraphError> {
        self.prepare(input, parts);
        for part in parts {
            match part {
                FusedProduct::Plain { matmul, .. } => self.alone(input, route, *matmul)?,
                FusedProduct::Gated { gate, up, node } => {
                    self.both(input, route, [*gate, *up], *node)?
                }
                FusedProduct::Activated { .. } => unreachable!("not fused with a route"),
            }
        }
        Ok(())
    }

    fn stack(&self, node: usize) -> Result<Stack, GraphError> {
        let Op::Experts(experts) = self.op(node) else { unreachable!("experts") };
        let count = self.graph.experts(experts) as u32;
        if count > EXPERTS_MAX {
            return Err(self.unsupported(OpKind::Experts, "so many experts"));
        }
        let first = self.graph.weight(experts.stack[0]);
        let rows = (first.rows / first.stacked) as u32;
        self.whole_quads(OpKind::Experts, rows)?;
        let (mut parts, mut start, mut found) = (Vec::new(), 0, None);
        for &id in experts.stack.iter() {
            let Some(placed) = self.holdings.weights.placed(id) else {
                return Err(self.unsupported(OpKind::Experts, "a weight that was not loaded"));
            };
            parts.extend(placed.parts.iter().map(|part| (start + part.first_row, *part)));
            start += self.graph.weight(id).rows as u32;
            found.get_or_insert_with(|| placed.clone());
        }
        let placed = found.expect("a stack has matrices");
        let beside = match (experts.bias, experts.factors) {
            (Some(bias), _) => Some(Beside::Bias(self.of_experts(bias)?)),
            (None, Some(factors)) => Some(Beside::Factors(self.of_experts(factors)?)),
            (None, None) => None,
        };
        Ok(Stack { parts, placed, rows, experts: count, beside })
    }

    /// Where the biases or factors of experts are. Unlike other vectors they are read in the blocks of weights, where those of
    /// residents are exchanged.
    fn of_experts(&self, id: WeightId) -> Result<RowRange, GraphError> {
        let placed = self.holdings.weights.placed(id);
        match placed.map(|placed| &placed.parts[..]) {
            Some(&[part]) => Ok(part),
            Some(_) => {
                Err(self.unsupported(OpKind::Experts, "vectors in several blocks of memory"))
            }
            None => Err(self.unsupported(OpKind::Experts, "a weight that was not loaded")),
        }
    }

    /// A stack's products, in one dispatch per part.
    fn alone(&mut self, input: Value, route: Value, node: usize) -> Result<(), GraphError> {
        let stack = self.stack(node)?;
        let value = self.op(node).out();
        let out = self.view(value);
        let job = |&(first, part): &(u32, RowRange)| Job {
            input,
            route,
            stack: &stack,
            first,
            parts: vec![part],
            epilogue: Epilogue::Plain,
            out,
        };
        let jobs: Vec<Job<'_>> = stack.parts.iter().map(job).collect();
        self.run(&[node], &jobs, value);
        Ok(())
    }

    /// Gate and up in one dispatch if their layouts match, otherwise one after the other.
    fn both(
        &mut self,
        input: Value,
        route: Value,
        sides: [usize; 2],
        node: usize,
    ) -> Result<(), GraphError> {
        let Op::Gate { activation, out, .. } = self.op(node) else { unreachable!("a gate") };
        let (gate, up) = (self.stack(sides[0])?, self.stack(sides[1])?);
        let alike = |a: &Stack, b: &Stack| {
            let one = |stack: &Stack| match stack.parts[..] {
                [(_, part)] if stack.beside.is_none() => Some((stack.placed.ty, part.home, part)),
                _ => None,
            };
            match (one(a), one(b)) {
                (Some((ty, home, first)), Some((other, there, second))) => {
                    (ty == other && home == there).then_some([first, second])
                }
                _ => None,
            }
        };
        let Some(parts) = alike(&gate, &up) else {
            for side in sides {
                self.alone(input, route, side)?;
            }
            let [gate, up] = sides.map(|side| self.op(side).out());
            self.gate_of(&[node], *out, (gate, Some(up)), *activation);
            return Ok(());
        };
        let view = self.view(*out);
        let job = Job {
            input,
            route,
            stack: &gate,
            first: 0,
            parts: parts.to_vec(),
            epilogue: Epilogue::Gate(*activation),
            out: view,
        };
        self.run(&[sides[0], sides[1], node], &[job], *out);
        Ok(())
    }

    /// The ways to run products of this many experts; the first that applies is used.
    fn ways(&self, route: Value, experts: u32) -> Vec<Way> {
        let used = (self.graph.width(route) / 2) as u32;
        let most = self.rows_max(self.graph.rows(route)) as u32;
        let rows = |pairs: u32| (pairs * experts / used).max(1);
        let way = |chosen, columns, rows_max| Way { chosen, columns, rows_max };
        let mut ways = vec![
            way(Chosen::Pair, 1, rows(PAIRS_GROUPED)),
            // A tile may read halves, which are not made in smaller steps.
            way(Chosen::Group, COLUMNS_MAX, rows(PAIRS_TILED).max(COLUMNS_MAX)),
        ];
        if !self.caps.software {
            ways.push(way(Chosen::Group, COLUMNS_TILED, u32::MAX));
        }
        let enough = ways.iter().position(|way| way.rows_max >= most).unwrap_or(ways.len() - 1);
        ways.truncate(enough + 1);
        ways
    }

    /// The most rows whose pairs of row and expert are columns of their own.
    pub(super) fn rows_of_pairs(&self, experts: &Experts) -> u32 {
        let ways = self.ways(experts.route, self.graph.experts(experts) as u32);
        if ways.len() > 1 { ways[0].rows_max } else { u32::MAX }
    }

    /// Adds a stage of products with all ways.
    fn run(&mut self, nodes: &[usize], jobs: &[Job<'_>], makes: Value) {
        let (route, experts) = (jobs[0].route, jobs[0].stack.experts);
        let ways = self.ways(route, experts);
        let table = ways.iter().any(|way| way.chosen == Chosen::Group);
        let table = table.then(|| self.table(route, experts, &ways));
        let choices = self.choices(route, &ways, |lowering, way| {
            let jobs = jobs.iter().flat_map(|job| lowering.dispatches(job, way, table));
            jobs.collect()
        });
        let name = choices[0].dispatches[0].source.name.clone();
        self.push(nodes, name, Some(makes), choices);
    }

    /// One choice per way.
    fn choices(
        &mut self,
        route: Value,
        ways: &[Way],
        mut of: impl FnMut(&mut Self, Way) -> Vec<DraftDispatch>,
    ) -> Vec<DraftChoice> {
        let to = rows_to(self.graph.rows(route));
        let mut choices = Vec::with_capacity(ways.len());
        for (place, &way) in ways.iter().enumerate() {
            let (when, bound) = match place + 1 == ways.len() {
                true => (always as fn(&Counts, u32) -> bool, 0),
                false => (to, way.rows_max),
            };
            choices.push(DraftChoice { when, bound, dispatches: of(self, way) });
        }
        choices
    }

    /// The groups of a route, computed before the first product that reads them.
    fn table(&mut self, route: Value, experts: u32, ways: &[Way]) -> Table {
        if let Some(table) = self.groups.get(&route) {
            return *table;
        }
        let (view, rows) = (self.view(route), self.graph.rows(route));
        let used = view.width / 2;
        let pairs = self.rows_max(rows) as u32 * used;
        let pairs_at = pairs_at(groups(pairs, experts, COLUMNS_MAX));
        let table = Table { buffer: self.buffer(4 * u64::from(pairs_at + pairs)), pairs_at };
        self.groups.insert(route, table);
        let source = ExpertsKey.source(self.caps);
        let name = source.name.clone();
        let choices = self.choices(route, ways, |_, way| {
            if way.chosen != Chosen::Group {
                return Vec::new();
            }
            let params = ExpertsParams {
                route: [view.offset, view.stride],
                used,
                experts,
                most: way.columns,
                pairs_at,
                columns_at: columns_at(rows),
                zero: 0,
            };
            let operands =
                vec![Operand::Step, Operand::Buffer(view.buffer), Operand::Buffer(table.buffer)];
            let grid = Grid::new(rows, 2 * u64::from(used * experts), |_, _| [1, 1, 1]);
            vec![dispatch(source.clone(), &params, operands, grid)]
        });
        self.push(&[], name, None, choices);
        table
    }

    /// The dispatches of a job: one per maximum number of rows or groups that may run at once.
    fn dispatches(&mut self, job: &Job<'_>, way: Way, table: Option<Table>) -> Vec<DraftDispatch> {
        let Job { input, route, stack, first, epilogue, out, .. } = *job;
        let Way { chosen, columns, .. } = way;
        let (part, cols) = (job.parts[0], stack.placed.cols);
        let shared = self.graph.width(input) == cols as usize;
        let whole = shared || cols.is_multiple_of(64);
        let late = columns == 1 && self.late.contains(&input);
        let form = match whole && !late {
            true => input_of(self.caps, stack.placed.ty, columns),
            false => Input::Floats,
        };
        let key = GemvKey {
            ty: stack.placed.ty,
            layout: stack.placed.layout,
            columns,
            rows: rows_of(self.caps, form, columns, epilogue, stack.rows),
            input: form,
            matrices: job.parts.len() as u32,
            bias: matches!(stack.beside, Some(Beside::Bias(_))),
            factors: matches!(stack.beside, Some(Beside::Factors(_))),
            chosen,
            ragged: !whole,
            epilogue,
            scaled: false,
            emit: Emit::None,
        };
        let mut operands = vec![Operand::Step];
        let x = self.read(input, form, &mut operands);
        let beside = stack.beside.map(Beside::range);
        operands.extend(beside.map(|part| Operand::Weights(part.home)));
        let routed = self.view(route);
        operands.push(match (chosen, table) {
            (Chosen::Group, Some(table)) => Operand::Buffer(table.buffer),
            _ => Operand::Buffer(routed.buffer),
        });
        operands.push(Operand::Buffer(out.buffer));
        operands.extend([Operand::Weights(part.home), Operand::Weights(part.home)]);
        let mut matrices = [Matrix::default(); MATRICES_MAX];
        for (to, part) in matrices.iter_mut().zip(&job.parts) {
            *to = Matrix { base: part.base, blocks: part.blocks, first_row: 0, zero: 0 };
        }
        let used = routed.width / 2;
        let params = GemvParams {
            x,
            out: [out.offset, out.stride],
            columns_at: columns_at(routed.rows),
            units: cols.div_ceil(64),
            rows: stack.rows,
            row_blocks: part.row_blocks,
            bias: beside.map_or(0, |part| part.base / size_of::<f32>() as u32),
            matrices,
            experts: Meeting {
                route: [routed.offset, routed.stride],
                used,
                pitch: if shared { 0 } else { cols / form.element_values() as u32 },
                part: [first, part.rows],
                pairs_at: table.map_or(0, |table| table.pairs_at),
                zero: 0,
            },
            ..GemvParams::default()
        };
        // Operations of one pair.
        let operations = 2 * u64::from(stack.rows) * u64::from(cols) * u64::from(key.matrices);
        let run = ExpertDispatch { key, params, operands, routed, used, operations };
        match chosen {
            Chosen::Group => self.by_groups(&run, stack.experts),
            _ => self.by_rows(&run, way.rows_max),
        }
    }

    /// One column per pair of some rows.
    fn by_rows(&self, run: &ExpertDispatch, rows_max: u32) -> Vec<DraftDispatch> {
        let ExpertDispatch { key, routed, used, .. } = *run;
        let (rows, most) = (run.params.rows, self.rows_max(routed.rows) as u32);
        let operations = run.operations * u64::from(used);
        let at_once = self.columns_at_once(operations, 1).min(GROUPS_MAX / used).max(1);
        let firsts = (0..rows_max.min(most)).step_by(at_once as usize);
        let one = |first: u32| {
            let groups = move |_: &Counts, count| key.grid(rows, count * used);
            let mut grid = Grid::new(routed.rows, operations, groups);
            grid.window = [first, at_once];
            run.dispatch(self.caps, first * used, grid)
        };
        firsts.map(one).collect()
    }

    /// One group per few pairs of an expert.
    fn by_groups(&self, run: &ExpertDispatch, experts: u32) -> Vec<DraftDispatch> {
        let ExpertDispatch { key, routed, used, .. } = *run;
        let (rows, columns) = (run.params.rows, key.columns);
        let all = groups(self.rows_max(routed.rows) as u32 * used, experts, columns);
        let at_once = self.columns_at_once(run.operations, columns) / columns;
        let at_once = at_once.clamp(1, GROUPS_MAX);
        let count = u64::from(all.div_ceil(at_once));
        let operations = run.operations * u64::from(used) / count.max(1);
        let one = |first: u32| {
            let wanted = move |_: &Counts, count: u32| {
                let groups = groups(count * used, experts, columns).saturating_sub(first);
                key.grid(rows, groups.min(at_once) * columns)
            };
            run.dispatch(self.caps, first, Grid::new(routed.rows, operations, wanted))
        };
        (0..all).step_by(at_once as usize).map(one).collect()
    }
}

/// A kernel and everything its dispatches share.
struct ExpertDispatch {
    key: GemvKey,
    params: GemvParams,
    operands: Vec<Operand>,
    /// The route.
    routed: View,
    /// Experts per row.
    used: u32,
    /// Operations per pair.
    operations: u64,
}

impl ExpertDispatch {
    fn dispatch(&self, caps: &Caps, first_column: u32, grid: Grid) -> DraftDispatch {
        let params = GemvParams { first_column, ..self.params };
        dispatch(self.key.source(caps), &params, self.operands.clone(), grid)
    }
}
