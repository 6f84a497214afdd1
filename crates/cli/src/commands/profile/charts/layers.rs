//! The time per token that each layer saved by moving to the GPU, as bars.

use bilayer_measure::profile::Profile;

use super::ink::{Ink, Note};
use super::sheet::{self, Error, Frame, Sample};
use super::{Form, SIDES, counts, drawable, ms};

/// Draws the chart.
pub fn draw(profile: &Profile, form: Form) -> Result<String, Error> {
    let bars: Vec<(u32, f64)> = profile
        .points
        .iter()
        .filter_map(|p| Some((p.gpu_layers, drawable(p.marginal?)?)))
        .collect();
    let most = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    let least = bars.iter().map(|bar| bar.1).fold(0.0, f64::min);
    let room = if most > least { 0.08 * (most - least) } else { 1.0 };
    let bottom = if least < 0.0 { least - room } else { 0.0 };
    let (size, margins) = form.layout(320, [SIDES.0, 40, SIDES.1, 56]);
    let frame = Frame {
        size,
        margins,
        x: counts(&profile.points),
        y: bottom..if most > 0.0 { most + room } else { room },
        label: format!(
            "Milliseconds per token saved by each layer: {} of {} layers save time on the GPU",
            bars.iter().filter(|bar| bar.1 >= 0.0).count(),
            bars.len()
        ),
    };
    sheet::draw(&frame, |sheet| {
        super::beyond(profile, sheet)?;
        sheet.values("ms per token saved", super::tick)?;
        sheet.counts(
            "order of offloading: 1 is the output head, then the layers from the last to the first",
        )?;
        sheet.legend(&[
            (Sample::Box(Ink::Gpu), "faster on the GPU"),
            (Sample::Box(Ink::Cpu), "faster on the CPU"),
        ])?;
        for &(n, saved) in &bars {
            let (ink, verb) = if saved >= 0.0 { (Ink::Gpu, "saves") } else { (Ink::Cpu, "costs") };
            let text = format!("N = {n}: this layer {verb} {} per token", ms(saved.abs()));
            sheet.column(n, text.clone())?;
            let (from, to) =
                (sheet.at(f64::from(n) - 0.38, 0.0), sheet.at(f64::from(n) + 0.38, saved));
            sheet.bar(from, to, ink, Note { gpu_layers: Some(n), text })?;
        }
        let [left, _, right, _] = sheet.edges();
        let (_, zero) = sheet.at(0.0, 0.0);
        sheet.line(&[(left, zero), (right, zero)], Ink::Muted, 1.0)
    })
}
