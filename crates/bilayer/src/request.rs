//! What is asked of a model: a prompt, how long the answer may be, how its tokens are chosen.

use bilayer_engine::Error as Engine;
use bilayer_engine::constrain::{Constraint, Grammar, Limits, Token, Tokens};
use bilayer_engine::conversation::Message;
use bilayer_engine::generate::Shift;
use bilayer_engine::tools::Tools;

use crate::{Error, Sampling};

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
    pub(crate) grammar: Option<Grammar>,
    pub(crate) shift: Option<Shift>,
    pub(crate) ignore_eos: bool,
    pub(crate) show_control: bool,
    pub(crate) lora: Option<Vec<f32>>,
    pub(crate) tools: Tools,
    pub(crate) continues: bool,
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
            grammar: None,
            shift: None,
            ignore_eos: false,
            show_control: false,
            lora: None,
            tools: Tools::default(),
            continues: false,
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

    /// Functions that the model may call instead of, or beside, answering; the prompt must be messages. The chat template
    /// tells the model of them, and calls follow the schemas of their parameters. [`Answer::reply`](crate::Answer::reply)
    /// has the calls; append them and their results as messages, and ask again.
    ///
    /// ```
    /// use bilayer::{Message, Request, Tools};
    ///
    /// let tools = Tools::parse(r#"[{"type": "function", "function": {
    ///     "name": "weather",
    ///     "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}
    /// }}]"#)?;
    /// let request = Request::new([Message::user("How is the weather in Bern?")]).tools(tools);
    /// # Ok::<(), bilayer::ToolsError>(())
    /// ```
    #[must_use]
    pub fn tools(self, tools: Tools) -> Request {
        Request { tools, ..self }
    }

    /// Continues the last message, which must be the assistant's, instead of answering it: the prompt ends with its content,
    /// at the place where the chat template writes it after any `reasoning_content`, as in transformers and vLLM. The answer
    /// is what follows that content. The prompt must be messages.
    ///
    /// ```
    /// # let path = "crates/cli/assets/demo.gguf";
    /// # let mut model = bilayer::Model::builder(path).chat_template("chatml").open()?;
    /// use bilayer::{Message, Request};
    ///
    /// let messages = [Message::user("Where does Juliet live?"), Message::assistant("In fair")];
    /// let request = Request::new(messages).continue_final_message().max_tokens(8);
    /// let text = format!("In fair{}", model.chat(request)?.text()?);
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    #[must_use]
    pub fn continue_final_message(self) -> Request {
        Request { continues: true, ..self }
    }

    /// Always takes the most likely token.
    #[must_use]
    pub fn greedy(self) -> Request {
        let sampling = Sampling { temperature: 0.0, ..self.sampling };
        Request { sampling, ..self }
    }

    /// Allows only JSON that is valid under a JSON schema, given as JSON. An answer that is not cut short by
    /// [`max_tokens`](Request::max_tokens), a stop text or the context is complete.
    ///
    /// A schema that is invalid or uses a keyword that is not supported is an error of [`Model::generate`], which names
    /// the place.
    ///
    /// ```
    /// # let path = "crates/cli/assets/demo.gguf";
    /// # let mut model = bilayer::Model::open(path)?;
    /// use bilayer::Request;
    ///
    /// let schema = r#"{
    ///     "type": "object",
    ///     "properties": {
    ///         "name": { "enum": ["ROMEO", "JULIET"] },
    ///         "age": { "type": "integer", "minimum": 10, "maximum": 99 }
    ///     },
    ///     "required": ["name", "age"],
    ///     "additionalProperties": false
    /// }"#;
    /// let text = model.generate(Request::new("Who are you?\n").json_schema(schema))?.text()?;
    /// let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    /// assert!(value["age"].as_i64().is_some_and(|age| (10..=99).contains(&age)));
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    ///
    /// [`Model::generate`]: crate::Model::generate
    #[must_use]
    pub fn json_schema(self, schema: impl Into<String>) -> Request {
        self.constrained(Grammar::json_schema(schema))
    }

    /// Allows only JSON objects.
    #[must_use]
    pub fn json_object(self) -> Request {
        self.constrained(Grammar::json_object())
    }

    /// Allows only text that a grammar in llama.cpp's notation, GBNF, describes.
    #[must_use]
    pub fn grammar(self, gbnf: impl Into<String>) -> Request {
        self.constrained(Grammar::gbnf(gbnf))
    }

    /// Allows only text that a regular expression matches whole.
    #[must_use]
    pub fn regex(self, expression: impl Into<String>) -> Request {
        self.constrained(Grammar::regex(expression))
    }

    /// Allows only text that a grammar in llguidance's variant of Lark describes.
    #[must_use]
    pub fn lark(self, grammar: impl Into<String>) -> Request {
        self.constrained(Grammar::lark(grammar))
    }

    /// Checks the schema or grammar without a model. One that passes may still be too large for a model's vocabulary.
    ///
    /// # Errors
    /// As [`Model::generate`](crate::Model::generate), of the grammar.
    ///
    /// ```
    /// use bilayer::Request;
    ///
    /// assert!(Request::new("").grammar("root ::= [a-z]+").check_grammar().is_ok());
    /// assert!(Request::new("").grammar("root ::= (").check_grammar().is_err());
    /// ```
    pub fn check_grammar(&self) -> Result<(), Error> {
        let Some(grammar) = &self.grammar else { return Ok(()) };
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        let words = bytes.chunks(1).map(Token::Text).chain([Token::Control(b"</s>")]);
        let tokens = Tokens::new(words, &[bytes.len() as u32]).map_err(Engine::from)?;
        Constraint::new(&tokens, grammar, Limits::default()).map_err(Engine::from)?;
        Ok(())
    }

    /// Of several grammars the last one counts.
    fn constrained(self, grammar: Grammar) -> Request {
        Request { grammar: Some(grammar), ..self }
    }

    /// Goes on when the context is full: the first `keep` tokens stay, half of the others leave, and the rest is computed again
    /// at its new place. Without, the answer ends there. In a [`batch`](crate::Model::batch) it ends in either case.
    #[must_use]
    pub fn context_shift(self, keep: usize) -> Request {
        Request { shift: Some(Shift { keep, discard: None }), ..self }
    }

    /// Continues after the tokens with which a model ends its answer.
    #[must_use]
    pub fn ignore_eos(self) -> Request {
        Request { ignore_eos: true, ..self }
    }

    /// Writes control tokens such as `<|im_end|>` as text instead of leaving them out.
    #[must_use]
    pub fn show_control(self) -> Request {
        Request { show_control: true, ..self }
    }

    /// The strength of each adapter, in the order in which they were given to a builder with
    /// [`adapters_by_request`](crate::Builder::adapters_by_request); without, they are as they were given there.
    #[must_use]
    pub fn lora(self, strengths: impl Into<Vec<f32>>) -> Request {
        Request { lora: Some(strengths.into()), ..self }
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
