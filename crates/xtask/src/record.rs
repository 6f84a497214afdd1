//! Records of tasks that show reliability: one JSON object per line, appended by each task as it ends, never edited.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::output;

/// The file of records.
const PATH: &str = "benches/record/reliability.jsonl";

/// What a task found.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The part of the page: `fuzz`, `mutations`, `agreement`, `kills`, `sanitizer`, `mutants`, `soak`.
    pub part: String,
    /// What was tried, such as a target or a writer.
    pub name: String,
    /// How often, or how much.
    pub count: f64,
    /// What is counted.
    pub unit: String,
    /// How many of them failed.
    pub failed: u64,
    /// How long it took, where that counts.
    pub seconds: Option<f64>,
    /// What else a reader needs.
    pub note: String,
    /// The day, UTC.
    pub date: String,
    /// The machine.
    pub machine: String,
}

impl Record {
    /// A record of today on this machine.
    ///
    /// # Errors
    /// The day cannot be found out.
    pub fn new(part: &str, name: &str, count: f64, unit: &str) -> Result<Record> {
        Ok(Record {
            part: part.to_owned(),
            name: name.to_owned(),
            count,
            unit: unit.to_owned(),
            failed: 0,
            seconds: None,
            note: String::new(),
            date: output(Command::new("date").args(["-u", "+%F"]))?.trim().to_owned(),
            machine: machine(),
        })
    }

    /// With so many failures.
    pub fn failed(self, failed: u64) -> Record {
        Record { failed, ..self }
    }

    /// That took so many seconds.
    pub fn seconds(self, seconds: f64) -> Record {
        Record { seconds: Some(seconds), ..self }
    }

    /// With a note.
    pub fn note(self, note: impl Into<String>) -> Record {
        Record { note: note.into(), ..self }
    }

    /// Appends it to the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&self) -> Result<()> {
        let mut line = json!({
            "part": self.part, "name": self.name, "count": self.count, "unit": self.unit,
            "failed": self.failed, "note": self.note, "date": self.date, "machine": self.machine,
        });
        if let Some(seconds) = self.seconds {
            line["seconds"] = json!(seconds);
        }
        let file = OpenOptions::new().create(true).append(true).open(PATH);
        let mut file = file.with_context(|| PATH.to_owned())?;
        writeln!(file, "{line}").with_context(|| PATH.to_owned())
    }

    fn read(line: &str) -> Result<Record> {
        let value: Value = serde_json::from_str(line)?;
        let text = |key: &str| {
            value[key].as_str().map(str::to_owned).with_context(|| format!("no {key} in {line}"))
        };
        Ok(Record {
            part: text("part")?,
            name: text("name")?,
            count: value["count"].as_f64().with_context(|| format!("no count in {line}"))?,
            unit: text("unit")?,
            failed: value["failed"].as_u64().with_context(|| format!("no failed in {line}"))?,
            seconds: value["seconds"].as_f64(),
            note: text("note")?,
            date: text("date")?,
            machine: text("machine")?,
        })
    }
}

/// What a test printed of one of its subjects: `NAME: COUNT ...`, with `FAILED` in it if the test ended by that one.
#[derive(Debug, PartialEq)]
pub struct Printed<'l> {
    pub name: &'l str,
    pub count: f64,
    /// Everything behind the name.
    pub figures: &'l str,
    pub failures: u64,
}

impl Printed<'_> {
    /// # Errors
    /// The line has no name or no count.
    pub fn read(line: &str) -> Result<Printed<'_>> {
        let (name, figures) = line.split_once(": ").with_context(|| format!("no name: {line}"))?;
        let count = figures.split(' ').next().and_then(|count| count.parse().ok());
        let count = count.with_context(|| format!("no count: {line}"))?;
        Ok(Printed { name, count, figures, failures: u64::from(figures.contains("FAILED")) })
    }
}

/// All records, oldest first.
///
/// # Errors
/// The file cannot be read, or a line is no record.
pub fn all() -> Result<Vec<Record>> {
    match std::fs::read_to_string(PATH) {
        Ok(text) => text.lines().map(Record::read).collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).context(PATH),
    }
}

/// The CPU's model and how many there are.
fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|line| line.split_once(':')).map_or("unknown CPU", |(_, name)| name);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{count} x {}", model.trim())
}

#[cfg(test)]
mod tests {
    use super::{Printed, Record};

    #[test]
    fn lines_of_tests_say_how_many_and_whether_one_failed() {
        let read = Printed::read("slot: 20 of 20 servers ended, 3 drafts seen").unwrap();
        assert_eq!((read.name, read.count, read.failures), ("slot", 20.0, 0));
        assert_eq!(read.figures, "20 of 20 servers ended, 3 drafts seen");
        assert_eq!(Printed::read("gguf: 7 inputs, FAILED").unwrap().failures, 1);
        assert!(Printed::read("gguf").is_err());
        assert!(Printed::read("gguf: none").is_err());
    }

    #[test]
    fn a_record_without_a_field_is_refused() {
        let line = r#"{"part":"fuzz","name":"a","count":3,"unit":"b","failed":1,"note":"","date":"d","machine":"m"}"#;
        let record = Record::read(line).unwrap();
        assert_eq!((record.count, record.failed, record.unit.as_str()), (3.0, 1, "b"));
        assert!(Record::read(&line.replace("failed", "other")).is_err());
    }
}
