//! The promises about the code itself: dependencies between crates, words reserved to some of them, and size limits.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bilayer_graph::OpKind;
use regex::Regex;

#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/layers.rs"]
mod layers;

/// Our crates that each crate may depend on (ARCHITECTURE.md, part 1).
const MAY_NAME: &[(&str, &[&str])] = &[
    ("files", &[]),
    ("settings", &[]),
    ("quant", &[]),
    ("text", &["settings"]),
    ("constrain", &[]),
    ("hub", &["files", "settings"]),
    ("gguf", &["files", "quant", "settings"]),
    ("graph", &["quant"]),
    ("models", &["gguf", "graph", "quant"]),
    ("scheduler", &["graph", "quant", "settings"]),
    ("simulate", &["graph", "quant", "scheduler"]),
    ("cpu", &["graph", "quant"]),
    ("gpu", &["graph", "quant"]),
    (
        "engine",
        &[
            "constrain",
            "cpu",
            "files",
            "gguf",
            "gpu",
            "graph",
            "models",
            "quant",
            "scheduler",
            "settings",
            "simulate",
            "text",
        ],
    ),
    (
        "measure",
        &["cpu", "engine", "files", "graph", "models", "quant", "scheduler", "settings", "text"],
    ),
    ("convert", &["engine", "files", "gguf", "measure", "models", "quant", "settings", "text"]),
    ("server", &["engine", "files", "gguf", "text"]),
    (
        "cli",
        &[
            "constrain",
            "convert",
            "cpu",
            "engine",
            "files",
            "gguf",
            "graph",
            "hub",
            "measure",
            "models",
            "quant",
            "scheduler",
            "server",
            "settings",
            "text",
        ],
    ),
    // Over the library of the root package, with the command line for the wheel's command.
    ("python", &["cli"]),
    ("capi", &[]),
    ("xtask", &["files"]),
    // The library of the root package; its binary depends on cli.
    (LIBRARY, &["cli", "convert", "engine", "hub", "measure", "quant", "scheduler", "settings"]),
];

/// The folder of the library, which has no manifest of its own.
const LIBRARY: &str = "bilayer";

/// A pattern that only some crates may contain, and why.
const RESERVED: &[(&str, &[&str], &str)] = &[
    (r"\b(wgpu|pollster|naga)\b", &["gpu"], "only gpu uses the graphics API"),
    (r"\bmemmap2\b", &["gguf"], "only gguf maps files"),
    (r"\bclap(_complete|_mangen)?::", &["cli"], "only cli has flags"),
    (
        r"\benv::(var|var_os|vars)\b",
        &["cli", "hub", "xtask"],
        "only cli reads the environment, and hub what says where other programs keep models",
    ),
    (r"\be?println?!", &["cli", "xtask"], "only cli prints"),
    (
        r"\bstd::net\b|\bTcp(Listener|Stream)\b",
        &["server", "xtask"],
        "only server opens a socket, and xtask as its client",
    ),
    (r"\bureq\b", &["hub"], "only hub downloads"),
    (
        r"\bsha2\b|\bsync_(all|data)\b|\bfsync\b|\bfs::rename\b|\bNamedTempFile\b",
        &["files"],
        "only files replaces, flushes and hashes files",
    ),
    (
        r"\bunsafe\b",
        &["cpu", "gguf", "gpu", "capi"],
        "unsafe code is confined to three crates and the interface for C",
    ),
    (
        r"\bstd::(fs|io|process)\b|\bFile::open\b",
        &[
            "files", "gguf", "cli", "engine", "hub", "measure", "convert", "server", "python",
            "xtask", "cpu", "gpu",
        ],
        "graph, scheduler, models, quant and text do no input or output",
    ),
];

/// Files that are one table or one codebook and may be longer than the limit.
const TABLES: &[&str] = &["crates/quant/src/grids/"];

/// Lines a source file may have (STYLE.md).
const LINES_MAX: usize = 600;

struct Source {
    /// Relative to the root, with forward slashes.
    path: String,
    text: String,
}

impl Source {
    /// The crate under crates/ the file belongs to.
    fn krate(&self) -> &str {
        self.path.strip_prefix("crates/").and_then(|p| p.split('/').next()).unwrap_or("")
    }

    /// The text without line comments and without a module of tests at its end; strings are kept.
    fn code(&self) -> String {
        static TESTS: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"(?m)^#\[cfg\(test\)\]\nmod \w+ \{").expect("valid"));
        let end = TESTS.find(&self.text).map_or(self.text.len(), |tests| tests.start());
        self.text[..end].lines().map(strip_comment).collect::<Vec<_>>().join("\n")
    }

    /// The files that may declare the module of this one: that of the folder, or the root of the crate.
    fn parents(&self) -> [String; 3] {
        let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        [format!("{folder}.rs"), format!("{folder}/lib.rs"), format!("{folder}/main.rs")]
    }

    /// Whether it declares a module: with `mod`, or on a line of names in a macro.
    fn declares(&self, module: &str) -> bool {
        let list = format!(r"^\s*[\w, ]*\b{module}\b[\w, ]*;?\s*(=>.*)?$");
        let declared = Regex::new(&format!(r"(?m)\bmod {module};|{list}")).expect("valid");
        declared.is_match(&self.text.lines().map(strip_comment).collect::<Vec<_>>().join("\n"))
    }
}

/// A line up to its `//`, unless that stands inside a string.
fn strip_comment(line: &str) -> &str {
    let mut in_string = false;
    let bytes = line.as_bytes();
    for i in 0..bytes.len() {
        match bytes[i] {
            b'"' if i == 0 || bytes[i - 1] != b'\\' => in_string = !in_string,
            b'/' if !in_string && bytes.get(i + 1) == Some(&b'/') => return &line[..i],
            _ => {}
        }
    }
    line
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `folder` (relative to the root) with one of the extensions.
fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("a file of the repository")
}

fn files(folder: &str, extensions: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path: PathBuf = entry.expect("a readable folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| extensions.iter().any(|x| e == *x)) {
                let relative = path.strip_prefix(root()).expect("below the root");
                let relative = relative.to_string_lossy().replace('\\', "/");
                let text = std::fs::read_to_string(&path).expect("a text file");
                found.push(Source { path: relative, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn crates() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(root().join("crates"))
        .expect("crates/")
        .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Sources of all crates, without what cargo builds.
fn crate_sources() -> Vec<Source> {
    crates().iter().flat_map(|name| files(&format!("crates/{name}/src"), &["rs"])).collect()
}

fn assert_none(broken: &[String], rule: &str) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn dependencies_point_down() {
    let table: BTreeMap<_, _> = MAY_NAME.iter().copied().collect();
    let mut broken = Vec::new();
    for name in crates() {
        let Some(allowed) = table.get(name.as_str()) else {
            broken.push(format!("crates/{name} is not in the dependency table"));
            continue;
        };
        let folder = root().join("crates").join(&name);
        let path = if name == LIBRARY { root().to_owned() } else { folder }.join("Cargo.toml");
        let manifest: toml::Table =
            std::fs::read_to_string(path).expect("a manifest").parse().expect("valid TOML");
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            if name == LIBRARY && section != "dependencies" {
                // Tests and benches may name everything.
                continue;
            }
            let Some(table) = manifest.get(section).and_then(|s| s.as_table()) else { continue };
            for (dependency, value) in table {
                if let Some(ours) = dependency.strip_prefix("bilayer-")
                    && !allowed.contains(&ours)
                {
                    broken.push(format!("crates/{name} names {ours}"));
                }
                if value.as_str().is_some() || value.get("version").is_some() {
                    broken.push(format!("crates/{name}: {dependency} gives a version of its own"));
                }
            }
        }
        if manifest.get("lints").is_none() {
            broken.push(format!("crates/{name} does not take the workspace's lints"));
        }
    }
    assert_none(&broken, "dependencies");
}

/// The fuzz targets are a workspace of their own, built with `--locked`: its lock names what the crates depend on.
#[test]
fn the_lock_of_the_fuzz_targets_is_current() {
    let lock: toml::Table = read("tests/fuzz/Cargo.lock").parse().expect("valid TOML");
    let packages = lock["package"].as_array().expect("a list");
    let mut broken = Vec::new();
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let Some(of) = name.strip_prefix("bilayer-").filter(|of| *of != "fuzz") else { continue };
        let listed = package.get("dependencies").and_then(|list| list.as_array());
        let listed: Vec<&str> = listed
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.as_str()?.split(' ').next())
            .collect();
        let manifest: toml::Table =
            read(&format!("crates/{of}/Cargo.toml")).parse().expect("valid TOML");
        let targets = manifest.get("target").and_then(toml::Value::as_table);
        let tables =
            targets.into_iter().flat_map(|all| all.values().filter_map(|of| of.as_table()));
        let dependencies = tables
            .chain([&manifest])
            .filter_map(|table| table.get("dependencies")?.as_table())
            .flatten();
        for (dependency, value) in dependencies {
            let is_optional = value.get("optional").and_then(toml::Value::as_bool);
            if is_optional != Some(true) && !listed.contains(&dependency.as_str()) {
                broken.push(format!("crates/{of} depends on {dependency}, the lock does not"));
            }
        }
    }
    assert_none(&broken, "the lock of tests/fuzz (cargo update --workspace there)");
}

#[test]
fn the_library_can_do_without_the_command_line() {
    let manifest: toml::Table = read("Cargo.toml").parse().expect("valid TOML");
    assert_eq!(manifest["dependencies"]["bilayer-cli"]["optional"].as_bool(), Some(true));
    let binary = &manifest["bin"].as_array().expect("[[bin]]")[0];
    let needed = binary["required-features"].as_array().expect("a list");
    assert!(needed.iter().any(|feature| feature.as_str() == Some("cli")));
}

#[test]
fn reserved_words_stay_in_their_crates() {
    let mut broken = Vec::new();
    let sources = crate_sources();
    for (pattern, rooms, why) in RESERVED {
        let pattern = Regex::new(pattern).expect("a valid pattern");
        for source in sources.iter().filter(|s| !rooms.contains(&s.krate())) {
            let code = source.code().replace("forbid(unsafe_code)", "");
            if let Some(hit) = pattern.find(&code) {
                broken.push(format!("{} has `{}`: {why}", source.path, hit.as_str()));
            }
        }
    }
    for source in sources.iter().filter(|s| s.krate() == "scheduler") {
        if source.code().contains("std::time") {
            broken.push(format!("{}: the scheduler has no clock", source.path));
        }
    }
    assert_none(&broken, "invariants");
}

/// Unsafe blocks, functions and implementations per crate. Where a number has fallen it is lowered here; what makes it rise
/// needs a reason that a review accepts.
const UNSAFE: &[(&str, usize)] = &[("capi", 64), ("cpu", 362), ("gguf", 10), ("gpu", 23)];

#[test]
fn unsafe_code_does_not_grow() {
    let item = Regex::new(r"\bunsafe (\{|fn\b|impl\b|extern\b)").expect("a valid pattern");
    let sources = crate_sources();
    let mut broken = Vec::new();
    for (name, budget) in UNSAFE {
        let of_crate = sources.iter().filter(|source| source.krate() == *name);
        let found: usize = of_crate.map(|source| item.find_iter(&source.code()).count()).sum();
        if found > *budget {
            broken.push(format!("crates/{name} has {found} unsafe items, its budget is {budget}"));
        }
    }
    assert_none(&broken, "unsafe code");
}

/// The CPU's ops, programs and stages: chunks get disjoint slices from a few places, so they have few unsafe blocks and
/// implementations.
const STAGES: &[&str] =
    &["crates/cpu/src/ops", "crates/cpu/src/program", "crates/cpu/src/stage.rs"];
const STAGES_UNSAFE: usize = 43;

#[test]
fn stages_have_few_unsafe_blocks() {
    let block = Regex::new(r"\bunsafe (\{|impl\b)").expect("a valid pattern");
    let sources = files("crates/cpu/src", &["rs"]);
    let stages = sources.iter().filter(|of| STAGES.iter().any(|path| of.path.starts_with(path)));
    let found: usize = stages.map(|source| block.find_iter(&source.code()).count()).sum();
    assert!(found > 0 && found <= STAGES_UNSAFE, "{found}, the budget is {STAGES_UNSAFE}");
}

/// The table of well-known model shapes, which names the architecture of each.
const SHAPES: &str = "crates/convert/src/synth/shapes.rs";
/// Vocabulary code, whose kinds have the names of architectures.
const VOCABULARIES: &[&str] =
    &["crates/convert/src/synth/words.rs", "crates/convert/src/checkpoint/tokenizer/"];

/// Behaviour depends on features of a description, never on its name: outside its own file and the tables of all
/// architectures, no code mentions an architecture's name, or the name of a class of its checkpoints, as a string, or the
/// entry of its description.
#[test]
fn architectures_are_not_branched_on_by_name() {
    let names: Vec<&str> = bilayer_models::all().iter().map(|a| a.name).collect();
    assert!(!names.is_empty());
    let own_files: BTreeSet<String> = names.iter().map(|name| file_of(name)).collect();
    let classes: BTreeSet<String> = bilayer_models::all()
        .iter()
        .flat_map(|architecture| architecture.checkpoint.classes)
        .map(|class| format!("\"{class}\""))
        .collect();
    let mut broken = Vec::new();
    for source in crate_sources() {
        if !own_files.contains(&source.path) {
            let code = source.code();
            if source.path != TABLE && code.contains("::ARCHITECTURE") {
                broken.push(format!("{} names an entry of the table", source.path));
            }
            let named = classes.iter().filter(|class| code.contains(*class));
            broken.extend(named.map(|class| format!("{} mentions {class}", source.path)));
        }
        for name in &names {
            let own = source.path == file_of(name);
            // tokenizer.ggml.model has a "llama" and a "bert" too
            let vocabulary = source.krate() == "text"
                || VOCABULARIES.iter().any(|path| source.path.starts_with(path));
            if !own
                && !vocabulary
                && source.path != SHAPES
                && source.code().contains(&format!("\"{name}\""))
            {
                broken.push(format!("{} mentions \"{name}\"", source.path));
            }
        }
    }
    assert_none(&broken, "names of architectures");
}

/// The table of all architectures.
const TABLE: &str = "crates/models/src/lib.rs";

/// Comparisons with a type that stores weights in blocks, by file, and why a feature of the type cannot replace them.
const COMPARED_TYPES: &[(&str, &str, &str)] = &[(
    "crates/convert/src/mix.rs",
    "W8A8",
    "rows are as long as the sums of the one type with i32 sums over a row allow",
)];

/// Outside of `quant` no code compares a type with one that stores weights in blocks: it asks for features such as
/// `block_weights`. Floats may be compared with, as types of plain numbers. Lists of types, as of tables and recipes, are
/// not seen; a `match` does not compile, as the types are no patterns.
#[test]
fn types_are_not_branched_on_by_name() {
    let compared = Regex::new(r"(?:==|!=)\s*&?(?:\w+::)*Type::(\w+)|\bType::(\w+)\s*(?:==|!=)");
    let compared = compared.expect("a valid pattern");
    assert!(compared.is_match("ty == bilayer_quant::Type::Q4_K && Type::Q4_K != ty"));
    let in_blocks =
        |name: &str| bilayer_quant::all().iter().any(|ty| ty.name == name && ty.block_weights > 1);
    let mut broken = Vec::new();
    for source in crate_sources().into_iter().filter(|source| source.krate() != "quant") {
        // Files of tests have no module of tests at their end.
        if source.path.ends_with("/tests.rs") {
            continue;
        }
        for found in compared.captures_iter(&source.code()) {
            let name = found.get(1).or(found.get(2)).expect("one of both").as_str();
            let is_known = COMPARED_TYPES
                .iter()
                .any(|(path, ty, _)| (*path, *ty) == (source.path.as_str(), name));
            if in_blocks(name) && !is_known {
                broken.push(format!("{} compares a type with {name}", source.path));
            }
        }
    }
    assert_none(&broken, "names of types");
}

/// The file of an architecture.
fn file_of(name: &str) -> String {
    format!("crates/models/src/{}.rs", name.replace('-', "_"))
}

/// The README of the models has a row per architecture, with the line count of its file without tests.
#[test]
fn the_table_of_architectures_is_true() {
    let readme = read("crates/models/README.md");
    let mut broken = Vec::new();
    for architecture in bilayer_models::all() {
        let name = architecture.name;
        let file = read(&file_of(name));
        let lines = file.lines().take_while(|line| *line != "#[cfg(test)]");
        let row = format!("| `{name}` | {} |", lines.count());
        if !readme.contains(&row) {
            broken.push(format!("no row begins with {row}"));
        }
    }
    assert_none(&broken, "the table of architectures");
}

#[test]
fn files_keep_to_the_limits() {
    let mut broken = Vec::new();
    for source in crate_sources().into_iter().chain(files("benches", &["rs"])) {
        let first = source.text.lines().next().unwrap_or_default();
        if !first.starts_with("//! ") {
            broken.push(format!("{}: the first line must be a `//!` sentence", source.path));
        }
        let lines = source.text.lines().count();
        if lines > LINES_MAX && !TABLES.iter().any(|t| source.path.starts_with(t)) {
            broken.push(format!("{}: {lines} lines, the limit is {LINES_MAX}", source.path));
        }
        if source.path.ends_with("/mod.rs") {
            broken.push(format!("{}: `foo.rs` and `foo/`, never `mod.rs`", source.path));
        }
        let stem = source.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        if ["utils", "util", "common", "helpers", "helper", "manager", "misc"].contains(&stem) {
            broken.push(format!("{}: a meaningless name", source.path));
        }
    }
    for source in files("examples", &["rs"]) {
        let lines = source.text.lines().count();
        if lines > 60 {
            broken.push(format!("{}: {lines} lines, an example has at most 60", source.path));
        }
    }
    assert_none(&broken, "limits");
}

#[test]
fn every_source_file_belongs_to_a_module_tree() {
    let sources = crate_sources();
    let mut broken = Vec::new();
    for source in &sources {
        let name = source.path.rsplit('/').next().unwrap_or_default();
        if name == "lib.rs" || name == "main.rs" {
            continue;
        }
        let stem = name.trim_end_matches(".rs");
        let parents = source.parents();
        let by_path = Regex::new(&format!(r#"#\[path = "[^"]*\b{name}"\]"#)).expect("valid");
        let mut krate = sources.iter().filter(|other| other.krate() == source.krate());
        let named = krate.any(|other| {
            parents.contains(&other.path) && other.declares(stem) || by_path.is_match(&other.text)
        });
        if !named {
            broken.push(format!("{} belongs to no module", source.path));
        }
    }
    assert_none(&broken, "dead files");
}

#[test]
fn every_op_has_its_files() {
    let mut broken = Vec::new();
    for kind in OpKind::ALL {
        for folder in ["crates/graph/src/reference", "crates/cpu/src/ops"] {
            let path = format!("{folder}/{}.rs", kind.stem());
            if !root().join(&path).exists() {
                broken.push(format!("{path} is missing"));
            }
        }
    }
    for kind in bilayer_gpu::kernels::ops() {
        let stem = kind.stem();
        let (file, folder) = (format!("shaders/{stem}.wgsl"), format!("shaders/{stem}"));
        if !root().join(&file).exists() && !root().join(&folder).is_dir() {
            broken.push(format!("{file} is missing"));
        }
        let path = format!("crates/gpu/src/kernels/{stem}.rs");
        if !root().join(&path).exists() {
            broken.push(format!("{path} is missing"));
        }
    }
    assert_none(&broken, "one stem per op");
}

/// Shaders that belong to no op and no type, and their purpose.
const SHADERS_OF_NO_OP: &[(&str, &str)] = &[
    ("parts", "pieces that several kernels include"),
    ("quantize", "activations for products with quantized weights"),
    ("halve", "activations for products with cooperative matrices"),
    ("copy_pages", "the copies that a step begins with"),
];

#[test]
fn shader_stems_are_op_stems() {
    let mut stems: BTreeSet<String> = OpKind::ALL.iter().map(|k| k.stem().to_owned()).collect();
    stems.extend(bilayer_quant::all().iter().map(|t| t.name.to_lowercase()));
    let broken: Vec<String> = files("shaders", &["wgsl"])
        .into_iter()
        .filter(|s| {
            // An op with several kernels has a folder.
            let parts: Vec<&str> =
                s.path.trim_end_matches(".wgsl").split('/').filter(|p| *p != "quant").collect();
            let stem = parts.get(1).copied().unwrap_or_default();
            !stems.contains(stem) && !SHADERS_OF_NO_OP.iter().any(|(known, _)| *known == stem)
        })
        .map(|s| format!("{} belongs to no op and no type", s.path))
        .collect();
    assert_none(&broken, "shaders");
}

/// The page that describes each folder.
const MAP: &str = "docs/internals/overview.md";

#[test]
fn the_top_level_and_the_map_agree() {
    let given = [
        "Cargo.toml",
        "Cargo.lock",
        "README.md",
        "SECURITY.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "crates",
        "docs",
        "shaders",
        "benches",
        "tests",
        "examples",
        // For `pip install .`, which looks nowhere else.
        "pyproject.toml",
        "target",
    ];
    let mut broken = Vec::new();
    for entry in std::fs::read_dir(root()).expect("the root") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !given.contains(&name.as_str()) {
            broken.push(format!("{name} does not belong to the top level"));
        }
    }
    let map = read(MAP);
    for name in crates() {
        if !map.contains(&format!("`crates/{name}`")) {
            broken.push(format!("{MAP} lacks `crates/{name}`"));
        }
    }
    for named in Regex::new(r"crates/([a-z_]+)").expect("valid").captures_iter(&map) {
        if !root().join(&named[0]).exists() {
            broken.push(format!("{MAP} names {}, which does not exist", &named[0]));
        }
    }
    assert_none(&broken, "the map");
}

/// Words and phrases that STYLE.md's "Prose" rules out, as patterns in lower case, and what to write instead.
const BANNED: &[(&str, &str)] = &[
    (r"\bprocessors?\b", "CPU"),
    (r"\bguess(es|ed|ing)?\b", "draft token, or estimate"),
    (r"\bmendable\b", "recoverable"),
    // At the beginning of a doc comment: the line before is none.
    (r"\n[ \t]*([^/\s][^\n]*)?\n[ \t]*//[/!] the same\b", "a doc comment that stands alone"),
    (r"\bwhat is not reached\b", "missed targets"),
    (r"\bsince then\b", "no history"),
    (r"\banother hour\b", "no history"),
    (r"\bshort way\b", "fast path"),
];

/// Exceptions: a path, and the text that may contain a banned word.
const ALLOWED: &[(&str, &str)] = &[
    ("crates/cpu/src/host.rs", "Xeon(R) Processor"),
    ("crates/cpu/src/host.rs", "processor\\t: 0"),
    ("crates/convert/src/checkpoint/tokenizer/special.rs", "[\"processors\"]"),
];

/// All prose: code with its comments and messages, shaders, tests, and the documentation.
fn prose() -> Vec<Source> {
    let mut sources = vec![Source { path: "README.md".into(), text: read("README.md") }];
    sources
        .extend(["crates", "tests", "examples"].iter().flat_map(|folder| files(folder, &["rs"])));
    sources.extend(files("benches", &["rs"]));
    sources.extend(files("shaders", &["wgsl"]));
    sources.extend(files("docs", &["md"]));
    // These patterns are banned words themselves.
    sources.retain(|source| source.path != "tests/tidy.rs");
    sources
}

#[test]
fn banned_words_are_not_used() {
    let mut broken = Vec::new();
    for source in prose() {
        let mut text = source.text.clone();
        for (_, allowed) in ALLOWED.iter().filter(|(path, _)| *path == source.path) {
            text = text.replace(allowed, "");
        }
        let text = text.to_lowercase();
        for (pattern, instead) in BANNED {
            for found in Regex::new(pattern).expect("a valid pattern").find_iter(&text) {
                let line = text[..found.start()].lines().count().max(1);
                let word = found.as_str().trim();
                broken.push(format!("{}:{line} has `{word}`; better: {instead}", source.path));
            }
        }
    }
    assert_none(&broken, "words");
}

/// Names that once meant several things in the workspace; each keeps at most one meaning.
const HOMONYMS: &[&str] = &["Columns", "Kind", "Part", "Rows", "Run", "Turn"];

#[test]
fn a_type_name_has_one_meaning() {
    let sources: Vec<Source> =
        prose().into_iter().filter(|source| source.path.ends_with(".rs")).collect();
    let mut broken = Vec::new();
    for name in HOMONYMS {
        let definition =
            Regex::new(&format!(r"(?m)^\s*(pub(\([^)]*\))? )?(struct|enum|trait|type) {name}\b"))
                .expect("a valid pattern");
        let defined: Vec<&str> = sources
            .iter()
            .filter(|source| definition.is_match(&source.text))
            .map(|source| source.path.as_str())
            .collect();
        if defined.len() > 1 {
            broken.push(format!("`{name}` is defined in {}", defined.join(", ")));
        }
    }
    assert_none(&broken, "homonyms");
}

/// Each of the patterns above matches a made-up violation.
#[test]
fn the_checks_can_fail() {
    let offenders = [
        "use wgpu::Device;",
        "memmap2::Mmap::map(&f)",
        "clap::Parser",
        "std::env::var(\"X\")",
        "println!(\"x\")",
        "std::net::TcpListener",
        "ureq::get(url)",
        "std::fs::rename(a, b)",
        "unsafe { x }",
        "std::fs::read(p)",
    ];
    let file = |text: &str| Source { path: "crates/x/src/a/b.rs".into(), text: text.to_owned() };
    let tests = "#[cfg(test)]\nmod cases;\nunsafe {}\n#[cfg(test)]\nmod tests {\n    todo!()\n}\n";
    assert_eq!(file(tests).code(), "#[cfg(test)]\nmod cases;\nunsafe {}");
    assert!(
        file("pub(crate) mod c;").declares("c") && file("modules! {\n    c, d\n}").declares("d")
    );
    assert!(!file("// mod c;\nuse c::d;\nlet c = 1;").declares("c"));
    for ((pattern, _, why), offender) in RESERVED.iter().zip(offenders) {
        let pattern = Regex::new(pattern).expect("valid");
        let source = Source { path: "crates/x/src/a.rs".into(), text: offender.to_owned() };
        assert!(pattern.is_match(&source.code()), "{why}");
        let comment = Source { path: "crates/x/src/a.rs".into(), text: format!("// {offender}") };
        assert!(!pattern.is_match(&comment.code()), "comments are free: {why}");
    }
}
