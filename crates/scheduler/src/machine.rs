//! The input of planning: the devices, and a session's requirements.

use bilayer_graph::{CacheInfo, Facts, Limits, PAGE_TOKENS, Rows, StateInfo, ValueInfo};
use bilayer_quant::Type;

use crate::Times;

/// The machine's places: the host is always the first device.
pub(crate) const HOST: usize = 0;

/// The devices, in the order that plans number them: the host first, then those that layers are offloaded to.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Properties of each device.
    pub devices: Vec<Facts>,
    /// Times of the model's parts on each device, if known.
    pub times: Option<Times>,
}

impl Machine {
    /// Devices without known times.
    pub fn new(devices: Vec<Facts>) -> Machine {
        Machine { devices, times: None }
    }

    /// Each device's short name: its family, numbered where there are several of it.
    pub fn labels(&self) -> Vec<String> {
        let of = |wanted: &str, devices: &[Facts]| {
            devices.iter().filter(|facts| facts.family == wanted).count()
        };
        let label = |(i, facts): (usize, &Facts)| match of(facts.family, &self.devices) {
            1 => facts.family.to_owned(),
            _ => format!("{}{}", facts.family, of(facts.family, &self.devices[..i])),
        };
        self.devices.iter().enumerate().map(label).collect()
    }
}

/// A session's memory requirements besides weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// Total tokens of context of all sequences.
    pub context: usize,
    /// Slots for states of sequences and their checkpoints, in each layer that has one.
    pub states: usize,
    /// Maximum tokens per step.
    pub tokens: usize,
    /// Maximum output rows per step.
    pub outputs: usize,
    /// Type of stored keys.
    pub key_type: Type,
    /// Type of stored values.
    pub value_type: Type,
    /// Memory left free on every device.
    pub margin_bytes: u64,
}

impl Default for Budget {
    /// One sequence of 4096 tokens in F16 with two slots of state, steps of 512, no margin.
    fn default() -> Self {
        Budget {
            context: 4096,
            states: 2,
            tokens: 512,
            outputs: 1,
            key_type: Type::F16,
            value_type: Type::F16,
            margin_bytes: 0,
        }
    }
}

impl Budget {
    /// That of a session with these limits, without a margin.
    pub fn of(limits: &Limits) -> Budget {
        Budget {
            context: limits.pages * PAGE_TOKENS,
            states: limits.states,
            tokens: limits.tokens,
            outputs: limits.outputs,
            key_type: limits.key_type,
            value_type: limits.value_type,
            margin_bytes: 0,
        }
    }

    /// Pages per cache.
    pub fn pages(&self) -> usize {
        self.context.div_ceil(PAGE_TOKENS)
    }

    /// Bytes of one cache's keys and values in all pages.
    pub fn kv_bytes(&self, cache: &CacheInfo) -> u64 {
        cache
            .token_bytes(self.key_type, self.value_type)
            .saturating_mul((self.pages() * PAGE_TOKENS) as u64)
    }

    /// Bytes of one state's slots, f32.
    pub fn state_bytes(&self, state: &StateInfo) -> u64 {
        let slot = (state.elements as u64).saturating_mul(size_of::<f32>() as u64);
        slot.saturating_mul(self.states as u64)
    }

    /// Bytes of a value in the largest step, f32.
    pub fn value_bytes(&self, value: &ValueInfo) -> u64 {
        let rows = match value.rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
        };
        (rows as u64).saturating_mul((value.width * size_of::<f32>()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use bilayer_graph::{CacheInfo, Facts};
    use bilayer_quant::Type;

    use super::{Budget, Machine};

    #[test]
    fn labels_are_numbered_where_a_family_is_there_twice() {
        let gpu = || Facts::offload("gpu", "card", 1 << 30);
        let machine = Machine::new(vec![gpu(), Facts::host("host", 1 << 30), gpu()]);
        assert_eq!(machine.labels(), ["gpu0", "cpu", "gpu1"]);
    }

    #[test]
    fn caches_are_whole_pages_of_stored_rows() {
        let cache =
            CacheInfo { layer: 0, kv_heads: 2, head_dim: 64, values_in_keys: None, window: None };
        let budget = Budget { context: 33, value_type: Type::Q8_0, ..Budget::default() };
        // Two pages; a row of 128 keys is 256 bytes in F16, 4 blocks of 34 in Q8_0.
        assert_eq!(budget.kv_bytes(&cache), 64 * (256 + 136));
        // Values in keys are not stored again: DeepSeek-V3 has 576 elements a token and layer.
        let latent = CacheInfo { kv_heads: 1, head_dim: 576, values_in_keys: Some(512), ..cache };
        assert_eq!(budget.kv_bytes(&latent), 64 * 576 * 2);
    }
}
