//! `bilayer quantize`: quantizes a model file.

use std::path::Path;
use std::time::Instant;

use bilayer_convert::imatrix::Imatrix;
use bilayer_convert::quantize::gptq::Rounded;
use bilayer_convert::quantize::mixed::Coarse;
use bilayer_convert::quantize::sensitivity::Sensitivity;
use bilayer_convert::quantize::{self, Override, Plan, Planned, Quantize};
use bilayer_convert::smooth::Smoothed;
use bilayer_convert::{Calibration, Error};
use bilayer_engine::Model;
use bilayer_gguf::File;
use serde_json::{Value, json};

use crate::args;
use crate::failure::{Failure, INTERRUPTED};
use crate::{output, progress};

mod budget;
mod mixed;
mod smooth;

/// Writes the file and reports on it.
pub fn execute(args: &args::Quantize) -> Result<u8, Failure> {
    let args = &named(args)?;
    let mut quantize = asked(args)?;
    let file = open(args)?;
    if args.leave_output_tensor {
        leave_head(&mut quantize, &file);
    }
    let imatrix = args.imatrix.as_deref().map(importance).transpose()?;
    let in_file = |error| of_input(error, &args.input);
    if args.calibration.is_some() {
        // An invalid output path is reported before measuring.
        quantize.plan(&file, imatrix.as_ref()).map_err(in_file)?.check_output(&args.out)?;
    }
    let mut measured = None;
    if let Some(target) = args.target_bpw {
        Sensitivity::check(&quantize, &file, imatrix.as_ref(), target)?;
        let sensitivity = budget::measure(args, &quantize, imatrix.as_ref())?;
        let Some(sensitivity) = sensitivity else { return Ok(INTERRUPTED) };
        measured = Some(budget::apply(args, &mut quantize, &sensitivity, target)?);
    }
    let (file, smoothed) = match args.smooth {
        None => (file, None),
        Some(alpha) => {
            let Some(done) = smooth::apply(args, alpha, &quantize, file)? else {
                return Ok(INTERRUPTED);
            };
            (done.0, Some(done.1))
        }
    };
    let uses_text = args.smooth.is_some() || args.gptq;
    let is_mixed = uses_text && !args.pure && quantize.may_be_too_coarse();
    let rounds = args.gptq && !args.dry_run;
    let (mut coarse, mut rounded) = (Vec::new(), None);
    if is_mixed || rounds {
        let calibrated = model(args, smoothed.as_ref())?;
        if is_mixed {
            let Some(found) = mixed::apply(args, &mut quantize, &calibrated)? else {
                return Ok(INTERRUPTED);
            };
            coarse = found;
        }
        if rounds {
            let Some(made) = gptq(args, &quantize, &calibrated)? else { return Ok(INTERRUPTED) };
            rounded = Some(made);
        }
    }
    let mut plan = quantize.plan(&file, imatrix.as_ref()).map_err(in_file)?;
    if let Some(path) = &args.imatrix {
        plan.cite(path);
    }
    if let Some(rounded) = &rounded {
        plan.take(rounded);
    }
    plan.override_metadata(&args.override_kv).map_err(in_file)?;
    plan.check_output(&args.out)?;
    notes(&plan, imatrix.as_ref());
    let name = match args.target_bpw {
        Some(target) => format!("{target} bits per weight"),
        None => quantize.mix.name.to_owned(),
    };
    let made = Made { name, measured, smoothed, coarse };
    if args.dry_run {
        return report(args, &made, &plan, None);
    }
    let bar = progress::bytes("quantizing");
    let began = Instant::now();
    match progress::interruptible(&bar, |told| plan.write(&args.out, told)) {
        Ok(Some(())) => report(args, &made, &plan, Some(began.elapsed().as_secs_f64())),
        Ok(None) => Ok(INTERRUPTED),
        Err(error @ Error::Weight { .. }) => Err(in_file(error)),
        Err(error) => Err(error.into()),
    }
}

/// The arguments with OUT and TYPE told apart: as in llama-quantize, OUT may be left out.
fn named(args: &args::Quantize) -> Result<args::Quantize, Failure> {
    let out = args.out.to_str().unwrap_or_default();
    let mut args = args.clone();
    // As llama-quantize reads it, the number of a type is a type, unless the name of one follows.
    let is_number = out.parse::<u32>().is_ok();
    let follows = args.r#type.as_ref().is_some_and(|name| name.parse::<i64>().is_err());
    let mix = quantize::mix(out).ok().filter(|_| !(is_number && follows));
    if let Some(mix) = mix {
        if let Some(threads) = args.r#type.take() {
            let number = threads.parse().map_err(|_| {
                Failure::usage(format!("OUT is {out}, which is a type; give IN OUT TYPE"))
            })?;
            args.threads = Some(number);
        }
        args.r#type = Some(out.to_owned());
        let name = if is_number { mix.name.to_owned() } else { out.to_uppercase() };
        args.out = args.input.with_file_name(format!("ggml-model-{name}.gguf")).into();
    }
    if args.r#type.is_none() && args.target_bpw.is_none() {
        return Err(Failure::usage("no type; give IN OUT TYPE, such as Q4_K_M"));
    }
    Ok(args)
}

fn asked(args: &args::Quantize) -> Result<Quantize, Failure> {
    // With a target size, every tensor without a rule gets an individual type.
    let mix = quantize::mix(args.r#type.as_deref().unwrap_or("Q4_K"))?;
    let names_types = !args.tensor_type.is_empty()
        || args.tensor_type_file.is_some()
        || args.output_tensor_type.is_some()
        || args.token_embedding_type.is_some()
        || args.pure;
    if mix.copies && names_types {
        return Err(Failure::usage(
            "COPY keeps the type of every tensor; give another TYPE with --pure and options that name types",
        ));
    }
    let ty = |name: &Option<String>| name.as_deref().map(quantize::weight_type).transpose();
    let overrides: Result<Vec<_>, Error> =
        args.tensor_type.iter().map(|given| Override::parse(given)).collect();
    let mut overrides = overrides?;
    if let Some(path) = &args.tensor_type_file {
        let more = Override::parse_all(&output::file(path)?);
        overrides.extend(more.map_err(|error| Failure::from(error).in_file(path))?);
    }
    Ok(Quantize {
        mix: if args.pure { mix.purely()? } else { mix },
        overrides,
        output: ty(&args.output_tensor_type)?,
        embedding: ty(&args.token_embedding_type)?,
        requantize: args.allow_requantize,
        threads: args::threads(args.threads),
    })
}

/// Keeps the type of the output head.
fn leave_head(quantize: &mut Quantize, file: &File) {
    match file.tensor("output.weight") {
        Some(head) => quantize.output = Some(head.layout().ty()),
        None => output::note(
            "--leave-output-tensor: there is no output.weight; for a head that is the embedding give \
             --token-embedding-type",
        ),
    }
}

/// Opens an input; its errors are not those of the output.
fn open(args: &args::Quantize) -> Result<File, Failure> {
    let file = File::open(&args.input).and_then(|file| file.overridden(&args.override_kv));
    file.map_err(|error| bilayer_engine::Error::File(error).into())
}

/// Rounds matrices on the calibration text; `None` if interrupted.
fn gptq(
    args: &args::Quantize,
    quantize: &Quantize,
    (text, model): &(String, Model),
) -> Result<Option<Rounded>, Failure> {
    let in_file = |error| of_input(error, &args.input);
    let bar = progress::bytes("rounding");
    let rounded = progress::interruptible(&bar, |told| {
        quantize.gptq(model, &calibration(args, text), &args.out, told)
    });
    let rounded = rounded.map_err(|error| match error {
        // The temporary file cannot be written.
        Error::File(_) => error.into(),
        error => in_file(error),
    })?;
    if let Some(rounded) = &rounded {
        output::note(&format!("{} matrices rounded by GPTQ", rounded.matrices()));
    }
    Ok(rounded)
}

/// The calibration text, and the model that runs it: smoothed, if it is to be.
fn model(args: &args::Quantize, smoothed: Option<&Smoothed>) -> Result<(String, Model), Failure> {
    let (text, mut file) = calibrated(args)?;
    if let Some(smoothed) = smoothed {
        file = smoothed.apply(file).map_err(|error| of_input(error, &args.input))?;
    }
    Ok((text, Model::new(file)?))
}

/// The calibration text, and the file of the model that runs it.
fn calibrated(args: &args::Quantize) -> Result<(String, File), Failure> {
    let path = args.calibration.as_deref();
    let path = path.ok_or_else(|| Failure::usage("no text; give --calibration FILE"))?;
    Ok((output::file(path)?, open(args)?))
}

fn calibration<'a>(args: &args::Quantize, text: &'a str) -> Calibration<'a> {
    Calibration { text, window_len: args.ctx_size, windows: args.chunks as usize }
}

/// Opens an importance matrix in either format.
pub(super) fn importance(path: &Path) -> Result<Imatrix, Failure> {
    Imatrix::open(path).map_err(|error| match error {
        Error::File(error) => bilayer_engine::Error::File(error).into(),
        error => error.into(),
    })
}

/// Attributes an error to the input file; errors of its format already name it.
fn of_input(error: Error, path: &Path) -> Failure {
    match error {
        Error::File(error) => bilayer_engine::Error::File(error).into(),
        error => Failure::from(error).in_file(path),
    }
}

/// Prints notes on stderr.
fn notes(plan: &Plan<'_>, imatrix: Option<&Imatrix>) {
    for Planned { name, shape, to, preferred, .. } in plan.tensors() {
        if let Some(preferred) = preferred {
            let cols = shape.last().copied().unwrap_or_default();
            output::note(&format!(
                "{name}: rows of {cols} are not a multiple of {preferred}'s block of {}; written as {to}",
                preferred.block_weights
            ));
        }
    }
    for pattern in plan.unmatched() {
        output::note(&format!("--tensor-type {pattern}: matches no matrix"));
    }
    let unknown = plan.tensors().iter().filter(|t| t.from != t.to && !t.weighted).count();
    if imatrix.is_some() && unknown > 0 {
        output::note(&format!(
            "{unknown} tensors are not in the importance matrix; their columns have equal weight"
        ));
    }
}

/// The name of the file, and the measurements for it.
struct Made {
    name: String,
    measured: Option<budget::Chosen>,
    smoothed: Option<Smoothed>,
    coarse: Vec<Coarse>,
}

fn report(
    args: &args::Quantize,
    made: &Made,
    plan: &Plan<'_>,
    seconds: Option<f64>,
) -> Result<u8, Failure> {
    let Made { name: mix, measured, smoothed, coarse } = made;
    let (before, after, parameters) = (plan.from_bytes(), plan.to_bytes(), plan.parameters());
    let bits_per_weight = after as f64 * 8.0 / parameters.max(1) as f64;
    if args.json {
        output::json(&json!({
            "path": args.out,
            "type": mix,
            "pure": args.pure,
            "dry_run": args.dry_run,
            "parameters": parameters,
            "bytes_before": before,
            "bytes": after,
            "bpw": bits_per_weight,
            "ms": seconds.map(|seconds| seconds * 1e3),
            "smoothed": smoothed.as_ref().map(smooth::json),
            "too_coarse": mixed::json(coarse),
            "kl_expected": measured.as_ref().map(|chosen| chosen.kl),
            "tensors": plan.tensors().iter().map(|planned| tensor(planned, measured)).collect::<Vec<_>>(),
        }))?;
        return Ok(0);
    }
    if args.dry_run || measured.is_some() {
        for tensor in plan.tensors() {
            let kl = measured.as_ref().and_then(|chosen| chosen.of(&tensor.name));
            let kl = kl.map_or_else(String::new, |kl| format!("  KL {kl:.2e}"));
            output::line(&format!("{}{kl}", row(tensor)))?;
        }
    }
    if let Some(chosen) = measured {
        output::line(&format!("expected total divergence: {:.5} nats per token", chosen.kl))?;
    }
    let path = args.out.display();
    let would = if args.dry_run { " (not written)" } else { "" };
    output::line(&format!(
        "{path}{would}: {mix}, {} tensors, {before} -> {after} bytes, {bits_per_weight:.2} bits per weight",
        plan.tensors().len()
    ))?;
    if let Some(seconds) = seconds {
        let rate = before as f64 / 1e6 / seconds;
        output::note(&format!("quantized: {:.0} ms, {rate:.0} MB/s read", seconds * 1e3));
    }
    Ok(0)
}

fn row(tensor: &Planned) -> String {
    let Planned { name, shape, from, to, from_bytes, to_bytes, .. } = tensor;
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let sizes = sizes.join(" x ");
    format!("{name:32} {sizes:>18}  {from:>5} -> {to:6} {from_bytes:>12} -> {to_bytes} bytes")
}

fn tensor(tensor: &Planned, measured: &Option<budget::Chosen>) -> Value {
    json!({
        "kl": measured.as_ref().and_then(|chosen| chosen.of(&tensor.name)),
        "name": tensor.name,
        "shape": tensor.shape,
        "from": tensor.from.name,
        "to": tensor.to.name,
        "wanted": tensor.preferred.map(|ty| ty.name),
        "weighted": tensor.weighted,
        "bytes_before": tensor.from_bytes,
        "bytes": tensor.to_bytes,
    })
}
