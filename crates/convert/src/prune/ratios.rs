//! Chooses a pattern for every matrix by how much pruning it alone changes the predictions.
//!
//! For each matrix the calibration text is run with only that matrix pruned to `PROBE_ZEROS`, and the divergence of the
//! logits is measured. Its other patterns are assumed to cause divergence in proportion to their squared error, with
//! columns weighted by the squared activations of the text, as in the search for types
//! ([`sensitivity`](crate::quantize::sensitivity)); the sum over matrices is minimized ([`budget`]). Weights are chosen
//! by magnitude under [`Method::Magnitude`] and otherwise by [`Method::Wanda`], which costs no inverse per matrix.
//!
//! The sum is an estimate: divergences of many pruned matrices do not simply add up, and SparseGPT does better than
//! Wanda. So for [`Goal::Kl`] the model is pruned with the choice, its divergence on the calibration text measured, and
//! the choice corrected by the quotient, at most [`ROUNDS`] times; the sparsest result within the goal is kept.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use bilayer_engine::{Model, open_file};
use bilayer_files::Draft;
use bilayer_quant::Type;

use super::rows::{Row, Scores};
use super::walk::{Inputs, Matrix, Work};
use super::{MatrixPattern, Method, Pattern, Prune, Pruned, Source, layers, matrices};
use crate::budget::{self, Choice};
use crate::calibration::{Calibration, Runs};
use crate::stream::{self, Reporter};
use crate::{Error, Progress};

/// Most times that a choice is tried for [`Goal::Kl`].
pub const ROUNDS: usize = 6;

/// Zeros of the pattern that is measured.
const PROBE_ZEROS: f64 = 0.75;

/// Zeros of the candidates without a sparse type.
const SHARES: [f64; 8] = [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95];

/// Sampled weights per matrix for errors, in evenly spaced rows; at least one row.
const SAMPLE_WEIGHTS: usize = 1 << 18;

/// Smallest divergence distinguishable from none, nats per token.
const KL_LEAST: f64 = 1e-9;

/// Steps of the search for the smallest model within a divergence.
const BISECTIONS: usize = 48;

/// What the choice aims at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// At most this mean divergence from the model before on the calibration text, nats per token, and as few bytes as
    /// possible; without a sparse type, as few weights.
    Kl(f64),
    /// Decode reads that many times fewer bytes than with the model before, with as little divergence as possible;
    /// without a sparse type, that many times fewer weights of the layers' matrices are kept.
    Speed(f64),
}

/// The balanced sparse types of one width, of which each matrix gets the one of its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SparseFamily {
    prefix: &'static str,
}

impl SparseFamily {
    /// The types with the weights of every 64 that they keep, ascending.
    fn types(self) -> Vec<(usize, Type)> {
        let all = bilayer_quant::all().iter();
        let own = all.filter(|ty| ty.name.starts_with(self.prefix));
        own.filter_map(|ty| Some((ty.kept_of_64()?, *ty))).collect()
    }
}

impl FromStr for SparseFamily {
    type Err = String;

    /// Parses `S4_N_64` or `S8_N_64`.
    fn from_str(text: &str) -> Result<SparseFamily, String> {
        let known = ["S4_", "S8_"].into_iter();
        let found = known
            .map(|prefix| SparseFamily { prefix })
            .find(|family| format!("{}N_64", family.prefix).eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            format!("`{text}` is no family of sparse types; S4_N_64 and S8_N_64 are")
        })
    }
}

impl fmt::Display for SparseFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}N_64", self.prefix)
    }
}

/// A pattern that a matrix may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PatternCost {
    /// The pattern; a share of 0 leaves the matrix dense.
    pub pattern: Pattern,
    /// The type; `None` keeps the matrix's own.
    pub ty: Option<Type>,
    /// Bytes that decode reads (or weights, without sparse types), and the expected divergence, nats per token.
    pub choice: Choice,
}

/// The measurements of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixCosts {
    /// Its tensor.
    pub name: String,
    /// Number of weights.
    pub weights: u64,
    /// The divergence with only this matrix pruned to three quarters of zeros, nats per token.
    pub kl: f64,
    /// The patterns.
    pub candidates: Vec<PatternCost>,
}

/// The measurements of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct PatternCosts {
    /// The layers' matrices, in the order of the file.
    pub matrices: Vec<MatrixCosts>,
    /// Bytes that decode reads of everything else; 0 without sparse types.
    fixed: u64,
    /// Bytes that decode reads before (or weights of the matrices).
    before: u64,
}

/// The chosen pattern of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct ChosenPattern {
    /// Pattern and type.
    pub rule: MatrixPattern,
    /// Number of weights.
    pub weights: u64,
    /// The expected divergence, nats per token.
    pub kl: f64,
}

impl PatternCosts {
    /// Measures all matrices of the layers: the text is run once for each and three times more. `progress` receives the
    /// number of finished runs and their total.
    ///
    /// # Errors
    /// [`Error::Calibration`] if the text is too short, a device fails or an activation is not finite; [`Error::Scratch`];
    /// [`Error::Requantize`]; [`Error::Weight`]; [`Error::Interrupted`].
    pub fn measure(
        prune: &Prune,
        family: Option<SparseFamily>,
        model: &Model,
        calibration: &Calibration<'_>,
        progress: Progress<'_>,
    ) -> Result<PatternCosts, Error> {
        let method = match prune.method {
            Method::Magnitude => Method::Magnitude,
            _ => Method::Wanda,
        };
        let probing = Prune {
            method,
            pattern: Pattern::Share(PROBE_ZEROS),
            ty: None,
            rules: family.map_or(Vec::new(), |_| probes(model)),
            ..prune.clone()
        };
        let matrices = probing.matrices(model)?;
        let total = matrices.len() as u64 + 3;
        let mut runs = Runs::new(model, calibration, prune.threads, total, progress)?;
        let inputs = Inputs { squares: runs.activations()?, ..Inputs::default() };
        runs.base()?;
        let pool = stream::pool(prune.threads)?;
        let read = read_bytes(model);
        let of_layers = layers(model);
        let mut measured = Vec::with_capacity(matrices.len());
        for tensor in model.file().tensors() {
            let Some(&matrix) = matrices.get(tensor.name()) else { continue };
            let silent = &mut |_, _| std::ops::ControlFlow::Continue(());
            let reporter = Reporter::new(silent, 0);
            let work =
                Work::new(&probing, model, (&matrices, &of_layers, None), (&pool, &reporter));
            let candidates = candidates(matrix, family);
            let errors = pool.install(|| errors(model, matrix, &inputs, method, &candidates))?;
            let mut bytes = Vec::new();
            work.pruned(matrix, &inputs, &mut |more| {
                bytes.extend_from_slice(more);
                Ok(())
            })
            .map_err(|source| Error::Weight {
                tensor: tensor.name().into(),
                reason: source.to_string(),
            })?;
            let changed = model.with_tensor(tensor.name(), matrix.ty, bytes.into());
            let kl = runs.divergence(&changed.map_err(Error::calibration)?)?.max(KL_LEAST);
            runs.step()?;
            measured.push(scaled(matrix, kl, &candidates, &errors, read.of(tensor.name())));
        }
        let (all, own): (u64, u64) =
            (read.total(), measured.iter().map(|m| read.now(&m.name)).sum());
        let weights = measured.iter().map(|measured| measured.weights).sum();
        let (fixed, before) = if family.is_some() { (all - own, all) } else { (0, weights) };
        Ok(PatternCosts { matrices: measured, fixed, before })
    }

    /// The patterns that meet a goal by the estimate, for the matrices in order.
    ///
    /// # Errors
    /// [`Error::Prune`] if the sparsest patterns are not fast enough.
    pub fn choose(&self, goal: Goal) -> Result<Vec<ChosenPattern>, Error> {
        let things: Vec<Vec<Choice>> = self
            .matrices
            .iter()
            .map(|matrix| matrix.candidates.iter().map(|candidate| candidate.choice).collect())
            .collect();
        let damage = |at: &[usize]| -> f64 {
            things.iter().zip(at).map(|(choices, at)| choices[*at].damage).sum()
        };
        let most = |choices: &Vec<Choice>| choices.iter().map(|choice| choice.bytes).max();
        let least = |choices: &Vec<Choice>| choices.iter().map(|choice| choice.bytes).min();
        let most: u64 = things.iter().filter_map(most).sum();
        let least: u64 = things.iter().filter_map(least).sum();
        let chosen = match goal {
            Goal::Speed(times) => {
                let whole = (self.before as f64 / times) as u64;
                let budget = whole.checked_sub(self.fixed);
                budget.and_then(|budget| budget::choose(&things, budget)).ok_or_else(|| {
                    let best = self.before as f64 / (self.fixed + least).max(1) as f64;
                    Error::Prune {
                        tensor: "--target-speed".into(),
                        reason: format!(
                            "{times} times is out of reach; with the sparsest patterns it is {best:.2}"
                        ),
                    }
                })?
            }
            Goal::Kl(kl) => {
                let (mut low, mut high) = (least, most);
                let mut found = budget::choose(&things, high).expect("the largest fit");
                for _ in 0..BISECTIONS {
                    let middle = low + (high - low) / 2;
                    let at = budget::choose(&things, middle).expect("not less than the smallest");
                    if damage(&at) <= kl {
                        (high, found) = (middle, at);
                    } else {
                        low = middle + 1;
                    }
                    if low >= high {
                        break;
                    }
                }
                found
            }
        };
        let chosen = self.matrices.iter().zip(chosen).map(|(matrix, at)| {
            let PatternCost { pattern, ty, choice } = matrix.candidates[at];
            let rule = MatrixPattern { tensor: matrix.name.clone(), pattern, ty };
            ChosenPattern { rule, weights: matrix.weights, kl: choice.damage }
        });
        Ok(chosen.collect())
    }

    /// How many times fewer bytes decode reads (or weights are kept) with a choice.
    #[must_use]
    pub fn speed(&self, chosen: &[ChosenPattern]) -> f64 {
        let after = self.matrices.iter().zip(chosen).map(|(matrix, chosen)| {
            let of = |c: &&PatternCost| (c.pattern, c.ty) == (chosen.rule.pattern, chosen.rule.ty);
            matrix.candidates.iter().find(of).map_or(0, |candidate| candidate.choice.bytes)
        });
        self.before as f64 / (self.fixed + after.sum::<u64>()).max(1) as f64
    }

    /// Prunes with the patterns that meet a goal, like [`Prune::write`]; the rules of `prune` are replaced. Returns what
    /// was pruned, the choice and, for [`Goal::Kl`], the divergence on the calibration text, nats per token.
    ///
    /// # Errors
    /// Those of [`PatternCosts::choose`] and [`Prune::write`]; [`Error::Prune`] if no choice of [`ROUNDS`] meets the goal.
    pub fn write(
        &self,
        prune: &Prune,
        goal: Goal,
        (source, calibration): (Source<'_>, &Calibration<'_>),
        path: &Path,
        progress: Progress<'_>,
    ) -> Result<(Pruned, Vec<ChosenPattern>, Option<f64>), Error> {
        let with = |chosen: &[ChosenPattern]| Prune {
            rules: chosen.iter().map(|chosen| chosen.rule.clone()).collect(),
            ..prune.clone()
        };
        let Goal::Kl(target) = goal else {
            let chosen = self.choose(goal)?;
            let pruned = with(&chosen).write(source, Some(calibration), path, progress)?;
            return Ok((pruned, chosen, None));
        };
        let mut best: Option<(Pruned, Vec<ChosenPattern>, f64, Draft)> = None;
        let mut expected = target;
        for _ in 0..ROUNDS {
            let chosen = self.choose(Goal::Kl(expected))?;
            let (pruned, trial) = with(&chosen).draft(source, calibration, path, progress)?;
            let mut runs = Runs::new(source.model, calibration, prune.threads, 4, progress)?;
            runs.base()?;
            let after = Model::new(open_file(trial.path()).map_err(Error::calibration)?)
                .map_err(Error::calibration)?;
            let kl = runs.divergence(&after)?;
            drop(after);
            let is_better = best.as_ref().is_none_or(|(before, ..)| pruned.zeros > before.zeros);
            let is_repeated = best.as_ref().is_some_and(|(_, before, ..)| *before == chosen);
            if kl <= target && is_better {
                best = Some((pruned, chosen, kl, trial));
            }
            if is_repeated || kl <= target && kl >= 0.9 * target {
                break;
            }
            // Half the way in the exponent: the estimate is rough, and what is too much is of no use.
            let aim = if kl > target { 0.9 } else { 0.97 };
            expected *= (aim * target / kl.max(KL_LEAST)).clamp(0.1, 10.0);
        }
        let Some((pruned, chosen, kl, draft)) = best else {
            return Err(Error::Prune {
                tensor: "--target-kl".into(),
                reason: format!("no choice of {ROUNDS} stays within {target}; give more"),
            });
        };
        bilayer_gguf::put_in_place(draft, path)?;
        Ok((pruned, chosen, Some(kl)))
    }
}

/// The patterns that a matrix may get: dense, and all sparser ones that its rows take.
fn candidates(matrix: Matrix<'_>, family: Option<SparseFamily>) -> Vec<(Pattern, Option<Type>)> {
    let layout = matrix.tensor.layout();
    let dense = (Pattern::Share(0.0), None);
    let Some(family) = family else {
        let shares = SHARES.into_iter().map(|share| (Pattern::Share(share), None));
        return [dense].into_iter().chain(shares).collect();
    };
    let fits = |ty: Type| layout.cols().is_multiple_of(ty.block_weights as u64);
    let mut all = vec![dense];
    let bits = |ty: Type| ty.block_bytes as f64 / ty.block_weights as f64;
    if fits(Type::Q8_0) && bits(Type::Q8_0) < bits(layout.ty()) {
        all.push((Pattern::Share(0.0), Some(Type::Q8_0)));
    }
    let sparse = family.types().into_iter().filter(|(_, ty)| fits(*ty));
    all.extend(sparse.map(|(keep, ty)| (Pattern::Groups { keep, of: 64 }, Some(ty))));
    all
}

/// The rules for measuring matrices whose own type cannot hold zeros, where they will get a sparse one.
fn probes(model: &Model) -> Vec<MatrixPattern> {
    let named = matrices(model);
    let tensors = model
        .file()
        .tensors()
        .iter()
        .filter(|tensor| named.contains(tensor.name()) && !tensor.layout().ty().holds_zero);
    let rules = tensors.map(|tensor| MatrixPattern {
        tensor: tensor.name().to_owned(),
        pattern: Pattern::Share(PROBE_ZEROS),
        ty: Some(Type::F16),
    });
    rules.collect()
}

/// The weighted squared error of each pattern on sampled rows, and last that of the probe.
fn errors(
    model: &Model,
    Matrix { tensor, pattern: probe, ty: probe_type }: Matrix<'_>,
    inputs: &Inputs,
    method: Method,
    candidates: &[(Pattern, Option<Type>)],
) -> Result<Vec<f64>, Error> {
    let layout = tensor.layout();
    let (rows, cols) = (layout.rows() as usize, layout.cols() as usize);
    let bytes = model.file().bytes(tensor);
    let row_bytes = layout.row_bytes() as usize;
    let means = inputs.squares.get(tensor.name()).map(|entry| entry.means());
    let shape = layout.shape();
    let expert_rows = if shape.len() > 1 { shape[shape.len() - 2] as usize } else { 1 };
    let wrong = |error: bilayer_quant::Error| Error::Weight {
        tensor: tensor.name().into(),
        reason: error.to_string(),
    };
    let mut sums = vec![0.0; candidates.len() + 1];
    let step = (rows * cols / SAMPLE_WEIGHTS).clamp(1, rows);
    for row in (0..rows).step_by(step) {
        let mut before = vec![0.0; cols];
        layout
            .ty()
            .dequantize(&bytes[row * row_bytes..][..row_bytes], &mut before)
            .map_err(wrong)?;
        let weights = means.as_ref().map(|means| {
            let first = (row / expert_rows * cols) % means.len();
            &means[first..first + cols]
        });
        let both = candidates.iter().copied().chain([(probe, Some(probe_type))]);
        for (sum, (pattern, ty)) in sums.iter_mut().zip(both) {
            let ty = ty.unwrap_or(layout.ty());
            let mut values = before.clone();
            let mut made = vec![0; ty.row_bytes(cols).map_err(wrong)?];
            let scores = match (method, weights) {
                (Method::Magnitude, _) | (_, None) => Scores::Magnitude,
                (_, Some(weights)) => Scores::Columns(weights),
            };
            let (of, kept) = pattern.groups(cols, method);
            let row = Row::new(&mut values, of, scores);
            row.pruned(&kept, ty, &mut made).map_err(wrong)?;
            ty.dequantize(&made, &mut values).map_err(wrong)?;
            let squares = before.iter().zip(&values).enumerate().map(|(col, (a, b))| {
                let weight = weights.map_or(1.0, |weights| f64::from(weights[col]));
                weight * (f64::from(*a) - f64::from(*b)).powi(2)
            });
            *sum += squares.sum::<f64>();
        }
    }
    Ok(sums)
}

/// The candidates with their expected divergence and what decode reads of them.
fn scaled(
    matrix: Matrix<'_>,
    kl: f64,
    candidates: &[(Pattern, Option<Type>)],
    errors: &[f64],
    share: f64,
) -> MatrixCosts {
    let layout = matrix.tensor.layout();
    let (rows, cols) = (layout.rows(), layout.cols());
    let (probe, errors) = errors.split_last().expect("that of the probe");
    let has_family = candidates.iter().any(|(_, ty)| ty.is_some());
    let candidates = candidates.iter().zip(errors).map(|(&(pattern, ty), error)| {
        let bytes = match has_family {
            true => {
                let ty = ty.unwrap_or(layout.ty());
                let row_bytes = ty.row_bytes(cols as usize).expect("candidates fit the rows");
                (rows as f64 * row_bytes as f64 * share) as u64
            }
            false => ((rows * cols) as f64 * (1.0 - pattern.zeros())).round() as u64,
        };
        let is_whole = pattern.is_dense() && ty.is_none();
        let damage = if is_whole || *probe == 0.0 { 0.0 } else { kl * error / probe };
        PatternCost { pattern, ty, choice: Choice { bytes, damage } }
    });
    let candidates = candidates.collect();
    let (name, weights) = (matrix.tensor.name().to_owned(), layout.elements());
    MatrixCosts { name, weights, kl, candidates }
}

/// Bytes that a decode step reads of each tensor, of all its bytes.
struct Read(BTreeMap<String, (f64, u64)>);

impl Read {
    /// The share of a tensor's bytes: 1, but for routed experts.
    fn of(&self, name: &str) -> f64 {
        self.0.get(name).map_or(1.0, |(read, all)| read / (*all).max(1) as f64)
    }

    fn now(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |(read, _)| *read as u64)
    }

    fn total(&self) -> u64 {
        self.0.values().map(|(read, _)| *read as u64).sum()
    }
}

fn read_bytes(model: &Model) -> Read {
    let graph = model.graph();
    let mut found: BTreeMap<String, (f64, u64)> = BTreeMap::new();
    for (number, node) in graph.nodes.iter().enumerate() {
        for &id in node.op.matrices() {
            let weight = graph.weight(id);
            let entry = found.entry(weight.name.clone()).or_default();
            entry.0 += weight.bytes() as f64 * graph.share(number, 1);
            entry.1 += weight.bytes() as u64;
        }
    }
    Read(found)
}
