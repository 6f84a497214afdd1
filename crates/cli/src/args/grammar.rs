//! Flags of constrained output; names are llama.cpp's.

use std::path::PathBuf;

use clap::Args;

/// The form that answers must have: at most one of these.
#[derive(Args, Clone, Debug)]
#[group(id = "constraint", multiple = false)]
#[command(next_help_heading = "Constrained output")]
pub struct GrammarArgs {
    /// Allow only JSON valid under this schema; {} is any JSON object
    #[arg(short = 'j', long, value_name = "SCHEMA")]
    pub json_schema: Option<String>,
    /// Read the JSON schema from a file; short form -jf
    #[arg(long, value_name = "FILE")]
    pub json_schema_file: Option<PathBuf>,
    /// Allow only text of this grammar, in llama.cpp's notation (GBNF)
    #[arg(long, value_name = "GBNF", allow_hyphen_values = true)]
    pub grammar: Option<String>,
    /// Read the grammar from a file
    #[arg(long, value_name = "FILE")]
    pub grammar_file: Option<PathBuf>,
}

impl GrammarArgs {
    /// The grammar of --grammar; an empty one is none, as in requests.
    pub fn grammar(&self) -> Option<&str> {
        self.grammar.as_deref().filter(|text| !text.trim().is_empty())
    }

    /// Whether one was given.
    pub fn is_given(&self) -> bool {
        let texts = [self.json_schema.as_deref(), self.grammar()];
        let files = [&self.json_schema_file, &self.grammar_file];
        texts.iter().any(|text| text.is_some()) || files.iter().any(|file| file.is_some())
    }
}
