//! Router: scores of all experts, the best of them, and their weights.

use std::ops::Range;

use bilayer_graph::{Groups, Op, Score};

use crate::lowering::Lowering;
use crate::stage::{Context, Rowwise, Stage};

/// How experts are selected and weighted.
pub(crate) struct Rule {
    /// Added to the scores for selection.
    pub(crate) bias: Option<std::sync::Arc<[f32]>>,
    pub(crate) groups: Option<Groups>,
    pub(crate) score: Score,
    /// Whether weights are divided by their sum.
    pub(crate) normalise: bool,
    /// Factor on the weights.
    pub(crate) scale: f32,
    /// A further factor for each expert.
    pub(crate) factors: Option<std::sync::Arc<[f32]>>,
}

/// The stage of an [`Op::Route`]: `logits [rows, experts]` to `out [rows, 2 used]`, weights, then indices of experts.
pub(crate) fn stage(lowering: &mut Lowering<'_>, node: usize) -> Box<dyn Stage> {
    let Op::Route(op) = lowering.op(node) else { unreachable!("the table of ops") };
    let rule = Rule {
        bias: op.bias.map(|bias| lowering.vector(bias)),
        groups: op.groups,
        score: op.score,
        normalise: op.normalise,
        scale: op.scale,
        factors: op.factors.map(|factors| lowering.vector(factors)),
    };
    let (logits, out) = (lowering.buffer(op.logits), lowering.buffer(op.out));
    let compute = move |mut context: Context<'_>, rows: Range<usize>, results: &mut [f32]| {
        let scratch = std::mem::take(&mut context.scratch);
        let scores = &mut bytemuck::cast_slice_mut(scratch)[..logits.width];
        for (row, out) in rows.zip(results.chunks_exact_mut(out.width)) {
            rule.route(logits.get(&context, row..row + 1), scores, out);
        }
    };
    Rowwise { out, rows: out.chunk_rows(), scratch_bytes: 4 * logits.width, compute }.boxed()
}

impl Rule {
    /// Routes one row; `scores` has the length of `logits` and may be uninitialized.
    fn route(&self, logits: &[f32], scores: &mut [f32], out: &mut [f32]) {
        let (weights, numbers) = out.split_at_mut(out.len() / 2);
        if !logits.iter().all(|x| x.is_finite()) {
            weights.fill(f32::NAN);
            numbers.iter_mut().enumerate().for_each(|(i, number)| *number = i as f32);
            return;
        }
        let peak = logits.iter().copied().fold(f32::MIN, f32::max);
        let mut all = 0.0;
        for (score, &x) in scores.iter_mut().zip(logits) {
            *score = match self.score {
                Score::Softmax => (x - peak).exp(),
                Score::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            };
            all += *score;
        }
        if self.score == Score::Softmax {
            scores.iter_mut().for_each(|score| *score /= all);
        }
        // Without a bias, logits decide, since scores that round to 0 would tie. The best so far are kept sorted.
        let key = |expert: usize| match &self.bias {
            Some(bias) => scores[expert] + bias[expert],
            None => logits[expert],
        };
        let open = self.groups.map(|groups| self.open(groups, logits, scores));
        let size = logits.len() / self.groups.map_or(1, |groups| groups.count);
        let (last, mut found) = (numbers.len() - 1, 0);
        for expert in 0..logits.len() {
            if open.is_some_and(|open| open >> (expert / size) & 1 == 0) {
                continue;
            }
            let mine = key(expert);
            if found > last && key(numbers[last] as usize) >= mine {
                continue;
            }
            let at = numbers[..found].partition_point(|&known| key(known as usize) >= mine);
            found = (found + 1).min(last + 1);
            numbers.copy_within(at..found - 1, at + 1);
            numbers[at] = expert as f32;
        }
        for (weight, &number) in weights.iter_mut().zip(&*numbers) {
            *weight = scores[number as usize];
        }
        self.weigh(weights, numbers);
    }

    /// The best groups of a row as bits.
    fn open(&self, groups: Groups, logits: &[f32], scores: &[f32]) -> u64 {
        // Sums of logits would be something else; the largest score is that of the largest logit.
        let key = |expert: usize| match &self.bias {
            Some(bias) => scores[expert] + bias[expert],
            None if groups.best == 1 => logits[expert],
            None => scores[expert],
        };
        let size = logits.len() / groups.count;
        let mut sums = [f32::MIN; Groups::MAX];
        for (group, sum) in sums[..groups.count].iter_mut().enumerate() {
            let (mut first, mut second) = (f32::MIN, f32::MIN);
            for x in (group * size..(group + 1) * size).map(key) {
                second = second.max(x.min(first));
                first = first.max(x);
            }
            *sum = if groups.best == 1 || size == 1 { first } else { first + second };
        }
        let sums = &sums[..groups.count];
        let better = |group: usize| {
            let is_before = |other: &usize| {
                sums[*other] > sums[group] || sums[*other] == sums[group] && *other < group
            };
            (0..groups.count).filter(is_before).count()
        };
        let chosen = (0..groups.count).filter(|&group| better(group) < groups.used);
        chosen.fold(0, |bits, group| bits | 1 << group)
    }

    /// Normalizes and scales the scores of the chosen.
    fn weigh(&self, weights: &mut [f32], numbers: &[f32]) {
        let sum = if self.normalise { weights.iter().sum() } else { 1.0 };
        weights.iter_mut().for_each(|weight| *weight *= self.scale / sum);
        if let Some(factors) = &self.factors {
            let each = weights.iter_mut().zip(numbers);
            each.for_each(|(weight, number)| *weight *= factors[*number as usize]);
        }
    }
}
