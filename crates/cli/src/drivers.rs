//! Keeps drivers from writing to stderr.

/// Starts the program again with `XDG_RUNTIME_DIR` if it is missing, which Mesa's Wayland client reports on stderr at each
/// start. Only its name is needed: nothing is written there.
pub fn silence() {
    #[cfg(all(target_os = "linux", feature = "gpu"))]
    {
        let is_given = std::env::var_os(VARIABLE).is_some_and(|folder| !folder.is_empty());
        if !is_given {
            // It returns only if it fails, as under an emulator of another machine; the program then goes on with the
            // message.
            let _ = start_again();
        }
    }
}

/// The folder of a user's session.
#[cfg(all(target_os = "linux", feature = "gpu"))]
const VARIABLE: &str = "XDG_RUNTIME_DIR";

/// Replaces the process by the same program. The standard library's `exec` hands a file that cannot be executed here to
/// the shell, which would take the program for a script.
#[cfg(all(target_os = "linux", feature = "gpu"))]
fn start_again() -> std::io::Result<std::convert::Infallible> {
    use std::ffi::{CString, OsString};
    use std::os::unix::ffi::OsStringExt;

    let text = |text: OsString| CString::new(text.into_vec());
    let program = text(std::env::current_exe()?.into_os_string())?;
    let arguments = std::env::args_os().map(text).collect::<Result<Vec<_>, _>>()?;
    let others = std::env::vars_os().filter(|(name, _)| name != VARIABLE);
    let session = (OsString::from(VARIABLE), std::env::temp_dir().into_os_string());
    let variables = others
        .chain([session])
        .map(|(name, value)| text([name, "=".into(), value].into_iter().collect::<OsString>()));
    let variables = variables.collect::<Result<Vec<_>, _>>()?;
    Ok(nix::unistd::execve(&program, &arguments, &variables)?)
}
