//! The table of ratios: builds its rows and merges them into a file's table.

use std::fmt;

use super::cases::Case;
use super::peer::Build;
use super::{Measured, Tests};
use crate::report::median;

/// Names of the columns.
const COLUMNS: &str = "| model | CPU level | threads | test | bilayer | llama.cpp | ratio | range | target | share of read bandwidth | memory beyond the file |";

/// Names of the further columns of ik_llama.cpp.
pub const IK_COLUMNS: &str = " ik_llama.cpp | ratio to ik_llama.cpp | range |";

/// Header and separator, with further columns or "".
pub fn head(further: &str) -> String {
    let columns = format!("{COLUMNS}{further}");
    let separator = "---|".repeat(columns.matches('|').count() - 1);
    format!("{columns}\n|{separator}")
}

/// The context of results.
pub struct About<'a> {
    pub model: &'a str,
    /// Empty for the highest level.
    pub level: &'a str,
    pub peer: Build,
    /// Busy threads beside the programs.
    pub busy: usize,
    pub case: &'a Case,
    /// Size of the file in bytes.
    pub bytes: u64,
}

/// A row: the key that identifies it, and the results.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    key: [String; 4],
    found: [String; 7],
    /// Speed of ik_llama.cpp, ratio and range, if it was asked for.
    ik: Option<[String; 3]>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| {} | {} |", self.key.join(" | "), self.found.join(" | "))?;
        self.ik.as_ref().map_or(Ok(()), |ik| write!(f, " {} |", ik.join(" | ")))
    }
}

/// One row per test that this program and llama.cpp reported in every round; `iks` are the rounds of ik_llama.cpp, which
/// may lack tests.
pub fn rows(
    about: &About<'_>,
    ours: &[Tests],
    theirs: &[Tests],
    iks: Option<&[Tests]>,
) -> Vec<Row> {
    let Some(first) = ours.first() else { return Vec::new() };
    let mut rows = Vec::new();
    for name in first.keys() {
        let of = |rounds: &[Tests]| rounds.iter().map(|tests| tests.get(name).copied()).collect();
        let (Some(ours), Some(theirs)): (Option<Vec<Measured>>, Option<Vec<Measured>>) =
            (of(ours), of(theirs))
        else {
            continue;
        };
        let ik = iks.map(|iks| match of(iks) {
            Some(iks) => {
                let (ratio, range) = ratios(about.case, &ours, &iks);
                [speed(about.case, &iks), ratio, range]
            }
            None => ["-"; 3].map(str::to_owned),
        });
        rows.push(Row { ik, ..row(about, name, &ours, &theirs) });
    }
    rows
}

/// The median speed.
fn speed(case: &Case, measured: &[Measured]) -> String {
    let unit = if case.first_token { "s" } else { "tok/s" };
    let values: Vec<f64> = measured.iter().map(|measured| measured.value).collect();
    match median(&values) {
        value if value < 10.0 => format!("{value:.2} {unit}"),
        value => format!("{value:.1} {unit}"),
    }
}

/// Median and range of the paired ratios.
fn ratios(case: &Case, ours: &[Measured], theirs: &[Measured]) -> (String, String) {
    let ratio = |(a, b): (&Measured, &Measured)| {
        if case.first_token { b.value / a.value } else { a.value / b.value }
    };
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(ratio).collect();
    let (least, most) = ratios.iter().fold((f64::MAX, 0.0_f64), |(l, m), &r| (l.min(r), m.max(r)));
    (format!("{:.2}x", median(&ratios)), format!("{least:.2} to {most:.2}"))
}

fn row(about: &About<'_>, name: &str, ours: &[Measured], theirs: &[Measured]) -> Row {
    let case = about.case;
    let (ratio, range) = ratios(case, ours, theirs);
    let shares: Vec<f64> = ours.iter().filter_map(|measured| measured.share).collect();
    let share = median(&shares);
    let share = if share.is_nan() { "-".to_owned() } else { format!("{:.0} %", 100.0 * share) };
    let beyond = |measured: &[Measured]| {
        let peak = measured.iter().map(|measured| measured.peak).fold(f64::NAN, f64::max);
        100.0 * (peak / about.bytes as f64 - 1.0)
    };
    let (mine, peers) = (beyond(ours), beyond(theirs));
    let memory = if mine.is_nan() {
        "-".to_owned()
    } else {
        format!("{mine:+.0} %, llama.cpp {peers:+.0} %")
    };
    let level = if about.level.is_empty() { "best" } else { about.level };
    let level = if about.peer == Build::Avx2 { format!("{level}, both") } else { level.to_owned() };
    let found =
        [speed(case, ours), speed(case, theirs), ratio, range, target(case, name), share, memory];
    let name =
        if about.busy > 0 { format!("{name}, {} busy", about.busy) } else { name.to_owned() };
    Row { key: [about.model.to_owned(), level, case.threads.to_string(), name], found, ik: None }
}

/// The target ratio.
fn target(case: &Case, name: &str) -> String {
    let place = match name {
        _ if case.first_token => 0,
        name if name.starts_with("pp") => 0,
        name => {
            let is = |count: usize| {
                let times = if count > 1 { format!(" x{count}") } else { String::new() };
                name.split(" @").next() == Some(&format!("tg{}{times}", case.generate))
            };
            1 + case.sequences.iter().position(|&count| is(count)).unwrap_or(usize::MAX - 1)
        }
    };
    match case.targets.get(place) {
        Some(seconds) if case.first_token => format!("{seconds} s"),
        Some(ratio) => format!("{ratio}x"),
        None => "-".to_owned(),
    }
}

/// Merges rows into the table: each replaces the row with its key, or is appended. A table with a row of ik_llama.cpp has
/// its columns, and those of other rows are empty.
pub fn merge(table: &str, rows: &[Row]) -> String {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let has_ik = table.contains(IK_COLUMNS) || rows.iter().any(|row| row.ik.is_some());
    let mut lines: Vec<String> = table.lines().skip(2).map(str::to_owned).collect();
    for row in rows {
        let same = |line: &&mut String| cells(line).get(1..5) == Some(&row.key[..]);
        match lines.iter_mut().find(same) {
            Some(line) => *line = row.to_string(),
            None => lines.push(row.to_string()),
        }
    }
    let head = head(if has_ik { IK_COLUMNS } else { "" });
    let count = head.lines().next().map_or(0, |columns| columns.matches('|').count());
    let empty = |line: &str| " - |".repeat(count.saturating_sub(line.matches('|').count()));
    let lines: String = lines.iter().map(|line| format!("{line}{}\n", empty(line))).collect();
    format!("{head}\n{lines}")
}

#[cfg(test)]
mod tests {
    use super::super::cases;
    use super::*;

    fn measured(value: f64, share: Option<f64>) -> Measured {
        Measured { value, peak: 1100.0, share }
    }

    fn round(prompt: f64, generate: f64) -> Tests {
        Tests::from([
            ("pp512".to_owned(), measured(prompt, None)),
            ("tg64".to_owned(), measured(generate, Some(0.9))),
        ])
    }

    #[test]
    fn ratios_are_paired() {
        let case = &cases::all()[0];
        let about =
            About { model: "m", level: "", peer: Build::Native, busy: 0, case, bytes: 1000 };
        let ours = [round(10.0, 2.0), round(20.0, 4.0), round(30.0, 9.0)];
        let theirs = [round(5.0, 2.0), round(10.0, 2.0), round(10.0, 3.0)];
        let rows = rows(&about, &ours, &theirs, None);
        let memory = "+10 %, llama.cpp +10 %";
        assert_eq!(
            rows[0].to_string(),
            format!(
                "| m | best | 2 | pp512 | 20.0 tok/s | 10.0 tok/s | 2.00x | 2.00 to 3.00 | 1.9x | - | {memory} |"
            )
        );
        assert_eq!(
            rows[1].to_string(),
            format!(
                "| m | best | 2 | tg64 | 4.00 tok/s | 2.00 tok/s | 2.00x | 1.00 to 3.00 | 1.1x | 90 % | {memory} |"
            )
        );
    }

    #[test]
    fn of_a_first_token_less_is_more() {
        let case = cases::all().into_iter().find(|case| case.first_token).unwrap();
        let about = About {
            model: "m",
            level: "amx",
            peer: Build::Avx2,
            busy: 2,
            case: &case,
            bytes: 1000,
        };
        let of = |seconds| {
            vec![Tests::from([(
                "first token".to_owned(),
                Measured { peak: f64::NAN, ..measured(seconds, None) },
            )])]
        };
        let row = &rows(&about, &of(0.5), &of(1.5), None)[0];
        let expected = "| m | amx, both | 2 | first token, 2 busy | 0.50 s | 1.50 s | 3.00x | 3.00 to 3.00 | 0.6 s | - | - |";
        assert_eq!(row.to_string(), expected);
    }

    #[test]
    fn every_test_of_the_table_has_a_target() {
        for case in cases::all().iter().filter(|case| !case.first_token) {
            for &count in &case.sequences {
                let times = if count > 1 { format!(" x{count}") } else { String::new() };
                let behind =
                    if case.depth > 0 { format!(" @ d{}", case.depth) } else { String::new() };
                let name = format!("tg{}{times}{behind}", case.generate);
                assert_ne!(target(case, &name), "-", "{name} of {case:?}");
            }
        }
    }

    #[test]
    fn rows_replace_those_of_their_name_and_others_stay() {
        let row = |test: &str, ratio: &str| {
            let key = ["m", "best", "2", test].map(str::to_owned);
            let found = ["1", "2", ratio, "-", "-", "-", "-"].map(str::to_owned);
            Row { key, found, ik: None }
        };
        let one = merge("", &[row("pp", "3"), row("tg", "4")]);
        let two = merge(&one, &[row("pp", "5"), row("tg x2", "6")]);
        let expected = [row("pp", "5"), row("tg", "4"), row("tg x2", "6")]
            .map(|row| row.to_string())
            .join("\n");
        assert_eq!(two, format!("{}\n{expected}\n", head("")));
    }

    #[test]
    fn columns_of_ik_are_added_to_the_table() {
        let case = &cases::all()[0];
        let about =
            About { model: "m", level: "", peer: Build::Native, busy: 0, case, bytes: 1000 };
        let (ours, theirs) = ([round(30.0, 4.0)], [round(10.0, 2.0)]);
        let mut ik = round(20.0, 2.0);
        ik.remove("tg64");
        let found = rows(&about, &ours, &theirs, Some(&[ik]));
        assert!(found[0].to_string().ends_with("| 20.0 tok/s | 1.50x | 1.50 to 1.50 |"));
        assert!(found[1].to_string().ends_with("| - | - | - |"));
        let old = rows(&About { model: "n", ..about }, &ours, &theirs, None);
        let table = merge(&merge("", &old), &found);
        assert!(table.starts_with(&head(IK_COLUMNS)));
        let count = |line: &str| line.matches('|').count();
        assert!(table.lines().all(|line| count(line) == 15), "{table}");
        assert_eq!(merge(&table, &old).lines().count(), 6);
    }
}
