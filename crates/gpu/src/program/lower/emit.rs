//! Products of few columns that emit the next product's input: the result quantized, or the result of an RMS norm but for its
//! factor. Decode has three dispatches a layer less.

use std::collections::HashSet;

use bilayer_graph::fuse::{FusedOp, FusedProduct, Item};
use bilayer_graph::{Op, Value};

use super::{Lowering, Operand};
use crate::caps::Input;
use crate::kernels::matmul::{Emit, Emitted, Epilogue, Norm};
use crate::kernels::view::{View as Quads, pieces};
use crate::weights::ROW_MULTIPLE;

/// An RMS norm that steps of few rows have no kernel for.
#[derive(Clone, Copy)]
pub(super) struct FoldedNorm {
    /// Its node.
    node: usize,
    /// Its result.
    out: Value,
    /// The form in which products read it.
    form: Input,
    /// The buffer of sums of squares.
    squares: usize,
}

/// What a product emits.
pub(super) struct Emission {
    /// For the kernel's key.
    pub emit: Emit,
    /// For its parameters.
    pub params: Emitted,
    /// Whether the kernel multiplies by a gain.
    pub has_gain: bool,
    /// What it writes.
    pub written: Vec<Operand>,
}

impl Lowering<'_> {
    /// Finds the norms that are folded into the products before and after them.
    pub(super) fn fold_norms(&mut self, items: &[Item]) {
        if self.caps.emit_columns() == 0 || self.checked {
            return;
        }
        let reads = items.iter().flat_map(|item| item.reads(self.graph));
        let read: HashSet<Value> = reads.chain(self.outputs.iter().copied()).collect();
        let mut emitters = HashSet::new();
        for item in items {
            let FusedOp::Multiply { input, norm, route: None, parts } = &item.kind else {
                continue;
            };
            if let Some(norm) = norm
                && let Op::RmsNorm { input: of, gain: Some(_), .. } = *self.op(*norm)
                && emitters.contains(&of)
                && !self.folded.contains_key(&of)
                && !read.contains(input)
                && let Some(form) = self.form_of_all(parts)
            {
                let rows =
                    self.rows_max(self.graph.rows(of)).min(self.caps.emit_columns() as usize);
                let sums = rows * self.graph.width(of) / Emit::ROWS as usize;
                let squares = self.buffer(4 * sums as u64);
                self.folded.insert(of, FoldedNorm { node: *norm, out: *input, form, squares });
                self.normed.insert(*input, of);
            } else {
                emitters.extend(self.emitters(parts));
            }
        }
    }

    /// The form in which products of few columns read their input, if it is one.
    fn form_of_all(&self, parts: &[FusedProduct]) -> Option<Input> {
        let forms = self.forms(parts);
        let form = forms.first()?.few;
        forms.iter().all(|forms| forms.few == form).then_some(form)
    }

    /// The values that products emit a norm of: of one matrix in one block of weights, with a residual, and rows of whole units.
    fn emitters(&self, parts: &[FusedProduct]) -> impl Iterator<Item = Value> {
        parts.iter().filter_map(|part| {
            let FusedProduct::Plain { matmul, residual: Some(residual) } = part else {
                return None;
            };
            let (Op::MatMul { weight, .. }, made) =
                (self.op(*matmul), self.op(residual.node).out())
            else {
                return None;
            };
            let placed = self.holdings.weights.placed(*weight)?;
            let is_whole = self.graph.width(made).is_multiple_of(ROW_MULTIPLE);
            (placed.parts.len() == 1 && is_whole).then_some(made)
        })
    }

    /// The folded norm with this result.
    fn norm_of(&self, out: Value) -> Option<FoldedNorm> {
        self.folded.get(self.normed.get(&out)?).copied()
    }

    /// Whether steps of few rows have no kernel for a norm.
    pub(super) fn is_folded(&self, norm: usize) -> bool {
        self.norm_of(self.op(norm).out()).is_some()
    }

    /// The factor that a product of few columns applies to its input, and the buffer of the sums of squares.
    pub(super) fn factor(&self, input: Value) -> Option<(Norm, Operand)> {
        let folded = self.norm_of(input)?;
        let Op::RmsNorm { eps, .. } = *self.op(folded.node) else { unreachable!("a norm") };
        let width = self.graph.width(input);
        let quads = (width / ROW_MULTIPLE) as u32;
        let norm = Norm { width: width as f32, eps, quads, zero: 0 };
        Some((norm, Operand::Buffer(folded.squares)))
    }

    /// What a product of few columns emits of its result.
    pub(super) fn emission(&mut self, out: Value, epilogue: Epilogue) -> Option<Emission> {
        if let Some(folded) = self.folded.get(&out).copied() {
            let Op::RmsNorm { gain: Some(gain), .. } = *self.op(folded.node) else {
                unreachable!("a norm with a gain")
            };
            let (emitted, mut written) = match folded.form {
                Input::Quantized => self.quantized_written(folded.out),
                _ => {
                    let view = self.view(folded.out);
                    let Quads { at, stride } = view.of();
                    let emitted = Emitted { at, stride, ..Emitted::default() };
                    (emitted, vec![Operand::Buffer(view.buffer)])
                }
            };
            let params = Emitted { gain: 4 * self.vector(gain), ..emitted };
            written.push(Operand::Buffer(folded.squares));
            let emit = Emit::Norm(folded.form);
            return Some(Emission { emit, params, has_gain: true, written });
        }
        let fits = self.caps.emit_columns() > 0
            && !self.checked
            && matches!(epilogue, Epilogue::Gate(_))
            && self.wanted(out).quantized
            && self.graph.width(out).is_multiple_of(Emit::ROWS as usize);
        fits.then(|| {
            self.quantized_by_maker.insert(out);
            let (params, written) = self.quantized_written(out);
            Emission { emit: Emit::Quantized, params, has_gain: false, written }
        })
    }

    fn quantized_written(&mut self, value: Value) -> (Emitted, Vec<Operand>) {
        let quantized = self.quantized(value);
        let stride = pieces(self.graph.width(value)) as u32;
        let emitted = Emitted { stride, ..Emitted::default() };
        (emitted, [quantized.q, quantized.s].map(Operand::Buffer).to_vec())
    }
}
