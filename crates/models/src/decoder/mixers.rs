//! What mixes the rows of a sequence: attention, or something that carries a state.

use bilayer_graph::{Activation, Columns, Error, Recorder, Scan, StateId, Update, Value};

use super::{Block, Carried, Projection};
use crate::{DeltaNet, Mamba2, Mixer};

impl Block<'_> {
    /// The layer's mixer over the normed input `[T, width]`, and the stem of the projection of its result.
    pub(super) fn mixed(
        &self,
        normed: Value,
        carried: &mut Carried,
        r: &mut Recorder<'_>,
    ) -> Result<(Value, &'static str), Error> {
        if self.layer.mixer != Mixer::Attention {
            carried.kv.push(None);
        }
        let attn_output = self.config.stems.attn_output;
        Ok(match self.layer.mixer {
            Mixer::Attention => (self.attention(normed, carried, r)?, attn_output),
            Mixer::Latent(latent) => (self.latent_attention(normed, &latent, r)?, attn_output),
            Mixer::None => unreachable!("a layer without a mixer is a feed-forward alone"),
            Mixer::ShortConv { taps } => (self.short_conv(normed, taps, r)?, "shortconv.out_proj"),
            Mixer::Mamba2(sizes) => (self.mamba2(normed, &sizes, r)?, "ssm_out"),
            Mixer::DeltaNet(sizes) => (self.delta_net(normed, &sizes, r)?, "ssm_out"),
        })
    }

    /// `norm(scan(silu(conv(x, b, c)), dt) * silu(z))` of a projection `(z, x, b, c, dt)`: `[T, heads * head_dim]`.
    fn mamba2(&self, normed: Value, sizes: &Mamba2, r: &mut Recorder<'_>) -> Result<Value, Error> {
        let Mamba2 { heads, head_dim, groups, state_dim, taps } = *sizes;
        let (inner, of_groups) = (heads * head_dim, groups * state_dim);
        let width = inner + 2 * of_groups;
        let [z, mixed, dt] = Projection::in_one("ssm_in", [inner, width, heads]);
        let z = self.linear(r, "ssm_z", normed, &z)?;
        let mixed = self.linear(r, "ssm_xbc", normed, &mixed)?;
        let dt = self.linear(r, "ssm_dt", normed, &dt)?;
        let mixed = self.ssm_conv(mixed, taps, r)?; // [T, width]
        let columns = |first| Columns { value: mixed, first };
        let scan = Scan {
            x: columns(0),
            b: columns(inner),
            c: columns(inner + of_groups),
            b_factor: 1.0,
            c_factor: 1.0,
            dt,
            bias: r.vector(&self.tensor("ssm_dt.bias"), heads)?,
            decay: r.stack_vector(&self.tensor("ssm_a"), [heads, 1])?,
            update: Update::Sum { skip: r.stack_vector(&self.tensor("ssm_d"), [heads, 1])? },
            heads,
            groups,
            neighbours: heads / groups,
            head_dim,
            state_dim,
            state: StateId(0), // replaced by the recorder, like the next
            out: mixed,
        };
        let y = r.scan("ssm_scan", scan);
        let y = r.gate("ssm_gated", z, Some(y), Activation::Silu);
        let (group, eps) = (inner / groups, self.config.norm_eps);
        let gain = r.stack_vector(&self.tensor("ssm_norm.weight"), [groups, group])?;
        Ok(match groups {
            1 => r.rms_norm("ssm_norm", y, Some(gain), eps),
            _ => r.group_norm("ssm_norm", y, (gain, group), eps),
        })
    }

    /// `norm(scan(silu(conv(q, k, v)), alpha, beta)) * silu(z)`, with queries and keys of length 1 and 1 / √`head_dim`:
    /// `[T, value_heads * head_dim]`.
    fn delta_net(
        &self,
        normed: Value,
        sizes: &DeltaNet,
        r: &mut Recorder<'_>,
    ) -> Result<Value, Error> {
        let DeltaNet { key_heads, value_heads, head_dim, taps, neighbours, .. } = *sizes;
        let (keys, values) = (key_heads * head_dim, value_heads * head_dim);
        let width = 2 * keys + values;
        let mixed = self.linear(r, "ssm_qkv", normed, &Projection::whole("attn_qkv", width))?;
        let z = self.linear(r, "ssm_z", normed, &Projection::whole("attn_gate", values))?;
        let [beta, dt] = self.rates(normed, sizes, r)?; // [T, value_heads] each
        let mixed = self.ssm_conv(mixed, taps, r)?; // [T, width]
        let both = r.part("ssm_qk", mixed, width, 0..2 * keys);
        // A head of root mean square 1 has the length √head_dim; epsilon belongs to the sum of squares.
        let (dim, eps) = (head_dim as f32, self.config.norm_eps);
        let both = r.head_unit("ssm_qk_norm", both, head_dim, eps / dim);
        let scan = Scan {
            x: Columns { value: mixed, first: 2 * keys },
            b: Columns { value: both, first: keys },
            c: Columns { value: both, first: 0 },
            b_factor: 1.0 / dim.sqrt(),
            c_factor: 1.0 / dim,
            dt,
            bias: r.vector(&self.step_bias(r), value_heads)?,
            decay: r.vector(&self.tensor("ssm_a"), value_heads)?,
            update: Update::Delta { beta },
            heads: value_heads,
            groups: key_heads,
            neighbours,
            head_dim,
            state_dim: head_dim,
            state: StateId(0), // replaced by the recorder, like the next
            out: mixed,
        };
        let y = r.scan("ssm_scan", scan);
        let gain = r.vector(&self.tensor("ssm_norm.weight"), head_dim)?;
        let y = r.head_norm("ssm_norm", y, gain, eps);
        Ok(r.gate("ssm_gated", z, Some(y), Activation::Silu))
    }

    /// The name of a delta net's bias of steps, which ollama's files have without a suffix.
    fn step_bias(&self, r: &Recorder<'_>) -> String {
        let short = self.tensor("ssm_dt");
        if r.has(&short) { short } else { self.tensor("ssm_dt.bias") }
    }

    /// How much of each update and of the state is kept, `[T, value_heads]` each.
    fn rates(
        &self,
        normed: Value,
        sizes: &DeltaNet,
        r: &mut Recorder<'_>,
    ) -> Result<[Value; 2], Error> {
        let heads = sizes.value_heads;
        if !sizes.rates_in_one {
            let by = |stem| Projection::whole(stem, heads);
            let beta = self.linear(r, "ssm_beta", normed, &by("ssm_beta"))?;
            return Ok([beta, self.linear(r, "ssm_alpha", normed, &by("ssm_alpha"))?]);
        }
        let by = Projection::whole("ssm_ba", 2 * heads);
        let both = self.linear(r, "ssm_ba", normed, &by)?; // [T, key_heads * 2 each]
        let each = heads / sizes.key_heads;
        let part =
            |r: &mut Recorder<'_>, name, first| r.part(name, both, 2 * each, first..first + each);
        Ok([part(r, "ssm_beta", 0), part(r, "ssm_alpha", each)])
    }

    /// The convolution before a recurrence, with its bias if the file has one, and SiLU: `[T, width]` to `[T, width]`.
    fn ssm_conv(&self, input: Value, taps: usize, r: &mut Recorder<'_>) -> Result<Value, Error> {
        let width = r.width(input);
        let weight = r.stack_vector(&self.tensor("ssm_conv1d.weight"), [width, taps])?;
        let vector = self.tensor("ssm_conv1d.bias");
        let bias = match self.config.biased.contains(&"ssm_conv1d") {
            true => Some(r.vector(&vector, width)?),
            false => r.optional_vector(&vector, width)?,
        };
        let mixed = r.conv("ssm_conv", input, weight, bias);
        Ok(r.gate("ssm_conv_act", mixed, None, Activation::Silu))
    }

    /// `c * conv(b * z)` of a projection `(b, c, z)`: `[T, width]`.
    fn short_conv(&self, normed: Value, taps: usize, r: &mut Recorder<'_>) -> Result<Value, Error> {
        let width = self.config.width;
        let [b, c, z] = Projection::in_one("shortconv.in_proj", [width; 3]);
        let b = self.linear(r, "conv_b", normed, &b)?;
        let z = self.linear(r, "conv_z", normed, &z)?;
        let input = r.gate("conv_inp", b, Some(z), Activation::Identity);
        let weight = r.stack_vector(&self.tensor("shortconv.conv.weight"), [width, taps])?;
        let mixed = r.conv("conv", input, weight, None);
        let c = self.linear(r, "conv_c", normed, &c)?;
        Ok(r.gate("conv_gated", c, Some(mixed), Activation::Identity))
    }
}
