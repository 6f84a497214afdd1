//! Pages of results: self-contained HTML files of one design.

use std::io::Write;
use std::path::Path;

use minijinja::{AutoEscape, Environment, Error, UndefinedBehavior, Value};
use serde::Serialize;

use bilayer_scheduler::map::{Devices, devices};

use crate::commands::profile::css;
use crate::failure::{Failure, INTERNAL};
use crate::new_file::NewFile;

/// The style of every page, after the colours.
const STYLE: &str = include_str!("page/style.css");

/// The frame of every page, whose blocks a template fills.
const BASE: &str = include_str!("page/base.html");

/// Renders a template, which may extend `base.html`, with `css` and `style` beside the given context.
///
/// # Errors
/// The template does not match its context, which is a bug.
pub fn render(template: &str, context: Value) -> Result<String, Error> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.add_global("css", Value::from_safe_string(css()));
    environment.add_global("style", Value::from_safe_string(STYLE.to_owned()));
    environment.add_template("base.html", BASE)?;
    environment.add_template("page.html", template)?;
    environment.get_template("page.html")?.render(context)
}

/// A document for a script element, escaped.
pub fn document(of: &impl Serialize) -> Value {
    // Serializing plain data to a string cannot fail.
    let json = serde_json::to_string(of).unwrap_or_default();
    let json = json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    Value::from_safe_string(json)
}

/// Three significant digits.
pub fn short(value: f64) -> String {
    let places = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.places$}")
}

/// The class of what runs on these devices.
pub fn class_of(devices: Devices) -> &'static str {
    match devices {
        Devices::Host => "cpu",
        Devices::Offload => "gpu",
        Devices::Both => "both",
    }
}

/// The class of a bar, by the map of a placement; none for the host.
pub fn class_of_bar(map: &str) -> &'static str {
    let beside = devices(map).filter(|devices| *devices != Devices::Host);
    beside.map_or("", class_of)
}

/// Writes a page atomically.
///
/// # Errors
/// It cannot be rendered or written.
pub fn write(path: &Path, page: Result<String, Error>) -> Result<(), Failure> {
    let page = page.map_err(|error| {
        let line = format!("the page cannot be created: {error}; please report it");
        Failure::Line(INTERNAL, line)
    })?;
    let put = || {
        let mut file = NewFile::create(path)?;
        file.write_all(page.as_bytes())?;
        file.finish()
    };
    put().map_err(|error| Failure::output(path, &error))
}
