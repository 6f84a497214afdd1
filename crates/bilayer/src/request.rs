//! What is asked of a model: a prompt, how long the answer may be, how its tokens are chosen.

use bilayer_engine::conversation::Message;

use crate::Sampling;

/// What an answer continues.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Tokens as they are.
    Tokens(Vec<u32>),
    /// A conversation, rendered by the model's chat template.
    Messages(Vec<Message>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Prompt {
        Prompt::Tokens(tokens)
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Prompt {
        Prompt::Tokens(tokens.to_vec())
    }
}

impl From<Vec<Message>> for Prompt {
    fn from(messages: Vec<Message>) -> Prompt {
        Prompt::Messages(messages)
    }
}

impl From<&[Message]> for Prompt {
    fn from(messages: &[Message]) -> Prompt {
        Prompt::Messages(messages.to_vec())
    }
}

impl<const N: usize> From<[Message; N]> for Prompt {
    fn from(messages: [Message; N]) -> Prompt {
        Prompt::Messages(messages.into())
    }
}

/// A prompt with the bounds of its answer.
#[derive(Clone, Debug)]
pub struct Request {
    pub(crate) prompt: Prompt,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stops: Vec<String>,
    pub(crate) sampling: Sampling,
    pub(crate) logprobs: Option<usize>,
}

impl Request {
    /// Continues `prompt` until the model ends its answer or the context is full, with [`Sampling::default`].
    pub fn new(prompt: impl Into<Prompt>) -> Request {
        Request {
            prompt: prompt.into(),
            max_tokens: None,
            stops: Vec::new(),
            sampling: Sampling::default(),
            logprobs: None,
        }
    }

    /// Ends the answer after so many tokens.
    #[must_use]
    pub fn max_tokens(self, tokens: usize) -> Request {
        Request { max_tokens: Some(tokens), ..self }
    }

    /// Ends the answer before this text. May be called several times; the first text to appear counts.
    #[must_use]
    pub fn stop(mut self, text: impl Into<String>) -> Request {
        self.stops.push(text.into());
        self
    }

    /// How tokens are chosen.
    #[must_use]
    pub fn sampling(self, sampling: Sampling) -> Request {
        Request { sampling, ..self }
    }

    /// Always takes the most likely token.
    #[must_use]
    pub fn greedy(self) -> Request {
        let sampling = Sampling { temperature: 0.0, ..self.sampling };
        Request { sampling, ..self }
    }

    /// Reports the log-probabilities of each token and of the `top` most likely ones in its place
    /// ([`Token::logprobs`](crate::Token::logprobs)).
    #[must_use]
    pub fn logprobs(self, top: usize) -> Request {
        Request { logprobs: Some(top), ..self }
    }
}

impl<P: Into<Prompt>> From<P> for Request {
    fn from(prompt: P) -> Request {
        Request::new(prompt)
    }
}
