//! Flags of a chat; names are llama.cpp's.

use std::path::PathBuf;

use clap::Args;

/// Messages instead of a text to complete.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Chat")]
pub struct ChatArgs {
    /// Chat: -p, -f or what is typed are messages, in the model's chat format; short form -cnv [default: at a terminal,
    /// with a model that has a chat template and without -p, -f and --tokens]
    #[arg(long, conflicts_with_all = ["no_conversation", "tokens", "logits", "echo", "logprobs"])]
    pub conversation: bool,
    /// Chat, and tell the model this before the first message; short form -sys
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["system_prompt_file", "no_conversation", "tokens"])]
    pub system_prompt: Option<String>,
    /// The same from a file, taken as it stands; short form -sysf
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no_conversation", "tokens"])]
    pub system_prompt_file: Option<PathBuf>,
    /// Chat, and leave after the first answer; short form -st
    #[arg(long, conflicts_with_all = ["no_conversation", "tokens"])]
    pub single_turn: bool,
    /// Chat format: the name of one in the model file or of a well-known one (chatml, llama3, gemma, ...), or the text of
    /// a Jinja template [default: the model's own]
    #[arg(long, value_name = "NAME|TEXT", env = "LLAMA_ARG_CHAT_TEMPLATE")]
    #[arg(conflicts_with = "chat_template_file")]
    pub chat_template: Option<String>,
    /// File with a Jinja template
    #[arg(long, value_name = "FILE", env = "LLAMA_ARG_CHAT_TEMPLATE_FILE")]
    pub chat_template_file: Option<PathBuf>,
    /// Further variables of the template, as a JSON object: {"enable_thinking": false}
    #[arg(long, value_name = "JSON", env = "LLAMA_CHAT_TEMPLATE_KWARGS")]
    pub chat_template_kwargs: Option<String>,
}
