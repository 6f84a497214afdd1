//! `bilayer convert`: converts a checkpoint folder to a GGUF file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bilayer_convert::convert::{Convert, Plan, PlannedTensor};
use bilayer_quant::Type;
use serde_json::{Value, json};

use crate::args;
use crate::failure::{Failure, INTERRUPTED};
use crate::{output, progress};

/// Writes the file and reports on it.
pub fn execute(args: &args::Convert) -> Result<u8, Failure> {
    let convert = Convert {
        outtype: args.outtype.0,
        name: args.model_name.clone(),
        no_vocab: args.no_vocab,
        threads: args::threads(args.threads),
    };
    let plan = match &args.lora {
        Some(adapter) => convert.plan_lora(&args.folder, adapter)?,
        None => convert.plan(&args.folder)?,
    };
    let named_after = args.lora.as_ref().unwrap_or(&args.folder);
    let out = match &args.outfile {
        None => named_after.join(usual(named_after, plan.outtype())),
        Some(folder) if folder.is_dir() => folder.join(usual(named_after, plan.outtype())),
        Some(path) => filled(path, plan.outtype()),
    };
    plan.check_output(&out)?;
    notes(&plan);
    if let Some(asked) = convert.outtype.filter(|asked| *asked != plan.outtype()) {
        output::note(&format!(
            "adapters are not written as {asked}; written as {}",
            plan.outtype()
        ));
    }
    if args.dry_run {
        return report(args, &out, &plan, None);
    }
    let bar = progress::bytes("converting");
    let began = Instant::now();
    match progress::interruptible(&bar, |told| plan.write(&out, told))? {
        Some(()) => report(args, &out, &plan, Some(began.elapsed().as_secs_f64())),
        None => Ok(INTERRUPTED),
    }
}

/// Default name of the output: that of the checkpoint's folder, and the type.
fn usual(folder: &Path, outtype: Type) -> String {
    let whole = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let name = whole.file_name().map(|name| name.to_string_lossy().into_owned());
    format!("{}-{outtype}.gguf", name.as_deref().unwrap_or("model"))
}

/// A path with the placeholders of llama.cpp's converter filled in: `{ftype}` and `{outtype}` are the type in lower case,
/// `{FTYPE}` and `{OUTTYPE}` in upper case.
fn filled(path: &Path, outtype: Type) -> PathBuf {
    let Some(text) = path.to_str() else { return path.to_owned() };
    let (lower, upper) = (outtype.name.to_lowercase(), outtype.name.to_uppercase());
    let text = text.replace("{ftype}", &lower).replace("{outtype}", &lower);
    PathBuf::from(text.replace("{FTYPE}", &upper).replace("{OUTTYPE}", &upper))
}

/// Prints notes on stderr.
fn notes(plan: &Plan) {
    let outtype = plan.outtype();
    let block = outtype.block_weights as u64;
    if block > 1 {
        for PlannedTensor { name, shape, .. } in plan.tensors().filter(|t| t.ty == Type::F16) {
            let cols = shape.last().copied().unwrap_or_default();
            if cols.is_multiple_of(block) {
                continue;
            }
            output::note(&format!(
                "{name}: rows of {cols} are not a multiple of {outtype}'s block of {block}; written as F16"
            ));
        }
    }
}

fn report(
    args: &args::Convert,
    out: &Path,
    plan: &Plan,
    seconds: Option<f64>,
) -> Result<u8, Failure> {
    let (bytes, parameters) = (plan.bytes(), plan.parameters());
    let architecture = plan.metadata().str("general.architecture").unwrap_or_default();
    if args.json {
        output::json(&json!({
            "path": out.display().to_string(),
            "architecture": architecture,
            "type": plan.outtype().name,
            "dry_run": args.dry_run,
            "parameters": parameters,
            "bytes": bytes,
            "ms": seconds.map(|seconds| seconds * 1e3),
            "tensors": plan.tensors().map(|planned| tensor(&planned)).collect::<Vec<_>>(),
        }))?;
        return Ok(0);
    }
    if args.dry_run {
        for PlannedTensor { name, shape, ty } in plan.tensors() {
            let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
            output::line(&format!("{name:32} {:>18}  {ty}", sizes.join(" x ")))?;
        }
    }
    let would = if args.dry_run { " (not written)" } else { "" };
    output::line(&format!(
        "{}{would}: {architecture}, {}, {}, {parameters} weights, {bytes} bytes",
        out.display(),
        plan.outtype(),
        output::counted(plan.tensors().count(), ["tensor", "tensors"])
    ))?;
    if let Some(seconds) = seconds {
        let rate = bytes as f64 / 1e6 / seconds;
        output::note(&format!("converted: {:.0} ms, {rate:.0} MB/s written", seconds * 1e3));
    }
    Ok(0)
}

fn tensor(tensor: &PlannedTensor<'_>) -> Value {
    json!({ "name": tensor.name, "shape": tensor.shape, "type": tensor.ty.name })
}
