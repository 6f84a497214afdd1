//! What `quantize` prints: notes while it runs, and the tensors and sizes at its end.

use std::collections::BTreeMap;

use bilayer_convert::mix::{misfit, takes_importance};
use bilayer_convert::quantize::job::{Done, Event, Job};
use bilayer_convert::quantize::mixed::{Coarse, RATIO};
use bilayer_convert::quantize::sensitivity::Choices;
use bilayer_convert::quantize::{Dropped, Plan, Planned};
use bilayer_convert::smooth::{Folded, Smoothed};
use serde_json::{Value, json};

use crate::args;
use crate::failure::Failure;
use crate::output;

/// Outlier channels listed per input.
const LISTED: usize = 5;

/// Prints notes on an event on stderr.
pub fn notes(args: &args::Quantize, event: &Event<'_>) {
    match event {
        Event::Smoothed(smoothed) => {
            smoothed.inputs.iter().for_each(|input| output::note(&outliers(input)));
        }
        Event::Refined(coarse) if !coarse.is_empty() => {
            let names: Vec<&str> = coarse.iter().map(|coarse| coarse.tensor.as_str()).collect();
            output::note(&format!(
                "{} Q8_0, as {} more than {RATIO} times the squared error in W8A8 (--pure: none): {}",
                output::counted(names.len(), ["matrix gets", "matrices get"]),
                if names.len() == 1 { "its products have" } else { "their products have" },
                names.join(", ")
            ));
        }
        Event::Rounded(rounded) => {
            let others = match rounded.others() {
                0 => String::new(),
                others => format!("; {others} of experts or MLA heads weight by weight"),
            };
            let matrices = output::counted(rounded.matrices(), ["matrix", "matrices"]);
            output::note(&format!("{matrices} rounded by GPTQ{others}"));
        }
        Event::Planned(plan) => planned(args, plan),
        Event::Dropped(matrices) => dropped(matrices),
        Event::Refined(_) | Event::Chosen(_) | Event::Progress(..) => {}
    }
}

/// Notes on tensors whose type is not the one asked for.
fn planned(args: &args::Quantize, plan: &Plan<'_>) {
    let has_head = plan.tensors().iter().any(|tensor| tensor.name == "output.weight");
    if args.leave_output_tensor && !has_head {
        output::note(
            "--leave-output-tensor: there is no output.weight; for a head that is the embedding give \
             --token-embedding-type",
        );
    }
    for Planned { name, shape, to, preferred, .. } in plan.tensors() {
        if let Some(preferred) = preferred {
            let cols = shape.last().copied().unwrap_or_default();
            let reason = misfit(*preferred, cols).unwrap_or_default();
            output::note(&format!("{name}: {reason}; written as {to}"));
        }
    }
    let whole_row = |tensor: &&Planned| tensor.from != tensor.to && tensor.to.row_header_bytes > 0;
    if let Some(tensor) = plan.tensors().iter().find(whole_row)
        && args.calibration.is_none()
    {
        output::note(&format!(
            "without a calibration text {} rounds to nearest; --gptq --calibration TEXT makes it more accurate",
            tensor.to
        ));
    }
    for pattern in plan.unmatched() {
        output::note(&format!("--tensor-type {pattern}: matches no matrix"));
    }
    let changed = plan.tensors().iter().filter(|tensor| tensor.from != tensor.to);
    let changed = changed.filter(|tensor| takes_importance(tensor.to));
    let unknown = changed.clone().filter(|tensor| !tensor.weighted).count();
    if args.imatrix.is_some() && changed.count() == 0 {
        output::note("--imatrix: no tensor gets a type whose rounding depends on importance");
    } else if args.imatrix.is_some() && unknown > 0 {
        output::note(&format!(
            "{} not in the importance matrix; their columns have equal weight",
            output::counted(unknown, ["tensor is", "tensors are"])
        ));
    }
}

/// What dense matrices lose in sparse types.
fn dropped(matrices: &[Dropped]) {
    let share = |dropped: f64, squares: f64| 100.0 * dropped / squares.max(f64::MIN_POSITIVE);
    let of = |matrix: &Dropped| share(matrix.dropped, matrix.squares);
    let Some(most) = matrices.iter().max_by(|a, b| of(a).total_cmp(&of(b))) else { return };
    let sum = |of: fn(&Dropped) -> f64| matrices.iter().map(of).sum();
    output::note(&format!(
        "{} in sparse types without weights of at least {:.1} % of the squared norm (most: {}, {:.1} %); `bilayer prune` \
         chooses the weights to keep by a text and shows what that costs",
        output::counted(matrices.len(), ["dense matrix", "dense matrices"]),
        share(sum(|matrix| matrix.dropped), sum(|matrix| matrix.squares)),
        most.tensor,
        of(most),
    ));
}

/// The exponent, errors and outlier channels of an input.
fn outliers(input: &Folded) -> String {
    let name = input.link.before.tensors().next().unwrap_or_default();
    let [before, after] = input.errors.map(|error| 100.0 * error.sqrt());
    let outliers = input.outliers.iter().take(LISTED);
    let listed: Vec<String> =
        outliers.map(|(channel, ratio)| format!("{channel} ({ratio:.0}x)")).collect();
    let outliers = match listed.is_empty() {
        true => String::new(),
        false => format!("; {} outlier channels: {}", input.outliers.len(), listed.join(", ")),
    };
    match input.alpha {
        Some(alpha) => {
            format!("{name}: alpha {alpha}, error {before:.2} % to {after:.2} %{outliers}")
        }
        None => format!("{name}: not smoothed, since no alpha reduces the error{outliers}"),
    }
}

/// Prints the result on stdout, as lines or as JSON.
pub fn print(args: &args::Quantize, job: &Job<'_>, done: &Done) -> Result<u8, Failure> {
    let mix = match args.target_bpw {
        Some(target) => format!("{target} bits per weight"),
        None => job.quantize.mix.name.to_owned(),
    };
    let Done { tensors, parameters, from_bytes: before, to_bytes: after, .. } = done;
    let chosen = done.chosen.as_ref();
    let each = chosen.iter().flat_map(|chosen| &chosen.tensors);
    let each: Divergences<'_> = each.map(|tensor| (tensor.name.as_str(), tensor.kl)).collect();
    let bits_per_weight = *after as f64 * 8.0 / (*parameters).max(1) as f64;
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
            "ms": done.wrote.map(|took| took.as_secs_f64() * 1e3),
            "smoothed": done.smoothed.as_ref().map(smoothed),
            "too_coarse": too_coarse(&done.refined),
            "dropped": done.dropped.iter().map(lost).collect::<Vec<_>>(),
            "kl_expected": chosen.map(Choices::kl),
            "tensors": tensors.iter().map(|planned| tensor(planned, &each)).collect::<Vec<_>>(),
        }))?;
        return Ok(0);
    }
    if args.dry_run || chosen.is_some() {
        for tensor in tensors {
            let kl = each.get(tensor.name.as_str());
            let kl = kl.map_or_else(String::new, |kl| format!("  KL {kl:.2e}"));
            output::line(&format!("{}{kl}", row(tensor)))?;
        }
    }
    if let Some(chosen) = chosen {
        output::line(&format!("expected total divergence: {:.5} nats per token", chosen.kl()))?;
    }
    let path = args.out.display();
    let would = if args.dry_run { " (not written)" } else { "" };
    output::line(&format!(
        "{path}{would}: {mix}, {}, {before} -> {after} bytes, {bits_per_weight:.2} bits per weight",
        output::counted(tensors.len(), ["tensor", "tensors"])
    ))?;
    if let Some(took) = done.wrote {
        let rate = *before as f64 / 1e6 / took.as_secs_f64();
        output::note(&format!(
            "quantized: {:.0} ms, {rate:.0} MB/s read",
            took.as_secs_f64() * 1e3
        ));
    }
    Ok(0)
}

/// The expected divergences of the tensors whose types were chosen, by name.
type Divergences<'d> = BTreeMap<&'d str, f64>;

fn row(tensor: &Planned) -> String {
    let Planned { name, shape, from, to, from_bytes, to_bytes, .. } = tensor;
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let sizes = sizes.join(" x ");
    format!("{name:32} {sizes:>18}  {from:>5} -> {to:6} {from_bytes:>12} -> {to_bytes} bytes")
}

fn tensor(tensor: &Planned, divergences: &Divergences<'_>) -> Value {
    json!({
        "kl": divergences.get(tensor.name.as_str()),
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

/// The matrices with their relative squared errors in both types.
fn too_coarse(coarse: &[Coarse]) -> Vec<Value> {
    let each = coarse.iter().map(|Coarse { tensor, errors }| {
        json!({ "tensor": tensor, "errors": { "W8A8": errors[0], "Q8_0": errors[1] } })
    });
    each.collect()
}

/// A matrix with the share of its squared norm that it loses at least.
fn lost(Dropped { tensor, dropped, squares }: &Dropped) -> Value {
    json!({ "tensor": tensor, "share": dropped / squares.max(f64::MIN_POSITIVE) })
}

/// The inputs whose outliers were moved.
fn smoothed(smoothed: &Smoothed) -> Value {
    let inputs = smoothed.inputs.iter().map(|input| {
        json!({
            "before": input.link.before.tensors().collect::<Vec<_>>(),
            "matrices": input.link.matrices.iter().map(|matrix| &matrix.tensor).collect::<Vec<_>>(),
            "alpha": input.alpha,
            "errors": input.errors.map(f64::sqrt),
            "outliers": input.outliers,
        })
    });
    inputs.collect()
}
