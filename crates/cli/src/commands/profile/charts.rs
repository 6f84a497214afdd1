//! The four charts of a profile, as SVG elements.

mod ink;
mod layers;
mod sheet;
mod speedup;
mod time;
mod timeline;

use std::ops::Range;

use bilayer_measure::profile::{Point, Profile};

use ink::Ink;
use sheet::Sheet;

pub use ink::{alone, css};
pub use sheet::Error;

/// Width in pixels: enough for eighty layers, and displayed unscaled on a page.
const WIDTH: u32 = 960;

/// Left and right margins of the charts over the number of layers: equal, so that the charts align.
const SIDES: (u32, u32) = (66, 16);

/// The charts of one profile, each an `svg` element.
pub struct Charts {
    /// Speedup over N = 0, measured and predicted.
    pub speedup: String,
    /// Time saved by each layer.
    pub layers: String,
    /// Breakdown of the time per token.
    pub time: String,
    /// A timeline of one step.
    pub timeline: String,
    /// Timelines of one step at other numbers of layers too.
    pub steps: Vec<(u32, String)>,
}

impl Charts {
    /// Draws them.
    pub fn draw(profile: &Profile) -> Result<Charts, Error> {
        Ok(Charts {
            speedup: speedup::draw(profile)?,
            layers: layers::draw(profile)?,
            time: time::draw(profile)?,
            timeline: timeline::draw(&profile.timeline)?,
            steps: profile
                .steps
                .iter()
                .map(|step| Ok((step.gpu_layers, timeline::draw(&step.spans)?)))
                .collect::<Result<_, Error>>()?,
        })
    }

    /// The charts with their file names, which end in `.svg`.
    pub fn named(&self) -> [(&'static str, &str); 4] {
        [
            ("speedup", &self.speedup),
            ("layers", &self.layers),
            ("time", &self.time),
            ("timeline", &self.timeline),
        ]
    }
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
    let places = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.places$} ms")
}

/// A scale's value, without trailing zeros.
fn tick(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.replace('-', "\u{2212}") }
}
