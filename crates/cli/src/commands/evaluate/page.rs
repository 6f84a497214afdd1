//! The page of an evaluation: models side by side, and every answer.

use bilayer_measure::evaluate::{Case, Expected, Question};
use minijinja::{Error, Value as Shown, context};

use super::{Args, Judged, document, money, time};
use crate::page::{self, class_of_bar, short};

const TEMPLATE: &str = include_str!("page.html");

/// Characters of a question or an answer that are shown.
const TEXT_MAX: usize = 2000;

/// Renders the page.
///
/// # Errors
/// The template does not match its data, which is a bug.
pub fn html(args: &Args, cases: &[Case], all: &[Judged]) -> Result<String, Error> {
    let data = args.data.display().to_string();
    let passes = !all.iter().any(|judged| judged.is_below(args.floor));
    let percent = |share: f64| format!("{:.1}", 100.0 * share);
    let headline = match args.floor {
        Some(_) if passes => "Passed".to_owned(),
        Some(_) => "Below the floor".to_owned(),
        None => best(all),
    };
    page::render(
        TEMPLATE,
        context! {
            command => "evaluate",
            subject => &data,
            headline,
            why => why(args, cases, all),
            figures => figures(all),
            floor => args.floor.map(percent),
            models => all.iter().map(|judged| bar(args, judged)).collect::<Vec<_>>(),
            cases => cases.iter().enumerate().map(|(at, case)| row(at, case, all)).collect::<Vec<_>>(),
            table => table(args, all),
            made => made(args, all),
            notes => NOTES,
            json => page::document(&document(args, all)),
        },
    )
}

/// The best model, with its share of cases that pass.
fn best(all: &[Judged]) -> String {
    // Of equal ones the first.
    let quality = |judged: &Judged| judged.evaluated.quality;
    let best = all.iter().rev().max_by(|a, b| quality(a).total_cmp(&quality(b)));
    let Some(best) = best else { return String::new() };
    let share = format!("{:.1} % of the cases pass", 100.0 * quality(best));
    if all.len() == 1 { share } else { format!("{share} with {}", best.name) }
}

const NOTES: [&str; 5] = [
    "Quality is the share of cases that pass; the interval holds the share of many such cases with 95 % probability (Wilson).",
    "The score also counts parts: right fields of an object, the similarity of texts.",
    "Answers are greedy (temperature 0); those of cases answered at once may differ from those of each alone.",
    "Speeds count generated tokens, of encoders tokens read, over the whole time.",
    "Prices count the machine and, where power is known, its energy while the cases ran.",
];

fn why(args: &Args, cases: &[Case], all: &[Judged]) -> String {
    let count =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let subject = format!("{} on {}", count(all.len(), "model"), count(cases.len(), "case"));
    let Some(floor) = args.floor else { return format!("{subject}.") };
    let below: Vec<&str> = all
        .iter()
        .filter(|judged| judged.is_below(args.floor))
        .map(|judged| judged.name.as_str())
        .collect();
    let floor = 100.0 * floor;
    match below[..] {
        [] => format!("{subject}; every model passes at least {floor:.1} % of them."),
        _ => format!("{subject}; fewer than {floor:.1} % pass with {}.", below.join(", ")),
    }
}

/// The first models' quality.
fn figures(all: &[Judged]) -> Vec<Shown> {
    let figure = |judged: &Judged| {
        let of = &judged.evaluated;
        let speed = format!("{} tok/s", short(of.tokens_per_second()));
        let beside = format!("{} of {} cases, {speed}", of.passed, of.outcomes.len());
        let number = format!("{:.1}", 100.0 * of.quality);
        context! { name => &judged.name, number, unit => "%", beside }
    };
    all.iter().take(4).map(figure).collect()
}

/// A model's quality with its interval.
fn bar(args: &Args, judged: &Judged) -> Shown {
    let of = &judged.evaluated;
    let [low, high] = of.interval.map(|share| format!("{:.1}", 100.0 * share));
    let whose = class_of_bar(&of.placement);
    let below = judged.is_below(args.floor);
    context! {
        name => &judged.name, quality => format!("{:.1}", 100.0 * of.quality), low, high, whose, below,
        passes => args.floor.is_some() && !below,
    }
}

/// A case with the answer of each model.
fn row(at: usize, case: &Case, all: &[Judged]) -> Shown {
    let cut = |text: &str| -> String {
        let mut shown: String = text.chars().take(TEXT_MAX).collect();
        if shown.len() < text.len() {
            shown.push('\u{2026}');
        }
        shown
    };
    let question = match &case.question {
        Question::Text(text) => cut(text),
        Question::Messages(messages) => {
            messages.last().map_or(String::new(), |message| cut(&message.content))
        }
    };
    let expected = match &case.expected {
        Expected::Exact(text) => text.clone(),
        Expected::Regex(regex) => format!("/{regex}/"),
        Expected::Fields(fields) => serde_json::to_string(fields).unwrap_or_default(),
        Expected::Label(label) => label.clone(),
        Expected::Similar { text, at_least } => format!("{text} (at least {at_least})"),
    };
    let answers: Vec<Shown> = all
        .iter()
        .map(|judged| {
            let outcome = &judged.evaluated.outcomes[at];
            context! {
                name => &judged.name, answer => cut(&outcome.answer), passed => outcome.passed,
                note => outcome.note.clone(), ms => outcome.ms.map(time),
            }
        })
        .collect();
    let passed = all.iter().all(|judged| judged.evaluated.outcomes[at].passed);
    let id = case.id.as_ref().map(|id| id.as_str().map_or(id.to_string(), str::to_owned));
    context! {
        line => case.line, id, question, kind => case.expected.field(), expected => cut(&expected), answers, passed,
    }
}

fn table(args: &Args, all: &[Judged]) -> Shown {
    let currency = args.prices.currency.as_str();
    let head = [
        ["Model", ""],
        ["Quality", "%"],
        ["Score", ""],
        ["Speed", "tok/s"],
        ["Rate", "cases/s"],
        ["First token", "p50, p95"],
        ["Case", "p50, p95"],
        ["Power", "W"],
        ["1000 cases", currency],
        ["Million tokens", currency],
    ];
    let none = || "\u{2013}".to_owned();
    let pair = |[p50, p95]: [f64; 2]| format!("{}, {}", time(p50), time(p95));
    let row = |judged: &Judged| {
        let of = &judged.evaluated;
        vec![
            judged.name.clone(),
            format!("{:.1}", 100.0 * of.quality),
            format!("{:.3}", of.score),
            short(of.tokens_per_second()),
            short(of.rate()),
            of.first_token_ms.map_or_else(none, pair),
            of.case_ms.map_or_else(none, pair),
            judged.watts.map_or_else(none, |watts| format!("{watts:.1}")),
            judged.thousand().map_or_else(none, money),
            judged.million().map_or_else(none, money),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    let head: Vec<Vec<String>> = head.map(|pair| pair.map(str::to_owned).to_vec()).to_vec();
    context! { head, rows }
}

/// The conditions: names and values.
fn made(args: &Args, all: &[Judged]) -> Vec<Shown> {
    let mut facts = vec![("Cases".to_owned(), args.data.display().to_string())];
    facts.push(("At once".to_owned(), args.parallel.to_string()));
    facts
        .extend(all.iter().map(|judged| (judged.name.clone(), judged.evaluated.placement.clone())));
    if let Some(rates) = all.iter().find_map(|judged| judged.rates) {
        let currency = &args.prices.currency;
        let share = 100.0 * rates.utilization;
        let hour =
            format!("{} {currency} an hour, at work {share} % of it", money(rates.machine_hour));
        facts.push(("Machine".to_owned(), hour));
        facts
            .push(("Energy".to_owned(), format!("{} {currency} per kWh", money(rates.energy_kwh))));
    }
    facts.into_iter().map(|(name, value)| context! { name, value }).collect()
}
