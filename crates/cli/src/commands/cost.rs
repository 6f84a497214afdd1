//! `bilayer cost`: what tokens cost on this machine.

use bilayer_engine::Model;
use bilayer_measure::bench::{Bench, Method, Setup, Summary, Test};
use bilayer_measure::cost::{BreakEven, Rates, Workload};
use bilayer_measure::power::{Energy, Meter, metered};
use serde_json::json;

use super::run::settings;
use crate::args::{Cost as Args, PlacingArgs, PriceArgs};
use crate::failure::{Failure, INTERRUPTED, USAGE};
use crate::{demo, interrupt, output, progress};

/// A speed, and the power at it.
struct Paced {
    tps: f64,
    watts: Option<f64>,
}

/// Measures speed and power, and prints prices.
pub fn execute(args: &Args) -> Result<u8, Failure> {
    interrupt::catch();
    check(args)?;
    let mut meter = meter(&args.prices, &args.model.placing)?;
    let model = demo::open(&args.model.source())?;
    let is_encoder = model.config().encoder.is_some();
    let asked = settings::model(&args.model)?;
    let n_gen = if is_encoder { 0 } else { args.n_gen };
    let longest = args.n_prompt + n_gen;
    if let Some(most) = model.config().positions.filter(|&most| longest > most) {
        let line = format!("-p and -n make {longest} tokens; the model supports {most} positions");
        return Err(Failure::usage(line));
    }
    // A prompt runs alone, as in `batch` and `serve`, unless an encoder takes several texts.
    let texts = if is_encoder { args.parallel } else { 1 };
    let prompt = Test { prompt: args.n_prompt, parallel: texts, ..Test::default() };
    let answer = Test { generate: n_gen, depth: args.n_prompt, parallel: args.parallel, prompt: 0 };
    answer.check(asked.ubatch_size)?;
    let setup = Setup::new(&asked, &[prompt, answer]);
    let setup = Setup { context: context(&model, asked.ctx_size, longest)?, ..setup };
    let mut bench = Bench::new(&model);
    let placement = progress::loading(|tell| {
        bench.ready(&setup, 0, tell).map(|session| session.plan().map.clone())
    })?;
    interrupt::answering();
    let bar = progress::steps("measuring");
    let mut measured = Vec::new();
    for test in [prompt, answer].into_iter().filter(|test| test.tokens() > 0) {
        let paced = paced(&mut bench, test, args, meter.as_mut())?;
        bar.inc(1);
        let Some(paced) = paced else { return Ok(INTERRUPTED) };
        measured.push(paced);
    }
    bar.finish_and_clear();
    report(args, &model.name(), &placement, &measured)
}

/// Checks that what is to be compared has a price.
fn check(args: &Args) -> Result<(), Failure> {
    if args.against.is_some() && !args.prices.is_given() {
        let line = "--against takes a price of this machine: --price-per-hour, --purchase or --energy-price";
        return Err(Failure::usage(line));
    }
    Ok(())
}

/// Tokens of the context: those of -c, or as many as a request needs.
fn context(model: &Model, asked: Option<usize>, needed: usize) -> Result<usize, Failure> {
    let context = match asked {
        None => needed,
        Some(0) => model.config().context,
        Some(tokens) => tokens,
    };
    if context < needed {
        let line = format!(
            "-p and -n make {needed} tokens, and the context (-c) has {context}; reduce -p or -n, or raise -c"
        );
        return Err(Failure::usage(line));
    }
    Ok(context)
}

/// The energy counters, unless power is given or the machine is simulated. Without them, energy is left out.
pub fn meter(prices: &PriceArgs, placing: &PlacingArgs) -> Result<Option<Meter>, Failure> {
    if prices.watts.is_some() {
        return Ok(None);
    }
    let why = match &placing.adapter.simulate {
        Some(_) => "the machine is simulated".to_owned(),
        None => match Meter::start(prices.powercap()) {
            Ok(meter) => return Ok(Some(meter)),
            Err(error) => error.to_string(),
        },
    };
    match prices.powercap {
        None if prices.energy_price.is_none() => {
            output::detail(&format!("energy is not counted: {why}"));
        }
        _ => without_power(prices, &why)?,
    }
    Ok(None)
}

/// Warns that energy is left out; a failure if it has a price.
pub fn without_power(prices: &PriceArgs, why: &str) -> Result<(), Failure> {
    if prices.energy_price.is_some() {
        return Err(Failure::Line(USAGE, format!("power is unknown: {why}; give --watts")));
    }
    output::warning(&format!("energy is not counted: {why}"));
    Ok(())
}

fn paced(
    bench: &mut Bench,
    test: Test,
    args: &Args,
    mut meter: Option<&mut Meter>,
) -> Result<Option<Paced>, Failure> {
    let once =
        Method { repetitions: 1, warm_up: true, batch_size: args.model.batch_size, probe: false };
    // The warm-up is not to be counted as energy of the tokens.
    if bench.run(test, &once, &mut |_| (), interrupt::handle())?.is_none() {
        return Ok(None);
    }
    let method = Method { warm_up: false, ..once };
    let (mut speeds, mut energy) = (Vec::new(), Energy::default());
    for _ in 0..args.repetitions {
        let run = || bench.run(test, &method, &mut |_| (), interrupt::handle());
        let (measured, more) = metered(meter.as_deref_mut(), run);
        let Some(measured) = measured? else { return Ok(None) };
        speeds.extend(measured.samples_ts());
        match more {
            // Power is that of the whole run, which also fills the cache: the counters cover it, the samples do not.
            Some(Ok(more)) => energy = energy.and(more),
            Some(Err(error)) => {
                without_power(&args.prices, &error.to_string())?;
                meter = None;
            }
            None => {}
        }
    }
    let tps = Summary::of(&speeds).mean;
    Ok(Some(Paced { tps, watts: meter.map(|_| energy.watts()) }))
}

fn report(args: &Args, model: &str, placement: &str, measured: &[Paced]) -> Result<u8, Failure> {
    let rates: Vec<Rates> = measured.iter().map(|paced| args.prices.rates(paced.watts)).collect();
    // An encoder has no answers.
    let both = [rates[0], *rates.last().unwrap_or(&rates[0])];
    let n_gen = if measured.len() > 1 { args.n_gen } else { 0 };
    let workload = Workload {
        prompt: args.n_prompt,
        generated: n_gen,
        prompt_tps: measured[0].tps,
        generated_tps: measured.get(1).map_or(0.0, |paced| paced.tps),
    };
    let even = args.against.and_then(|offer| workload.break_even(&both, &offer));
    let currency = &args.prices.currency;
    if args.json {
        let part = |(paced, rates): (&Paced, &Rates)| {
            json!({
                "tokens_per_second": paced.tps,
                "watts": rates.watts,
                "joules_per_token": rates.joules(paced.tps),
                "price_per_million": rates.million(paced.tps),
            })
        };
        let parts: Vec<_> = measured.iter().zip(&rates).map(part).collect();
        return output::json(&json!({
            "model": model,
            "placement": placement,
            "currency": currency,
            "parallel": args.parallel,
            "prompt_tokens": args.n_prompt,
            "generated_tokens": n_gen,
            "machine_hour": both[0].machine_hour,
            "utilization": both[0].utilization,
            "energy_kwh": both[0].energy_kwh,
            "prompt": parts[0],
            "generated": parts.get(1),
            "request": workload.price(&both),
            "break_even": even,
        }))
        .map(|()| 0);
    }
    output::line(&format!("{model}, {placement}"))?;
    let unit = format!("{currency}/million");
    output::line(&format!("            tok/s    watts  J/token  {unit:>12}"))?;
    for ((name, paced), rates) in ["prompt", "answer"].iter().zip(measured).zip(&rates) {
        let known = |value: Option<f64>| value.map_or("-".to_owned(), |x| format!("{x:.2}"));
        output::line(&format!(
            "{name:8} {:8.1} {:>8} {:>8}  {:>12}",
            paced.tps,
            known(rates.watts),
            known(rates.joules(paced.tps)),
            rates.million(paced.tps).map_or("-".to_owned(), money)
        ))?;
    }
    if let Some((hour, energy)) = workload.hour(&both) {
        output::line(&format!(
            "an hour of work: {} {currency}, {} of it energy; the machine works {} % of the time",
            money(hour),
            money(energy),
            100.0 * both[0].utilization
        ))?;
    }
    even.map_or(Ok(()), |even| output::line(&compared(&even, currency)))?;
    if both.iter().any(|rates| rates.watts.is_none()) {
        output::note("note: energy is left out: power is unknown; give --watts");
    }
    Ok(0)
}

/// Four significant digits.
pub fn money(value: f64) -> String {
    let size = value.abs();
    let digits = if size > 0.0 { (3.0 - size.log10().floor()).clamp(2.0, 9.0) } else { 2.0 };
    format!("{value:.*}", digits as usize)
}

fn compared(even: &BreakEven, currency: &str) -> String {
    let (own, offered) = (money(even.own_request), money(even.offered_request));
    let request = format!("a request: {own} {currency} here, {offered} {currency} there");
    match even.requests_day.zip(even.utilization) {
        None if even.is_equal() => {
            format!(
                "{request}\nbreak-even: none; both cost the same, however many requests there are"
            )
        }
        Some((0.0, _)) => {
            format!("{request}\nbreak-even: this machine costs less from the first request on")
        }
        Some((requests, share)) => format!(
            "{request}\nbreak-even: {requests:.0} requests a day, {:.1} % of the {:.0} that this machine answers",
            100.0 * share,
            even.capacity_day
        ),
        None => format!(
            "{request}\nbreak-even: never; even always at work ({:.0} requests a day) this machine costs more",
            even.capacity_day
        ),
    }
}
