//! Which types and placements of a model meet a target speed.

use std::collections::{BTreeSet, HashMap};
use std::str::FromStr;

use bilayer_graph::Graph;
use bilayer_quant::Type;
use bilayer_scheduler::{Basis, Growth, Machine, Offload, Plan, Times, split_experts};
use regex::Regex;
use serde::Serialize;

use super::{Placing, machine_of};
use crate::settings::{Settings, budget_of};
use crate::{Error, Model};

/// What a placement must reach. Its text has parts separated by commas: `20 tok/s`, `20 tok/s at 8k`, `at 8k`, `p95 1 s`,
/// `p95 100 ms per token`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Target {
    /// Tokens per second of an answer, with the context full.
    pub rate: Option<f64>,
    /// Tokens of context.
    pub context: Option<usize>,
    /// Bound on the time to the first token.
    pub first_token: Option<Latency>,
    /// Bound on the time of a token of the answer.
    pub per_token: Option<Latency>,
}

/// A bound on a time. Prompts are taken to be of any length up to the context, each as frequent, so the percentile is that of
/// the context: the 95th is the time of a prompt, or behind a text, of 95 % of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Above 0 and at most 100.
    pub percentile: f64,
    /// The longest time, milliseconds.
    pub ms: f64,
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Target, Error> {
        let mut target = Target::default();
        for part in text.split(',') {
            target.read(part.trim()).ok_or_else(|| Error::setting(
                "for",
                format!("`{}`", part.trim()),
                "a part such as `20 tok/s at 8k`, `at 8192`, `p95 1 s` for the first token or `p95 80 ms per token`, each at most once, with commas between them",
            ))?;
        }
        if (target.rate, target.first_token, target.per_token) == (None, None, None) {
            let expected = "a speed or a time, such as `20 tok/s` or `p95 1 s`";
            return Err(Error::setting("for", format!("`{}`", text.trim()), expected));
        }
        Ok(target)
    }
}

/// A part of a target.
const PART: &str = r"(?ix) ^
    (?: (?<rate> [0-9.]+ ) \s* (?: tok | tokens | t ) / s )?
    (?: (?: ^ | \s+ ) at \s+ (?<context> [0-9]+ ) (?<kilo> k )? )?
    (?: (?: p (?<percentile> [0-9.]+ ) \s+ )? (?<time> [0-9.]+ ) \s* (?<unit> m? s )
        (?: \s+ (?<what> (?: to \s+ the \s+ )? first \s+ token | per \s+ token ) )? )? $";

impl Target {
    /// Checks that the model generates answers if their speed is part of the target.
    fn check(&self, model: &Model) -> Result<(), Error> {
        if model.config().encoder.is_none() || (self.rate, self.per_token) == (None, None) {
            return Ok(());
        }
        let expected = format!(
            "a time such as `p95 100 ms`: {} is an encoder and generates no tokens",
            model.name()
        );
        Err(Error::setting("for", "a speed of answers", expected))
    }

    /// Reads a part; `None` if it is not valid, or was there before.
    fn read(&mut self, part: &str) -> Option<()> {
        let regex = Regex::new(PART).ok()?;
        let found = regex.captures(part).filter(|_| !part.is_empty())?;
        let text = |name: &str| found.name(name).map(|found| found.as_str());
        let number = |name: &str| match text(name) {
            None => Some(None),
            Some(text) => text.parse().ok().filter(|&n: &f64| n > 0.0 && n.is_finite()).map(Some),
        };
        once(&mut self.rate, number("rate")?)?;
        let kilo = if text("kilo").is_some() { 1024 } else { 1 };
        let context = match text("context") {
            None => None,
            Some(text) => Some(text.parse::<usize>().ok()?.checked_mul(kilo).filter(|&c| c > 0)?),
        };
        once(&mut self.context, context)?;
        let percentile = number("percentile")?.unwrap_or(100.0);
        let unit = if text("unit").is_some_and(|unit| unit.len() == 1) { 1e3 } else { 1.0 };
        let latency = number("time")?.map(|time| Latency { percentile, ms: time * unit });
        let is_per_token = text("what").is_some_and(|what| what.to_lowercase().starts_with("per"));
        let place = if is_per_token { &mut self.per_token } else { &mut self.first_token };
        once(place, latency.filter(|_| percentile <= 100.0))?;
        (percentile <= 100.0).then_some(())
    }
}

/// Sets what is not set yet.
fn once<T>(place: &mut Option<T>, value: Option<T>) -> Option<()> {
    if value.is_some() && place.is_some() {
        return None;
    }
    *place = value.or(place.take());
    Some(())
}

/// Types that a model's tensors could have.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// Its name, such as that of a mix.
    pub name: String,
    /// The type of each tensor by its name; those without one keep theirs.
    pub types: HashMap<String, Type>,
}

impl Variant {
    /// The types of the file.
    pub fn own(name: &str) -> Variant {
        Variant { name: name.to_owned(), types: HashMap::new() }
    }
}

/// A type and a placement, with what is predicted of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Candidate {
    /// The name of the variant.
    #[serde(rename = "type")]
    pub name: String,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Its bits per weight.
    pub bits_per_weight: f64,
    /// Parts on GPUs, as `-ngl` counts them; `None` if the placement does not fit.
    pub gpu_layers: Option<u32>,
    /// The placement in one line.
    pub map: Option<String>,
    /// Tokens per second of an answer, with the context full.
    pub rate: Option<f64>,
    /// Milliseconds to the first token at the target's percentile, or of a prompt that fills the context.
    pub first_token_ms: Option<f64>,
    /// Milliseconds of a token at the target's percentile, or with the context full.
    pub per_token_ms: Option<f64>,
    /// What the times are based on.
    pub basis: Option<Basis>,
    /// Whether everything that is asked for is met.
    pub meets: bool,
    /// Why it is not.
    pub why: Option<String>,
}

/// What a target asks of every variant and placement: the CPU alone, what `auto` chooses, and everything on GPUs; or the
/// placement of the settings, if they name one. Nothing is loaded. The context is that of the settings.
///
/// Times are those of [`plan`](super::plan). Those of types other than the file's own are estimated; if the file's are
/// measured, by the ratio of what is estimated for both.
///
/// # Errors
/// Those of [`plan`](super::plan), unless a placement does not fit; a speed of answers of an encoder.
pub fn candidates(
    model: &Model,
    settings: &Settings<'_>,
    described: Option<Machine>,
    target: &Target,
    variants: &[Variant],
) -> Result<Vec<Candidate>, Error> {
    let budget = budget_of(model, settings)?;
    target.check(model)?;
    let own = settings.graph(model)?;
    // The budget's is rounded up to whole pages.
    let context = settings.context(model.config().context);
    let graphs: Vec<Graph> = variants.iter().map(|variant| variant.graph(&own)).collect();
    let (machine, _) = machine_of(model, settings, described, &own, &graphs)?;
    let mut found = Vec::new();
    for (variant, graph) in variants.iter().zip(graphs) {
        let times = match variant.types.is_empty() {
            true => machine.times.clone(),
            false => times_of(&graph, &own, &machine),
        };
        let machine = Machine { times, ..machine.clone() };
        let mut seen = BTreeSet::new();
        for placing in placings(&settings.placing, machine.devices.len() - 1) {
            let mut candidate = Candidate::of(&variant.name, &graph);
            match placing.plan(&graph, &machine, &budget) {
                Ok(plan) if !seen.insert(plan.map.clone()) => continue,
                Ok(plan) => {
                    let split = plan
                        .experts
                        .as_ref()
                        .map(|experts| split_experts(&graph, &experts.choices));
                    let planned = split.as_ref().unwrap_or(&graph);
                    let growth = Growth::new(planned, &machine, &budget, &plan);
                    candidate.placed(&plan, &growth, context, target);
                    if model.config().encoder.is_some() {
                        // It generates no tokens.
                        (candidate.rate, candidate.per_token_ms) = (None, None);
                    }
                }
                Err(error @ Error::Plan(_)) => candidate.why = Some(error.to_string()),
                Err(error) => return Err(error),
            }
            found.push(candidate);
        }
    }
    Ok(found)
}

impl Variant {
    /// The graph with these types.
    fn graph(&self, own: &Graph) -> Graph {
        let mut graph = own.clone();
        for weight in &mut graph.weights {
            weight.ty = self.types.get(&weight.name).copied().unwrap_or(weight.ty);
        }
        graph
    }
}

/// Times of a graph whose types are not those that the machine's times are of.
fn times_of(graph: &Graph, own: &Graph, machine: &Machine) -> Option<Times> {
    let estimated = Times::estimated(graph, machine);
    let known = machine.times.as_ref().filter(|times| times.basis == Basis::Measured);
    match (known, estimated, Times::estimated(own, machine)) {
        (Some(known), Some(to), Some(from)) => Some(known.scaled(&from, &to)),
        (_, estimated, _) => estimated,
    }
}

/// The placements to try.
fn placings(given: &Placing, gpus: usize) -> Vec<Placing> {
    let all = match given.gpu_layers {
        Offload::Auto if gpus > 0 => vec![Offload::Count(0), Offload::Auto, Offload::All],
        Offload::Auto => vec![Offload::Count(0)],
        asked => vec![asked],
    };
    let placing = |gpu_layers| Placing { gpu_layers, ..given.clone() };
    all.into_iter().map(placing).collect()
}

impl Candidate {
    /// A variant that is not placed.
    fn of(name: &str, graph: &Graph) -> Candidate {
        // Several weights can be parts of one tensor, but none is there twice.
        let weights: f64 = graph.weights.iter().map(|w| w.rows as f64 * w.cols as f64).sum();
        let bytes = graph.weight_bytes() as u64;
        Candidate {
            name: name.to_owned(),
            bytes,
            bits_per_weight: 8.0 * bytes as f64 / weights,
            gpu_layers: None,
            map: None,
            rate: None,
            first_token_ms: None,
            per_token_ms: None,
            basis: None,
            meets: false,
            why: None,
        }
    }

    /// Sets what a plan predicts, and judges it. Nothing is predicted where weights are read from the file again and again.
    fn placed(&mut self, plan: &Plan, growth: &Growth<'_>, context: usize, target: &Target) {
        self.gpu_layers = Some(plan.gpu_layers);
        self.map = Some(plan.map.clone());
        if let Some(why) = &plan.rereads {
            self.why = Some(why.clone());
            return;
        }
        self.basis = plan.predicted.as_ref().map(|predicted| predicted.basis);
        let share = |latency: Option<Latency>| {
            let percentile = latency.map_or(100.0, |latency| latency.percentile);
            ((percentile / 100.0 * context as f64).round() as usize).max(1)
        };
        self.rate = growth.decode_ms(context).map(|ms| 1e3 / ms);
        self.first_token_ms = growth.prompt_ms(share(target.first_token));
        self.per_token_ms = growth.decode_ms(share(target.per_token));
        let mut missed = Vec::new();
        let mut judge = |what: &str, found: Option<f64>, is_met: bool, asked: String| match found {
            None => missed.push(format!("the {what} is not known")),
            Some(_) if !is_met => missed.push(format!("{what} misses {asked}")),
            Some(_) => {}
        };
        if let Some(rate) = target.rate {
            let is_met = self.rate.is_some_and(|found| found >= rate);
            judge("speed", self.rate, is_met, format!("{rate} tok/s"));
        }
        let times = [
            ("time to the first token", self.first_token_ms, target.first_token),
            ("time per token", self.per_token_ms, target.per_token),
        ];
        for (what, found, asked) in times {
            if let Some(Latency { ms, .. }) = asked {
                judge(what, found, found.is_some_and(|found| found <= ms), format!("{ms} ms"));
            }
        }
        self.meets = missed.is_empty();
        self.why = (!self.meets).then(|| missed.join(", "));
    }
}

#[cfg(test)]
mod tests {
    use super::{Latency, Target};

    #[test]
    fn targets_are_read_in_parts() {
        let of = |text: &str| text.parse::<Target>().unwrap();
        let whole = of("20 tok/s at 8k, p95 1 s");
        let first = Latency { percentile: 95.0, ms: 1000.0 };
        let expected = Target {
            rate: Some(20.0),
            context: Some(8192),
            first_token: Some(first),
            per_token: None,
        };
        assert_eq!(whole, expected);
        assert_eq!(of("20tok/s at 8192,p95 1000ms to the first token"), expected);
        assert_eq!(of("p95 1 s First Token, at 8K, 20 t/s"), expected);
        let both = of("50 ms per token, 2.5 s");
        assert_eq!(both.per_token, Some(Latency { percentile: 100.0, ms: 50.0 }));
        assert_eq!(both.first_token, Some(Latency { percentile: 100.0, ms: 2500.0 }));
    }

    #[test]
    fn the_part_that_is_wrong_is_named() {
        let cases = [
            ("20 tok/s, fast", "`fast`"),
            ("20 tok/s,", "``"),
            ("20 tok/h", "`20 tok/h`"),
            ("20 tok/s, 30 tok/s", "`30 tok/s`"),
            ("0 tok/s", "`0 tok/s`"),
            ("1..5 s", "`1..5 s`"),
            ("p0 1 s", "`p0 1 s`"),
            ("p101 1 s", "`p101 1 s`"),
            ("p95", "`p95`"),
            ("at 8k", "a speed or a time"),
            ("20 tok/s at 0", "`20 tok/s at 0`"),
            ("20 tok/s at 99999999999999999999", "at 9999"),
            ("p95 1 s, p50 1 s", "`p50 1 s`"),
            ("", "``"),
        ];
        for (text, named) in cases {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
