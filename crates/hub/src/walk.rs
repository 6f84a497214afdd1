//! The files below a folder, as paths relative to it.

use std::io;
use std::path::Path;

/// Most entries that are looked at: a folder that was named by mistake shall not take minutes.
const ENTRIES_MOST: usize = 50_000;

/// Files at most `depth` folders down, in order, with forward slashes. What cannot be read is left out.
pub(crate) fn files(folder: &Path, depth: usize) -> Vec<String> {
    read(folder, depth).unwrap_or_default()
}

/// [`files`] of a folder that must be readable. Folders in it that cannot be read are left out.
///
/// # Errors
/// The folder itself cannot be read.
pub(crate) fn read(folder: &Path, depth: usize) -> io::Result<Vec<String>> {
    let (mut found, mut entries) = (Vec::new(), 0);
    let mut folders = vec![(folder.to_owned(), String::new(), depth)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        let is_inner = !prefix.is_empty();
        let listed = match std::fs::read_dir(folder) {
            Err(_) if is_inner => continue,
            listed => listed?,
        };
        for entry in listed {
            let entry = match entry {
                Err(_) if is_inner => break,
                entry => entry?,
            };
            entries += 1;
            if entries > ENTRIES_MOST {
                break;
            }
            // Links are followed: the cache has its files behind links.
            let (Ok(name), Ok(facts)) = (entry.file_name().into_string(), entry.path().metadata())
            else {
                continue;
            };
            let path = format!("{prefix}{name}");
            if facts.is_file() {
                found.push(path);
            } else if depth > 0 {
                folders.push((entry.path(), format!("{path}/"), depth - 1));
            }
        }
    }
    found.sort();
    Ok(found)
}
