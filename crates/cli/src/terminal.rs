//! The terminal's mode: its own, and that of a chat, which echoes nothing that is typed during an answer.

#[cfg(unix)]
use std::io::{self, IsTerminal};
#[cfg(unix)]
use std::sync::Mutex;

#[cfg(unix)]
use rustix::termios::{self, InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

#[cfg(unix)]
use crate::output;

/// What Ctrl-C is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtrlC {
    /// A signal.
    Signal,
    /// A character.
    #[cfg(unix)]
    Character,
}

/// The terminal's original mode, once it is saved.
#[cfg(unix)]
static OWN: Mutex<Option<Termios>> = Mutex::new(None);

/// Saves the terminal's mode, to be restored when the process ends.
pub fn keep() {
    #[cfg(unix)]
    if let (Ok(mode), Ok(mut own)) = (termios::tcgetattr(io::stdin()), OWN.lock()) {
        own.get_or_insert(mode);
    }
}

/// Delivers input byte by byte and without echo, if the mode is saved.
#[cfg(unix)]
pub fn silence(ctrl_c: CtrlC) {
    if let Ok(own) = OWN.lock()
        && let Some(mut mode) = own.clone()
    {
        mode.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::IEXTEN);
        mode.local_modes.set(LocalModes::ISIG, ctrl_c == CtrlC::Signal);
        mode.input_modes.remove(InputModes::ICRNL | InputModes::INLCR | InputModes::IXON);
        mode.special_codes[SpecialCodeIndex::VMIN] = 1;
        mode.special_codes[SpecialCodeIndex::VTIME] = 0;
        // A terminal that refuses only echoes.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &mode);
    }
}

/// Restores the saved mode.
pub fn restore() {
    #[cfg(unix)]
    if let Ok(own) = OWN.lock()
        && let Some(mode) = &*own
    {
        // A closed terminal needs nothing.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, mode);
        if io::stdout().is_terminal() {
            // Disables bracketed paste.
            let _ = output::text("\x1b[?2004l");
        }
    }
}

/// Whether [`keep`] has saved a mode.
pub fn is_kept() -> bool {
    #[cfg(unix)]
    return OWN.lock().is_ok_and(|own| own.is_some());
    #[cfg(not(unix))]
    return false;
}

/// Whether standard output is a terminal that moves its cursor; from others rustyline only reads lines.
#[cfg(unix)]
pub fn moves_cursor() -> bool {
    takes_codes(&io::stdout())
}

/// Whether a stream is a terminal that takes control codes.
#[cfg(unix)]
fn takes_codes(stream: &impl IsTerminal) -> bool {
    let plain = ["dumb", "cons25", "emacs"];
    let is_plain = |term: String| plain.iter().any(|plain| plain.eq_ignore_ascii_case(&term));
    stream.is_terminal() && !std::env::var("TERM").is_ok_and(is_plain)
}

/// A note for standard error, [`dimmed`] where that is a terminal that takes control codes.
pub fn dimmed_note(text: &str) -> String {
    #[cfg(unix)]
    if takes_codes(&io::stderr()) {
        return dimmed(text);
    }
    text.to_owned()
}

/// Text that is dimmed unless NO_COLOR is set.
pub fn dimmed(text: &str) -> String {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if is_plain { text.to_owned() } else { format!("\x1b[2m{text}\x1b[22m") }
}

/// The columns of the terminal of standard output; `None` if it is none or does not move its cursor.
pub fn columns() -> Option<usize> {
    #[cfg(unix)]
    if moves_cursor() {
        let size = termios::tcgetwinsize(io::stdout()).ok()?;
        return Some(usize::from(size.ws_col)).filter(|&columns| columns > 1);
    }
    None
}
