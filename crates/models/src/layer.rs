//! What may differ between layers: sizes, mixer, window, rotation; read from metadata.

use bilayer_graph::{Temperature, Window};

use crate::keys::Keys;
use crate::{Error, Latent, Rotary, limits};

/// The settings that may differ between layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layer {
    /// What mixes the rows of a sequence.
    pub mixer: Mixer,
    /// Query heads; a multiple of `kv_heads`; may be 0 without attention.
    pub heads: usize,
    /// Key-value heads; 0 without attention.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// The layer whose keys and values this one reads; `None` for its own.
    pub kv_of: Option<usize>,
    /// Width of the feed-forward's hidden state; 0 in a layer that has none.
    pub feed_forward: usize,
    /// Whether the layer uses [`Config::experts`](crate::Config::experts) instead of a single feed-forward.
    pub experts: bool,
    /// Which of the earlier tokens a token sees; `None` means all.
    pub window: Option<Window>,
    /// RoPE of queries and keys; `None` leaves them unrotated.
    pub rope: Option<Rotary>,
    /// Factor on queries by position.
    pub temperature: Option<Temperature>,
}

/// What mixes the rows of a sequence in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// Attention.
    Attention,
    /// Attention over compressed keys and values.
    Latent(Latent),
    /// Nothing: the layer is a feed-forward alone.
    None,
    /// A gated convolution over a few tokens: `out(c * conv(b * z))` of a projection `(b, c, z)`.
    ShortConv {
        /// Rows that a result is the sum of; at least 2.
        taps: usize,
    },
    /// Mamba 2: `out(norm(scan(silu(conv(x, b, c)), dt) * silu(z)))` of a projection `(z, x, b, c, dt)`.
    Mamba2(Mamba2),
    /// Gated delta net: `out(norm(scan(silu(conv(q, k, v)), alpha, beta)) * silu(z))`.
    DeltaNet(DeltaNet),
}

/// The sizes of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNet {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Rows that the convolution sums; at least 2.
    pub taps: usize,
    /// Consecutive heads of values with the same head of keys: head `h` uses head `h / neighbours % key_heads`.
    pub neighbours: usize,
    /// The rates of updates and of decay are rows of one matrix, `ssm_ba`: for each head of keys those of its heads of
    /// values, updates first.
    pub rates_in_one: bool,
}

impl DeltaNet {
    /// Reads the keys.
    ///
    /// # Errors
    /// A key is absent, of another kind or out of bounds.
    pub(crate) fn read(keys: &Keys<'_>) -> Result<Self, Error> {
        let head_dim = keys.size("ssm.state_size", 4..=limits::STATE_DIM)?;
        let value_heads = keys.size("ssm.time_step_rank", 1..=limits::HEADS)?;
        let key_heads = keys.size("ssm.group_count", 1..=value_heads)?;
        let inner = keys.size("ssm.inner_size", 1..=limits::WIDTH)?;
        if inner != value_heads * head_dim {
            let expected = format!("{value_heads} heads of {head_dim}");
            return Err(keys.value("ssm.inner_size", expected, inner));
        }
        if !value_heads.is_multiple_of(key_heads) {
            let expected = format!("a divisor of the {value_heads} heads of values");
            return Err(keys.value("ssm.group_count", expected, key_heads));
        }
        let taps = keys.size("ssm.conv_kernel", 2..=limits::TAPS)?;
        Ok(DeltaNet { key_heads, value_heads, head_dim, taps, neighbours: 1, rates_in_one: false })
    }
}

/// The sizes of a Mamba 2 mixer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mamba2 {
    /// Heads; a multiple of `groups`.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Groups of heads that share `b` and `c`; the norm is over each by itself.
    pub groups: usize,
    /// Elements of a row of a head's state.
    pub state_dim: usize,
    /// Rows that the convolution sums; at least 2.
    pub taps: usize,
}

impl Mamba2 {
    /// Reads the keys.
    ///
    /// # Errors
    /// A key is absent, of another kind or out of bounds.
    pub(crate) fn read(keys: &Keys<'_>) -> Result<Self, Error> {
        let heads = keys.size("ssm.time_step_rank", 1..=limits::HEADS)?;
        let inner = keys.size("ssm.inner_size", 1..=limits::WIDTH)?;
        let groups = keys.size("ssm.group_count", 1..=heads)?;
        if !inner.is_multiple_of(heads) {
            return Err(keys.value(
                "ssm.inner_size",
                format!("a multiple of {heads} heads"),
                inner,
            ));
        }
        if !heads.is_multiple_of(groups) {
            let expected = format!("a divisor of the {heads} heads");
            return Err(keys.value("ssm.group_count", expected, groups));
        }
        Ok(Mamba2 {
            heads,
            head_dim: inner / heads,
            groups,
            state_dim: keys.size("ssm.state_size", 1..=limits::STATE_DIM)?,
            taps: keys.size("ssm.conv_kernel", 2..=limits::TAPS)?,
        })
    }
}

/// The layers, with attention, or the mixer `other` where there are no key-value heads.
pub(crate) fn layers(keys: &Keys<'_>, width: usize, other: Mixer) -> Result<Vec<Layer>, Error> {
    let count = keys.size("block_count", 1..=limits::LAYERS)?;
    let least = usize::from(other == Mixer::Attention);
    let heads = keys.each("attention.head_count", count, least..=limits::HEADS)?;
    let latent = Latent::read(keys)?;
    let head_dim = match latent {
        Some(latent) => latent.key_dim(),
        // A model without attention has no heads.
        None => head_dim(keys, width, heads[0].max(1))?,
    };
    let most = if latent.is_some() { 1 } else { limits::HEADS };
    let kv_heads = match latent {
        Some(_) if Latent::is_early(keys) => None,
        _ => keys.opt_each("attention.head_count_kv", count, least..=most)?,
    };
    let kv_heads =
        kv_heads.unwrap_or_else(|| if latent.is_some() { vec![1; count] } else { heads.clone() });
    // A model whose layers all have experts may give the width of these alone.
    let width_key = match keys.has("feed_forward_length") || !keys.has("expert_feed_forward_length")
    {
        true => "feed_forward_length",
        false => "expert_feed_forward_length",
    };
    let feed_forward = keys.each(width_key, count, least..=limits::WIDTH)?;
    // Converters write 0 for "no window".
    let window = keys.opt_size("attention.sliding_window", 0..=limits::CONTEXT)?;
    let window = window.filter(|&window| window > 0).map(|window| Window::Last(window as u32));
    let mut layers = Vec::with_capacity(count);
    for i in 0..count {
        let (heads, kv_heads) = (heads[i], kv_heads[i]);
        let mixer = match latent {
            _ if kv_heads == 0 => other,
            Some(latent) => Mixer::Latent(latent),
            None => Mixer::Attention,
        };
        if kv_heads > 0 && (heads == 0 || !heads.is_multiple_of(kv_heads)) {
            let expected = format!("a divisor of the {heads} query heads of layer {i}");
            return Err(keys.value("attention.head_count_kv", expected, kv_heads));
        }
        let feed_forward = feed_forward[i];
        layers.push(Layer {
            mixer,
            heads,
            kv_heads,
            head_dim,
            kv_of: None,
            feed_forward,
            experts: false,
            window,
            rope: None,
            temperature: None,
        });
    }
    Ok(layers)
}

/// The head dimension given by its key, otherwise the width divided by the number of heads.
fn head_dim(keys: &Keys<'_>, width: usize, heads: usize) -> Result<usize, Error> {
    let Some(head_dim) = keys.opt_size("attention.key_length", 1..=limits::WIDTH)? else {
        if !width.is_multiple_of(heads) {
            let expected = format!("a divisor of the width {width}, or attention.key_length");
            return Err(keys.value("attention.head_count", expected, heads));
        }
        let name = "attention.value_length";
        return same_length(keys, name, width / heads);
    };
    same_length(keys, "attention.value_length", head_dim)
}

fn same_length(keys: &Keys<'_>, name: &str, head_dim: usize) -> Result<usize, Error> {
    let found = keys.opt_size(name, 1..=limits::WIDTH)?.unwrap_or(head_dim);
    if found == head_dim {
        return Ok(head_dim);
    }
    let feature = "a value head of another length than the key head";
    Err(Error::Unsupported { key: keys.key(name), found: found.to_string(), feature })
}
