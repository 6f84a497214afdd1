//! The names of sampling parameters in requests.

use bilayer_engine::sampling::Parameter;

/// Names in requests that are not those of the flags: llama-server's.
pub const API_NAMES: &[(&str, &str)] = &[
    ("temp", "temperature"),
    ("dynatemp-exp", "dynatemp_exponent"),
    ("typical", "typical_p"),
    ("mirostat-ent", "mirostat_tau"),
    ("mirostat-lr", "mirostat_eta"),
];

/// The name of a sampler's number in requests.
pub fn api_name(parameter: &Parameter) -> String {
    field_name(parameter.name)
}

/// The name in requests of what a flag sets.
pub fn field_name(flag: &str) -> String {
    let own = API_NAMES.iter().find(|(name, _)| *name == flag);
    own.map_or_else(|| flag.replace('-', "_"), |(_, name)| (*name).to_owned())
}
