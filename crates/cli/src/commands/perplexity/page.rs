//! The page of a perplexity: the estimate along the text, and the divergence from a base.

use bilayer_measure::perplexity::{Mean, Report, Windows};
use minijinja::{Error, Value as Shown, context};
use serde_json::Value;

use super::{document, percentiles};
use crate::commands::profile::charts::curves::{self, Curve};
use crate::commands::profile::charts::{Form, Ink, both};
use crate::page::{self, short};

const TEMPLATE: &str = include_str!("page.html");

/// Points of the chart.
const POINTS: usize = 60;

/// What the page is about, beside the report.
pub struct About<'a> {
    /// The model.
    pub model: String,
    /// The text's file, or that of the base.
    pub text: String,
    /// The placement.
    pub placement: String,
    /// Tokens scored and the estimate after them.
    pub along: &'a [(usize, f64)],
}

/// Renders the page.
///
/// # Errors
/// The template does not match its data, which is a bug.
pub fn html(report: &Report, windows: &Windows, about: &About<'_>) -> Result<String, Error> {
    let perplexity = report.estimate.perplexity();
    let json = document(report, windows);
    let quantiles = quantiles(report);
    page::render(
        TEMPLATE,
        context! {
            command => "perplexity",
            subject => &about.model,
            headline => format!("Perplexity {:.4}", perplexity.value),
            why => why(report, windows, &about.text),
            figures => figures(report),
            along => along(about.along)?,
            quantiles,
            table => table(&json),
            made => made(report, windows, about),
            notes => NOTES,
            json => page::document(&json),
        },
    )
}

const NOTES: [&str; 2] = [
    "Perplexity is the exponential of the mean of the negative logarithm of each token\u{2019}s probability.",
    "In each window the first half is context only; errors are standard errors of the mean.",
];

fn plus_minus(mean: &Mean) -> String {
    format!("\u{b1} {:.5}", mean.error)
}

fn why(report: &Report, windows: &Windows, text: &str) -> String {
    let estimate = report.estimate.perplexity();
    let scored = format!(
        "{}, over {} tokens in {} windows of {} tokens of {text}",
        plus_minus(&estimate),
        report.estimate.count(),
        report.windows,
        windows.window_len()
    );
    match &report.divergence {
        None => format!("{scored}."),
        Some(divergence) => {
            let base = divergence.base().perplexity();
            format!("{scored}; the base has {:.4}.", base.value)
        }
    }
}

fn figures(report: &Report) -> Vec<Shown> {
    let estimate = report.estimate.perplexity();
    let mut figures = vec![context! {
        name => "Perplexity", number => short(estimate.value), unit => "", beside => plus_minus(&estimate)
    }];
    if let Some(divergence) = &report.divergence {
        let (base, ratio, kl) =
            (divergence.base().perplexity(), divergence.ratio(), divergence.kl());
        let top = format!("{:.2}", 100.0 * divergence.top1());
        figures.extend([
            context! { name => "Base", number => short(base.value), unit => "", beside => plus_minus(&base) },
            context! { name => "Ratio", number => format!("{:.4}", ratio.value), unit => "\u{d7}", beside => plus_minus(&ratio) },
            context! { name => "KL divergence", number => format!("{:.5}", kl.value), unit => "", beside => plus_minus(&kl) },
            context! { name => "Same top token", number => top, unit => "%", beside => "of all tokens" },
        ]);
    }
    figures
}

/// The chart of the estimate; false if it is known in one place only.
fn along(all: &[(usize, f64)]) -> Result<Shown, Error> {
    if all.len() < 2 {
        return Ok(Shown::from(false));
    }
    let step = all.len().div_ceil(POINTS).max(1);
    // The last point is the result.
    let points: Vec<(usize, f64)> = all.iter().rev().step_by(step).rev().copied().collect();
    let draw = |form| {
        let drawn = curves::draw(&Curve {
            counted: "tokens",
            counts: points.iter().map(|(tokens, _)| *tokens).collect(),
            unit: "perplexity",
            lines: vec![("estimate", Ink::Gpu, points.iter().map(|(_, value)| *value).collect())],
            form,
        });
        drawn.map_err(|error| Error::new(minijinja::ErrorKind::BadSerialization, error.to_string()))
    };
    Ok(both(&draw(Form::Wide)?, &draw(Form::Narrow)?))
}

/// The quantiles of the divergence as bars.
fn quantiles(report: &Report) -> Vec<Shown> {
    let Some(divergence) = &report.divergence else { return Vec::new() };
    let all: Vec<(&str, f64)> = percentiles(divergence).collect();
    let most = all.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    let bar = |(name, value): &(&str, f64)| {
        let name = match name.strip_prefix("kl_p") {
            Some("999") => "99.9 % of the tokens".to_owned(),
            Some(share) => format!("{share} % of the tokens"),
            None => "all tokens".to_owned(),
        };
        context! { name, value => format!("{value:.6}"), share => format!("{:.2}", 100.0 * value / most) }
    };
    all.iter().map(bar).collect()
}

/// Every number of the document.
fn table(document: &Value) -> Shown {
    let fields = document.as_object().into_iter().flatten();
    let rows: Vec<[String; 2]> =
        fields.map(|(name, value)| [name.replace('_', " "), value.to_string()]).collect();
    context! { head => vec![["Figure", ""], ["Value", ""]], rows }
}

/// The conditions of the measurement: names and values.
fn made(report: &Report, windows: &Windows, about: &About<'_>) -> Vec<Shown> {
    let facts = [
        ("Model", about.model.clone()),
        ("Text", about.text.clone()),
        ("Windows", format!("{} of {} tokens", report.windows, windows.window_len())),
        ("Placement", about.placement.clone()),
    ];
    facts.into_iter().map(|(name, value)| context! { name, value }).collect()
}
