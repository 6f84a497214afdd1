//! `bilayer perplexity`: measures the perplexity of a text, and the divergence from a base model.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use bilayer_engine::session::{Session, Settings};
use bilayer_engine::{Encode, Error, Model};
use bilayer_measure::perplexity::{
    Base, Divergence, Logits, Mean, Report, Windows, score, settings,
};
use serde_json::{Value, json};

use crate::args::{ModelArgs, Perplexity};
use crate::commands::run;
use crate::failure::{Failure, INTERRUPTED};
use crate::interrupt;
use crate::new_file::NewFile;
use crate::{demo, output, progress, trace};

mod page;

/// Loads, scores, reports.
pub fn execute(args: &Perplexity) -> Result<u8, Failure> {
    interrupt::catch();
    trace::check(args.html.as_deref())?;
    let model = open(&args.model)?;
    let (written, compared) = match (&args.kl_base, args.kl_divergence) {
        (base, true) => (None, base.as_deref()),
        (base, false) => (base.as_deref(), args.kl.as_deref()),
    };
    if let Some(path) = compared {
        return compare(args, &model, path).map_err(|failure| failure.in_file(path));
    }
    let mut windows = text(&model, args.file.as_deref(), &args.model, Windows::ENCODE)?;
    shorten(&mut windows, args.chunks);
    let Some(path) = written else {
        return run(args, &model, &windows, Logits::Scored)
            .map(|ended| ended.map_or(INTERRUPTED, |()| 0));
    };
    let failed = |error: std::io::Error| Failure::output(path, &error);
    let mut file = NewFile::create(path).map_err(failed)?;
    let ended = run(args, &model, &windows, Logits::Written(&mut file));
    match ended.map_err(|failure| failure.in_file(path))? {
        Some(()) => file.finish().map_err(failed).map(|()| 0),
        None => Ok(INTERRUPTED),
    }
}

/// Compares with the windows and logits of a file.
fn compare(args: &Perplexity, model: &Model, path: &Path) -> Result<u8, Failure> {
    let file =
        File::open(path).map_err(|error| Failure::input(Path::new("base logits"), &error))?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let mut file = BufReader::with_capacity(1 << 20, file);
    let input: &mut dyn Read = &mut file;
    let mut base = Base::new(input, bytes, model).map_err(bilayer_measure::Error::from)?;
    let mut windows = base.windows().clone();
    let asked = args.model.ctx_size.filter(|&asked| asked != windows.window_len());
    if let Some(asked) = asked {
        let found = windows.window_len();
        return Err(Failure::usage(format!(
            "windows of {found} tokens, not {asked}; give -c {found} or no -c"
        )));
    }
    shorten(&mut windows, args.chunks);
    let ended = run(args, model, &windows, Logits::Compared(&mut base))?;
    Ok(ended.map_or(INTERRUPTED, |()| 0))
}

/// Scores the windows and prints the result; `None` if interrupted.
fn run(
    args: &Perplexity,
    model: &Model,
    windows: &Windows,
    logits: Logits<'_>,
) -> Result<Option<()>, Failure> {
    let given = run::settings::model(&args.model)?;
    let wanted = settings(windows, model.config().vocab, args.model.batch_size, given);
    let mut session = session(model, wanted)?;
    let bar = progress::tokens("scoring", windows.count() * windows.scored());
    interrupt::answering();
    let mut along: Vec<(usize, f64)> = Vec::new();
    let report = score(&mut session, windows, logits, &mut |report| {
        let count = report.estimate.count();
        bar.set_position(count as u64);
        if count > 0 {
            let value = report.estimate.perplexity().value;
            bar.set_message(format!("PPL {value:.4}"));
            if along.last().is_none_or(|(last, _)| *last < count) {
                along.push((count, value));
            }
        }
        !interrupt::is_set()
    });
    bar.finish_and_clear();
    run::warn(&mut session);
    let Some(report) = report? else { return Ok(None) };
    if let Some(path) = &args.html {
        let text = args.file.as_deref().or(args.kl.as_deref()).or(args.kl_base.as_deref());
        let about = page::About {
            model: model.name(),
            text: text.map_or(String::new(), |path| path.display().to_string()),
            placement: session.plan().map.clone(),
            along: &along,
        };
        crate::page::write(path, page::html(&report, windows, &about))?;
        output::note(&format!("page: {}", path.display()));
    }
    match args.json {
        true => output::json(&document(&report, windows))?,
        false => output::text(&listing(&report))?,
    }
    Ok(Some(()))
}

/// Opens the model of the flags, which must be a decoder.
pub(super) fn open(flags: &ModelArgs) -> Result<Model, Failure> {
    let model = demo::open(&flags.source())?;
    if model.config().encoder.is_some() {
        return Err(Error::NoDecoder { name: model.name() }.into());
    }
    Ok(model)
}

/// The windows of a text file.
pub(super) fn text(
    model: &Model,
    path: Option<&Path>,
    flags: &ModelArgs,
    encode: Encode,
) -> Result<Windows, Failure> {
    let path = path.ok_or_else(|| Failure::usage("no text; give -f FILE"))?;
    let context = model.config().context;
    let len = Windows::len_of(model, flags.ctx_size);
    if len > context {
        output::note(&format!(
            "note: windows of {len} tokens; the model was trained for {context}"
        ));
    }
    Ok(Windows::of_text(model, &output::file(path)?, len, encode)?)
}

/// Selects the requested windows; as in llama.cpp, negative numbers mean all.
pub(super) fn shorten(windows: &mut Windows, chunks: Option<i64>) {
    if let Some(chunks) = chunks.and_then(|chunks| usize::try_from(chunks).ok()) {
        windows.truncate(chunks);
    }
}

/// Prepares a session and prints placement and warnings on stderr.
pub(super) fn session(model: &Model, settings: Settings<'_>) -> Result<Session, Failure> {
    let mut session = progress::loading(|tell| {
        Session::new(model, Settings { progress: Some(tell), ..settings })
    })?;
    for note in &session.plan().notes {
        output::note(&format!("note: {note}"));
    }
    run::warn(&mut session);
    run::details(&session);
    output::note(&format!("placement: {}", session.plan().map));
    Ok(session)
}

/// The quantiles of the divergence to list.
const SHARES: [(f64, &str); 6] = [
    (0.5, "kl_p50"),
    (0.9, "kl_p90"),
    (0.95, "kl_p95"),
    (0.99, "kl_p99"),
    (0.999, "kl_p999"),
    (1.0, "kl_max"),
];

fn percentiles(divergence: &Divergence) -> impl Iterator<Item = (&'static str, f64)> {
    let values = divergence.kl_at(SHARES.map(|(share, _)| share));
    SHARES.into_iter().zip(values).map(|((_, name), value)| (name, value))
}

fn document(report: &Report, windows: &Windows) -> Value {
    let perplexity = report.estimate.perplexity();
    let mut document = json!({
        "perplexity": perplexity.value,
        "perplexity_error": perplexity.error,
        "tokens": report.estimate.count(),
        "windows": report.windows,
        "window_tokens": windows.window_len(),
    });
    if let Some(divergence) = &report.divergence {
        let (base, ratio, kl) =
            (divergence.base().perplexity(), divergence.ratio(), divergence.kl());
        let mut more = json!({
            "base_perplexity": base.value,
            "base_perplexity_error": base.error,
            "perplexity_ratio": ratio.value,
            "perplexity_ratio_error": ratio.error,
            "kl_mean": kl.value,
            "kl_mean_error": kl.error,
            "top1": divergence.top1(),
            "p_rms": divergence.p_rms(),
        });
        for (name, value) in percentiles(divergence) {
            more[name] = value.into();
        }
        if let (Value::Object(document), Value::Object(more)) = (&mut document, more) {
            document.extend(more);
        }
    }
    document
}

fn listing(report: &Report) -> String {
    let mean = |mean: Mean| format!("{:.4} +/- {:.5}", mean.value, mean.error);
    let mut text = String::new();
    if let Some(divergence) = &report.divergence {
        let kl = divergence.kl();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "PPL of the base:   {}", mean(divergence.base().perplexity()));
        let ratio = divergence.ratio();
        let _ = writeln!(text, "PPL / base PPL:    {:.6} +/- {:.6}", ratio.value, ratio.error);
        let _ = writeln!(text, "KL divergence:     {:.6} +/- {:.6}", kl.value, kl.error);
        for (name, value) in percentiles(divergence) {
            let _ = writeln!(text, "  {name:<17}{value:.6}");
        }
        let _ = writeln!(
            text,
            "difference of p:   {:.3} % (root mean square)",
            100.0 * divergence.p_rms()
        );
        let _ = writeln!(text, "same top token:    {:.3} %", 100.0 * divergence.top1());
    }
    let tokens = report.estimate.count();
    let _ = writeln!(text, "scored:            {tokens} tokens in {} windows", report.windows);
    let _ = writeln!(text, "Final estimate: PPL = {}", mean(report.estimate.perplexity()));
    text
}
