//! The test that the modules of a crate import each other in one direction only. A name of the crate's root leads to the module
//! that the root has it from; `*` is not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

/// The crates that do not keep to it.
const EXCEPT: &[&str] = &["xtask"];

/// The sources of a crate, without comments and tests.
#[derive(Clone, Default)]
pub(super) struct Sources {
    /// The code of every module by its path, such as `gemm::packing`.
    pub(super) modules: BTreeMap<String, String>,
    /// The names that the root has from elsewhere, with their paths.
    names: BTreeMap<String, String>,
}

impl Sources {
    /// Reads the folder of a module; the path of the root is empty.
    pub(super) fn read(&mut self, folder: &Path, path: &str) {
        for entry in std::fs::read_dir(folder).expect("a folder of sources").flatten() {
            let name = entry.file_name().into_string().expect("names are UTF-8");
            let within = |stem: &str| {
                if path.is_empty() { stem.to_owned() } else { format!("{path}::{stem}") }
            };
            if entry.path().is_dir() {
                self.read(&entry.path(), &within(&name));
            } else if let Some(stem) = name.strip_suffix(".rs")
                && !["main", "tests"].contains(&stem)
            {
                let text = std::fs::read_to_string(entry.path()).expect("a source");
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                let code = code.lines().map(|line| line.split("//").next().unwrap_or_default());
                let code = code.collect::<Vec<_>>().join("\n");
                match within(stem).as_str() {
                    "lib" => self.names = names(&code),
                    path => drop(self.modules.insert(path.to_owned(), code)),
                }
            }
        }
    }

    /// The module that a path from the root leads to, or to an item of it.
    fn module_of(&self, path: &str) -> Option<String> {
        let (first, rest) = path.split_once("::").unwrap_or((path, ""));
        let path = match self.names.get(first) {
            Some(whole) if !self.modules.contains_key(first) => format!("{whole}::{rest}"),
            _ => path.to_owned(),
        };
        let steps: Vec<&str> = path.split("::").collect();
        let mut known = (1..=steps.len()).rev().map(|len| steps[..len].join("::"));
        known.find(|path| self.modules.contains_key(path))
    }

    /// The modules that `module` names from the crate's root or from its parent. Its own submodules are not among them.
    pub(super) fn imports(&self, module: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let code = &self.modules[module];
        let own: Vec<&str> = module.split("::").collect();
        for (start, above) in [("crate::", own.len()), ("super::", 1)] {
            for (at, _) in code.match_indices(start) {
                // The first `super` of several counts all.
                if code[..at].ends_with("super::") {
                    continue;
                }
                let (mut rest, mut up) = (&code[at + start.len()..], above);
                while let Some(next) = rest.strip_prefix("super::") {
                    (rest, up) = (next, up + 1);
                }
                let base = &own[..own.len().saturating_sub(up)];
                for (path, _) in paths(&rest[..tree_len(rest)]) {
                    let steps: Vec<&str> = base.iter().copied().chain([path.as_str()]).collect();
                    found.extend(self.module_of(&steps.join("::")));
                }
            }
        }
        let is_own = |other: &String| other == module || other.starts_with(&format!("{module}::"));
        found.into_iter().filter(|other| !is_own(other)).collect()
    }

    /// The first circle of imports, if there is one.
    fn circle(&self) -> Option<Vec<String>> {
        let imports = self.modules.keys().map(|name| (name.clone(), self.imports(name))).collect();
        let (mut on, mut done) = (Vec::new(), BTreeSet::new());
        let mut modules = self.modules.keys();
        let found = modules.find_map(|name| circle(name, &imports, &mut on, &mut done));
        found.map(|path| path.into_iter().map(str::to_owned).collect())
    }
}

/// The names that `use` brings into a root, with their paths.
fn names(root: &str) -> BTreeMap<String, String> {
    static USE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(?m)^(?:pub(?:\(crate\))? )?use ([^;]+);").expect("valid"));
    let found = USE.captures_iter(root).flat_map(|found| paths(&found[1]));
    found
        .map(|(path, name)| match path.strip_prefix("crate::").or(path.strip_prefix("self::")) {
            Some(rest) => (name, rest.to_owned()),
            None => (name, path),
        })
        .collect()
}

/// The paths of a tree such as `a::{b, c::{self, d as e}}`, each with the name that it brings in.
fn paths(tree: &str) -> Vec<(String, String)> {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let last = tree.rsplit("::").next().unwrap_or_default();
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, last));
        return vec![(path.to_owned(), name.to_owned())];
    };
    let branches = rest.strip_suffix('}').unwrap_or(rest);
    let mut depth = 0;
    let branches = branches.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    let branches = branches.filter(|branch| !branch.trim().is_empty()).flat_map(paths);
    branches.map(|(path, name)| (format!("{head}{path}"), name)).collect()
}

/// The length of the path or tree that code begins with.
fn tree_len(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' if depth > 0 || at == 0 || code[..at].ends_with("::") => depth += 1,
            '}' if depth == 1 => return at + 1,
            '}' if depth > 1 => depth -= 1,
            _ if depth > 0 || c.is_alphanumeric() || "_:".contains(c) => {}
            _ => return at,
        }
    }
    code.len()
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

#[test]
fn modules_import_each_other_in_one_direction() {
    let mut count = 0;
    for krate in super::crates().iter().filter(|krate| !EXCEPT.contains(&krate.as_str())) {
        let mut sources = Sources::default();
        sources.read(&super::root().join("crates").join(krate).join("src"), "");
        count += sources.modules.len();
        assert_eq!(sources.circle(), None, "a circle of imports in {krate}");
    }
    assert!(count > 500, "{count} modules were read");
}

/// Each kind of path is seen.
#[test]
fn imports_are_found() {
    let all = ["level", "gemm", "gemm::packing", "stream", "tile", "tile::avx2", "tile::scalar"];
    let modules = all.into_iter().map(|path| (path.to_owned(), String::new())).collect();
    let root = "mod gemm;\npub use gemm::{packing::{Packing, Order as Panels}, Gemm};\nuse level::Level;\n";
    let sources = Sources { modules, names: names(root) };
    let with = |from: &str, line: &str| {
        let mut sources = sources.clone();
        sources.modules.insert(from.to_owned(), line.to_owned());
        sources
    };
    for (from, to, line) in [
        ("level", "gemm", "use crate::gemm::Shape;"),
        ("stream", "tile", "use crate::{level, tile};"),
        ("stream", "tile::avx2", "use crate::{level, tile::{self, avx2::{tile}}};"),
        ("stream", "gemm::packing", "fn f() { crate::gemm::packing::g() }"),
        ("tile::avx2", "tile::scalar", "use super::scalar::tile;"),
        ("tile::avx2", "level", "fn f() { super::super::level::g() }"),
        ("level", "gemm", "use crate::Gemm;"),
        ("level", "gemm::packing", "use crate::{Gemm, Packing};"),
        ("tile::scalar", "gemm::packing", "fn f() { crate::Panels::new() }"),
        ("stream", "level", "fn f(level: super::Level) {}"),
    ] {
        assert!(with(from, line).imports(from).contains(to), "{line}");
    }
    // A name that a module of its own has is not that of the root.
    assert!(!with("stream", "use crate::{tile::Gemm};").imports("stream").contains("gemm"));
    // Of a module's own submodules it may use what it likes.
    assert_eq!(with("gemm", "use crate::gemm::packing;").circle(), None);
    let mut broken = with("level", "use crate::Packing;");
    broken.modules.insert("gemm::packing".to_owned(), "use crate::level;".to_owned());
    assert_eq!(broken.circle(), Some(vec!["gemm::packing".to_owned(), "level".to_owned()]));
}
