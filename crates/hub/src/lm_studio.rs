//! LM Studio's folders, read in place: `publisher/model/file.gguf`.

use std::path::PathBuf;

use crate::choose::{self, choose_in};
use crate::found::{Found, Origin};
use crate::name::relative;
use crate::{Error, walk};

/// Publisher, model, and a folder of parts.
const DEPTH: usize = 3;

/// The file of `publisher/model/file` (with or without `.gguf`) or `publisher/model`.
///
/// # Errors
/// No folder has it; the model's folder has no complete GGUF file.
pub(crate) fn locate(stores: &[PathBuf], name: &str) -> Result<PathBuf, Error> {
    let missing = || Error::NotInStore {
        store: "LM Studio",
        name: name.to_owned(),
        folders: stores.iter().filter(|store| store.is_dir()).cloned().collect(),
    };
    let path = relative(name).ok_or_else(missing)?;
    for store in stores {
        let as_named = store.join(&path);
        if as_named.is_file() {
            return Ok(as_named);
        }
        let with_end = store.join(format!("{name}.gguf"));
        if with_end.is_file() {
            return Ok(with_end);
        }
        if as_named.is_dir() {
            let files = walk::files(&as_named, 1);
            let chosen = choose_in(&as_named.display().to_string(), &files, None, None)?;
            return Ok(as_named.join(&chosen.files[0]));
        }
    }
    Err(missing())
}

/// Every model in the folders.
pub(crate) fn list(stores: &[PathBuf]) -> Vec<Found> {
    let of_store = |store: &PathBuf| {
        let files = walk::files(store, DEPTH);
        let named = |file: &String| {
            let parts = choose_in("", &files, Some(file), None).ok()?.files;
            let stem = &file[..file.len() - ".gguf".len()];
            Found::new(format!("lmstudio:{stem}"), Origin::LmStudio, store.join(file), &parts[1..])
        };
        let models = files.iter().filter(|file| choose::is_model(file) && choose::is_first(file));
        models.filter_map(named).collect::<Vec<Found>>()
    };
    stores.iter().flat_map(of_store).collect()
}
