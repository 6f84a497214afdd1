//! `--trace FILE`: writes a trace for Perfetto and Chrome.

use std::io::Write;
use std::path::Path;

use bilayer_engine::session::Session;
use bilayer_measure::trace::Timeline;

use crate::failure::{Failure, INTERNAL};
use crate::new_file::NewFile;
use crate::output;

/// Capacity in events: some hundred steps of a large model.
pub const EVENTS: usize = 1 << 18;

/// Writes a session's trace.
pub fn write(session: &Session, path: &Path) -> Result<(), Failure> {
    let Some(trace) = session.trace() else { return Ok(()) };
    let document = Timeline::new(trace).chrome(&|node| session.label(node));
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
