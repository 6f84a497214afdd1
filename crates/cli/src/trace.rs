//! `--trace FILE`: writes a trace for Perfetto and Chrome.

use std::io::Write;
use std::path::Path;

use bilayer_engine::session::Session;
use bilayer_measure::trace::{Names, Timeline};

use crate::failure::{Failure, INTERNAL};
use crate::new_file::NewFile;
use crate::{output, version};

/// Capacity in events: some hundred steps of a large model.
pub const EVENTS: usize = 1 << 18;

/// Checks before the work that the file can be written.
///
/// # Errors
/// The folder is missing or cannot be written to.
pub fn check(path: Option<&Path>) -> Result<(), Failure> {
    let Some(path) = path else { return Ok(()) };
    NewFile::create(path).map(drop).map_err(|error| Failure::output(path, &error))
}

/// Writes a session's trace.
pub fn write(session: &Session, path: &Path) -> Result<(), Failure> {
    let Some(trace) = session.trace() else { return Ok(()) };
    let names = Names::of(session);
    let devices: Vec<&str> = session.plan().devices.iter().map(|d| d.name.as_str()).collect();
    let about = [
        ("model", format!("bilayer {}", session.model().file().name())),
        ("build", format!("{} {}", env!("CARGO_PKG_VERSION"), version::COMMIT)),
        ("placement", session.plan().map.clone()),
        ("devices", devices.join(", ")),
    ];
    let document = Timeline::new(trace).chrome(&names, &about);
    let text = serde_json::to_vec(&document).map_err(|error| {
        Failure::Line(INTERNAL, format!("the trace cannot be written as JSON: {error}"))
    })?;
    let put = || {
        let mut file = NewFile::create(path)?;
        file.write_all(&text)?;
        file.finish()
    };
    put().map_err(|error| Failure::output(path, &error))?;
    if trace.dropped() > 0 {
        let dropped = trace.dropped();
        output::note(&format!(
            "the trace has the last {EVENTS} events; {dropped} older ones were dropped"
        ));
    }
    Ok(())
}
