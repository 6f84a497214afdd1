//! What ran when, on which device: a ring of events that is filled while a session steps.
//!
//! A lane is a row of the picture: first the host, which is the thread that steps the session, then each device of the
//! plan. On the host's lane every moment of a step is a call to a device or the host's own; on a device's lane there
//! are segments with the kernels inside, and between them the device is idle.
//!
//! Kernels are timed by their device. A device's clock is not the host's: the kernels of a segment are drawn so that the
//! last ends when the host saw the segment end.

use std::time::Instant;

use bilayer_graph::OpTime;
use serde::Serialize;

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A step, from its first call to its last.
    Step,
    /// A segment on its device.
    Segment,
    /// A kernel inside a segment.
    Op,
    /// Values on their way to a device.
    Write,
    /// Commands handed to a device.
    Submit,
    /// Waiting for a device. Where it is a processor, this thread works along.
    Wait,
    /// Values on their way from a device.
    Read,
    /// A device has nothing to do.
    Idle,
    /// The caller's time between steps: choosing tokens, writing text.
    Between,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// 0 is the host, then the plan's devices.
    pub lane: usize,
    /// What it is.
    pub what: What,
    /// Its object: the node of a kernel, the place of a segment, the device of a call.
    pub id: u32,
    /// Tokens of the step or micro-batch.
    pub tokens: u32,
    /// When it began, nanoseconds after [`Trace::epoch`].
    pub start_ns: u64,
    /// How long it took, nanoseconds.
    pub ns: u64,
}

impl Event {
    /// When it ended.
    pub fn end_ns(&self) -> u64 {
        self.start_ns + self.ns
    }
}

/// The ring. Its memory is reserved at once; when it is full the oldest events go.
#[derive(Debug)]
pub struct Trace {
    epoch: Instant,
    ring: Vec<Event>,
    capacity: usize,
    count: u64,
    lanes: Vec<String>,
}

impl Trace {
    /// An empty ring for devices with labels.
    pub(crate) fn new(epoch: Instant, capacity: usize, labels: &[String]) -> Trace {
        let mut lanes = vec!["host".to_owned()];
        lanes.extend_from_slice(labels);
        let capacity = capacity.max(1);
        Trace { epoch, ring: Vec::with_capacity(capacity), capacity, count: 0, lanes }
    }

    /// An empty trace of one device, on the same clock: for what follows when all has moved there.
    pub(crate) fn alone(&self, label: &str) -> Trace {
        Trace::new(self.epoch, self.capacity, &[label.to_owned()])
    }

    /// The instant that times count from.
    pub fn epoch(&self) -> Instant {
        self.epoch
    }

    /// The lanes' names.
    pub fn lanes(&self) -> &[String] {
        &self.lanes
    }

    /// Events that the ring no longer has.
    pub fn dropped(&self) -> u64 {
        self.count - self.ring.len() as u64
    }

    /// Forgets all events.
    pub fn clear(&mut self) {
        self.ring.clear();
        self.count = 0;
    }

    /// Nanoseconds from the epoch to an instant.
    pub(crate) fn ns(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn push(&mut self, event: Event) {
        if self.ring.len() < self.capacity {
            self.ring.push(event);
        } else {
            self.ring[(self.count % self.capacity as u64) as usize] = event;
        }
        self.count += 1;
    }

    /// A call that the host made to a device.
    pub(crate) fn call(&mut self, what: What, device: usize, from: Instant, to: Instant) {
        let (start_ns, end) = (self.ns(from), self.ns(to));
        if end > start_ns {
            let (id, ns) = (device as u32, end - start_ns);
            self.push(Event { lane: 0, what, id, tokens: 0, start_ns, ns });
        }
    }

    /// A segment that ran on a device, with its kernels.
    pub(crate) fn segment(&mut self, segment: Event, ops: &[OpTime]) {
        self.push(segment);
        let total = ops.iter().map(|op| op.start_ns + op.ns).max().unwrap_or(0);
        let first = segment.end_ns().saturating_sub(total).max(segment.start_ns);
        for op in ops {
            let start_ns = (first + op.start_ns).min(segment.end_ns());
            let ns = op.ns.min(segment.end_ns() - start_ns);
            self.push(Event { what: What::Op, id: op.node, start_ns, ns, ..segment });
        }
    }

    /// The events there are, by lane and time, the outer before the inner, with the gaps named: so every lane is whole
    /// from the first event of all to the last.
    pub fn events(&self) -> Vec<Event> {
        let start = self.ring.iter().map(|event| event.start_ns).min().unwrap_or(0);
        let end = self.ring.iter().map(Event::end_ns).max().unwrap_or(0);
        let mut events = self.ring.clone();
        events.sort_by_key(|e| (e.lane, e.start_ns, std::cmp::Reverse(e.ns), e.what == What::Op));
        let mut all = Vec::with_capacity(events.len() * 2);
        for lane in 0..self.lanes.len() {
            let what = if lane == 0 { What::Between } else { What::Idle };
            let gap = |from: u64, to: u64| {
                let ns = to.saturating_sub(from);
                (ns > 0).then_some(Event { lane, what, id: 0, tokens: 0, start_ns: from, ns })
            };
            let mut at = start;
            for event in events.iter().filter(|event| event.lane == lane) {
                if is_outer(event.what) {
                    all.extend(gap(at, event.start_ns));
                    at = at.max(event.end_ns());
                }
                all.push(*event);
            }
            all.extend(gap(at, end));
        }
        all
    }

    /// What an event is called; `node` says what a node is.
    pub fn name(&self, event: &Event, node: &dyn Fn(u32) -> String) -> String {
        let device = self.lanes.get(event.id as usize + 1).map_or("a device", String::as_str);
        match event.what {
            What::Op => node(event.id),
            What::Segment => format!("segment {}", event.id),
            What::Write => format!("write to {device}"),
            What::Submit => format!("submit to {device}"),
            What::Wait => format!("wait for {device}"),
            What::Read => format!("read from {device}"),
            What::Step => "step".to_owned(),
            What::Idle => "idle".to_owned(),
            What::Between => "between steps".to_owned(),
        }
    }

    /// The events in the Chrome trace event format, which Perfetto opens. `name` says what a node is called.
    pub fn chrome(&self, name: &dyn Fn(u32) -> String) -> Chrome {
        let mut events: Vec<ChromeEvent> = self
            .lanes
            .iter()
            .enumerate()
            .flat_map(|(lane, label)| {
                let about = |about: &'static str, value: &str| ChromeEvent {
                    name: about.to_owned(),
                    ph: "M",
                    pid: 1,
                    tid: lane,
                    cat: None,
                    ts: None,
                    dur: None,
                    args: ChromeArgs { name: Some(value.to_owned()), ..ChromeArgs::default() },
                };
                [about("thread_name", label)]
            })
            .collect();
        events.extend(self.events().into_iter().map(|event| ChromeEvent {
            name: self.name(&event, name),
            ph: "X",
            pid: 1,
            tid: event.lane,
            cat: Some(event.what),
            ts: Some(event.start_ns as f64 / 1e3),
            dur: Some(event.ns as f64 / 1e3),
            args: ChromeArgs {
                tokens: (event.tokens > 0).then_some(event.tokens),
                ..ChromeArgs::default()
            },
        }));
        Chrome { display_time_unit: "ms", trace_events: events }
    }
}

/// A document of the Chrome trace event format.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chrome {
    display_time_unit: &'static str,
    trace_events: Vec<ChromeEvent>,
}

/// One of its events: `X` with a duration, `M` about a lane. Times are microseconds.
#[derive(Clone, Debug, Serialize)]
struct ChromeEvent {
    name: String,
    ph: &'static str,
    pid: u32,
    tid: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<What>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    args: ChromeArgs,
}

#[derive(Clone, Debug, Default, Serialize)]
struct ChromeArgs {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u32>,
}

/// Where the time of some steps went, milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Between the first event and the last.
    pub wall: f64,
    /// While processors had kernels to run.
    pub cpu: f64,
    /// While adapters had: by their own clock where they have one.
    pub gpu: f64,
    /// Values on their way between host and devices.
    pub crossing: f64,
    /// While nothing of this went on.
    pub idle: f64,
}

impl Trace {
    /// Where the time of each step went; `adapters` says of each device whether it is one.
    pub fn step_totals(&self, adapters: &[bool]) -> Vec<Totals> {
        let steps = self.ring.iter().filter(|event| event.what == What::Step);
        steps.map(|step| self.totals(step.start_ns..step.end_ns(), adapters)).collect()
    }

    /// Where the time of the steps that began within some nanoseconds went.
    pub fn totals(&self, within: std::ops::Range<u64>, adapters: &[bool]) -> Totals {
        let events = self.ring.iter().filter(|event| within.contains(&event.start_ns));
        let steps = events.clone().filter(|event| event.what == What::Step);
        let wall: u64 = steps.map(|event| event.ns).sum();
        let mut busy: Vec<(u64, u64)> = Vec::new();
        let mut totals = Totals { wall: wall as f64 / 1e6, ..Totals::default() };
        for (lane, is_adapter) in adapters.iter().enumerate() {
            let mine = events.clone().filter(|event| event.lane == lane + 1);
            let timed = mine.clone().any(|event| event.what == What::Op);
            let what = if timed && *is_adapter { What::Op } else { What::Segment };
            let mut sum = 0;
            for event in mine.filter(|event| event.what == what) {
                sum += event.ns;
                busy.push((event.start_ns, event.end_ns()));
            }
            let part = if *is_adapter { &mut totals.gpu } else { &mut totals.cpu };
            *part += sum as f64 / 1e6;
        }
        for event in events.filter(|event| matches!(event.what, What::Write | What::Read)) {
            totals.crossing += event.ns as f64 / 1e6;
            busy.push((event.start_ns, event.end_ns()));
        }
        totals.idle = (totals.wall - covered(busy) as f64 / 1e6).max(0.0);
        totals
    }
}

/// How much of the time line intervals cover.
fn covered(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut sum, mut end) = (0, 0);
    for (from, to) in intervals {
        sum += to.saturating_sub(from.max(end));
        end = end.max(to);
    }
    sum
}

/// Whether an event stands by itself, not inside another of its lane.
fn is_outer(what: What) -> bool {
    matches!(what, What::Step | What::Segment | What::Idle | What::Between)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use bilayer_graph::OpTime;

    use super::{Event, Trace, What, covered};

    fn event(lane: usize, what: What, start_ns: u64, ns: u64) -> Event {
        Event { lane, what, id: 0, tokens: 1, start_ns, ns }
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
        let starts: Vec<u64> =
            trace.events().iter().filter(|e| e.lane == 0).map(|e| e.start_ns).collect();
        assert_eq!(starts, [20, 30, 40]);
    }

    #[test]
    fn gaps_are_named_so_that_every_lane_is_whole() {
        let mut trace = trace(100);
        trace.push(event(0, What::Step, 100, 50));
        trace.push(event(0, What::Wait, 110, 20));
        trace.push(event(0, What::Step, 170, 30));
        let op = |node, start_ns, ns| OpTime { node, start_ns, ns };
        trace.segment(event(1, What::Segment, 105, 20), &[op(7, 0, 8), op(9, 8, 7)]);
        let events = trace.events();
        for lane in 0..3 {
            let outer = events.iter().filter(|e| {
                let inner = matches!(e.what, What::Op | What::Wait);
                e.lane == lane && !inner
            });
            assert_eq!(outer.map(|e| e.ns).sum::<u64>(), 100, "lane {lane}");
        }
        let ops: Vec<(u32, u64, u64)> = events
            .iter()
            .filter(|e| e.what == What::Op)
            .map(|e| (e.id, e.start_ns, e.ns))
            .collect();
        assert_eq!(ops, [(7, 110, 8), (9, 118, 7)], "the last ends with its segment");
    }

    #[test]
    fn kernels_never_leave_their_segment() {
        let mut trace = trace(100);
        let op = |start_ns, ns| OpTime { node: 0, start_ns, ns };
        trace.segment(event(2, What::Segment, 1000, 100), &[op(0, 90), op(90, 80)]);
        let ops: Vec<_> = trace.events().into_iter().filter(|e| e.what == What::Op).collect();
        assert!(ops.iter().all(|e| e.start_ns >= 1000 && e.end_ns() <= 1100), "{ops:?}");
    }

    #[test]
    fn calls_of_no_time_are_left_out() {
        let mut trace = trace(10);
        let now = trace.epoch() + Duration::from_micros(3);
        trace.call(What::Write, 1, now, now);
        trace.call(What::Write, 1, now, now + Duration::from_micros(2));
        let all = trace.events();
        let written: Vec<_> = all.iter().filter(|e| e.what == What::Write).collect();
        assert_eq!(
            (written.len(), written[0].start_ns, written[0].ns, written[0].id),
            (1, 3000, 2000, 1)
        );
    }

    #[test]
    fn what_overlaps_is_covered_once() {
        assert_eq!(covered(vec![(5, 9), (0, 6), (20, 21), (8, 9)]), 10);
        assert_eq!(covered(Vec::new()), 0);
    }

    #[test]
    fn totals_say_where_time_went() {
        let mut trace = trace(100);
        let ms = 1_000_000;
        trace.push(event(0, What::Step, 0, 10 * ms));
        trace.push(event(0, What::Write, 4 * ms, ms));
        trace.segment(event(1, What::Segment, 0, 4 * ms), &[]);
        let op = OpTime { node: 0, start_ns: 0, ns: 3 * ms };
        trace.segment(event(2, What::Segment, 5 * ms, 4 * ms), &[op]);
        let totals = trace.totals(0..u64::MAX, &[false, true]);
        assert_eq!(trace.step_totals(&[false, true]).len(), 1);
        assert_eq!((totals.wall, totals.cpu, totals.gpu, totals.crossing), (10.0, 4.0, 3.0, 1.0));
        assert_eq!(totals.idle, 2.0);
    }
}
