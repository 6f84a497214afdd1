//! Attention: store keys and values, score, mask, softmax, weighted sum.

use std::borrow::Cow;
use std::ops::Range;

use bilayer_quant::cache::BLOCK;

use super::cache::{Cache, slot};
use super::soft_cap::capped;
use crate::{Attend, DistanceBias, Step};

/// The inputs of the op.
pub(super) struct Inputs<'a> {
    /// `[T, heads * head_dim]`.
    pub q: &'a [f32],
    /// `[T, kv_heads * head_dim]`.
    pub k: &'a [f32],
    /// `[T, kv_heads * head_dim]`; `None` if values are in the keys.
    pub v: Option<&'a [f32]>,
    /// `[heads]`.
    pub sinks: Option<&'a [f32]>,
    /// `[buckets, heads]`: the table of [`Attend::bias`].
    pub table: Option<&'a [f32]>,
}

/// Computes `out [T, heads * value_dim]`. Scores, softmax and sums are f64; keys and values are rounded by the cache,
/// including those of this step.
pub(super) fn attend(
    op: &Attend,
    inputs: &Inputs<'_>,
    cache: &mut Cache,
    step: &Step<'_>,
    out: &mut [f32],
) {
    let kv_width = op.kv_heads * op.head_dim;
    for span in step.spans {
        let pages = step.page_table(span);
        for r in 0..span.rows {
            let row = (span.first_row + r) as usize;
            let slot = slot(pages, span.first_position + r);
            let k = stored(&inputs.k[row * kv_width..][..kv_width], cache);
            cache.keys.store(slot, &k);
            if let Some(v) = inputs.v {
                cache.values.store(slot, &v[row * kv_width..][..kv_width]);
            }
        }
        for r in 0..span.rows {
            let row = (span.first_row + r) as usize;
            for head in 0..op.heads {
                let seen = op.sees(span, span.first_position + r);
                let (position, table) = (span.first_position + r, inputs.table);
                let query = Query { op, head, position, seen, pages, table };
                let place = (row * op.heads + head) * op.head_dim;
                let q = stored(&inputs.q[place..][..op.head_dim], cache);
                let sink = inputs.sinks.map(|sinks| sinks[head]);
                let place = (row * op.heads + head) * op.value_dim();
                query.answer(&q, sink, cache, &mut out[place..][..op.value_dim()]);
            }
        }
    }
}

/// Keys as the cache stores them but for their rounding, or queries to be multiplied with such keys.
fn stored<'a>(x: &'a [f32], cache: &Cache) -> Cow<'a, [f32]> {
    match cache.hadamard_keys {
        true => x.as_chunks().0.iter().flat_map(hadamard).collect(),
        false => x.into(),
    }
}

/// The Hadamard transform in Sylvester's order, times a factor that makes it its own inverse.
fn hadamard(x: &[f32; BLOCK]) -> [f32; BLOCK] {
    std::array::from_fn(|i| {
        let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let sum: f64 = x.iter().enumerate().map(|(j, &x)| sign(j) * f64::from(x)).sum();
        (sum / (BLOCK as f64).sqrt()) as f32
    })
}

/// One head of one token.
struct Query<'a> {
    op: &'a Attend,
    head: usize,
    position: u32,
    /// Positions it attends to.
    seen: Range<u32>,
    pages: &'a [u32],
    /// `[buckets, heads]`.
    table: Option<&'a [f32]>,
}

impl Query<'_> {
    /// What the score of a key at `position` gains.
    fn bias(&self, position: u32) -> f64 {
        match (&self.op.bias, self.table) {
            (Some(DistanceBias::Slopes(slopes)), _) => {
                f64::from(-slopes[self.head]) * f64::from(position.abs_diff(self.position))
            }
            (Some(DistanceBias::Buckets(buckets)), Some(table)) => {
                let bucket = buckets.of(i64::from(position) - i64::from(self.position));
                f64::from(table[bucket * self.op.heads + self.head])
            }
            _ => 0.0,
        }
    }

    /// `q [head_dim]`, `out [value_dim]`.
    fn answer(&self, q: &[f32], sink: Option<f32>, cache: &Cache, out: &mut [f32]) {
        let op = self.op;
        let kv_head = self.head / (op.heads / op.kv_heads);
        let slots: Vec<usize> = self.seen.clone().map(|p| slot(self.pages, p)).collect();

        // scores [positions]
        let score = |(position, &slot): (u32, &usize)| {
            let key = cache.keys.head(slot, kv_head, op.head_dim);
            let products = q.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k));
            let score = products.sum::<f64>() * f64::from(op.scale);
            let score = op.softcap.map_or(score, |cap| capped(score, cap));
            score + self.bias(position)
        };
        let scores: Vec<f64> = self.seen.clone().zip(&slots).map(score).collect();

        // softmax; the sink adds to the denominator only
        let sink = sink.map_or(f64::NEG_INFINITY, f64::from);
        let max = scores.iter().copied().fold(sink, f64::max);
        let parts: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let total = parts.iter().sum::<f64>() + (sink - max).exp();

        let values = if op.v.in_keys().is_some() { &cache.keys } else { &cache.values };
        for (i, out) in out.iter_mut().enumerate() {
            let value = |slot: usize| f64::from(values.head(slot, kv_head, op.head_dim)[i]);
            let sum: f64 = slots.iter().zip(&parts).map(|(&slot, part)| part * value(slot)).sum();
            *out = (sum / total) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;
    use bilayer_quant::cache::BLOCK;

    use super::{Inputs, attend, hadamard};
    use crate::reference::cache::Cache;
    use crate::reference::tests::{assert_near, limits};
    use crate::{
        Attend, CacheId, DistanceBias, Exactness, Limits, Span, Step, Value, Values, Window,
    };

    /// One head of one element, scale 1.
    fn op() -> Attend {
        Attend {
            q: Value(0),
            k: Value(1),
            v: Values::Beside(Value(2)),
            out: Value(3),
            cache: Some(CacheId(0)),
            heads: 1,
            kv_heads: 1,
            head_dim: 1,
            scale: 1.0,
            window: None,
            softcap: None,
            sinks: None,
            bias: None,
        }
    }

    fn cache(op: &Attend, pages: usize) -> Cache {
        let info = op.scratch();
        let types = Limits { key_type: Type::F32, value_type: Type::F32, ..limits() };
        Cache::new(&info, &Limits { pages, ..types }).unwrap()
    }

    /// Runs one sequence from position 0 in pages 0, 1, ...
    fn run(op: &Attend, q: &[f32], k: &[f32], v: &[f32], sinks: Option<&[f32]>) -> Vec<f32> {
        let rows = (k.len() / op.kv_heads / op.head_dim) as u32;
        let spans = [Span { first_row: 0, rows, first_position: 0, first_page: 0 }];
        let (tokens, pages) = (vec![0; rows as usize], [0, 1]);
        let step = Step {
            tokens: &tokens,
            spans: &spans,
            pages: &pages,
            outputs: &[],
            states: &[],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        let mut out = vec![f32::NAN; q.len() / op.head_dim * op.value_dim()];
        let v = op.v.beside().map(|_| v);
        attend(op, &Inputs { q, k, v, sinks, table: None }, &mut cache(op, 2), &step, &mut out);
        out
    }

    #[test]
    fn a_token_weighs_itself_and_what_came_before_by_the_softmax_of_the_scores() {
        // Keys 0 and ln 3 give weights 1/4 and 3/4; the first token attends only to itself.
        let ln3 = 3f32.ln();
        let out = run(&op(), &[1.0, 1.0], &[0.0, ln3], &[8.0, 4.0], None);
        assert_near(&out, &[8.0, 0.25 * 8.0 + 0.75 * 4.0], 1e-6);
    }

    #[test]
    fn scores_are_scaled_then_capped() {
        // Score 1 * ln 9 * 0.5 = ln 3.
        let op = Attend { scale: 0.5, ..op() };
        let out = run(&op, &[1.0, 1.0], &[0.0, 9f32.ln()], &[8.0, 4.0], None);
        assert_near(&out[1..], &[5.0], 1e-6);
        // Capped at c = ln 3 / 0.6, the score c ln 2 becomes c tanh(ln 2) = 0.6 c = ln 3.
        let cap = 3f32.ln() / 0.6;
        let op = Attend { scale: 1.0, softcap: Some(cap), ..op };
        let out = run(&op, &[1.0, 1.0], &[0.0, cap * 2f32.ln()], &[8.0, 4.0], None);
        assert_near(&out[1..], &[5.0], 1e-6);
    }

    #[test]
    fn a_window_counts_the_token_itself() {
        let op = Attend { window: Some(Window::Last(2)), ..op() };
        let out = run(&op, &[0.0; 4], &[0.0; 4], &[1.0, 3.0, 5.0, 9.0], None);
        assert_near(&out, &[1.0, 2.0, 4.0, 7.0], 1e-6);
    }

    #[test]
    fn a_chunk_begins_anew_at_its_first_token() {
        let op = Attend { window: Some(Window::Chunk(3)), ..op() };
        let out = run(&op, &[0.0; 5], &[0.0; 5], &[1.0, 3.0, 5.0, 9.0, 11.0], None);
        assert_near(&out, &[1.0, 2.0, 3.0, 9.0, 10.0], 1e-6);
    }

    #[test]
    fn without_a_cache_it_goes_both_ways() {
        let op = Attend { cache: None, ..op() };
        let out = run(&op, &[0.0; 4], &[0.0; 4], &[1.0, 3.0, 5.0, 9.0], None);
        assert_near(&out, &[4.5; 4], 1e-6);
        let op = Attend { window: Some(Window::Last(2)), ..op };
        let out = run(&op, &[0.0; 4], &[0.0; 4], &[1.0, 3.0, 5.0, 9.0], None);
        assert_near(&out, &[2.0, 3.0, 17.0 / 3.0, 7.0], 1e-6);
    }

    #[test]
    fn a_sink_takes_weight_and_gives_nothing() {
        // Score 0 beside a sink of ln 3: weight 1/4.
        let out = run(&op(), &[1.0], &[0.0], &[8.0], Some(&[3f32.ln()]));
        assert_near(&out, &[2.0], 1e-6);
        // A very negative score beside it must not overflow.
        let out = run(&op(), &[1.0], &[-1e6], &[8.0], Some(&[0.0]));
        assert_near(&out, &[0.0], 1e-6);
    }

    #[test]
    fn scores_fall_with_the_distance_to_either_side() {
        // A slope of ln 2 halves a weight with each position: 1/7, 2/7 and 4/7 for the last of three.
        let falling = Attend { bias: Some(DistanceBias::Slopes([2f32.ln()].into())), ..op() };
        let values = [7.0, 14.0, 28.0];
        let out = run(&falling, &[0.0; 3], &[0.0; 3], &values, None);
        assert_near(&out, &[7.0, 35.0 / 3.0, 21.0], 1e-5);
        // Both ways the middle one has 1/4, 1/2 and 1/4.
        let both = Attend { cache: None, ..falling };
        let out = run(&both, &[0.0; 3], &[0.0; 3], &values, None);
        assert_near(&out, &[12.0, 15.75, 21.0], 1e-5);
        // Each head has its own, after the cap.
        let slopes = DistanceBias::Slopes([0.0, 2f32.ln()].into());
        let two = Attend { heads: 2, bias: Some(slopes), ..both };
        let capped = Attend { softcap: Some(1e-3), ..two };
        let out = run(&capped, &[1.0; 6], &[1.0; 3], &values, None);
        assert_near(&out[2..4], &[49.0 / 3.0, 15.75], 1e-5);
    }

    #[test]
    fn query_heads_share_key_value_heads_in_groups() {
        // Four query heads over two: heads 0 and 1 read values 5 and 6, heads 2 and 3 read 7 and 8.
        let op = Attend { heads: 4, kv_heads: 2, head_dim: 2, ..op() };
        let out = run(&op, &[0.0; 8], &[0.0; 4], &[5.0, 6.0, 7.0, 8.0], None);
        assert_eq!(out, [5.0, 6.0, 5.0, 6.0, 7.0, 8.0, 7.0, 8.0]);
    }

    #[test]
    fn values_may_be_the_first_elements_of_the_keys() {
        // Both query heads score the last element of three; keys 0 and ln 3 there weigh 1/4 and 3/4.
        let op = Attend { heads: 2, head_dim: 3, v: Values::InKeys(2), ..op() };
        let keys = [8.0, 1.0, 0.0, 4.0, 5.0, 3f32.ln()];
        let out = run(&op, &[[0.0, 0.0, 1.0]; 4].concat(), &keys, &[], None);
        assert_near(&out, &[8.0, 1.0, 8.0, 1.0, 5.0, 4.0, 5.0, 4.0], 1e-6);
    }

    #[test]
    fn transformed_keys_and_queries_have_the_products_they_had() {
        let x: [f32; BLOCK] = std::array::from_fn(|i| ((i * i) as f32 * 0.37).sin());
        let mut one = [0.0; BLOCK];
        one[3] = 8f32.sqrt();
        assert_near(&hadamard(&one)[..5], &[0.5, -0.5, -0.5, 0.5, 0.5], 1e-6);
        assert_near(&hadamard(&hadamard(&x)), &x, 1e-6);
        let dot = |a: &[f32; BLOCK], b: &[f32; BLOCK]| a.iter().zip(b).map(|(a, b)| a * b).sum();
        let products: [f32; 2] = [dot(&x, &one), dot(&hadamard(&x), &hadamard(&one))];
        assert_near(&products[..1], &products[1..], 1e-6);
    }

    #[test]
    fn spans_are_apart_and_continue_what_is_cached() {
        let op = op();
        let mut cache = cache(&op, 4);
        let (q, zeros) = ([0.0; 40], [0.0; 40]);
        let ramp: Vec<f32> = (0..33).map(|i| i as f32).collect();
        // 33 tokens in pages 3 and 0: the mean of 0..=p is p / 2.
        let spans = [Span { first_row: 0, rows: 33, first_position: 0, first_page: 1 }];
        let tokens = [0; 33];
        let pages = [9, 3, 0];
        let step = Step {
            tokens: &tokens,
            spans: &spans,
            pages: &pages,
            outputs: &[],
            states: &[],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        let mut out = [f32::NAN; 33];
        let inputs =
            Inputs { q: &q[..33], k: &zeros[..33], v: Some(&ramp), sinks: None, table: None };
        attend(&op, &inputs, &mut cache, &step, &mut out);
        let halves: Vec<f32> = (0..33).map(|p| p as f32 / 2.0).collect();
        assert_near(&out, &halves, 1e-5);
        // Then a new sequence in page 1, and one token more of the first.
        let spans = [
            Span { first_row: 0, rows: 2, first_position: 0, first_page: 0 },
            Span { first_row: 2, rows: 1, first_position: 33, first_page: 1 },
        ];
        let pages = [1, 3, 0];
        let step = Step {
            tokens: &[0; 3],
            spans: &spans,
            pages: &pages,
            outputs: &[],
            states: &[],
            copies: &[],
            top_k: 0,
            exactness: Exactness::Fastest,
        };
        let mut out = [f32::NAN; 3];
        let inputs = Inputs {
            q: &q[..3],
            k: &zeros[..3],
            v: Some(&[-1.0, -3.0, 33.0]),
            sinks: None,
            table: None,
        };
        attend(&op, &inputs, &mut cache, &step, &mut out);
        assert_near(&out, &[-1.0, -2.0, 16.5], 1e-5);
    }
}
