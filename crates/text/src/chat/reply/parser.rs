//! The streaming parser of replies.

use super::attempt::Attempt;
use super::calls;
use super::channels::ChannelParser;
use super::families::{Family, Syntax, Thinking};
use super::markers::Search;
use super::out::{Delta, Out, Tool};
use super::session::{End, ReasoningFormat, Session};

/// Limit on white space that is withheld because a marker may follow.
const SPACE_BYTES: usize = 256;

/// Options of a [`Parser`].
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The functions that may be called; without any, nothing is a call.
    pub tools: Vec<Tool>,
    /// What happens to reasoning.
    pub reasoning: ReasoningFormat,
    /// Limit on the number of calls, None for no limit. Text of calls beyond it stays content.
    pub calls_max: Option<usize>,
    /// Whether the prompt ends within a block of reasoning; see
    /// [`Format::opens_thinking`](super::Format::opens_thinking).
    pub thinking_is_open: bool,
}

/// Takes a reply apart while it is written.
///
/// The output does not depend on how the text is split. Time is linear in the text. Markers never appear in the
/// output, and white space next to them is dropped; a call that is malformed before its arguments begin is content,
/// unchanged.
#[derive(Debug)]
pub struct Parser {
    form: Form,
    session: Session,
}

#[derive(Debug)]
enum Form {
    Plain(Box<PlainParser>),
    Channels(Box<ChannelParser>),
}

impl Parser {
    pub(super) fn new(family: &'static Family, thinking: Thinking, options: Options) -> Self {
        let session = Session {
            tools: options.tools,
            reasoning: options.reasoning,
            calls_max: options.calls_max.unwrap_or(usize::MAX),
            out: Out::default(),
        };
        let form = match &family.calls {
            Syntax::Channels(channels) => Form::Channels(Box::new(ChannelParser::new(channels))),
            _ => {
                let state = if options.thinking_is_open { State::Thinking } else { State::Content };
                Form::Plain(Box::new(PlainParser::new(family, thinking, &session, state)))
            }
        };
        Self { form, session }
    }

    /// Feeds text; returns what it decided.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        for c in text.chars() {
            match &mut self.form {
                Form::Plain(parser) => parser.feed(c, &mut self.session),
                Form::Channels(parser) => parser.feed(c, &mut self.session),
            }
        }
        self.session.out.take()
    }

    /// Whether the reply so far ends with a complete call: behind its arguments came nothing but its end and white space.
    pub fn ends_with_call(&self) -> bool {
        match &self.form {
            Form::Plain(parser) => parser.ends_with_call(&self.session),
            Form::Channels(parser) => parser.ends_with_call(&self.session),
        }
    }

    /// Ends the reply; returns what was withheld. An incomplete call stays incomplete.
    pub fn finish(&mut self) -> Vec<Delta> {
        self.end(End::Complete)
    }

    /// Ends a reply that was cut off, as by a limit of its length; returns what was withheld unless it is the beginning
    /// of a call, of a marker before calls, or of a header.
    pub fn cut(&mut self) -> Vec<Delta> {
        self.end(End::Cut)
    }

    fn end(&mut self, end: End) -> Vec<Delta> {
        match &mut self.form {
            Form::Plain(parser) => parser.finish(end, &mut self.session),
            Form::Channels(parser) => parser.finish(end, &mut self.session),
        }
        self.session.out.take()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Call(usize),
    Drop,
    Open,
    Close,
}

#[derive(Debug)]
enum State {
    Content,
    Thinking,
    Calls(Box<Attempt>),
}

/// Replies without channels: reasoning in tags, then text and calls.
#[derive(Debug)]
struct PlainParser {
    family: &'static Family,
    thinking: Thinking,
    /// The character of a call without a marker.
    bare: Option<char>,
    markers: Vec<&'static str>,
    actions: Vec<Action>,
    state: State,
    search: Search,
    space: String,
    /// Whether nothing but markers came before, so that reasoning or a call may begin.
    is_fresh: bool,
    /// Whether white space follows a marker and is dropped.
    trims: bool,
}

impl PlainParser {
    fn new(family: &'static Family, thinking: Thinking, session: &Session, state: State) -> Self {
        let thinks = matches!(state, State::Thinking);
        let seeks = session.seeks_calls();
        let triggers = if seeks { calls::triggers(&family.calls) } else { Vec::new() };
        let calls = triggers.into_iter().zip((0..).map(Action::Call));
        let wrappers = family.wrappers.iter().map(|&wrapper| (wrapper, Action::Drop));
        let tags = [(thinking.open, Action::Open), (thinking.close, Action::Close)];
        let (markers, actions) = calls.chain(wrappers).chain(tags).unzip();
        let bare = calls::bare(&family.calls).filter(|_| seeks);
        let mut parser = Self {
            family,
            thinking,
            bare: bare.and_then(|bare| bare.chars().next()),
            markers,
            actions,
            state,
            search: Search::default(),
            space: String::new(),
            is_fresh: true,
            trims: thinks && session.reasoning == ReasoningFormat::Split,
        };
        if let Syntax::Framed(framed) = &family.calls
            && framed.is_begun
        {
            parser.try_calls(None, String::new(), session);
        }
        parser
    }

    fn feed(&mut self, c: char, session: &mut Session) {
        match &mut self.state {
            State::Content => self.content(c, session),
            State::Thinking => self.think(c, session),
            State::Calls(attempt) => {
                let Some(ended) = attempt.feed(c, session) else { return };
                self.state = State::Content;
                if ended.called {
                    (self.is_fresh, self.trims) = (true, true);
                }
                if !ended.content.is_empty() {
                    self.plain(&ended.content, session);
                }
                // At most as long as a marker or an argument's markup.
                ended.rest.chars().for_each(|c| self.feed(c, session));
            }
        }
    }

    fn try_calls(&mut self, trigger: Option<usize>, raw: String, session: &Session) {
        if let Some(reader) = calls::reader(&self.family.calls, trigger) {
            self.state = State::Calls(Box::new(Attempt::new(reader, raw, session)));
        }
    }

    fn content(&mut self, c: char, session: &mut Session) {
        let mut free = String::new();
        let found = self.search.push(c, &self.markers, &mut free);
        for c in free.chars() {
            self.character(c, session);
        }
        let Some(found) = found else { return };
        let marker = self.markers[found];
        if !matches!(self.state, State::Content) {
            // The character before the marker began a call.
            return marker.chars().for_each(|c| self.feed(c, session));
        }
        let splits = session.reasoning == ReasoningFormat::Split;
        match self.actions[found] {
            Action::Call(trigger) if session.seeks_calls() => {
                let space =
                    if self.trims { String::new() } else { std::mem::take(&mut self.space) };
                self.space.clear();
                self.try_calls(Some(trigger), space + marker, session);
            }
            Action::Drop => {
                self.space.clear();
                self.trims = true;
            }
            Action::Open if self.is_fresh && splits => {
                self.space.clear();
                (self.state, self.trims) = (State::Thinking, true);
            }
            Action::Open if self.is_fresh => {
                self.state = State::Thinking;
                self.flush_space(session);
                session.out.content(marker);
            }
            // A block of reasoning that was never opened and is empty.
            Action::Close if self.is_fresh && splits => {
                self.space.clear();
                self.trims = true;
            }
            _ => self.plain(marker, session),
        }
    }

    /// A character of no marker: content, or a call without one.
    fn character(&mut self, c: char, session: &mut Session) {
        if let State::Calls(_) | State::Thinking = self.state {
            return self.feed(c, session);
        }
        if self.is_fresh && self.bare == Some(c) && session.seeks_calls() {
            let space = if self.trims { String::new() } else { std::mem::take(&mut self.space) };
            self.space.clear();
            self.try_calls(None, space, session);
            return self.feed(c, session);
        }
        self.plain_character(c, session);
    }

    fn plain(&mut self, text: &str, session: &mut Session) {
        text.chars().for_each(|c| self.plain_character(c, session));
    }

    fn plain_character(&mut self, c: char, session: &mut Session) {
        if c.is_whitespace() {
            self.space.push(c);
            if self.space.len() > SPACE_BYTES {
                self.flush_space(session);
            }
            return;
        }
        self.flush_space(session);
        self.is_fresh = false;
        session.out.content(c.encode_utf8(&mut [0; 4]));
    }

    fn flush_space(&mut self, session: &mut Session) {
        if !self.trims {
            session.out.content(&self.space);
        }
        self.trims &= self.space.len() > SPACE_BYTES;
        self.space.clear();
    }

    fn think(&mut self, c: char, session: &mut Session) {
        let splits = session.reasoning == ReasoningFormat::Split;
        let markers = [self.thinking.close, self.thinking.open];
        let mut free = String::new();
        let found = self.search.push(c, &markers, &mut free);
        if !splits {
            session.out.content(&free);
            if let Some(found) = found {
                session.out.content(markers[found]);
                if found == 0 {
                    self.state = State::Content;
                }
            }
            return;
        }
        self.reasoning(&free, session);
        match found {
            Some(0) => {
                self.space.clear();
                (self.state, self.is_fresh, self.trims) = (State::Content, true, true);
            }
            // Some models repeat the tag that the prompt ends with.
            Some(_) if !self.trims => self.reasoning(self.thinking.open, session),
            _ => {}
        }
    }

    fn reasoning(&mut self, text: &str, session: &mut Session) {
        for c in text.chars() {
            if c.is_whitespace() {
                self.space.push(c);
                if self.space.len() <= SPACE_BYTES {
                    continue;
                }
            }
            if !self.trims {
                session.out.reasoning(&self.space);
            }
            self.space.clear();
            if !c.is_whitespace() {
                self.trims = false;
                session.out.reasoning(c.encode_utf8(&mut [0; 4]));
            }
        }
    }

    /// The markers that begin a call here.
    fn call_markers(&self, session: &Session) -> Vec<&'static str> {
        let all = self.markers.iter().zip(&self.actions).filter(|_| session.seeks_calls());
        let calls = all.filter(|(_, action)| matches!(action, Action::Call(_)));
        calls.map(|(&marker, _)| marker).collect()
    }

    fn ends_with_call(&self, session: &Session) -> bool {
        match &self.state {
            State::Content => self.search.is_empty() && session.out.ends_with_call(),
            State::Thinking => false,
            State::Calls(attempt) => attempt.ends_with_call(session),
        }
    }

    fn finish(&mut self, end: End, session: &mut Session) {
        let held = self.search.take();
        match std::mem::replace(&mut self.state, State::Content) {
            State::Content => {
                let held = end.marker(held, &self.call_markers(session));
                self.plain(&held, session);
                self.flush_space(session);
            }
            State::Thinking if session.reasoning == ReasoningFormat::Content => {
                session.out.content(&held);
            }
            State::Thinking => {
                self.reasoning(&held, session);
                if !self.trims {
                    session.out.reasoning(&self.space);
                }
            }
            State::Calls(attempt) => {
                let content = attempt.finish(end, session);
                self.plain(&content, session);
                self.flush_space(session);
            }
        }
    }
}
