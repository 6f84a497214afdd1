//! How much text is held, and how the KV cache stores it.

use bilayer_engine::session::kv_types;
use bilayer_quant::Type;
use bilayer_quant::cache::names;

use super::Builder;

/// How the KV cache stores keys or values: 16-bit floats unless something else is asked for. `docs/quantizing.md` has
/// measured sizes, errors and speeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheType(Type);

impl Default for CacheType {
    fn default() -> CacheType {
        CacheType::F16
    }
}

impl CacheType {
    /// 16-bit floats.
    pub const F16: CacheType = CacheType(Type::F16);
    /// 32-bit floats: twice the memory.
    pub const F32: CacheType = CacheType(Type::F32);
    /// 16-bit floats with the range of f32.
    pub const BF16: CacheType = CacheType(Type::BF16);
    /// 8-bit integers with a scale for each 32: about half the memory.
    pub const Q8_0: CacheType = CacheType(Type::Q8_0);
    /// 5-bit integers with a scale and a minimum for each 32.
    pub const Q5_1: CacheType = CacheType(Type::Q5_1);
    /// 5-bit integers with a scale for each 32.
    pub const Q5_0: CacheType = CacheType(Type::Q5_0);
    /// 4-bit integers with a scale and a minimum for each 32.
    pub const Q4_1: CacheType = CacheType(Type::Q4_1);
    /// 4-bit integers with a scale for each 32: about a quarter of the memory.
    pub const Q4_0: CacheType = CacheType(Type::Q4_0);
    /// Uneven levels in 4 bits with a scale for each 32.
    pub const IQ4_NL: CacheType = CacheType(Type::IQ4_NL);

    /// The type of that name, such as `q8_0`, in upper or lower case.
    ///
    /// # Errors
    /// No type has that name; the text lists those that there are.
    pub fn by_name(name: &str) -> Result<CacheType, String> {
        kv_types()
            .find(|ty| ty.name.eq_ignore_ascii_case(name))
            .map(CacheType)
            .ok_or_else(|| format!("cache_type is {name}; it must be {}", names()))
    }
}

impl Builder<'_> {
    /// Tokens that a prompt and its answer may have together, at most 2^24; 0 is the model's own context, the default too, but
    /// at most 8192.
    pub fn context(mut self, tokens: usize) -> Self {
        self.asked.ctx_size = Some(tokens);
        self
    }

    /// Checkpoints of the states of recurrent layers, 16 by default: lengths to which a text can be cut back without
    /// computing all of it again. Each takes the memory of one state.
    pub fn checkpoints(mut self, checkpoints: usize) -> Self {
        self.asked.checkpoints = checkpoints;
        self
    }

    /// How the KV cache stores keys and values.
    pub fn cache_type(self, cache_type: CacheType) -> Self {
        self.cache_types(cache_type, cache_type)
    }

    /// How the KV cache stores keys, and how it stores values.
    pub fn cache_types(mut self, keys: CacheType, values: CacheType) -> Self {
        (self.asked.cache_type_k, self.asked.cache_type_v) = (keys.0, values.0);
        self
    }

    /// Stores keys in blocks, such as those of [`CacheType::Q4_0`], after the Hadamard transform of every 32 elements of a
    /// head: models whose keys have a few large elements are then closer to what they compute with exact keys.
    /// [`Builder::open`] refuses it with keys of floats, with heads whose length is no multiple of 32, and where values are
    /// part of the keys.
    pub fn hadamard_keys(mut self) -> Self {
        self.asked.hadamard_keys = true;
        self
    }
}
