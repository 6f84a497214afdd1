//! `bilayer quantize`: quantizes a model file.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use bilayer_convert::quantize::job::{Done, Event, Job, Method, Step};
use bilayer_convert::quantize::sensitivity::Choices;
use bilayer_convert::quantize::{self, Override, Quantize};
use bilayer_convert::{Calibration, Error};

use crate::args;
use crate::failure::{Failure, INTERRUPTED};
use crate::new_file::NewFile;
use crate::progress::Bars;
use crate::{interrupt, output, progress};

mod report;

/// Writes the file and reports on it.
pub fn execute(args: &args::Quantize) -> Result<u8, Failure> {
    let args = &named(args)?;
    let text = args.calibration.as_deref().map(output::file).transpose()?;
    let job = Job {
        input: &args.input,
        out: &args.out,
        quantize: asked(args)?,
        method: method(args, text.as_deref())?,
        keep_head: args.leave_output_tensor,
        metadata: args.override_kv.clone(),
        dry_run: args.dry_run,
    };
    match run(args, &job)? {
        Some(done) => report::print(args, &job, &done),
        None => Ok(INTERRUPTED),
    }
}

/// Runs the job with a bar for each of its steps and notes on what it finds; `None` if interrupted.
fn run(args: &args::Quantize, job: &Job<'_>) -> Result<Option<Done>, Failure> {
    interrupt::begin();
    let mut bars = Bars::new(|step: &Step| match step {
        Step::Measuring | Step::Comparing => progress::steps("measuring"),
        Step::Smoothing => progress::steps("smoothing"),
        Step::Rounding => progress::bytes("rounding"),
        Step::Writing => progress::bytes("quantizing"),
    });
    let mut failed = None;
    let done = job.run(&mut |event| {
        if let Event::Progress(step, done, total) = event {
            bars.set(step, done, total);
            return interrupt::flow();
        }
        bars.clear();
        let rules = args.tensor_types_out.as_deref();
        if let (Event::Chosen(choices), Some(path)) = (&event, rules)
            && let Err(error) = write_rules(path, choices)
        {
            failed = Some(Failure::output(path, &error));
            return ControlFlow::Break(());
        }
        report::notes(args, &event);
        interrupt::flow()
    });
    bars.clear();
    match done {
        Ok(done) => Ok(Some(done)),
        Err(Error::Interrupted) => failed.map_or(Ok(None), Err),
        Err(Error::Text { reason, .. }) => {
            let failure = Failure::usage(reason);
            Err(args.calibration.iter().fold(failure, |failure, path| failure.in_file(path)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes the chosen types for --tensor-type-file.
fn write_rules(path: &Path, choices: &Choices) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    for rule in choices.rules() {
        writeln!(file, "{rule}")?;
    }
    file.finish()
}

/// The arguments with OUT and TYPE told apart: as in llama-quantize, OUT may be left out.
fn named(args: &args::Quantize) -> Result<args::Quantize, Failure> {
    let out = args.out.to_str().unwrap_or_default();
    let mut args = args.clone();
    // As llama-quantize reads it, the number of a type is a type, unless the name of one follows.
    let is_number = out.parse::<u32>().is_ok();
    let follows = args.r#type.as_ref().is_some_and(|name| name.parse::<i64>().is_err());
    let mix = quantize::mix(out).ok().filter(|_| !(is_number && follows));
    if mix.is_some() && args.target_bpw.is_some() {
        return Err(Failure::usage(format!(
            "--target-bpw chooses the types in place of TYPE: give IN OUT (./{out} for a file of that name)"
        )));
    }
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

/// What decides how weights are rounded.
fn method<'a>(args: &'a args::Quantize, text: Option<&'a str>) -> Result<Method<'a>, Failure> {
    let imatrix = args.imatrix.as_deref();
    let (window_len, windows) = (args.ctx_size, args.chunks as usize);
    let text = text
        .map(|text| Calibration { text, window_len, windows })
        .ok_or_else(|| Failure::usage("no text; give --calibration FILE"));
    if let Some(bits_per_weight) = args.target_bpw {
        return Ok(Method::Budget { imatrix, bits_per_weight, text: text? });
    }
    if args.smooth.is_none() && !args.gptq {
        return Ok(Method::Blocks { imatrix });
    }
    let (smooth, gptq, refine) = (args.smooth, args.gptq, !args.pure);
    Ok(Method::Activations { smooth, gptq, refine, text: text? })
}
