//! `bilayer models`: lists the models on this machine.

use bilayer_hub::{Found, Places};
use serde::Serialize;

use crate::args::Models;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Document {
    models: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    source: String,
    path: String,
    bytes: u64,
    /// From the header; null where it cannot be read.
    architecture: Option<String>,
    /// From the file's name, or else from the header: the type that most bytes of its tensors have.
    quantization: Option<String>,
}

/// Prints the list.
pub fn execute(args: &Models) -> Result<u8, Failure> {
    let found = bilayer_hub::list(&Places::from_env(), &args.models_dir);
    let models: Vec<Row> = found.into_iter().map(row).collect();
    if args.json {
        output::json(&Document { models })?;
        return Ok(0);
    }
    if models.is_empty() {
        output::note(
            "no models; `bilayer run -hf ORG/REPO` downloads one, --models-dir lists those in a folder",
        );
        return Ok(0);
    }
    output::text(&table(&models))?;
    Ok(0)
}

fn row(found: Found) -> Row {
    let Found { name, origin, path, bytes } = found;
    let (mut architecture, mut quantization) = (None, bilayer_hub::quant(&path.to_string_lossy()));
    if let Ok(file) = bilayer_engine::open_file(&path) {
        let read = file.metadata().str("general.architecture");
        architecture = read.ok().map(str::to_owned);
        quantization = quantization.or_else(|| largest_type(&file));
    }
    let path = path.display().to_string();
    Row { name, source: origin.to_string(), path, bytes, architecture, quantization }
}

/// The type of most bytes.
fn largest_type(file: &bilayer_gguf::File) -> Option<String> {
    let mut sums: Vec<(&str, u64)> = Vec::new();
    for tensor in file.tensors() {
        let (name, bytes) = (tensor.layout().ty().name, tensor.layout().len_bytes());
        match sums.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += bytes,
            None => sums.push((name, bytes)),
        }
    }
    sums.into_iter().max_by_key(|&(_, sum)| sum).map(|(name, _)| name.to_owned())
}

fn table(models: &[Row]) -> String {
    let shown = |text: &str| text.replace(char::is_control, "?");
    let cells = |row: &Row| {
        let or_dash = |text: &Option<String>| text.as_deref().map_or("-".to_owned(), shown);
        let size = format!("{:.2} GB", row.bytes as f64 / 1e9);
        let (architecture, quantization) = (or_dash(&row.architecture), or_dash(&row.quantization));
        [shown(&row.name), row.source.clone(), size, architecture, quantization]
    };
    let head = ["name for -m", "source", "size", "architecture", "type"].map(str::to_owned);
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(models.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let line = |row: &[String; 5]| {
        let [name, source, size, architecture, quantization] = row;
        let [a, b, c, d, _] = widths;
        format!("{name:<a$}  {source:<b$}  {size:>c$}  {architecture:<d$}  {quantization}\n")
    };
    rows.iter().map(line).collect()
}
