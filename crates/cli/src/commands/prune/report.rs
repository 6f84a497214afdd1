//! What `prune` prints.

use bilayer_convert::prune::Comparison;
use bilayer_convert::prune::drop::LayerChoice;
use bilayer_convert::prune::job::Done;
use bilayer_convert::prune::ratios::ChosenPattern;
use serde_json::json;

use crate::args;
use crate::failure::Failure;
use crate::output;

/// Prints the tables, or one JSON document.
pub fn print(args: &args::Prune, done: &Done, seconds: f64) -> Result<u8, Failure> {
    if args.json {
        return json(args, done, seconds);
    }
    if let Some(LayerChoice { layers, blocks }) = &done.dropped {
        for block in blocks {
            let last = block.first + block.len - 1;
            let (len, first, angle) = (block.len, block.first, block.angle);
            output::line(&format!("{len:3} layers  {first:3} to {last:3}  angle {angle:.4}"))?;
        }
        output::line(&format!("removed layers: {}", listed(layers)))?;
    }
    let Done { pruned, chosen, kl, .. } = done;
    if let Some((chosen, speed)) = chosen {
        patterns(args, chosen, *speed)?;
    }
    if let Some(kl) = kl {
        output::line(&format!("KL divergence on the calibration text: {kl:.5} nats per token"))?;
    }
    let path = args.out.display();
    let matrices = output::counted(pruned.matrices, ["matrix", "matrices"]);
    let zeros = pruned.zeros as f64 / pruned.weights.max(1) as f64;
    output::line(&format!("{path}: {matrices}, {:.2} % of their weights are zero", 100.0 * zeros))?;
    if let Some(Comparison { before, after, kl }) = &done.scored {
        output::line("           perplexity  KL divergence (nats per token)")?;
        output::line(&format!("before     {before:10.3}  -"))?;
        output::line(&format!("after      {after:10.3}  {kl:.5}"))?;
    }
    if let Some(folder) = &args.checkpoint_out {
        output::line(&format!("{}: the pruned checkpoint", folder.display()))?;
    }
    if pruned.resumed > 0 {
        let resumed = output::counted(pruned.resumed, ["matrix was", "matrices were"]);
        output::note(&format!("{resumed} finished by an earlier run"));
    }
    output::note(&format!("pruned: {:.0} ms", seconds * 1e3));
    Ok(0)
}

/// The pattern of every matrix, and what they make together.
fn patterns(args: &args::Prune, chosen: &[ChosenPattern], speed: f64) -> Result<(), Failure> {
    let width = chosen.iter().map(|chosen| chosen.rule.tensor.len()).max().unwrap_or(0);
    output::line(&format!("{:width$}  pattern  type      expected KL", "matrix"))?;
    for ChosenPattern { rule, kl, .. } in chosen {
        let ty = rule.ty.map_or("-", |ty| ty.name);
        let pattern =
            if rule.pattern.zeros() == 0.0 { "dense".into() } else { rule.pattern.to_string() };
        output::line(&format!("{:width$}  {pattern:7}  {ty:8}  {kl:.6}", rule.tensor))?;
    }
    let what = match args.r#type.is_some() {
        true => "times fewer bytes for decode to read",
        false => "times fewer weights",
    };
    output::line(&format!("{speed:.2} {what}"))
}

fn listed(layers: &[usize]) -> String {
    match layers.is_empty() {
        true => "none".into(),
        false => layers.iter().map(usize::to_string).collect::<Vec<_>>().join(", "),
    }
}

fn json(args: &args::Prune, done: &Done, seconds: f64) -> Result<u8, Failure> {
    let Done { pruned, chosen, kl, dropped, scored } = done;
    let scored = scored.as_ref();
    let patterns = chosen.as_ref().map(|(chosen, _)| {
        let one = |chosen: &ChosenPattern| {
            json!({
                "tensor": chosen.rule.tensor,
                "pattern": chosen.rule.pattern.to_string(),
                "type": chosen.rule.ty.map(|ty| ty.name),
                "kl": chosen.kl,
            })
        };
        chosen.iter().map(one).collect::<Vec<_>>()
    });
    let blocks = dropped.as_ref().map(|choice| {
        let one = |block: &bilayer_convert::prune::drop::LayerBlock| {
            json!({ "first": block.first, "layers": block.len, "angle": block.angle })
        };
        choice.blocks.iter().map(one).collect::<Vec<_>>()
    });
    output::json(&json!({
        "path": args.out,
        "pattern": args.pattern.map(|pattern| pattern.to_string()),
        "patterns": patterns,
        "times_fewer": chosen.as_ref().map(|(_, speed)| speed),
        "calibration_kl": kl,
        "removed_layers": dropped.as_ref().map(|choice| &choice.layers),
        "blocks": blocks,
        "matrices": pruned.matrices,
        "weights": pruned.weights,
        "zeros": pruned.zeros as f64 / pruned.weights.max(1) as f64,
        "perplexity_before": scored.map(|scored| scored.before),
        "perplexity": scored.map(|scored| scored.after),
        "kl": scored.map(|scored| scored.kl),
        "checkpoint": args.checkpoint_out,
        "ms": seconds * 1e3,
    }))
    .map(|()| 0)
}
