//! `bilayer prune`: sets weights to zero, removes layers, and measures the change.

use std::path::Path;
use std::time::Instant;

use bilayer_convert::prune::drop::Dropped;
use bilayer_convert::prune::job::{Job, Step};
use bilayer_convert::prune::ratios::{Goal, SparseFamily};
use bilayer_convert::prune::{Method, Pattern, Prune, journal_of};
use bilayer_convert::{Calibration, Error, quantize};

use crate::failure::{Failure, INTERRUPTED};
use crate::progress::Bars;
use crate::{args, interrupt, output, progress};

mod report;

/// Writes the file, scores both models if there is a text for it, and reports.
pub fn execute(args: &args::Prune) -> Result<u8, Failure> {
    let began = Instant::now();
    let (prune, family) = asked(args)?;
    let goal = args.target_kl.map(Goal::Kl).or(args.target_speed.map(Goal::Speed));
    let reads_text = prune.method != Method::Magnitude
        || goal.is_some()
        || matches!(args.drop_layers, Some(Dropped::Auto { .. } | Dropped::Count(_)));
    if reads_text && args.calibration.is_none() {
        return Err(Failure::usage("no text; give --calibration FILE, or --method magnitude"));
    }
    if !reads_text && args.calibration.is_some() && args.pattern.is_none() {
        return Err(Failure::usage(
            "--calibration: nothing is chosen by a text; leave it out, or give --pattern",
        ));
    }
    let text = args.calibration.as_deref().map(output::file).transpose()?;
    let test = args.test.as_deref().map(output::file).transpose()?;
    let job = Job {
        input: &args.input,
        out: &args.out,
        prune,
        dropped: args.drop_layers.clone(),
        goal,
        family,
        calibration: text.as_deref().map(|text| calibration(args, text)),
        test: test.as_deref().map(|text| calibration(args, text)),
        checkpoint: args.checkpoint.as_deref().zip(args.checkpoint_out.as_deref()),
    };
    let done = match run(&job) {
        Err(Error::Interrupted) => {
            resumable(&args.out);
            return Ok(INTERRUPTED);
        }
        Err(error) => {
            if matches!(error, Error::File(_) | Error::Calibration(_) | Error::Scratch(_)) {
                resumable(&args.out);
            }
            return Err(failure(args, error));
        }
        Ok(done) => done,
    };
    report::print(args, &done, began.elapsed().as_secs_f64())
}

/// The failure of an error, in the name of the text that it is about.
fn failure(args: &args::Prune, error: Error) -> Failure {
    match error {
        Error::Text { flag, reason } => {
            let path = if flag == "--test" { &args.test } else { &args.calibration };
            let failure = Failure::usage(reason);
            path.iter().fold(failure, |failure, path| failure.in_file(path))
        }
        error => error.into(),
    }
}

/// Says that the journal has finished matrices, if it is there.
fn resumable(out: &Path) {
    let journal = journal_of(out);
    if journal.exists() {
        let journal = journal.display();
        output::note(&format!("{journal} has what is finished; the same command goes on"));
    }
}

/// Runs the job with a bar for each of its steps, until Ctrl-C.
fn run(job: &Job<'_>) -> Result<bilayer_convert::prune::job::Done, Error> {
    interrupt::begin();
    let mut bars = Bars::new(|step: &Step| match step {
        Step::Layers => progress::steps("measuring layers"),
        Step::Patterns => progress::steps("measuring"),
        Step::Pruning => progress::bytes("pruning"),
        Step::Scoring => progress::steps("scoring"),
    });
    let done = job.run(&mut |step, done, total| {
        bars.set(step, done, total);
        interrupt::flow()
    });
    bars.clear();
    done
}

/// The options, and the family of types if `--type` names one.
fn asked(args: &args::Prune) -> Result<(Prune, Option<SparseFamily>), Failure> {
    let has_target = args.target_kl.is_some() || args.target_speed.is_some();
    let family = args.r#type.as_deref().and_then(|ty| ty.parse::<SparseFamily>().ok());
    if family.is_some() && !has_target {
        return Err(Failure::usage(
            "--type names a family of types; give --target-kl or --target-speed, or one type such as S4_16_64",
        ));
    }
    if has_target && family.is_none() && args.r#type.is_some() {
        return Err(Failure::usage("with a target, --type is S4_N_64 or S8_N_64, or left out"));
    }
    if args.target_speed.is_some() && family.is_none() {
        return Err(Failure::usage(
            "--target-speed needs a type that is faster with fewer weights; give --type S4_N_64 or S8_N_64",
        ));
    }
    let ty = args.r#type.as_deref().filter(|_| family.is_none());
    let prune = Prune {
        method: method(args)?,
        pattern: args.pattern.unwrap_or(Pattern::Share(0.0)),
        ty: ty.map(quantize::weight_type).transpose()?,
        rules: Vec::new(),
        requantize: args.allow_requantize,
        threads: args::threads(args.threads),
    };
    if !has_target {
        // Before the file is read.
        prune.check_types(prune.ty)?;
    }
    Ok((prune, family))
}

/// The method. Without a pattern every weight is kept, so that it decides only how weights are rounded.
fn method(args: &args::Prune) -> Result<Method, Failure> {
    let has_pattern =
        args.pattern.is_some() || args.target_kl.is_some() || args.target_speed.is_some();
    match args.method {
        method if has_pattern => Ok(method.unwrap_or(Method::Wanda)),
        None | Some(Method::Magnitude) => Ok(Method::Magnitude),
        Some(Method::SparseGpt) if args.r#type.is_some() => Ok(Method::SparseGpt),
        Some(Method::SparseGpt) => Err(Failure::usage(
            "--method sparsegpt: no weights are removed or rounded; give --pattern, or --type to round by GPTQ",
        )),
        Some(Method::Wanda) => {
            Err(Failure::usage("--method wanda: no weights are removed; give --pattern"))
        }
    }
}

fn calibration<'a>(args: &args::Prune, text: &'a str) -> Calibration<'a> {
    Calibration { text, window_len: args.ctx_size, windows: args.chunks as usize }
}
