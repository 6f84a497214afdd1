//! [`Op::Rope`](bilayer_graph::Op::Rope), fused with head norms, with the Hadamard transform of queries and keys, and with
//! the append of keys and values to the KV cache.

use std::f64::consts::TAU;

use bilayer_graph::Pairs;
use bytemuck::{Pod, Zeroable};
use minijinja::context;
use minijinja::value::merge_maps;

use super::bindings::{kernel, numbered};
use super::cache::{CacheType, cache_context};
use super::team::Team;
use super::view::View;
use crate::caps::Caps;
use crate::kernel::Source;

/// The variant: a plain rotation has only `query` and `rotate`, a plain append only `append`. Bindings, in order:
/// `step` if rotating or appending, `vectors` if rotating or normalizing, `q` and `q_out` (written) with `query`,
/// `k`, `v`, `keys` (written) and `values` (written) with `append`; `v` and `values` only where values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeKey {
    /// Elements per head, a multiple of 4.
    pub head_dim: u32,
    /// Whether heads of `q` are written to `q_out`.
    pub query: bool,
    /// Whether heads of `k` and `v` are appended to a cache of these types (keys, values); without a type of values, they
    /// are in the keys.
    pub append: Option<(CacheType, Option<CacheType>)>,
    /// Whether queries are normalized first.
    pub norm_q: bool,
    /// Whether keys are normalized first.
    pub norm_k: bool,
    /// Pairing and number of rotated elements of queries and keys.
    pub rotate: Option<(Pairs, u32)>,
    /// Whether queries and keys are transformed ([`Limits::hadamard_keys`](bilayer_graph::Limits::hadamard_keys)) at the end;
    /// then keys are in blocks, and `head_dim` is a multiple of 32.
    pub hadamard: bool,
}

/// The uniform.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
pub struct RopeParams {
    /// `[T, heads * head_dim]`.
    pub q: View,
    /// `[T, heads * head_dim]`.
    pub q_out: View,
    /// `[T, kv_heads * head_dim]`.
    pub k: View,
    /// `[T, kv_heads * head_dim]`.
    pub v: View,
    /// Offset of `rows` in the step buffer.
    pub rows_at: u32,
    /// Offset of `pages` in the step buffer.
    pub pages_at: u32,
    /// Offset of the table of [`turns`] in `vectors`, in quads.
    pub turns: u32,
    /// Offset of the queries' gain `[head_dim]` in `vectors`, in quads.
    pub q_gain: u32,
    /// Offset of the keys' gain `[head_dim]` in `vectors`, in quads.
    pub k_gain: u32,
    /// Query heads; for a plain rotation, the heads.
    pub heads: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Added to the mean square in head norms.
    pub eps: f32,
    /// Factor on cosine and sine.
    pub magnitude: f32,
    /// [`CacheLayout::scales_at`](super::cache::CacheLayout::scales_at) of the keys.
    pub key_scales: u32,
    /// [`CacheLayout::scales_at`](super::cache::CacheLayout::scales_at) of the values.
    pub value_scales: u32,
    /// Padding to a multiple of sixteen bytes.
    pub zero: u32,
}

impl RopeKey {
    /// The kernel.
    pub fn source(&self, caps: &Caps) -> Source {
        let RopeKey { head_dim, query, append, norm_q, norm_k, rotate, hadamard } = *self;
        assert!(head_dim.is_multiple_of(4), "heads are made of quads");
        let team = Team::small(caps);
        let (appends, stores) =
            (append.is_some(), append.is_some_and(|(_, value)| value.is_some()));
        let at = numbered(&[
            ("step", appends || rotate.is_some()),
            ("vectors", rotate.is_some() || norm_q || norm_k),
            ("q", query),
            ("q_out", query),
            ("k", appends),
            ("v", stores),
            ("keys", appends),
            ("values", stores),
        ]);
        let (key, value) = append.unwrap_or((CacheType::F32, None));
        let (pairs, dims) = rotate.map_or(("none", 0), |(pairs, dims)| (pairs_name(pairs), dims));
        let context = context! {
            at, head_dim, query, norm_q, norm_k, pairs, dims, hadamard,
            quads => head_dim / 4,
            append => appends,
            rotate => rotate.is_some(),
            ..merge_maps([cache_context(key, value, [head_dim as usize; 2]), team.context()])
        };
        kernel(self.name(team), "rope", context, team.threads)
    }

    fn name(&self, team: Team) -> String {
        let mut name = format!("rope d{}", self.head_dim);
        if let Some((pairs, dims)) = self.rotate {
            name += &format!(" {} {dims}", pairs_name(pairs));
        }
        for (there, what) in [
            (self.query, " q"),
            (self.norm_q, " norm_q"),
            (self.norm_k, " norm_k"),
            (self.hadamard, " hadamard"),
        ] {
            name += if there { what } else { "" };
        }
        if let Some((key, value)) = self.append {
            name += &format!(" append {}", key.name());
            name += &value.map_or(String::new(), |value| format!(" {}", value.name()));
        }
        format!("{name} {}", team.name())
    }

    /// One workgroup per head of a row.
    pub fn grid(&self, rows: u32, heads: u32, kv_heads: u32) -> [u32; 3] {
        let queries = if self.query { heads } else { 0 };
        let others = match self.append {
            Some((_, Some(_))) => 2 * kv_heads,
            Some((_, None)) => kv_heads,
            None => 0,
        };
        [queries + others, rows, 1]
    }
}

fn pairs_name(pairs: Pairs) -> &'static str {
    match pairs {
        Pairs::Interleaved => "interleaved",
        Pairs::Halves => "halves",
    }
}

/// The table of angles for `vectors`: for each pair, the fraction of a turn by which its angle advances per position,
/// as a fixed-point number of 32 + 12 bits. Four pairs take two quads, high parts first, then low parts; the last
/// four are zero-padded. `frequencies` and `factors` are as in [`Rope`](bilayer_graph::Rope).
pub fn turns(frequencies: &[f32], factors: Option<&[f32]>) -> Vec<u32> {
    let mut table = vec![0; frequencies.len().div_ceil(4) * 8];
    for (i, &frequency) in frequencies.iter().enumerate() {
        let factor = factors.map_or(1.0, |factors| f64::from(factors[i]));
        let turn = (f64::from(frequency) / factor / TAU).rem_euclid(1.0);
        let fixed = (turn * 44f64.exp2()).round() as u64;
        let place = i / 4 * 8 + i % 4;
        table[place] = (fixed >> 12) as u32;
        table[place + 4] = (fixed & 0xfff) as u32;
    }
    table
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::turns;

    /// The shader's computation, in f64.
    fn angle(table: &[u32], pair: usize, position: u32) -> f64 {
        let place = pair / 4 * 8 + pair % 4;
        let (high, low) = (table[place], table[place + 4]);
        let turn = position.wrapping_mul(high).wrapping_add(position.wrapping_mul(low) >> 12);
        f64::from(turn.cast_signed()) / 32f64.exp2() * TAU
    }

    #[test]
    fn angles_are_right_at_every_position() {
        let frequencies: Vec<f32> =
            (0..5).map(|i| 10_000f32.powf(-f64::from(i) as f32 / 5.0)).collect();
        let factors = [1.0, 1.0, 2.0, 8.0, 8.0];
        let table = turns(&frequencies, Some(&factors));
        for position in [0, 1, 31, 4_097, 131_071, (1 << 20) - 1] {
            for (pair, &frequency) in frequencies.iter().enumerate() {
                let exact = f64::from(position) * f64::from(frequency) / f64::from(factors[pair]);
                let found = angle(&table, pair, position);
                let apart = (found - exact).sin().abs() + (1.0 - (found - exact).cos());
                assert!(apart < 1e-6, "pair {pair} at {position}: {apart}");
            }
        }
    }
}
