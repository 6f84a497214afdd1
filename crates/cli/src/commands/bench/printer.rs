//! Output formats; each result is written at once.

use std::io::{self, Write};

use serde_json::{Map, Value};

use super::markdown::{self, Column, Footer};
use super::record::{Record, plain};
use crate::args::Form;
use crate::failure::{Failure, INTERNAL};
use crate::output;

/// Where results go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

impl Sink {
    fn text(self, text: &str) -> Result<(), Failure> {
        match self {
            Sink::Out => output::text(text),
            Sink::Err => {
                // As with all messages, a closed stderr is no failure.
                let _ = io::stderr().lock().write_all(text.as_bytes());
                Ok(())
            }
        }
    }

    fn line(self, line: &str) -> Result<(), Failure> {
        self.text(&format!("{line}\n"))
    }
}

/// Writes results in one format.
pub struct Printer {
    form: Form,
    sink: Sink,
    rows: usize,
    /// The optional columns of markdown.
    varied: Vec<&'static str>,
    columns: Vec<Column>,
    footer: Footer,
}

impl Printer {
    /// A new printer; markdown gets a column for each field of `varied`.
    pub fn new(form: Form, sink: Sink, varied: Vec<&'static str>) -> Printer {
        Printer { form, sink, rows: 0, varied, columns: Vec::new(), footer: Footer::default() }
    }

    /// Writes a result, after the header if it is the first.
    pub fn row(&mut self, record: &Record<'_>) -> Result<(), Failure> {
        let (is_first, sink) = (self.rows == 0, self.sink);
        self.rows += 1;
        match self.form {
            Form::Md => {
                if is_first {
                    self.columns = markdown::columns(record, &self.varied);
                    sink.text(&markdown::head(&self.columns))?;
                }
                self.footer.add(record);
                sink.text(&markdown::row(&self.columns, record))
            }
            Form::Csv => {
                if is_first {
                    sink.line(&csv_line(record, |name, _| name.to_owned()))?;
                }
                sink.line(&csv_line(record, |_, value| quoted(&plain(value))))
            }
            Form::Json => {
                let start = if is_first { "[\n" } else { ",\n" };
                sink.text(&format!("{start}{}", document(record, Layout::Lines)?))
            }
            Form::Jsonl => sink.line(&document(record, Layout::OneLine)?),
            Form::Sql => {
                if is_first {
                    sink.line(&sql_table(record))?;
                }
                sink.line(&sql_row(record))
            }
        }
    }

    /// Writes the end of the document, if there was any result.
    pub fn finish(&self) -> Result<(), Failure> {
        match self.form {
            _ if self.rows == 0 => Ok(()),
            Form::Md => self.sink.text(&self.footer.text()),
            Form::Json => self.sink.text("\n]\n"),
            Form::Csv | Form::Jsonl | Form::Sql => Ok(()),
        }
    }
}

/// The layout of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// As in llama-bench: one line per field.
    Lines,
    /// A single line.
    OneLine,
}

/// llama-bench's fields and samples, followed by our fields.
pub fn fields(record: &Record<'_>) -> Map<String, Value> {
    let fields = record.fields().into_iter().chain(record.samples()).chain(record.own_fields());
    let fields = fields.chain([record.device_busy()]);
    fields.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The document of a result.
fn document(record: &Record<'_>, layout: Layout) -> Result<String, Failure> {
    let document = fields(record);
    if layout == Layout::OneLine {
        return serde_json::to_string(&document).map_err(no_json);
    }
    let lines: Vec<String> = document
        .iter()
        .map(|(name, value)| {
            let name = serde_json::to_string(name).map_err(no_json)?;
            Ok(format!("    {name}: {}", serde_json::to_string(value).map_err(no_json)?))
        })
        .collect::<Result<_, Failure>>()?;
    Ok(format!("  {{\n{}\n  }}", lines.join(",\n")))
}

#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
fn no_json(error: serde_json::Error) -> Failure {
    Failure::Line(INTERNAL, format!("JSON cannot be written: {error}"))
}

fn csv_line(record: &Record<'_>, cell: impl Fn(&str, &Value) -> String) -> String {
    flat(record).map(|(name, value)| cell(name, &value)).collect::<Vec<_>>().join(",")
}

/// The fields of CSV and SQL.
fn flat(record: &Record<'_>) -> impl Iterator<Item = (&'static str, Value)> {
    record.fields().into_iter().chain(record.own_fields())
}

/// The statement that creates llama-bench's table, with our fields as well.
fn sql_table(record: &Record<'_>) -> String {
    let column = |(name, value): (&'static str, Value)| {
        let ty = match &value {
            Value::Bool(_) => "INTEGER",
            Value::Number(number) if !number.is_f64() => "INTEGER",
            Value::Number(_) => "REAL",
            _ => "TEXT",
        };
        format!("  {name} {ty}")
    };
    let columns: Vec<String> = flat(record).map(column).collect();
    format!("CREATE TABLE IF NOT EXISTS llama_bench (\n{}\n);\n", columns.join(",\n"))
}

fn sql_row(record: &Record<'_>) -> String {
    let (names, values): (Vec<&str>, Vec<String>) =
        flat(record).map(|(name, value)| (name, sql_value(&value))).unzip();
    format!("INSERT INTO llama_bench ({}) VALUES ({});", names.join(", "), values.join(", "))
}

fn sql_value(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::Bool(_) | Value::Number(_) => plain(value),
        _ => format!("'{}'", plain(value).replace('\'', "''")),
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_llama_bench_does() {
        let cases = [
            (json!(null), ""),
            (json!(true), "1"),
            (json!(false), "0"),
            (json!(12), "12"),
            (json!(0.5), "0.500000"),
            (json!("a \"b\", c"), "a \"b\", c"),
            (json!(["x", "y"]), "x; y"),
        ];
        for (value, expected) in cases {
            assert_eq!(plain(&value), expected);
        }
        assert_eq!(sql_value(&json!("it's")), "'it''s'");
        assert_eq!((sql_value(&json!(null)), sql_value(&json!(true))), ("NULL".into(), "1".into()));
        assert_eq!(quoted("a \"b\", c"), "\"a \"\"b\"\", c\"");
    }
}
