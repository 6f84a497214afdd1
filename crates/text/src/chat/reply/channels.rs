//! Replies made of messages with headers that name a channel or recipient, as gpt-oss writes them.

use super::attempt::Attempt;
use super::calls::{Reader, framed_triggers};
use super::families::{Channels, Framed};
use super::framed::FramedReader;
use super::json::{Fed, JsonValue};
use super::markers::{Expect, Found, Search};
use super::scope::Begin;
use super::session::{End, ReasoningFormat, Session};

/// Ends a header.
const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
const START: &str = "<|start|>";

/// What a header may begin with; the prompt ends within the first one.
pub const HEADS: &[&str] =
    &[CHANNEL, "<|start|>assistant", " to=", "to=", "<|constrain|>", MESSAGE];

/// Limit on a header in bytes.
const HEADER_BYTES: usize = 512;

/// Where the text of a message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Content,
    Reasoning,
    /// Reasoning that stays in the content; its end is kept too.
    Kept,
    /// Content in which calls are markup.
    Markup,
}

#[derive(Debug)]
enum State {
    /// Before a header.
    Head(Expect),
    Header(Search, String),
    Body(Target, Search),
    /// Before the arguments of this function, after this header.
    Brace {
        name: String,
        header: String,
        expect: Expect,
    },
    Arguments(JsonValue),
    Markup(Box<Attempt>),
}

/// See [`Channels`].
#[derive(Debug)]
pub struct ChannelParser {
    channels: &'static Channels,
    /// Markers within a message, then those of markup.
    markers: Vec<&'static str>,
    state: State,
}

impl ChannelParser {
    /// A parser after a prompt that ends within a header.
    pub fn new(channels: &'static Channels) -> Self {
        let markers = channels.ends.iter().copied().chain([START, CHANNEL]);
        let markup = channels.markup.map(framed_triggers).unwrap_or_default();
        Self {
            channels,
            markers: markers.chain(markup).collect(),
            state: State::Head(Expect::default()),
        }
    }

    /// Feeds a character.
    pub fn feed(&mut self, c: char, session: &mut Session) {
        match &mut self.state {
            State::Head(expect) => match expect.push(c, HEADS) {
                Found::Partly => {}
                Found::Marker(at, rest) if HEADS[at] == MESSAGE => {
                    self.state = State::Body(Target::Content, Search::default());
                    self.read(&rest, session);
                }
                Found::Marker(at, rest) => {
                    self.state = State::Header(Search::default(), HEADS[at].to_owned());
                    self.read(&rest, session);
                }
                Found::Other(held) => {
                    self.state = State::Body(Target::Content, Search::default());
                    // A body takes this for the beginning of a header, which it is not.
                    let rest = held.strip_prefix(START);
                    if rest.is_some() {
                        session.out.content(START);
                    }
                    self.read(rest.unwrap_or(&held), session);
                }
            },
            State::Header(search, text) => {
                if search.push(c, &[MESSAGE], text).is_some() {
                    let header = std::mem::take(text);
                    self.headed(header, session);
                } else if text.len() > HEADER_BYTES {
                    let text = std::mem::take(text) + &search.take();
                    session.out.content(&text);
                    self.state = State::Body(Target::Content, Search::default());
                }
            }
            State::Body(..) => self.body(c, session),
            State::Brace { .. } => self.brace(c, session),
            State::Arguments(_) => self.arguments(c, session),
            State::Markup(attempt) => {
                let Some(ended) = attempt.feed(c, session) else { return };
                self.state = State::Body(Target::Content, Search::default());
                session.out.content(&ended.content);
                self.read(&ended.rest, session);
            }
        }
    }

    fn read(&mut self, text: &str, session: &mut Session) {
        text.chars().for_each(|c| self.feed(c, session));
    }

    /// After a header.
    fn headed(&mut self, header: String, session: &mut Session) {
        session.out.is_last = false;
        let channel = header.rsplit_once(CHANNEL).map_or("", |(_, channel)| channel);
        let channel = channel.split([' ', '<']).next().unwrap_or_default();
        let last = header.rsplit_once("to=").map_or("", |(_, to)| to);
        let to = last.split([' ', '<']).next().unwrap_or_default();
        let is_own = matches!(to, "" | "user" | "self" | "assistant" | "all");
        let mut target = Target::Content;
        if !is_own {
            let name = to.strip_prefix("functions.").unwrap_or(to);
            let is_known = session.seeks_calls() && session.scope().tool(name).is_some();
            match self.channels.markup {
                Some(_) if is_known => target = Target::Markup,
                None if is_known => {
                    let (name, expect) = (name.to_owned(), Expect::default());
                    self.state = State::Brace { name, header, expect };
                    return;
                }
                _ => session.out.content(&(header + MESSAGE)),
            }
        } else if channel == "analysis" || to == "self" {
            target = Target::Reasoning;
            if session.reasoning == ReasoningFormat::Content {
                session.out.content(&(header + MESSAGE));
                target = Target::Kept;
            }
        }
        self.state = State::Body(target, Search::default());
    }

    fn body(&mut self, c: char, session: &mut Session) {
        let State::Body(target, search) = &mut self.state else { return };
        let target = *target;
        let ends = self.channels.ends.len();
        let plain = ends + 2;
        let markers = match target {
            Target::Markup => &self.markers[..],
            _ => &self.markers[..plain],
        };
        let mut free = String::new();
        let found = search.push(c, markers, &mut free);
        match target {
            Target::Reasoning => session.out.reasoning(&free),
            // White space around markup belongs to it.
            Target::Markup if free.trim().is_empty() => {}
            _ => session.out.content(&free),
        }
        let Some(found) = found else { return };
        let marker = markers[found];
        if found >= plain {
            let Some(framed) = self.channels.markup else { return };
            self.state = State::Markup(Box::new(attempt(framed, marker, session)));
            return;
        }
        if target == Target::Kept && found < ends {
            session.out.content(marker);
        }
        self.state = State::Head(Expect::default());
        if found >= ends {
            self.read(marker, session);
        }
    }

    fn brace(&mut self, c: char, session: &mut Session) {
        let State::Brace { name, header, expect } = &mut self.state else { return };
        if expect.is_empty() && c.is_whitespace() {
            return;
        }
        if expect.is_empty() && c == '{' {
            session.scope().begin(name);
            self.state = State::Arguments(JsonValue::new());
            return self.arguments(c, session);
        }
        match expect.push(c, self.channels.ends) {
            Found::Partly => {}
            Found::Marker(_, rest) => {
                session.scope().begin(name);
                session.out.arguments("{}");
                session.scope().end();
                self.state = State::Head(Expect::default());
                self.read(&rest, session);
            }
            Found::Other(held) => {
                session.out.content(&(std::mem::take(header) + MESSAGE));
                self.state = State::Body(Target::Content, Search::default());
                self.read(&held, session);
            }
        }
    }

    fn arguments(&mut self, c: char, session: &mut Session) {
        let State::Arguments(value) = &mut self.state else { return };
        let mut text = String::new();
        let fed = value.write(c, &mut text);
        session.out.arguments(&text);
        if fed == Fed::More {
            return;
        }
        session.scope().end();
        self.state = State::Body(Target::Markup, Search::default());
        if fed != Fed::Last {
            self.state = State::Body(Target::Content, Search::default());
            self.feed(c, session);
        }
    }

    /// The markers behind which a call may follow in a message, or in the header of the next.
    fn call_markers(&self, target: Target) -> &[&'static str] {
        let ends = self.channels.ends.len();
        if target == Target::Markup { &self.markers[ends..] } else { &self.markers[ends..ends + 2] }
    }

    /// See [`Parser::ends_with_call`](super::Parser::ends_with_call).
    pub fn ends_with_call(&self, session: &Session) -> bool {
        match &self.state {
            State::Head(expect) => expect.is_empty() && session.out.ends_with_call(),
            State::Body(_, search) => search.is_empty() && session.out.ends_with_call(),
            State::Markup(attempt) => attempt.ends_with_call(session),
            State::Header(..) | State::Brace { .. } | State::Arguments(_) => false,
        }
    }

    /// Ends the reply.
    pub fn finish(&mut self, end: End, session: &mut Session) {
        let ended = State::Head(Expect::default());
        let state = std::mem::replace(&mut self.state, ended);
        let is_reasoning = matches!(state, State::Body(Target::Reasoning, _));
        let seeks = session.seeks_calls();
        let held = match state {
            State::Head(mut expect) => end.marker(expect.take(), if seeks { HEADS } else { &[] }),
            State::Header(mut search, text) => end.withheld(text + &search.take()),
            State::Body(target, mut search) => {
                end.marker(search.take(), if seeks { self.call_markers(target) } else { &[] })
            }
            State::Brace { header, mut expect, .. } => {
                end.withheld(header + MESSAGE + &expect.take())
            }
            State::Arguments(_) => String::new(),
            State::Markup(attempt) => attempt.finish(end, session),
        };
        match is_reasoning {
            true => session.out.reasoning(&held),
            false => session.out.content(&held),
        }
    }
}

fn attempt(framed: &'static Framed, marker: &str, session: &Session) -> Attempt {
    let is_section = framed.section.contains(&marker);
    let begin = if is_section { Begin::Section } else { Begin::Call };
    let reader = FramedReader::new(framed, begin);
    Attempt::new(Reader::Framed(reader), marker.to_owned(), session)
}
