//! `bilayer verify`: runs tokens on two backends and compares them op by op.

use std::fmt::Write;

use bilayer_engine::Model;
use bilayer_measure::verify::{Ends, OpError, Report, Sides, TOKENS_MAX, Verified};
use serde_json::{Value, json};

use crate::args::Verify;
use crate::commands::run;
use crate::commands::run::prompt::{self, Given};
use crate::failure::{DIFFERENT, Failure};
use crate::npy::Npy;
use crate::{demo, output, progress};

/// The default text.
const TEXT: &str = "ROMEO:\nBut soft, what light through yonder window breaks? It is the east, and Juliet is the sun.";

/// Runs both and reports. The exit code is [`DIFFERENT`] if the error of an op exceeds its bound, by itself or fused, or a result
/// is not finite.
pub fn execute(args: &Verify) -> Result<u8, Failure> {
    let model = demo::open(&args.model.source())?;
    let tokens = tokens(args, &model)?;
    let settings = run::settings::model(&args.model)?;
    let sides = Sides::open((args.a, args.b), &settings)?;
    if let Some(reason) = sides.without_gpu() {
        output::note(&format!("note: {reason}; b is the reference"));
    }
    let mut file = match &args.logits {
        Some(path) => {
            let graph = model.graph();
            let file = Npy::create(path, tokens.len(), graph.width(graph.logits));
            Some((path, file.map_err(|error| Failure::output(path, &error))?))
        }
        None => None,
    };
    let bar = progress::steps("ops");
    bar.set_length(model.graph().nodes.len() as u64);
    let verified = sides.verify(&model, &tokens, &settings, &mut |done, _| {
        bar.set_position(done as u64);
        true
    });
    bar.finish_and_clear();
    let Verified { second, report, .. } = verified?;
    if let Some((path, mut file)) = file.take() {
        let written = file.rows(&report.found).and_then(|()| file.finish());
        written.map_err(|error| Failure::output(path, &error))?;
    }
    if args.json {
        output::json(&document(&report, &tokens))?;
    } else {
        output::text(&listing(&report, &args.a.to_string(), &second.to_string()))?;
    }
    Ok(exit_code(&report))
}

/// 0 if every op is within its bound and the results are finite.
fn exit_code(report: &Report) -> u8 {
    if report.is_good() { 0 } else { DIFFERENT }
}

fn tokens(args: &Verify, model: &Model) -> Result<Vec<u32>, Failure> {
    let given = match (&args.tokens[..], &args.prompt, &args.file) {
        ([], Some(text), _) => Given::Text(text.clone()),
        ([], None, Some(path)) => Given::Text(output::file(path)?),
        ([], None, None) => Given::Text(TEXT.to_owned()),
        (tokens, ..) => Given::Tokens(tokens.to_vec()),
    };
    let is_listed = matches!(given, Given::Tokens(_));
    let mut tokens = prompt::tokens(given, model)?;
    let context = args.model.ctx_size.filter(|&context| context > 0);
    let limit = TOKENS_MAX.min(model.config().context).min(context.unwrap_or(TOKENS_MAX));
    let count = tokens.len();
    if count > limit && is_listed {
        let line = format!("--tokens has {count} tokens; the limit is {limit}");
        return Err(Failure::usage(line));
    }
    if count > limit {
        output::note(&format!("note: the first {limit} of {count} tokens are compared"));
        tokens.truncate(limit);
    }
    Ok(tokens)
}

fn document(report: &Report, tokens: &[u32]) -> Value {
    let op = |op: &OpError| json!({ "layer": op.layer, "op": op.op, "nmse": op.nmse, "bound": op.bound });
    let nmse = report.nmse;
    let (name, ends) = match report.ends {
        Ends::Logits { kl, top1 } => ("logits", json!({ "nmse": nmse, "kl": kl, "top1": top1 })),
        Ends::Embeddings { cosine_mean, cosine_min } => {
            let cosines =
                json!({ "nmse": nmse, "cosine_mean": cosine_mean, "cosine_min": cosine_min });
            ("embeddings", cosines)
        }
        Ends::Scores { difference_max } => {
            ("scores", json!({ "nmse": nmse, "difference_max": difference_max }))
        }
    };
    json!({
        "ok": report.is_good(),
        "finite": report.is_finite(),
        "ops": report.ops.iter().map(op).collect::<Value>(),
        "fused": report.fused.iter().map(op).collect::<Value>(),
        "first_bad": report.first_bad().map(op),
        name: ends,
        "tokens": tokens,
    })
}

/// The worst layer of each op, by itself and fused, then the verdict.
fn listing(report: &Report, a: &str, b: &str) -> String {
    let mut worst: Vec<&OpError> = Vec::new();
    for op in report.ops.iter().chain(&report.fused) {
        match worst.iter_mut().find(|known| known.op == op.op) {
            Some(known) if op.nmse / op.bound > known.nmse / known.bound => *known = op,
            Some(_) => {}
            None => worst.push(op),
        }
    }
    let mut text = format!("{b} against {a}, the worst layer of each op\n\n");
    text += &format!("{:<28} {:>6} {:>10} {:>10}\n", "op", "layer", "nmse", "bound");
    for op in worst {
        let layer = op.layer.map_or("-".to_owned(), |layer| layer.to_string());
        let mark = if op.is_good() { "" } else { "  out of bounds" };
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "{:<28} {layer:>6} {:>10.1e} {:>10.0e}{mark}", op.op, op.nmse, op.bound);
    }
    let nmse = report.nmse;
    text += &match report.ends {
        Ends::Logits { kl, top1 } => format!(
            "\nlogits: nmse {nmse:.1e}, KL {kl:.1e}, same top token {:.1} %\n",
            100.0 * top1
        ),
        Ends::Embeddings { cosine_mean, cosine_min } => format!(
            "\nembeddings: nmse {nmse:.1e}, cosine {cosine_mean:.6} (minimum {cosine_min:.6})\n"
        ),
        Ends::Scores { difference_max } => {
            format!("\nscores: nmse {nmse:.1e}, largest difference {difference_max:.1e}\n")
        }
    };
    text + &match report.first_bad() {
        None if !report.is_finite() => format!(
            "not ok: every op is within its bound, but results of the whole model on {b} are not finite\n"
        ),
        None => "ok: every op is within its bound\n".to_owned(),
        Some(op) => {
            let layer = op.layer.map_or(String::new(), |layer| format!("layer {layer}, "));
            format!("not ok: the first op out of its bound is {layer}{}\n", op.op)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_are_not_finite_are_a_difference() {
        let report = |value: f32| Report {
            ops: Vec::new(),
            fused: Vec::new(),
            nmse: 0.0,
            ends: Ends::Logits { kl: 0.0, top1: 1.0 },
            found: vec![1.0, value],
            width: 2,
        };
        assert_eq!(exit_code(&report(0.0)), 0);
        assert!(
            listing(&report(0.0), "cpu", "gpu").ends_with("\nok: every op is within its bound\n")
        );
        let lost = report(f32::NAN);
        assert_eq!(exit_code(&lost), DIFFERENT);
        assert!(
            listing(&lost, "cpu", "gpu")
                .contains("results of the whole model on gpu are not finite")
        );
        let document = document(&lost, &[1]);
        assert_eq!((&document["ok"], &document["finite"]), (&json!(false), &json!(false)));
    }
}
