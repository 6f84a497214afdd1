//! The speedup curve: measured and predicted, with the memory limit, the knee and the recommended number marked.

use bilayer_measure::profile::{Point, Profile};
use plotters::style::text_anchor::HPos;

use super::super::columns;
use super::ink::{Ink, Note};
use super::sheet::{self, Error, Frame, Pixel, Sample, Sheet, Style};
use super::{Form, SIDES, counts, digits, drawable, ms, top};

/// Draws the chart.
pub fn draw(profile: &Profile, form: Form) -> Result<String, Error> {
    let curve = Speedups::new(profile);
    let (size, margins) = form.layout(420, [SIDES.0, 88, SIDES.1, 56]);
    let frame = Frame {
        size,
        margins,
        x: counts(&profile.points),
        y: curve.range(),
        label: format!(
            "Speedup over the number of offloaded layers. Recommended: {}. {}",
            profile.recommended, profile.why
        ),
    };
    sheet::draw(&frame, |sheet| {
        super::beyond(profile, sheet)?;
        for point in &profile.points {
            sheet.column(point.gpu_layers, caption(point))?;
        }
        let ticks = curve.ticks(sheet);
        let value = |tick| curve.value(tick);
        sheet.values_at(&ticks, "times as fast as N = 0", |tick| {
            format!("{}\u{d7}", super::tick(value(tick)))
        })?;
        if let Some(alone_ms) = curve.alone_ms {
            sheet.values_right(&ticks, "tok/s", |tick| rate(1e3 / alone_ms * value(tick)))?;
        }
        sheet.counts("N, layers on the GPU")?;
        let [left, _, right, _] = sheet.edges();
        let (_, one) = sheet.at(0.0, curve.place(1.0));
        sheet.line(&[(left, one), (right, one)], Ink::Muted, 1.0)?;
        curve.lines(sheet)?;
        curve.flags(sheet)?;
        curve.dots(sheet)
    })
}

/// The chart's data in the units of its scales.
struct Speedups<'a> {
    profile: &'a Profile,
    /// Milliseconds per token that predictions are compared with.
    alone_ms: Option<f64>,
    /// Whether the scale is logarithmic: most points would lie at its lower end otherwise.
    is_logarithmic: bool,
}

/// Speedup below which points lie at the lower end of a linear scale.
const LOW: f64 = 0.1;

impl<'a> Speedups<'a> {
    fn new(profile: &'a Profile) -> Speedups<'a> {
        let first = profile.points.first();
        let alone_ms = first.and_then(|p| drawable(p.decode_ms).or(p.predicted_decode_ms));
        let speedups = || profile.points.iter().filter_map(|point| drawable(point.speedup));
        let low = speedups().filter(|&speedup| speedup < LOW).count();
        Speedups { profile, alone_ms, is_logarithmic: 2 * low > speedups().count() }
    }

    /// Where a speedup lies on the scale.
    fn place(&self, speedup: f64) -> f64 {
        if self.is_logarithmic { speedup.max(1e-9).log10() } else { speedup }
    }

    /// The speedup at a place.
    fn value(&self, place: f64) -> f64 {
        if self.is_logarithmic { 10f64.powf(place) } else { place }
    }

    /// The scale.
    fn range(&self) -> std::ops::Range<f64> {
        let all = || self.measured().chain(self.predicted()).map(|(_, y)| y).chain([1.0]);
        if !self.is_logarithmic {
            return 0.0..top(all());
        }
        let (least, most) = all()
            .map(|y| self.place(y))
            .fold((0.0, 0.0), |(a, b): (f64, f64), y| (a.min(y), b.max(y)));
        least - 0.1..most + 0.1
    }

    /// Round values of the scale.
    fn ticks(&self, sheet: &Sheet) -> Vec<f64> {
        if !self.is_logarithmic {
            return sheet.ticks();
        }
        let range = self.range();
        let decades = range.start.floor() as i32..=range.end.ceil() as i32;
        let steps: &[f64] = if range.end - range.start < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let all = decades
            .flat_map(|decade| steps.iter().map(move |step| f64::from(decade) + step.log10()));
        all.filter(|tick| range.contains(tick)).collect()
    }

    fn measured(&self) -> impl Iterator<Item = (f64, f64)> {
        let of = |p: &Point| Some((f64::from(p.gpu_layers), drawable(p.speedup)?));
        self.profile.points.iter().filter_map(of)
    }

    /// Relative to the measured time at N = 0, so that the gap between the lines is the error at that N.
    fn predicted(&self) -> impl Iterator<Item = (f64, f64)> {
        let of = |p: &Point| {
            let speedup = self.alone_ms? / p.predicted_decode_ms?;
            Some((f64::from(p.gpu_layers), drawable(speedup)?))
        };
        self.profile.points.iter().filter_map(of)
    }

    fn lines(&self, sheet: &Sheet) -> Result<(), Error> {
        let path = |points: &mut dyn Iterator<Item = (f64, f64)>| -> Vec<Pixel> {
            points.map(|(x, y)| sheet.at(x, self.place(y))).collect()
        };
        let (measured, predicted) = (path(&mut self.measured()), path(&mut self.predicted()));
        let mut legend = vec![(Sample::Line(Ink::Gpu), "measured")];
        if !predicted.is_empty() {
            legend.push((Sample::Line(Ink::Predicted), "predicted"));
            sheet.line(&predicted, Ink::Predicted, 2.0)?;
        }
        sheet.line(&measured, Ink::Gpu, 2.5)?;
        sheet.legend(&legend)
    }

    fn dots(&self, sheet: &mut Sheet) -> Result<(), Error> {
        let radius = if self.profile.points.len() > 40 { 2.4 } else { 3.6 };
        for point in &self.profile.points {
            let Some(speedup) = drawable(point.speedup) else { continue };
            let at = sheet.at(f64::from(point.gpu_layers), self.place(speedup));
            let note = Note { gpu_layers: Some(point.gpu_layers), text: caption(point) };
            let chosen = point.gpu_layers == self.profile.recommended;
            sheet.dot(at, if chosen { 6.5 } else { radius }, Ink::Gpu, note)?;
            if Some(point.gpu_layers) == columns::bend(self.profile) {
                sheet.ring(at, if chosen { 10.0 } else { 8.0 }, Ink::Text)?;
            }
        }
        Ok(())
    }

    /// The names of the marked numbers above the plot, each with a line down to its point.
    fn flags(&self, sheet: &Sheet) -> Result<(), Error> {
        let (knee, recommended) = (columns::bend(self.profile), self.profile.recommended);
        let speedup = |n: u32| {
            let point = self.profile.points.iter().find(|p| p.gpu_layers == n);
            point.and_then(|p| drawable(p.speedup))
        };
        let names = if knee == Some(recommended) { "recommended and knee" } else { "recommended" };
        let rate = speedup(recommended).map_or(String::new(), |s| format!(", {s:.2}\u{d7}"));
        let mut flags =
            vec![(recommended, format!("{names}: N = {recommended}{rate}"), Style::LOUD)];
        if let Some(knee) = knee.filter(|&knee| knee != recommended) {
            flags.push((
                knee,
                format!("knee: N = {knee}"),
                Style { ink: Ink::Text, ..Style::QUIET },
            ));
        }
        let [left, top, right, _] = sheet.edges();
        for (row, (n, text, style)) in flags.iter().enumerate() {
            let lowest = self.value(self.range().start);
            let (x, y) = sheet.at(f64::from(*n), self.place(speedup(*n).unwrap_or(lowest)));
            let middle = 42.0 + 20.0 * row as f64;
            sheet.line(&[(x, middle + 9.0), (x, y)], Ink::Idle, 1.0)?;
            let wide = sheet::width(text, style.size);
            let half = wide / 2.0;
            let (x, anchor) = match x {
                x if x - half < left => (left, HPos::Left),
                x if x + half > right => (right, HPos::Right),
                x => (x, HPos::Center),
            };
            let begins = match anchor {
                HPos::Left => x,
                HPos::Center => x - half,
                HPos::Right => x - wide,
            };
            // A label in a lower row may be crossed by the line of an upper one.
            sheet.rect(
                (begins - 4.0, middle - 9.0),
                (begins + wide + 4.0, middle + 9.0),
                Ink::Surface,
            )?;
            sheet.text((x, middle), text, Style { anchor, ..*style })?;
        }
        let Some(limit) = super::limit(self.profile) else { return Ok(()) };
        let (x, _) = sheet.at(f64::from(limit) + 0.5, 0.0);
        let text = format!("N = {limit} is the largest that fits");
        let wide = sheet::width(&text, Style::QUIET.size);
        let at = if x + wide < right { x + 2.0 } else { right - wide };
        sheet.text((at, top - 8.0), &text, Style::QUIET)
    }
}

/// Tokens per second with three significant digits at most.
fn rate(value: f64) -> String {
    super::tick(digits(value).parse().unwrap_or(value))
}

fn caption(point: &Point) -> String {
    let predicted = match (point.predicted_decode_ms, point.error()) {
        (Some(time), Some(error)) => format!("; predicted {} ({:+.1} %)", ms(time), 100.0 * error),
        _ => String::new(),
    };
    let fits = if point.fits { "" } else { "; does not fit" };
    format!(
        "N = {}: {} per token, {} tok/s, {:.2} times as fast as N = 0{predicted}{fits}",
        point.gpu_layers,
        ms(point.decode_ms),
        rate(1e3 / point.decode_ms),
        point.speedup
    )
}
