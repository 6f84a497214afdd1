//! How what is offloaded is split over several devices: by given shares, or by times and memory.

use std::collections::BTreeSet;

use crate::bytes::sum;
use crate::machine::HOST;
use crate::memory::{weight_bytes, weights};
use crate::request::Work;
use crate::{Error, Excess, Plan};

/// Splits of a number of parts over the offload devices of a machine, in its order.
///
/// A split that is not asked for is the best of a few: in proportion to memory, the fastest device first, and, so that
/// a prompt's micro-batches keep all devices busy, in inverse proportion to what a layer takes. Where a device is full,
/// what is too much goes to the others.
pub(crate) struct Splitter<'a> {
    work: &'a Work<'a>,
    /// Offload devices from the fastest to the slowest; empty where times are not known.
    by_speed: Vec<usize>,
    /// Milliseconds that the layers take in an answer on each offload device; empty where that is not known.
    layers_ms: Vec<f64>,
    /// Bytes of the largest part on each offload device.
    part_bytes: Vec<u64>,
}

impl<'a> Splitter<'a> {
    pub fn new(work: &'a Work<'a>) -> Splitter<'a> {
        let devices = work.machine.devices.len() - 1;
        let times = work.machine.times.as_ref();
        let times = times.filter(|times| times.devices.len() == devices + 1);
        let layers_ms: Vec<f64> = times.map_or(Vec::new(), |times| {
            let layers = times.devices[HOST + 1..].iter().map(|device| &device.layers);
            layers.map(|layers| layers.iter().map(|cost| cost.answer_ms()).sum()).collect()
        });
        let mut by_speed: Vec<usize> = (0..layers_ms.len()).collect();
        by_speed.sort_by(|&a, &b| layers_ms[a].total_cmp(&layers_ms[b]));
        let part_bytes = if devices > 1 { part_bytes(work) } else { vec![0; devices] };
        Splitter { work, by_speed, layers_ms, part_bytes }
    }

    /// The best plan with `count` parts offloaded.
    pub fn plan(&self, count: u32) -> Result<Plan, Error> {
        let devices = self.part_bytes.len();
        let Work { machine, request, .. } = self.work;
        if devices == 1 {
            return self.work.plan(&[count]);
        }
        if !request.shares.is_empty() {
            let share = |device| request.shares.get(device).copied().unwrap_or(0.0);
            return self.work.plan(&divided(count, &(0..devices).map(share).collect::<Vec<_>>()));
        }
        let memory = |device: usize| machine.devices[HOST + 1 + device].memory_bytes as f64;
        let memory: Vec<f64> = (0..devices).map(memory).collect();
        let mut roomiest: Vec<usize> = (0..devices).collect();
        roomiest.sort_by(|&a, &b| memory[b].total_cmp(&memory[a]));
        let mut best = self.fitted(divided(count, &memory), &roomiest);
        if count == 0 || self.layers_ms.is_empty() {
            return best;
        }
        let rates: Vec<f64> =
            self.layers_ms.iter().map(|ms| 1.0 / ms.max(f64::MIN_POSITIVE)).collect();
        let mut first = vec![0; devices];
        first[self.by_speed[0]] = count;
        for counts in [first, divided(count, &rates)] {
            let found = self.fitted(counts, &self.by_speed);
            let ms = |plan: &Result<Plan, Error>| plan.as_ref().map_or(f64::MAX, Plan::answer_ms);
            if ms(&found) < ms(&best) {
                best = found;
            }
        }
        best
    }

    /// The plan of a split, or of one near it where a device is too small: what is too much goes to the first of
    /// `order` that have room.
    fn fitted(&self, mut counts: Vec<u32>, order: &[usize]) -> Result<Plan, Error> {
        let labels = self.work.machine.labels();
        let mut most = vec![u32::MAX; counts.len()];
        loop {
            let error = match self.work.plan(&counts) {
                Ok(plan) => return Ok(plan),
                Err(error) => error,
            };
            let Error::DoesNotFit { what, .. } = &error else { return Err(error) };
            let full = labels[HOST + 1..].iter().position(|label| *label == what.device);
            let Some(full) = full.filter(|&full| counts[full] > 0) else { return Err(error) };
            let mut left = self.excess_parts(full, what).clamp(1, counts[full]);
            counts[full] -= left;
            most[full] = counts[full];
            for &device in order {
                let more = left.min(most[device] - counts[device]);
                counts[device] += more;
                left -= more;
            }
            if left > 0 {
                return Err(error);
            }
        }
    }

    /// Parts that a device must lose at least.
    fn excess_parts(&self, device: usize, what: &Excess) -> u32 {
        let bytes = what.used_bytes.saturating_sub(what.budget_bytes);
        u32::try_from(bytes.div_ceil(self.part_bytes[device].max(1))).unwrap_or(u32::MAX)
    }

    /// How a plan is split, where there are several devices to split over.
    pub fn note(&self, plan: &Plan) -> Option<String> {
        let devices = &plan.devices[HOST + 1..];
        if devices.len() < 2 || plan.gpu_layers == 0 {
            return None;
        }
        let parts: Vec<String> =
            devices.iter().map(|device| format!("{} {}", device.label, device.parts)).collect();
        let why = match (self.work.request.shares.is_empty(), self.layers_ms.is_empty()) {
            (false, _) => "as asked",
            (true, true) => "by free memory",
            (true, false) => "by times and free memory",
        };
        Some(format!("layers are split {why}: {}", parts.join(", ")))
    }
}

/// `count` parts in proportion to `shares`: part `j` goes to the first device whose cumulated share exceeds `j / count`
/// (llama.cpp's rule for `--tensor-split`). Shares that are no positive numbers count as nothing; where all are, the
/// last device gets everything.
fn divided(count: u32, shares: &[f64]) -> Vec<u32> {
    let share = |share: &f64| if share.is_finite() { share.max(0.0) } else { 0.0 };
    let total: f64 = shares.iter().map(share).sum();
    let mut counts = vec![0; shares.len()];
    for part in 0..count {
        let mut end = 0.0;
        // Multiplied out, so that whole numbers are compared exactly.
        let place = shares.iter().position(|one| {
            end += share(one);
            end * f64::from(count) > f64::from(part) * total
        });
        counts[place.unwrap_or(shares.len() - 1)] += 1;
    }
    counts
}

/// Bytes of weights and cache of the largest part, for each offload device.
fn part_bytes(work: &Work<'_>) -> Vec<u64> {
    let Work { graph, machine, budget, .. } = *work;
    let mut layers = graph.layer_nodes();
    layers.push((0..graph.nodes.len()).filter(|&n| graph.nodes[n].layer.is_none()).collect());
    let kv = graph.caches.iter().map(|cache| budget.kv_bytes(cache)).max().unwrap_or(0);
    let state = graph.states.iter().map(|state| budget.state_bytes(state)).max().unwrap_or(0);
    let ids: Vec<BTreeSet<_>> = layers.into_iter().map(|nodes| weights(graph, nodes)).collect();
    let largest = |facts| ids.iter().map(|ids| weight_bytes(graph, ids, facts)).max();
    let devices = machine.devices[HOST + 1..].iter();
    devices.map(|facts| sum([largest(facts).unwrap_or(0), kv.max(state)])).collect()
}

#[cfg(test)]
mod tests {
    use super::divided;

    #[test]
    fn parts_follow_their_shares() {
        let cases: [(u32, &[f64], &[u32]); 7] = [
            (8, &[3.0, 1.0], &[6, 2]),
            (33, &[3.0, 1.0], &[25, 8]),
            (3, &[1.0, 1.0], &[2, 1]),
            (0, &[1.0, 1.0], &[0, 0]),
            (5, &[0.0, 1.0, 0.0], &[0, 5, 0]),
            (5, &[f64::NAN, -1.0, 2.0], &[0, 0, 5]),
            (4, &[0.0, 0.0], &[0, 4]),
        ];
        for (count, shares, expected) in cases {
            assert_eq!(divided(count, shares), expected, "{count} by {shares:?}");
        }
        // Whole numbers of parts are a split of their own.
        for counts in [[50, 31], [1, 80], [40, 41]] {
            assert_eq!(divided(81, &counts.map(f64::from)), counts);
        }
    }
}
