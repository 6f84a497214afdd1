//! The journal of a batch: answers in the order in which they come.
//!
//! The first line says what the journal is of; each further line is the index of a request, a tab, and the answer. A line
//! counts once its line break is there. Lines are given to the system as they come, so a process that is killed loses none;
//! the disk is asked to keep them once a second, so a machine that loses power loses a second's answers, which are then
//! computed again.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bilayer_files::hash::{Sha256, hex};
use bilayer_files::{Access, create, flush, is_cut_line, open_record};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::{Error, check_record};

/// The version, of the lines and of what the hashes in the first one are of.
const VERSION: u32 = 2;

/// How the first line begins.
const BEGINNING: &[u8] = br#"{"journal":2,"of":"#;

/// Time after which the disk is asked to keep what was written.
const SYNC: Duration = Duration::from_secs(1);

/// The answers of a batch so far.
pub struct Journal {
    file: File,
    path: PathBuf,
    /// Offset and bytes of each answer.
    answers: Vec<Option<(u64, u64)>>,
    end: u64,
    synced: Instant,
}

/// The journal of an output.
pub fn place(output: &Path) -> PathBuf {
    output.with_added_extension("journal")
}

impl Journal {
    /// Opens the journal of a batch of so many requests, or begins it. What an interrupted write left is cut off.
    ///
    /// # Errors
    /// It is no journal, or that of another batch or version, another process uses it, or it cannot be read or written.
    pub fn open(path: &Path, header: &Value, requests: usize) -> Result<Journal, Error> {
        check_record(path)?;
        let (written, read) = (Error::io(path, "be written"), Error::io(path, "be read"));
        let wrong = |problem: String| Error::Record { path: path.display().to_string(), problem };
        let file = open_record(path).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => {
                wrong("is in use: the batch is being answered by another process".into())
            }
            _ => written(error),
        })?;
        let mut journal = Journal {
            file,
            path: path.to_owned(),
            answers: vec![None; requests],
            end: 0,
            synced: Instant::now(),
        };
        let header = json!({ "journal": VERSION, "of": header });
        match journal.load(&header).map_err(&read)? {
            Found::Nothing => {
                journal.file.set_len(0).map_err(&written)?;
                journal.write(format!("{header}\n").as_bytes()).map_err(&written)?;
            }
            Found::Answers => {
                journal.file.set_len(journal.end).map_err(&written)?;
            }
            Found::Version(found) => {
                return Err(wrong(format!(
                    "is a journal of version {found}, not {VERSION}: finish the batch with the program that began it, or \
                     remove the journal"
                )));
            }
            Found::Another(what) => {
                return Err(wrong(format!(
                    "is the journal of another batch ({what}); finish that one, or remove the journal"
                )));
            }
        }
        Ok(journal)
    }

    fn load(&mut self, header: &Value) -> std::io::Result<Found> {
        let mut reader = BufReader::with_capacity(1 << 20, &self.file);
        let (mut line, mut end) = (Vec::new(), 0);
        reader.read_until(b'\n', &mut line)?;
        let another = || Found::Another("it does not begin as a journal does".to_owned());
        let Some(text) = line.strip_suffix(b"\n") else {
            let is_ours = is_cut_line(&line, BEGINNING);
            return Ok(if is_ours { Found::Nothing } else { another() });
        };
        let Ok(found) = serde_json::from_slice::<Value>(text) else {
            return Ok(another());
        };
        if found != *header {
            let differs = |key| found["of"][key] != header["of"][key];
            match found.get("journal") {
                None => return Ok(another()),
                Some(version) if *version != VERSION => {
                    return Ok(Found::Version(version.to_string()));
                }
                Some(_) => {}
            }
            let what = match () {
                () if differs("requests") => "of other requests".to_owned(),
                () if differs("models") => "of another model".to_owned(),
                () => format!("with other {}", differing(&found["of"], &header["of"]).join(", ")),
            };
            return Ok(Found::Another(what));
        }
        end += line.len() as u64;
        loop {
            line.clear();
            reader.read_until(b'\n', &mut line)?;
            let Some((at, skipped)) = entry(&line).filter(|&(at, _)| at < self.answers.len())
            else {
                break;
            };
            let len = line.len() - skipped - 1;
            self.answers[at] = Some((end + skipped as u64, len as u64));
            end += line.len() as u64;
        }
        self.end = end;
        Ok(Found::Answers)
    }

    /// The indices of requests that have an answer.
    pub fn answered(&self) -> Vec<usize> {
        (0..self.answers.len()).filter(|&at| self.has_answer(at)).collect()
    }

    /// Whether a request has an answer.
    pub fn has_answer(&self, at: usize) -> bool {
        self.answers[at].is_some()
    }

    /// The answer of a request that has one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn answer(&mut self, at: usize) -> Result<String, Error> {
        let (first, len) = self.answers[at].unwrap_or_default();
        let mut text = String::with_capacity(len as usize);
        let read = self.file.seek(SeekFrom::Start(first));
        let read = read.and_then(|_| (&self.file).take(len).read_to_string(&mut text));
        read.map_err(Error::io(&self.path, "be read"))?;
        Ok(text)
    }

    /// Adds an answer.
    ///
    /// # Errors
    /// It cannot be written: the disk is full.
    pub fn append(&mut self, at: usize, answer: &str) -> Result<(), Error> {
        let key = format!("{at}\t");
        let first = self.end + key.len() as u64;
        let written = self.write(format!("{key}{answer}\n").as_bytes());
        written.map_err(Error::io(&self.path, "be written"))?;
        self.answers[at] = Some((first, answer.len() as u64));
        if self.synced.elapsed() > SYNC {
            self.sync()?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(bytes)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Asks the disk to keep what was written.
    ///
    /// # Errors
    /// It cannot.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.synced = Instant::now();
        flush(&self.file).map_err(Error::io(&self.path, "be written"))
    }

    /// Writes all answers in the order of the requests, atomically. Returns the output's hash.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_output(&mut self, path: &Path) -> Result<String, Error> {
        let failed = Error::io(path, "be written");
        let target = create(path, Access::Usual).map_err(&failed)?;
        let mut out = BufWriter::with_capacity(1 << 20, target);
        let mut hasher = Sha256::new();
        for at in 0..self.answers.len() {
            let line = self.answer(at)? + "\n";
            hasher.update(&line);
            out.write_all(line.as_bytes()).map_err(&failed)?;
        }
        let target = out.into_inner().map_err(|error| failed(error.into_error()))?;
        target.finish(path).map_err(&failed)?;
        Ok(hex(hasher.finish()))
    }

    /// Removes the journal, once the output is written.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(self) -> Result<(), Error> {
        std::fs::remove_file(&self.path).map_err(Error::io(&self.path, "be removed"))
    }
}

/// The facts that differ between two headers, by name.
fn differing(a: &Value, b: &Value) -> Vec<String> {
    let names = [a, b].into_iter().filter_map(|of| of["facts"].as_object()).flat_map(Map::keys);
    let names: BTreeSet<&String> = names.collect();
    let differs = |name: &&String| a["facts"][name.as_str()] != b["facts"][name.as_str()];
    names.into_iter().filter(differs).cloned().collect()
}

/// What a journal's file holds.
enum Found {
    Nothing,
    Answers,
    /// The journal of another version.
    Version(String),
    Another(String),
}

/// The index of a whole line's request, and the bytes before its answer.
fn entry(line: &[u8]) -> Option<(usize, usize)> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let (at, answer) = text.split_once('\t')?;
    // After a power failure the system may find a line's length but not its bytes.
    serde_json::from_str::<IgnoredAny>(answer).ok()?;
    Some((at.parse().ok()?, at.len() + 1))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Journal, entry};

    #[test]
    fn only_whole_lines_count() {
        assert_eq!(entry(b"12\t{\"a\":1}\n"), Some((12, 3)));
        for torn in [&b"12\t{\"a\":1}"[..], b"12\t{\"a\":\n", b"12\n", b"\0\0\t\0\n", b""] {
            assert_eq!(entry(torn), None, "{torn:?}");
        }
    }

    #[test]
    fn a_journal_goes_on_after_a_cut_at_any_byte() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("out.journal");
        let header = json!({ "requests": "x", "models": [] });
        let mut journal = Journal::open(&path, &header, 3).unwrap();
        journal.append(2, "{\"b\":2}").unwrap();
        journal.append(0, "{\"a\":1}").unwrap();
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut journal = Journal::open(&path, &header, 3).unwrap();
            let kept = journal.answered();
            assert!([vec![], vec![2], vec![0, 2]].contains(&kept), "{cut}: {kept:?}");
            if journal.has_answer(2) {
                assert_eq!(journal.answer(2).unwrap(), "{\"b\":2}");
            }
            journal.append(1, "{\"c\":3}").unwrap();
            drop(journal);
            let mut journal = Journal::open(&path, &header, 3).unwrap();
            assert_eq!(journal.answered().len(), kept.len() + 1, "{cut}");
            assert_eq!(journal.answer(1).unwrap(), "{\"c\":3}");
        }
        std::fs::write(&path, "{\"of\":\"another program\"}").unwrap();
        let error = Journal::open(&path, &header, 3).err().unwrap().to_string();
        assert!(error.contains("does not begin as a journal does"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"{\"of\":\"another program\"}");
        let older = "{\"journal\":1,\"of\":{\"requests\":\"x\",\"models\":[]}}\n2\t{\"b\":2}\n";
        std::fs::write(&path, older).unwrap();
        let error = Journal::open(&path, &header, 3).err().unwrap().to_string();
        assert!(error.contains("a journal of version 1, not 2"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), older);
        std::fs::write(&path, whole).unwrap();
        let facts = json!({ "weights": "a", "--ctx-size": 512 });
        for (other, what) in [
            (json!({ "requests": "y", "models": [] }), "of other requests"),
            (json!({ "requests": "x", "models": [1] }), "of another model"),
            (
                json!({ "requests": "x", "models": [], "facts": facts }),
                "with other --ctx-size, weights",
            ),
        ] {
            let error = Journal::open(&path, &other, 3).err().unwrap().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
