//! Router: scores of all experts, the best of them, and their weights.

use crate::{Groups, Route, Score};

/// `logits [rows, experts]`, `bias [experts]` and `factors [experts]` to `out [rows, 2 used]`: weights, then indices of experts. In f64.
pub(super) fn route(
    op: &Route,
    logits: &[f32],
    [bias, factors]: [Option<&[f32]>; 2],
    experts: usize,
    out: &mut [f32],
) {
    for (row, out) in logits.chunks_exact(experts).zip(out.chunks_exact_mut(2 * op.used)) {
        let (weights, numbers) = out.split_at_mut(op.used);
        if !row.iter().all(|x| x.is_finite()) {
            weights.fill(f32::NAN);
            (0..op.used).for_each(|i| numbers[i] = i as f32);
            continue;
        }
        let scores = scores(op.score, row);
        let biased =
            |expert: usize| scores[expert] + bias.map_or(0.0, |bias| f64::from(bias[expert]));
        // Without a bias, logits decide, since scores that round to 0 would tie.
        let key = |expert: usize| match bias {
            Some(_) => biased(expert),
            None => f64::from(row[expert]),
        };
        let open = op.groups.map(|groups| {
            // Sums of logits would be something else; the largest score is that of the largest logit.
            let single = |expert| if groups.best == 1 { key(expert) } else { biased(expert) };
            open(groups, &(0..experts).map(single).collect::<Vec<_>>())
        });
        let is_open = |expert: &usize| open.as_ref().is_none_or(|open| open[*expert]);
        let mut order: Vec<usize> = (0..experts).filter(is_open).collect();
        let larger_first = |a: usize, b: usize| key(b).partial_cmp(&key(a)).expect("finite");
        order.sort_by(|&a, &b| larger_first(a, b).then(a.cmp(&b)));
        let chosen = &order[..op.used];
        let sum: f64 = chosen.iter().map(|&expert| scores[expert]).sum();
        let factor = f64::from(op.scale) / if op.normalise { sum } else { 1.0 };
        for (i, &expert) in chosen.iter().enumerate() {
            let own = factors.map_or(1.0, |factors| f64::from(factors[expert]));
            weights[i] = (scores[expert] * factor * own) as f32;
            numbers[i] = expert as f32;
        }
    }
}

/// Whether each expert is in one of the best groups, by the experts' scores.
fn open(groups: Groups, scores: &[f64]) -> Vec<bool> {
    let size = scores.len() / groups.count;
    let of_group = |group: &[f64]| {
        let mut group = group.to_vec();
        group.sort_by(|a, b| b.total_cmp(a));
        group.iter().take(groups.best).sum::<f64>()
    };
    let sums: Vec<f64> = scores.chunks_exact(size).map(of_group).collect();
    let mut order: Vec<usize> = (0..groups.count).collect();
    order.sort_by(|&a, &b| sums[b].total_cmp(&sums[a]).then(a.cmp(&b)));
    (0..scores.len()).map(|expert| order[..groups.used].contains(&(expert / size))).collect()
}

fn scores(score: Score, row: &[f32]) -> Vec<f64> {
    match score {
        Score::Sigmoid => row.iter().map(|&x| 1.0 / (1.0 + f64::from(-x).exp())).collect(),
        Score::Softmax => {
            let peak = row.iter().copied().fold(f32::MIN, f32::max);
            let powers: Vec<f64> =
                row.iter().map(|&x| (f64::from(x) - f64::from(peak)).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.iter().map(|power| power / sum).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::route;
    use crate::reference::tests::assert_near;
    use crate::{Groups, Route, Score, Value};

    const OP: Route = Route {
        logits: Value(0),
        bias: None,
        used: 2,
        groups: None,
        score: Score::Softmax,
        normalise: false,
        scale: 1.0,
        factors: None,
        out: Value(1),
    };

    fn of(op: &Route, logits: &[f32], bias: Option<&[f32]>) -> [f32; 4] {
        let mut out = [0.0; 4];
        route(op, logits, [bias, None], logits.len(), &mut out);
        out
    }

    #[test]
    fn an_expert_may_have_a_factor_of_its_own() {
        // Powers 1, 4, 2, 1: shares of the chosen are 2/3 and 1/3.
        let logits = [0.0, 4f32.ln(), 2f32.ln(), 0.0];
        let normal = Route { normalise: true, ..OP };
        let mut out = [0.0; 4];
        route(&normal, &logits, [None, Some(&[9.0, 3.0, -6.0, 9.0])], 4, &mut out);
        assert_near(&out, &[2.0, -2.0, 1.0, 2.0], 1e-6);
    }

    #[test]
    fn weights_are_shares_of_all_or_of_the_chosen() {
        // Powers 1, 4, 2, 1 of a sum of 8.
        let (ln2, ln4) = (2f32.ln(), 4f32.ln());
        let logits = [0.0, ln4, ln2, 0.0];
        assert_near(&of(&OP, &logits, None), &[0.5, 0.25, 1.0, 2.0], 1e-6);
        let normal = Route { normalise: true, scale: 3.0, ..OP };
        assert_near(&of(&normal, &logits, None), &[2.0, 1.0, 1.0, 2.0], 1e-6);
        // The lower index comes first on ties, even where the exponentials overflow.
        assert_near(&of(&OP, &[9.0, 900.0, 9.0, 900.0], None), &[0.5, 0.5, 1.0, 3.0], 1e-6);
    }

    #[test]
    fn a_bias_chooses_and_does_not_weigh() {
        // The logistic function of 0, ln 3, -ln 3 is 1/2, 3/4, 1/4.
        let ln3 = 3f32.ln();
        let op = Route { score: Score::Sigmoid, ..OP };
        let logits = [0.0, ln3, -ln3];
        assert_near(&of(&op, &logits, None), &[0.75, 0.5, 1.0, 0.0], 1e-6);
        assert_near(&of(&op, &logits, Some(&[0.0, 0.0, 1.0])), &[0.25, 0.75, 2.0, 1.0], 1e-6);
    }

    #[test]
    fn the_best_groups_are_chosen_first() {
        // Of groups (0, 3) and (2, 2) the first has the best expert, the second the best two.
        let logits = [0.0, 3.0, 2.0, 2.0];
        let groups = |best| Some(Groups { count: 2, used: 1, best });
        let one = Route { groups: groups(1), ..OP };
        assert_eq!(of(&one, &logits, None)[2..], [1.0, 0.0]);
        let two = Route { groups: groups(2), score: Score::Sigmoid, ..OP };
        assert_eq!(of(&two, &logits, None)[2..], [2.0, 3.0]);
        // The bias counts; groups that tie are chosen in order.
        assert_eq!(of(&two, &logits, Some(&[0.9, 0.0, 0.0, 0.0]))[2..], [0.0, 1.0]);
        assert_eq!(of(&two, &[1.0; 4], None)[2..], [0.0, 1.0]);
    }

    #[test]
    fn a_row_that_is_not_finite_weighs_nothing_and_goes_somewhere() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let out = of(&OP, &[1.0, odd, 2.0], None);
            assert!(out[..2].iter().all(|x| x.is_nan()));
            assert_eq!(out[2..], [0.0, 1.0]);
        }
    }
}
