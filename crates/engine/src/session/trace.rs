//! A trace of a session: a ring buffer of events by device and time. `bilayer-measure` analyses it.
//!
//! A lane is a row of the chart: first the host, which is the thread that steps the session, then each device of the
//! plan. On the host's lane every moment of a step is a call to a device or the host's own work; on a device's lane
//! there are segments containing kernels, and in between the device is idle.
//!
//! Kernels are timed by their device, whose clock differs from the host's: the kernels of a segment are aligned so
//! that the last ends when the host observed the end of the segment.

use std::ops::Range;
use std::time::Instant;

use bilayer_graph::OpTime;
use serde::Serialize;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A step, from its first call to its last.
    Step,
    /// A segment on its device.
    Segment,
    /// A kernel inside a segment.
    Op,
    /// Writing values to a device.
    Write,
    /// Copying weights to a device's slot.
    Stream,
    /// Submitting commands to a device.
    Submit,
    /// Waiting for a device. If it is a CPU, this thread works in its pool.
    Wait,
    /// Reading values from a device.
    Read,
    /// Work for other devices while one computes, such as drafting.
    Beside,
    /// A device is idle.
    Idle,
    /// The caller's time between steps: sampling, output.
    Between,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// 0 is the host, then the plan's devices.
    pub lane: usize,
    /// Its kind.
    pub what: What,
    /// Its object: the node of a kernel, the index of a segment, the device of a call.
    pub id: u32,
    /// Tokens of the step or micro-batch.
    pub tokens: u32,
    /// Start, nanoseconds after [`Trace::epoch`].
    pub start_ns: u64,
    /// Duration, nanoseconds.
    pub ns: u64,
    /// Bytes that a transfer moved; 0 for other events.
    pub bytes: u64,
}

impl Event {
    /// Its end.
    pub fn end_ns(&self) -> u64 {
        self.start_ns + self.ns
    }
}

/// The ring buffer, allocated once; when it is full the oldest events are dropped.
#[derive(Debug)]
pub struct Trace {
    epoch: Instant,
    ring: Vec<Event>,
    capacity: usize,
    count: u64,
    lanes: Vec<String>,
}

impl Trace {
    /// An empty ring of `capacity` events for devices with labels; times are relative to `epoch`.
    pub fn new(epoch: Instant, capacity: usize, labels: &[String]) -> Trace {
        let mut lanes = vec!["host".to_owned()];
        lanes.extend_from_slice(labels);
        let capacity = capacity.max(1);
        Trace { epoch, ring: Vec::with_capacity(capacity), capacity, count: 0, lanes }
    }

    /// An empty trace for other devices with the same epoch, for use after a device was lost.
    pub(crate) fn anew(&self, labels: &[String]) -> Trace {
        Trace::new(self.epoch, self.capacity, labels)
    }

    /// The epoch of all times.
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    /// The lanes' names.
    pub fn lanes(&self) -> &[String] {
        &self.lanes
    }

    /// The available events, unordered.
    pub fn recorded(&self) -> &[Event] {
        &self.ring
    }

    /// Number of dropped events.
    pub fn dropped(&self) -> u64 {
        self.count - self.ring.len() as u64
    }

    /// Removes all events.
    pub fn clear(&mut self) {
        self.ring.clear();
        self.count = 0;
    }

    /// Nanoseconds from the epoch to an instant.
    pub(crate) fn ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Adds an event, dropping the oldest if the ring is full.
    pub fn push(&mut self, event: Event) {
        if self.ring.len() < self.capacity {
            self.ring.push(event);
        } else {
            self.ring[(self.count % self.capacity as u64) as usize] = event;
        }
        self.count += 1;
    }

    /// Records a call of the host to a device.
    pub(crate) fn call(&mut self, what: What, device: usize, bytes: u64, during: Range<Instant>) {
        let (start_ns, end) = (self.ns(during.start), self.ns(during.end));
        if end > start_ns {
            let (id, ns) = (device as u32, end - start_ns);
            self.push(Event { lane: 0, what, id, tokens: 0, start_ns, ns, bytes });
        }
    }

    /// Records a segment that ran on a device, with its kernels.
    pub fn segment(&mut self, segment: Event, ops: &[OpTime]) {
        self.push(segment);
        let total = ops.iter().map(|op| op.start_ns + op.ns).max().unwrap_or(0);
        let first = segment.end_ns().saturating_sub(total).max(segment.start_ns);
        for op in ops {
            let start_ns = (first + op.start_ns).min(segment.end_ns());
            let ns = op.ns.min(segment.end_ns() - start_ns);
            self.push(Event { what: What::Op, id: op.node, start_ns, ns, ..segment });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bilayer_graph::OpTime;

    use super::{Event, Trace, What};

    fn event(lane: usize, what: What, start_ns: u64, ns: u64) -> Event {
        Event { lane, what, id: 0, tokens: 1, start_ns, ns, bytes: 0 }
    }

    fn trace(capacity: usize) -> Trace {
        Trace::new(Instant::now(), capacity, &["cpu".to_owned(), "gpu".to_owned()])
    }

    #[test]
    fn the_ring_keeps_the_last_events() {
        let mut trace = trace(3);
        for i in 0..5 {
            trace.push(event(0, What::Step, 10 * i, 10));
        }
        assert_eq!(trace.dropped(), 2);
        let starts: Vec<u64> = trace.recorded().iter().map(|e| e.start_ns).collect();
        assert_eq!(starts, [30, 40, 20]);
    }

    #[test]
    fn kernels_never_leave_their_segment() {
        let mut trace = trace(100);
        let op = |start_ns, ns| OpTime { node: 0, start_ns, ns };
        trace.segment(event(2, What::Segment, 1000, 100), &[op(0, 90), op(90, 80)]);
        let ops: Vec<_> = trace.recorded().iter().filter(|e| e.what == What::Op).collect();
        assert!(ops.iter().all(|e| e.start_ns >= 1000 && e.end_ns() <= 1100), "{ops:?}");
    }

    #[test]
    fn calls_of_no_time_are_left_out() {
        let mut trace = trace(10);
        let now = trace.epoch() + Duration::from_micros(3);
        trace.call(What::Write, 1, 4, now..now);
        trace.call(What::Write, 1, 4, now..now + Duration::from_micros(2));
        let written = trace.recorded();
        assert_eq!(
            (written.len(), written[0].start_ns, written[0].ns, written[0].id, written[0].bytes),
            (1, 3000, 2000, 1, 4)
        );
    }
}
