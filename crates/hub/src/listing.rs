//! What is on the machine: every model in the cache, in other programs' stores and in folders, with its name.

use std::io;
use std::path::{Path, PathBuf};

use crate::cache::HubCache;
use crate::choose::{self, choose, choose_in};
use crate::found::{Found, Origin};
use crate::name::{Repo, Wanted};
use crate::{Places, lm_studio, ollama, walk};

/// How alike names must be to be offered in place of one that is not there, from 0 to 1.
const ALIKE: f64 = 0.85;

/// Most names that are offered.
const NEAR_MOST: usize = 3;

/// Every complete model in the places and in `folders`, in this order: cache, LM Studio, ollama, folders.
pub fn list(places: &Places, folders: &[PathBuf]) -> Vec<Found> {
    let cache = places.cache.clone().map(HubCache::new);
    let mut found: Vec<Found> = cache
        .iter()
        .flat_map(|cache| cache.repos().into_iter().flat_map(|repo| of_repo(cache, &repo)))
        .collect();
    found.extend(lm_studio::list(&places.lm_studio));
    found.extend(ollama::list(&places.ollama));
    found.extend(folders.iter().flat_map(|folder| of_folder(folder)));
    found
}

/// The models of a repository: those of its first snapshot that has any.
fn of_repo(cache: &HubCache, repo: &Repo) -> Vec<Found> {
    for snapshot in cache.snapshots(repo) {
        let named = |file: &String| {
            let parts = choose_in("", &snapshot.files, Some(file), None).ok()?.files;
            let path = cache.checked(&snapshot.folder, &parts).ok()?;
            let by_quant = Wanted { repo: repo.clone(), quant: choose::quant(file), file: None };
            let finds = by_quant.quant.is_some()
                && choose(&snapshot.files, &by_quant).is_ok_and(|chosen| chosen.files == parts);
            let by_file = || Wanted { quant: None, file: Some(file.clone()), ..by_quant.clone() };
            let wanted = if finds { by_quant.clone() } else { by_file() };
            Found::new(format!("hf:{wanted}"), Origin::HuggingFace, path, &parts[1..])
        };
        let models = snapshot.files.iter();
        let models = models.filter(|file| choose::is_model(file) && choose::is_first(file));
        let found: Vec<Found> = models.filter_map(named).collect();
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// The models of a folder as llama-server offers them: its GGUF files and those of the folders in it, of several shards the
/// first, without projectors. A model that has a folder of its own has its name, any other that of its file.
///
/// # Errors
/// The folder cannot be read; folders in it that cannot be are left out.
pub fn in_folder(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let files = walk::read(folder, 1)?;
    let is_offered = |path: &&String| {
        let file = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
        file.ends_with(".gguf") && !file.starts_with("mmproj") && choose::is_first(path)
    };
    let models: Vec<&String> = files.iter().filter(is_offered).collect();
    let named = |path: &&String| {
        let inner = path.split_once('/').map(|(inner, _)| inner);
        let is_beside = |other: &&String| other.split_once('/').map(|(of, _)| of) == inner;
        let is_alone = models.iter().filter(|other| is_beside(other)).count() == 1;
        let name = match inner.filter(|_| is_alone) {
            Some(inner) => inner.to_owned(),
            None => stem(path),
        };
        (name, folder.join(path))
    };
    Ok(models.iter().map(named).collect())
}

/// The name of a model's file without its ending and the numbers of its shards.
pub fn stem(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let whole = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    choose::part(file).map_or(whole, |(stem, ..)| stem).to_owned()
}

/// Every complete model in a folder and the folders in it, named by its path.
fn of_folder(folder: &Path) -> Vec<Found> {
    let files = walk::files(folder, 1);
    let named = |file: &String| {
        let parts = choose_in("", &files, Some(file), None).ok()?.files;
        let path = folder.join(file);
        Found::new(path.display().to_string(), Origin::Folder, path, &parts[1..])
    };
    let models = files.iter().filter(|file| choose::is_model(file) && choose::is_first(file));
    models.filter_map(named).collect()
}

/// The names among `found` that are most like `name`, the nearest first.
pub fn near(name: &str, found: &[Found]) -> Vec<String> {
    let asked = plain(name);
    let mut alike: Vec<(f64, &str)> = Vec::new();
    for Found { name, .. } in found {
        let whole = plain(name);
        let last = whole.rsplit('/').next().unwrap_or_default();
        let likeness = if asked.len() >= 3 && whole.contains(&asked) {
            1.0
        } else {
            strsim::jaro_winkler(&asked, &whole).max(strsim::jaro_winkler(&asked, last))
        };
        if likeness >= ALIKE {
            alike.push((likeness, name));
        }
    }
    alike.sort_by(|a, b| b.0.total_cmp(&a.0));
    alike.into_iter().take(NEAR_MOST).map(|(_, name)| name.to_owned()).collect()
}

/// A name in small letters without its store and file ending.
fn plain(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let stores = ["hf:", "ollama:", "lmstudio:"];
    let name = stores.iter().find_map(|store| name.strip_prefix(store)).unwrap_or(&name);
    name.trim_end_matches(".gguf").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_parts_and_misspellings() {
        let names =
            ["ollama:llama3.2:1b", "hf:ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "/m/phi-4.gguf"];
        let found: Vec<Found> = names
            .iter()
            .map(|name| Found {
                name: (*name).to_owned(),
                origin: Origin::Folder,
                path: PathBuf::new(),
                bytes: 0,
            })
            .collect();
        assert_eq!(near("llama3.2", &found), [names[0]]);
        assert_eq!(near("gemma-3-1b", &found), [names[1]]);
        assert_eq!(near("ph-4.gguf", &found), [names[2]]);
        assert!(near("mistral", &found).is_empty());
    }

    #[test]
    fn a_model_with_a_folder_of_its_own_has_its_name() {
        let folder = tempfile::tempdir().unwrap();
        for path in [
            "a-Q4.gguf",
            "b-00001-of-00002.gguf",
            "b-00002-of-00002.gguf",
            "gemma/mmproj-F16.gguf",
            "gemma/gemma-Q4.gguf",
            "kimi/k-00001-of-00002.gguf",
            "kimi/k-00002-of-00002.gguf",
            "two/one.gguf",
            "two/other.gguf",
            "deep/er/no.gguf",
        ] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = in_folder(folder.path()).unwrap();
        let expected = [
            ("a-Q4", "a-Q4.gguf"),
            ("b", "b-00001-of-00002.gguf"),
            ("gemma", "gemma/gemma-Q4.gguf"),
            ("kimi", "kimi/k-00001-of-00002.gguf"),
            ("one", "two/one.gguf"),
            ("other", "two/other.gguf"),
        ];
        let expected = expected.map(|(name, path)| (name.to_owned(), folder.path().join(path)));
        assert_eq!(found, expected);
        assert_eq!(of_folder(folder.path()).len(), 6, "shards count as one");
    }

    #[test]
    fn shards_count_as_one_model_and_names_with_of_are_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let sizes = [
            ("king-of-hearts.gguf", 3),
            ("long-00001-of-00002.gguf", 5),
            ("long-00002-of-00002.gguf", 7),
            ("mmproj-x.gguf", 11),
            ("text.txt", 13),
        ];
        for (name, bytes) in sizes {
            std::fs::write(path(name), vec![0; bytes]).unwrap();
        }
        let found: Vec<(PathBuf, u64)> =
            of_folder(folder.path()).into_iter().map(|found| (found.path, found.bytes)).collect();
        let expected = [(path("king-of-hearts.gguf"), 3), (path("long-00001-of-00002.gguf"), 12)];
        assert_eq!(found, expected);
        for (path, bytes) in expected {
            assert_eq!(Found::at(&path).unwrap().bytes, bytes);
        }
        assert!(Found::at(&path("absent.gguf")).is_none());
    }
}
