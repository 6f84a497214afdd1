//! `bilayer prune`: sets weights to zero, removes layers, and measures the change.

use std::path::Path;
use std::time::Instant;

use bilayer_convert::convert::write_back;
use bilayer_convert::prune::drop::{self, Dropped};
use bilayer_convert::prune::ratios::{ChosenPattern, Goal, PatternCosts, SparseFamily};
use bilayer_convert::prune::{Method, Pattern, Prune, Pruned, Source, compare};
use bilayer_convert::{Calibration, Error, quantize};
use bilayer_engine::{Model, open_file};
use bilayer_gguf::Metadata;

use crate::args;
use crate::failure::{Failure, INTERRUPTED};
use crate::{output, progress};

mod report;

/// Writes the file, scores both models if there is a text for it, and reports.
pub fn execute(args: &args::Prune) -> Result<u8, Failure> {
    let began = Instant::now();
    let (prune, family) = asked(args)?;
    let goal = args.target_kl.map(Goal::Kl).or(args.target_speed.map(Goal::Speed));
    let needs_text = prune.method != Method::Magnitude && args.pattern.is_some()
        || goal.is_some()
        || matches!(args.drop_layers, Some(Dropped::Auto { .. } | Dropped::Count(_)));
    if needs_text && args.calibration.is_none() {
        return Err(Failure::usage("no text; give --calibration FILE, or --method magnitude"));
    }
    let text = args.calibration.as_deref().map(output::file).transpose()?;
    let test = args.test.as_deref().map(output::file).transpose()?;
    let model = Opened::new(&args.input)?;
    if test.is_some() && model.model.config().encoder.is_some() {
        return Err(Failure::usage(
            "--test needs a model that predicts tokens; an encoder has no perplexity",
        ));
    }
    let of = |error| of(error, &args.input);
    let text = text.as_deref().map(|text| calibration(args, text));
    let mut reduced = None;
    if let Some(dropped) = &args.drop_layers {
        let bar = progress::steps("measuring layers");
        let chosen = progress::interruptible(&bar, |told| {
            dropped.choose(model.source(), text.as_ref(), prune.threads, told)
        });
        let Some(choice) = chosen.map_err(of)? else { return Ok(INTERRUPTED) };
        let file = drop::without(model.source(), &choice.layers).map_err(of)?;
        let metadata = file.metadata().clone();
        reduced = Some((choice, Opened { metadata, model: Model::new(file)? }));
    }
    let source = reduced.as_ref().map_or(&model, |(_, reduced)| reduced).source();
    let Some(written) = write(args, (&prune, family, goal), source, text.as_ref())? else {
        return Ok(INTERRUPTED);
    };
    if let (Some(folder), Some(out)) = (&args.checkpoint, &args.checkpoint_out) {
        write_back(folder, &open_file(&args.out)?, out)?;
    }
    let mut scored = None;
    if let Some(test) = &test {
        let after = Model::new(open_file(&args.out)?)?;
        let bar = progress::steps("scoring");
        let scores = progress::interruptible(&bar, |told| {
            compare(&model.model, &after, &calibration(args, test), prune.threads, told)
        });
        scored = scores.map_err(of)?;
        if scored.is_none() {
            return Ok(INTERRUPTED);
        }
    }
    let dropped = reduced.map(|(choice, _)| choice);
    let seconds = began.elapsed().as_secs_f64();
    report::print(args, &report::Done { written, dropped, scored, seconds })
}

/// A model and the metadata of its file, vocabulary included.
struct Opened {
    model: Model,
    metadata: Metadata,
}

impl Opened {
    fn new(path: &Path) -> Result<Opened, Failure> {
        let file = open_file(path)?;
        let metadata = file.metadata().clone();
        Ok(Opened { model: Model::new(file)?, metadata })
    }

    fn source(&self) -> Source<'_> {
        Source { model: &self.model, metadata: &self.metadata }
    }
}

/// What was written.
struct Written {
    pruned: Pruned,
    /// The patterns of the matrices, if they were chosen, with how many times fewer bytes decode reads.
    chosen: Option<(Vec<ChosenPattern>, f64)>,
    /// The divergence on the calibration text, if it was the goal.
    kl: Option<f64>,
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
        // Without a pattern, every weight is kept.
        method: if args.pattern.is_none() && !has_target { Method::Magnitude } else { args.method },
        pattern: args.pattern.unwrap_or(Pattern::Share(0.0)),
        ty: ty.map(quantize::weight_type).transpose()?,
        rules: Vec::new(),
        requantize: args.allow_requantize,
        threads: args::threads(args.threads),
    };
    Ok((prune, family))
}

/// Writes the file; `None` if interrupted.
fn write(
    args: &args::Prune,
    (prune, family, goal): (&Prune, Option<SparseFamily>, Option<Goal>),
    source: Source<'_>,
    text: Option<&Calibration<'_>>,
) -> Result<Option<Written>, Failure> {
    let of = |error| of(error, &args.input);
    let Some((goal, text)) = goal.zip(text) else {
        let bar = progress::bytes("pruning");
        let written =
            progress::interruptible(&bar, |told| prune.write(source, text, &args.out, told));
        let written = written.map_err(of)?;
        return Ok(written.map(|pruned| Written { pruned, chosen: None, kl: None }));
    };
    let bar = progress::steps("measuring");
    let measured = progress::interruptible(&bar, |told| {
        PatternCosts::measure(prune, family, source.model, text, told)
    });
    let Some(measured) = measured.map_err(of)? else { return Ok(None) };
    let bar = progress::steps("pruning");
    let written = progress::interruptible(&bar, |told| {
        measured.write(prune, goal, (source, text), &args.out, told)
    });
    Ok(written.map_err(of)?.map(|(pruned, chosen, kl)| {
        let speed = measured.speed(&chosen);
        Written { pruned, chosen: Some((chosen, speed)), kl }
    }))
}

fn calibration<'a>(args: &args::Prune, text: &'a str) -> Calibration<'a> {
    Calibration { text, window_len: args.ctx_size, windows: args.chunks as usize }
}

/// Attributes an error of a tensor to the input file.
fn of(error: Error, path: &Path) -> Failure {
    match error {
        error @ (Error::Weight { .. }
        | Error::Prune { .. }
        | Error::Requantize { .. }
        | Error::Model(_)) => Failure::from(error).in_file(path),
        error => error.into(),
    }
}
