//! Whose request is next: first in, first out for each key, and among keys the one that was served least.
//!
//! Each key has a counter of tokens that were computed for it. When a request arrives and no other of its key is waiting,
//! the counter becomes at least the smallest of the waiting keys, or if none is waiting, that of the key whose turn was
//! last (the virtual time of start-time fair queueing). So neither a pause nor light use earns credit, and a key that was
//! served alone all day need not wait until a newcomer was served as much. A key that asks for much waits behind others
//! but is never starved: its counter stands still while theirs grow.

use std::collections::{BTreeMap, HashMap};

/// Identifies an API key, or whoever else shares a queue; 0 where there are none.
pub type KeyId = u64;

/// A queue that is fair among keys. Items are ordered by an arrival number.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Waiting items of each key, by arrival number.
    waiting: HashMap<KeyId, BTreeMap<u64, usize>>,
    /// Tokens served to each key that is waiting or running.
    served: HashMap<KeyId, u64>,
    /// The counter of the key whose turn was last, at that time.
    turn: u64,
    len: usize,
}

impl Queue {
    /// Adds an item of `key`.
    pub fn push(&mut self, key: KeyId, arrival: u64, item: usize) {
        if !self.waiting.contains_key(&key) {
            let least = self.waiting.keys().filter_map(|key| self.served.get(key)).min().copied();
            let served = self.served.entry(key).or_default();
            *served = (*served).max(least.unwrap_or(self.turn));
        }
        self.waiting.entry(key).or_default().insert(arrival, item);
        self.len += 1;
    }

    /// The item that is next.
    pub fn first(&self) -> Option<(KeyId, u64, usize)> {
        let heads = self.waiting.iter().filter_map(|(&key, items)| {
            let (&arrival, &item) = items.first_key_value()?;
            Some((self.served.get(&key).copied().unwrap_or(0), arrival, key, item))
        });
        heads.min().map(|(_, arrival, key, item)| (key, arrival, item))
    }

    /// Removes an item whose turn it is.
    pub fn take(&mut self, key: KeyId, arrival: u64) {
        self.turn = self.turn.max(self.served.get(&key).copied().unwrap_or(0));
        self.remove(key, arrival);
    }

    /// Removes an item.
    pub fn remove(&mut self, key: KeyId, arrival: u64) {
        if let Some(items) = self.waiting.get_mut(&key) {
            self.len -= usize::from(items.remove(&arrival).is_some());
            if items.is_empty() {
                self.waiting.remove(&key);
            }
        }
    }

    /// Counts tokens computed for a key.
    pub fn serve(&mut self, key: KeyId, tokens: usize) {
        *self.served.entry(key).or_default() += tokens as u64;
    }

    /// Drops counters of keys that neither wait nor run.
    pub fn forget(&mut self, runs: impl Fn(KeyId) -> bool) {
        let waiting = &self.waiting;
        self.served.retain(|&key, _| waiting.contains_key(&key) || runs(key));
    }

    /// Number of waiting items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Number of waiting items of a key.
    pub fn len_of(&self, key: KeyId) -> usize {
        self.waiting.get(&key).map_or(0, BTreeMap::len)
    }

    /// All waiting items, for tests.
    #[cfg(test)]
    pub fn items(&self) -> impl Iterator<Item = usize> + '_ {
        self.waiting.values().flat_map(|items| items.values().copied())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::Queue;

    #[test]
    fn keys_take_turns_and_each_is_first_in_first_out() {
        let mut queue = Queue::default();
        for arrival in 0..6 {
            queue.push(1, arrival, arrival as usize);
        }
        queue.push(2, 6, 60);
        queue.push(2, 7, 70);
        let mut order = Vec::new();
        while let Some((key, arrival, item)) = queue.first() {
            queue.remove(key, arrival);
            queue.serve(key, 10);
            order.push(item);
        }
        assert_eq!(order, [0, 60, 1, 70, 2, 3, 4, 5]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_pause_earns_no_credit() {
        let mut queue = Queue::default();
        queue.push(1, 0, 0);
        queue.serve(1, 1000);
        queue.push(2, 1, 1);
        queue.serve(2, 1);
        // The newcomer starts at the least counter, so it is not preferred for long.
        queue.push(3, 2, 2);
        queue.serve(3, 2);
        assert_eq!(queue.first().map(|(key, ..)| key), Some(1));
    }

    #[test]
    fn a_key_that_was_served_alone_owes_nothing() {
        let mut queue = Queue::default();
        let turn = |queue: &mut Queue| {
            let (key, arrival, _) = queue.first().expect("a request waits");
            queue.take(key, arrival);
            queue.serve(key, 10);
            key
        };
        // One key has a request running all day, and another runs a short one beside it; none ever waits.
        for arrival in 0..2 {
            queue.push(1 + arrival, arrival, 0);
            turn(&mut queue);
        }
        for arrival in 2..1000 {
            queue.push(1, arrival, 0);
            turn(&mut queue);
            queue.forget(|key| key < 3);
        }
        // Now both, and a new one, ask for more than is free.
        for arrival in 1000..1004 {
            queue.push(3, arrival, 0);
            queue.push(2, 10 + arrival, 0);
            queue.push(1, 20 + arrival, 0);
        }
        let order: Vec<u64> = (0..12).map(|_| turn(&mut queue)).collect();
        assert_eq!(order, [3, 2, 3, 2, 1, 3, 2, 1, 3, 2, 1, 1]);
    }

    #[test]
    fn the_order_is_that_of_a_plain_list() {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut below = |most: u64| random.next_u64() % most;
        let mut queue = Queue::default();
        // Key, arrival and item; and what each key was served.
        let (mut list, mut served) = (Vec::<(u64, u64, usize)>::new(), BTreeMap::<u64, u64>::new());
        let mut turn = 0;
        for number in 0..20_000 {
            let key = below(5);
            match below(8) {
                0..3 => {
                    // A request that gave its pages back is as early as it was.
                    let arrival = if below(4) == 0 { below(number + 1) } else { number };
                    if list.iter().all(|of| of.1 != arrival) {
                        if list.iter().all(|of| of.0 != key) {
                            let waiting = list.iter().map(|of| served[&of.0]);
                            let least = waiting.min().unwrap_or(turn);
                            let before = served.get(&key).copied().unwrap_or(0);
                            served.insert(key, before.max(least));
                        }
                        list.push((key, arrival, number as usize));
                        queue.push(key, arrival, number as usize);
                    }
                }
                3..5 => {
                    if let Some((key, arrival, _)) = queue.first() {
                        list.retain(|of| of.1 != arrival);
                        if number % 3 == 0 {
                            queue.remove(key, arrival);
                        } else {
                            queue.take(key, arrival);
                            turn = turn.max(served[&key]);
                        }
                        // It is not there any more.
                        queue.remove(key, arrival);
                    }
                }
                5..7 => {
                    let tokens = below(50);
                    *served.entry(key).or_default() += tokens;
                    queue.serve(key, tokens as usize);
                }
                _ => {
                    let runs = below(5);
                    served.retain(|&of, _| of == runs || list.iter().any(|item| item.0 == of));
                    queue.forget(|key| key == runs);
                }
            }
            let first = list.iter().min_by_key(|of| (served[&of.0], of.1));
            assert_eq!(queue.first(), first.copied(), "{number}");
            assert_eq!(queue.len(), list.len(), "{number}");
            let of_key = list.iter().filter(|of| of.0 == key).count();
            assert_eq!(queue.len_of(key), of_key, "{number}");
        }
    }
}
