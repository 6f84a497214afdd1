//! Input that comes faster than anyone types: text pasted without brackets, and what was typed during an answer.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{command, message};

/// Fewer bytes may be one key: arrows and function keys are up to seven. The line editor reads those.
const BURST_BYTES: u64 = 8;

/// The rest of a burst has come after this time.
const SETTLED: Duration = Duration::from_millis(3);

/// The next part of a long paste has come after this time.
const QUIET: Duration = Duration::from_millis(30);

/// What has come.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrived {
    /// A key, which the line editor reads.
    Key,
    /// A whole message or command.
    Line(String),
    /// The beginning of a message, to be edited.
    Begun(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D.
    End,
}

/// When input came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// Before it was waited for.
    Before,
    /// While it was waited for.
    Now,
}

/// What has come and was not taken yet.
#[derive(Debug, Default)]
pub struct Ahead(VecDeque<Arrived>);

impl Ahead {
    /// Waits for input.
    ///
    /// # Errors
    /// The terminal cannot be read.
    pub fn next(&mut self) -> io::Result<Arrived> {
        loop {
            if let Some(arrived) = self.0.pop_front() {
                return Ok(arrived);
            }
            let came = if waiting()? > 0 { Came::Before } else { Came::Now };
            if came == Came::Now {
                wait(None)?;
                std::thread::sleep(SETTLED);
            }
            let count = waiting()?;
            if count == 0 || came == Came::Now && count < BURST_BYTES {
                return Ok(Arrived::Key);
            }
            self.add(Burst::of(&String::from_utf8_lossy(&read()?)), came);
        }
    }

    /// Takes a burst apart. Typed ahead, each line is a message; pasted, all lines are one.
    fn add(&mut self, burst: Burst, came: Came) {
        let Burst { text, is_bracketed, ends } = burst;
        if ends == Some(Arrived::Interrupted) {
            self.0.push_back(Arrived::Interrupted);
            return;
        }
        let first = text.lines().next().unwrap_or_default();
        let is_command = command::is_command(first);
        if is_bracketed && came == Came::Now {
            self.0.extend((!text.is_empty()).then_some(Arrived::Begun(text)));
        } else if came == Came::Before || is_command {
            self.0.extend(lines(&text));
        } else if !text.is_empty() {
            let whole = text.strip_suffix('\n').filter(|whole| message::is_complete(whole));
            let whole = whole.map(|whole| Arrived::Line(whole.to_owned()));
            self.0.push_back(whole.unwrap_or(Arrived::Begun(text)));
        }
        let is_open = matches!(self.0.back(), Some(Arrived::Begun(_)));
        self.0.extend(ends.filter(|_| !is_open));
    }
}

/// The messages of a text, and what is left of an incomplete one.
fn lines(text: &str) -> Vec<Arrived> {
    let (mut found, mut message) = (Vec::new(), String::new());
    for line in text.split_inclusive('\n') {
        message += line;
        if let Some(whole) = message.strip_suffix('\n').filter(|whole| message::is_complete(whole))
        {
            found.push(Arrived::Line(whole.to_owned()));
            message.clear();
        }
    }
    found.extend((!message.is_empty()).then_some(Arrived::Begun(message)));
    found
}

/// The keys of a burst.
#[derive(Debug, Default, PartialEq, Eq)]
struct Burst {
    text: String,
    /// Whether the terminal marked it as pasted.
    is_bracketed: bool,
    /// Ctrl-C, or Ctrl-D.
    ends: Option<Arrived>,
}

impl Burst {
    fn of(bytes: &str) -> Burst {
        let mut burst = Burst::default();
        let mut keys = bytes.chars().peekable();
        while let Some(key) = keys.next() {
            match key {
                '\r' | '\n' => {
                    keys.next_if(|&next| key == '\r' && next == '\n');
                    burst.text.push('\n');
                }
                '\x7f' | '\x08' if !burst.text.ends_with('\n') => {
                    burst.text.pop();
                }
                // Ctrl-U removes the line.
                '\x15' => {
                    burst.text.truncate(burst.text.rfind('\n').map_or(0, |end| end + 1));
                }
                '\x03' => burst = Burst { ends: Some(Arrived::Interrupted), ..Burst::default() },
                '\x04' if burst.text.is_empty() || burst.text.ends_with('\n') => {
                    burst.ends = Some(Arrived::End);
                }
                '\x1b' => burst.escape(&mut keys),
                '\t' => burst.text.push(key),
                key if key.is_control() => {}
                key => burst.text.push(key),
            }
        }
        burst
    }

    /// Reads an escape sequence: the mark of a paste, Alt-Enter, or a key without meaning here.
    fn escape(&mut self, keys: &mut std::iter::Peekable<std::str::Chars<'_>>) {
        match keys.next() {
            Some('[') => {
                let mut sequence = String::new();
                for key in keys.by_ref().take(16) {
                    sequence.push(key);
                    if ('@'..='~').contains(&key) {
                        break;
                    }
                }
                self.is_bracketed |= sequence == "200~";
            }
            // A line break that does not send.
            Some('\r' | '\n') => self.text.push_str("\\\n"),
            Some('O') => {
                keys.next();
            }
            _ => {}
        }
    }
}

/// Bytes of input that can be read.
fn waiting() -> io::Result<u64> {
    Ok(rustix::io::ioctl_fionread(io::stdin())?)
}

/// Waits for input for some time, or until it comes. Whether it came.
fn wait(most: Option<Duration>) -> io::Result<bool> {
    let most = most.map(|most| Timespec {
        tv_sec: most.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: most.subsec_nanos().into(),
    });
    let stdin = io::stdin();
    loop {
        match poll(&mut [PollFd::new(&stdin, PollFlags::IN)], most.as_ref()) {
            // A signal, such as a change of the window's size.
            Err(rustix::io::Errno::INTR) => {}
            found => return Ok(found? > 0),
        }
    }
}

/// All bytes until none come for a while.
fn read() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut part = [0; 4096];
    while wait(Some(QUIET))? {
        match rustix::io::read(io::stdin(), &mut part)? {
            0 => break,
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_messages() {
        let line = |text: &str| Arrived::Line(text.into());
        let begun = |text: &str| Arrived::Begun(text.into());
        let (early, now) = (Came::Before, Came::Now);
        let cases = [
            ("one\rtwo\r", now, vec![line("one\ntwo")]),
            ("one\r\ntwo", now, vec![begun("one\ntwo")]),
            ("one\rtwo\rth", early, vec![line("one"), line("two"), begun("th")]),
            ("one\\\rtwo\r", early, vec![line("one\\\ntwo")]),
            ("one\\\r", now, vec![begun("one\\\n")]),
            ("\"\"\"\rone\r\rtwo\r\"\"\"\r", early, vec![line("\"\"\"\none\n\ntwo\n\"\"\"")]),
            ("/stats\r/exit\r", now, vec![line("/stats"), line("/exit")]),
            ("/usr/bin is\ra folder\r", now, vec![line("/usr/bin is\na folder")]),
            ("\x1b[200~one\rtwo\r\x1b[201~", now, vec![begun("one\ntwo\n")]),
            ("on\x7fne\x15two\x1b[A\x1bOP\r", early, vec![line("two")]),
            ("one\x1b\rtwo\r", early, vec![line("one\\\ntwo")]),
            ("one\r\x04", early, vec![line("one"), Arrived::End]),
            ("one\x03", now, vec![Arrived::Interrupted]),
            ("\tif é {\r\t}", now, vec![begun("\tif é {\n\t}")]),
            ("\x1b[A\x1b[A\x1b[A", now, vec![]),
        ];
        for (bytes, came, expected) in cases {
            let mut ahead = Ahead::default();
            ahead.add(Burst::of(bytes), came);
            assert_eq!(Vec::from(ahead.0), expected, "{bytes:?}");
        }
    }
}
