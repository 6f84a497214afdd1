//! Splits an answer's text into content, reasoning and tool calls, in the format of the model's chat template.

use std::sync::atomic::{AtomicU64, Ordering};

use bilayer_engine::constrain::{Constraint, Grammar};
use bilayer_engine::generate::Stop;
use bilayer_engine::tools::{self, Reasoning};
use bilayer_text::chat::Prompt;
use bilayer_text::chat::reply::{
    CallRules, Delta, Format, Options, Parser, ReasoningFormat, Tool, ToolChoice, Trigger,
};
use serde_json::Value;

use crate::app::App;
use crate::constraints;
use crate::conversation;
use crate::error::ApiError;
use crate::fields::Body;
use crate::models::Loaded;

/// Calls are numbered over the whole process, so that ids are unique.
static CALLS: AtomicU64 = AtomicU64::new(1);

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// A function call begins.
    Call {
        /// Its id.
        id: String,
        /// The function.
        name: String,
    },
    /// More of a call's arguments, JSON text.
    Arguments {
        /// The number of the call.
        index: usize,
        /// The text.
        text: String,
    },
}

/// How answers to a request are split, and what calls they must make.
#[derive(Clone, Debug)]
pub struct Style {
    format: Format,
    options: Options,
    constraint: Option<CallConstraint>,
    shows_control: bool,
}

#[derive(Clone, Debug)]
struct CallConstraint {
    grammar: Grammar,
    /// Where the grammar begins, if not with the answer.
    trigger: Option<Trigger>,
    /// The field whose schema an answer follows that makes no call, if the grammar allows one.
    answer: Option<&'static str>,
}

impl CallConstraint {
    /// The calls that a request asks for, or lets the model make.
    ///
    /// # Errors
    /// Calls are required, and the format has no grammar for them.
    fn of(
        format: &Format,
        rules: Option<CallRules<'_>>,
        choice: Option<ToolChoice<'_>>,
    ) -> Result<Option<CallConstraint>, ApiError> {
        let grammar = rules.and_then(|rules| format.call_grammar(&rules));
        if grammar.is_none() && matches!(choice, Some(ToolChoice::Required | ToolChoice::Named(_)))
        {
            let problem = format!("cannot be forced in the format '{}'", format.name());
            return Err(ApiError::field("tool_choice", problem));
        }
        Ok(grammar.map(|grammar| CallConstraint {
            grammar: Grammar::lark(grammar.lark),
            trigger: grammar.trigger,
            answer: None,
        }))
    }

    /// Calls, or an answer that follows the schema of `field`.
    ///
    /// # Errors
    /// What `field` gives is no schema; the format has no marker that tells calls from an answer.
    fn or_answer(
        format: &Format,
        rules: &CallRules<'_>,
        field: &'static str,
        schema: &Grammar,
    ) -> Result<CallConstraint, ApiError> {
        let answer = schema.lark_expression().ok_or_else(|| {
            ApiError::field(field, "cannot be combined with tools; set tool_choice to none")
        })?;
        let grammar = format.call_or_answer_grammar(rules, &answer).ok_or_else(|| {
            let name = format.name();
            let problem = format!("cannot be combined with tools in the format '{name}'");
            ApiError::field(field, problem)
        })?;
        let grammar = Grammar::lark(grammar.lark);
        Ok(CallConstraint { grammar, trigger: None, answer: Some(field) })
    }
}

/// Whether a request lets the model reason.
fn may_think(app: &App, body: &Body) -> bool {
    let own = body.within("chat_template_kwargs", "enable_thinking").and_then(Value::as_bool);
    let by_effort = body.text("reasoning_effort").map(|effort| effort != "none");
    let default = app.config.template_variables.get("enable_thinking").and_then(Value::as_bool);
    own.or(by_effort).or(default).unwrap_or(true)
}

impl Style {
    /// The style that a request asks for; `prompt` is its rendered prompt.
    ///
    /// # Errors
    /// Its tools or its choice of tools are wrong, or cannot be combined with its grammar.
    pub fn of(app: &App, loaded: &Loaded, body: &Body, prompt: &Prompt) -> Result<Style, ApiError> {
        let template = loaded.template(conversation::tools(body))?;
        let source = template.source();
        let format = Format::of(source);
        let tools = conversation::functions(body)?;
        let choice = tool_choice(body, &tools)?;
        if tools.is_empty() && matches!(choice, Some(ToolChoice::Required)) {
            return Err(ApiError::field("tool_choice", "needs tools"));
        }
        let parallel = body.bool("parallel_tool_calls");
        let parallel =
            parallel.unwrap_or_else(|| tools.is_empty() || template.shows_parallel_calls());
        let thinking_is_open = format.opens_thinking(prompt.opening(&format));
        let splits = match body.text("reasoning_format") {
            Some(format) => format != "none",
            None => app.config.splits_reasoning,
        };
        let tokenizer = Some(loaded.model.tokenizer().as_ref());
        let rules = choice.filter(|_| !tools.is_empty()).map(|choice| CallRules {
            tools: &tools,
            choice,
            parallel,
            thinking_is_open,
            may_think: format.may_think(source) && may_think(app, body),
            tokenizer,
        });
        let constraint = match (rules, constraints::grammar(body)?) {
            (Some(rules), Some((field, schema))) if rules.choice == ToolChoice::Auto => {
                Some(CallConstraint::or_answer(&format, &rules, field, &schema)?)
            }
            (rules, _) => CallConstraint::of(&format, rules, choice)?,
        };
        let options = Options {
            tools: if choice.is_some() { tools } else { Vec::new() },
            reasoning: if splits { ReasoningFormat::Split } else { ReasoningFormat::Content },
            calls_max: (!parallel).then_some(1),
            thinking_is_open,
        };
        let marks = [format.thinking_tags().0, "<|channel|>"];
        let shows_control =
            !options.tools.is_empty() || marks.iter().any(|mark| source.contains(mark));
        Ok(Style { format, options, constraint, shows_control })
    }

    /// Whether control tokens must be visible in the text: markers of calls and reasoning may be such.
    pub fn shows_control(&self) -> bool {
        self.shows_control
    }

    /// What the answer must follow: what the body asks for, the calls that it must make, or either.
    ///
    /// # Errors
    /// The grammar or a schema of a tool cannot be compiled.
    pub fn constraint(&self, loaded: &Loaded, body: &Body) -> Result<Option<Constraint>, ApiError> {
        if let Some((calls, field)) =
            self.constraint.as_ref().and_then(|calls| Some((calls, calls.answer?)))
        {
            let compiled = match constraints::compile(loaded, field, &calls.grammar) {
                // The answer's schema alone can be followed: one of a tool is at fault.
                Err(_) if constraints::constraint(loaded, body).is_ok() => {
                    constraints::compile(loaded, "tools", &calls.grammar)
                }
                compiled => compiled,
            };
            return compiled.map(Some);
        }
        let asked = self.asked(loaded, body)?;
        let is_forced = self.constraint.as_ref().is_some_and(|calls| calls.trigger.is_none());
        match (&self.constraint, asked) {
            (Some(_), Some(_)) if is_forced => {
                Err(ApiError::field("tool_choice", "cannot be combined with a grammar or schema"))
            }
            (Some(calls), None) => {
                let compiled = constraints::compile(loaded, "tools", &calls.grammar)?;
                Ok(Some(match &calls.trigger {
                    Some(trigger) => {
                        let reasoning = match self.options.thinking_is_open {
                            true => Reasoning::Open,
                            false => Reasoning::Free,
                        };
                        tools::lazy(compiled, &self.format, trigger, reasoning)
                    }
                    None => compiled,
                }))
            }
            (_, asked) => Ok(asked.map(|constraint| match self.options.thinking_is_open {
                // Reasoning is free; the answer behind it is not.
                true => constraint.after(self.format.thinking_tags().1),
                false => constraint,
            })),
        }
    }

    /// What the body asks for. A schema is that of the answer alone in formats that write more around it.
    fn asked(&self, loaded: &Loaded, body: &Body) -> Result<Option<Constraint>, ApiError> {
        let Some((field, grammar)) = constraints::grammar(body)? else { return Ok(None) };
        let tokenizer = Some(loaded.model.tokenizer().as_ref());
        let whole = grammar
            .lark_expression()
            .and_then(|answer| self.format.answer_grammar(&answer, tokenizer))
            .map(Grammar::lark);
        constraints::compile(loaded, field, whole.as_ref().unwrap_or(&grammar)).map(Some)
    }

    /// A splitter for one answer.
    pub fn splitter(&self) -> Splitter {
        Splitter { parser: self.format.parser(self.options.clone()) }
    }
}

/// The request's choice of tools; `None` if none may be called.
fn tool_choice<'b>(body: &'b Body, tools: &[Tool]) -> Result<Option<ToolChoice<'b>>, ApiError> {
    let wrong = || ApiError::field("tool_choice", "must be none, auto, required or a function");
    let Some(choice) = body.get("tool_choice") else { return Ok(Some(ToolChoice::Auto)) };
    match choice.as_str() {
        Some("none") => return Ok(None),
        Some("auto") => return Ok(Some(ToolChoice::Auto)),
        Some("required" | "any") => return Ok(Some(ToolChoice::Required)),
        Some(_) => return Err(wrong()),
        None => {}
    }
    let name = choice.pointer("/function/name").or_else(|| choice.get("name"));
    let name = name.and_then(Value::as_str).ok_or_else(wrong)?;
    if tools.iter().any(|tool| tool.name == name) {
        return Ok(Some(ToolChoice::Named(name)));
    }
    let problem = format!("names '{name}', which is not one of the tools");
    Err(ApiError::field("tool_choice", problem))
}

/// Splits one answer.
#[derive(Debug)]
pub struct Splitter {
    parser: Parser,
}

impl Splitter {
    /// Adds text.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        pieces(self.parser.push(text))
    }

    /// Whether the answer so far ends with a complete call.
    pub fn ends_with_call(&self) -> bool {
        self.parser.ends_with_call()
    }

    /// Ends the answer. A call that a limit cut off is no content.
    pub fn end(&mut self, stop: Stop) -> Vec<Piece> {
        pieces(tools::end(&mut self.parser, Some(stop)))
    }
}

fn pieces(deltas: Vec<Delta>) -> Vec<Piece> {
    let piece = |delta| match delta {
        Delta::Content(text) => Piece::Content(text),
        Delta::Reasoning(text) => Piece::Reasoning(text),
        Delta::Call { name, .. } => {
            let number = CALLS.fetch_add(1, Ordering::Relaxed);
            let now = jiff::Timestamp::now().as_nanosecond() as u64;
            Piece::Call { id: format!("call_{now:016x}{number:08x}"), name }
        }
        Delta::Arguments { index, text } => Piece::Arguments { index, text },
    };
    let not_empty = |piece: &Piece| match piece {
        Piece::Content(text) | Piece::Reasoning(text) => !text.is_empty(),
        Piece::Call { .. } | Piece::Arguments { .. } => true,
    };
    deltas.into_iter().map(piece).filter(not_empty).collect()
}
