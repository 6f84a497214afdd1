//! Why functions cannot be called.

/// Functions as the OpenAI API lists them.
const FORM: &str =
    "[{\"type\": \"function\", \"function\": {\"name\": ..., \"parameters\": {...}}}]";

/// Why functions cannot be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolsError {
    /// The list is no JSON.
    #[error("{0}; give a JSON list: {FORM}")]
    Json(String),
    /// An entry is no function with a name.
    #[error("it is no list of functions with names; give {FORM}")]
    Form,
    /// Only a chat template tells a model of its functions.
    #[error("functions can be called in a conversation; the prompt is none")]
    NoConversation,
}
