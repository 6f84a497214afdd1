//! The page of results: tests as bars, one for each model, commit and setting that is compared.

use std::path::Path;

use bilayer_scheduler::map::Devices;
use minijinja::{Error, Value as Shown, context};
use serde_json::{Map, Value};

use super::settings::SETTINGS;
use crate::failure::Failure;
use crate::output::{self, counted};
use crate::page::{self, class_of, class_of_bar, short};

const TEMPLATE: &str = include_str!("page.html");

/// A result: fields as `-o json` writes them.
pub type Result = Map<String, Value>;

/// Fields that tell results apart before their settings do, in the order of a name, with what precedes their value.
const SUBJECTS: [(&str, &str); 6] = [
    ("model_type", ""),
    ("model_filename", ""),
    ("build_commit", "commit "),
    ("backends", ""),
    ("gpu_info", ""),
    ("cpu_info", ""),
];

/// Reads results that `bench -o json` or `-o jsonl`, or llama-bench, has written.
///
/// # Errors
/// The file cannot be read, or has something else.
pub fn read(path: &Path) -> std::result::Result<Vec<Result>, Failure> {
    let text = output::file(path)?;
    let wrong = |problem: String| {
        let form = "give a file that `bench -o json` or `-o jsonl` wrote";
        Failure::usage(format!("{problem}; {form}")).in_file(path)
    };
    let values: std::result::Result<Vec<Value>, _> = match text.trim_start().starts_with('[') {
        true => serde_json::from_str(&text),
        false => serde_json::Deserializer::from_str(&text).into_iter().collect(),
    };
    let values = values.map_err(|error| wrong(error.to_string()))?;
    if values.is_empty() {
        return Err(wrong("it has no results".to_owned()));
    }
    let result = |value: Value| match value {
        Value::Object(result) if speed(&result).is_some() => Ok(result),
        _ => Err(wrong("it has something that is no result of a test".to_owned())),
    };
    values.into_iter().map(result).collect()
}

/// Renders the page of some results, at least one.
///
/// # Errors
/// The template does not match its data, which is a bug.
pub fn html(results: &[Result]) -> std::result::Result<String, Error> {
    let names = names(results);
    let mut tests: Vec<Test> = Vec::new();
    for (at, result) in results.iter().enumerate() {
        let test = Test::of(result);
        match tests.iter_mut().find(|known| known.key() == test.key()) {
            Some(known) => known.results.push(at),
            None => tests.push(Test { results: vec![at], ..test }),
        }
    }
    let best = |test: &Test| {
        let all = test.results.iter().copied();
        all.max_by(|&a, &b| speed(&results[a]).total_cmp_option(speed(&results[b])))
    };
    let leading = tests.iter().find(|test| test.prompt == 0).or(tests.first());
    let fastest = leading.and_then(best).unwrap_or(0);
    let title = leading.map_or(String::new(), Test::title);
    let models = distinct(results, "model_type").len();
    page::render(
        TEMPLATE,
        context! {
            command => "bench",
            subject => distinct(results, "model_type").join(", "),
            headline => format!("{title}: {} tok/s", short(speed(&results[fastest]).unwrap_or(0.0))),
            why => why(results, &names, fastest),
            figures => figures(results, &tests, models),
            tests => tests.iter().enumerate().map(|(at, test)| card(at, test, results, &names)).collect::<Vec<_>>(),
            table => table(results, &names),
            made => made(results),
            notes => NOTES,
            json => page::document(&results),
        },
    )
}

const NOTES: [&str; 3] = [
    "pp reads a prompt of so many tokens, tg generates so many, one after another; d tokens were in the KV cache before.",
    "Speeds are means over the repetitions, with their standard deviation; of several sequences, their sum.",
    "The factor compares with the first result of a test.",
];

/// What was tested.
struct Test {
    prompt: u64,
    generate: u64,
    depth: u64,
    parallel: u64,
    /// Numbers of its results.
    results: Vec<usize>,
}

impl Test {
    fn of(result: &Result) -> Test {
        let count = |name: &str| result.get(name).and_then(Value::as_u64);
        Test {
            prompt: count("n_prompt").unwrap_or(0),
            generate: count("n_gen").unwrap_or(0),
            depth: count("n_depth").unwrap_or(0),
            parallel: count("n_parallel").unwrap_or(1),
            results: Vec::new(),
        }
    }

    fn key(&self) -> (u64, u64, u64, u64) {
        (self.prompt, self.generate, self.depth, self.parallel)
    }

    /// As llama-bench names it.
    fn title(&self) -> String {
        let mut title = match (self.prompt, self.generate) {
            (prompt, 0) => format!("pp{prompt}"),
            (0, generate) => format!("tg{generate}"),
            (prompt, generate) => format!("pp{prompt}+tg{generate}"),
        };
        if self.parallel > 1 {
            title += &format!(" \u{d7}{}", self.parallel);
        }
        if self.depth > 0 {
            title += &format!(" at d{}", self.depth);
        }
        title
    }

    fn meaning(&self) -> String {
        let after = match self.depth {
            0 => String::new(),
            depth => format!(" after {depth} tokens"),
        };
        let sequences = match self.parallel {
            1 => String::new(),
            count => format!(", {count} sequences together"),
        };
        match (self.prompt, self.generate) {
            (prompt, 0) => format!("A prompt of {prompt} tokens is read{after}."),
            (0, generate) => format!("{generate} tokens are generated{after}{sequences}."),
            (prompt, generate) => {
                format!(
                    "A prompt of {prompt} tokens is read, then {generate} are generated{after}."
                )
            }
        }
    }
}

/// Comparison of speeds that may be missing.
trait TotalCmp {
    fn total_cmp_option(self, other: Self) -> std::cmp::Ordering;
}

impl TotalCmp for Option<f64> {
    fn total_cmp_option(self, other: Self) -> std::cmp::Ordering {
        self.unwrap_or(0.0).total_cmp(&other.unwrap_or(0.0))
    }
}

/// Tokens per second.
fn speed(result: &Result) -> Option<f64> {
    number(result, "avg_ts").filter(|speed| speed.is_finite() && *speed >= 0.0)
}

fn number(result: &Result, name: &str) -> Option<f64> {
    let value = result.get(name)?;
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

/// A field as text.
fn text(result: &Result, name: &str) -> String {
    match result.get(name) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

/// The values of a field, each once.
fn distinct(results: &[Result], name: &str) -> Vec<String> {
    let mut values: Vec<String> = Vec::new();
    for value in results.iter().map(|result| text(result, name)) {
        if !value.is_empty() && !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// A name for each result: the fields in which they differ; the time only where nothing else does, and a number where not
/// even that does.
fn names(results: &[Result]) -> Vec<String> {
    let varied = |name: &str| {
        let first = results.first().map(|result| text(result, name));
        results.iter().any(|result| Some(text(result, name)) != first)
    };
    let settings = SETTINGS.iter().map(|setting| (setting.field, setting.flag));
    let fields: Vec<(&str, &str)> =
        SUBJECTS.into_iter().chain(settings).filter(|(field, _)| varied(field)).collect();
    let name = |result: &Result| {
        let parts = fields.iter().map(|(field, before)| (before, text(result, field)));
        let parts: Vec<String> = parts
            .filter(|(_, value)| !value.is_empty())
            .map(|(before, value)| format!("{before}{value}"))
            .collect();
        parts.join(", ")
    };
    let mut names: Vec<String> = results.iter().map(name).collect();
    let tests: Vec<_> = results.iter().map(|result| Test::of(result).key()).collect();
    // How many earlier results of the same test have the name of this one.
    let before = |names: &[String], at: usize| {
        (0..at).filter(|&other| names[other] == names[at] && tests[other] == tests[at]).count()
    };
    if (0..results.len()).any(|at| before(&names, at) > 0) {
        for (result, name) in results.iter().zip(&mut names) {
            let time = text(result, "test_time");
            *name = if name.is_empty() { time } else { format!("{name}, {time}") };
        }
    }
    for (result, name) in results.iter().zip(&mut names) {
        if name.is_empty() {
            *name = text(result, "model_type");
        }
    }
    let numbers: Vec<usize> = (0..results.len()).map(|at| before(&names, at) + 1).collect();
    for (name, number) in names.iter_mut().zip(numbers).filter(|(_, number)| *number > 1) {
        *name += &format!(" ({number})");
    }
    names
}

/// What is fastest, of how many.
fn why(results: &[Result], names: &[String], fastest: usize) -> String {
    let commits = distinct(results, "build_commit");
    let models = distinct(results, "model_type").len();
    match (results.len(), models, commits.len()) {
        (1, ..) => format!("One result on {}.", machine(results)),
        (count, 1, 1) => {
            format!("{count} results on {}; fastest: {}.", machine(results), names[fastest])
        }
        (count, models, commits) => format!(
            "{count} results of {} and {} on {}; fastest: {}.",
            counted(models, ["model", "models"]),
            counted(commits, ["commit", "commits"]),
            machine(results),
            names[fastest]
        ),
    }
}

fn machine(results: &[Result]) -> String {
    let all = ["gpu_info", "cpu_info"].map(|name| distinct(results, name)).concat();
    if all.is_empty() { "an unknown machine".to_owned() } else { all.join(", ") }
}

/// The best result of each of the first tests.
fn figures(results: &[Result], tests: &[Test], models: usize) -> Vec<Shown> {
    let figure = |test: &Test| {
        let speeds = test.results.iter().filter_map(|&at| speed(&results[at]));
        let best = speeds.fold(0.0, f64::max);
        let beside = match test.results.len() {
            1 if models == 1 => {
                format!("{} ms per token", short(1e3 / best.max(f64::MIN_POSITIVE)))
            }
            count => format!("best of {count}"),
        };
        context! { name => test.title(), number => short(best), unit => "tok/s", beside }
    };
    tests.iter().take(4).map(figure).collect()
}

/// The bars of a test.
fn card(at: usize, test: &Test, results: &[Result], names: &[String]) -> Shown {
    let speeds: Vec<f64> =
        test.results.iter().map(|&at| speed(&results[at]).unwrap_or(0.0)).collect();
    let most = speeds.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let bar = |(place, &at): (usize, &usize)| {
        let result = &results[at];
        let layers = number(result, "n_gpu_layers").unwrap_or(0.0);
        let map = text(result, "placement");
        let whose = match map.is_empty() && layers > 0.0 && !text(result, "gpu_info").is_empty() {
            true => class_of(Devices::Offload),
            false => class_of_bar(&map),
        };
        let times = match place {
            0 => String::new(),
            _ => format!(", {}\u{d7}", short(speeds[place] / speeds[0].max(f64::MIN_POSITIVE))),
        };
        context! {
            name => &names[at],
            speed => short(speeds[place]),
            deviation => short(number(result, "stddev_ts").unwrap_or(0.0)),
            times,
            whose,
            share => format!("{:.2}", 100.0 * speeds[place] / most),
        }
    };
    let bars: Vec<Shown> = test.results.iter().enumerate().map(bar).collect();
    context! { id => format!("test{at}"), title => test.title(), meaning => test.meaning(), bars }
}

/// A row for each result.
fn table(results: &[Result], names: &[String]) -> Shown {
    let head = [
        ["Result", ""],
        ["Test", ""],
        ["Speed", "tok/s"],
        ["\u{b1}", "tok/s"],
        ["Time", "ms/token"],
        ["Weights read", "GB/s"],
        ["On the GPU", "layers"],
        ["Threads", ""],
        ["Commit", ""],
    ];
    let row = |(result, name): (&Result, &String)| {
        let figure = |name: &str, places: usize| {
            number(result, name).map_or("\u{2013}".to_owned(), |value| format!("{value:.places$}"))
        };
        let ms = speed(result).filter(|speed| *speed > 0.0);
        vec![
            name.clone(),
            Test::of(result).title(),
            figure("avg_ts", 2),
            figure("stddev_ts", 2),
            ms.map_or("\u{2013}".to_owned(), |speed| format!("{:.3}", 1e3 / speed)),
            figure("weight_gbps", 1),
            figure("n_gpu_layers", 0),
            figure("n_threads", 0),
            text(result, "build_commit"),
        ]
    };
    let rows: Vec<Vec<String>> = results.iter().zip(names).map(row).collect();
    context! { head => head.to_vec(), rows }
}

/// The conditions of the measurements: names and values.
fn made(results: &[Result]) -> Vec<Shown> {
    let facts = [
        ("Models", "model_filename"),
        ("CPU", "cpu_info"),
        ("GPU", "gpu_info"),
        ("Commits", "build_commit"),
        ("Placement", "placement"),
        ("Times", "test_time"),
    ];
    let fact = |(name, field): (&str, &str)| {
        let values = distinct(results, field);
        (!values.is_empty()).then(|| context! { name, value => values.join(", ") })
    };
    facts.into_iter().filter_map(fact).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(of: &Value) -> Result {
        of.as_object().unwrap().clone()
    }

    #[test]
    fn results_are_named_by_what_differs() {
        let of = |commit: &str, layers: u64, time: &str| {
            result(&json!({ "model_type": "llama", "build_commit": commit, "n_gpu_layers": layers,
                "test_time": time, "n_gen": 8, "avg_ts": 2.0 }))
        };
        let cases = [
            (vec![of("a", 1, "x")], vec!["llama"]),
            (vec![of("a", 1, "x"), of("b", 1, "y")], vec!["commit a", "commit b"]),
            (vec![of("a", 1, "x"), of("a", 2, "x")], vec!["-ngl 1", "-ngl 2"]),
            (vec![of("a", 1, "x"), of("a", 1, "y")], vec!["x", "y"]),
            (vec![of("a", 1, "x"), of("a", 1, "x")], vec!["x", "x (2)"]),
        ];
        for (results, expected) in cases {
            assert_eq!(names(&results), expected);
        }
    }

    /// Every setting that has a column in the table is part of a name.
    #[test]
    fn every_setting_tells_results_apart() {
        for setting in &SETTINGS {
            let of = |value: &str| {
                result(&json!({ "model_type": "llama", setting.field: value, "avg_ts": 2.0 }))
            };
            let expected = ["a", "b"].map(|value| format!("{}{value}", setting.flag));
            assert_eq!(names(&[of("a"), of("b")]), expected);
        }
    }
}
