//! A drawing surface for charts: plotters' SVG backend with our colours, captions, axes and legend.

use std::io;
use std::ops::Range;

use plotters::chart::ChartBuilder;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Cartesian2d, Circle, DrawingArea, DrawingAreaErrorKind, FontStyle, IntoDrawingArea, IntoFont,
    PathElement, Ranged, Rectangle, SVGBackend, Text,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontTransform, ShapeStyle};

use super::ink::{self, Ink, Note};

/// Units of plotters' integer coordinates per pixel, so that bars of eighty layers have equal width.
const SCALE: u32 = 10;

/// plotters divides font sizes by this.
const FONT: f64 = 1.24;

/// Approximate width of a character relative to the font size of common sans-serif fonts; layouts tolerate errors of
/// some tenths.
const CHARACTER: f64 = 0.55;

/// Height of a line of small text, pixels.
const LINE: f64 = 15.0;

/// A drawing error, which is always a bug, since the drawing is in memory.
pub type Error = DrawingAreaErrorKind<io::Error>;

/// A position in pixels from the upper left.
pub type Pixel = (f64, f64);

/// Size and scales of a chart.
pub struct Frame {
    /// Width and height in pixels.
    pub size: (u32, u32),
    /// Left, top, right and bottom margin of the plot, pixels.
    pub margins: [u32; 4],
    pub x: Range<f64>,
    pub y: Range<f64>,
    /// A description for screen readers.
    pub label: String,
}

/// The style of a text.
#[derive(Clone, Copy)]
pub struct Style {
    pub ink: Ink,
    /// Pixels.
    pub size: f64,
    pub weight: FontStyle,
    pub anchor: HPos,
    /// Written upwards.
    pub turned: bool,
}

impl Style {
    /// Small and muted, starting at its position.
    pub const QUIET: Style = Style {
        ink: Ink::Muted,
        size: 12.0,
        weight: FontStyle::Normal,
        anchor: HPos::Left,
        turned: false,
    };
    /// Prominent.
    pub const LOUD: Style =
        Style { ink: Ink::Text, size: 13.0, weight: FontStyle::Bold, ..Style::QUIET };
}

/// A legend entry.
pub enum Sample {
    Box(Ink),
    Line(Ink),
}

/// A chart under construction.
pub struct Sheet<'a> {
    root: DrawingArea<SVGBackend<'a>, Shift>,
    plot: DrawingArea<SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>,
    notes: Vec<Note>,
    frame: &'a Frame,
}

/// Draws a chart; the result is an `svg` element for a page.
pub fn draw(
    frame: &Frame,
    body: impl FnOnce(&mut Sheet) -> Result<(), Error>,
) -> Result<String, Error> {
    let mut drawing = String::new();
    let (width, height) = (frame.size.0 * SCALE, frame.size.1 * SCALE);
    let backend = SVGBackend::with_string(&mut drawing, (width, height));
    let notes = fill(backend.into_drawing_area(), frame, body)?;
    Ok(ink::dress(&drawing, &notes, (width, height, SCALE), &frame.label))
}

/// Draws on `root`, and returns the captions of its marks.
fn fill<'a>(
    root: DrawingArea<SVGBackend<'a>, Shift>,
    frame: &'a Frame,
    body: impl FnOnce(&mut Sheet) -> Result<(), Error>,
) -> Result<Vec<Note>, Error> {
    let [left, top, right, bottom] = frame.margins.map(|pixels| pixels * SCALE);
    let plot = ChartBuilder::on(&root)
        .margin_left(left)
        .margin_top(top)
        .margin_right(right)
        .margin_bottom(bottom)
        .build_cartesian_2d(frame.x.clone(), frame.y.clone())?
        .plotting_area()
        .clone();
    let mut sheet = Sheet { root, plot, notes: Vec::new(), frame };
    let (width, height) = frame.size;
    sheet.rect((0.0, 0.0), (f64::from(width), f64::from(height)), Ink::Surface)?;
    body(&mut sheet)?;
    sheet.root.present()?;
    Ok(sheet.notes)
}

/// Pixels to plotters' units.
fn units((x, y): Pixel) -> (i32, i32) {
    let scaled = |pixels: f64| (pixels * f64::from(SCALE)).round() as i32;
    (scaled(x), scaled(y))
}

/// The approximate width of a text.
pub fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * CHARACTER
}

impl Sheet<'_> {
    /// The position of a value.
    pub fn at(&self, x: f64, y: f64) -> Pixel {
        let (x, y) = self.plot.map_coordinate(&(x, y));
        (f64::from(x) / f64::from(SCALE), f64::from(y) / f64::from(SCALE))
    }

    /// Left, top, right and bottom of the plot.
    pub fn edges(&self) -> [f64; 4] {
        let (left, bottom) = self.at(self.frame.x.start, self.frame.y.start);
        let (right, top) = self.at(self.frame.x.end, self.frame.y.end);
        [left, top, right, bottom]
    }

    /// A filled rectangle between two corners.
    pub fn rect(&self, from: Pixel, to: Pixel, ink: Ink) -> Result<(), Error> {
        self.filled(from, to, ink::key(ink, 0).filled())
    }

    /// A filled rectangle with a caption.
    pub fn bar(&mut self, from: Pixel, to: Pixel, ink: Ink, note: Note) -> Result<(), Error> {
        self.notes.push(note);
        self.filled(from, to, ink::key(ink, self.notes.len()).filled())
    }

    /// A rectangle from its upper left corner, with a minimum visible width.
    fn filled(&self, from: Pixel, to: Pixel, style: ShapeStyle) -> Result<(), Error> {
        let (a, b) = (units(from), units(to));
        let upper = (a.0.min(b.0), a.1.min(b.1));
        let lower = (a.0.max(b.0).max(upper.0 + 1), a.1.max(b.1).max(upper.1 + 1));
        self.root.draw(&Rectangle::new([upper, lower], style))
    }

    /// The strip of the plot over a number of layers, as a hover target.
    pub fn column(&mut self, gpu_layers: u32, text: String) -> Result<(), Error> {
        let [_, top, _, bottom] = self.edges();
        let from = (self.at(f64::from(gpu_layers) - 0.5, 0.0).0, top);
        let to = (self.at(f64::from(gpu_layers) + 0.5, 0.0).0, bottom);
        self.bar(from, to, Ink::Hidden, Note { gpu_layers: Some(gpu_layers), text })
    }

    /// A line through pixels.
    pub fn line(&self, through: &[Pixel], ink: Ink, width: f64) -> Result<(), Error> {
        let points: Vec<(i32, i32)> = through.iter().copied().map(units).collect();
        let style = ink::key(ink, 0).stroke_width((width * f64::from(SCALE)) as u32);
        self.root.draw(&PathElement::new(points, style))
    }

    /// A filled circle with a caption.
    pub fn dot(&mut self, at: Pixel, radius: f64, ink: Ink, note: Note) -> Result<(), Error> {
        self.notes.push(note);
        let radius = (radius * f64::from(SCALE)) as i32;
        let style = ink::key(ink, self.notes.len()).filled();
        self.root.draw(&Circle::new(units(at), radius, style))
    }

    /// A circle that is not filled.
    pub fn ring(&self, at: Pixel, radius: f64, ink: Ink) -> Result<(), Error> {
        let radius = (radius * f64::from(SCALE)) as i32;
        let style = ink::key(ink, 0).stroke_width(2 * SCALE);
        self.root.draw(&Circle::new(units(at), radius, style))
    }

    /// A text, in the middle of its line's height.
    pub fn text(&self, at: Pixel, text: &str, style: Style) -> Result<(), Error> {
        let size = style.size * f64::from(SCALE) * FONT;
        let turn = if style.turned { FontTransform::Rotate270 } else { FontTransform::None };
        let font = ("sans-serif", size).into_font().style(style.weight).transform(turn);
        let style = font.color(&ink::key(style.ink, 0)).pos(Pos::new(style.anchor, VPos::Center));
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.root.draw(&Text::new(text, units(at), style))
    }

    /// Axis values beside the plot with grid lines; `format` formats them, `title` is the axis label.
    pub fn values(&self, title: &str, format: impl Fn(f64) -> String) -> Result<(), Error> {
        self.values_at(&self.ticks(), title, format)
    }

    /// Round values along the vertical axis.
    pub fn ticks(&self) -> Vec<f64> {
        RangedCoordf64::from(self.frame.y.clone()).key_points(6usize)
    }

    /// [`Sheet::values`] at given places.
    pub fn values_at(
        &self,
        ticks: &[f64],
        title: &str,
        format: impl Fn(f64) -> String,
    ) -> Result<(), Error> {
        let [left, top, right, bottom] = self.edges();
        let mut widest = 0.0_f64;
        for &tick in ticks {
            let (_, y) = self.at(self.frame.x.start, tick);
            self.line(&[(left, y), (right, y)], Ink::Grid, 1.0)?;
            let style = Style { anchor: HPos::Right, ..Style::QUIET };
            let value = format(tick);
            self.text((left - 10.0, y), &value, style)?;
            widest = widest.max(width(&value, style.size));
        }
        let style = Style { anchor: HPos::Center, turned: true, ..Style::QUIET };
        // In the middle of its line, which ends before the values.
        let x = (left - 10.0 - widest - LINE / 2.0).clamp(LINE / 2.0, 14.0);
        self.text((x, (top + bottom) / 2.0), title, style)
    }

    /// A second scale of the same values, at the right.
    pub fn values_right(
        &self,
        ticks: &[f64],
        title: &str,
        format: impl Fn(f64) -> String,
    ) -> Result<(), Error> {
        let [_, top, right, bottom] = self.edges();
        for &tick in ticks {
            let (_, y) = self.at(self.frame.x.start, tick);
            self.text((right + 8.0, y), &format(tick), Style::QUIET)?;
        }
        let style = Style { anchor: HPos::Center, turned: true, ..Style::QUIET };
        let edge = f64::from(self.frame.size.0) - 8.0;
        self.text((edge, (top + bottom) / 2.0), title, style)
    }

    /// Numbers of offloaded layers below the plot.
    pub fn counts(&self, title: &str) -> Result<(), Error> {
        let all = self.frame.x.end.floor() as u32;
        let labels = (0..=all).map(|n| (f64::from(n), n.to_string())).collect();
        self.labels(labels, title)
    }

    /// Labels below the plot, as many of them as there is room for, and the axis label.
    pub fn labels(&self, labels: Vec<(f64, String)>, title: &str) -> Result<(), Error> {
        let [left, _, right, bottom] = self.edges();
        let most = (right - left) / 44.0;
        let steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];
        let step = steps.into_iter().find(|&step| (labels.len() / step) as f64 <= most);
        for (x, label) in labels.into_iter().step_by(step.unwrap_or(1000)) {
            let (x, _) = self.at(x, self.frame.y.start);
            let style = Style { anchor: HPos::Center, ..Style::QUIET };
            self.text((x, bottom + 16.0), &label, style)?;
        }
        self.title(title, 38.0)
    }

    /// The label of the horizontal axis, from so far below the plot, in as many lines as it needs.
    pub fn title(&self, title: &str, below: f64) -> Result<(), Error> {
        let [left, _, right, bottom] = self.edges();
        let mut lines = vec![String::new()];
        for word in title.split(' ') {
            let last = lines.last_mut().expect("there is a line");
            let longer = format!("{last}{}{word}", if last.is_empty() { "" } else { " " });
            match width(&longer, Style::QUIET.size) <= right - left || last.is_empty() {
                true => *last = longer,
                false => lines.push(word.to_owned()),
            }
        }
        let style = Style { anchor: HPos::Center, ..Style::QUIET };
        for (number, line) in lines.iter().enumerate() {
            let y = bottom + below + LINE * number as f64;
            self.text(((left + right) / 2.0, y), line, style)?;
        }
        Ok(())
    }

    /// The legend, in rows at the top.
    pub fn legend(&self, entries: &[(Sample, &str)]) -> Result<(), Error> {
        let [left, ..] = self.edges();
        let (mut x, mut y) = (left, 16.0);
        for (sample, name) in entries {
            let needed = 33.0 + width(name, Style::QUIET.size);
            if x > left && x + needed > f64::from(self.frame.size.0) {
                (x, y) = (left, y + LINE + 3.0);
            }
            let wide = match sample {
                Sample::Box(ink) => {
                    self.rect((x, y - 6.0), (x + 12.0, y + 6.0), *ink)?;
                    12.0
                }
                Sample::Line(ink) => {
                    self.line(&[(x, y), (x + 26.0, y)], *ink, 2.5)?;
                    26.0
                }
            };
            self.text((x + wide + 7.0, y), name, Style::QUIET)?;
            x += wide + 7.0 + width(name, Style::QUIET.size) + 22.0;
        }
        Ok(())
    }
}
