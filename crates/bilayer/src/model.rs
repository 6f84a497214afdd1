//! A model on its devices, and all that can be asked of it.

use bilayer_engine::constrain::Constraint;
use bilayer_engine::conversation::{Conversation, MessagesError, Turn};
use bilayer_engine::encode::{Encoder, Excess, Norm};
use bilayer_engine::generate::speculate::Drafter;
use bilayer_engine::generate::{self, Generation};
use bilayer_engine::sampling::{BREAKERS, Sampler};
use bilayer_engine::session::{SequenceId, Session, Warning};
use bilayer_engine::tools::{Parser, Tools, ToolsError};
use bilayer_engine::{Cancel, Encode, Error as Engine, Model as Opened, chat_templates};
use bilayer_scheduler::Plan;

use crate::{Answer, Batch, Error, Message, Prompt, Request, Tokenizer};

/// A model on its devices.
///
/// What it holds is freed when it is dropped. A handle may move to another thread; one answer is made at a time, or several
/// by [`Model::batch`].
pub struct Model {
    pub(crate) model: Opened,
    pub(crate) running: Running,
    drafter: Option<Box<dyn Drafter>>,
    chat_template: Option<String>,
    cancel: Cancel,
    /// What an encoder does with long texts.
    pub(crate) excess: Excess,
    /// How embeddings are scaled.
    pub(crate) norm: Norm,
}

pub(crate) enum Running {
    /// A decoder, with the sequence of its answers.
    Decoder(Box<Session>, Option<SequenceId>),
    Encoder(Box<Encoder>),
}

/// A prompt in a sequence: what is left of it to be run, and the texts that end an answer in its format.
struct Begun {
    sequence: SequenceId,
    tokens: Vec<u32>,
    form: Form,
}

/// What the chat template of a conversation says of its answer.
#[derive(Default)]
struct Form {
    stops: Vec<String>,
    parser: Option<Parser>,
    /// The form of calls.
    calls: Option<Constraint>,
}

impl Form {
    fn of(model: &Opened, chat: &Conversation, tools: &Tools, turn: &Turn) -> Result<Form, Error> {
        let (template, source) = (chat.template(), chat.template().source());
        Ok(Form {
            stops: template.stops(model.tokenizer()),
            parser: Some(tools.parser(source, &turn.end)),
            calls: tools.constraint(model, template, Tools::reasoning(source, &turn.end))?,
        })
    }
}

impl Model {
    pub(crate) fn new(
        model: Opened,
        session: Session,
        drafter: Option<Box<dyn Drafter>>,
        (chat_template, cancel): (Option<String>, Cancel),
    ) -> Result<Model, Error> {
        let mut norm = Norm::None;
        let running = match model.config().encoder {
            Some(_) => {
                let mut encoder = Encoder::over(session)?;
                encoder.set_cancel(&cancel);
                norm = encoder.norm();
                Running::Encoder(Box::new(encoder))
            }
            None => Running::Decoder(Box::new(session), None),
        };
        Ok(Model { model, running, drafter, chat_template, cancel, excess: Excess::Refuse, norm })
    }

    /// Continues a prompt. The tokens are computed as the iterator is asked for them.
    ///
    /// # Errors
    /// The model is an encoder; the prompt is empty or does not fit the context; an option is out of range; a schema or
    /// grammar is invalid.
    pub fn generate(&mut self, request: impl Into<Request>) -> Result<Answer<'_>, Error> {
        let request = request.into();
        let begun = self.begin(&request)?;
        let cancel = self.cancel.clone();
        // Taken apart, since an answer holds both the session and the drafter.
        let Model { model, running: Running::Decoder(session, _), drafter, .. } = self else {
            return Err(Engine::NoDecoder { name: self.model.name() }.into());
        };
        let Form { stops, parser, calls } = begun.form;
        let sampler = sampler(model, session, &request, calls)?;
        let prompt_tokens = session.len(begun.sequence) + begun.tokens.len();
        let request = asked(request, begun.tokens, stops, cancel);
        let generation = Generation::new(model, session, begun.sequence, sampler, request)?;
        let generation = match drafter {
            Some(drafter) => generation.with_drafter(drafter.as_mut())?,
            None => generation,
        };
        Ok(Answer::new(generation, prompt_tokens, parser))
    }

    /// Answers a conversation, given whole: a list of [`Message`]s, or a [`Request`] with one. Of what the KV cache holds of it
    /// from the last call only the new part is computed.
    ///
    /// # Errors
    /// As [`Model::generate`]; the model has no chat template, or the template refuses the messages; the last one cannot be
    /// continued.
    ///
    /// ```
    /// # let path = "crates/cli/assets/demo.gguf";
    /// # let mut model = bilayer::Model::builder(path).chat_template("chatml").open()?;
    /// use bilayer::{Message, Request};
    ///
    /// let request = Request::new([Message::user("Hello!")]).max_tokens(8);
    /// let answer = model.chat(request)?.text()?;
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn chat(&mut self, messages: impl Into<Request>) -> Result<Answer<'_>, Error> {
        self.generate(messages)
    }

    /// Answers several requests at once, as many as [`Builder::parallel`](crate::Builder::parallel) allows in the same steps, the others as those end.
    /// A batch makes no use of drafts.
    ///
    /// # Errors
    /// As [`Model::generate`], of any of the requests.
    ///
    /// ```
    /// # let path = "crates/cli/assets/demo.gguf";
    /// use bilayer::{Model, Request};
    ///
    /// let mut model = Model::builder(path).parallel(2).context(128).open()?;
    /// let requests = ["ROMEO:\n", "JULIET:\n"].map(|prompt| Request::new(prompt).max_tokens(8));
    /// let mut texts = [String::new(), String::new()];
    /// for item in model.batch(requests)? {
    ///     let (number, token) = item?;
    ///     texts[number] += &token.text;
    /// }
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn batch(
        &mut self,
        requests: impl IntoIterator<Item = impl Into<Request>>,
    ) -> Result<Batch<'_>, Error> {
        let template = self.chat_template.clone();
        let cancel = self.cancel.clone();
        let (model, session, own) = self.decoder()?;
        own.take().into_iter().for_each(|sequence| session.close(sequence));
        let mut prepared = Vec::new();
        for request in requests {
            let request: Request = request.into();
            let (tokens, form) = match &request.prompt {
                Prompt::Messages(messages) => {
                    let sequence = session.open()?;
                    let chat =
                        conversation(model, sequence, template.as_deref(), messages, &request);
                    let turn = chat.and_then(|chat| {
                        let turn = chat.turn(model, session)?;
                        let form = Form::of(model, &chat, &request.tools, &turn)?;
                        Ok((turn.tokens, form))
                    });
                    session.close(sequence);
                    turn?
                }
                prompt => (tokens(model, prompt, &request)?, Form::default()),
            };
            let sampler = sampler(model, session, &request, form.calls)?;
            prepared.push((asked(request, tokens, form.stops, cancel.clone()), sampler));
        }
        let mut batch = generate::Batch::new(model, session);
        for (request, sampler) in prepared {
            batch.push(request, sampler)?;
        }
        Ok(Batch::new(batch))
    }

    /// The logits after every token of a prompt, `[tokens, vocab]` f32: unnormalized log-probabilities of the next token.
    /// Each takes 4 bytes.
    ///
    /// # Errors
    /// As [`Model::generate`]; [`Cancel`] ended it.
    pub fn logits(&mut self, prompt: impl Into<Prompt>) -> Result<Logits, Error> {
        let cancel = self.cancel.clone();
        let begun = self.begin(&Request::new(prompt))?;
        let (_, session, own) = self.decoder()?;
        let mut tokens = session.tokens(begun.sequence).to_vec();
        tokens.extend(begun.tokens);
        own.take().into_iter().for_each(|sequence| session.close(sequence));
        let vocab = session.vocab();
        let mut data = generate::room_for_logits(session, tokens.len())?;
        generate::logits::<Engine>(session, &tokens, &mut |rows| {
            data.extend_from_slice(rows);
            if cancel.is_cancelled() { Err(Engine::Interrupted) } else { Ok(true) }
        })?;
        Ok(Logits { tokens, vocab, data })
    }

    /// The tokens of a text, those that the model wants around it included.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn tokens(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.model.prompt_tokens(text)?)
    }

    /// The tokens of a text, with or without those that the model wants around it, and with control tokens that are written
    /// in the text parsed or taken as text.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    ///
    /// ```
    /// use bilayer::{Encode, Model};
    ///
    /// # let path = "crates/cli/assets/demo.gguf";
    /// let model = Model::open(path)?;
    /// let plain = model.tokens_as("ROMEO", Encode::default())?;
    /// let with_bos = model.tokens_as("ROMEO", Encode { add_special: true, ..Encode::default() })?;
    /// assert_eq!(with_bos[1..], plain);
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn tokens_as(&self, text: &str, encode: Encode) -> Result<Vec<u32>, Error> {
        Ok(self.model.tokenizer().encode(text, encode).map_err(Engine::Text)?)
    }

    /// The tokenizer, for threads that convert text while the model works.
    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::new(&self.model)
    }

    /// The bytes of a token, a leading space included, not always whole characters; the spelling of a control token. `None`
    /// if the vocabulary has no such token.
    pub fn piece(&self, token: u32) -> Option<&[u8]> {
        self.model.tokenizer().piece(token)
    }

    /// Whether a token is a control token, which is no text.
    pub fn is_control(&self, token: u32) -> bool {
        self.model.tokenizer().is_control(token)
    }

    /// Number of tokens in the vocabulary.
    pub fn vocab(&self) -> usize {
        self.model.config().vocab
    }

    /// The token that begins a text, if the model has one.
    pub fn bos(&self) -> Option<u32> {
        self.model.tokenizer().bos()
    }

    /// The token that ends a text, if the model has one.
    pub fn eos(&self) -> Option<u32> {
        self.model.tokenizer().eos()
    }

    /// Elements of an embedding or of a hidden state.
    pub fn width(&self) -> usize {
        let config = self.model.config();
        config
            .encoder
            .as_ref()
            .and_then(|encoder| encoder.dense.last().copied())
            .unwrap_or(config.width)
    }

    /// Whether the model generates text; an encoder computes embeddings or scores.
    pub fn generates(&self) -> bool {
        matches!(self.running, Running::Decoder(..))
    }

    /// The text of some tokens, control tokens left out.
    pub fn text(&self, tokens: &[u32]) -> String {
        self.model.tokenizer().decode(tokens)
    }

    /// The file's metadata as text, by key; lists are left out.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, String)> {
        let metadata = self.model.file().metadata();
        metadata.iter().filter(|(_, value)| !value.type_name().starts_with("array")).map(
            |(key, value)| match metadata.opt_str(key) {
                Ok(Some(text)) => (key, text.to_owned()),
                _ => (key, value.to_string()),
            },
        )
    }

    /// What the file calls the model.
    pub fn name(&self) -> String {
        self.model.name()
    }

    /// Tokens that a prompt and its answer may have together, or a text of an encoder.
    pub fn context(&self) -> usize {
        match &self.running {
            Running::Decoder(session, _) => session.context(),
            Running::Encoder(encoder) => encoder.longest(),
        }
    }

    /// What runs where, and the memory that it takes.
    pub fn plan(&self) -> &Plan {
        self.session().plan()
    }

    /// The handle that ends the work that is being done, and all later work until it is [reset](Cancel::reset): an answer
    /// before its next token ([`Stop::Interrupted`](crate::Stop::Interrupted)), other calls between steps, with an error
    /// whose exit code is 130.
    pub fn cancel_handle(&self) -> Cancel {
        self.cancel.clone()
    }

    /// What has happened since the last call that the user should know, though work went on: a GPU that was lost, for one,
    /// whose layers run on the CPU now.
    pub fn take_warnings(&mut self) -> Vec<Warning> {
        match &mut self.running {
            Running::Decoder(session, _) => session.take_warnings(),
            Running::Encoder(encoder) => encoder.session_mut().take_warnings(),
        }
    }

    fn session(&self) -> &Session {
        match &self.running {
            Running::Decoder(session, _) => session,
            Running::Encoder(encoder) => encoder.session(),
        }
    }

    fn decoder(&mut self) -> Result<(&Opened, &mut Session, &mut Option<SequenceId>), Error> {
        match &mut self.running {
            Running::Decoder(session, sequence) => Ok((&self.model, session, sequence)),
            Running::Encoder(_) => Err(Engine::NoDecoder { name: self.model.name() }.into()),
        }
    }

    /// Makes the model's own sequence hold what it can of a prompt: of a conversation what it has in common with the last one,
    /// of another prompt nothing, so that equal prompts give equal answers.
    fn begin(&mut self, request: &Request) -> Result<Begun, Error> {
        let template = self.chat_template.clone();
        let (model, session, own) = self.decoder()?;
        let sequence = match *own {
            Some(sequence) => sequence,
            None => *own.insert(session.open()?),
        };
        let held = session.adapted(sequence).to_vec();
        session.adapt(sequence, request.lora.as_deref())?;
        if session.adapted(sequence) != held {
            session.truncate(sequence, 0);
        }
        let prompt = &request.prompt;
        if let Prompt::Messages(messages) = prompt {
            let chat = conversation(model, sequence, template.as_deref(), messages, request)?;
            let mut turn = chat.turn(model, session)?;
            let form = Form::of(model, &chat, &request.tools, &turn)?;
            let tokens = turn.tokens.split_off(turn.kept);
            return Ok(Begun { sequence, tokens, form });
        }
        let tokens = tokens(model, prompt, request)?;
        session.truncate(sequence, 0);
        Ok(Begun { sequence, tokens, form: Form::default() })
    }
}

/// The logits after every token of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    tokens: Vec<u32>,
    vocab: usize,
    data: Vec<f32>,
}

impl Logits {
    /// The prompt's tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of rows: one for each token.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Elements of a row: tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The logits after token `row`, `[vocab]`: unnormalized log-probabilities of what follows it.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.vocab..][..self.vocab]
    }

    /// The most likely token after token `row`; of equally likely ones the first.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn best(&self, row: usize) -> u32 {
        let row = self.row(row);
        (0..row.len()).fold(0, |best, id| if row[id] > row[best] { id } else { best }) as u32
    }

    /// All of it, `[rows, vocab]`.
    pub fn as_slice(&self) -> &[f32] {
        &self.data
    }

    /// All of it, `[rows, vocab]`, without a copy.
    pub fn into_vec(self) -> Vec<f32> {
        self.data
    }
}

/// A conversation with some messages, in a sequence.
fn conversation(
    model: &Opened,
    sequence: SequenceId,
    template: Option<&str>,
    messages: &[Message],
    request: &Request,
) -> Result<Conversation, Error> {
    if messages.is_empty() {
        return Err(Engine::Messages(MessagesError::Empty).into());
    }
    let templates = chat_templates(model.file().metadata()).map_err(Engine::File)?;
    let template = match request.tools.is_empty() {
        true => templates.find(template),
        false => templates.find_with_tools(template),
    };
    let template = template.map_err(Engine::Text)?;
    let mut conversation = Conversation::over(sequence, template).with_tools(request.tools.given());
    if request.continues {
        conversation = conversation.continue_final_message();
    }
    conversation.replace(messages.to_vec());
    Ok(conversation)
}

/// The tokens of a prompt that is no conversation, and so has no functions and no last message.
fn tokens(model: &Opened, prompt: &Prompt, request: &Request) -> Result<Vec<u32>, Error> {
    if request.continues {
        return Err(Engine::Messages(MessagesError::NoConversation).into());
    }
    if !request.tools.is_empty() {
        return Err(Engine::Tools(ToolsError::NoConversation).into());
    }
    let tokens = match prompt {
        Prompt::Text(text) => model.prompt_tokens(text)?,
        Prompt::Tokens(tokens) => tokens.clone(),
        Prompt::Messages(_) => Vec::new(),
    };
    model.check_tokens(&tokens)?;
    Ok(tokens)
}

/// The sampler of a request; a grammar of its own counts more than the form of calls.
fn sampler(
    model: &Opened,
    session: &Session,
    request: &Request,
    calls: Option<Constraint>,
) -> Result<Sampler, Error> {
    let mut sampling = request.sampling.clone();
    sampling.set_infill(model.tokenizer());
    let breakers = sampling.dry.as_ref().map(|_| model.dry_breakers(&BREAKERS));
    let sampler = Sampler::new(sampling, session.vocab(), session.context());
    let mut sampler = sampler.map_err(Engine::SamplingOptions)?;
    sampler.set_breakers(breakers.unwrap_or_default().into());
    let asked = request.grammar.as_ref().map(|grammar| model.constraint(grammar)).transpose()?;
    if let Some(constraint) = asked.or(calls) {
        sampler.set_constraint(constraint);
    }
    Ok(sampler)
}

/// The request as the engine has it.
fn asked(
    request: Request,
    tokens: Vec<u32>,
    stops: Vec<String>,
    cancel: Cancel,
) -> generate::Request<'static> {
    generate::Request {
        predict: request.max_tokens,
        // Those of the template are ends of text like its tokens.
        stops: match request.ignore_eos {
            true => request.stops.into_iter().collect(),
            false => request.stops.into_iter().chain(stops).collect(),
        },
        logprobs: request.logprobs,
        cancel,
        shift: request.shift,
        ignore_eos: request.ignore_eos,
        show_control: request.show_control || !request.tools.is_empty(),
        lora: request.lora,
        ..generate::Request::new(tokens)
    }
}
