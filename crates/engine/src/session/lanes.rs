//! A ring buffer of the last submitted segments, with device and times.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Capacity in records. A step of two segments in four micro-batches makes eight.
const KEPT: usize = 1024;

/// One segment's execution for one micro-batch, as observed by the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    /// Counts all records, from 0.
    pub number: u64,
    /// Index of the device in the plan.
    pub device: usize,
    /// Index of the segment in the plan.
    pub segment: usize,
    /// Index of the micro-batch in its step.
    pub micro_batch: usize,
    /// Its tokens.
    pub tokens: usize,
    /// When it was submitted, nanoseconds after [`Lanes::epoch`].
    pub submitted_ns: u64,
    /// When the device started it: submitted, and done with earlier work.
    pub began_ns: u64,
    /// When it was first observed to be finished, on the same clock; 0 until then. Devices that report without
    /// waiting ([`bilayer_graph::Backend::outstanding`]) are queried at every submit and read.
    pub done_ns: u64,
}

/// The ring buffer, allocated once.
pub struct Lanes {
    epoch: Instant,
    /// Record `n` is at `n % KEPT`.
    ring: Vec<Lane>,
    next: u64,
    devices: Vec<Open>,
}

/// A device's unfinished records, and when it was last busy.
struct Open {
    /// Numbers of the records, oldest first. Those older than the ring are dropped.
    records: VecDeque<u64>,
    idle_ns: u64,
}

impl Lanes {
    /// An empty record for a number of devices; the clock starts at `epoch`.
    pub fn new(devices: usize, epoch: Instant) -> Lanes {
        let open = || Open { records: VecDeque::with_capacity(KEPT), idle_ns: 0 };
        Lanes {
            epoch,
            ring: Vec::with_capacity(KEPT),
            next: 0,
            devices: (0..devices).map(|_| open()).collect(),
        }
    }

    /// The epoch of all times.
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    /// The available records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Lane> {
        let oldest = self.next as usize % self.ring.len().max(1);
        let (newer, older) = self.ring.split_at(if self.ring.len() < KEPT { 0 } else { oldest });
        older.iter().chain(newer)
    }

    /// The record of a number, if the ring still has it.
    pub fn get(&self, number: u64) -> Option<&Lane> {
        self.ring.get(number as usize % KEPT).filter(|lane| lane.number == number)
    }

    /// Records a submit and returns its number.
    pub(super) fn submitted(&mut self, at: &At) -> u64 {
        let lane = Lane {
            number: self.next,
            device: at.device,
            segment: at.segment,
            micro_batch: at.micro_batch,
            tokens: at.tokens,
            submitted_ns: self.ns(at.at),
            began_ns: 0,
            done_ns: 0,
        };
        let open = &mut self.devices[lane.device].records;
        if open.len() == KEPT {
            open.pop_front();
        }
        open.push_back(lane.number);
        if self.ring.len() < KEPT {
            self.ring.push(lane);
        } else {
            self.ring[lane.number as usize % KEPT] = lane;
        }
        self.next += 1;
        lane.number
    }

    /// Records that all but the last `outstanding` submits of a device are finished by `now`. Returns the busy time of those
    /// not known to be finished before.
    pub(super) fn outstanding(
        &mut self,
        device: usize,
        outstanding: usize,
        now: Instant,
    ) -> Duration {
        let finished = self.devices[device].records.len().saturating_sub(outstanding);
        self.finish(device, finished, now)
    }

    /// Records that submit `number` and all before it are finished by `now`. Returns the busy time of those not known to be
    /// finished before.
    pub(super) fn finished_through(
        &mut self,
        device: usize,
        number: u64,
        now: Instant,
    ) -> Duration {
        let records = &self.devices[device].records;
        let finished = records.iter().take_while(|&&record| record <= number).count();
        self.finish(device, finished, now)
    }

    fn finish(&mut self, device: usize, records: usize, now: Instant) -> Duration {
        let now = self.ns(now);
        let mut busy_ns = 0;
        let open = &mut self.devices[device];
        for number in open.records.drain(..records) {
            let lane = &mut self.ring[number as usize % KEPT];
            if lane.number != number {
                continue;
            }
            lane.done_ns = now;
            // A device processes its queue in order: queued work starts when its predecessor ends.
            lane.began_ns = lane.submitted_ns.max(open.idle_ns).min(now);
            busy_ns += now - lane.began_ns;
            open.idle_ns = now;
        }
        Duration::from_nanos(busy_ns)
    }

    fn ns(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// A submit to be recorded.
pub(super) struct At {
    pub device: usize,
    pub segment: usize,
    pub micro_batch: usize,
    pub tokens: usize,
    pub at: Instant,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(device: usize) -> At {
        At { device, segment: 0, micro_batch: 0, tokens: 1, at: Instant::now() }
    }

    #[test]
    fn the_ring_keeps_the_last_records_in_order() {
        let mut lanes = Lanes::new(2, Instant::now());
        for i in 0..KEPT + 10 {
            assert_eq!(lanes.iter().count(), i.min(KEPT));
            let number = lanes.submitted(&on(i % 2));
            lanes.finished_through(i % 2, number, Instant::now());
        }
        let numbers: Vec<u64> = lanes.iter().map(|lane| lane.number).collect();
        assert_eq!(numbers, (10..KEPT as u64 + 10).collect::<Vec<_>>());
        assert!(lanes.iter().all(|lane| lane.done_ns >= lane.submitted_ns && lane.done_ns > 0));
    }

    #[test]
    fn busy_time_counts_queued_work_once() {
        let mut lanes = Lanes::new(1, Instant::now());
        std::thread::sleep(Duration::from_millis(1));
        lanes.submitted(&on(0));
        lanes.submitted(&on(0));
        std::thread::sleep(Duration::from_millis(5));
        let first = lanes.outstanding(0, 1, Instant::now());
        let second = lanes.outstanding(0, 0, Instant::now());
        assert!(first >= Duration::from_millis(5) && second < first, "{first:?} {second:?}");
        assert!(lanes.outstanding(0, 0, Instant::now()).is_zero());
    }

    #[test]
    fn what_is_never_finished_is_forgotten() {
        let mut lanes = Lanes::new(1, Instant::now());
        for _ in 0..3 * KEPT {
            lanes.submitted(&on(0));
        }
        lanes.outstanding(0, 0, Instant::now());
        assert!(lanes.iter().all(|lane| lane.done_ns > 0));
    }
}
