//! The journal of a pruning run: its finished matrices, so that the run goes on after an interruption or a crash.
//!
//! ```text
//! {"journal": 1, "input": .., "options": .., "text": ..}                       line
//! {"tensor": .., "bytes": .., "sha256": .., "weights": .., "zeros": ..}        line, then the matrix's bytes; for each
//! ```
//!
//! A matrix counts if all its bytes are there with their checksum: what a killed process was writing, and what a machine
//! without power lost, is pruned again. The journal lies beside the output and is removed once that is complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bilayer_files::hash::{Sha256, hex, sha256};
use bilayer_files::{is_cut_line, open_record};
use bilayer_gguf::Tensor;
use bytes::Bytes;
use rayon::prelude::*;
use serde_json::{Value, json};

use super::{Prune, Pruned, Source};
use crate::{Calibration, Error, Progress, stream};

/// How the first line begins.
const BEGINNING: &[u8] = br#"{"journal":1,"input":"#;

/// The journal of an output.
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    found: BTreeMap<String, Entry>,
    has_matrices: bool,
    end: u64,
}

/// A finished matrix.
#[derive(Clone)]
struct Entry {
    offset: u64,
    len: usize,
    sha256: String,
    pruned: Pruned,
}

/// The path of the journal of an output.
#[must_use]
pub fn place(out: &Path) -> PathBuf {
    out.with_added_extension("journal")
}

/// What a run is of: the input, the options that decide its result, and the text. The input is its metadata and all its
/// weights, which are hashed on all threads. `progress` is called with nothing done, to stop.
///
/// # Errors
/// [`Error::Interrupted`], [`Error::Threads`]; [`Error::File`] if the file changes while it is read, or cannot be read.
pub(super) fn header(
    prune: &Prune,
    Source { model, metadata }: Source<'_>,
    text: Option<&Calibration<'_>>,
    progress: Progress<'_>,
) -> Result<Value, Error> {
    let file = model.file();
    let pool = stream::pool(prune.threads)?;
    let mut digest = Sha256::new();
    digest.update(bilayer_gguf::to_bytes(metadata, [])?);
    let total = file.tensors().iter().map(|tensor| tensor.layout().len_bytes()).sum();
    for tensors in file.tensors().chunks(pool.current_num_threads()) {
        if progress(0, total).is_break() {
            return Err(Error::Interrupted);
        }
        let hash = |tensor: &Tensor| {
            file.prefetch(tensor);
            let of_bytes = sha256(file.bytes(tensor));
            file.release(tensor);
            of_bytes
        };
        let each: Vec<_> = pool.install(|| tensors.par_iter().map(hash).collect());
        file.check_unchanged()?;
        for (tensor, of_bytes) in tensors.iter().zip(each) {
            let layout = tensor.layout();
            digest.update(format!("{} {} {:?}\n", tensor.name(), layout.ty(), layout.shape()));
            digest.update(of_bytes);
        }
    }
    let Prune { method, pattern, ty, rules, .. } = prune;
    let of_text = |text: &Calibration<'_>| {
        format!("{} {} {}", hex(sha256(text.text)), text.window_len, text.windows)
    };
    Ok(json!({
        "journal": 1,
        "input": hex(digest.finish()),
        "options": format!("{method:?} {pattern:?} {ty:?} {rules:?}"),
        "text": text.map(of_text),
    }))
}

impl Journal {
    /// Opens the journal of an output, or begins it.
    ///
    /// # Errors
    /// [`Error::Journal`] if it is no journal, that of another run, or in use; [`Error::File`].
    pub fn open(out: &Path, header: &Value) -> Result<Journal, Error> {
        let path = place(out);
        let file = open_record(&path).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => {
                wrong(&path, "is in use: another process prunes to this output")
            }
            _ => io(&path, "create it, the journal of what is finished")(error),
        })?;
        let mut journal =
            Journal { path, file, found: BTreeMap::new(), has_matrices: false, end: 0 };
        let is_begun = journal.load(header)?;
        let of_journal =
            |result: std::io::Result<()>| result.map_err(io(&journal.path, "write it"));
        let mut file = &journal.file;
        let cut = file.set_len(journal.end).and_then(|()| file.seek(SeekFrom::Start(journal.end)));
        of_journal(cut.map(drop))?;
        if !is_begun {
            let line = format!("{header}\n");
            if let Err(error) = of_journal((&journal.file).write_all(line.as_bytes())) {
                journal.remove();
                return Err(error);
            }
            journal.end = line.len() as u64;
        }
        Ok(journal)
    }

    /// Reads what is there; whether it begins with the header.
    fn load(&mut self, header: &Value) -> Result<bool, Error> {
        let read = io(&self.path, "read it");
        let mut reader = BufReader::with_capacity(1 << 20, &self.file);
        let all = self.file.metadata().map_err(&read)?.len();
        let mut line = Vec::new();
        reader.read_until(b'\n', &mut line).map_err(&read)?;
        let is_whole = line.last() == Some(&b'\n');
        if !is_whole && is_cut_line(&line, BEGINNING) {
            return Ok(false);
        }
        let begun = serde_json::from_slice::<Value>(&line).unwrap_or_default();
        if !is_whole || begun["journal"] != 1 {
            return Err(wrong(&self.path, "is no journal of `prune`; move it away"));
        }
        for (key, what) in [("input", "input file"), ("options", "method, pattern or type")] {
            if begun[key] != header[key] {
                return Err(another(&self.path, what));
            }
        }
        if begun["text"] != header["text"] {
            return Err(another(&self.path, "calibration text"));
        }
        let mut end = line.len() as u64;
        loop {
            line.clear();
            reader.read_until(b'\n', &mut line).map_err(&read)?;
            let offset = end + line.len() as u64;
            let Some((name, entry)) = entry(&line, offset) else { break };
            let Some(next) = offset.checked_add(entry.len as u64).filter(|end| *end <= all) else {
                break;
            };
            reader.seek_relative(entry.len as i64).map_err(&read)?;
            self.found.insert(name, entry);
            end = next;
        }
        drop(reader);
        self.has_matrices = !self.found.is_empty();
        self.end = end;
        Ok(true)
    }

    /// A finished matrix; `None` if it is missing or damaged.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn get(&self, tensor: &str) -> Result<Option<(Bytes, Pruned)>, Error> {
        let Some(Entry { offset, len, sha256: expected, pruned }) = self.found.get(tensor) else {
            return Ok(None);
        };
        let mut bytes = vec![0; *len];
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(*offset)).and_then(|_| file.read_exact(&mut bytes));
        read.map_err(io(&self.path, "read it"))?;
        let is_whole = hex(sha256(&bytes)) == *expected;
        Ok(is_whole.then(|| (bytes.into(), Pruned { resumed: 1, ..*pruned })))
    }

    /// Adds a finished matrix.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn add(&mut self, tensor: &str, bytes: &[u8], pruned: Pruned) -> Result<(), Error> {
        let line = json!({
            "tensor": tensor,
            "bytes": bytes.len(),
            "sha256": hex(sha256(bytes)),
            "weights": pruned.weights,
            "zeros": pruned.zeros,
        });
        let (line, mut file) = (format!("{line}\n"), &self.file);
        let written = file
            .seek(SeekFrom::Start(self.end))
            .and_then(|_| file.write_all(line.as_bytes()))
            .and_then(|()| file.write_all(bytes));
        written.map_err(io(&self.path, "write it"))?;
        self.has_matrices = true;
        self.end += (line.len() + bytes.len()) as u64;
        Ok(())
    }

    /// Whether any matrix is finished.
    pub fn has_matrices(&self) -> bool {
        self.has_matrices
    }

    /// Removes the journal.
    pub fn remove(self) {
        // One that stays is refused or used by the next run.
        let _ = fs::remove_file(&self.path);
    }
}

/// The matrix that a line announces, whose bytes are at `offset`.
fn entry(line: &[u8], offset: u64) -> Option<(String, Entry)> {
    let line: Value = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
    let number = |key: &str| line[key].as_u64();
    let pruned = Pruned {
        matrices: 1,
        weights: number("weights")?,
        zeros: number("zeros")?,
        ..Pruned::default()
    };
    let (name, sha256) = (line["tensor"].as_str()?.to_owned(), line["sha256"].as_str()?.to_owned());
    let len = usize::try_from(number("bytes")?).ok().filter(|len| *len <= i64::MAX as usize)?;
    Some((name, Entry { offset, len, sha256, pruned }))
}

fn another(path: &Path, what: &str) -> Error {
    wrong(
        path,
        &format!("is the journal of a run with another {what}; finish that one, or remove it"),
    )
}

fn wrong(path: &Path, reason: &str) -> Error {
    Error::Journal { file: path.display().to_string(), reason: reason.to_owned() }
}

fn io(path: &Path, action: &'static str) -> impl Fn(std::io::Error) -> Error {
    let file = path.display().to_string();
    move |source| Error::File(bilayer_gguf::Error::Io { file: file.clone(), action, source })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn a_cut_first_line_is_begun_again_and_a_file_of_something_else_is_kept() {
        let folder = tempfile::TempDir::new().unwrap();
        let out = folder.path().join("out.gguf");
        let header = json!({ "journal": 1, "input": "i", "options": "o", "text": null });
        drop(Journal::open(&out, &header).unwrap());
        let whole = fs::read(place(&out)).unwrap();
        for cut in 0..whole.len() {
            fs::write(place(&out), &whole[..cut]).unwrap();
            drop(Journal::open(&out, &header).unwrap());
            assert_eq!(fs::read(place(&out)).unwrap(), whole, "{cut}");
        }
        for other in ["{\"my\":\"journal\"}", "text", "{\"journal\":2"] {
            fs::write(place(&out), other).unwrap();
            let error = Journal::open(&out, &header).err().unwrap().to_string();
            assert!(error.contains("is no journal of `prune`"), "{error}");
            assert_eq!(fs::read(place(&out)).unwrap(), other.as_bytes());
        }
    }
}
