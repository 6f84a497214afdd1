//! Quantizes and converts files, and measures perplexity.

use std::ops::ControlFlow;
use std::path::PathBuf;

use bilayer::quantize::{Job, Method, Quantize};
use bilayer::{Cancel, convert, quantize};
use pyo3::prelude::*;

use crate::error::{self, INTERRUPTED, raised};
use crate::settings::Settings;
use crate::worker;

/// The exception for an error of making a file.
fn failed(py: Python<'_>, error: &quantize::Error) -> PyErr {
    raised(py, &format!("{error:#}{:#}", error.advice()), error.exit_code() as u8)
}

/// Does `work` until a signal cancels it.
fn done<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel) -> Result<T, quantize::Error> + Send + 'static,
) -> PyResult<T> {
    worker::stoppable(py, work)?.map_err(|error| failed(py, &error))
}

/// Whether work goes on.
pub fn flow(cancel: &Cancel) -> ControlFlow<()> {
    if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Quantizes a file; the bytes of its tensors before and after.
#[pyfunction]
pub fn quantized(
    py: Python<'_>,
    files: (PathBuf, PathBuf, Option<PathBuf>),
    ty: String,
    options: (bool, Option<usize>),
) -> PyResult<(u64, u64)> {
    let (requantize, threads) = options;
    done(py, move |cancel| {
        let quantize = Quantize { requantize, threads, ..Quantize::new(quantize::mix(&ty)?) };
        let (input, out, imatrix) = &files;
        let method = Method::Blocks { imatrix: imatrix.as_deref() };
        let job = Job { method, ..Job::new(input, out, quantize) };
        let done = job.run(&mut |_| flow(cancel))?;
        Ok((done.from_bytes, done.to_bytes))
    })
}

/// Converts a checkpoint; the bytes of its tensors.
#[pyfunction]
pub fn converted(
    py: Python<'_>,
    files: (PathBuf, PathBuf),
    ty: Option<String>,
    options: (bool, Option<usize>),
) -> PyResult<u64> {
    let (no_vocab, threads) = options;
    done(py, move |cancel| {
        let outtype = ty.as_deref().map(convert::outtype).transpose()?;
        let convert = convert::Convert { outtype, no_vocab, threads, ..Default::default() };
        let (folder, out) = &files;
        let plan = convert.plan(folder)?;
        plan.write(out, &mut |_, _| flow(cancel))?;
        Ok(plan.bytes())
    })
}

/// The perplexity of a text with its standard error, and how many tokens were scored.
#[pyfunction]
pub fn perplexity(
    py: Python<'_>,
    path: PathBuf,
    text: String,
    settings: Settings,
) -> PyResult<(f64, f64, usize)> {
    let score = move |cancel: &Cancel| settings.builder(path, cancel)?.perplexity(&text);
    let report = worker::cancellable(py, score)?.map_err(|error| error::of(py, &error))?;
    let estimate = report.ok_or_else(|| raised(py, "interrupted", INTERRUPTED))?.estimate;
    let perplexity = estimate.perplexity();
    Ok((perplexity.value, perplexity.error, estimate.count()))
}
