//! `bilayer run -cnv`: a chat at a terminal or from a pipe.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use bilayer_engine::constrain::Constraint;
use bilayer_engine::conversation::{Conversation, Role};
use bilayer_engine::generate::{Generation, Request, Statistics, Stop};
use bilayer_engine::session::Session;
use bilayer_engine::{Error, Model, chat_templates};
use bilayer_text::chat::{Template, Templates};

use super::drafting::DraftSource;
use super::{Answer, Question, constraint, introduce, prompt, report, settings, streamed, warn};
use crate::args::RunArgs;
use crate::failure::{Failure, INTERRUPTED};
use crate::interrupt;
use crate::{demo, escapes, output, trace};
use command::Command;
use lines::{Line, Lines};

mod command;
mod lines;
mod message;
mod saved;
mod set;

/// Why `run` chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A flag asks for it.
    Asked,
    /// The program runs at a terminal without a prompt.
    Offered,
}

/// Whether to chat.
///
/// llama.cpp also treats `-p` as a message if the model has a chat template. We do not, so that a command means the
/// same with any model, at a terminal and in a script.
pub fn wanted(args: &RunArgs) -> Option<Wanted> {
    let chat = &args.chat;
    let tells = chat.system_prompt.is_some() || chat.system_prompt_file.is_some();
    if chat.conversation || chat.single_turn || tells {
        return Some(Wanted::Asked);
    }
    let is_given = args.prompt.is_some() || args.file.is_some() || !args.tokens.is_empty();
    let is_plain = args.answer.no_conversation || args.logits.is_some() || args.echo || args.json;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let is_offered = !is_given && !is_plain && is_terminal && args.model.model.is_some();
    is_offered.then_some(Wanted::Offered)
}

/// Whether a user who asked for a completion may have wanted a chat.
pub fn may_be_meant(args: &RunArgs, model: &Model) -> Result<bool, Failure> {
    let templates = chat_templates(model.file().metadata()).map_err(Error::File)?;
    let is_meant = args.answer.no_conversation || !args.tokens.is_empty();
    Ok(templates.own.is_some() && !is_meant)
}

/// The state of a chat.
struct Chat {
    /// The flags, with the changes made by `/set`.
    args: RunArgs,
    model: Model,
    session: Session,
    draft_source: Option<DraftSource>,
    conversation: Conversation,
    /// Of every answer.
    constraint: Option<Constraint>,
    load: Duration,
    /// Number of answers begun; it varies the seed.
    begun: u64,
    last: Option<Last>,
}

/// Statistics of the last answer.
struct Last {
    statistics: Statistics,
    /// Tokens of its prompt that were in the KV cache.
    kept: usize,
}

/// How the chat continues.
#[derive(PartialEq, Eq)]
enum Next {
    Listen,
    /// The answer was interrupted.
    Stopped,
    Leave,
}

/// Loads the model and chats.
pub fn execute(args: &RunArgs, wanted: Wanted, began: Instant) -> Result<u8, Failure> {
    let first = first(args)?;
    let system = system(args)?;
    let model = demo::open(&demo::Source { runs: true, ..args.model.source() })?;
    if args.model.mlock {
        model.file().lock().map_err(Error::File)?;
    }
    let templates = chat_templates(model.file().metadata()).map_err(Error::File)?;
    if wanted == Wanted::Offered
        && templates == Templates::default()
        && !args.chat.template.is_chosen()
    {
        return Err(Failure::usage(
            "no prompt; give -p TEXT, -f FILE or --tokens IDS, pipe it in, or chat with -cnv",
        ));
    }
    let template = template(args, &templates)?;
    let variables = args.chat.template.variables()?;
    let options = settings::sampling(&args.sampling, &model)?;
    let constraint = constraint::asked(args, &model)?;
    let draft_source = DraftSource::open(&args.draft, &args.model, &model, 1)?;
    let asked =
        settings::Asked { options: &options, prompt: 1, draft_source: draft_source.as_ref() };
    let mut session = settings::session(args, &model, &asked)?;
    let mut conversation = Conversation::new(&mut session, template, variables)?;
    conversation.set_system(system.unwrap_or_default());
    let load = began.elapsed();
    introduce(&model, &mut session);
    output::note(&format!("chat template: {}", conversation.template().name()));
    let (args, last) = (args.clone(), None);
    let mut chat =
        Chat { args, model, session, draft_source, conversation, constraint, load, begun: 0, last };
    let code = chat.run(first)?;
    chat.farewell()?;
    Ok(code)
}

/// The first message, from -p or -f.
fn first(args: &RunArgs) -> Result<Option<String>, Failure> {
    match (&args.prompt, &args.file) {
        (Some(text), _) if args.answer.no_escape => Ok(Some(text.clone())),
        (Some(text), _) => escapes::resolve(text).map(Some),
        (None, Some(path)) => output::file(path).map(prompt::without_end).map(Some),
        (None, None) => Ok(None),
    }
}

/// The system prompt.
fn system(args: &RunArgs) -> Result<Option<String>, Failure> {
    match (&args.chat.system_prompt, &args.chat.system_prompt_file) {
        (Some(text), _) if args.answer.no_escape => Ok(Some(text.clone())),
        (Some(text), _) => escapes::resolve(text).map(Some),
        (None, Some(path)) => output::file(path).map(Some),
        (None, None) => Ok(None),
    }
}

/// The template named by the flags, or the model's own.
fn template(args: &RunArgs, templates: &Templates) -> Result<Template, Failure> {
    let found = match &args.chat.template.chat_template_file {
        Some(path) => Template::new(&path.display().to_string(), &output::file(path)?),
        None => templates.find(args.chat.template.chat_template.as_deref()),
    };
    Ok(found.map_err(Error::Text)?)
}

impl Chat {
    /// Answers messages until the user exits. Returns the exit code.
    fn run(&mut self, first: Option<String>) -> Result<u8, Failure> {
        let mut lines = Lines::new(&self.args)?;
        let is_terminal = lines.is_terminal();
        if is_terminal {
            output::note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D exits");
        }
        let mut next = match first {
            Some(text) => self.guarded(&lines, |chat| chat.ask(text))?,
            None => Next::Listen,
        };
        loop {
            // A second Ctrl-C, after one that stopped an answer or on an empty line, exits.
            let was_stopped = next == Next::Stopped;
            if next == Next::Leave {
                return Ok(0);
            }
            if was_stopped && !is_terminal {
                return Ok(INTERRUPTED);
            }
            if self.args.chat.single_turn && self.begun > 0 {
                return Ok(if was_stopped { INTERRUPTED } else { 0 });
            }
            next = match lines.next()? {
                Line::Text(text) => self.guarded(&lines, |chat| chat.take(&text))?,
                Line::Interrupted if was_stopped => return Ok(INTERRUPTED),
                Line::Interrupted => {
                    output::note("Ctrl-C again, Ctrl-D or /exit exits");
                    Next::Stopped
                }
                Line::End => Next::Leave,
            };
        }
    }

    /// At a terminal an error is printed and the chat continues; in a script it ends the chat.
    fn guarded(
        &mut self,
        lines: &Lines,
        act: impl FnOnce(&mut Chat) -> Result<Next, Failure>,
    ) -> Result<Next, Failure> {
        match act(self) {
            Err(failure @ Failure::Line(..)) if lines.is_terminal() => {
                failure.report();
                Ok(Next::Listen)
            }
            done => done,
        }
    }

    /// Handles a typed line.
    fn take(&mut self, text: &str) -> Result<Next, Failure> {
        if text.trim().is_empty() {
            return Ok(Next::Listen);
        }
        if !text.starts_with('/') {
            // A space before a `/` makes it a message.
            let text = if text.starts_with(" /") { &text[1..] } else { text };
            return self.ask(text.to_owned());
        }
        match command::parse(text)? {
            Command::Help => output::note(&command::help()),
            Command::System(None) => match self.conversation.system() {
                Some(system) => output::note(system),
                None => output::note("no system prompt; /system TEXT sets one"),
            },
            Command::System(Some(text)) => {
                self.conversation.set_system(text);
                output::note("the system prompt is set");
            }
            Command::Clear => {
                self.conversation.clear();
                output::note("the conversation is empty");
            }
            Command::Read(path) => return self.ask(prompt::without_end(output::file(&path)?)),
            Command::Show => self.show(),
            Command::Undo => {
                if !self.conversation.undo() {
                    return Err(Failure::usage("there is no message to undo; type one"));
                }
            }
            Command::Regen => {
                if !self.conversation.take_answer() {
                    return Err(Failure::usage("there is no answer to regenerate; type a message"));
                }
                return self.answer();
            }
            Command::Save(path) => {
                saved::save(&path, &self.model, &self.conversation)?;
                let count = self.conversation.messages().len();
                output::note(&format!("{count} messages written to {}", path.display()));
            }
            Command::Load(path) => {
                let messages = saved::load(&path)?;
                output::note(&format!("{} messages", messages.len()));
                self.conversation.replace(messages);
            }
            Command::Set(None) => output::note(&set::list(&self.args)),
            Command::Set(Some((name, value))) => {
                let changed = set::changed(&self.args, &name, &value)?;
                settings::sampling(&changed.sampling, &self.model)?;
                self.args = changed;
                output::note(&format!("{} is {value}", name.trim_start_matches('-')));
            }
            Command::Stats => self.statistics(),
            Command::Exit => return Ok(Next::Leave),
        }
        Ok(Next::Listen)
    }

    /// Prints the model, where it runs, and the form of the chat.
    fn show(&self) {
        output::note(&report::opening(&self.model, &self.session));
        output::note(&report::placement(&self.session));
        output::note(&format!("chat template: {}", self.conversation.template().name()));
        output::note(&format!("context: {} tokens", self.session.context()));
        output::note(&format!("system prompt: {}", self.conversation.system().unwrap_or("none")));
    }

    /// Sends a message and lets the model answer. After an error the message is removed.
    fn ask(&mut self, text: String) -> Result<Next, Failure> {
        self.conversation.say(Role::User, text);
        self.answer().inspect_err(|_| {
            self.conversation.undo();
        })
    }

    /// Lets the model answer.
    fn answer(&mut self) -> Result<Next, Failure> {
        interrupt::answering();
        let answered = self.answer_interruptibly();
        interrupt::answered();
        let answer = answered?;
        let is_stopped = answer.stop == Stop::Interrupted;
        if !self.args.json {
            output::text("\n")?;
        }
        if io::stderr().is_terminal() && !self.args.no_perf {
            output::note(&report::rate(&answer.statistics));
        }
        if answer.stop == Stop::Context {
            output::note("the context is full; /undo or /clear frees some, -c sets a larger one");
        }
        self.conversation.say(Role::Assistant, answer.text);
        warn(&mut self.session);
        if let Some(mut session) = self.draft_source.as_ref().and_then(DraftSource::session) {
            warn(&mut session);
        }
        Ok(if is_stopped { Next::Stopped } else { Next::Listen })
    }

    fn answer_interruptibly(&mut self) -> Result<Answer, Failure> {
        let Chat { args, model, session, draft_source, conversation, constraint, .. } = self;
        let turn = conversation.turn(model, session)?;
        let mut options = settings::sampling(&args.sampling, model)?;
        options.seed = options.seed.wrapping_add(self.begun);
        let mut stops = settings::texts(args, &args.answer.stop)?;
        stops.extend(conversation.template().stops(model.tokenizer()));
        let breakers = settings::breakers(args, model)?;
        let constraint = constraint.clone();
        let question = Question { prompt: turn.tokens, options, breakers, stops, constraint };
        let sampler = question.sampler(session)?;
        let request = Request {
            predict: settings::predict(args),
            stops: question.stops.clone(),
            ignore_eos: args.answer.ignore_eos,
            show_control: args.answer.special,
            cancel: interrupt::handle().clone(),
            ..Request::new(&question.prompt[turn.kept..])
        };
        let sequence = conversation.sequence();
        let new = question.prompt.len() - turn.kept;
        let mut generation = Generation::new(model, session, sequence, sampler, request)?;
        if let Some(draft_source) = draft_source {
            generation = generation.with_drafter(draft_source.drafter())?;
        }
        self.begun += 1;
        let answer = streamed(args, generation, new)?;
        self.last = Some(Last { statistics: answer.statistics.clone(), kept: turn.kept });
        if args.json {
            let report = report::Report {
                model,
                session,
                load: self.load,
                is_speculative: draft_source.is_some(),
            };
            let mut document = report.document(&question, &answer);
            document["reused_tokens"] = turn.kept.into();
            output::json(&document)?;
        }
        Ok(answer)
    }

    fn statistics(&self) {
        let (held, context) =
            (self.session.len(self.conversation.sequence()), self.session.context());
        let messages = self.conversation.messages().len();
        output::note(&format!("{messages} messages, {held} of {context} tokens of context"));
        if let Some(last) = &self.last {
            output::note(&format!("last answer: {} prompt tokens from the cache", last.kept));
            output::note(&report::statistics(&last.statistics));
        }
    }

    /// Prints the closing lines of every run.
    fn farewell(&mut self) -> Result<(), Failure> {
        output::note(&report::placement(&self.session));
        if let Some(last) = &self.last {
            output::note(&report::statistics(&last.statistics));
        }
        let trace: Option<&Path> = self.args.trace.as_deref();
        trace.map_or(Ok(()), |path| trace::write(&self.session, path))
    }
}
