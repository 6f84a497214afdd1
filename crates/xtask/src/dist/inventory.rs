//! What a program is made of: the licences of its dependencies, and the bill of materials.

use std::collections::{BTreeMap, BTreeSet};
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
    let metadata =
        output(place.command("cargo").args(["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    // Features as cargo resolves them for the program alone; macros are not linked.
    let mut tree = place.command("cargo");
    tree.args(["tree", "--locked", "--package", "bilayer", "--edges", "normal,no-proc-macro"]);
    tree.args(["--prefix", "none", "--format", "{p}", "--target", package.target]);
    let tree = output(tree.args(package.features))?;
    let mut found = Vec::new();
    for package in linked(&metadata, &tree)? {
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

/// The packages of cargo's metadata that its tree names and that are not ours; sorted.
fn linked<'a>(metadata: &'a Value, tree: &str) -> Result<Vec<&'a Value>> {
    let named: BTreeSet<(&str, &str)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.next()?.strip_prefix('v')?))
        })
        .collect();
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    let key = |package: &'a Value| Some((package["name"].as_str()?, package["version"].as_str()?));
    let is_foreign = |package: &&Value| !package["source"].is_null();
    let mut found: Vec<&Value> = packages.iter().filter(is_foreign).collect();
    found.retain(|package| key(package).is_some_and(|key| named.contains(&key)));
    found.sort_by_key(|package| key(package));
    if found.is_empty() {
        bail!("cargo tree names no dependency");
    }
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

    use super::{Dependency, linked, list};

    #[test]
    fn only_what_is_linked_is_listed() {
        let package = |name: &str, source: Option<&str>| json!({ "name": name, "version": "1.0", "source": source });
        let registry = Some("registry");
        let metadata = json!({ "packages": [
            package("b", registry), package("ours", None), package("a", registry), package("test", registry),
        ] });
        let tree = "ours v1.0 (/ours)\nb v1.0\na v1.0\nb v1.0 (*)\n";
        let found = linked(&metadata, tree).unwrap();
        assert_eq!(found.iter().map(|it| it["name"].clone()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(linked(&metadata, "ours v1.0\n").is_err());
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
