//! `bilayer plan`: prints the placement and memory use of a model without loading it.

use std::path::Path;

use bilayer_engine::placement;
use bilayer_scheduler::Machine;
use serde_json::json;

use crate::args::Plan;
use crate::commands::{devices, run};
use crate::failure::Failure;
use crate::{demo, output};

/// Prints the plan.
pub fn execute(args: &Plan) -> Result<u8, Failure> {
    if args.model.placing.adapter.list_devices {
        return devices::list();
    }
    let model = demo::open(&args.model.source())?;
    let settings = run::settings::model(&args.model)?;
    let machine = args.machine.as_deref().map(described).transpose()?;
    let plan = placement::plan(&model, &settings, machine)?;
    let context = settings.ctx_size.map_or(String::new(), |tokens| format!(" -c {tokens}"));
    let flags = format!(
        "{}{context} -ctk {} -ctv {} -ub {}",
        args.model.placing.explicit(&plan),
        settings.cache_type_k.name.to_lowercase(),
        settings.cache_type_v.name.to_lowercase(),
        settings.ubatch_size
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
    let mut text = plan.to_string();
    for note in &plan.notes {
        text += &format!("\nnote: {note}");
    }
    let (count, most) = (plan.gpu_layers, plan.max_gpu_layers);
    text += &format!("\n{count} layers on GPUs; {most} would fit\nflags: {flags}\n");
    output::text(&text)?;
    Ok(0)
}

/// Reads the description of a machine.
fn described(path: &Path) -> Result<Machine, Failure> {
    let text = output::file(path)?;
    placement::machine(&text).map_err(|error| Failure::usage(error.to_string()).in_file(path))
}
