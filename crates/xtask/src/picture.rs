//! `cargo xtask picture`: the README's picture, one for light and one for dark pages, from a chart of `bilayer profile`.

use std::path::Path;

use anyhow::{Context, Result, bail};

pub const USAGE: &str = "\
cargo xtask picture CHART     write CHART (an SVG of `bilayer profile`, which follows the reader's system) to docs/images in a
                              light and a dark version, for the README";

/// What a chart's colours for dark pages stand between.
const DARK: (&str, &str) = ("@media (prefers-color-scheme:dark){:root{", "}}\n");
/// And those for light ones.
const LIGHT: (&str, &str) = (":root{color-scheme:light dark;", "}\n");

/// Writes both.
pub fn run(args: &[String]) -> Result<()> {
    let [chart] = args else { bail!("one chart\n{USAGE}") };
    let text = std::fs::read_to_string(chart).with_context(|| chart.clone())?;
    let (light, dark) = versions(&text).with_context(|| {
        format!("{chart} is no chart of `bilayer profile`: no colours for dark pages")
    })?;
    for (name, version) in [("light", light), ("dark", dark)] {
        let path = Path::new("docs/images").join(format!("profile-{name}.svg"));
        std::fs::write(&path, version).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// The chart in its light and its dark colours alone. `None` where it has not both.
fn versions(chart: &str) -> Option<(String, String)> {
    let (before, rest) = chart.split_once(LIGHT.0)?;
    let (light, rest) = rest.split_once(LIGHT.1)?;
    let (between, rest) = rest.split_once(DARK.0)?;
    let (dark, after) = rest.split_once(DARK.1)?;
    let with = |scheme: &str, colours: &str| {
        format!("{before}:root{{color-scheme:{scheme};{colours}}}\n{between}{after}")
    };
    Some((with("light", light), with("dark", dark)))
}

#[cfg(test)]
mod tests {
    use super::versions;

    #[test]
    fn each_version_has_its_colours_alone() {
        let chart = "<svg><style>:root{color-scheme:light dark;--a:#fff;}\n\
                     @media (prefers-color-scheme:dark){:root{--a:#000;}}\nx</style></svg>";
        let (light, dark) = versions(chart).unwrap();
        assert_eq!(light, "<svg><style>:root{color-scheme:light;--a:#fff;}\nx</style></svg>");
        assert_eq!(dark, "<svg><style>:root{color-scheme:dark;--a:#000;}\nx</style></svg>");
        assert_eq!(versions("<svg/>"), None);
    }
}
