//! The charts of a profile, as SVG elements.

pub mod curves;
mod ink;
mod layers;
mod sheet;
mod speedup;
mod time;
mod timeline;

use std::ops::Range;

use bilayer_measure::profile::{AtThreads, Curves, Point, Profile};
use minijinja::Value;

use curves::Curve;
use sheet::Sheet;

pub use ink::{Ink, alone, css};
pub use sheet::Error;

/// Left and right margins of the charts over the number of layers: equal, so that the charts align.
const SIDES: (u32, u32) = (66, 64);

/// Where a chart is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In a window, or as a file: enough for eighty layers, displayed unscaled.
    Wide,
    /// On a phone held upright.
    Narrow,
}

impl Form {
    /// Size and margins of a chart that has this height and these margins in a window. On a phone, legend and axis label
    /// take several lines.
    fn layout(self, height: u32, margins: [u32; 4]) -> ((u32, u32), [u32; 4]) {
        let [left, top, right, bottom] = margins;
        match self {
            Form::Wide => ((960, height), margins),
            Form::Narrow => ((360, height + 66), [left, top + 36, right.min(56), bottom + 30]),
        }
    }
}

/// The charts of one profile, each an `svg` element.
pub struct Charts {
    /// By name. Those over the number of layers are `speedup`, `layers`, `time`, `prefill` and `memory`; those of the CPU
    /// alone `threads`, `prompts`, `bandwidth` and `sequences`; `timeline` is one step.
    pub named: Vec<(&'static str, String)>,
    /// Timelines of one step at other numbers of layers too.
    pub steps: Vec<(u32, String)>,
}

impl Charts {
    /// Draws them.
    pub fn draw(profile: &Profile, form: Form) -> Result<Charts, Error> {
        let mut named = match &profile.curves {
            Some(curves) => alone_on_cpu(curves, form)?,
            None => vec![
                ("speedup", speedup::draw(profile, form)?),
                ("layers", layers::draw(profile, form)?),
                ("time", time::draw(profile, form)?),
                ("prefill", prefill(profile, form)?),
                ("memory", memory(profile, form)?),
            ],
        };
        named.push(("timeline", timeline::draw(&profile.timeline, form)?));
        Ok(Charts {
            named,
            steps: profile
                .steps
                .iter()
                .map(|step| Ok((step.gpu_layers, timeline::draw(&step.spans, form)?)))
                .collect::<Result<_, Error>>()?,
        })
    }
}

/// A chart as it is in a window, and as it is on a phone.
pub fn both(wide: &str, narrow: &str) -> Value {
    let chart = format!("<div class=\"wide\">{wide}</div><div class=\"narrow\">{narrow}</div>");
    Value::from_safe_string(chart)
}

/// A line: its name, its ink, and its value at a point.
type Line<'n, P, V> = (&'n str, Ink, fn(&P) -> V);

/// A chart over the number of layers.
fn by_layers(
    (profile, form): (&Profile, Form),
    unit: &'static str,
    lines: &[Line<'_, Point, Option<f64>>],
) -> Result<String, Error> {
    let known = lines.iter().filter_map(|&(name, ink, value)| {
        let values: Vec<f64> =
            profile.points.iter().map(|point| value(point).unwrap_or(f64::NAN)).collect();
        let is_known = values.iter().any(|value| value.is_finite());
        is_known.then_some((name, ink, values))
    });
    curves::draw(&Curve {
        counted: curves::LAYERS,
        counts: profile.points.iter().map(|point| point.gpu_layers as usize).collect(),
        unit,
        lines: known.collect(),
        form,
    })
}

/// Speed of prompts.
fn prefill(profile: &Profile, form: Form) -> Result<String, Error> {
    let tokens = profile.streamed_prompt_tokens;
    let streamed = tokens.map(|tokens| format!("with streamed weights, {tokens} tokens"));
    by_layers(
        (profile, form),
        "tok/s",
        &[
            ("predicted", Ink::Predicted, |point| point.predicted_prefill_tps),
            ("measured", Ink::Gpu, |point| drawable(point.prefill_tps)),
            (streamed.as_deref().unwrap_or("with streamed weights"), Ink::Crossing, |point| {
                point.streamed_prefill_tps
            }),
        ],
    )
}

/// Memory on the GPU.
fn memory(profile: &Profile, form: Form) -> Result<String, Error> {
    by_layers(
        (profile, form),
        "MiB",
        &[
            ("planned", Ink::Predicted, |point| point.gpu_bytes.map(mib)),
            ("held", Ink::Gpu, |point| point.gpu_held_bytes.map(mib)),
        ],
    )
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The charts of the CPU alone.
fn alone_on_cpu(of: &Curves, form: Form) -> Result<Vec<(&'static str, String)>, Error> {
    let by_threads = |unit, lines: &[Line<'_, AtThreads, f64>]| {
        let values = lines
            .iter()
            .map(|&(name, ink, value)| (name, ink, of.threads.iter().map(value).collect()));
        curves::draw(&Curve {
            counted: "threads",
            counts: of.threads.iter().map(|at| at.threads).collect(),
            unit,
            lines: values.collect(),
            form,
        })
    };
    let together = curves::draw(&Curve {
        counted: "sequences",
        counts: of.sequences.iter().map(|at| at.sequences).collect(),
        unit: "tok/s",
        lines: vec![(
            "decode, all",
            Ink::Cpu,
            of.sequences.iter().map(|at| at.decode_tps).collect(),
        )],
        form,
    })?;
    Ok(vec![
        ("threads", by_threads("tok/s", &[("decode", Ink::Cpu, |at| at.decode_tps)])?),
        ("prompts", by_threads("tok/s", &[("prefill", Ink::Cpu, |at| at.prefill_tps)])?),
        (
            "bandwidth",
            by_threads(
                "GB/s",
                &[
                    ("weights read in decode", Ink::Cpu, |at| at.weight_gbps),
                    ("reading the file", Ink::Muted, |at| at.read_gbps),
                ],
            )?,
        ),
        ("sequences", together),
    ])
}

/// The numbers of layers, with space for half a bar at both ends.
fn counts(points: &[Point]) -> Range<f64> {
    let most = points.iter().map(|p| p.gpu_layers).max().unwrap_or(0);
    -0.6..f64::from(most) + 0.6
}

/// The largest N that fits, if some do not.
fn limit(profile: &Profile) -> Option<u32> {
    let fits = profile.points.iter().filter(|p| p.fits).map(|p| p.gpu_layers).max();
    fits.filter(|&most| profile.points.iter().any(|p| p.gpu_layers > most))
}

/// The region of layers that do not fit.
fn beyond(profile: &Profile, sheet: &Sheet) -> Result<(), Error> {
    let Some(limit) = limit(profile) else { return Ok(()) };
    let [_, top, right, bottom] = sheet.edges();
    let (x, _) = sheet.at(f64::from(limit) + 0.5, 0.0);
    sheet.rect((x, top), (right, bottom), Ink::Shade)?;
    sheet.line(&[(x, top), (x, bottom)], Ink::Idle, 1.5)
}

/// A plottable value.
fn drawable(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// The end of a scale over `values`, with some space above; 1 if none is above 0.
fn top(values: impl Iterator<Item = f64>) -> f64 {
    match values.filter_map(drawable).fold(0.0, f64::max) {
        most if most > 0.0 => most * 1.06,
        _ => 1.0,
    }
}

/// Milliseconds with digits appropriate to their size.
fn ms(value: f64) -> String {
    format!("{} ms", digits(value))
}

/// A number with three digits, or three decimals if it is below 1.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.places$}")
}

/// A scale's value, without trailing zeros; large ones in thousands, millions or billions, so that they fit beside the plot.
fn tick(value: f64) -> String {
    let (divisor, unit) = match value.abs() {
        1e9.. => (1e9, "G"),
        1e6.. => (1e6, "M"),
        1e4.. => (1e3, "k"),
        _ => (1.0, ""),
    };
    let text = format!("{:.4}", value / divisor);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { format!("{}{unit}", text.replace('-', "\u{2212}")) }
}

#[cfg(test)]
mod tests {
    use super::ink::Ink;
    use super::sheet::width;
    use super::{Form, curves, tick};

    /// The axis label of each form ends before the values, also before long ones.
    #[test]
    fn axis_labels_do_not_cover_values() {
        for (form, most) in [(Form::Wide, 3000.0), (Form::Narrow, 3000.0), (Form::Narrow, 0.0103)] {
            let chart = curves::draw(&curves::Curve {
                counted: curves::LAYERS,
                counts: vec![0, 1],
                unit: "tok/s",
                lines: vec![("measured", Ink::Gpu, vec![0.0, most])],
                form,
            });
            let chart = chart.unwrap();
            let x = |text: &str| -> f64 {
                text.split(" x=\"")
                    .nth(1)
                    .unwrap()
                    .split('"')
                    .next()
                    .unwrap()
                    .parse::<f64>()
                    .unwrap()
                    / 10.0
            };
            let texts: Vec<&str> = chart.split("<text ").skip(1).collect();
            let label = texts.iter().find(|text| text.contains("rotate(")).unwrap();
            let ends = texts.iter().filter(|text| text.contains("text-anchor=\"end\""));
            let starts = ends.map(|text| {
                let value = text.split('>').nth(1).unwrap().split('<').next().unwrap().trim();
                x(&format!(" {text}")) - width(value, 12.0)
            });
            let first = starts.fold(f64::INFINITY, f64::min);
            assert!(x(&format!(" {label}")) + 6.0 <= first, "{first}: {label}");
        }
    }

    #[test]
    fn ticks_are_short() {
        let cases = [
            (0.0, "0"),
            (-0.0, "0"),
            (0.25, "0.25"),
            (-1.5, "\u{2212}1.5"),
            (2500.0, "2500"),
            (60_000.0, "60k"),
            (1_200_000.0, "1.2M"),
            (4e9, "4G"),
        ];
        for (value, text) in cases {
            assert_eq!(tick(value), text);
        }
    }
}
