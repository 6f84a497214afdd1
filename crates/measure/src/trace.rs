//! Analyses a session's [`Trace`]: events with named gaps, the breakdown of each step's time, and a document for
//! Perfetto and Chrome.

use std::collections::BTreeMap;

use bilayer_engine::session::{Event, Trace, What};
use serde::Serialize;

mod names;

pub use names::Names;

/// The events of a trace, in order.
pub struct Timeline<'t> {
    trace: &'t Trace,
}

impl<'t> Timeline<'t> {
    /// The timeline of a trace's events so far.
    pub fn new(trace: &'t Trace) -> Timeline<'t> {
        Timeline { trace }
    }

    /// The events by lane and time, outer before inner, with named gaps: so every lane is complete from the first
    /// event of all to the last.
    pub fn events(&self) -> Vec<Event> {
        let start = self.trace.recorded().iter().map(|event| event.start_ns).min().unwrap_or(0);
        let end = self.trace.recorded().iter().map(Event::end_ns).max().unwrap_or(0);
        let mut events = self.trace.recorded().to_vec();
        events.sort_by_key(|e| (e.lane, e.start_ns, std::cmp::Reverse(e.ns), e.what == What::Op));
        let mut all = Vec::with_capacity(events.len() * 2);
        for lane in 0..self.trace.lanes().len() {
            let what = if lane == 0 { What::Between } else { What::Idle };
            let gap = |from: u64, to: u64| {
                let ns = to.saturating_sub(from);
                (ns > 0).then_some(Event {
                    lane,
                    what,
                    id: 0,
                    tokens: 0,
                    start_ns: from,
                    ns,
                    bytes: 0,
                })
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

    /// The name of an event; `node` names nodes.
    pub fn name(&self, event: &Event, node: &dyn Fn(u32) -> String) -> String {
        let device =
            self.trace.lanes().get(event.id as usize + 1).map_or("a device", String::as_str);
        match event.what {
            What::Op => node(event.id),
            What::Segment => format!("segment {}", event.id),
            What::Write => format!("write to {device}"),
            What::Stream => format!("stream weights to {device}"),
            What::Submit => format!("submit to {device}"),
            What::Wait => format!("wait for {device}"),
            What::Read => format!("read from {device}"),
            What::Beside => format!("drafting beside {device}"),
            What::Step => "step".to_owned(),
            What::Idle => "idle".to_owned(),
            What::Between => "between steps".to_owned(),
        }
    }

    /// Bytes that an event moved or read.
    pub fn bytes(&self, event: &Event, names: &Names<'_>) -> u64 {
        match event.what {
            What::Op => names.bytes(event.id, event.tokens as usize),
            _ => event.bytes,
        }
    }

    /// The events in the Chrome trace event format, which Perfetto opens. `about` has what is to be known about the whole:
    /// names and values, the first of which is the process's name.
    pub fn chrome(&self, names: &Names<'_>, about: &[(&str, String)]) -> Chrome {
        let meta = |what: &str, lane: usize, value: &str| ChromeEvent {
            args: ChromeArgs { name: Some(value.to_owned()), ..ChromeArgs::default() },
            ..ChromeEvent::new(what.to_owned(), "M", lane)
        };
        let process = about.first().map(|(_, process)| meta("process_name", 0, process));
        let lanes = self.trace.lanes().iter().enumerate();
        let mut events: Vec<ChromeEvent> = process
            .into_iter()
            .chain(lanes.map(|(lane, label)| meta("thread_name", lane, label)))
            .collect();
        let all = self.events();
        events.extend(all.iter().map(|event| {
            let bytes = Some(self.bytes(event, names)).filter(|&bytes| bytes > 0);
            ChromeEvent {
                cat: Some(event.what),
                ts: Some(event.start_ns as f64 / 1e3),
                dur: Some(event.ns as f64 / 1e3),
                args: ChromeArgs {
                    tokens: (event.tokens > 0).then_some(event.tokens),
                    bytes,
                    gbps: bytes.and_then(|bytes| gbps(bytes, event.ns)),
                    ..ChromeArgs::default()
                },
                ..ChromeEvent::new(self.name(event, &|node| names.get(node)), "X", event.lane)
            }
        }));
        for (id, crossing) in crossings(&all).into_iter().enumerate() {
            // An arrow binds to the span in which its end lies.
            let end = |ph: &'static str, event: &Event, ns: u64| ChromeEvent {
                cat: Some(What::Write),
                ts: Some(ns as f64 / 1e3),
                id: Some(id),
                bp: (ph == "f").then_some("e"),
                ..ChromeEvent::new("hidden states".to_owned(), ph, event.lane)
            };
            let Crossing { from, to } = crossing;
            events.push(end("s", &from, from.end_ns().saturating_sub(1).max(from.start_ns)));
            events.push(end("f", &to, to.start_ns));
        }
        let about = about.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        Chrome { display_time_unit: "ms", other_data: about.collect(), trace_events: events }
    }
}

/// A document of the Chrome trace event format.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Chrome {
    display_time_unit: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    other_data: BTreeMap<String, String>,
    trace_events: Vec<ChromeEvent>,
}

/// An event: `X` with a duration, `M` about a lane. Times are microseconds.
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
    /// Of the arrow that it begins or ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<usize>,
    /// Where an arrow ends: `e` is at the enclosing span.
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    args: ChromeArgs,
}

impl ChromeEvent {
    fn new(name: String, ph: &'static str, tid: usize) -> ChromeEvent {
        let args = ChromeArgs::default();
        ChromeEvent {
            name,
            ph,
            pid: 1,
            tid,
            cat: None,
            ts: None,
            dur: None,
            id: None,
            bp: None,
            args,
        }
    }
}

/// Hidden states that go from a segment of one device to one of another.
struct Crossing {
    from: Event,
    to: Event,
}

/// The crossings of a trace, by its writes to devices: from the last segment of another device that had ended to the first
/// one that begins after it.
fn crossings(events: &[Event]) -> Vec<Crossing> {
    let of = |what: What| {
        let mut found: Vec<&Event> = events.iter().filter(|event| event.what == what).collect();
        found.sort_by_key(|event| event.start_ns);
        found
    };
    let (steps, segments) = (of(What::Step), of(What::Segment));
    let before = |list: &[&Event], ns: u64| list.partition_point(|event| event.start_ns < ns);
    let crossing = |write: &Event| {
        let lane = write.id as usize + 1;
        let step = steps[..before(&steps, write.start_ns + 1)].last()?;
        let earlier = segments[..before(&segments, write.end_ns())].iter().rev();
        let from = earlier
            .take_while(|event| event.start_ns >= step.start_ns)
            .filter(|event| event.lane != lane && event.end_ns() <= write.end_ns())
            .max_by_key(|event| event.end_ns())?;
        let later = &segments[before(&segments, write.start_ns)..];
        let to = later.iter().find(|event| event.lane == lane)?;
        Some(Crossing { from: **from, to: **to })
    };
    of(What::Write).into_iter().filter(|event| event.bytes > 0).filter_map(crossing).collect()
}

/// A rate in GB/s: bytes per nanosecond.
fn gbps(bytes: u64, ns: u64) -> Option<f64> {
    (ns > 0).then(|| (10.0 * bytes as f64 / ns as f64).round() / 10.0)
}

#[derive(Clone, Debug, Default, Serialize)]
struct ChromeArgs {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u32>,
    /// Weights read by a kernel, or hidden states moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gbps: Option<f64>,
}

/// Breakdown of the time of some steps, milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Total duration of the steps.
    pub wall: f64,
    /// Time in which the host had kernels to run.
    pub cpu: f64,
    /// The sum over the other devices of the time in which they had kernels to run; by their own clocks if ops are timed.
    pub gpu: f64,
    /// Time in which each device had kernels to run.
    pub devices: Vec<f64>,
    /// Transfers between host and devices.
    pub crossing: f64,
    /// Time in which nothing of the above happened.
    pub idle: f64,
}

impl Timeline<'_> {
    /// The breakdown of the time of each step; `is_async` tells whether each device is asynchronous.
    pub fn step_totals(&self, is_async: &[bool]) -> Vec<Totals> {
        let steps = self.trace.recorded().iter().filter(|event| event.what == What::Step);
        steps.map(|step| self.totals(step.start_ns..step.end_ns(), is_async)).collect()
    }

    /// The breakdown of steps that began within `within`, nanoseconds.
    pub fn totals(&self, within: std::ops::Range<u64>, is_async: &[bool]) -> Totals {
        let events = self.trace.recorded().iter().filter(|event| within.contains(&event.start_ns));
        let steps = events.clone().filter(|event| event.what == What::Step);
        let wall: u64 = steps.map(|event| event.ns).sum();
        let mut busy: Vec<(u64, u64)> = Vec::new();
        let mut totals = Totals { wall: wall as f64 / 1e6, ..Totals::default() };
        for (device, is_async) in is_async.iter().enumerate() {
            let mine = events.clone().filter(|event| event.lane == device + 1);
            let timed = mine.clone().any(|event| event.what == What::Op);
            let what = if timed && *is_async { What::Op } else { What::Segment };
            let mut sum = 0;
            for event in mine.filter(|event| event.what == what) {
                sum += event.ns;
                busy.push((event.start_ns, event.end_ns()));
            }
            let ms = sum as f64 / 1e6;
            *(if device == 0 { &mut totals.cpu } else { &mut totals.gpu }) += ms;
            totals.devices.push(ms);
        }
        for event in events.filter(|event| matches!(event.what, What::Write | What::Read)) {
            totals.crossing += event.ns as f64 / 1e6;
            busy.push((event.start_ns, event.end_ns()));
        }
        totals.idle = (totals.wall - covered(busy) as f64 / 1e6).max(0.0);
        totals
    }
}

/// The total length covered by intervals.
fn covered(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut sum, mut end) = (0, 0);
    for (from, to) in intervals {
        sum += to.saturating_sub(from.max(end));
        end = end.max(to);
    }
    sum
}

/// Whether an event is not nested in another of its lane.
fn is_outer(what: What) -> bool {
    matches!(what, What::Step | What::Segment | What::Idle | What::Between)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use bilayer_graph::OpTime;

    use super::{Event, Timeline, Trace, What, covered};

    fn event(lane: usize, what: What, start_ns: u64, ns: u64) -> Event {
        Event { lane, what, id: 0, tokens: 1, start_ns, ns, bytes: 0 }
    }

    fn trace(capacity: usize) -> Trace {
        Trace::new(Instant::now(), capacity, &["cpu".to_owned(), "gpu".to_owned()])
    }

    #[test]
    fn gaps_are_named_so_that_every_lane_is_whole() {
        let mut trace = trace(100);
        trace.push(event(0, What::Step, 100, 50));
        trace.push(event(0, What::Wait, 110, 20));
        trace.push(event(0, What::Step, 170, 30));
        let op = |node, start_ns, ns| OpTime { node, start_ns, ns };
        trace.segment(event(1, What::Segment, 105, 20), &[op(7, 0, 8), op(9, 8, 7)]);
        let events = Timeline::new(&trace).events();
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
        let timeline = Timeline::new(&trace);
        let totals = timeline.totals(0..u64::MAX, &[false, true]);
        assert_eq!(timeline.step_totals(&[false, true]).len(), 1);
        assert_eq!((totals.wall, totals.cpu, totals.gpu, totals.crossing), (10.0, 4.0, 3.0, 1.0));
        assert_eq!(totals.idle, 2.0);
    }
}
