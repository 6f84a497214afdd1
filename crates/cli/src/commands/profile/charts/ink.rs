//! The colours of the charts by meaning, in light and dark themes.
//!
//! plotters writes one colour per element and supports neither style sheets nor captions. A chart is therefore drawn
//! with keys in place of colours (red: the ink, green and blue: the caption), and `dress` replaces each key by a class
//! that follows the reader's theme, with the light colour as an attribute for viewers without style sheets.

use std::fmt::Write;

use plotters::style::RGBColor;

/// The meaning of a colour.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// The background.
    Surface,
    /// Text and emphasized lines.
    Text,
    /// Secondary text, axes.
    Muted,
    /// Grid lines.
    Grid,
    /// A shaded region.
    Shade,
    /// The CPU.
    Cpu,
    /// The GPU.
    Gpu,
    /// Transfers of hidden states.
    Crossing,
    /// No device is working.
    Idle,
    /// Predictions; lines are dashed.
    Predicted,
    /// Invisible hover targets.
    Hidden,
}

/// Class, light and dark colour, in the order of `Ink`. Text has a contrast of 4.5:1 and marks of 3:1 with the surface
/// of their theme (WCAG 2.2, 1.4.3 and 1.4.11); orange and blue are distinguishable with every kind of colour vision.
const LOOKS: [(Ink, &str, &str, &str); 11] = [
    (Ink::Surface, "surface", "#ffffff", "#15181e"),
    (Ink::Text, "text", "#16181d", "#eceef2"),
    (Ink::Muted, "muted", "#5a606c", "#a3aab8"),
    (Ink::Grid, "grid", "#e4e6eb", "#2b303a"),
    (Ink::Shade, "shade", "#f1f2f5", "#1f232b"),
    (Ink::Cpu, "cpu", "#cf5a0a", "#f7a04b"),
    (Ink::Gpu, "gpu", "#2457d6", "#74a4ff"),
    (Ink::Crossing, "crossing", "#b0309b", "#ec86db"),
    (Ink::Idle, "idle", "#8e95a3", "#697180"),
    (Ink::Predicted, "predicted", "#5a606c", "#a3aab8"),
    (Ink::Hidden, "hidden", "#16181d", "#eceef2"),
];

/// What a mark says when it is pointed at.
pub struct Note {
    /// The number of offloaded layers it belongs to.
    pub gpu_layers: Option<u32>,
    pub text: String,
}

/// The key of an ink and a caption (counted from 1, 0 is none); captions beyond 16 bits are dropped.
pub fn key(ink: Ink, note: usize) -> RGBColor {
    let [high, low] = u16::try_from(note).unwrap_or(0).to_be_bytes();
    RGBColor(ink as u8, high, low)
}

/// Style sheet: the colours of both themes and the classes that use them.
pub fn css() -> String {
    let (mut light, mut dark, mut classes) = (String::new(), String::new(), String::new());
    for (_, name, day, night) in LOOKS {
        // Writing to a string cannot fail.
        let _ = write!(light, "--{name}:{day};");
        let _ = write!(dark, "--{name}:{night};");
        let _ = write!(classes, ".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}");
    }
    format!(
        ":root{{color-scheme:light dark;{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n\
         {classes}\n.mark:hover:not(.f-hidden){{opacity:.75}}\n"
    )
}

/// The chart as it goes into a page. `drawing` is what plotters wrote, of `width` and `height` in its units, of which
/// `scale` make a pixel; `label` is for those who do not see it.
pub fn dress(
    drawing: &str,
    notes: &[Note],
    (width, height, scale): (u32, u32, u32),
    label: &str,
) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{}\" height=\"{}\" \
         role=\"img\" aria-label=\"{}\">\n",
        width / scale,
        height / scale,
        escaped(label)
    );
    for line in drawing.lines().skip(1) {
        svg += &dressed(line, notes);
        svg.push('\n');
    }
    svg
}

/// The chart as a file of its own, with its style sheet.
pub fn alone(svg: &str) -> String {
    let style = format!("<style>{}text{{font-family:system-ui,sans-serif}}</style>", css());
    match svg.split_once('\n') {
        Some((opening, rest)) => format!("{opening}\n{style}\n{rest}"),
        None => svg.to_owned(),
    }
}

/// A line of the drawing, which is an element, a text or an end.
fn dressed(line: &str, notes: &[Note]) -> String {
    let mut line = line.replace(" opacity=\"1\"", "");
    // Quotes inside texts are escaped, so this is found in attributes only.
    for (attribute, prefix) in [("fill", "f"), ("stroke", "s")] {
        let opening = format!(" {attribute}=\"#");
        let Some(at) = line.find(&opening) else { continue };
        let digits = at + opening.len();
        let Ok(key) = u32::from_str_radix(line.get(digits..digits + 6).unwrap_or_default(), 16)
        else {
            continue;
        };
        let Some((ink, name, light, _)) = LOOKS.get((key >> 16) as usize) else { continue };
        let note = (key as usize & 0xffff).checked_sub(1).and_then(|index| notes.get(index));
        let mark = if note.is_some() { " mark" } else { "" };
        let number = note.and_then(|note| note.gpu_layers);
        let number = number.map_or(String::new(), |n| format!(" data-n=\"{n}\""));
        let more = match ink {
            Ink::Predicted if prefix == "s" => " stroke-dasharray=\"60 45\"",
            Ink::Hidden => " fill-opacity=\"0\"",
            _ => "",
        };
        let instead =
            format!(" class=\"{prefix}-{name}{mark}\" {attribute}=\"{light}\"{number}{more}");
        line.replace_range(at..digits + 7, &instead);
        if let (Some(note), Some(element)) = (note, line.strip_suffix("/>")) {
            let tag = element[1..].split(' ').next().unwrap_or_default().to_owned();
            line = format!("{element}><title>{}</title></{tag}>", escaped(&note.text));
        }
        return line;
    }
    line
}

/// Escapes text for elements and attributes; control characters, which XML forbids, become spaces.
fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut safe, c| {
        match c {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => safe.push(' '),
            c => safe.push(c),
        }
        safe
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance of sRGB (WCAG 2.2).
    fn luminance(colour: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn inks_stand_out_from_the_surface_in_both_themes() {
        let (_, _, light, dark) = LOOKS[Ink::Surface as usize];
        for (ink, name, day, night) in LOOKS {
            let least = match ink {
                Ink::Surface | Ink::Grid | Ink::Shade | Ink::Hidden => continue,
                Ink::Text | Ink::Muted | Ink::Predicted => 4.5,
                _ => 3.0,
            };
            for (colour, surface) in [(day, light), (night, dark)] {
                let found = contrast(colour, surface);
                assert!(found >= least, "{name} {colour} on {surface}: {found:.2}");
            }
        }
    }

    #[test]
    fn looks_stand_in_the_order_of_inks() {
        for (index, (ink, ..)) in LOOKS.iter().enumerate() {
            assert_eq!(*ink as usize, index);
        }
    }

    #[test]
    fn keys_become_classes_and_captions() {
        let notes = [Note { gpu_layers: Some(3), text: "a < b".to_owned() }];
        let cases = [
            (
                "<rect x=\"1\" opacity=\"1\" fill=\"#050001\" stroke=\"none\"/>",
                "<rect x=\"1\" class=\"f-cpu mark\" fill=\"#cf5a0a\" data-n=\"3\" stroke=\"none\"><title>a &lt; b</title></rect>",
            ),
            (
                "<line stroke=\"#030000\" x1=\"0\"/>",
                "<line class=\"s-grid\" stroke=\"#e4e6eb\" x1=\"0\"/>",
            ),
            ("text with fill=&quot;#050001&quot;", "text with fill=&quot;#050001&quot;"),
            ("</text>", "</text>"),
        ];
        for (drawn, expected) in cases {
            assert_eq!(dressed(drawn, &notes), expected);
        }
    }
}
