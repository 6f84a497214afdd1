//! `cargo xtask reliability`: writes the page of what was tried against this code, from the records of other tasks.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::record::{self, Printed, Record};
use crate::{cargo, fuzz, sanitize};

pub const USAGE: &str = "\
cargo xtask reliability [--kills N | --changes N]
                              write docs/internals/reliability.md; first kill every writer N times, or change a model's file N
                              times in each way at each moment";

/// The page.
const PAGE: &str = "docs/internals/reliability.md";

/// The page of faults, whose cells are counted.
const FAULTS: &str = "docs/internals/faults.md";

/// A part of the page.
struct PagePart {
    /// Its name in records.
    name: &'static str,
    heading: &'static str,
    about: &'static str,
    /// Whether counts of one name add up.
    adds_up: bool,
    /// Whether a name is shown.
    shows: fn(&str) -> bool,
    /// The count that is enough, if one is meant, by how many a second the fastest run did.
    enough: Option<fn(f64) -> f64>,
}

const PARTS: &[PagePart] = &[
    PagePart {
        name: "fuzz",
        heading: "Fuzzing",
        about: "Executions of each target of tests/fuzz since its last finding, with AddressSanitizer \
                (`cargo xtask fuzz`). Failures are runs with a finding over all time; each is repaired, and the suite replays the \
                inputs that are kept in tests/fuzz/findings. Meant are 100 million of a target whose fastest run had more than \
                10 000 a second on one CPU, 2 million of the others.",
        adds_up: true,
        shows: |_| true,
        enough: Some(fuzz::enough),
    },
    PagePart {
        name: "mutations",
        heading: "Changed seeds",
        about: "Seeds and findings of the targets of tests/fuzz with changes at random, without a sanitizer and not led by \
                coverage (`cargo xtask fuzz --mutate N`).",
        adds_up: true,
        shows: |_| true,
        enough: None,
    },
    PagePart {
        name: "agreement",
        heading: "Agreement with other readers",
        about: "Changed model files of 13 architectures that this program, the Python package gguf 0.19.0 and llama.cpp (of \
                llama-cpp-python 0.3.36) open or refuse (`cargo xtask agreement`): bits, cuts, lengths, types, names, numbers, \
                extents, offsets, alignment. The directory is compared with gguf, the model without its weights' values with \
                llama.cpp. Every difference is counted by its cause; failures are differences without one.",
        adds_up: false,
        shows: |_| true,
        enough: None,
    },
    PagePart {
        name: "kills",
        heading: "Killed writers",
        about: "Writers ended by SIGKILL at random moments (`cargo xtask reliability --kills N`). A failure is a file that is \
                neither the old nor the new one, or a temporary file that the next run left.",
        adds_up: false,
        shows: |_| true,
        enough: None,
    },
    PagePart {
        name: "changes",
        heading: "Files that change in use",
        about: "Runs of a model whose file is truncated, overwritten in place, replaced, deleted, or has a page that cannot be \
                read, while it is loaded, in prefill and in decode, at random places and moments (`cargo xtask reliability \
                --changes N`). A failure is a run with other logits than those of the file that was opened, an error that does not \
                name the file, or an effect on another model.",
        adds_up: false,
        shows: |_| true,
        enough: None,
    },
    PagePart {
        name: "sanitizer",
        heading: "Sanitizers and Miri",
        about: "Tests run under a checker of memory accesses (`cargo xtask sanitize`).",
        adds_up: false,
        shows: sanitize::is_subject,
        enough: None,
    },
    PagePart {
        name: "mutants",
        heading: "Mutants",
        about: "Changes of the code that some test should notice (`cargo xtask mutants`). Failures are mutants that survived.",
        adds_up: false,
        shows: |_| true,
        enough: None,
    },
    PagePart {
        name: "soak",
        heading: "Soak",
        about: "A server under mixed use (`cargo xtask soak`).",
        adds_up: false,
        shows: |_| true,
        enough: None,
    },
];

/// Kills writers if asked to, and writes the page.
pub fn run(args: &[String]) -> Result<()> {
    match args {
        [] => {}
        [flag, count] if let Some(repeated) = REPEATED.iter().find(|of| of.flag == flag) => {
            repeat(repeated, count)?;
        }
        _ => bail!("what is `{}`?\n{USAGE}", args.join(" ")),
    }
    let faults = std::fs::read_to_string(FAULTS).with_context(|| FAULTS.to_owned())?;
    let page = page(&record::all()?, &faults)?;
    bilayer_files::write(Path::new(PAGE), page).with_context(|| PAGE.to_owned())
}

/// Tests that do something as often as they are asked to.
struct Repeated {
    flag: &'static str,
    /// The part of the page.
    part: &'static str,
    /// The variable that says how often.
    variable: &'static str,
    /// What a line with a count begins with, before a name.
    word: &'static str,
    unit: &'static str,
    /// Their files, and parts of their names.
    tests: &'static [(&'static str, &'static str)],
}

const REPEATED: [Repeated; 2] = [
    Repeated {
        flag: "--kills",
        part: "kills",
        variable: "BILAYER_TEST_KILLS",
        word: "writer ",
        unit: "kills",
        tests: &[("reliability", "killed_writer"), ("server", "killed"), ("hub", "killed")],
    },
    Repeated {
        flag: "--changes",
        part: "changes",
        variable: "BILAYER_TEST_CHANGES",
        word: "change ",
        unit: "runs",
        tests: &[("reliability", "changes_at_any_moment")],
    },
];

/// Runs tests, so many times each, and records what they printed.
fn repeat(repeated: &Repeated, count: &str) -> Result<()> {
    let Repeated { flag, part, variable, word, unit, tests } = *repeated;
    let count: u32 = count.parse().with_context(|| format!("{flag} needs a number"))?;
    for (file, name) in tests {
        let mut test = cargo();
        // As the suite is built.
        test.args(["test", "--workspace", "--test", file, name, "--", "--nocapture"]);
        test.env(variable, count.to_string()).stderr(Stdio::inherit());
        let ran = test.output().with_context(|| format!("{test:?} could not be started"))?;
        let printed = String::from_utf8_lossy(&ran.stdout);
        let mut found = 0;
        // The runner's own words may precede those of a test on its line.
        let lines = printed.lines().filter_map(|line| Some(line.split_once(word)?.1));
        for line in lines {
            let Printed { name, count, figures, failures } = Printed::read(line)?;
            Record::new(part, name, count, unit)?.failed(failures).note(figures).append()?;
            found += 1;
        }
        if !ran.status.success() || found == 0 {
            bail!("the tests of {file} failed or printed no count:\n{printed}");
        }
    }
    Ok(())
}

/// The page.
fn page(records: &[Record], faults: &str) -> Result<String> {
    let mut page = String::from(
        "# Reliability: what was tried\n\nWritten by `cargo xtask reliability` from benches/record/reliability.jsonl, to \
         which each task appends what it found. What is promised is in SECURITY.md.\n",
    );
    for part in PARTS {
        let about = part.about.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(page, "\n## {}\n\n{about}\n\n", part.heading)?;
        let rows = rows(part, records);
        if rows.is_empty() {
            page.push_str("Not run yet.\n");
            continue;
        }
        page.push_str(
            "| what | count | failures | date | machine | note |\n|---|---|---|---|---|---|\n",
        );
        for row in rows {
            let (count, mut note) = (thousands(row.count), row.note.replace('|', "\\|"));
            if let Some(enough) = part.enough {
                note.push_str(&match fastest(&row, records) {
                    Some(rate) => {
                        let share = share(row.count, enough(rate));
                        format!("{share}; {} a second", thousands(rate))
                    }
                    None => "its rate was not measured".to_owned(),
                });
                match fuzz::kept(&row.name)? {
                    0 => {}
                    inputs => write!(note, "; inputs kept: {inputs}")?,
                }
            }
            let Record { name, unit, failed, date, machine, .. } = row;
            writeln!(page, "| {name} | {count} {unit} | {failed} | {date} | {machine} | {note} |")?;
        }
    }
    let cells = cells(faults);
    write!(
        page,
        "\n## Faults\n\nThe matrix of [faults](faults.md) has {} cells: {} are shown by a test, {} cannot occur, {} are \
         not automated.\n",
        cells.iter().sum::<usize>(),
        cells[0],
        cells[1],
        cells[2]
    )?;
    Ok(page)
}

/// The records of a part, one for each name: the last one, or the sum since the last failure.
fn rows(part: &PagePart, records: &[Record]) -> Vec<Record> {
    let mut rows: BTreeMap<&str, Record> = BTreeMap::new();
    let is_shown = |record: &&Record| record.part == part.name && (part.shows)(&record.name);
    for record in records.iter().filter(is_shown) {
        match rows.get_mut(record.name.as_str()) {
            Some(row) if part.adds_up => {
                let before = if record.failed > 0 { 0.0 } else { row.count };
                let failed = row.failed + record.failed;
                let count = if record.failed > 0 { 0.0 } else { before + record.count };
                *row = Record { count, failed, ..record.clone() };
            }
            _ => {
                let count = if part.adds_up && record.failed > 0 { 0.0 } else { record.count };
                rows.insert(&record.name, Record { count, ..record.clone() });
            }
        }
    }
    rows.into_values().collect()
}

/// How many a second the fastest run of this name did. Short runs begin with their corpus.
fn fastest(row: &Record, records: &[Record]) -> Option<f64> {
    let same = |record: &&Record| record.part == row.part && record.name == row.name;
    let rate = |record: &Record| record.seconds.map(|seconds| record.count / seconds.max(1.0));
    records.iter().filter(same).filter_map(rate).max_by(f64::total_cmp)
}

/// How much of what is enough was done.
fn share(count: f64, enough: f64) -> String {
    match count / enough {
        1.0.. => format!("enough: {}", thousands(enough)),
        share => format!("{:.1} % of {}", 100.0 * share, thousands(enough)),
    }
}

/// Cells of the matrix with a test, that cannot occur, and that are not automated.
fn cells(faults: &str) -> [usize; 3] {
    let moments = ["| load |", "| idle |", "| prefill |", "| decode |", "| save |"];
    let cells = faults.lines().filter(|line| moments.iter().any(|moment| line.starts_with(moment)));
    let mut counts = [0; 3];
    for cell in cells {
        let kind = match cell {
            cell if cell.contains(".rs::") => 0,
            cell if cell.contains("cannot occur") => 1,
            _ => 2,
        };
        counts[kind] += 1;
    }
    counts
}

/// A number with separators, without a fraction.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{PARTS, cells, fastest, rows, share, thousands};
    use crate::record::Record;

    #[test]
    fn executions_add_up_since_the_last_finding() {
        let record = |count: f64, failed| {
            Record::new("fuzz", "a", count, "executions").unwrap().failed(failed)
        };
        let found = rows(&PARTS[0], &[record(5.0, 1), record(7.0, 0), record(8.0, 0)]);
        assert_eq!((found[0].count, found[0].failed), (15.0, 1));
        let found = rows(&PARTS[0], &[record(7.0, 0), record(5.0, 2)]);
        assert_eq!((found[0].count, found[0].failed), (0.0, 2));
    }

    #[test]
    fn the_fastest_run_says_how_many_executions_are_enough() {
        let record =
            |name: &str, count: f64| Record::new("fuzz", name, count, "executions").unwrap();
        let records =
            [record("a", 9e9), record("a", 50.0).seconds(10.0), record("a", 3e5).seconds(20.0)];
        let enough = PARTS[0].enough.unwrap();
        assert_eq!(fastest(&records[0], &records), Some(15e3));
        assert_eq!(enough(15e3), 100e6);
        assert_eq!(enough(fastest(&records[0], &records[..2]).unwrap()), 2e6);
        assert_eq!(fastest(&record("b", 1.0), &records), None);
    }

    #[test]
    fn cells_are_counted_by_kind() {
        let page = "| load | a | `t.rs::b` |\n| idle | cannot occur | |\n| save | not automated | |\n| other |";
        assert_eq!(cells(page), [1, 1, 1]);
        assert_eq!(thousands(1234567.0), "1,234,567");
        assert_eq!(share(5e5, 2e6), "25.0 % of 2,000,000");
        assert_eq!(share(2e6, 2e6), "enough: 2,000,000");
    }
}
