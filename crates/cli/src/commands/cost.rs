//! `bilayer cost`: what tokens cost on this machine.

use bilayer_measure::bench::{Bench, Method, Setup, Summary, Test};
use bilayer_measure::cost::{BreakEven, Rates, Workload};
use bilayer_measure::power::Meter;
use serde_json::json;

use super::run::settings;
use crate::args::{Cost as Args, PriceArgs};
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
    let mut meter = meter(&args.prices)?;
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
    let setup = Setup::new(&asked, &[prompt, answer]);
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

/// The energy counters, unless power is given. Without them, energy is left out.
pub fn meter(prices: &PriceArgs) -> Result<Option<Meter>, Failure> {
    if prices.watts.is_some() {
        return Ok(None);
    }
    match Meter::start(&prices.powercap) {
        Ok(meter) => Ok(Some(meter)),
        Err(error) if prices.energy_price.is_some() => {
            Err(Failure::Line(USAGE, format!("power is unknown: {error}; give --watts")))
        }
        Err(error) => {
            output::detail(&format!("energy is not counted: {error}"));
            Ok(None)
        }
    }
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
    let (mut speeds, mut joules, mut seconds) = (Vec::new(), Some(0.0), 0.0);
    for _ in 0..args.repetitions {
        joules = joules.filter(|_| read(&mut meter).is_some());
        let Some(measured) = bench.run(test, &method, &mut |_| (), interrupt::handle())? else {
            return Ok(None);
        };
        joules = joules.zip(read(&mut meter)).map(|(sum, more)| sum + more);
        seconds += measured.samples_ns.iter().sum::<u64>() as f64 / 1e9;
        speeds.extend(measured.samples_ts());
    }
    let tps = Summary::of(&speeds).mean;
    Ok(Some(Paced { tps, watts: joules.map(|joules| joules / seconds) }))
}

fn read(meter: &mut Option<&mut Meter>) -> Option<f64> {
    meter.as_mut()?.joules().ok()
}

fn report(args: &Args, model: &str, placement: &str, measured: &[Paced]) -> Result<u8, Failure> {
    let rates: Vec<Rates> = measured.iter().map(|paced| args.prices.rates(paced.watts)).collect();
    let n_gen = if measured.len() > 1 { args.n_gen } else { 0 };
    let workload = Workload {
        prompt: args.n_prompt,
        generated: n_gen,
        prompt_tps: measured[0].tps,
        generated_tps: measured.get(1).map_or(0.0, |paced| paced.tps),
    };
    let last = *rates.last().unwrap_or(&rates[0]);
    let even = args.against.map(|offer| workload.break_even(&last, &offer));
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
            "machine_hour": last.machine_hour,
            "utilization": last.utilization,
            "energy_kwh": last.energy_kwh,
            "prompt": parts[0],
            "generated": parts.get(1),
            "request": last.hour() / 3600.0 * workload.seconds(),
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
            money(rates.million(paced.tps))
        ))?;
    }
    let hour = format!("an hour of work: {} {currency}", money(last.hour()));
    let energy = money(last.energy_hour());
    output::line(&format!(
        "{hour}, {energy} of it energy; the machine works {} % of the time",
        100.0 * last.utilization
    ))?;
    even.map_or(Ok(()), |even| output::line(&compared(&even, currency)))?;
    if last.watts.is_none() {
        output::note(
            "note: energy is left out: there are no counters that can be read; give --watts",
        );
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
