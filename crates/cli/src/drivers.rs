//! Keeps drivers from writing to stderr.

/// Starts the program again with `XDG_RUNTIME_DIR` if it is missing, which Mesa's Wayland client reports on stderr at each
/// start. Only its name is needed: nothing is written there.
pub fn silence() {
    #[cfg(all(target_os = "linux", feature = "gpu"))]
    {
        use std::os::unix::process::CommandExt;
        const VARIABLE: &str = "XDG_RUNTIME_DIR";
        let is_given = std::env::var_os(VARIABLE).is_some_and(|folder| !folder.is_empty());
        if let (false, Ok(program)) = (is_given, std::env::current_exe()) {
            let mut arguments = std::env::args_os();
            let mut again = std::process::Command::new(program);
            again.arg0(arguments.next().unwrap_or_default()).args(arguments);
            // It returns only if it fails, and the program then goes on with the message.
            let _ = again.env(VARIABLE, std::env::temp_dir()).exec();
        }
    }
}
