//! `bilayer plan --for`: which types and placements meet a target.

use std::collections::HashMap;

use bilayer_convert::mix::Mix;
use bilayer_convert::quantize::{self, Quantize};
use bilayer_engine::Model;
use bilayer_engine::placement::target::{Candidate, Target, Variant, candidates};
use bilayer_engine::session::Settings;
use bilayer_gguf::File;
use bilayer_scheduler::{Bytes, Machine};
use serde_json::json;

use crate::failure::Failure;
use crate::output;

/// What is asked of a model.
pub struct Asked<'a> {
    pub target: Target,
    /// Names of mixes or types.
    pub types: &'a [String],
    pub machine: Option<Machine>,
    pub json: bool,
}

/// Prints the candidates.
pub fn print(model: &Model, settings: &Settings<'_>, asked: Asked<'_>) -> Result<u8, Failure> {
    let own = own_name(model.file());
    let mut variants = vec![Variant::own(&own)];
    for name in asked.types.iter().filter(|name| !name.eq_ignore_ascii_case(&own)) {
        variants.push(variant(model.file(), name)?);
    }
    let found = candidates(model, settings, asked.machine, &asked.target, &variants)?;
    let context = settings.ctx_size.unwrap_or_default();
    if asked.json {
        let context = if context == 0 { json!(null) } else { json!(context) };
        let target = json!({ "context": context, "rate": asked.target.rate,
            "first_token": asked.target.first_token, "per_token": asked.target.per_token });
        output::json(&json!({ "target": target, "own": own, "candidates": found }))?;
        return Ok(0);
    }
    output::text(&table(&found, &own))?;
    Ok(0)
}

/// The types that quantizing a file to a mix gives its tensors. What it is quantized from does not matter for speed, so
/// that a quantized file will do.
fn variant(file: &File, name: &str) -> Result<Variant, Failure> {
    let quantize = Quantize { requantize: true, ..Quantize::new(quantize::mix(name)?) };
    let plan = quantize.plan(file, None)?;
    let types = plan.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.to));
    Ok(Variant { name: name.to_uppercase(), types: types.collect() })
}

/// The name of the file's mix, or the type of most of its bytes.
fn own_name(file: &File) -> String {
    let file_type = file.metadata().opt_u32("general.file_type").ok().flatten();
    let mix = Mix::all().iter().find(|mix| file_type.is_some() && mix.file_type == file_type);
    if let Some(mix) = mix {
        return mix.name.to_owned();
    }
    let mut bytes: HashMap<&str, u64> = HashMap::new();
    for tensor in file.tensors() {
        *bytes.entry(tensor.layout().ty().name).or_default() += tensor.layout().len_bytes();
    }
    let most = bytes.into_iter().max_by_key(|&(name, bytes)| (bytes, name));
    most.map_or("own", |(name, _)| name).to_owned()
}

fn table(found: &[Candidate], own: &str) -> String {
    let mut rows = vec![
        ["type", "size", "-ngl", "tok/s", "first token", "per token", "target"].map(str::to_owned),
    ];
    let ms = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.1} ms"));
    for candidate in found {
        let mark = if candidate.name == own { " (file)" } else { "" };
        rows.push([
            format!("{}{mark}", candidate.name),
            Bytes(candidate.bytes).to_string(),
            candidate.gpu_layers.map_or("-".to_owned(), |layers| layers.to_string()),
            candidate.rate.map_or("-".to_owned(), |rate| format!("{rate:.1}")),
            ms(candidate.first_token_ms),
            ms(candidate.per_token_ms),
            candidate.why.clone().map_or("met".to_owned(), |why| format!("no: {why}")),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..6).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, &width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text += &format!("{}  {}\n", cells.collect::<Vec<_>>().join("  "), row[6]);
    }
    // By quality, which falls with the size.
    let best = found.iter().filter(|candidate| candidate.meets).max_by_key(|c| c.bytes);
    text += &match best {
        Some(best) => format!("\nlargest that meets the target: {}\n", best.name),
        None => "\nnothing meets the target\n".to_owned(),
    };
    text
}
