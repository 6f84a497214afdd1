//! What `bilayer version` prints: version, commit, features and devices.

use bilayer_cpu::level::Level;
use bilayer_engine::placement::adapters;

/// The commit of the sources, if it was known at build time.
pub const COMMIT: &str = match option_env!("BILAYER_BUILD_COMMIT") {
    Some(commit) => commit,
    None => "unknown",
};

/// The number of commits up to it; 0 if unknown, as in llama-bench.
pub fn build_number() -> u64 {
    option_env!("BILAYER_BUILD_NUMBER").and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The lines.
pub fn text() -> String {
    let features: Vec<&str> = [("gpu", cfg!(feature = "gpu")), ("hub", cfg!(feature = "hub"))]
        .into_iter()
        .filter_map(|(name, is_on)| is_on.then_some(name))
        .collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let mut lines = vec![
        format!("bilayer {} ({COMMIT}, build {})", env!("CARGO_PKG_VERSION"), build_number()),
        format!("target:   {}-{}", std::env::consts::ARCH, std::env::consts::OS),
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
