//! Results of measurements: rows with a value, a bar and a verdict, printed as Markdown; and the statistics behind them.

use std::fmt;
use std::time::Duration;

/// Whether a value meets its bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Fail,
    /// There is no bar: the value explains others.
    Shown,
}

impl Verdict {
    /// Passes from the bar upwards; a value that is not a number fails.
    pub fn at_least(value: f64, bar: f64) -> Verdict {
        if value >= bar { Verdict::Pass } else { Verdict::Fail }
    }

    /// Passes up to the bar; a value that is not a number fails.
    pub fn at_most(value: f64, bar: f64) -> Verdict {
        if value <= bar { Verdict::Pass } else { Verdict::Fail }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "FAIL",
            Verdict::Shown => "-",
        })
    }
}

/// A measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    what: String,
    value: String,
    bar: String,
    verdict: Verdict,
}

impl Row {
    /// A value with a bar.
    pub fn judged(
        what: impl Into<String>,
        value: impl Into<String>,
        bar: impl Into<String>,
        verdict: Verdict,
    ) -> Row {
        Row { what: what.into(), value: value.into(), bar: bar.into(), verdict }
    }

    /// A value without a bar.
    pub fn shown(what: impl Into<String>, value: impl Into<String>) -> Row {
        Row::judged(what, value, "-", Verdict::Shown)
    }
}

/// The result of a part.
#[derive(Debug, PartialEq)]
pub struct Section {
    /// Name of the part.
    pub name: &'static str,
    /// What was measured and how, in a paragraph.
    pub about: String,
    pub rows: Vec<Row>,
}

impl Section {
    /// The result of a part that could not be measured.
    pub fn broken(name: &'static str, error: &anyhow::Error) -> Section {
        let error = format!("{error:#}").replace('|', "/").replace('\n', " ");
        let row = Row::judged("measurement", error, "completes", Verdict::Fail);
        Section { name, about: "It could not be measured.".to_owned(), rows: vec![row] }
    }

    /// The values that miss their bars, in words.
    pub fn failed(&self) -> Vec<String> {
        let missed = self.rows.iter().filter(|row| row.verdict == Verdict::Fail);
        missed.map(|row| format!("{}: {}", row.what, row.value)).collect()
    }

    /// Number of values that miss their bar.
    pub fn failures(&self) -> usize {
        self.rows.iter().filter(|row| row.verdict == Verdict::Fail).count()
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n\n{}\n", self.name, self.about)?;
        writeln!(f, "| value | measured | bar | result |\n|---|---|---|---|")?;
        for Row { what, value, bar, verdict } in &self.rows {
            writeln!(f, "| {what} | {value} | {bar} | {verdict} |")?;
        }
        Ok(())
    }
}

/// The median; not a number without values.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => f64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

/// The smallest value that at least `share` (0 to 1) of the values do not exceed; not a number without values.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// The largest value; not a number without values.
pub fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::NAN, f64::max)
}

/// Median and range, `0.97 (0.95 to 0.99)`.
pub fn spread(values: &[f64], digits: usize) -> String {
    let least = values.iter().copied().fold(f64::NAN, f64::min);
    let (middle, most) = (median(values), largest(values));
    format!("{middle:.digits$} ({least:.digits$} to {most:.digits$})")
}

/// Milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let at = |share| quantile(&values, share) as u32;
        assert_eq!([at(0.0), at(0.5), at(0.95), at(0.99), at(1.0)], [1, 50, 95, 99, 100]);
        assert!(quantile(&[], 0.99).is_nan() && median(&[]).is_nan() && largest(&[]).is_nan());
        assert_eq!(quantile(&[7.0], 0.99) as u32, 7);
        assert!((median(&[1.0, 2.0]) - 1.5).abs() < 1e-12);
        assert_eq!(spread(&[3.0, 1.0, 2.0], 1), "2.0 (1.0 to 3.0)");
    }

    #[test]
    fn what_was_not_measured_fails() {
        assert_eq!(Verdict::at_least(1.0, 1.0), Verdict::Pass);
        assert_eq!(Verdict::at_most(1.0, 1.0), Verdict::Pass);
        assert_eq!(Verdict::at_least(0.9, 1.0), Verdict::Fail);
        assert_eq!(Verdict::at_least(f64::NAN, 1.0), Verdict::Fail);
        assert_eq!(Verdict::at_most(f64::NAN, 1.0), Verdict::Fail);
    }

    #[test]
    fn a_section_is_a_table_with_its_failures_counted() {
        let rows = vec![
            Row::judged("ratio", "0.90", "at least 0.95", Verdict::at_least(0.9, 0.95)),
            Row::shown("speed", "3 tok/s"),
        ];
        let section = Section { name: "streams", about: "Two of them.".to_owned(), rows };
        assert_eq!(section.failures(), 1);
        let expected = "### streams\n\nTwo of them.\n\n| value | measured | bar | result |\n|---|---|---|---|\n\
                        | ratio | 0.90 | at least 0.95 | FAIL |\n| speed | 3 tok/s | - | - |\n";
        assert_eq!(section.to_string(), expected);
        let broken = Section::broken("peer", &anyhow::anyhow!("a | b\nc"));
        assert_eq!(broken.failures(), 1);
        assert!(broken.to_string().contains("| measurement | a / b c | completes | FAIL |"));
    }
}
