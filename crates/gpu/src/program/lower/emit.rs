//! Products of few columns that emit the next product's input: the result quantized, or the result of an RMS norm but for its
//! factor. Decode has three dispatches a layer less.

use bilayer_graph::fuse::{FusedOp, FusedProduct, Item};
use bilayer_graph::{Op, Value};

use super::{Lowering, Operand};
use crate::caps::Input;
use crate::kernels::matmul::{COLUMNS_MAX, Emit, Emitted, Epilogue, Norm};
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
        if !self.caps.emits || self.checked {
            return;
        }
        for item in items {
            let FusedOp::Multiply { input, norm: Some(norm), route: None, parts } = &item.kind
            else {
                continue;
            };
            let Op::RmsNorm { input: of, gain: Some(_), .. } = *self.op(*norm) else { continue };
            let forms = self.forms(parts);
            let form = forms[0].few;
            let is_read_elsewhere = self.outputs.contains(input)
                || items
                    .iter()
                    .any(|other| other != item && other.reads(self.graph).contains(input));
            let fits = self.graph.width(of).is_multiple_of(ROW_MULTIPLE)
                && forms.iter().all(|forms| forms.few == form)
                && !is_read_elsewhere
                && self.emits(items, of);
            if fits {
                let rows = self.rows_max(self.graph.rows(of)).min(COLUMNS_MAX as usize);
                let sums = rows * self.graph.width(of) / Emit::ROWS as usize;
                let squares = self.buffer(4 * sums as u64);
                let folded = FoldedNorm { node: *norm, out: *input, form, squares };
                self.folded.insert(of, folded);
            }
        }
    }

    /// Whether a value is made by a product with a residual that can emit it: one matrix in one block of weights, whose own
    /// input has all factors.
    fn emits(&self, items: &[Item], value: Value) -> bool {
        items.iter().any(|item| {
            let FusedOp::Multiply { input, route: None, parts, .. } = &item.kind else {
                return false;
            };
            parts.iter().any(|part| match part {
                FusedProduct::Plain { matmul, residual: Some(residual) } => {
                    let Op::MatMul { weight, .. } = self.op(*matmul) else { return false };
                    let placed = self.holdings.weights.placed(*weight);
                    self.op(residual.node).out() == value
                        && placed.is_some_and(|placed| placed.parts.len() == 1)
                        && self.norm_of(*input).is_none()
                }
                _ => false,
            })
        })
    }

    /// The folded norm with this result.
    fn norm_of(&self, out: Value) -> Option<FoldedNorm> {
        self.folded.values().find(|folded| folded.out == out).copied()
    }

    /// Whether steps of few rows have no kernel for a norm.
    pub(super) fn is_folded(&self, norm: usize) -> bool {
        self.folded.values().any(|folded| folded.node == norm)
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
                Input::Quantized => self.emitted_quantized(folded.out),
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
        let fits = self.caps.emits
            && !self.checked
            && matches!(epilogue, Epilogue::Gate(_))
            && self.wanted(out).quantized
            && self.graph.width(out).is_multiple_of(Emit::ROWS as usize);
        fits.then(|| {
            self.emitted.insert(out);
            let (params, written) = self.emitted_quantized(out);
            Emission { emit: Emit::Quantized, params, has_gain: false, written }
        })
    }

    fn emitted_quantized(&mut self, value: Value) -> (Emitted, Vec<Operand>) {
        let quantized = self.quantized(value);
        let stride = pieces(self.graph.width(value)) as u32;
        let emitted = Emitted { stride, ..Emitted::default() };
        (emitted, [quantized.q, quantized.s].map(Operand::Buffer).to_vec())
    }
}
