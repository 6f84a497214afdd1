//! `bilayer inspect`: shows a file's contents and what prevents it from running.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bilayer_engine::inspect::Inspection;
use bilayer_files::hash::{Sha256, hex};
use bilayer_gguf::File;

use crate::args::Inspect;
use crate::failure::{BAD_MODEL, Failure, one_line};
use crate::{output, progress};

/// Prints the contents. The exit code is [`BAD_MODEL`] if the file does not run.
pub fn execute(args: &Inspect) -> Result<u8, Failure> {
    let path = args.path.as_deref().or(args.model.as_deref());
    let path = path.ok_or_else(|| Failure::usage("inspect: no file; give its path"))?;
    let file = bilayer_engine::open_file(path)?;
    let mut document = Inspection::of(&file);
    if args.hash {
        document.sha256 = Some(hash(&file)?);
    }
    if args.json {
        output::json(&document)?;
    } else {
        output::text(&listing(&file, &document))?;
    }
    Ok(if document.problems.is_empty() { 0 } else { BAD_MODEL })
}

/// The text output: a summary, then metadata and tensors. Names and texts come from the file, so line breaks in them are
/// escaped.
fn listing(file: &File, document: &Inspection) -> String {
    let mut lines = summary(file, document);
    let keys = output::counted(file.metadata().len(), ["key", "keys"]);
    lines.push(format!("\nmetadata ({keys})"));
    let entries = file.metadata().iter();
    lines.extend(entries.map(|(key, value)| format!("  {} = {value}", key.escape_debug())));
    lines.push(format!("\ntensors ({})", document.tensors.len()));
    lines.extend(document.tensors.iter().map(|tensor| {
        let shape = tensor.shape.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        let name = tensor.name.escape_debug().to_string();
        format!("  {name:<28} {:<7} {shape:<16} {} bytes", tensor.r#type, tensor.bytes)
    }));
    lines.join("\n") + "\n"
}

/// What it is, how large, and whether it runs.
fn summary(file: &File, document: &Inspection) -> Vec<String> {
    let metadata = file.metadata();
    let architecture = document.architecture.as_deref().unwrap_or("none given");
    let context = metadata.get(&format!("{architecture}.context_length"));
    let context = context.map_or("not given".to_owned(), |tokens| format!("{tokens} tokens"));
    let template = match metadata.str("tokenizer.chat_template") {
        Ok(template) => format!("yes, {} characters", template.chars().count()),
        Err(_) => "none".to_owned(),
    };
    let licence = metadata.str("general.license").unwrap_or("not given");
    let mut types: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for tensor in &document.tensors {
        let (count, bytes) = types.entry(tensor.r#type).or_default();
        *count += 1;
        *bytes += tensor.bytes;
    }
    let types = types.iter().map(|(ty, (count, bytes))| format!("{ty} {count} ({bytes} bytes)"));
    let types = types.collect::<Vec<_>>().join(", ");
    let mut lines = vec![
        format!("architecture  {}", architecture.escape_debug()),
        format!("size          {} bytes, {} parameters", document.bytes, document.parameters),
        format!("tensors       {types}"),
        format!("context       {context}"),
        format!("chat template {template}"),
        format!("licence       {}", licence.escape_debug()),
    ];
    let gives = document.gives.iter();
    lines.extend(gives.map(|gives| format!("gives         {}", one_line(gives))));
    lines.extend(document.sha256.iter().map(|hash| format!("sha256        {hash}")));
    lines.push(format!("GGUF version  {}", document.version));
    let runs = if document.problems.is_empty() { "yes" } else { "no" };
    lines.push(format!("runs: {runs}"));
    lines.extend(document.problems.iter().map(|p| format!("  {}", one_line(p))));
    lines
}

/// SHA-256 over the bytes of all shards, in their order.
pub fn hash(file: &File) -> Result<String, Failure> {
    let bar = progress::bytes("hashing");
    let mut hasher = Sha256::new();
    let mut done = 0;
    for map in file.maps() {
        let hashed = hasher.update_from(&map[..], |of_map| {
            progress::set(&bar, done + of_map, file.file_bytes());
            ControlFlow::<()>::Continue(())
        });
        let _ = hashed.expect("memory is read");
        done += map.len() as u64;
    }
    bar.finish_and_clear();
    file.check_unchanged().map_err(bilayer_engine::Error::File)?;
    Ok(hex(hasher.finish()))
}
