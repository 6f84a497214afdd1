//! Lines over a number: of threads, of sequences, of layers on the GPU.

use super::ink::{Ink, Note};
use super::sheet::{self, Error, Frame, Sample};
use super::{Form, SIDES, drawable, top};

/// What is counted over the number of layers.
pub const LAYERS: &str = "layers on the GPU";

/// What a chart shows.
pub struct Curve<'a> {
    /// What is counted along the horizontal axis.
    pub counted: &'a str,
    /// The counts, rising. They are equally far apart.
    pub counts: Vec<usize>,
    /// Unit of the values.
    pub unit: &'a str,
    /// Name, ink and values of each line.
    pub lines: Vec<(&'a str, Ink, Vec<f64>)>,
    /// Where it is shown.
    pub form: Form,
}

impl Curve<'_> {
    /// The number of layers at a place, if these are counted.
    fn layers(&self, x: usize) -> Option<u32> {
        (self.counted == LAYERS).then(|| self.counts[x] as u32)
    }
}

/// Draws the chart.
pub fn draw(curve: &Curve) -> Result<String, Error> {
    let names: Vec<&str> = curve.lines.iter().map(|(name, ..)| *name).collect();
    let values = curve.lines.iter().flat_map(|(.., values)| values.iter().copied());
    let (size, margins) = curve.form.layout(300, [SIDES.0, 40, SIDES.1, 56]);
    let frame = Frame {
        size,
        margins,
        x: -0.6..curve.counts.len().max(1) as f64 - 0.4,
        y: 0.0..top(values),
        label: format!("{} over the number of {}", names.join(" and "), curve.counted),
    };
    sheet::draw(&frame, |sheet| {
        sheet.values(curve.unit, super::tick)?;
        let labels = curve.counts.iter().enumerate();
        let labels = labels.map(|(x, count)| (x as f64, count.to_string())).collect();
        sheet.labels(labels, curve.counted)?;
        let legend: Vec<_> =
            curve.lines.iter().map(|(name, ink, _)| (Sample::Line(*ink), *name)).collect();
        sheet.legend(&legend)?;
        let radius = if curve.counts.len() > 40 { 2.4 } else { 4.0 };
        for (name, ink, values) in &curve.lines {
            let points = || {
                let known = values.iter().map(|&value| drawable(value));
                known.enumerate().filter_map(|(x, value)| Some((x, value?)))
            };
            let path: Vec<_> = points().map(|(x, value)| sheet.at(x as f64, value)).collect();
            sheet.line(&path, *ink, 2.5)?;
            for (x, value) in points() {
                let text = format!(
                    "{} {}: {name} {} {}",
                    curve.counts[x],
                    curve.counted,
                    super::tick((value * 100.0).round() / 100.0),
                    curve.unit
                );
                sheet.dot(
                    sheet.at(x as f64, value),
                    radius,
                    *ink,
                    Note { gpu_layers: curve.layers(x), text },
                )?;
            }
        }
        Ok(())
    })
}
