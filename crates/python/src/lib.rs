//! The native half of the Python package `bilayer`: models in threads of their own, over the library.
//!
//! **Purpose.** Converts between Python and the library. What a user sees, with its documentation, is in
//! `python/bilayer`; nothing here is called directly.
//!
//! **What it does not know.** Kernels, formats, schedules: those are asked of the library.
//!
//! **Read first.** `worker` (a model's thread), `model`, `answer`.

mod answer;
mod array;
mod error;
mod files;
mod model;
mod request;
mod settings;
mod worker;

use pyo3::prelude::*;

/// The module `bilayer._native`.
#[pymodule]
mod _native {
    use std::ffi::OsString;

    use pyo3::prelude::*;

    use crate::error::raised;
    use crate::files::flow;
    use crate::worker;

    #[pymodule_export]
    use crate::answer::Answer;
    #[pymodule_export]
    use crate::array::Array;
    #[pymodule_export]
    use crate::files::{converted, perplexity, quantized};
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::request::check_grammar;
    #[pymodule_export]
    use crate::settings::{plan, profile};

    /// Runs the command line, the program's name first; returns the exit code.
    #[pyfunction]
    fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
        py.detach(|| bilayer_cli::run(arguments))
    }

    /// The path of a model of the Hugging Face hub, downloaded unless it is cached.
    #[pyfunction]
    fn hub(py: Python<'_>, name: String) -> PyResult<String> {
        // After a signal the download ends; what has arrived is kept.
        let found = worker::cancellable(py, move |cancel| {
            let wanted: bilayer::Wanted = name.parse()?;
            bilayer::Hub::new(bilayer::Places::from_env()).fetch(&wanted, &mut |_| flow(cancel))
        })?;
        match found {
            Ok(path) => Ok(path.to_string_lossy().into_owned()),
            Err(error) => Err(raised(py, &format!("{error:#}"), error.exit_code())),
        }
    }

    /// Ends all answers and waits for their threads: a thread that outlives the interpreter could not be ended safely.
    #[pyfunction]
    fn shut_down(py: Python<'_>) {
        py.detach(worker::shut_down);
    }

    /// The names of all settings of a model.
    #[pyfunction]
    fn settings() -> Vec<&'static str> {
        crate::settings::names()
    }

    /// Name, help and default of every sampling parameter.
    #[pyfunction]
    fn parameters() -> Vec<(String, String, String)> {
        crate::settings::parameters()
    }
}
