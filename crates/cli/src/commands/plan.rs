//! `bilayer plan`: prints the placement and memory use of a model without loading it.

use std::path::Path;

use bilayer_engine::placement::target::Target;
use bilayer_engine::placement::{self, Numa};
use bilayer_scheduler::{Basis, Machine, Plan as Placed};
use serde_json::json;

use crate::args::Plan;
use crate::commands::run;
use crate::failure::Failure;
use crate::{demo, output};

mod target;

/// Prints the plan.
pub fn execute(args: &Plan) -> Result<u8, Failure> {
    let model = demo::open(&demo::Source { map: true, lock: false, ..args.model.source() })?;
    let mut settings = run::settings::model(&args.model)?;
    let machine = args.machine.as_deref().map(described).transpose()?;
    if let Some(text) = &args.r#for {
        let target: Target = text.parse()?;
        settings.ctx_size = target.context.or(settings.ctx_size);
        let asked = target::Asked { target, types: &args.types, machine, json: args.json };
        return target::print(&model, &settings, asked);
    }
    let plan = placement::plan(&model, &settings, machine)?;
    let context = settings.ctx_size.map_or(String::new(), |tokens| format!(" -c {tokens}"));
    let numa = match settings.numa {
        Numa::Off => String::new(),
        numa => format!(" --numa {numa}"),
    };
    let flags = format!(
        "{}{context} -ctk {}{} -ctv {} -ub {}{}{numa}",
        args.model.placing.explicit(&plan),
        settings.cache_type_k.name.to_lowercase(),
        if settings.hadamard_keys { " -khad" } else { "" },
        settings.cache_type_v.name.to_lowercase(),
        settings.ubatch_size,
        if settings.fast_prefill { " --fast-prefill" } else { "" }
    );
    if args.json {
        let mut document = serde_json::to_value(&plan).map_err(|error| {
            Failure::Line(
                crate::failure::INTERNAL,
                format!("the plan cannot be written as JSON: {error}"),
            )
        })?;
        document["fits"] = json!(true);
        if document["predicted"].is_null() {
            document["predicted"] = json!({ "decode_ms": null, "basis": null });
        }
        document["flags"] = json!(flags);
        output::json(&document)?;
        return Ok(0);
    }
    let mut text = format!("{}\nflags: {flags}\n\n{}", answer(&plan), plan.to_string().trim_end());
    text += "\n";
    for note in &plan.notes {
        text += &format!("\nnote: {note}");
    }
    output::text(&(text.trim_end().to_owned() + "\n"))?;
    Ok(0)
}

/// What most want to know of a plan: whether the model fits, where, and how fast it runs.
fn answer(plan: &Placed) -> String {
    let (count, most) = (plan.gpu_layers, plan.max_gpu_layers);
    let fits = match plan.devices.len() {
        0 | 1 => "fits: all layers on the CPU".to_owned(),
        _ => {
            let layers = output::counted(count, ["layer", "layers"]);
            format!("fits: {layers} on GPUs; {most} would fit")
        }
    };
    let Some(predicted) = &plan.predicted else {
        return format!("{fits}\nspeed: not known yet; the first run measures it");
    };
    let decode = predicted.decode_ms;
    let prefill = predicted.prefill_ms_per_token;
    let prefill = prefill.map(|ms| format!(", prefill {:.0} tok/s", 1e3 / ms)).unwrap_or_default();
    let basis = match predicted.basis {
        Basis::Measured => "measured",
        Basis::Estimated => "estimated",
    };
    let rate = 1e3 / decode;
    format!("{fits}\nspeed: {rate:.1} tok/s ({decode:.2} ms per token){prefill} ({basis})")
}

/// Reads the description of a machine.
fn described(path: &Path) -> Result<Machine, Failure> {
    let text = output::file(path)?;
    placement::machine(&text).map_err(|error| Failure::usage(error.to_string()).in_file(path))
}
