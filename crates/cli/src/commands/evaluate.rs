//! `bilayer evaluate`: quality, speed and cost of models on a team's own cases.

use std::time::Duration;

use bilayer_engine::Model;
use bilayer_engine::encode::Encoder;
use bilayer_engine::session::{Purpose, Settings};
use bilayer_measure::cost::Rates;
use bilayer_measure::evaluate::{self, Case, Evaluated, Expected, Instruments, Options};
use bilayer_measure::power::Meter;
use bilayer_scheduler::Offload;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::cost::{meter, money, without_power};
use super::run::settings;
use crate::args::Evaluate as Args;
use crate::demo::Source;
use crate::failure::{Failure, INTERRUPTED, MISSED};
use crate::{demo, interrupt, output, progress, trace};

mod page;

/// Failed cases of each model that are printed.
const SHOWN: usize = 5;

/// A model with a placement.
struct Contestant {
    name: String,
    model: Model,
    gpu_layers: Offload,
}

/// What came of it.
struct Judged {
    name: String,
    evaluated: Evaluated,
    /// The power that was measured or given.
    watts: Option<f64>,
    /// Rates at that power; `None` without prices.
    rates: Option<Rates>,
}

impl Judged {
    /// Price of a thousand cases; `None` if none ran.
    fn thousand(&self) -> Option<f64> {
        let rate = Some(self.evaluated.rate()).filter(|rate| *rate > 0.0)?;
        Some(self.rates?.hour()? / 3600.0 / rate * 1e3)
    }

    /// Price of a million tokens, of prompts and answers; `None` if none ran.
    fn million(&self) -> Option<f64> {
        let Evaluated { prompt_tokens, generated_tokens, seconds, .. } = &self.evaluated;
        let tokens = Some(prompt_tokens + generated_tokens).filter(|tokens| *tokens > 0)?;
        self.rates?.million(tokens as f64 / seconds)
    }

    fn is_below(&self, floor: Option<f64>) -> bool {
        floor.is_some_and(|floor| self.evaluated.quality < floor)
    }
}

/// Runs every model with every placement over all cases.
pub fn execute(args: &Args) -> Result<u8, Failure> {
    interrupt::catch();
    trace::check(args.html.as_deref())?;
    let text = output::json_lines(&args.data)?;
    let cases = evaluate::parse(&text)
        .map_err(|error| Failure::usage(error.to_string()).in_file(&args.data))?;
    let mut meter = meter(&args.prices, &args.models.flags.placing)?;
    let contestants = contestants(args)?;
    let options = Options {
        chat_template: args.chat_template.as_deref(),
        parallel: args.parallel,
        compares: args.encoder.is_some(),
        cancel: interrupt::handle().clone(),
    };
    // All models are checked before the first one runs.
    for contestant in &contestants {
        evaluate::check(&contestant.model, &cases, &options)
            .map_err(|error| Failure::from(error).in_file(&args.data))?;
    }
    let mut encoder = encoder(args, &cases)?;
    interrupt::answering();
    let bar = progress::steps("cases");
    bar.set_length((cases.len() * contestants.len()) as u64);
    let mut all = Vec::new();
    // Of the models one at a time is locked: each is dropped after its last placement.
    for contestant in contestants {
        if args.models.flags.mlock {
            contestant.model.lock()?;
        }
        let contestant = &contestant;
        let done = all.len() * cases.len();
        bar.set_message(contestant.name.clone());
        let judged =
            judged(args, contestant, &cases, &options, (&mut encoder, &mut meter), (&bar, done))?;
        let Some(judged) = judged else {
            bar.finish_and_clear();
            return Err(Failure::Line(INTERRUPTED, "interrupted; nothing was written".to_owned()));
        };
        all.push(judged);
    }
    bar.finish_and_clear();
    report(args, &cases, &all)
}

/// Every model with every placement, named apart.
fn contestants(args: &Args) -> Result<Vec<Contestant>, Failure> {
    let several = &args.models;
    let mut paths: Vec<_> = several.paths.iter().map(|path| Some(path.as_path())).collect();
    if paths.is_empty() {
        paths.push(None);
    }
    let mut all: Vec<Contestant> = Vec::new();
    for (number, path) in paths.into_iter().enumerate() {
        let model = demo::open(&Source { path, lock: false, ..several.flags.source() })?;
        let stem = path.and_then(|path| path.file_stem());
        let stem = stem.map_or(demo::NAME.to_owned(), |stem| stem.to_string_lossy().into_owned());
        let given = several.names.get(number).cloned().flatten();
        let name = given.unwrap_or(stem);
        for &gpu_layers in &several.gpu_layers {
            let name = match several.gpu_layers.len() {
                1 => name.clone(),
                _ => format!("{name} -ngl {}", layers(gpu_layers)),
            };
            let name = match all.iter().filter(|other| other.name == name).count() {
                0 => name,
                _ => format!("{name} ({})", number + 1),
            };
            all.push(Contestant { name, model: model.clone(), gpu_layers });
        }
    }
    Ok(all)
}

fn layers(offload: Offload) -> String {
    match offload {
        Offload::Auto => "auto".to_owned(),
        Offload::All => "all".to_owned(),
        Offload::Count(count) => count.to_string(),
        Offload::Percent(percent) => format!("{percent}%"),
    }
}

/// The encoder that compares texts, if a case takes one.
fn encoder(args: &Args, cases: &[Case]) -> Result<Option<Encoder>, Failure> {
    let compares = |case: &Case| matches!(case.expected, Expected::Similar { .. });
    let Some(path) = args.encoder.as_deref().filter(|_| cases.iter().any(compares)) else {
        return Ok(None);
    };
    let model = demo::open(&Source::plain(Some(path)))?;
    let settings = Settings {
        purpose: Purpose::Embed(None),
        sequences: 2,
        ..settings::model(&args.models.flags)?
    };
    let encoder = Encoder::new(&model, Settings { ctx_size: None, ..settings })?;
    if !encoder.is_pooled() {
        let line = "it gives a vector for each token; give an encoder of whole texts";
        return Err(Failure::usage(line).in_file(path));
    }
    Ok(Some(encoder))
}

fn judged(
    args: &Args,
    contestant: &Contestant,
    cases: &[Case],
    options: &Options<'_>,
    (encoder, meter): (&mut Option<Encoder>, &mut Option<Meter>),
    (bar, done): (&ProgressBar, usize),
) -> Result<Option<Judged>, Failure> {
    let mut asked = settings::model(&args.models.flags)?;
    asked.placing.gpu_layers = contestant.gpu_layers;
    let instruments = Instruments {
        encoder: encoder.as_mut(),
        meter: meter.as_mut(),
        told: &mut |cases| bar.set_position((done + cases) as u64),
    };
    let evaluated = progress::loading(|tell| {
        let settings = Settings { progress: Some(tell), ..asked };
        evaluate::run(&contestant.model, settings, cases, options, instruments)
    });
    let Some(evaluated) = evaluated.map_err(|error| match error {
        error @ bilayer_measure::Error::Evaluate(_) => Failure::from(error).in_file(&args.data),
        error => error.into(),
    })?
    else {
        return Ok(None);
    };
    if let Some(why) = &evaluated.energy_error {
        without_power(&args.prices, why)?;
    }
    let rates = args.prices.rates(evaluated.joules.map(|joules| joules / evaluated.seconds));
    Ok(Some(Judged {
        name: contestant.name.clone(),
        evaluated,
        watts: rates.watts,
        rates: args.prices.is_given().then_some(rates),
    }))
}

fn report(args: &Args, cases: &[Case], all: &[Judged]) -> Result<u8, Failure> {
    if let Some(path) = &args.html {
        crate::page::write(path, page::html(args, cases, all))?;
        output::note(&format!("page: {}", path.display()));
    }
    if args.json {
        output::json(&document(args, all))?;
    } else {
        output::text(&table(all, &args.prices.currency))?;
        output::text(&failed(all))?;
    }
    if args.parallel > 1 && !all.iter().all(|judged| judged.evaluated.is_encoder) {
        output::note(&format!(
            "note: {} cases were answered at once (-np); the answers may differ from those with another -np",
            args.parallel
        ));
    }
    let below: Vec<&str> = all
        .iter()
        .filter(|judged| judged.is_below(args.floor))
        .map(|judged| judged.name.as_str())
        .collect();
    let Some(floor) = args.floor else { return Ok(0) };
    if below.is_empty() {
        output::note(&format!("passed: every model reaches {floor}"));
        return Ok(0);
    }
    output::error(&format!("bilayer: below the floor of {floor}: {}", below.join(", ")));
    Ok(MISSED)
}

/// All results.
fn document(args: &Args, all: &[Judged]) -> Value {
    let model = |judged: &Judged| {
        let mut model = json!({
            "name": judged.name,
            "passes": args.floor.map(|_| !judged.is_below(args.floor)),
            "watts": judged.watts,
            "price_per_1000_cases": judged.thousand(),
            "price_per_million_tokens": judged.million(),
            "cases_per_second": judged.evaluated.rate(),
            "tokens_per_second": judged.evaluated.tokens_per_second(),
        });
        let fields = serde_json::to_value(&judged.evaluated).unwrap_or_default();
        if let (Some(model), Value::Object(fields)) = (model.as_object_mut(), fields) {
            model.extend(fields);
        }
        model
    };
    json!({
        "data": args.data.display().to_string(),
        "floor": args.floor,
        "passes": args.floor.map(|_| !all.iter().any(|judged| judged.is_below(args.floor))),
        "currency": args.prices.currency,
        "parallel": args.parallel,
        "models": all.iter().map(model).collect::<Vec<_>>(),
    })
}

/// A row for each model.
fn table(all: &[Judged], currency: &str) -> String {
    let width = all.iter().map(|judged| judged.name.chars().count()).max().unwrap_or(0).max(5);
    let mut text = format!(
        "{:width$}  passed  quality  95 % interval  score  cases/s    tok/s  first token    case p95",
        "model"
    );
    let is_metered = all.iter().any(|judged| judged.watts.is_some());
    if is_metered {
        text += &format!("  {:>7}", "watts");
    }
    let is_priced = all.iter().any(|judged| judged.rates.is_some());
    if is_priced {
        text += &format!("  {:>16}", format!("{currency}/1000 cases"));
    }
    text.push('\n');
    for judged in all {
        let of = &judged.evaluated;
        let [low, high] = of.interval;
        let p95 =
            |ms: Option<[f64; 2]>| ms.map_or("-".to_owned(), |[_, p95]| format!("{p95:.1} ms"));
        let first = p95(of.first_token_ms);
        text += &format!(
            "{:width$}  {:>6}  {:7.3}  {low:.3} to {high:.3}  {:.3}  {:7.1}  {:7.1}  {first:>11}  {:>10}",
            judged.name,
            format!("{}/{}", of.passed, of.outcomes.len()),
            of.quality,
            of.score,
            of.rate(),
            of.tokens_per_second(),
            p95(of.case_ms),
        );
        if is_metered {
            let watts = judged.watts.map_or("-".to_owned(), |watts| format!("{watts:.1}"));
            text += &format!("  {watts:>7}");
        }
        if let Some(price) = judged.thousand() {
            text += &format!("  {:>16}", money(price));
        }
        text.push('\n');
    }
    text
}

/// The first failed cases of each model.
fn failed(all: &[Judged]) -> String {
    let mut text = String::new();
    for judged in all {
        let failed: Vec<_> =
            judged.evaluated.outcomes.iter().filter(|outcome| !outcome.passed).collect();
        for outcome in failed.iter().take(SHOWN) {
            let note = outcome.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
            let answer: String = outcome.answer.chars().take(60).collect();
            let more = if answer.len() < outcome.answer.len() { "..." } else { "" };
            text +=
                &format!("{}: line {} failed: {answer:?}{more}{note}\n", judged.name, outcome.line);
        }
        if failed.len() > SHOWN {
            let more = failed.len() - SHOWN;
            text += &format!("{}: {more} more failed; --json and --html have all\n", judged.name);
        }
    }
    text
}

/// Milliseconds as a person reads them.
fn time(ms: f64) -> String {
    match Duration::from_secs_f64(ms.max(0.0) / 1e3) {
        long if long.as_secs() >= 10 => format!("{:.1} s", ms / 1e3),
        _ => format!("{ms:.1} ms"),
    }
}
