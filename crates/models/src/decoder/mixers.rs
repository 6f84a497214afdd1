//! What mixes the rows of a sequence: attention, or something that carries a state.

use bilayer_graph::{Activation, Error, Recorder, Value};

use super::{Block, Carried, Projection};
use crate::Mixer;

impl Block<'_> {
    /// The layer's mixer over the normed input `[T, width]`, and the stem of the projection of its result.
    pub(super) fn mixed(
        &self,
        normed: Value,
        carried: &mut Carried,
        r: &mut Recorder<'_>,
    ) -> Result<(Value, &'static str), Error> {
        let taps = match self.layer.mixer {
            Mixer::Attention => return Ok((self.attention(normed, carried, r)?, "attn_output")),
            Mixer::Latent(latent) => {
                carried.kv.push(None);
                return Ok((self.latent_attention(normed, &latent, r)?, "attn_output"));
            }
            Mixer::ShortConv { taps } => taps,
        };
        carried.kv.push(None);
        Ok((self.short_conv(normed, taps, r)?, "shortconv.out_proj"))
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
