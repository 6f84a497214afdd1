//! `bilayer run -cnv`: a chat at a terminal or from a pipe.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bilayer_engine::constrain::Constraint;
use bilayer_engine::conversation::{Conversation, Role};
use bilayer_engine::generate::speculate::{Drafted, Drafts};
use bilayer_engine::generate::{Generation, Request, Statistics, Stop};
use bilayer_engine::session::Session;
use bilayer_engine::tools::{Reasoning, Reply, Tools};
use bilayer_engine::{Error, Model, chat_templates};
use bilayer_text::chat::reply::{self, Format, ReasoningFormat};
use bilayer_text::chat::{Template, Templates};

use super::{
    Answer, Question, constraint, drafting, introduce, prompt, report, settings, streamed, warn,
};
use crate::args::RunArgs;
use crate::failure::{Failure, INTERRUPTED};
use crate::{demo, escapes, interrupt, locate, output, terminal, trace};
use command::Command;
use lines::{Line, Lines};
use shown::Shown;

#[cfg(unix)]
mod ahead;
mod command;
mod lines;
mod message;
mod pace;
mod parts;
mod saved;
mod set;
mod shown;
mod tools;
mod wrap;

/// The forms of a noun that is counted.
const MESSAGES: [&str; 2] = ["message", "messages"];

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
    if chat.conversation || chat.single_turn || tells || chat.tools.is_some() {
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
    drafts: Option<Drafts>,
    conversation: Conversation,
    /// Of every answer.
    constraint: Option<Constraint>,
    tools: Tools,
    /// Whether answers may begin with it.
    may_reason: Reasoning,
    load: Duration,
    /// Number of answers begun; it varies the seed.
    begun: u64,
    /// Of the last answer, as far as it was folded.
    reasoning: String,
    last: Option<Last>,
}

/// Statistics of the last answer.
struct Last {
    statistics: Statistics,
    /// Tokens of its prompt that were in the KV cache.
    kept: usize,
}

/// How the chat continues.
enum Next {
    Listen,
    /// The answer was interrupted.
    Stopped,
    /// With another model.
    Switch(Box<(RunArgs, Model)>),
    Leave,
}

/// Why the chat with a model ended.
enum Ended {
    /// The user left; the exit code.
    Left(u8),
    /// Another model was chosen.
    Switch(Box<(RunArgs, Model)>),
}

/// Loads the model and chats.
pub fn execute(args: &RunArgs, wanted: Wanted, began: Instant) -> Result<u8, Failure> {
    if args.prompt_cache.prompt_cache.is_some() {
        output::note(
            "note: --prompt-cache has no effect in a chat; /save and /load keep a conversation",
        );
    }
    let mut first = first(args)?;
    let system = system(args)?;
    let model = opened(args)?;
    let templates = chat_templates(model.file().metadata()).map_err(Error::File)?;
    if wanted == Wanted::Offered
        && templates == Templates::default()
        && !args.chat.template.is_chosen()
    {
        return Err(Failure::usage(
            "no prompt; give -p TEXT, -f FILE or --tokens IDS, pipe it in, or chat with -cnv",
        ));
    }
    let mut chat = Chat::new(args.clone(), model, began)?;
    chat.conversation.set_system(system.unwrap_or_default());
    let mut lines = Lines::new(args)?;
    if lines.is_terminal() {
        output::note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D exits");
    }
    loop {
        match chat.run(&mut lines, first.take())? {
            Ended::Left(code) => {
                chat.farewell()?;
                return Ok(code);
            }
            Ended::Switch(to) => chat = chat.switched(*to, &lines)?,
        }
    }
}

/// Opens the model that the flags name.
fn opened(args: &RunArgs) -> Result<Model, Failure> {
    // The mapping of a file may stay until the process ends; its bytes in memory may not.
    demo::open(&demo::Source { runs: !args.model.no_mmap, ..args.model.source() })
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

/// The template named by the flags, or the model's own for a chat with these functions.
fn template(args: &RunArgs, templates: &Templates, tools: &Tools) -> Result<Template, Failure> {
    let asked = args.chat.template.chat_template.as_deref();
    let found = match &args.chat.template.chat_template_file {
        Some(path) => Template::new(&path.display().to_string(), &output::file(path)?),
        None if has_none(args, templates) => templates.find(Some("chatml")),
        None if tools.is_empty() => templates.find(asked),
        None => templates.find_with_tools(asked),
    };
    Ok(found.map_err(Error::Text)?)
}

/// Whether neither the flags nor the model have a template. ChatML is used then, as by `serve`.
fn has_none(args: &RunArgs, templates: &Templates) -> bool {
    !args.chat.template.is_chosen() && *templates == Templates::default()
}

/// The format of a template's answers, and whether they may have marks of reasoning.
fn format(template: &str) -> (Format, bool) {
    let format = Format::of(template);
    (format, format.may_think(template) || template.contains("<|channel|>"))
}

fn parser_options(format: &Format, prompt: &str, tools: &Tools) -> reply::Options {
    let thinking_is_open = format.opens_thinking(prompt);
    reply::Options { tools: tools.list().to_vec(), thinking_is_open, ..reply::Options::default() }
}

impl Chat {
    /// An empty chat with a model.
    fn new(args: RunArgs, model: Model, began: Instant) -> Result<Chat, Failure> {
        let templates = chat_templates(model.file().metadata()).map_err(Error::File)?;
        let tools = tools::given(&args)?;
        let template = template(&args, &templates, &tools)?;
        if has_none(&args, &templates) {
            output::warning(&format!(
                "{} has no chat template, so the chat uses ChatML, which it may not have learned; choose one with \
                 --chat-template",
                model.name()
            ));
        }
        let mut variables = args.chat.template.variables()?;
        args.chat.reasoning.add_to(&mut variables);
        let options = settings::sampling(&args.sampling, &model)?;
        let constraint = constraint::asked(&args, &model)?;
        let may_reason = tools::reasoning(&variables);
        let drafts = drafting::open(&args.draft, &args.model, &model, Drafted::ONE)?;
        let asked = settings::Asked { options: &options, prompt: 1, drafts: drafts.as_ref() };
        let mut session = settings::session(&args, &model, &asked)?;
        let conversation = Conversation::new(&mut session, template, variables)?;
        let conversation = conversation.with_tools(tools.given());
        let load = began.elapsed();
        introduce(&model, &mut session);
        output::note(&format!("chat template: {}", conversation.template().name()));
        let (begun, last, reasoning) = (0, None, String::new());
        Ok(Chat {
            args,
            model,
            session,
            drafts,
            conversation,
            constraint,
            tools,
            may_reason,
            load,
            begun,
            reasoning,
            last,
        })
    }

    /// The conversation with another model; with this one again if the other cannot be loaded.
    fn switched(self, (args, model): (RunArgs, Model), lines: &Lines) -> Result<Chat, Failure> {
        let Chat { args: own_args, model: own, conversation, begun, .. } = self;
        let messages = conversation.messages().to_vec();
        let made = Chat::new(args, model, Instant::now());
        let mut chat = match made {
            Err(failure @ Failure::Line(..)) if lines.is_terminal() => {
                output::failure(failure);
                Chat::new(own_args, own, Instant::now())?
            }
            made => made?,
        };
        chat.begun = begun;
        chat.conversation.replace(messages);
        Ok(chat)
    }

    /// Answers messages until the user exits or chooses another model.
    fn run(&mut self, lines: &mut Lines, first: Option<String>) -> Result<Ended, Failure> {
        let is_terminal = lines.is_terminal();
        let mut next = match first {
            Some(text) => self.guarded(lines, |chat| chat.ask(text))?,
            None => Next::Listen,
        };
        loop {
            // A second Ctrl-C, after one that stopped an answer or on an empty line, exits.
            let was_stopped = matches!(next, Next::Stopped);
            match next {
                Next::Leave => return Ok(Ended::Left(0)),
                Next::Switch(to) => return Ok(Ended::Switch(to)),
                Next::Listen | Next::Stopped => {}
            }
            if was_stopped && !is_terminal {
                return Ok(Ended::Left(INTERRUPTED));
            }
            if self.args.chat.single_turn && self.begun > 0 {
                return Ok(Ended::Left(if was_stopped { INTERRUPTED } else { 0 }));
            }
            next = match lines.next()? {
                Line::Text(text) => {
                    // From the moment that the line is entered, not only from the first token on.
                    interrupt::answering();
                    let next = self.guarded(lines, |chat| chat.take(&text));
                    match (next?, interrupt::answered()) {
                        (Next::Listen, true) => Next::Stopped,
                        (next, _) => next,
                    }
                }
                Line::Interrupted if was_stopped => return Ok(Ended::Left(INTERRUPTED)),
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
                output::failure(failure);
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
                let note = if text.is_empty() { "removed" } else { "set" };
                self.conversation.set_system(text);
                output::note(&format!("the system prompt is {note}"));
            }
            Command::Clear => {
                self.conversation.clear();
                output::note("the conversation is empty");
            }
            Command::Read(path) => return self.ask(prompt::without_end(output::file(&path)?)),
            Command::Show => self.show(),
            Command::Think if self.reasoning.is_empty() => {
                output::note("the last answer has no reasoning");
            }
            Command::Tool(text) => return self.result(text),
            Command::Think => output::note(&terminal::dimmed_note(self.reasoning.trim())),
            Command::Model(None) => {
                output::note(&report::opening(&self.model, &self.session));
                output::note("/model NAME continues with another; `bilayer models` lists them");
            }
            Command::Model(Some(name)) => return self.model(&name),
            Command::Undo => {
                if !self.conversation.undo() {
                    return Err(Failure::usage("there is no message to undo; type one"));
                }
                let left = ["message is left", "messages are left"];
                let left = output::counted(self.conversation.messages().len(), left);
                output::note(&format!("the last message is removed; {left}"));
            }
            Command::Regen => {
                if !self.conversation.take_answer() {
                    return Err(Failure::usage("there is no answer to regenerate; type a message"));
                }
                return self.answer();
            }
            Command::Save(path) => {
                saved::save(&path, &self.model, &self.conversation)?;
                let messages = output::counted(self.conversation.messages().len(), MESSAGES);
                output::note(&format!("{messages} written to {}", path.display()));
            }
            Command::Load(path) => {
                let messages = saved::load(&path)?;
                output::note(&output::counted(messages.len(), MESSAGES));
                self.conversation.replace(messages);
            }
            Command::Set(None) => output::note(&set::list(&self.args)),
            Command::Set(Some((name, value))) => {
                let changed = set::changed(&self.args, &name, &value)?;
                settings::sampling(&changed.sampling, &self.model)?;
                self.args = changed;
                let value = if value.is_empty() { "empty" } else { &value };
                output::note(&format!("{} is {value}", name.trim_start_matches('-')));
            }
            Command::Stats => self.statistics(),
            Command::Exit => return Ok(Next::Leave),
        }
        Ok(Next::Listen)
    }

    /// Opens another model to continue with.
    fn model(&self, name: &Path) -> Result<Next, Failure> {
        let mut args = self.args.clone();
        let path: PathBuf = locate::path(name, &args.model.hub)?;
        args.model.model = Some(path);
        let model = opened(&args)?;
        let templates = chat_templates(model.file().metadata()).map_err(Error::File)?;
        template(&args, &templates, &self.tools)?;
        Ok(Next::Switch(Box::new((args, model))))
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

    /// Gives the result of a function that the model called, and lets the model answer once it has all. After an error
    /// the result is removed.
    fn result(&mut self, text: String) -> Result<Next, Failure> {
        let before = self.conversation.messages().to_vec();
        if !self.conversation.give_result(text) {
            return Err(Failure::usage("the model awaits no function's result; type a message"));
        }
        if self.conversation.awaited().is_some() {
            self.await_result();
            return Ok(Next::Listen);
        }
        self.answer().inspect_err(|_| self.conversation.replace(before))
    }

    /// Says which function's result the model awaits, if it does.
    fn await_result(&self) {
        if let Some(function) = self.conversation.awaited() {
            output::note(&format!("/tool TEXT gives the result of {}", function.name));
        }
    }

    /// Lets the model answer.
    fn answer(&mut self) -> Result<Next, Failure> {
        let predict = settings::predict(&self.args).unwrap_or(usize::MAX);
        let left = self.conversation.make_room(&self.model, &self.session, predict)?;
        if left > 0 {
            output::note(&format!(
                "the context is full: the model does not see the {left} oldest messages; -c sets a larger one"
            ));
        }
        interrupt::answering();
        let answered = self.answer_interruptibly();
        interrupt::answered();
        let (answer, reply) = answered?;
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
        if answer.statistics.shifted > 0 {
            let times = answer.statistics.shifted;
            output::note(&format!("{}; -c sets a larger one", report::shifted(times)));
        }
        match reply.calls.is_empty() {
            true => self.conversation.say(Role::Assistant, answer.text),
            false => self.conversation.call(reply.content, reply.calls),
        }
        self.await_result();
        warn(&mut self.session);
        Ok(if is_stopped { Next::Stopped } else { Next::Listen })
    }

    fn answer_interruptibly(&mut self) -> Result<(Answer, Reply), Failure> {
        let Chat { args, model, session, drafts, conversation, constraint, .. } = self;
        let tools = &self.tools;
        let turn = conversation.turn(model, session)?;
        let opening = conversation.opening(model, &turn).unwrap_or_default();
        let shift = settings::chat_shift(&args.answer, &turn.tokens, opening);
        let mut options = settings::sampling(&args.sampling, model)?;
        options.seed = options.seed.wrapping_add(self.begun);
        let mut stops = settings::texts(args, &args.answer.stop)?;
        let own = conversation.template().stops(model.tokenizer());
        stops.extend(own.into_iter().filter(|_| !args.answer.ignore_eos));
        let breakers = settings::breakers(args, model)?;
        let end = turn.end.as_str();
        let source = conversation.template().source();
        let (format, marks) = format(source);
        let reasoning = if format.opens_thinking(end) { Reasoning::Open } else { self.may_reason };
        let constraint = match constraint {
            Some(constraint) => Some(constraint.clone()),
            None => {
                let made = tools.constraint(model, conversation.template(), reasoning);
                made.map_err(|error| Failure::from(error).at("--tools"))?
            }
        };
        if self.begun == 0 {
            let notes = constraint.iter().flat_map(Constraint::notes);
            notes.for_each(|note| output::note(&format!("--tools: left out: {note}")));
        }
        let splits = marks && args.chat.reasoning.splits().unwrap_or(terminal::columns().is_some());
        let shows_parts = splits || !tools.is_empty();
        let question =
            Question { prompt: turn.tokens.clone(), options, breakers, stops, constraint };
        let sampler = question.sampler(session)?;
        if args.verbose_prompt {
            report::prompt(model, &question.prompt);
        }
        let request = Request {
            predict: settings::predict(args),
            stops: question.stops.clone().into(),
            ignore_eos: args.answer.ignore_eos,
            // The marks of reasoning and calls may be control tokens.
            show_control: args.answer.special || marks || shows_parts,
            logprobs: args.logprobs,
            cancel: interrupt::handle().clone(),
            shift,
            ..Request::new(&question.prompt[turn.kept..])
        };
        let (sequence, new) = (conversation.sequence(), question.prompt.len() - turn.kept);
        let mut generation = Generation::new(model, session, sequence, sampler, request)?;
        if let Some(drafts) = drafts {
            generation = generation.with_drafter(drafts.drafter())?;
        }
        self.begun += 1;
        let reasoning = if splits { ReasoningFormat::Split } else { ReasoningFormat::Content };
        let seen = reply::Options { reasoning, ..parser_options(&format, end, tools) };
        let mut shown = Shown::new(shows_parts.then(|| format.parser(seen)));
        let answer = streamed(args, generation, new, &mut |piece| shown.push(piece))?;
        self.reasoning = shown.finish(answer.stop)?;
        self.last = Some(Last { statistics: answer.statistics.clone(), kept: turn.kept });
        let reply = Reply::of(tools.parser(source, end), &answer.text, Some(answer.stop));
        if args.json {
            let report = report::Report {
                model,
                session,
                load: self.load,
                is_speculative: drafts.is_some(),
            };
            let mut document = report.document(&question, &answer);
            document["reused_tokens"] = turn.kept.into();
            parts::add(&reply, &mut document);
            output::json(&document)?;
        }
        Ok((answer, reply))
    }

    fn statistics(&self) {
        let (held, context) =
            (self.session.len(self.conversation.sequence()), self.session.context());
        let messages = output::counted(self.conversation.messages().len(), MESSAGES);
        output::note(&format!("{messages}, {held} of {context} tokens of context"));
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
