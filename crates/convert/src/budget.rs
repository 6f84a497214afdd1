//! Picks one choice per item so that the total damage is minimal within a byte budget.
//!
//! Damage is assumed to be additive. Only an item's choices on the lower convex hull of (bytes, damage) can be
//! optimal for any price per byte. Walking the hulls in order of damage avoided per byte gives the Lagrangian
//! solution for every budget that the walk meets exactly. The remainder of a budget between two such points is
//! spent by exchanges: one or two choices change wherever that fits and reduces the sum.

/// A choice for one item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Its size.
    pub bytes: u64,
    /// Its damage, 0 or more.
    pub damage: f64,
}

/// Limit on exchanges; each reduces the damage, and few are needed.
const EXCHANGES_MAX: usize = 1000;

/// The index of the choice for each of `things`, within `budget_bytes` in total; `None` if the smallest choices
/// exceed it. Deterministic.
///
/// # Panics
/// If an item has no choices.
#[must_use]
pub fn choose(things: &[Vec<Choice>], budget_bytes: u64) -> Option<Vec<usize>> {
    let hulls: Vec<Vec<usize>> = things.iter().map(|choices| hull(choices)).collect();
    let mut at: Vec<usize> = hulls.iter().map(|hull| hull[0]).collect();
    let least: u64 = things.iter().zip(&at).map(|(choices, at)| choices[*at].bytes).sum();
    let mut left = budget_bytes.checked_sub(least)?;
    let mut steps = Vec::new();
    for (thing, hull) in hulls.iter().enumerate() {
        for pair in hull.windows(2) {
            let (from, to) = (things[thing][pair[0]], things[thing][pair[1]]);
            let bytes = to.bytes - from.bytes;
            let price = (from.damage - to.damage) / bytes as f64;
            steps.push((price, thing, pair[1], bytes));
        }
    }
    // Prices fall along a hull, and the sort is stable, so its steps stay in order.
    steps.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut closed = vec![false; things.len()];
    for (_, thing, to, bytes) in steps {
        if closed[thing] || bytes > left {
            closed[thing] = true;
            continue;
        }
        at[thing] = to;
        left -= bytes;
    }
    for _ in 0..EXCHANGES_MAX {
        let Some(exchange) = best_exchange(things, &at, left) else { break };
        // The change that frees bytes is stored second and applied first.
        for (thing, to) in exchange.into_iter().flatten().rev() {
            left = left + things[thing][at[thing]].bytes - things[thing][to].bytes;
            at[thing] = to;
        }
    }
    Some(at)
}

/// Indices of the choices on the lower convex hull, by rising bytes: each avoids more damage than the previous
/// one, and less per byte.
fn hull(choices: &[Choice]) -> Vec<usize> {
    assert!(!choices.is_empty(), "each thing has a choice");
    let mut order: Vec<usize> = (0..choices.len()).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (choices[a], choices[b]);
        a.bytes.cmp(&b.bytes).then(a.damage.total_cmp(&b.damage))
    });
    let price = |from: usize, to: usize| {
        let (from, to) = (choices[from], choices[to]);
        (from.damage - to.damage) / (to.bytes - from.bytes) as f64
    };
    let mut hull: Vec<usize> = Vec::new();
    for next in order {
        if hull.last().is_some_and(|&last| choices[next].damage >= choices[last].damage) {
            continue;
        }
        while let [.., before, last] = hull[..] {
            if price(before, last) > price(last, next) {
                break;
            }
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

/// New choices for one or two items.
type Exchange = [Option<(usize, usize)>; 2];

/// The exchange that fits into `left` bytes and reduces the damage most.
fn best_exchange(things: &[Vec<Choice>], at: &[usize], left: u64) -> Option<Exchange> {
    // Changes that free bytes: bytes freed, damage added, item, choice; sorted by bytes freed.
    let mut downs = Vec::new();
    for (thing, choices) in things.iter().enumerate() {
        let now = choices[at[thing]];
        let smaller = choices.iter().enumerate().filter(|(_, choice)| choice.bytes < now.bytes);
        downs.extend(
            smaller.map(|(to, choice)| {
                (now.bytes - choice.bytes, choice.damage - now.damage, thing, to)
            }),
        );
    }
    downs.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (mut best, mut most) = (None, 0.0);
    for (thing, choices) in things.iter().enumerate() {
        let now = choices[at[thing]];
        for (to, choice) in choices.iter().enumerate() {
            let gain = now.damage - choice.damage;
            if gain <= most {
                continue;
            }
            let needed = (choice.bytes.saturating_sub(now.bytes)).saturating_sub(left);
            if needed == 0 {
                (best, most) = (Some([Some((thing, to)), None]), gain);
                continue;
            }
            // The cheapest is first.
            let down = downs.iter().find(|down| down.0 >= needed && down.2 != thing);
            if let Some(&(_, damage, other, down)) = down
                && gain - damage > most
            {
                (best, most) = (Some([Some((thing, to)), Some((other, down))]), gain - damage);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn things(seed: u64, count: usize) -> Vec<Vec<Choice>> {
        let mut state = seed;
        let mut draw = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 100
        };
        let mut thing = || {
            let size = 1 + draw();
            let weight = (1 + draw()) as f64;
            [2, 3, 4, 5, 8]
                .map(|bits| {
                    let noise = 0.5 + draw() as f64 / 100.0;
                    Choice { bytes: bits * size, damage: noise * weight / f64::from(1 << bits) }
                })
                .to_vec()
        };
        (0..count).map(|_| thing()).collect()
    }

    fn sums(things: &[Vec<Choice>], at: &[usize]) -> (u64, f64) {
        let chosen = things.iter().zip(at).map(|(choices, at)| choices[*at]);
        chosen.fold((0, 0.0), |(bytes, damage), c| (bytes + c.bytes, damage + c.damage))
    }

    /// The minimal damage, by exhaustive search.
    fn exact(things: &[Vec<Choice>], budget: u64) -> f64 {
        let Some((first, rest)) = things.split_first() else { return 0.0 };
        let fits = first.iter().filter(|choice| choice.bytes <= budget);
        fits.map(|choice| choice.damage + exact(rest, budget - choice.bytes))
            .fold(f64::INFINITY, f64::min)
    }

    #[test]
    fn the_best_of_all_combinations_is_missed_by_little_at_most() {
        for seed in 0..40 {
            let things = things(seed, 6);
            let least: u64 = things.iter().map(|choices| choices[0].bytes).sum();
            for budget in [least, least * 5 / 4, least * 3 / 2, least * 2, least * 5] {
                let at = choose(&things, budget).expect("the least fits");
                let (bytes, damage) = sums(&things, &at);
                let best = exact(&things, budget);
                assert!(bytes <= budget, "seed {seed}: {bytes} of {budget}");
                assert!(damage <= best * 1.1 + 1e-12, "seed {seed}: {damage} for {best}");
            }
            assert_eq!(choose(&things, least - 1), None);
        }
    }

    #[test]
    fn more_bytes_never_harm_where_all_fits_all_is_best() {
        let things = things(7, 30);
        let largest: u64 = things.iter().map(|choices| choices[4].bytes).sum();
        let at = choose(&things, largest).expect("all fits");
        let best: f64 = things
            .iter()
            .map(|choices| choices.iter().map(|c| c.damage).fold(f64::INFINITY, f64::min))
            .sum();
        assert!((sums(&things, &at).1 - best).abs() < 1e-9);
    }
}
