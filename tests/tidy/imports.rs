//! The test that the modules of a crate import each other in one direction only. Names that a crate's root exports again are not
//! followed: errors name what may fail, which returns errors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The crates that keep to it.
const LAYERED: &[&str] = &[
    "constrain",
    "convert",
    "cpu",
    "engine",
    "gguf",
    "graph",
    "measure",
    "models",
    "quant",
    "scheduler",
    "server",
    "simulate",
    "text",
];

/// The code of every module by its path, such as `gemm::packing`, without comments and tests.
fn modules(folder: &Path, path: &str, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
        let name = entry.file_name().into_string().expect("names are UTF-8");
        let within = |stem: &str| {
            if path.is_empty() { stem.to_owned() } else { format!("{path}::{stem}") }
        };
        if entry.path().is_dir() {
            modules(&entry.path(), &within(&name), found);
        } else if let Some(stem) = name.strip_suffix(".rs")
            && !["lib", "tests"].contains(&stem)
        {
            let text = std::fs::read_to_string(entry.path()).expect("a source");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let code = code.lines().map(|line| line.split("//").next().unwrap_or_default());
            found.insert(within(stem), code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The modules that `module` names from the crate's root or from its parent. Its own submodules are not among them.
fn imports(module: &str, modules: &BTreeMap<String, String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let code = &modules[module];
    for (start, root) in [("crate::", 0), ("super::", 1)] {
        for (at, _) in code.match_indices(start) {
            let (mut rest, mut up) = (&code[at + start.len()..], root);
            while let Some(next) = rest.strip_prefix("super::") {
                (rest, up) = (next, up + 1);
            }
            let own: Vec<&str> = module.split("::").collect();
            let base = if root == 0 { &[][..] } else { &own[..own.len().saturating_sub(up)] };
            let end = rest.find(|c: char| !(c.is_alphanumeric() || "_:".contains(c)));
            let (path, tail) = rest.split_at(end.unwrap_or(rest.len()));
            let group = tail.strip_prefix('{').and_then(|tail| tail.split(';').next());
            let leaves = group
                .into_iter()
                .flat_map(|group| group.split(|c: char| !(c.is_alphanumeric() || c == '_')));
            for leaf in leaves.chain([""]) {
                let steps = path.split("::").chain([leaf]).filter(|step| !step.is_empty());
                let full: Vec<&str> = base.iter().copied().chain(steps).collect();
                let known = (1..=full.len()).rev().map(|len| full[..len].join("::"));
                found.extend(known.into_iter().find(|path| modules.contains_key(path)));
            }
        }
    }
    let is_own = |other: &String| other == module || other.starts_with(&format!("{module}::"));
    found.into_iter().filter(|other| !is_own(other)).collect()
}

/// Follows imports from `module`; returns the path back to a module that is already on it.
fn circle<'a>(
    module: &'a str,
    imports: &'a BTreeMap<String, BTreeSet<String>>,
    on: &mut Vec<&'a str>,
    done: &mut BTreeSet<&'a str>,
) -> Option<Vec<&'a str>> {
    if let Some(at) = on.iter().position(|known| *known == module) {
        return Some(on[at..].to_vec());
    }
    if !done.insert(module) {
        return None;
    }
    on.push(module);
    let found = imports[module].iter().find_map(|next| circle(next, imports, on, done));
    on.pop();
    found
}

fn first_circle(modules: &BTreeMap<String, String>) -> Option<Vec<String>> {
    let imports = modules.keys().map(|name| (name.clone(), imports(name, modules))).collect();
    let (mut on, mut done) = (Vec::new(), BTreeSet::new());
    let found = modules.keys().find_map(|name| circle(name, &imports, &mut on, &mut done));
    found.map(|path| path.into_iter().map(str::to_owned).collect())
}

#[test]
fn modules_import_each_other_in_one_direction() {
    for krate in LAYERED {
        let mut sources = BTreeMap::new();
        modules(&super::root().join("crates").join(krate).join("src"), "", &mut sources);
        assert!(sources.len() > 3, "{krate}");
        assert_eq!(first_circle(&sources), None, "a circle of imports in {krate}");
    }
}

/// Each kind of path is seen.
#[test]
fn imports_are_found() {
    let names = ["level", "gemm", "gemm::packing", "stream", "tile", "tile::avx2", "tile::scalar"];
    let sources: BTreeMap<String, String> =
        names.into_iter().map(|name| (name.to_owned(), String::new())).collect();
    let with = |from: &str, line: &str| {
        let mut sources = sources.clone();
        sources.insert(from.to_owned(), line.to_owned());
        sources
    };
    for (from, to, line) in [
        ("level", "gemm", "use crate::gemm::Packing;"),
        ("stream", "tile", "use crate::{level, tile};"),
        ("stream", "gemm::packing", "fn f() { crate::gemm::packing::g() }"),
        ("tile::avx2", "tile::scalar", "use super::scalar::tile;"),
        ("tile::avx2", "level", "fn f() { super::super::level::g() }"),
    ] {
        assert!(imports(from, &with(from, line)).contains(to), "{line}");
    }
    // Of a module's own submodules it may use what it likes.
    assert_eq!(first_circle(&with("gemm", "use crate::gemm::packing;")), None);
    let mut broken = with("level", "use crate::gemm::Packing;");
    broken.insert("gemm".to_owned(), "use crate::level;".to_owned());
    assert!(first_circle(&broken).is_some());
}
