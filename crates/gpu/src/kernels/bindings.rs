//! Storage bindings by name: numbered for a template, and parsed from its text.

use std::collections::BTreeMap;

use minijinja::Value;

use crate::kernel::{Access, Source};
use crate::render::render;

/// Numbers the bindings in use from 1 on; unused ones are 0. Templates refer to them as `at.<name>`.
pub(crate) fn numbered(names: &[(&'static str, bool)]) -> BTreeMap<&'static str, u32> {
    let mut next = 0;
    let number = |(name, wanted): &(&'static str, bool)| {
        next += u32::from(*wanted);
        (*name, if *wanted { next } else { 0 })
    };
    names.iter().map(number).collect()
}

/// Renders a template and parses its storage bindings from the text, where they are declared once.
///
/// # Panics
/// If a template's bindings are not consecutive, and as [`render`] for mistakes in it.
pub(crate) fn kernel(name: String, template: &str, context: Value, threads: u32) -> Source {
    let wgsl = render(template, context);
    let mut bindings = BTreeMap::new();
    for line in wgsl.lines().filter(|line| line.contains("var<storage")) {
        let (_, rest) = line.split_once("@binding(").expect("a declaration has its number");
        let (number, rest) = rest.split_once(')').expect("a declaration has its number");
        let access = if rest.contains("read_write") { Access::Write } else { Access::Read };
        let number: usize = number.parse().expect("a binding is a number");
        assert!(bindings.insert(number, access).is_none(), "{name}: binding {number} twice");
    }
    assert!(bindings.keys().copied().eq(1..=bindings.len()), "{name}: bindings have gaps");
    let bindings = bindings.into_values().collect();
    Source { name, wgsl, bindings, workgroup: [threads, 1, 1] }
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn bindings_that_are_not_wanted_leave_no_gap() {
        let at = numbered(&[("a", true), ("b", false), ("c", true)]);
        assert_eq!((at["a"], at["b"], at["c"]), (1, 0, 2));
    }
}
