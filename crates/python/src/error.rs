//! Errors of the library as Python's exceptions.

use bilayer::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// An invalid call.
pub const USAGE: u8 = bilayer::Exit::Usage as u8;
/// An internal error.
pub const INTERNAL: u8 = bilayer::Exit::Internal as u8;
/// Something that a signal or another thread ended.
pub const INTERRUPTED: u8 = bilayer::Exit::Interrupted as u8;

/// The exception for a message and an exit code; `bilayer._errors` chooses its class.
pub fn raised(py: Python<'_>, message: &str, code: u8) -> PyErr {
    let made = || py.import("bilayer._errors")?.getattr("made")?.call1((message, code));
    match made() {
        Ok(exception) => PyErr::from_value(exception),
        // The package's Python files are missing.
        Err(_) => PyRuntimeError::new_err(message.to_owned()),
    }
}

/// The exception for an error of the library.
pub fn of(py: Python<'_>, error: &Error) -> PyErr {
    raised(py, &bilayer::message(error), error.exit_code() as u8)
}

/// The exception for an invalid argument.
pub fn usage(py: Python<'_>, message: &str) -> PyErr {
    raised(py, message, USAGE)
}
