//! The timeline of one step, with a lane per device.

use bilayer_measure::profile::{Span, SpanKind};
use bilayer_scheduler::Bytes;
use plotters::style::text_anchor::HPos;

use super::ink::{Ink, Note};
use super::sheet::{self, Error, Frame, Sample, Sheet, Style};
use super::{Form, drawable, tick};

/// Height of a lane and of the gap between two, pixels.
const LANE: (u32, u32) = (46, 12);

/// Spans narrower than this are merged with their neighbours, pixels.
const NARROW: f64 = 1.2;

/// What works on a lane; lanes are in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worker {
    Cpu,
    /// One of the GPUs, whose lanes are `gpu`, or `gpu0`, `gpu1` and so on.
    Gpu,
    Host,
}

impl Worker {
    fn of(lane: &str) -> Worker {
        match lane.trim_end_matches(|c: char| c.is_ascii_digit()) {
            "cpu" => Worker::Cpu,
            "gpu" => Worker::Gpu,
            _ => Worker::Host,
        }
    }
}

/// Consecutive spans of one kind, merged because they are too narrow to draw.
struct Piece<'a> {
    first: &'a Span,
    count: usize,
    /// Bytes read or moved by all of them.
    bytes: u64,
    /// Microseconds after the beginning of the step.
    end: f64,
}

/// Draws the chart.
pub fn draw(step: &[Span], form: Form) -> Result<String, Error> {
    let spans: Vec<&Span> =
        step.iter().filter(|s| s.start_us.is_finite() && s.us.is_finite()).collect();
    let mut lanes: Vec<&str> = spans.iter().map(|s| s.lane.as_str()).collect();
    // Of two numbers the shorter one is less.
    lanes.sort_by_key(|lane| (Worker::of(lane), lane.len(), *lane));
    lanes.dedup();
    let end = spans.iter().filter_map(|s| drawable(s.start_us + s.us)).fold(0.0, f64::max);
    let end = if end > 0.0 { end } else { 1.0 };
    let rows = u32::try_from(lanes.len()).unwrap_or(1).max(1);
    let height = 40 + rows * (LANE.0 + LANE.1) + 50;
    let (size, margins) = form.layout(height, [66, 40, 24, 50]);
    let frame = Frame {
        size,
        margins,
        x: 0.0..end,
        y: 0.0..f64::from(rows),
        label: format!(
            "One decode step of {:.0} microseconds on the lanes {}",
            end,
            lanes.join(", ")
        ),
    };
    sheet::draw(&frame, |sheet| {
        if spans.is_empty() {
            return sheet.text((66.0, 69.0), "no step was timed", Style::QUIET);
        }
        scale(sheet, end)?;
        legend(sheet, &spans)?;
        for (row, lane) in lanes.iter().enumerate() {
            draw_lane(sheet, row, lane, &spans, end)?;
        }
        Ok(())
    })
}

/// Times below the lanes.
fn scale(sheet: &Sheet, end: f64) -> Result<(), Error> {
    use plotters::coord::types::RangedCoordf64;
    use plotters::prelude::Ranged;

    let (unit, title) = if end >= 2000.0 { (1000.0, "ms") } else { (1.0, "\u{b5}s") };
    let [left, top, right, bottom] = sheet.edges();
    let most = ((right - left) / 60.0) as usize;
    for value in RangedCoordf64::from(0.0..end / unit).key_points(most.min(10)) {
        let (x, _) = sheet.at(value * unit, 0.0);
        sheet.line(&[(x, top), (x, bottom)], Ink::Grid, 1.0)?;
        let style = Style { anchor: HPos::Center, ..Style::QUIET };
        sheet.text((x, bottom + 14.0), &tick(value), style)?;
    }
    sheet.title(&format!("{title} from the beginning of the step"), 34.0)
}

fn legend(sheet: &Sheet, spans: &[&Span]) -> Result<(), Error> {
    let known = [
        (SpanKind::Op, Worker::Cpu, "CPU computes"),
        (SpanKind::Op, Worker::Gpu, "GPU computes"),
        (SpanKind::Op, Worker::Host, "host works"),
        (SpanKind::Transfer, Worker::Host, "crossing"),
        (SpanKind::Submit, Worker::Host, "submits"),
        (SpanKind::Wait, Worker::Host, "waits"),
        (SpanKind::Idle, Worker::Host, "idle"),
    ];
    let inks: Vec<Ink> = spans.iter().map(|s| ink(s.kind, Worker::of(&s.lane))).collect();
    let entries: Vec<_> = known
        .iter()
        .map(|&(kind, worker, name)| (ink(kind, worker), name))
        .filter(|(ink, _)| inks.contains(ink))
        .map(|(ink, name)| (Sample::Box(ink), name))
        .collect();
    sheet.legend(&entries)
}

fn ink(kind: SpanKind, worker: Worker) -> Ink {
    match (kind, worker) {
        (SpanKind::Op, Worker::Cpu) => Ink::Cpu,
        (SpanKind::Op, Worker::Gpu) => Ink::Gpu,
        (SpanKind::Op, Worker::Host) => Ink::Muted,
        (SpanKind::Transfer, _) => Ink::Crossing,
        (SpanKind::Submit, _) => Ink::Text,
        (SpanKind::Wait, _) => Ink::Idle,
        (SpanKind::Idle, _) => Ink::Grid,
    }
}

fn draw_lane(
    sheet: &mut Sheet,
    row: usize,
    lane: &str,
    spans: &[&Span],
    end: f64,
) -> Result<(), Error> {
    let [left, top, right, _] = sheet.edges();
    let (height, gap) = (f64::from(LANE.0), f64::from(LANE.1));
    let upper = top + row as f64 * (height + gap) + gap / 2.0;
    let lower = upper + height;
    let style = Style { anchor: HPos::Right, weight: Style::LOUD.weight, ..Style::QUIET };
    sheet.text((left - 12.0, (upper + lower) / 2.0), lane, style)?;
    sheet.rect((left, upper), (right, lower), Ink::Shade)?;
    let mut own: Vec<&Span> = spans.iter().copied().filter(|s| s.lane == lane).collect();
    own.sort_by(|a, b| a.start_us.total_cmp(&b.start_us));
    for piece in pieces(&own, end / (right - left)) {
        let (from, to) = (sheet.at(piece.first.start_us, 0.0).0, sheet.at(piece.end, 0.0).0);
        // Neighbours that are wide enough are separated by a gap.
        let to = if to - from > 3.0 { to - 0.8 } else { to };
        let ink = ink(piece.first.kind, Worker::of(lane));
        let note = Note { gpu_layers: None, text: caption(&piece) };
        sheet.bar((from, upper), (to, lower), ink, note)?;
        let name = &piece.first.name;
        if piece.count == 1 && sheet::width(name, 11.0) + 8.0 < to - from {
            let ink = match piece.first.kind {
                SpanKind::Idle | SpanKind::Wait => Ink::Text,
                _ => Ink::Surface,
            };
            let style = Style { ink, size: 11.0, anchor: HPos::Center, ..Style::QUIET };
            sheet.text(((from + to) / 2.0, (upper + lower) / 2.0), name, style)?;
        }
    }
    Ok(())
}

/// Merges spans that are too narrow at `us_per_pixel`, so that a step of thousands of ops has some hundred elements.
fn pieces<'a>(spans: &[&'a Span], us_per_pixel: f64) -> Vec<Piece<'a>> {
    let narrow = NARROW * us_per_pixel;
    let mut pieces: Vec<Piece> = Vec::new();
    for span in spans {
        let end = span.start_us + span.us.max(0.0);
        match pieces.last_mut() {
            Some(last)
                if last.first.kind == span.kind
                    && span.us < narrow
                    && last.end - last.first.start_us < narrow
                    && span.start_us - last.end < narrow =>
            {
                last.count += 1;
                last.bytes += span.bytes;
                last.end = last.end.max(end);
            }
            _ => pieces.push(Piece { first: span, count: 1, bytes: span.bytes, end }),
        }
    }
    pieces
}

fn caption(piece: &Piece) -> String {
    let us = piece.end - piece.first.start_us;
    let start = piece.first.start_us;
    let more = match piece.count {
        1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    let work = match piece.bytes {
        0 => String::new(),
        bytes if us > 0.0 => {
            let gbps = bytes as f64 / us / 1e3;
            format!(", {}, {gbps:.1} GB/s", Bytes(bytes))
        }
        bytes => format!(", {}", Bytes(bytes)),
    };
    format!("{}{more}: {us:.1} \u{b5}s from {start:.1} \u{b5}s{work}", piece.first.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_is_drawn_as_one() {
        let lanes = ["gpu10", "host", "gpu2", "cpu"];
        let span = |lane: &&str| Span {
            lane: (*lane).to_owned(),
            name: "op".to_owned(),
            kind: SpanKind::Op,
            start_us: 0.0,
            us: 90.0,
            bytes: 0,
        };
        let spans: Vec<Span> = lanes.iter().map(span).collect();
        let svg = draw(&spans, Form::Wide).unwrap();
        assert!(svg.contains("on the lanes cpu, gpu2, gpu10, host"), "{svg}");
        assert_eq!(svg.matches("GPU computes").count(), 1, "{svg}");
        // The boxes of the legend and the bars of the lanes.
        for (class, count) in [("f-gpu", 3), ("f-cpu", 2)] {
            assert_eq!(svg.matches(&format!("\"{class}")).count(), count, "{class}: {svg}");
        }
    }
}
