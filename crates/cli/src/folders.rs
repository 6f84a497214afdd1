//! Where the user's files lie, by the environment.

use std::path::PathBuf;

/// A variable that is set and not empty.
pub fn given(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A folder below the user's own.
pub fn home(below: &str) -> Option<PathBuf> {
    given("HOME").or_else(|| given("USERPROFILE")).map(|home| home.join(below))
}

/// The folder of what the user leaves behind, such as the history of a chat: `BILAYER_STATE`, or what the system has for
/// that. `BILAYER_STATE=none` keeps nothing.
pub fn state() -> Option<PathBuf> {
    let usual = || {
        let mac = || cfg!(target_os = "macos").then(|| home("Library/Application Support"))?;
        let system = given("XDG_STATE_HOME").or_else(mac).or_else(|| given("LOCALAPPDATA"));
        system.or_else(|| home(".local/state")).map(|folder| folder.join("bilayer"))
    };
    given("BILAYER_STATE").or_else(usual).filter(|folder| folder.as_os_str() != "none")
}

/// The folder of files that are kept from run to run and can be made again: `BILAYER_CACHE`, or what the system has for
/// that. `BILAYER_CACHE=none` keeps none.
pub fn kept() -> Option<PathBuf> {
    let usual = || {
        let system = if cfg!(target_os = "macos") { home("Library/Caches") } else { None };
        let system = system.or_else(|| given("XDG_CACHE_HOME")).or_else(|| given("LOCALAPPDATA"));
        system.or_else(|| home(".cache")).map(|folder| folder.join("bilayer"))
    };
    given("BILAYER_CACHE").or_else(usual).filter(|folder| folder.as_os_str() != "none")
}
