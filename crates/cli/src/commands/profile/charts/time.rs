//! Breakdown of the time per token at each number of offloaded layers, as stacked bars.

use bilayer_measure::profile::{Point, Profile};

use super::ink::{Ink, Note};
use super::sheet::{self, Error, Frame, Sample};
use super::{Form, SIDES, counts, drawable, ms, top};

/// A component of the time that a token takes.
struct Component {
    ink: Ink,
    name: &'static str,
    of: fn(&Point) -> f64,
}

/// From the bottom of a bar to its top.
const COMPONENTS: [Component; 4] = [
    Component { ink: Ink::Cpu, name: "CPU", of: |p| p.cpu_ms },
    Component { ink: Ink::Gpu, name: "GPU", of: |p| p.gpu_ms },
    Component { ink: Ink::Crossing, name: "crossing", of: |p| p.crossing_ms },
    Component { ink: Ink::Idle, name: "idle", of: |p| p.idle_ms },
];

/// Draws the chart.
pub fn draw(profile: &Profile, form: Form) -> Result<String, Error> {
    let stack = |p: &Point| {
        COMPONENTS.iter().filter_map(|component| drawable((component.of)(p))).sum::<f64>()
    };
    let most = profile.points.iter().flat_map(|p| [stack(p), p.decode_ms]);
    let (size, margins) = form.layout(340, [SIDES.0, 40, SIDES.1, 56]);
    let frame = Frame {
        size,
        margins,
        x: counts(&profile.points),
        y: 0.0..top(most),
        label:
            "Milliseconds per token on the CPU, on the GPU, crossing and idle, over the number of \
                offloaded layers"
                .to_owned(),
    };
    sheet::draw(&frame, |sheet| {
        super::beyond(profile, sheet)?;
        sheet.values("ms per token", super::tick)?;
        sheet.counts("N, layers on the GPU")?;
        let mut legend: Vec<_> = COMPONENTS
            .iter()
            .map(|component| (Sample::Box(component.ink), component.name))
            .collect();
        legend.push((Sample::Line(Ink::Text), "wall-clock time"));
        sheet.legend(&legend)?;
        for point in &profile.points {
            let n = f64::from(point.gpu_layers);
            let whole = format!("N = {}: {} per token", point.gpu_layers, ms(point.decode_ms));
            sheet.column(point.gpu_layers, whole)?;
            let mut below = 0.0;
            for component in &COMPONENTS {
                let Some(time) = drawable((component.of)(point)).filter(|&time| time > 0.0) else {
                    continue;
                };
                let text = format!(
                    "N = {}: {} {} of {} per token",
                    point.gpu_layers,
                    component.name,
                    ms(time),
                    ms(point.decode_ms)
                );
                let (from, to) = (sheet.at(n - 0.38, below), sheet.at(n + 0.38, below + time));
                sheet.bar(
                    from,
                    to,
                    component.ink,
                    Note { gpu_layers: Some(point.gpu_layers), text },
                )?;
                below += time;
            }
            if let Some(decode) = drawable(point.decode_ms) {
                sheet.line(
                    &[sheet.at(n - 0.46, decode), sheet.at(n + 0.46, decode)],
                    Ink::Text,
                    2.0,
                )?;
            }
        }
        Ok(())
    })
}
