//! The ops that run as a single kernel.

use bilayer_graph::{Activation, Error as GraphError, Op, OpKind, Temperature, Value};
use bytemuck::Pod;

use super::super::draft::{Condition, DraftChoice, Grid, Operand, always, rows_to};
use super::{Lowering, View, dispatch};
use crate::kernel::Source;
use crate::kernels::add::{AddKey, AddParams};
use crate::kernels::conv::{ConvKey, ConvParams};
use crate::kernels::gate::{GateKey, GateParams};
use crate::kernels::halve::{HalveKey, HalveParams};
use crate::kernels::head_norm::{HeadNormKey, HeadNormParams};
use crate::kernels::join::{JoinKey, JoinParams};
use crate::kernels::layer_norm::{LayerNormKey, LayerNormParams};
use crate::kernels::matmul::COLUMNS_MAX;
use crate::kernels::part::{PartKey, PartParams};
use crate::kernels::pool::{PoolKey, PoolParams};
use crate::kernels::quantize::{QuantizeKey, QuantizeParams};
use crate::kernels::rms_norm::{RmsNormKey, RmsNormParams};
use crate::kernels::rope::{RopeKey, RopeParams, turns};
use crate::kernels::route_all::{RouteAllKey, RouteAllParams};
use crate::kernels::rows::{RowsKey, RowsParams};
use crate::kernels::scale::{ScaleKey, ScaleParams};
use crate::kernels::scan::{ScanKey, ScanParams};
use crate::kernels::soft_cap::{SoftCapKey, SoftCapParams};
use crate::kernels::top_k::{self, stretches};
use crate::kernels::view::View as Quads;

impl View {
    /// The form for shaders.
    pub(super) fn of(&self) -> Quads {
        Quads::of_floats(self.offset as usize, self.stride as usize)
    }

    /// Quads per row.
    pub(super) fn row_quads(&self) -> u32 {
        self.width.div_ceil(4)
    }
}

/// The destinations of an op's result: floats, quantized activations or both.
struct Made {
    floats: bool,
    quantized: bool,
    view: Quads,
    operands: Vec<Operand>,
}

impl Lowering<'_> {
    /// Lowers a node as a stage of its own.
    pub(super) fn plain(&mut self, node: usize) -> Result<(), GraphError> {
        match self.op(node).kind() {
            OpKind::Embed => self.embed(node),
            OpKind::RmsNorm => self.rms_norm(node),
            OpKind::LayerNorm => self.layer_norm(node),
            OpKind::HeadNorm => self.head_norm(node),
            OpKind::Rope => self.rope(node),
            OpKind::Conv => self.conv(node),
            OpKind::Scan => self.scan(node),
            OpKind::Gate => self.gate(node),
            OpKind::Add => self.add(node),
            OpKind::Scale => self.scale(node),
            OpKind::SoftCap => self.soft_cap(node),
            OpKind::Part => self.part(node),
            OpKind::Join => self.join(node),
            OpKind::Rows => self.rows(node),
            OpKind::Pool => self.pool(node),
            OpKind::TopK => self.top_k(node),
            OpKind::Route => self.route(node),
            OpKind::RouteAll => self.route_all(node),
            OpKind::Mix => self.mix(node),
            OpKind::MatMul | OpKind::Attend | OpKind::Experts => {
                unreachable!("an item of its own, with what is fused to it")
            }
        }
    }

    pub(super) fn unsupported(&self, op: OpKind, what: &str) -> GraphError {
        GraphError::Unsupported { device: "the GPU".to_owned(), op, what: what.to_owned() }
    }

    /// A stage that computes each element from one other.
    fn elementwise(
        &mut self,
        node: usize,
        source: Source,
        params: &impl Pod,
        views: [View; 2],
        grid: fn(u32, usize) -> [u32; 3],
    ) {
        let operands = views.map(|view| Operand::Buffer(view.buffer)).to_vec();
        let makes = Some(self.op(node).out());
        self.stage(&[node], makes, dispatch(source, params, operands, elements(&views[1], grid)));
    }

    /// Lowers an [`Op::Scale`].
    fn scale(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Scale { input, factor, temperature, by, out } = *self.op(node) else {
            unreachable!("its kind")
        };
        let by = by.and_then(|by| self.holdings.weights.vector(by)?.first().copied());
        let factor = factor * by.unwrap_or(1.0);
        let (x, y) = (self.view(input), self.view(out));
        let mut params = ScaleParams { x: x.of(), out: y.of(), factor, ..ScaleParams::default() };
        params.quads = y.row_quads();
        if let Some(Temperature { scale, length, offset }) = temperature {
            params = ScaleParams { scale, length, offset, ..params };
            params.rows_at = self.words.layout().rows;
        }
        let mut operands: Vec<Operand> = temperature.map(|_| Operand::Step).into_iter().collect();
        operands.extend([Operand::Buffer(x.buffer), Operand::Buffer(y.buffer)]);
        let source = ScaleKey { temperature: temperature.is_some() }.source(self.caps);
        let grid = elements(&y, ScaleKey::grid);
        self.stage(&[node], Some(out), dispatch(source, &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::SoftCap`].
    fn soft_cap(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::SoftCap { input, cap, out } = self.op(node) else { unreachable!("its kind") };
        let (x, y) = (self.view(*input), self.view(*out));
        let (quads, cap) = (y.row_quads(), *cap);
        let params = SoftCapParams { x: x.of(), out: y.of(), quads, cap, zero: [0; 2] };
        let source = SoftCapKey.source(self.caps);
        self.elementwise(node, source, &params, [x, y], SoftCapKey::grid);
        Ok(())
    }

    /// Lowers an [`Op::HeadNorm`].
    fn head_norm(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::HeadNorm { input, gain, head_dim, centered, eps, out } = self.op(node) else {
            unreachable!("a head norm")
        };
        let key = HeadNormKey { gain: gain.is_some(), centered: *centered };
        let (x, y) = (self.view(*input), self.view(*out));
        let params = HeadNormParams {
            x: x.of(),
            out: y.of(),
            gain: gain.map_or(0, |gain| self.vector(gain)),
            quads: (*head_dim / 4) as u32,
            eps: *eps,
            gain_quads: gain.map_or(1, |gain| (self.graph.weight(gain).cols / 4) as u32),
        };
        let mut operands: Vec<Operand> = gain.map(|_| Operand::Vectors).into_iter().collect();
        operands.extend([Operand::Buffer(x.buffer), Operand::Buffer(y.buffer)]);
        let heads = y.width / *head_dim as u32;
        let grid = Grid::new(y.rows, u64::from(4 * y.width), move |_, rows| {
            HeadNormKey::grid(rows, heads)
        });
        let source = key.source(self.caps);
        self.stage(&[node], Some(*out), dispatch(source, &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::Rope`].
    fn rope(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Rope { input, head_dim, rope, out } = self.op(node) else {
            unreachable!("a rotation")
        };
        let factors = rope.factors.and_then(|id| self.holdings.weights.vector(id));
        let table = self.constants(turns(&rope.frequencies, factors));
        let (x, y) = (self.view(*input), self.view(*out));
        let heads = y.width / *head_dim as u32;
        let key = RopeKey {
            head_dim: *head_dim as u32,
            query: true,
            append: None,
            norm_q: false,
            norm_k: false,
            rotate: Some((rope.pairs, 2 * rope.frequencies.len() as u32)),
            hadamard: false,
        };
        let params = RopeParams {
            q: x.of(),
            q_out: y.of(),
            rows_at: self.words.layout().rows,
            pages_at: self.words.layout().pages,
            turns: table,
            heads,
            magnitude: rope.magnitude,
            ..RopeParams::default()
        };
        let operands = vec![
            Operand::Step,
            Operand::Vectors,
            Operand::Buffer(x.buffer),
            Operand::Buffer(y.buffer),
        ];
        let operations = u64::from(8 * y.width);
        let grid = Grid::new(y.rows, operations, move |_, rows| key.grid(rows, heads, 0));
        self.stage(&[node], Some(*out), dispatch(key.source(self.caps), &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::Add`].
    fn add(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Add { a, b, out } = *self.op(node) else { unreachable!("its kind") };
        let [a, b, y] = [a, b, out].map(|value| self.view(value));
        let params = AddParams { a: a.of(), b: b.of(), out: y.of(), quads: y.row_quads(), zero: 0 };
        let operands = [a, b, y].map(|view| Operand::Buffer(view.buffer)).to_vec();
        let grid = elements(&y, AddKey::grid);
        self.stage(&[node], Some(out), dispatch(AddKey.source(self.caps), &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::Conv`].
    fn conv(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Conv { input, weight, bias, state, out } = *self.op(node) else {
            unreachable!("its kind")
        };
        let (x, y) = (self.view(input), self.view(out));
        let channels = y.width as usize;
        let taps = self.graph.weight(weight).cols / channels;
        let params = ConvParams {
            x: [x.offset, x.stride],
            out: [y.offset, y.stride],
            channels: y.width,
            weight: 4 * self.vector(weight),
            bias: bias.map_or(0, |bias| 4 * self.vector(bias)),
            states_at: self.words.layout().states,
            slot: self.holdings.states[&state].stride(),
            zero: 0,
        };
        let operands = vec![
            Operand::Step,
            Operand::Vectors,
            Operand::Buffer(x.buffer),
            Operand::States(state),
            Operand::Buffer(y.buffer),
        ];
        let source = ConvKey { taps, bias: bias.is_some() }.source(self.caps);
        let operations = (taps * channels) as u64;
        let grid = Grid::new(y.rows, operations, move |_, _| ConvKey::grid(channels));
        self.stage(&[node], Some(out), dispatch(source, &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::Scan`].
    fn scan(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Scan(op) = self.op(node) else { unreachable!("its kind") };
        let beta = op.update.beta().map(|beta| self.view(beta));
        let [dt, out] = [op.dt, op.out].map(|value| self.view(value));
        let values = [op.x, op.b, op.c].map(|columns| (self.view(columns.value), columns.first));
        let [x, b, c] = values.map(|(view, first)| [view.offset + first as u32, view.stride]);
        let [bias, decay] = [op.bias, op.decay].map(|id| 4 * self.vector(id));
        let params = ScanParams {
            x,
            b,
            c,
            dt: [dt.offset, dt.stride],
            beta: beta.map_or([0; 2], |beta| [beta.offset, beta.stride]),
            out: [out.offset, out.stride],
            bias,
            decay,
            skip: op.update.skip().map_or(0, |id| 4 * self.vector(id)),
            head_dim: op.head_dim as u32,
            state_dim: op.state_dim as u32,
            groups: op.groups as u32,
            neighbours: op.neighbours as u32,
            states_at: self.words.layout().states,
            slot: self.holdings.states[&op.state].stride(),
            b_factor: op.b_factor,
            c_factor: op.c_factor,
            zero: 0,
        };
        let [x, b, _] = values.map(|(view, _)| Operand::Buffer(view.buffer));
        let mut operands = vec![Operand::Step, Operand::Vectors, x, b, Operand::Buffer(dt.buffer)];
        operands.extend(beta.map(|beta| Operand::Buffer(beta.buffer)));
        operands.extend([Operand::States(op.state), Operand::Buffer(out.buffer)]);
        let key = ScanKey { state_dim: op.state_dim, delta: beta.is_some() };
        let rows = op.heads * op.head_dim;
        let operations = 4 * (rows * op.state_dim) as u64;
        let grid = Grid::new(out.rows, operations, move |_, _| ScanKey::grid(rows));
        self.stage(&[node], Some(op.out), dispatch(key.source(self.caps), &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::Part`].
    fn part(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Part { input, stride, first, width, out } = *self.op(node) else {
            unreachable!("its kind")
        };
        let (x, y) = (self.view(input), self.view(out));
        let params = PartParams {
            x: [x.offset, x.stride],
            out: [y.offset, y.stride],
            width: width as u32,
            first: first as u32,
            stride: stride as u32,
            all: y.width,
        };
        let operands = [x, y].map(|view| Operand::Buffer(view.buffer)).to_vec();
        let source = PartKey.source(self.caps);
        let grid = elements(&y, PartKey::grid);
        self.stage(&[node], Some(out), dispatch(source, &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::Join`].
    fn join(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Join { a, b, widths, out } = *self.op(node) else { unreachable!("its kind") };
        let views = [a, b, out].map(|value| self.view(value));
        let [a, b, y] = views;
        let params = JoinParams {
            a: [a.offset, a.stride],
            b: [b.offset, b.stride],
            out: [y.offset, y.stride],
            widths: widths.map(|width| width as u32),
            all: y.width,
            zero: [0; 3],
        };
        let operands = views.map(|view| Operand::Buffer(view.buffer)).to_vec();
        let (source, grid) = (JoinKey.source(self.caps), elements(&y, JoinKey::grid));
        self.stage(&[node], Some(out), dispatch(source, &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::RouteAll`].
    fn route_all(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::RouteAll { experts, out } = *self.op(node) else { unreachable!("its kind") };
        let y = self.view(out);
        let params = RouteAllParams { out: [y.offset, y.stride], experts: experts as u32, zero: 0 };
        let operands = vec![Operand::Buffer(y.buffer)];
        let (source, grid) = (RouteAllKey.source(self.caps), elements(&y, RouteAllKey::grid));
        self.stage(&[node], Some(out), dispatch(source, &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::Rows`].
    fn rows(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Rows { input, out } = *self.op(node) else { unreachable!("its kind") };
        let (x, y) = (self.view(input), self.view(out));
        let params = RowsParams {
            x: x.of(),
            out: y.of(),
            quads: y.row_quads(),
            outputs_at: self.words.layout().outputs,
            zero: [0; 2],
        };
        let operands = vec![Operand::Step, Operand::Buffer(x.buffer), Operand::Buffer(y.buffer)];
        let grid = elements(&y, RowsKey::grid);
        self.stage(
            &[node],
            Some(out),
            dispatch(RowsKey.source(self.caps), &params, operands, grid),
        );
        Ok(())
    }

    /// Lowers an [`Op::Pool`].
    fn pool(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Pool { input, out } = *self.op(node) else { unreachable!("its kind") };
        let (x, y) = (self.view(input), self.view(out));
        let params = PoolParams {
            x: x.of(),
            out: y.of(),
            quads: y.row_quads(),
            outputs_at: self.words.layout().outputs,
            rows_at: self.words.layout().rows,
            zero: 0,
        };
        let operands = vec![Operand::Step, Operand::Buffer(x.buffer), Operand::Buffer(y.buffer)];
        let tokens = self.limits.tokens.div_ceil(self.limits.outputs.max(1));
        let width = y.width as usize;
        let grid =
            Grid::new(y.rows, (width * tokens) as u64, move |_, rows| PoolKey::grid(rows, width));
        let source = PoolKey.source(self.caps);
        self.stage(&[node], Some(out), dispatch(source, &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::TopK`].
    fn top_k(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::TopK { input, k, out } = *self.op(node) else { unreachable!("its kind") };
        let (x, y) = (self.view(input), self.view(out));
        let (width, k) = (x.width as usize, k as u32);
        let rows = self.rows_max(x.rows) as u64;
        let parts = self.buffer(rows * u64::from(stretches(width)) * u64::from(k) * 8);
        let params = top_k::PartParams { x: [x.offset, x.stride], width: x.width, k };
        let operands = vec![Operand::Step, Operand::Buffer(x.buffer), Operand::Buffer(parts)];
        let grid = Grid::new(x.rows, width as u64 * u64::from(k), move |counts, rows| {
            top_k::PartKey::grid(rows, width, counts.top_k)
        });
        let found = dispatch(top_k::PartKey.source(self.caps), &params, operands, grid);
        self.stage(&[node], None, found);
        let params = top_k::JoinParams {
            out: [y.offset, y.stride],
            stretches: stretches(width),
            k,
            no_number: [f32::NAN.to_bits(); 4],
        };
        let operands = vec![Operand::Step, Operand::Buffer(parts), Operand::Buffer(y.buffer)];
        let work = u64::from(stretches(width)) * u64::from(k * k);
        let grid = Grid::new(y.rows, work, |counts, rows| top_k::JoinKey::grid(rows, counts.top_k));
        let joined = dispatch(top_k::JoinKey.source(self.caps), &params, operands, grid);
        self.stage(&[node], None, joined);
        Ok(())
    }

    /// Memory for a result, in all forms in which it will be read.
    fn made(&mut self, out: Value) -> Made {
        let wanted = self.wanted(out);
        let mut made = Made {
            floats: wanted.floats,
            quantized: wanted.quantized,
            view: Quads::default(),
            operands: Vec::new(),
        };
        if made.floats {
            let y = self.view(out);
            made.view = y.of();
            made.operands.push(Operand::Buffer(y.buffer));
        }
        if made.quantized {
            let quantized = self.quantized(out);
            made.operands.extend([Operand::Buffer(quantized.q), Operand::Buffer(quantized.s)]);
        }
        made
    }

    /// Lowers an [`Op::RmsNorm`].
    fn rms_norm(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::RmsNorm { input, gain, eps, out } = self.op(node) else { unreachable!("a norm") };
        let x = self.view(*input);
        let made = self.made(*out);
        let (floats, quantized) = (made.floats, made.quantized);
        let key = RmsNormKey { sum: false, gain: gain.is_some(), floats, quantized };
        let mut operands = vec![Operand::Buffer(x.buffer)];
        operands.extend(gain.map(|_| Operand::Vectors));
        operands.extend(made.operands);
        let params = RmsNormParams {
            a: x.of(),
            out: made.view,
            width: x.width,
            gain: gain.map_or(0, |gain| self.vector(gain)),
            eps: *eps,
            ..RmsNormParams::default()
        };
        let grid = Grid::new(x.rows, u64::from(4 * x.width), |_, rows| RmsNormKey::grid(rows));
        let makes = floats.then_some(*out);
        let dispatches = vec![dispatch(key.source(self.caps), &params, operands, grid)];
        let name = dispatches[0].source.name.clone();
        let folded: Condition = (rows_to(x.rows), self.caps.emit_columns());
        let folded = self.is_folded(node).then_some(folded);
        let mut choices: Vec<DraftChoice> = folded.map(DraftChoice::skip).into_iter().collect();
        choices.push(DraftChoice { when: always, bound: 0, dispatches });
        self.push(&[node], name, makes, choices);
        Ok(())
    }

    /// Lowers an [`Op::LayerNorm`].
    fn layer_norm(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::LayerNorm { input, gain, bias, eps, out } = self.op(node) else {
            unreachable!("a norm")
        };
        let x = self.view(*input);
        let made = self.made(*out);
        let (floats, quantized) = (made.floats, made.quantized);
        let key = LayerNormKey { sum: false, bias: bias.is_some(), floats, quantized };
        let mut operands = vec![Operand::Buffer(x.buffer), Operand::Vectors];
        operands.extend(made.operands);
        let params = LayerNormParams {
            a: x.of(),
            out: made.view,
            width: x.width,
            gain: self.vector(*gain),
            bias: bias.map_or(0, |bias| self.vector(bias)),
            eps: *eps,
            ..LayerNormParams::default()
        };
        let grid = Grid::new(x.rows, u64::from(4 * x.width), |_, rows| LayerNormKey::grid(rows));
        let makes = floats.then_some(*out);
        self.stage(&[node], makes, dispatch(key.source(self.caps), &params, operands, grid));
        Ok(())
    }

    /// Lowers an [`Op::Gate`].
    fn gate(&mut self, node: usize) -> Result<(), GraphError> {
        let Op::Gate { gate, up, activation, out } = *self.op(node) else {
            unreachable!("its kind")
        };
        self.gate_of(&[node], out, (gate, up), activation);
        Ok(())
    }

    /// `activation(gate) * up` of two values, or `activation(gate)`.
    pub(super) fn gate_of(
        &mut self,
        nodes: &[usize],
        out: Value,
        (gate, up): (Value, Option<Value>),
        activation: Activation,
    ) {
        let (gate, up) = (self.view(gate), up.map(|up| self.view(up)));
        let made = self.made(out);
        let mut operands = vec![Operand::Buffer(gate.buffer)];
        operands.extend(up.map(|up| Operand::Buffer(up.buffer)));
        operands.extend(made.operands);
        let (floats, quantized) = (made.floats, made.quantized);
        let key = GateKey { activation, up: up.is_some(), floats, quantized };
        let params = GateParams {
            gate: gate.of(),
            up: up.map(|up| up.of()).unwrap_or_default(),
            out: made.view,
            width: gate.width,
            zero: 0,
        };
        let grid = elements(&gate, GateKey::grid);
        let makes = made.floats.then_some(out);
        self.stage(nodes, makes, dispatch(key.source(self.caps), &params, operands, grid));
    }

    /// Rounds a value to halves, in steps of many rows.
    pub(super) fn halve(&mut self, value: Value) {
        let x = self.view(value);
        let halves = self.halves(value);
        let params = HalveParams { x: x.of(), width: x.width, zero: 0 };
        let operands = [x.buffer, halves.h, halves.s].map(Operand::Buffer).to_vec();
        let grid = Grid::new(x.rows, u64::from(4 * x.width), |_, rows| HalveKey::grid(rows));
        let source = HalveKey.source(self.caps);
        let name = source.name.clone();
        let dispatches = vec![dispatch(source, &params, operands, grid)];
        let few = DraftChoice::skip((rows_to(x.rows), COLUMNS_MAX));
        let many = DraftChoice { when: always, bound: 0, dispatches };
        self.push(&[], name, None, vec![few, many]);
    }

    /// Quantizes a value whose kernel did not; skipped in steps to which the condition and its bound apply, and in those
    /// of many rows unless products of all sizes read it.
    pub(super) fn quantize(
        &mut self,
        value: Value,
        skipped: Option<Condition>,
        readers: QuantizedReaders,
    ) {
        let x = self.view(value);
        let quantized = self.quantized(value);
        let params = QuantizeParams { x: x.of(), width: x.width, ..QuantizeParams::default() };
        let operands = [x.buffer, quantized.q, quantized.s].map(Operand::Buffer).to_vec();
        let grid = elements(&x, QuantizeKey::grid);
        let source = QuantizeKey.source(self.caps);
        let name = source.name.clone();
        let dispatches = vec![dispatch(source, &params, operands, grid)];
        let mut choices: Vec<DraftChoice> = skipped.map(DraftChoice::skip).into_iter().collect();
        let (when, bound): Condition = match readers {
            QuantizedReaders::All => (always, 0),
            QuantizedReaders::FewColumns => (rows_to(x.rows), COLUMNS_MAX),
        };
        choices.push(DraftChoice { when, bound, dispatches });
        if readers == QuantizedReaders::FewColumns {
            choices.push(DraftChoice::skip((always, 0)));
        }
        self.push(&[], name, None, choices);
    }
}

/// Which products read a quantized value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuantizedReaders {
    /// Those of few columns.
    FewColumns,
    /// Those of any number of columns.
    All,
}

/// A grid of a few operations per element.
pub(super) fn elements(view: &View, grid: fn(u32, usize) -> [u32; 3]) -> Grid {
    let width = view.width as usize;
    Grid::new(view.rows, 4 * width as u64, move |_, rows| grid(rows, width))
}
