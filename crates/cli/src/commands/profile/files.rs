//! The files of a profile: the document, the charts and the page.

use std::io::Write;
use std::path::{Path, PathBuf};

use bilayer_measure::profile::Profile;

use super::charts::{self, Charts, Form};
use super::page;
use crate::failure::{Failure, INTERNAL};
use crate::new_file::NewFile;

/// Writes `profile.json`, the charts as SVG and `profile.html` to `folder`, which is created if necessary, and returns
/// their paths. Each file is written atomically.
///
/// # Errors
/// The folder cannot be created or written to.
pub fn write(profile: &Profile, folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    std::fs::create_dir_all(folder).map_err(|error| Failure::output(folder, &error))?;
    let drawn = |form| Charts::draw(profile, form).map_err(|error| fault("a chart", &error));
    let (charts, narrow) = (drawn(Form::Wide)?, drawn(Form::Narrow)?);
    let document =
        serde_json::to_string_pretty(profile).map_err(|error| fault("the document", &error))?;
    let page =
        page::html(profile, [&charts, &narrow]).map_err(|error| fault("the page", &error))?;
    let mut files = vec![("profile.json".to_owned(), document + "\n")];
    let svg = |(name, svg): &(&str, String)| (format!("{name}.svg"), charts::alone(svg));
    files.extend(charts.named.iter().map(svg));
    files.push(("profile.html".to_owned(), page));
    let mut written = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        let put = || {
            let mut file = NewFile::create(&path)?;
            file.write_all(text.as_bytes())?;
            file.finish()
        };
        put().map_err(|error| Failure::output(&path, &error))?;
        written.push(path);
    }
    Ok(written)
}

fn fault(what: &str, error: &dyn std::error::Error) -> Failure {
    Failure::Line(
        INTERNAL,
        format!("{what} of the profile cannot be created: {error}; please report it"),
    )
}
