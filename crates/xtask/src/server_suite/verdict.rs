//! Compares the outcomes of llama.cpp's tests with the list of known failures.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// Outcomes by test: `passed`, `failed` or `skipped`.
pub type Outcomes = BTreeMap<String, String>;

/// The program that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    /// `bilayer serve`.
    Bilayer,
    /// llama-server.
    Control,
}

/// What is known about a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// It is out of scope, and not run.
    Outside,
    /// It fails with both programs: its own model would be needed.
    Both,
    /// It fails with `bilayer serve` alone.
    Bilayer,
    /// It fails with llama-server alone.
    Control,
}

/// A line of the list: what is known about the tests whose names contain a text, and why.
#[derive(Debug)]
pub struct Entry<'a> {
    pub fact: Fact,
    pub part: &'a str,
    pub reason: &'a str,
}

impl Entry<'_> {
    /// Whether the test fails with that program.
    fn fails(&self, server: Server) -> bool {
        match self.fact {
            Fact::Outside => false,
            Fact::Both => true,
            Fact::Bilayer => server == Server::Bilayer,
            Fact::Control => server == Server::Control,
        }
    }
}

/// Parses the list: `FACT PART: REASON`, a line each.
pub fn list(text: &str) -> Result<Vec<Entry<'_>>> {
    let entry = |line| {
        let (fact, rest): (&str, &str) = str::split_once(line, ' ')?;
        let (part, reason) = rest.split_once(": ")?;
        let fact = match fact {
            "outside" => Fact::Outside,
            "both" => Fact::Both,
            "bilayer" => Fact::Bilayer,
            "control" => Fact::Control,
            _ => return None,
        };
        Some(Entry { fact, part, reason })
    };
    text.lines().map(|line| entry(line).with_context(|| format!("misses.txt: {line}"))).collect()
}

/// Parses the plugin's report. A test that fails in any of its phases failed.
pub fn outcomes(report: &str) -> Result<Outcomes> {
    let mut found = Outcomes::new();
    for (outcome, test) in report.lines().filter_map(|line| line.split_once('\t')) {
        let known = found.entry(test.to_owned()).or_default();
        if known != "failed" {
            outcome.clone_into(known);
        }
    }
    if found.is_empty() {
        bail!("no test ran");
    }
    Ok(found)
}

/// The summary, and the number of outcomes that are not as the list says.
pub fn judge(found: &Outcomes, list: &[Entry<'_>], server: Server) -> (String, usize) {
    let count = |outcome: &str| found.values().filter(|found| *found == outcome).count();
    let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
    let share = |of: usize| format!("{passed} of {of} ({:.1} %)", percent(passed, of));
    let mut text = format!("passed {}, {skipped} skipped\n", share(passed + failed));
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let (mut shared, mut wrong) = (0, Vec::new());
    for (test, outcome) in found {
        let known = list.iter().find(|entry| entry.fails(server) && test.contains(entry.part));
        match (outcome.as_str(), known) {
            ("failed", None) => wrong.push(format!("not listed: {test}\n")),
            ("passed", Some(_)) => wrong.push(format!("listed, but passes: {test}\n")),
            ("failed", Some(entry)) => {
                shared += usize::from(entry.fact == Fact::Both);
                reasons.entry(entry.reason).or_default().push(test);
            }
            _ => {}
        }
    }
    if shared > 0 {
        let others = share(passed + failed - shared);
        text += &format!("{shared} fail with both servers; of the others passed {others}\n");
    }
    for (reason, tests) in reasons {
        text += &format!("{} failed: {reason}\n", tests.len());
        text.extend(tests.iter().map(|test| format!("  {test}\n")));
    }
    text.extend(wrong.iter().map(String::as_str));
    (text, wrong.len())
}

fn percent(part: usize, whole: usize) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::MISSES;
    use super::{Server, judge, list, outcomes};

    const REPORT: &str =
        "passed\tunit/a.py::one\nfailed\tunit/a.py::two[x]\nfailed\tunit/b.py::three\n";

    #[test]
    fn failures_are_known_or_wrong() {
        let found = outcomes(REPORT).unwrap();
        let known = list("both a.py::two: a model that is not here\n").unwrap();
        let (text, wrong) = judge(&found, &known, Server::Bilayer);
        assert!(text.starts_with("passed 1 of 3 (33.3 %), 0 skipped\n"), "{text}");
        let others = "1 fail with both servers; of the others passed 1 of 2 (50.0 %)\n";
        assert!(text.contains(others), "{text}");
        assert!(
            text.contains("1 failed: a model that is not here\n  unit/a.py::two[x]\n"),
            "{text}"
        );
        assert!(text.ends_with("not listed: unit/b.py::three\n"), "{text}");
        assert_eq!(wrong, 1);
    }

    #[test]
    fn a_fact_about_one_program_says_nothing_about_the_other() {
        let found = outcomes(REPORT).unwrap();
        let known = list("both two: a\nbilayer three: b\ncontrol one: c\n").unwrap();
        assert_eq!(judge(&found, &known, Server::Bilayer).1, 0);
        let (text, wrong) = judge(&found, &known, Server::Control);
        assert!(text.contains("not listed: unit/b.py::three\n"), "{text}");
        assert!(text.contains("listed, but passes: unit/a.py::one\n"), "{text}");
        assert_eq!(wrong, 2);
    }

    #[test]
    fn a_test_that_fails_after_its_call_failed() {
        let report = "passed\ta\nfailed\ta\nfailed\tb\npassed\tb\n";
        let found = outcomes(report).unwrap();
        assert!(found.values().all(|outcome| outcome == "failed"), "{found:?}");
        assert!(outcomes("").is_err());
    }

    #[test]
    fn every_line_of_the_list_has_a_reason() {
        let known = list(MISSES).unwrap();
        assert!(!known.is_empty() && known.iter().all(|entry| entry.reason.len() > 10));
        assert!(list("both test_a\n").is_err() && list("maybe test_a: unknown fact\n").is_err());
    }
}
