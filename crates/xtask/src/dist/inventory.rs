//! What a program is made of: the licences of its dependencies, and the bill of materials.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Package, Workplace};
use crate::{output, status, tools};

/// Writes the bill of materials.
const CYCLONEDX: tools::Tool = tools::Tool { name: "cargo-cyclonedx", version: "0.5.9" };

/// Beginnings of the names of files with licences, in capitals.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// The C library in a static program; its licence, MIT, asks for this notice.
const MUSL: &str = "\
musl, the C library: Copyright 2005-2020 Rich Felker, et al. It is under the MIT license, whose text is among those below.\n";

/// Rust's own part of every program.
const RUST: &str = "Rust's standard library: The Rust Project Developers, MIT OR Apache-2.0.\n";

/// Installs what is needed before hours of building.
///
/// # Errors
/// cargo-cyclonedx cannot be installed.
pub fn ready() -> Result<()> {
    tools::ready(&CYCLONEDX).map(drop)
}

/// Writes the bill of materials of a package in CycloneDX's form, JSON.
///
/// # Errors
/// cargo-cyclonedx fails.
pub fn bill(place: &Workplace, package: &Package) -> Result<()> {
    let mut cyclonedx = place.command(tools::ready(&CYCLONEDX)?);
    cyclonedx.args(["cyclonedx", "--quiet", "--format", "json", "--spec-version", "1.5"]);
    cyclonedx.args(["--override-filename", "sbom", "--target", package.target]);
    status(cyclonedx.args(package.features))?;
    let source = place.sources();
    let text = fs::read_to_string(source.join("sbom.json"))?;
    // One more file lies beside the manifest of each crate.
    status(place.command("git").args(["clean", "--quiet", "--force", "-d"]))?;
    let text = text.replace(&format!("file://{}", source.display()), "file:///bilayer");
    let name = format!("bilayer-{}-{}.cdx.json", place.version, package.name);
    Ok(fs::write(place.packages().join(name), text)?)
}

/// A crate in the program.
struct Dependency {
    name: String,
    expression: String,
    /// Texts of its own files.
    texts: Vec<String>,
}

/// The licences of all dependencies in a program, each text once.
///
/// # Errors
/// cargo fails, or a dependency states no licence.
pub fn licenses(place: &Workplace, package: &Package) -> Result<String> {
    let mut cargo = place.command("cargo");
    cargo.args(["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
    let text = output(cargo.arg(package.target).args(package.features))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let mut found = Vec::new();
    for package in closure(&metadata)? {
        let (name, version) = (text_of(package, "name")?, text_of(package, "version")?);
        let manifest = Path::new(text_of(package, "manifest_path")?);
        let folder = manifest.parent().context("a manifest lies in a folder")?;
        let Some(expression) = package["license"].as_str() else {
            bail!("{name} {version} states no license");
        };
        found.push(Dependency {
            name: format!("{name} {version}"),
            expression: expression.to_owned(),
            texts: texts(folder)?,
        });
    }
    let libc = if package.is_static() { MUSL } else { "" };
    Ok(format!("{RUST}{libc}\n{}", list(&found)))
}

fn text_of<'a>(package: &'a Value, key: &str) -> Result<&'a str> {
    package[key].as_str().with_context(|| format!("cargo metadata has no {key}"))
}

/// The packages that the root package links, directly or not, and that are not ours; sorted.
fn closure(metadata: &Value) -> Result<Vec<&Value>> {
    let by_id = |list: &'static str| -> Result<HashMap<&str, &Value>> {
        let found = if list == "nodes" { &metadata["resolve"][list] } else { &metadata[list] };
        let found = found.as_array().with_context(|| format!("cargo metadata has no {list}"))?;
        Ok(found.iter().filter_map(|item| Some((item["id"].as_str()?, item))).collect())
    };
    let (packages, nodes) = (by_id("packages")?, by_id("nodes")?);
    let mut open = vec![text_of(&metadata["resolve"], "root")?];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        let deps = nodes.get(id).and_then(|node| node["deps"].as_array());
        for dep in deps.into_iter().flatten() {
            let kinds = dep["dep_kinds"].as_array().into_iter().flatten();
            // Others are for build scripts and tests.
            if kinds.into_iter().any(|kind| kind["kind"].is_null()) {
                open.extend(dep["pkg"].as_str());
            }
        }
    }
    let mut found: Vec<&Value> = seen.iter().filter_map(|id| packages.get(id).copied()).collect();
    found.retain(|package| !package["source"].is_null());
    found.sort_by_key(|package| (package["name"].as_str(), package["version"].as_str()));
    Ok(found)
}

/// The texts of the files with licences in a folder, in the order of their names.
fn texts(folder: &Path) -> Result<Vec<String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if entry.file_type()?.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            let text = String::from_utf8_lossy(&fs::read(entry.path())?).replace("\r\n", "\n");
            found.insert(name, text.trim().to_owned());
        }
    }
    Ok(found.into_values().collect())
}

/// A table of the dependencies, then each text under the names of those that have it.
fn list(found: &[Dependency]) -> String {
    let mut table = String::from("The libraries in this program and their licenses:\n\n");
    let mut by_text: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for dependency in found {
        let note = if dependency.texts.is_empty() { " (without a text of its own)" } else { "" };
        table += &format!("{}: {}{note}\n", dependency.name, dependency.expression);
        for text in &dependency.texts {
            by_text.entry(text).or_default().push(&dependency.name);
        }
    }
    let mut texts: Vec<(Vec<&str>, &str)> =
        by_text.into_iter().map(|(text, names)| (names, text)).collect();
    texts.sort();
    let rule = "-".repeat(80);
    for (names, text) in texts {
        table += &format!("\n{rule}\n{}\n\n{text}\n", names.join(", "));
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Dependency, closure, list};

    #[test]
    fn only_what_is_linked_is_listed() {
        let dep =
            |id: &str, kind: Option<&str>| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        let package =
            |id: &str| json!({ "id": id, "name": id, "version": "1", "source": "registry" });
        let metadata = json!({
            "packages": [{ "id": "root", "name": "root", "source": null }, package("b"), package("a"), package("test")],
            "resolve": { "root": "root", "nodes": [
                { "id": "root", "deps": [dep("b", None), dep("test", Some("dev"))] },
                { "id": "b", "deps": [dep("a", None)] },
                { "id": "a", "deps": [dep("test", Some("build"))] },
            ] },
        });
        let names: Vec<_> = closure(&metadata).unwrap().iter().map(|p| p["name"].clone()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[test]
    fn a_text_that_two_have_is_printed_once() {
        let dependency = |name: &str, texts: &[&str]| Dependency {
            name: name.to_owned(),
            expression: "MIT".to_owned(),
            texts: texts.iter().map(|&text| text.to_owned()).collect(),
        };
        let text =
            list(&[dependency("a 1", &["T"]), dependency("b 1", &["T"]), dependency("c 1", &[])]);
        assert!(text.contains("c 1: MIT (without a text of its own)\n"));
        assert!(text.ends_with("\na 1, b 1\n\nT\n"), "{text}");
    }
}
