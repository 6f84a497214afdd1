//! Flags of a chat, named as llama.cpp's.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// Flags that no chat has.
const NOT_IN_A_CHAT: [&str; 4] = ["no_conversation", "tokens", "logits", "echo"];

/// Flags of a chat.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Chat")]
pub struct ChatArgs {
    /// Chat: -p, -f and typed lines are messages in the model's chat format; short form -cnv [default: at a terminal, if
    /// the model has a chat template and none of -p, -f and --tokens is given]
    #[arg(long, conflicts_with_all = NOT_IN_A_CHAT)]
    pub conversation: bool,
    /// System prompt; implies a chat; short form -sys
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(conflicts_with_all = NOT_IN_A_CHAT, conflicts_with = "system_prompt_file")]
    pub system_prompt: Option<String>,
    /// Read the system prompt from a file, unchanged; short form -sysf
    #[arg(long, value_name = "FILE", conflicts_with_all = NOT_IN_A_CHAT)]
    pub system_prompt_file: Option<PathBuf>,
    /// Exit after the first answer; implies a chat; short form -st
    #[arg(long, conflicts_with_all = NOT_IN_A_CHAT)]
    pub single_turn: bool,
    /// Functions that the model may call, from a file: a JSON list as `tools` of the OpenAI API; implies a chat
    #[arg(long, value_name = "FILE", conflicts_with_all = NOT_IN_A_CHAT)]
    pub tools: Option<PathBuf>,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub reasoning: ReasoningArgs,
}

/// Whether the model reasons, and where that goes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Chat")]
pub struct ReasoningArgs {
    /// Where reasoning goes: none leaves it in the answer, deepseek separates it, auto does so in `serve` and at a terminal
    #[arg(long, value_name = "FORMAT", default_value = "auto", env = "LLAMA_ARG_THINK")]
    #[arg(value_parser = ["none", "auto", "deepseek", "deepseek-legacy"])]
    pub reasoning_format: String,
    /// Whether the model reasons: on, off, or as its template decides; short form -rea
    #[arg(long, value_name = "WHEN", default_value = "auto", env = "LLAMA_ARG_REASONING")]
    #[arg(value_parser = ["on", "off", "auto"])]
    pub reasoning: String,
    /// 0 as --reasoning off; -1, the default, lets the model decide
    #[arg(long, value_name = "N", env = "LLAMA_ARG_THINK_BUDGET", allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=0))]
    pub reasoning_budget: Option<i64>,
}

impl ReasoningArgs {
    /// Whether any flag asks for something else than the default.
    pub fn is_chosen(&self) -> bool {
        let budget = self.reasoning_budget.unwrap_or(-1);
        !["none", "auto"].contains(&self.reasoning_format.as_str())
            || self.reasoning != "auto"
            || budget != -1
    }

    /// Whether reasoning is separated from the answer; `None` leaves it to the command.
    pub fn splits(&self) -> Option<bool> {
        match self.reasoning_format.as_str() {
            "none" => Some(false),
            "auto" => None,
            _ => Some(true),
        }
    }

    /// Adds the template's variable that turns reasoning on or off.
    pub fn add_to(&self, variables: &mut Map<String, Value>) {
        let is_on = match (self.reasoning.as_str(), self.reasoning_budget) {
            (_, Some(0)) | ("off", _) => false,
            ("on", _) => true,
            _ => return,
        };
        variables.insert("enable_thinking".to_owned(), is_on.into());
    }
}

/// The chat template and its variables.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Chat")]
pub struct TemplateArgs {
    /// Chat template: a name in the model file, a well-known name (chatml, llama3, gemma, ...) or the text of a Jinja
    /// template [default: the model's own]
    #[arg(long, value_name = "NAME|TEXT", env = "LLAMA_ARG_CHAT_TEMPLATE")]
    #[arg(conflicts_with = "chat_template_file")]
    pub chat_template: Option<String>,
    /// Read the chat template from a file
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_CHAT_TEMPLATE_FILE")]
    pub chat_template_file: Option<PathBuf>,
    /// Additional template variables as a JSON object: {"enable_thinking": false}
    #[arg(long, value_name = "JSON", env = "LLAMA_CHAT_TEMPLATE_KWARGS")]
    pub chat_template_kwargs: Option<String>,
}

impl TemplateArgs {
    /// Whether a template was chosen.
    pub fn is_chosen(&self) -> bool {
        self.chat_template.is_some() || self.chat_template_file.is_some()
    }

    /// The additional variables.
    ///
    /// # Errors
    /// They are not a JSON object.
    pub fn variables(&self) -> Result<Map<String, Value>, Failure> {
        let Some(text) = &self.chat_template_kwargs else { return Ok(Map::new()) };
        serde_json::from_str(text).map_err(|error| {
            let advice = "it must be a JSON object such as {\"enable_thinking\": false}";
            Failure::usage(format!("--chat-template-kwargs is `{text}`: {error}; {advice}"))
        })
    }
}
