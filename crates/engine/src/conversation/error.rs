//! Why a text is not a list of messages.

use bilayer_text::chat::openai::{Fault, Problem};

/// Why a text is not a list of messages.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessagesError {
    /// The text is not valid JSON.
    #[error("messages: {0}; give a JSON list of objects with role and content")]
    Json(String),
    /// The list has no message.
    #[error("messages must not be empty")]
    Empty,
    /// A field is missing or of another form.
    #[error("{place} {problem}")]
    Field {
        /// The field, such as `messages[1].tool_calls[0].function.name`.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
    /// There is no answer to continue.
    #[error("continue_final_message needs a last message of the assistant")]
    NoAnswer,
    /// Only a conversation has a last message.
    #[error("continue_final_message is for conversations; the prompt is none")]
    NoConversation,
}

impl From<Fault> for MessagesError {
    fn from(fault: Fault) -> MessagesError {
        match fault.problem {
            Problem::Empty => MessagesError::Empty,
            problem => MessagesError::Field { place: fault.path, problem: problem.to_string() },
        }
    }
}
