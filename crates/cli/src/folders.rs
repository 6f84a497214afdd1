//! The user's folders, from the environment.

use std::path::PathBuf;

/// A variable that is set and not empty.
pub fn given(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A folder below the user's own.
pub fn home(below: &str) -> Option<PathBuf> {
    given("HOME").or_else(|| given("USERPROFILE")).map(|home| home.join(below))
}

/// The folder of user state, such as the chat history: `BILAYER_STATE`, or the system's default. `BILAYER_STATE=none`
/// stores nothing.
pub fn state() -> Option<PathBuf> {
    let usual = || {
        let mac = || cfg!(target_os = "macos").then(|| home("Library/Application Support"))?;
        let system = given("XDG_STATE_HOME").or_else(mac).or_else(|| given("LOCALAPPDATA"));
        system.or_else(|| home(".local/state")).map(|folder| folder.join("bilayer"))
    };
    given("BILAYER_STATE").or_else(usual).filter(|folder| folder.as_os_str() != "none")
}

/// The folder of cached files that can be recreated: `BILAYER_CACHE`, or the system's default. `BILAYER_CACHE=none`
/// stores none.
pub fn kept() -> Option<PathBuf> {
    let usual = || {
        let system = if cfg!(target_os = "macos") { home("Library/Caches") } else { None };
        let system = system.or_else(|| given("XDG_CACHE_HOME")).or_else(|| given("LOCALAPPDATA"));
        system.or_else(|| home(".cache")).map(|folder| folder.join("bilayer"))
    };
    given("BILAYER_CACHE").or_else(usual).filter(|folder| folder.as_os_str() != "none")
}
