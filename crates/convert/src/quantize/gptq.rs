//! Rounds matrices by GPTQ (Frantar et al. 2022): column by column, with later columns of the row making up for the error on
//! a calibration text. SparseGPT without zeros is that, so [`prune`](mod@crate::prune) does it; sparse types also get their
//! zeros by SparseGPT. Zeros of rows that are sparse already stay.
//!
//! That takes the products of the columns of a matrix's input. Routed experts, each of which sees few tokens, and the matrices
//! of MLA's heads have none and are rounded weight by weight; for sparse types their zeros are chosen by activations.

use std::path::{Path, PathBuf};

use bilayer_engine::Model;
use bilayer_gguf::{File, Metadata};
use bilayer_measure::imatrix::{Collector, Scope};
use bilayer_quant::Type;
use tempfile::TempPath;

use super::Quantize;
use crate::prune::{MatrixPattern, Method, Pattern, Prune, grid_types, matrices};
use crate::{Calibration, Error, Progress};

/// What tells a file of rounded matrices, which a killed run may leave behind, from others.
const KIND: (&str, &str) = ("general.type", "rounded-matrices");

/// Matrices that are rounded already, in a temporary file.
#[derive(Debug)]
pub struct Rounded {
    pub(super) file: File,
    by_gptq: usize,
    others: usize,
    /// Removed after the file is closed.
    _place: TempPath,
}

/// Where the rounded matrices for a new file are kept until it is complete: `OUT.gptq`.
#[must_use]
pub fn place(path: &Path) -> PathBuf {
    path.with_added_extension("gptq")
}

impl Rounded {
    /// The number of matrices that GPTQ rounded.
    #[must_use]
    pub fn matrices(&self) -> usize {
        self.by_gptq
    }

    /// The number of matrices of the same types that are rounded weight by weight: those of routed experts and of MLA's heads.
    #[must_use]
    pub fn others(&self) -> usize {
        self.others
    }
}

impl Quantize {
    /// Rounds the layers' matrices whose type has a [grid](bilayer_quant::Grid), for [`Plan::take`](super::Plan::take). `model` is
    /// that of the file that is quantized. Memory is bounded as in [`prune`](mod@crate::prune); the temporary file, at the [`place`] of
    /// the output `path`, is as large as the matrices.
    ///
    /// # Errors
    /// Those of [`Quantize::plan`]; [`Error::Gptq`] if no matrix gets such a type, if only experts and MLA heads get one and it is
    /// dense, or if another file is at the place; [`Error::Calibration`] if the text is too short, a device fails or an
    /// activation is not finite; [`Error::Scratch`], [`Error::File`], [`Error::Interrupted`].
    pub fn gptq(
        &self,
        model: &Model,
        calibration: &Calibration<'_>,
        path: &Path,
        progress: Progress<'_>,
    ) -> Result<Rounded, Error> {
        let named = matrices(model);
        let plan = self.plan(model.file(), None)?;
        plan.check_output(path)?;
        let rounded = plan.tensors().iter().filter(|planned| {
            let is_changed = planned.from != planned.to;
            named.contains(&planned.name) && is_changed && planned.to.grid().is_some()
        });
        // All of them, as later layers are rounded by the activations of what is written.
        let rules: Vec<MatrixPattern> = rounded
            .map(|planned| MatrixPattern {
                tensor: planned.name.clone(),
                pattern: pattern(planned.to),
                ty: Some(planned.to),
            })
            .collect();
        let collector = Collector::new(model.graph(), Scope::Layers);
        let has_products = |rule: &&MatrixPattern| collector.input(&rule.tensor).is_some();
        let by_gptq = rules.iter().filter(has_products).count();
        let others = rules.len() - by_gptq;
        // Zeros of sparse types are chosen by activations, with or without GPTQ.
        let is_sparse = |rule: &MatrixPattern| !rule.pattern.is_dense();
        if by_gptq == 0 && !rules.iter().any(is_sparse) {
            return Err(self.unrounded(&rules));
        }
        let prune = Prune {
            rules,
            requantize: self.requantize,
            threads: self.threads,
            ..Prune::new(Method::SparseGpt, Pattern::Share(0.0))
        };
        let place = place(path);
        refuse_other(&place)?;
        let mut metadata = Metadata::default();
        metadata.set(KIND.0, KIND.1);
        prune.write_matrices(model, &metadata, calibration, &place, progress)?;
        let file = File::open(&place);
        let place = TempPath::try_from_path(place).map_err(Error::Scratch)?;
        Ok(Rounded { file: file?, by_gptq, others, _place: place })
    }

    /// Why GPTQ rounds none of these matrices.
    fn unrounded(&self, rules: &[MatrixPattern]) -> Error {
        let types = grid_types();
        let (what, reason) = match rules.first() {
            None => (self.mix.name, format!("the types for it are {types}")),
            Some(first) => (
                &*first.tensor,
                format!(
                    "experts and MLA heads have no products of columns, and no other matrix gets one of the types for it: \
                     {types}"
                ),
            ),
        };
        Error::Gptq { what: what.to_owned(), reason }
    }
}

/// The zeros that a type has anyway.
fn pattern(ty: Type) -> Pattern {
    ty.kept_of_64().map_or(Pattern::Share(0.0), |keep| Pattern::Groups { keep, of: 64 })
}

/// Refuses to replace a file that is no such temporary file.
fn refuse_other(place: &Path) -> Result<(), Error> {
    let is_own = |file: File| file.metadata().str(KIND.0).is_ok_and(|kind| kind == KIND.1);
    if !place.exists() || File::open(place).is_ok_and(is_own) {
        return Ok(());
    }
    let reason = "its rounded matrices would replace this file; give the output another name";
    Err(Error::Gptq { what: place.display().to_string(), reason: reason.into() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::ops::ControlFlow;

    use super::*;
    use crate::mix::Mix;
    use crate::prune::compare;
    use crate::synth::{Shape, Synth};

    fn file() -> File {
        let synth = Synth::new(Shape::find("tiny").unwrap(), Mix::pure(Type::F32).unwrap());
        File::from_bytes("tiny", synth.to_bytes().unwrap()).unwrap()
    }

    fn text(factor: usize) -> String {
        (0..400).map(|i| format!("word {} of {} and ", i * factor % 97, i % 13)).collect()
    }

    #[test]
    fn rounding_by_gptq_changes_predictions_less() {
        let (input, model) = (file(), Model::new(file()).unwrap());
        let folder = tempfile::tempdir().unwrap();
        let (text, other) = (text(7919), text(613));
        let calibration = Calibration { text: &text, window_len: 32, windows: 16 };
        let goes_on = &mut |_, _| ControlFlow::Continue(());
        let judged = Calibration { text: &other, window_len: 32, windows: 8 };
        for ty in [Type::W8A8, Type::Q4_0, Type::S4_16_64] {
            let quantize =
                Quantize { threads: Some(2), ..Quantize::new(Mix::find(ty.name).unwrap()) };
            let path = folder.path().join("model.gguf");
            let kl = |rounded: Option<&Rounded>| {
                let mut plan = quantize.plan(&input, None).unwrap();
                rounded.into_iter().for_each(|rounded| plan.take(rounded));
                plan.write(&path, &mut |_, _| ControlFlow::Continue(())).unwrap();
                let made = Model::new(File::open(&path).unwrap()).unwrap();
                let each = made.file().tensors().iter();
                assert!(each.filter(|tensor| tensor.layout().ty() == ty).count() >= 14, "{ty}");
                let going = &mut |_, _| ControlFlow::Continue(());
                compare(&model, &made, &judged, Some(2), going).unwrap().kl
            };
            let rounded = quantize.gptq(&model, &calibration, &path, goes_on).unwrap();
            assert_eq!(rounded.matrices(), 14, "{ty}");
            let (plain, by_gptq) = (kl(None), kl(Some(&rounded)));
            assert!(by_gptq < 0.8 * plain, "{ty}: {by_gptq} and {plain}");
            drop(rounded);
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "{ty}");
        }
    }

    #[test]
    fn what_cannot_be_rounded_is_refused_by_name() {
        let model = Model::new(file()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        let goes_on = &mut |_, _| ControlFlow::Continue(());
        let refused = |ty: Type, text: &str, goes_on: Progress<'_>| {
            let quantize = Quantize::new(Mix::pure(ty).unwrap());
            let calibration = Calibration { text, window_len: 32, windows: 4 };
            quantize.gptq(&model, &calibration, &path, goes_on).unwrap_err().to_string()
        };
        let error = refused(Type::Q6_K, &text(7), goes_on);
        assert!(error.contains("Q6_K") && error.contains("W8A8"), "{error}");
        let error = refused(Type::W8A8, "short", goes_on);
        assert!(error.contains("too short") || error.contains("tokens"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        std::fs::write(place(&path), "of somebody else").unwrap();
        let error = refused(Type::W8A8, &text(7), goes_on);
        assert!(error.contains("model.gguf.gptq"), "{error}");
        assert_eq!(std::fs::read(place(&path)).unwrap(), b"of somebody else");
    }
}
