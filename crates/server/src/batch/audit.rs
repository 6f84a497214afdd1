//! A log of answers whose lines are chained: each holds the SHA-256 of the line before it.
//!
//! Lines are JSON objects. One with `event: begin` tells of a run of a batch, `answer` of an answer with the hashes of its
//! request and its text, `end` of a complete output. A changed, added or missing line breaks the chain; a missing end shows
//! by the hash of the last line, which is to be kept elsewhere.
//!
//! No line is longer than 1 MiB, so a line without an end is one whose writing was cut off, and no longer one.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bilayer_files::hash::{self, hex, sha256};
use bilayer_files::{flush, is_cut_line, open_record};
use serde_json::{Map, Value, json};

use super::input::Input;
use super::{Audit, Error};

/// What the first line has as the hash of the line before it.
const NONE: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// How the first line begins.
const BEGINNING: &[u8] = br#"{"event":"begin""#;

/// Bytes of a line with its line break.
const LINE_MAX: u64 = 1 << 20;

/// Characters of a `custom_id` that are kept; the line of the request names it too.
const ID_MAX: usize = 256;

/// A log that is written.
pub struct Log {
    file: File,
    path: PathBuf,
    head: String,
    /// Lines of the requests whose answers it has, by earlier runs of the same batch.
    answered: HashMap<u64, Hashes>,
}

/// Hashes of a request and its answer.
type Hashes = (String, String);

/// What a log that holds has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Its lines.
    pub lines: usize,
    /// The hash of the last line.
    pub head: String,
    /// Hash of the requests of the last batch.
    pub requests: String,
    /// Its answers, by the line of the request: hashes of request and answer.
    pub answers: HashMap<u64, (String, String)>,
    /// Hash of its output, if it is complete.
    pub output: Option<String>,
}

impl Log {
    /// Opens a log or begins one, and appends that a run of a batch begins. A line that was cut off in writing is removed.
    ///
    /// # Errors
    /// The file is no log, its chain is broken, or it cannot be read or written.
    pub fn open(audit: &Audit, requests: &str) -> Result<Log, Error> {
        let path = audit.path.as_path();
        let written = Error::io(path, "be written");
        let mut file = open_record(path).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => Error::Record {
                path: path.display().to_string(),
                problem: "is in use by another process".to_owned(),
            },
            _ => written(error),
        })?;
        let (known, whole) = read(path, &mut file)?;
        file.set_len(whole).map_err(&written)?;
        file.seek(SeekFrom::Start(whole)).map_err(&written)?;
        let goes_on = known.requests == requests && known.output.is_none();
        let answered = if goes_on { known.answers } else { HashMap::new() };
        let mut log = Log { file, path: path.to_owned(), head: known.head, answered };
        let mut fields = Map::from_iter([("requests".to_owned(), json!(requests))]);
        fields.extend(audit.facts.clone());
        log.append("begin", fields)?;
        Ok(log)
    }

    /// Whether it has this answer to the request in a line, of an earlier run.
    pub fn has(&self, line: usize, answer: &str) -> bool {
        let known = self.answered.get(&(line as u64));
        known.is_some_and(|(_, known)| *known == hex(sha256(answer)))
    }

    /// Appends an answer.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn answered(&mut self, line: usize, request: &[u8], answer: &str) -> Result<(), Error> {
        let parsed: Value = serde_json::from_str(answer).unwrap_or_default();
        let id = parsed["custom_id"].as_str();
        let id = id.map(|id| id.chars().take(ID_MAX).collect::<String>());
        self.append(
            "answer",
            Map::from_iter([
                ("line".to_owned(), json!(line)),
                ("custom_id".to_owned(), json!(id)),
                ("request".to_owned(), json!(hex(sha256(request)))),
                ("answer".to_owned(), json!(hex(sha256(answer)))),
            ]),
        )
    }

    /// Appends that the output is complete.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn ended(&mut self, output: &str) -> Result<(), Error> {
        self.append("end", Map::from_iter([("output".to_owned(), json!(output))]))
    }

    /// Asks the disk to keep it. Returns the hash of the last line.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn close(self) -> Result<String, Error> {
        flush(&self.file).map_err(Error::io(&self.path, "be written"))?;
        Ok(self.head)
    }

    fn append(&mut self, event: &str, fields: Map<String, Value>) -> Result<(), Error> {
        let time = jiff::Timestamp::now().to_string();
        let mut line =
            Map::from_iter([("event".to_owned(), json!(event)), ("time".to_owned(), json!(time))]);
        line.extend(fields);
        line.insert("before".to_owned(), json!(self.head));
        let line = Value::Object(line).to_string();
        if line.len() as u64 >= LINE_MAX {
            let problem = format!("a line of {} bytes is too long for it", line.len());
            return Err(Error::Record { path: self.path.display().to_string(), problem });
        }
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        written.map_err(Error::io(&self.path, "be written"))?;
        self.head = hex(sha256(&line));
        Ok(())
    }
}

/// Checks the chain of a log.
///
/// # Errors
/// A line does not follow the one before it, the last line is cut off, or the log cannot be read.
pub fn verify(path: &Path) -> Result<Verified, Error> {
    let mut file = File::open(path).map_err(Error::io(path, "be read"))?;
    let len = file.metadata().map_err(Error::io(path, "be read"))?.len();
    let (found, whole) = read(path, &mut file)?;
    if whole < len {
        let problem = format!("line {} is cut off", found.lines + 1);
        return Err(Error::Record { path: path.display().to_string(), problem });
    }
    if found.lines == 0 {
        let problem = "has no lines, of which every log has one".to_owned();
        return Err(Error::Record { path: path.display().to_string(), problem });
    }
    Ok(found)
}

/// Reads a log: what it has, and the bytes of its whole lines.
fn read(path: &Path, file: &mut File) -> Result<(Verified, u64), Error> {
    let mut found = Verified { head: NONE.to_owned(), ..Verified::default() };
    let (mut reader, mut line, mut whole) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        let len = (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line);
        let len = len.map_err(Error::io(path, "be read"))?;
        let number = found.lines + 1;
        let broken = |problem: &str| Error::Record {
            path: path.display().to_string(),
            problem: format!("line {number} {problem}"),
        };
        let Some(text) = line.strip_suffix(b"\n") else {
            return match len as u64 {
                LINE_MAX => Err(broken("is longer than a line of such a log")),
                _ if found.lines > 0 || is_cut_line(&line, BEGINNING) => Ok((found, whole)),
                _ => Err(broken("is no line of such a log")),
            };
        };
        let record: Value =
            serde_json::from_slice(text).map_err(|_| broken("is no line of such a log"))?;
        if record["before"] != found.head.as_str() {
            return Err(broken("does not follow the one before it: the log was changed"));
        }
        let field = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
        match field("event").as_str() {
            "begin" => {
                let requests = field("requests");
                if requests != found.requests || found.output.is_some() {
                    found.answers.clear();
                    found.output = None;
                }
                found.requests = requests;
            }
            "answer" => {
                let line = record["line"].as_u64().unwrap_or(0);
                found.answers.insert(line, (field("request"), field("answer")));
            }
            "end" => found.output = Some(field("output")),
            _ => return Err(broken("has an unknown event")),
        }
        found.lines = number;
        found.head = hex(sha256(text));
        whole += len as u64;
    }
}

impl Verified {
    /// Checks that requests and answers are those of the last batch.
    ///
    /// # Errors
    /// A file cannot be read, or is not the recorded one.
    pub fn matches(&self, requests: Option<&Path>, answers: Option<&Path>) -> Result<(), Error> {
        let other = |path: &Path, problem: String| Error::Record {
            path: path.display().to_string(),
            problem,
        };
        if let Some(path) = requests {
            let found = hash::of_file(path).map_err(Error::io(path, "be read"))?;
            if found != self.requests {
                let problem = format!("is not the recorded file of requests: its hash is {found}");
                return Err(other(path, problem));
            }
            for line in Input::open(path)?.lines() {
                let recorded = self.answers.get(&(line.number as u64));
                if recorded.is_some_and(|(request, _)| *request != hex(line.sha256)) {
                    let problem = format!("line {} is not the recorded request", line.number);
                    return Err(other(path, problem));
                }
            }
        }
        let Some(path) = answers else { return Ok(()) };
        let Some(output) = &self.output else {
            return Err(other(path, "the log does not say that the batch is complete".to_owned()));
        };
        let file = File::open(path).map_err(Error::io(path, "be read"))?;
        let mut lines: Vec<u64> = self.answers.keys().copied().collect();
        lines.sort_unstable();
        for (number, text) in BufReader::new(file).split(b'\n').enumerate() {
            let text = text.map_err(Error::io(path, "be read"))?;
            let recorded = lines.get(number).and_then(|line| self.answers.get(line));
            if recorded.is_none_or(|(_, answer)| *answer != hex(sha256(&text))) {
                let problem = format!("line {} is not the recorded answer", number + 1);
                return Err(other(path, problem));
            }
        }
        let found = hash::of_file(path).map_err(Error::io(path, "be read"))?;
        match found == *output {
            true => Ok(()),
            false => Err(other(path, format!("is not the recorded output: its hash is {found}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path) -> Result<Log, Error> {
        Log::open(&Audit { path: path.to_owned(), facts: Map::new() }, "requests")
    }

    #[test]
    fn a_line_of_any_request_is_read_again() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("log");
        let mut log = open(&path).unwrap();
        let id = "é".repeat(LINE_MAX as usize);
        log.answered(1, b"{}", &json!({ "custom_id": id }).to_string()).unwrap();
        log.answered(2, b"{}", &json!({ "custom_id": [id] }).to_string()).unwrap();
        let facts = Map::from_iter([("models".to_owned(), json!(id))]);
        assert!(log.append("begin", facts).unwrap_err().to_string().contains("too long"));
        log.ended("output").unwrap();
        let head = log.close().unwrap();
        let found = verify(&path).unwrap();
        assert_eq!((found.lines, found.answers.len(), found.head), (4, 2, head));
    }

    #[test]
    fn a_file_of_something_else_is_kept() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("log");
        for other in [&br#"{"audit":"other system"}"#[..], b"{\"event\":\"end\"", b"x", b"\0x"] {
            std::fs::write(&path, other).unwrap();
            let error = open(&path).err().unwrap().to_string();
            assert!(error.contains("line 1 is no line of such a log"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), other);
        }
        std::fs::remove_file(&path).unwrap();
        open(&path).unwrap().close().unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            open(&path).unwrap().close().unwrap();
            assert_eq!(verify(&path).unwrap().lines, 1, "{cut}");
        }
    }

    /// As of a batch whose requests were changed while it ran.
    #[test]
    fn requests_are_compared_line_by_line() {
        let folder = tempfile::TempDir::new().unwrap();
        let (path, requests) = (folder.path().join("log"), folder.path().join("in"));
        std::fs::write(&requests, "{\"a\":1}\n\n{\"a\":2}\n").unwrap();
        let audit = Audit { path: path.clone(), facts: Map::new() };
        let mut log = Log::open(&audit, &hash::of_file(&requests).unwrap()).unwrap();
        log.answered(1, b"{\"a\":1}", "{}").unwrap();
        verify(&path).unwrap().matches(Some(&requests), None).unwrap();
        log.answered(3, b"{\"a\":3}", "{}").unwrap();
        let error = verify(&path).unwrap().matches(Some(&requests), None).unwrap_err();
        assert!(error.to_string().contains("line 3 is not the recorded request"), "{error}");
    }

    #[test]
    fn an_empty_log_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(verify(file.path()).unwrap_err().to_string().contains("has no lines"));
    }

    /// A journal may have lost an answer that is logged, and have another one that is not.
    #[test]
    fn another_answer_is_one_that_it_does_not_have() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("log");
        let mut log = open(&path).unwrap();
        log.answered(1, b"{}", "{\"a\":1}").unwrap();
        log.close().unwrap();
        let log = open(&path).unwrap();
        assert!(log.has(1, "{\"a\":1}") && !log.has(1, "{\"a\":2}") && !log.has(2, "{\"a\":1}"));
    }

    #[test]
    fn only_a_line_at_the_end_is_cut_off() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("log");
        open(&path).unwrap().close().unwrap();
        let whole = std::fs::read(&path).unwrap();
        let with = |more: &[u8]| std::fs::write(&path, [&whole, more].concat()).unwrap();
        with(b"{\"event\":");
        open(&path).unwrap().close().unwrap();
        assert_eq!(verify(&path).unwrap().lines, 2);
        let long = [&b"x".repeat(LINE_MAX as usize), &b"\n{}\n"[..]].concat();
        with(&long);
        assert!(open(&path).err().unwrap().to_string().contains("line 2 is longer"));
        assert_eq!(std::fs::read(&path).unwrap().len(), whole.len() + long.len(), "it is kept");
    }
}
