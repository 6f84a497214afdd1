//! What accesses cost: lines of memory that a subgroup touches, and conflicts of workgroup memory's banks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::interpret::{Access, Place};

/// Bytes of a line of the first cache.
const LINE: u64 = 128;

/// Bytes that the first cache gives in a clock.
const CACHE_CLOCK: u64 = 64;

/// Banks of workgroup memory, four bytes wide.
const BANKS: u64 = 32;

/// Costs of a workgroup's accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Loads from buffers, for whole subgroups.
    pub loads: u64,
    /// Lines that they touch.
    pub lines: u64,
    /// Clocks of the first cache: one line each, or as many as its width needs.
    pub cache_clocks: u64,
    /// Clocks of workgroup memory, conflicts included.
    pub bank_clocks: u64,
    /// Clocks that it would take without conflicts.
    pub bank_clocks_least: u64,
    /// Bytes of weights.
    pub weight_bytes: u64,
}

impl Cost {
    /// What `self` has more than `other`.
    pub fn beyond(self, other: Cost) -> Cost {
        Cost {
            loads: self.loads - other.loads,
            lines: self.lines - other.lines,
            cache_clocks: self.cache_clocks - other.cache_clocks,
            bank_clocks: self.bank_clocks - other.bank_clocks,
            bank_clocks_least: self.bank_clocks_least - other.bank_clocks_least,
            weight_bytes: self.weight_bytes - other.weight_bytes,
        }
    }
}

/// Costs of a workgroup, whose threads' accesses are given in order.
pub fn of(threads: &[Vec<Access>], subgroup: usize, is_weights: impl Fn(u32) -> bool) -> Cost {
    let mut cost = Cost::default();
    let mut weights: HashSet<u64> = HashSet::new();
    for lanes in threads.chunks(subgroup) {
        // Loads of one address by all lanes that were made before stay in registers.
        let mut known: HashSet<(Place, Vec<u64>, u64)> = HashSet::new();
        for (place, bytes, addresses, store) in together(lanes) {
            match place {
                Place::Workgroup(_) => {
                    let (clocks, least) = bank_clocks(&addresses, bytes);
                    cost.bank_clocks += clocks;
                    cost.bank_clocks_least += least;
                }
                Place::Storage(_) if store => {}
                Place::Storage(binding) => {
                    if !known.insert((place, addresses.clone(), bytes)) {
                        continue;
                    }
                    if is_weights(binding) {
                        let words = addresses.iter().flat_map(|&at| at / 4..(at + bytes) / 4);
                        weights.extend(words);
                    }
                    let (lines, clocks) = cache_clocks(&addresses, bytes);
                    cost.loads += 1;
                    cost.lines += lines;
                    cost.cache_clocks += clocks;
                }
            }
        }
    }
    cost.weight_bytes = 4 * weights.len() as u64;
    cost
}

/// Accesses of several lanes at one site: place, bytes of each, addresses, whether they are stores.
fn together(lanes: &[Vec<Access>]) -> Vec<(Place, u64, Vec<u64>, bool)> {
    let mut order: Vec<(Place, u64, Vec<u64>, bool)> = Vec::new();
    let mut sites: HashMap<u64, usize> = HashMap::new();
    for access in lanes.iter().flatten() {
        let at = *sites.entry(access.site).or_insert_with(|| {
            order.push((access.place, access.bytes, Vec::new(), access.store));
            order.len() - 1
        });
        order[at].2.push(access.byte);
    }
    order
}

/// Lines that a load touches, and its clocks.
fn cache_clocks(addresses: &[u64], bytes: u64) -> (u64, u64) {
    let lines: BTreeSet<u64> =
        addresses.iter().flat_map(|&at| at / LINE..=(at + bytes - 1) / LINE).collect();
    let distinct = addresses.iter().collect::<BTreeSet<_>>().len() as u64;
    let lines = lines.len() as u64;
    (lines, lines.max((distinct * bytes).div_ceil(CACHE_CLOCK)))
}

/// Clocks of an access to workgroup memory, and those that as many words would take in distinct banks.
fn bank_clocks(addresses: &[u64], bytes: u64) -> (u64, u64) {
    let words: BTreeSet<u64> =
        addresses.iter().flat_map(|&at| at / 4..(at + bytes).div_ceil(4)).collect();
    let mut banks: BTreeMap<u64, u64> = BTreeMap::new();
    for word in &words {
        *banks.entry(word % BANKS).or_default() += 1;
    }
    let clocks = banks.into_values().max().unwrap_or(0);
    (clocks, (words.len() as u64).div_ceil(BANKS))
}

#[cfg(test)]
mod tests {
    use super::{bank_clocks, cache_clocks};

    #[test]
    fn lines_and_widths_take_clocks() {
        let strided = |stride: u64| (0..32).map(|lane| lane * stride).collect::<Vec<u64>>();
        assert_eq!(cache_clocks(&strided(16), 16), (4, 8));
        assert_eq!(cache_clocks(&strided(256), 16), (32, 32));
        assert_eq!(cache_clocks(&[64; 32], 16), (1, 1));
        assert_eq!(cache_clocks(&[120], 16), (2, 2));
    }

    #[test]
    fn a_bank_gives_one_word_a_clock() {
        let strided = |stride: u64| (0..32).map(|lane| lane * stride).collect::<Vec<u64>>();
        assert_eq!(bank_clocks(&strided(4), 4), (1, 1));
        assert_eq!(bank_clocks(&strided(128), 4), (32, 1));
        assert_eq!(bank_clocks(&strided(256), 16), (32, 4));
        assert_eq!(bank_clocks(&[8; 32], 4), (1, 1));
    }
}
