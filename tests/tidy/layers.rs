//! The test that modules import only those below them in the list of layers that their crate's README has.

use std::collections::BTreeMap;

use regex::Regex;

use super::imports::Sources;

/// The layers in a README, from the bottom: the modules of each.
fn layers(readme: &str) -> Option<Vec<Vec<String>>> {
    let (_, list) = readme.split_once("From the bottom:")?;
    let layers = list.split('.').next()?.split(';');
    Some(
        layers
            .map(|layer| layer.split('`').skip(1).step_by(2).map(str::to_owned).collect())
            .collect(),
    )
}

/// What contradicts the list: modules that it lacks or has twice, names that are no modules, and imports of what is not below.
fn broken(sources: &Sources, layers: &[Vec<String>]) -> Vec<String> {
    let mut found = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, name) in
        layers.iter().enumerate().flat_map(|(at, all)| all.iter().map(move |name| (at, name)))
    {
        if !sources.modules.contains_key(name) {
            found.push(format!("{name} is no module"));
        }
        if places.insert(name, at).is_some() {
            found.push(format!("{name} is in the list twice"));
        }
    }
    let top = |module: &str| module.split("::").next().unwrap_or_default().to_owned();
    for module in sources.modules.keys() {
        let own = top(module);
        let Some(place) = places.get(own.as_str()) else {
            found.push(format!("{module} is in no layer"));
            continue;
        };
        let others = sources.imports(module).into_iter().filter(|other| top(other) != own);
        let above = others.filter(|other| places.get(top(other).as_str()) >= Some(place));
        found.extend(above.map(|other| format!("{module} imports {other}, which is not below")));
    }
    found
}

#[test]
fn modules_import_what_the_readme_has_below_them() {
    let tests = Regex::new(r"#\[cfg\(test\)\]\nmod (\w+);").expect("a valid pattern");
    let mut checked = Vec::new();
    for krate in super::crates() {
        let folder = super::root().join("crates").join(&krate);
        let Ok(readme) = std::fs::read_to_string(folder.join("README.md")) else { continue };
        let Some(layers) = layers(&readme) else { continue };
        let mut sources = Sources::default();
        sources.read(&folder.join("src"), "");
        let root = super::read(&format!("crates/{krate}/src/lib.rs"));
        tests.captures_iter(&root).for_each(|test| drop(sources.modules.remove(&test[1])));
        super::assert_none(&broken(&sources, &layers), &format!("the layers of {krate}"));
        checked.push(krate);
    }
    assert!(checked.contains(&"cpu".to_owned()), "{checked:?}");
}

/// Each contradiction is found.
#[test]
fn layers_are_checked() {
    let readme = "From the bottom: `bytes`, `lanes`; `panel`;\n`gemm`. A module may use `itself`.";
    let layers = layers(readme).expect("a list");
    assert_eq!(layers, [vec!["bytes", "lanes"], vec!["panel"], vec!["gemm"]]);
    let with = |module: &str, line: &str| {
        let mut sources = Sources::default();
        let modules = ["bytes", "lanes", "panel", "panel::tiles", "gemm"];
        sources.modules.extend(modules.map(|name| (name.to_owned(), String::new())));
        sources.modules.insert(module.to_owned(), line.to_owned());
        broken(&sources, &layers)
    };
    assert!(with("gemm", "use crate::{bytes, panel::tiles};").is_empty());
    assert!(with("panel::tiles", "use super::tiles; use crate::panel;").is_empty());
    for (module, line, expected) in [
        ("panel::tiles", "use crate::gemm;", "panel::tiles imports gemm, which is not below"),
        ("lanes", "use crate::bytes;", "lanes imports bytes, which is not below"),
        ("tile", "", "tile is in no layer"),
    ] {
        assert_eq!(with(module, line), [expected]);
    }
    let more =
        |list: &str| super::layers::layers(&format!("From the bottom: {list}.")).expect("a list");
    assert_eq!(broken(&Sources::default(), &more("`x`")), ["x is no module"]);
    assert_eq!(broken(&Sources::default(), &more("`x`; `x`")).len(), 3);
}
