//! How fast keys come: pasted text comes at once, and its line breaks do not send it.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustyline::history::History;
use rustyline::{
    Cmd, ConditionalEventHandler, Editor, Event, EventContext, EventHandler, Helper, KeyCode,
    KeyEvent, Modifiers, RepeatCount,
};

use super::command;

/// Keys of a paste follow one another within this time.
const AT_ONCE: Duration = Duration::from_millis(3);

/// A line that has been edited for longer, and with more pauses than [`PAUSES_MAX`], was begun by typing.
const TYPED: Duration = Duration::from_millis(50);

/// Pauses that a busy machine alone may make between keys that came at once.
const PAUSES_MAX: usize = 1;

/// Watches the keys of an editor.
#[derive(Clone, Default)]
pub struct Pace(Arc<Mutex<Keys>>);

#[derive(Default)]
struct Keys {
    /// When editing of the line began, at its first key.
    begun: Option<Instant>,
    last: Option<Instant>,
    /// Keys that did not come at once with the one before.
    pauses: usize,
    /// Whether the last line was sent by a key that came at once with others.
    is_hasty: bool,
}

impl Pace {
    /// Binds the keys of an editor.
    pub fn watch<H: Helper, I: History>(&self, editor: &mut Editor<H, I>) {
        let handler = EventHandler::Conditional(Box::new(self.clone()));
        editor.bind_sequence(Event::Any, handler);
    }

    /// A line begins.
    pub fn begin(&self) {
        if let Ok(mut keys) = self.0.lock() {
            *keys = Keys::default();
        }
    }

    /// Whether more than the last line may have come with it.
    #[cfg(unix)]
    pub fn is_hasty(&self) -> bool {
        self.0.lock().is_ok_and(|keys| keys.is_hasty)
    }
}

impl ConditionalEventHandler for Pace {
    fn handle(
        &self,
        event: &Event,
        _: RepeatCount,
        _: bool,
        context: &EventContext<'_>,
    ) -> Option<Cmd> {
        let now = Instant::now();
        let mut keys = self.0.lock().ok()?;
        let since = keys.last.replace(now).map(|last| now - last);
        let is_at_once = since.is_some_and(|since| since < AT_ONCE);
        keys.pauses += usize::from(since.is_some() && !is_at_once);
        let begun = *keys.begun.get_or_insert(now);
        let key = event.get(0)?;
        let is_enter = [KeyEvent(KeyCode::Enter, Modifiers::NONE), KeyEvent::ctrl('J')];
        match key {
            KeyEvent(KeyCode::Enter, Modifiers::ALT) => return Some(Cmd::Newline),
            key if !is_enter.contains(key) => return None,
            _ => {}
        }
        keys.is_hasty = is_at_once;
        let line = context.line();
        // A command is one line, however fast Enter follows on its completion.
        let is_typed = now - begun > TYPED && keys.pauses > PAUSES_MAX && !line.is_empty();
        (is_at_once && is_typed && !command::is_command(line)).then_some(Cmd::Newline)
    }
}
