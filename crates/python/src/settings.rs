//! Settings of a model as Python gives them; plans and profiles, which need no open model.

use std::path::PathBuf;

use bilayer::settings::Value;
use bilayer::{Builder, Cancel, Error, Model, Parameter, ProfileOptions};
use pyo3::prelude::*;

use crate::error::{self, INTERNAL, INTERRUPTED, raised, usage};
use crate::worker;

/// A value of a setting.
#[derive(FromPyObject)]
enum Given {
    #[pyo3(transparent, annotation = "bool")]
    Flag(bool),
    #[pyo3(transparent, annotation = "int")]
    Whole(i64),
    #[pyo3(transparent, annotation = "float")]
    Number(f64),
    #[pyo3(transparent, annotation = "str")]
    Text(String),
    /// Also a path that is not Unicode.
    #[pyo3(transparent, annotation = "os.PathLike")]
    Path(PathBuf),
    #[pyo3(transparent, annotation = "list")]
    List(Vec<Given>),
}

impl From<Given> for Value {
    fn from(given: Given) -> Value {
        match given {
            Given::Flag(flag) => flag.into(),
            Given::Whole(number) => number.into(),
            Given::Number(number) => number.into(),
            Given::Text(text) => text.into(),
            Given::Path(path) => path.into(),
            Given::List(values) => values.into(),
        }
    }
}

/// Settings of a model by name; those that are left out have their defaults.
#[derive(FromPyObject)]
#[pyo3(transparent)]
pub struct Settings(Vec<(String, Given)>);

impl Settings {
    /// The builder of the library.
    ///
    /// # Errors
    /// A value that a setting cannot have.
    pub fn builder(self, path: PathBuf, cancel: &Cancel) -> Result<Builder<'static>, Error> {
        let builder = Model::builder(path).cancel(cancel);
        self.0.into_iter().try_fold(builder, |builder, (name, value)| builder.set(&name, value))
    }
}

/// The names of all settings.
pub fn names() -> Vec<&'static str> {
    bilayer::settings::names().collect()
}

/// The sampling parameter of a name.
///
/// # Errors
/// There is none of that name.
pub fn parameter(py: Python<'_>, name: &str) -> PyResult<&'static Parameter> {
    let mut all = bilayer::parameters();
    let found = all.find(|parameter| parameter.name == name);
    found.ok_or_else(|| usage(py, &format!("{name}: no sampling parameter")))
}

/// Name, help and default of every sampling parameter.
pub fn parameters() -> Vec<(String, String, String)> {
    let usual = bilayer::Sampling::default();
    let row = |p: &'static Parameter| (p.name.to_owned(), p.help.to_owned(), p.text(&usual));
    bilayer::parameters().map(row).collect()
}

/// What would run where: as text, and as JSON.
#[pyfunction]
pub fn plan(py: Python<'_>, path: PathBuf, settings: Settings) -> PyResult<(String, String)> {
    let planned = worker::beside(py, move || settings.builder(path, &Cancel::new())?.plan())?;
    let plan = planned.map_err(|error| error::of(py, &error))?;
    Ok((plan.to_string(), json(py, &plan)?))
}

/// Measures a model at every number of layers on the GPU: the profile as JSON.
#[pyfunction]
pub fn profile(
    py: Python<'_>,
    path: PathBuf,
    settings: Settings,
    options: (Option<usize>, Option<usize>, usize),
) -> PyResult<String> {
    let (prompt, decode, rounds) = options;
    let options = ProfileOptions { prompt, decode, rounds };
    let take = move |cancel: &Cancel| settings.builder(path, cancel)?.profile(options);
    let profile = worker::cancellable(py, take)?.map_err(|error| error::of(py, &error))?;
    let profile = profile.ok_or_else(|| raised(py, "interrupted", INTERRUPTED))?;
    json(py, &profile)
}

/// A value as JSON.
pub fn json(py: Python<'_>, value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| raised(py, &error.to_string(), INTERNAL))
}
