//! `bilayer prune`: sets weights to zero and measures the change.

use std::path::Path;
use std::time::Instant;

use bilayer_convert::prune::{Comparison, Method, Prune, Pruned, Source, compare};
use bilayer_convert::{Calibration, Error, quantize};
use bilayer_engine::{Model, open_file};
use serde_json::json;

use crate::args;
use crate::failure::{Failure, INTERRUPTED};
use crate::{output, progress};

/// Writes the file, scores both models if there is a text for it, and reports.
pub fn execute(args: &args::Prune) -> Result<u8, Failure> {
    let began = Instant::now();
    let prune = Prune {
        method: args.method,
        pattern: args.pattern,
        ty: args.r#type.as_deref().map(quantize::weight_type).transpose()?,
        requantize: args.allow_requantize,
        threads: args::threads(args.threads),
    };
    if args.method != Method::Magnitude && args.calibration.is_none() {
        return Err(Failure::usage("no text; give --calibration FILE, or --method magnitude"));
    }
    let text = args.calibration.as_deref().map(output::file).transpose()?;
    let test = args.test.as_deref().map(output::file).transpose()?;
    let file = open_file(&args.input)?;
    let metadata = file.metadata().clone();
    let model = Model::new(file)?;
    let bar = progress::bytes("pruning");
    let written = progress::interruptible(&bar, |told| {
        let text = text.as_deref().map(|text| calibration(args, text));
        let source = Source { model: &model, metadata: &metadata };
        prune.write(source, text.as_ref(), &args.out, told)
    });
    let Some(pruned) = written.map_err(|error| of(error, &args.input))? else {
        return Ok(INTERRUPTED);
    };
    let mut scored = None;
    if let Some(test) = &test {
        let after = Model::new(open_file(&args.out)?)?;
        let bar = progress::steps("scoring");
        let scores = progress::interruptible(&bar, |told| {
            compare(&model, &after, &calibration(args, test), prune.threads, told)
        });
        scored = scores.map_err(|error| of(error, &args.input))?;
        if scored.is_none() {
            return Ok(INTERRUPTED);
        }
    }
    report(args, &pruned, scored.as_ref(), began.elapsed().as_secs_f64())
}

fn calibration<'a>(args: &args::Prune, text: &'a str) -> Calibration<'a> {
    Calibration { text, window_len: args.ctx_size, windows: args.chunks as usize }
}

/// Attributes an error of a tensor to the input file.
fn of(error: Error, path: &Path) -> Failure {
    match error {
        error @ (Error::Weight { .. } | Error::Prune { .. } | Error::Requantize { .. }) => {
            Failure::from(error).in_file(path)
        }
        error => error.into(),
    }
}

fn report(
    args: &args::Prune,
    pruned: &Pruned,
    scored: Option<&Comparison>,
    seconds: f64,
) -> Result<u8, Failure> {
    let zeros = pruned.zeros as f64 / pruned.weights.max(1) as f64;
    if args.json {
        return output::json(&json!({
            "path": args.out,
            "pattern": args.pattern.to_string(),
            "matrices": pruned.matrices,
            "weights": pruned.weights,
            "zeros": zeros,
            "perplexity_before": scored.map(|scored| scored.before),
            "perplexity": scored.map(|scored| scored.after),
            "kl": scored.map(|scored| scored.kl),
            "ms": seconds * 1e3,
        }))
        .map(|()| 0);
    }
    let (path, matrices) = (args.out.display(), pruned.matrices);
    output::line(&format!(
        "{path}: {matrices} matrices, {:.2} % of their weights are zero",
        100.0 * zeros
    ))?;
    if let Some(Comparison { before, after, kl }) = scored {
        output::line("           perplexity  KL divergence (nats per token)")?;
        output::line(&format!("before     {before:10.3}  -"))?;
        output::line(&format!("after      {after:10.3}  {kl:.5}"))?;
    }
    output::note(&format!("pruned: {:.0} ms", seconds * 1e3));
    Ok(0)
}
