//! What `bilayer version` prints: version, commit, features and devices.

use bilayer_cpu::level::Level;
use bilayer_engine::placement::adapters;
use serde_json::json;

use crate::args::Version;
use crate::failure::Failure;
use crate::output;

/// The commit of the sources, if it was known at build time.
pub const COMMIT: &str = match option_env!("BILAYER_BUILD_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// The number of commits up to it; 0 if unknown, as in llama-bench.
pub fn build_number() -> u64 {
    option_env!("BILAYER_BUILD_NUMBER").and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Prints them.
pub fn execute(args: &Version) -> Result<u8, Failure> {
    if !args.json {
        return output::text(&text()).map(|()| 0);
    }
    let gpus = adapters();
    let gpus =
        gpus.iter().map(|gpu| json!({ "name": gpu.name, "backend": gpu.backend.to_string() }));
    let document = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "commit": COMMIT,
        "build": build_number(),
        "target": target(),
        "features": features(),
        "cpu": { "name": bilayer_cpu::host::name(), "level": Level::detect().to_string() },
        "gpus": gpus.collect::<Vec<_>>(),
    });
    output::json(&document).map(|()| 0)
}

fn target() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

/// The features that this program was built with.
fn features() -> Vec<&'static str> {
    let all = [("gpu", cfg!(feature = "gpu")), ("hub", cfg!(feature = "hub"))];
    all.into_iter().filter_map(|(name, is_on)| is_on.then_some(name)).collect()
}

/// The lines.
pub fn text() -> String {
    let features = features();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let mut lines = vec![
        format!("bilayer {} ({COMMIT}, build {})", env!("CARGO_PKG_VERSION"), build_number()),
        format!("target:   {}", target()),
        format!("features: {features}"),
        format!("cpu:      {}, {}", bilayer_cpu::host::name(), Level::detect()),
    ];
    let gpus = adapters();
    lines.extend(
        gpus.iter().map(|gpu| format!("gpu:      {}, {}", gpu.name.escape_debug(), gpu.backend)),
    );
    if gpus.is_empty() {
        lines.push("gpu:      none".to_owned());
    }
    lines.join("\n") + "\n"
}
