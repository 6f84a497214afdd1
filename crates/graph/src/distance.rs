//! Biases on attention's scores by the distance of query and key: slopes, or buckets of a table.

use std::sync::Arc;

use crate::WeightId;

/// What scaled and capped scores gain by the distance of query and key.
#[derive(Clone, Debug, PartialEq)]
pub enum DistanceBias {
    /// `[heads]`: `slope * |position of the key - position of the query|` is subtracted (ALiBi, Press et al. 2022; to
    /// both sides if attention is bidirectional).
    Slopes(Arc<[f32]>),
    /// The bias of the distance's bucket is added.
    Buckets(Buckets),
}

/// Buckets of distances, each with a bias per head (T5, Raffel et al. 2020): half of them for keys that follow their
/// query. Half of a side's are of one distance each; the others widen with its logarithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// `[1, count * heads]` F32, F16 or BF16: the biases of all heads for each bucket.
    pub table: WeightId,
    /// Number of buckets; even, at least 4.
    pub count: usize,
    /// The distance from which on all are in the last bucket of their side; above a quarter of `count`.
    pub distance_max: u32,
}

impl Buckets {
    /// Whether every distance has a bucket.
    pub fn are_valid(&self) -> bool {
        let is_even = self.count >= 4 && self.count.is_multiple_of(2);
        is_even && self.distance_max as usize > self.count / 4
    }

    /// The bucket of a key that is `distance` positions after its query, or before it if negative.
    pub fn of(&self, distance: i64) -> usize {
        let side = self.count / 2;
        let exact = side / 2;
        let first = if distance > 0 { side } else { 0 };
        let far = distance.unsigned_abs().min(u64::from(self.distance_max)) as usize;
        if far < exact {
            return first + far;
        }
        // For the usual sizes some buckets begin at whole distances, such as 16: those must not depend on the last bits of a
        // platform's logarithm.
        let share = |distance: usize| (distance as f64 / exact as f64).ln();
        let wide = share(far) / share(self.distance_max as usize) * (side - exact) as f64 + 1e-9;
        first + (exact + wide as usize).min(side - 1)
    }

    /// The biases by distance, `[heads, 2 * reach + 1]`: of each head from the key `reach` positions before the query to
    /// that as many after it. `table [count, heads]` are the biases by bucket. Distances above `distance_max` have its
    /// bias.
    pub fn by_distance(&self, table: &[f32], reach: usize) -> Vec<f32> {
        let heads = table.len() / self.count;
        let reach = reach as i64;
        let of_head = |head: usize| {
            (-reach..=reach).map(move |distance| table[self.of(distance) * heads + head])
        };
        (0..heads).flat_map(of_head).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Buckets;
    use crate::WeightId;

    const T5: Buckets = Buckets { table: WeightId(0), count: 32, distance_max: 128 };

    /// The first distance of each bucket of a side, as transformers 4.48 has them.
    #[test]
    fn buckets_of_t5_widen_as_in_the_original() {
        let firsts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91];
        for distance in 0..1000 {
            let bucket = firsts.iter().filter(|&&first| first <= distance).count() - 1;
            assert_eq!(T5.of(-distance), bucket, "{distance} before");
            let after = if distance == 0 { 0 } else { 16 + bucket };
            assert_eq!(T5.of(distance), after, "{distance} after");
        }
        assert_eq!([T5.of(i64::MIN), T5.of(i64::MAX)], [15, 31]);
    }

    #[test]
    fn every_count_has_buckets_for_every_distance() {
        for (count, distance_max) in [(4, 2), (4, 128), (6, 3), (64, 128), (256, 128)] {
            let buckets = Buckets { count, distance_max, ..T5 };
            assert!(buckets.are_valid());
            let all: Vec<usize> = (-200..=200).map(|distance| buckets.of(distance)).collect();
            assert!(all.iter().all(|&bucket| bucket < count), "{buckets:?}: {all:?}");
            assert!(all[..=200].is_sorted_by(|a, b| a >= b) && all[201..].is_sorted(), "{all:?}");
            assert_eq!([all[0], all[400]], [count / 2 - 1, count - 1], "{buckets:?}");
        }
        for (count, distance_max) in [(0, 128), (2, 128), (7, 128), (32, 8)] {
            assert!(!Buckets { count, distance_max, ..T5 }.are_valid());
        }
    }

    #[test]
    fn biases_by_distance_are_those_of_the_buckets() {
        let buckets = Buckets { count: 4, distance_max: 2, ..T5 };
        // Two heads; buckets 0 and 1 before the query, 3 after it, where no distance is 0.
        let table = [0.0, 10.0, 1.0, 11.0, 2.0, 12.0, 3.0, 13.0];
        let found = buckets.by_distance(&table, 2);
        assert_eq!(found, [1.0, 1.0, 0.0, 3.0, 3.0, 11.0, 11.0, 10.0, 13.0, 13.0]);
    }
}
