//! The HTML page of a profile: one self-contained file.

use bilayer_measure::profile::{Curves, Point, Profile};
use bilayer_scheduler::map::{self, Devices, MapRun};
use bilayer_scheduler::{ANSWER_TOKENS, PROMPT_TOKENS};
use minijinja::{Error, Value, context};

use super::charts::{Charts, both};
use super::{columns, table};
use crate::output;
use crate::page::{self, class_of, short};

const TEMPLATE: &str = include_str!("page.html");

/// Relative error beyond which a prediction is explained.
const FAR: f64 = 0.25;

/// Most layers of a placement that are drawn as cells.
const CELLS_MAX: usize = 512;

/// Renders the page, with charts for a window and for a phone.
///
/// # Errors
/// The template does not match its data, which is a bug.
pub fn html(profile: &Profile, charts: [&Charts; 2]) -> Result<String, Error> {
    let about = context! {
        model => &profile.model,
        command => "profile",
        subject => format!("{} on {}", profile.model, profile.gpu),
        headline => headline(profile),
        why => sentence(&profile.why),
        flag => profile.flag(),
        recommended => profile.recommended,
        figures => figures(profile),
        map => words(chosen(profile).map_or("", |point| point.map.as_str())),
        cells => match &profile.curves {
            Some(_) => Vec::new(),
            None => chosen(profile).map(|point| cells(&point.map)).unwrap_or_default(),
        },
        accuracy => unbroken(&accuracy(profile)),
        knee => unbroken(&knee(profile)),
        is_offloaded => profile.curves.is_none(),
        charts => named(charts),
        prompt_tokens => profile.prompt_tokens,
        streamed_prompt_tokens => profile.streamed_prompt_tokens,
        usual => [PROMPT_TOKENS, ANSWER_TOKENS],
        has_timeline => !profile.timeline.is_empty(),
        step => step(profile),
        steps => steps(profile, charts),
        head => head(profile),
        rows => rows(profile),
        tables => tables(profile),
        made => made(profile),
        json => page::document(profile),
    };
    page::render(TEMPLATE, about)
}

fn at(profile: &Profile, gpu_layers: u32) -> Option<&Point> {
    profile.points.iter().find(|p| p.gpu_layers == gpu_layers)
}

fn chosen(profile: &Profile) -> Option<&Point> {
    at(profile, profile.recommended)
}

fn parts(profile: &Profile) -> u32 {
    profile.points.last().map_or(0, |p| p.gpu_layers)
}

fn headline(profile: &Profile) -> String {
    match profile.curves.as_ref().map(Curves::recommended) {
        Some(1) => return "Run on one thread".to_owned(),
        Some(threads) => return format!("Run on {threads} threads"),
        None => {}
    }
    match (profile.recommended, parts(profile)) {
        (0, _) => "Keep every layer on the CPU".to_owned(),
        (n, all) if n == all => format!("Offload all {all} layers"),
        (n, all) => format!("Offload {n} of {all} layers"),
    }
}

/// A sentence: capitalized and ended by a full stop.
fn sentence(text: &str) -> String {
    let text = unbroken(text);
    let mut letters = text.chars();
    let first = letters.next().map(char::to_uppercase).into_iter().flatten();
    format!("{}{}.", first.collect::<String>(), letters.as_str())
}

/// Joins numbers and units by non-breaking spaces.
fn unbroken(text: &str) -> String {
    text.replace(" = ", "\u{a0}=\u{a0}").replace(" ms", "\u{a0}ms").replace(" %", "\u{a0}%")
}

/// The key figures at the recommended N: name, number, unit and comparison.
fn figures(profile: &Profile) -> Vec<Value> {
    if let Some(curves) = &profile.curves {
        return figures_of(curves);
    }
    let Some(point) = chosen(profile) else { return Vec::new() };
    let alone = at(profile, 0).filter(|_| profile.recommended != 0);
    let rate = |ms: f64| 1000.0 / ms;
    let mut figures = Vec::new();
    let mut add = |name: &str, number: f64, unit: &str, beside: String| {
        if number.is_finite() {
            figures.push(
                context! { name, number => short(number), unit, beside => unbroken(&beside) },
            );
        }
    };
    if profile.recommended != 0 {
        add("Speedup", point.speedup, "\u{d7}", "against the CPU alone".to_owned());
    }
    let decode = format!("{} ms per token", short(point.decode_ms));
    let decode = match alone.filter(|p| p.is_measured()) {
        Some(p) => format!("{decode}; {} tok/s at N = 0", short(rate(p.decode_ms))),
        None => decode,
    };
    add("Decode", rate(point.decode_ms), "tok/s", decode);
    let streamed = point.streamed_prefill_tps.filter(|&streamed| streamed > point.prefill_tps);
    let prompt = match alone.filter(|p| p.prefill_tps.is_finite()) {
        Some(p) => format!("{} tok/s at N = 0", short(p.prefill_tps)),
        None => format!("prompt of {} tokens", profile.prompt_tokens),
    };
    let prompt = if streamed.is_some() { format!("weights streamed; {prompt}") } else { prompt };
    add("Prefill", streamed.unwrap_or(point.prefill_tps), "tok/s", prompt);
    let (number, unit) = match point.gpu_bytes.unwrap_or(0) as f64 / f64::from(1 << 20) {
        mib if mib >= 1024.0 => (mib / 1024.0, "GiB"),
        mib => (mib, "MiB"),
    };
    add("On the GPU", number, unit, output::counted(point.gpu_layers, ["layer", "layers"]));
    figures
}

/// The key figures of a profile without a GPU.
fn figures_of(curves: &Curves) -> Vec<Value> {
    let best = curves.recommended();
    let chosen = curves.threads.iter().find(|at| at.threads == best);
    let chosen = chosen.into_iter().flat_map(|at| {
        let ms = format!("{} ms per token", short(1000.0 / at.decode_tps));
        let beside = if best == 1 { "one thread".to_owned() } else { format!("{best} threads") };
        [("Decode", at.decode_tps, ms), ("Prefill", at.prefill_tps, beside)]
    });
    let together = curves.sequences.last().map(|at| {
        let beside = format!("{} sequences together", at.sequences);
        ("Decode, all", at.decode_tps, beside)
    });
    let figure = |(name, number, beside): (&str, f64, String)| {
        context! { name, number => short(number), unit => "tok/s", beside }
    };
    chosen.chain(together).map(figure).collect()
}

/// The knee, and what a layer saves on either side of it.
fn knee(profile: &Profile) -> String {
    let ends = (at(profile, 0), profile.points.iter().rfind(|p| p.is_measured()));
    let (Some(first), Some(last)) = ends else { return "Nothing was measured.".to_owned() };
    let mean = |from: &Point, to: &Point| {
        short((from.decode_ms - to.decode_ms) / f64::from(to.gpu_layers - from.gpu_layers))
    };
    match columns::bend(profile).and_then(|n| at(profile, n)) {
        Some(bend) => format!(
            "The knee is N = {}: up to it a layer saves {} ms per token on average, beyond it {} ms.",
            bend.gpu_layers,
            mean(first, bend),
            mean(bend, last)
        ),
        None if profile.knee == 0 => {
            "There is no knee: no N is faster than the CPU alone.".to_owned()
        }
        None => format!(
            "There is no knee: up to N = {} a layer saves {} ms per token on average.",
            last.gpu_layers,
            mean(first, last)
        ),
    }
}

/// The errors of the predictions.
fn accuracy(profile: &Profile) -> String {
    let mut errors: Vec<(f64, u32)> =
        profile.points.iter().filter_map(|p| Some((p.error()?.abs(), p.gpu_layers))).collect();
    errors.sort_by(|a, b| a.0.total_cmp(&b.0));
    match (errors.get(errors.len() / 2), errors.last()) {
        (Some((median, _)), Some((worst, n))) => format!(
            "The median error of the predictions is {:.1} %, the largest {:.1} % at N = {n}.{}",
            100.0 * median,
            100.0 * worst,
            if *worst > FAR { cause(profile) } else { String::new() }
        ),
        _ => "Nothing was predicted.".to_owned(),
    }
}

/// What makes predictions wrong that are far off: a device that runs slower or faster than when its layers were
/// timed, or else what lies between the devices.
fn cause(profile: &Profile) -> String {
    let measured = || profile.points.iter().filter(|p| p.error().is_some());
    let ends = [("CPU", measured().next()), ("GPU", measured().next_back())];
    let alone = |device: &str, point: &Point| match device {
        "CPU" => point.gpu_layers == 0,
        _ => point.gpu_layers == parts(profile),
    };
    let mut causes = Vec::new();
    for (device, point) in ends {
        let Some((point, error)) = point.and_then(|point| Some((point, point.error()?))) else {
            continue;
        };
        if alone(device, point) && error.abs() > FAR {
            let times = (1.0 + error).max(1.0 / (1.0 + error));
            let how = if error < 0.0 { "slower" } else { "faster" };
            causes.push(format!(
                "the {device} was {times:.1} times {how} than when its layers were timed"
            ));
        }
    }
    match causes.is_empty() {
        true => {
            " Each device alone is predicted well: what is off is the time between them.".to_owned()
        }
        false => format!(" The reason: {}.", causes.join(", and ")),
    }
}

/// A placement map in words.
fn words(map: &str) -> String {
    let part = |run: &MapRun| {
        let device = match run.devices {
            Devices::Both => "on both",
            Devices::Offload => "on the GPU",
            Devices::Host => "on the CPU",
        };
        match &run.layers {
            None => format!("output head {device}"),
            Some(layers) if layers.start() == layers.end() => {
                format!("layer {} {device}", layers.start())
            }
            Some(layers) => format!("layers {} to {} {device}", layers.start(), layers.end()),
        }
    };
    let runs = map::runs(map).filter(|runs| !runs.is_empty());
    let words = runs.map(|runs| runs.iter().rev().map(part).collect::<Vec<_>>().join(", "));
    words.unwrap_or_else(|| map.to_owned())
}

/// The layers of a placement map such as `out:gpu 3-2:gpu 1-0:cpu` in the order of execution, each with its name and
/// device. Empty if the map has another form.
fn cells(map: &str) -> Vec<Value> {
    let mut cells: Vec<(String, &str)> = Vec::new();
    for MapRun { layers, devices } in map::runs(map).unwrap_or_default().into_iter().rev() {
        let whose = class_of(devices);
        match layers {
            Some(layers) => {
                let layers = layers.take(CELLS_MAX.saturating_sub(cells.len()));
                cells.extend(layers.map(|layer| (format!("layer {layer}"), whose)));
            }
            None => cells.push(("out".to_owned(), whose)),
        }
    }
    let cells = cells.into_iter().take(CELLS_MAX);
    cells.map(|(name, whose)| context! { name, whose }).collect()
}

/// Which step is shown.
fn step(profile: &Profile) -> String {
    let chosen = profile.steps.iter().find(|step| step.gpu_layers == profile.recommended);
    chosen.map_or(String::new(), |step| {
        unbroken(&format!(
            "The step of median duration, {} ms, of {} that were timed op by op, which makes them slower.",
            short(step.ms),
            step.of
        ))
    })
}

/// The timelines by number of layers.
fn steps(profile: &Profile, [wide, narrow]: [&Charts; 2]) -> Vec<Value> {
    let step = |((gpu_layers, wide), (_, narrow)): (&(u32, String), &(u32, String))| {
        let is_chosen = *gpu_layers == profile.recommended;
        context! { n => gpu_layers, is_chosen, chart => both(wide, narrow) }
    };
    wide.steps.iter().zip(&narrow.steps).map(step).collect()
}

/// The charts by name.
fn named([wide, narrow]: [&Charts; 2]) -> Value {
    let pairs = wide.named.iter().zip(&narrow.named);
    Value::from_pairs(pairs.map(|((name, wide), (_, narrow))| (*name, both(wide, narrow))))
}

fn head(profile: &Profile) -> Vec<Value> {
    let head = |(column, _): &(&columns::Column, Vec<Option<columns::Cell>>)| {
        let unit = if column.unit == "x" { "\u{d7}" } else { column.unit };
        context! { title => column.title, unit }
    };
    columns::filled(profile).iter().map(head).collect()
}

fn rows(profile: &Profile) -> Vec<Value> {
    let columns = columns::filled(profile);
    let row = |(index, point): (usize, &Point)| {
        let cell = |(column, cells): &(&columns::Column, Vec<Option<columns::Cell>>)| {
            let key = column.key.unwrap_or_default();
            match cells.get(index).and_then(Option::as_ref) {
                Some(cell) => {
                    let text = cell.text.replace('-', "\u{2212}");
                    context! { key, text, value => cell.value.to_string() }
                }
                None => context! { key, text => "", value => "" },
            }
        };
        let remarks = columns::remarks(profile, point);
        context! {
            n => point.gpu_layers,
            map => &point.map,
            fits => point.fits,
            chosen => point.gpu_layers == profile.recommended,
            cells => columns.iter().map(cell).collect::<Vec<Value>>(),
            remarks,
        }
    };
    profile.points.iter().enumerate().map(row).collect()
}

/// The tables of a profile without a GPU.
fn tables(profile: &Profile) -> Vec<Value> {
    let table = |table: &table::Table| {
        let head = table.head.iter().map(|&(title, unit)| vec![title, unit]);
        context! { head => head.collect::<Vec<_>>(), columns => table.columns.clone() }
    };
    table::of_curves(profile.curves.as_ref()).iter().map(table).collect()
}

/// The conditions of the measurement: names and values.
fn made(profile: &Profile) -> Vec<Value> {
    let gib = profile.bytes as f64 / f64::from(1 << 30);
    let billions = profile.parameters as f64 / 1e9;
    let read = match profile.read_gbps {
        rate if rate > 0.0 => format!("{rate:.1} GB/s read by the CPU during the run"),
        _ => "not measured".to_owned(),
    };
    let prompt = format!("{} tokens", profile.prompt_tokens);
    let prompt = match profile.streamed_prompt_tokens {
        Some(tokens) => format!("{prompt}; {tokens} with streamed weights"),
        None => prompt,
    };
    let threads = output::counted(profile.threads, ["thread", "threads"]);
    let facts = [
        ("Model", profile.model.clone()),
        ("Weights", format!("{billions:.2} billion parameters, {gib:.2} GiB")),
        ("GPU", profile.gpu.clone()),
        ("CPU", format!("{}, {threads}", profile.cpu)),
        ("Memory", read),
        ("Context", format!("{} tokens", profile.context)),
        ("Prompt", prompt),
        ("Rounds", format!("{}; medians are shown", profile.rounds)),
    ];
    facts.into_iter().map(|(name, value)| context! { name, value }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_become_words() {
        let cases = [
            (
                "out:gpu 3-2:gpu 1:gpu+cpu 0:cpu",
                "layer 0 on the CPU, layer 1 on both, layers 2 to 3 on the GPU, output head on the GPU",
            ),
            ("unknown", "unknown"),
            ("", ""),
        ];
        for (map, expected) in cases {
            assert_eq!(words(map), expected);
        }
    }

    #[test]
    fn maps_become_cells_in_the_order_of_a_token() {
        let most = ["gpu"; CELLS_MAX].join(" ");
        let cases = [
            ("out:gpu 3-2:gpu 1-0:cpu", "cpu cpu gpu gpu gpu"),
            ("out:cpu 1:gpu+cpu 0:cpu", "cpu both cpu"),
            ("unknown", ""),
            ("", ""),
            ("out:cpu 4000000000-0:gpu", &most),
        ];
        for (map, expected) in cases {
            let whose: Vec<String> =
                cells(map).iter().map(|c| c.get_attr("whose").unwrap().to_string()).collect();
            assert_eq!(whose.join(" "), expected, "{map}");
        }
    }
}
