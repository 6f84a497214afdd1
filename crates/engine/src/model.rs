//! An opened model, independent of devices: file, configuration, graph, tokenizer.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use bilayer_constrain::{Constraint, Grammar, Limits, Token, Tokens};
use bilayer_gguf::{File, MetadataOverride, OpenOptions};
use bilayer_graph::{Graph, Lora, MappedWeight, Weight};
use bilayer_models::{Adapted, Config, Output};
use bilayer_quant::Type;
use bilayer_settings::Setting;
use bilayer_text::{Encode, Tokenizer};

use crate::control::ControlVector;
use crate::digest;
use crate::file::{open_file, open_with};
use crate::lora::{LoraFile, Strength, adapts_nothing};
use crate::purpose::Purpose;
use crate::sampling::Breakers;
use crate::vocabulary::{self, vocabulary};
use crate::{Error, SharedBytes};

/// What is applied to a model while it runs.
#[derive(Debug, Default)]
pub struct Adapters {
    /// Adapters of matrices.
    pub loras: Vec<LoraFile>,
    /// Who sets their strength.
    pub strength: Strength,
    /// Directions that are added to hidden states.
    pub control: Option<ControlVector>,
}

/// A complete, supported model. Clones share it.
#[derive(Clone)]
pub struct Model(Arc<Parts>);

struct Parts {
    file: File,
    config: Config,
    graph: Graph,
    loras: Vec<Lora>,
    strength: Strength,
    tokenizer: Arc<Tokenizer>,
    /// The vocabulary prepared for grammars, once one was asked for.
    grammar_tokens: OnceLock<Tokens>,
    /// See [`Model::digest`].
    digest: OnceLock<u64>,
}

impl Model {
    /// Opens a model file (or the first of its shards). No tensor is read.
    ///
    /// # Errors
    /// The file is missing, unreadable, damaged, or not a supported model.
    pub fn open(path: &Path, options: OpenOptions<'_>) -> Result<Model, Error> {
        Model::new(open_with(path, options)?)
    }

    /// Opens a model in memory, such as one embedded in the binary.
    ///
    /// # Errors
    /// Those of [`Model::open`].
    pub fn from_bytes(name: &str, bytes: SharedBytes) -> Result<Model, Error> {
        Model::new(File::from_bytes(name, bytes).map_err(Error::File)?)
    }

    /// Uses an open file.
    ///
    /// # Errors
    /// Not a supported model.
    pub fn new(file: File) -> Result<Model, Error> {
        Model::adapted(file, &[], Adapters::default())
    }

    /// Uses an open file with other values of some metadata, and with adapters, which are applied while the model runs.
    ///
    /// # Errors
    /// Not a supported model, or a value or an adapter does not fit it.
    pub fn adapted(
        file: File,
        overrides: &[MetadataOverride],
        adapters: Adapters,
    ) -> Result<Model, Error> {
        let name = file.name().to_owned();
        let of_model = |source| match source {
            // This error already names the file.
            bilayer_models::Error::Metadata(source) => Error::File(source),
            source => Error::Model { file: name.clone(), source },
        };
        let file = file.overridden(overrides).map_err(Error::File)?;
        let mut file = bilayer_models::split_keys_and_values(file).map_err(of_model)?;
        let Adapters { loras: files, strength, control } = adapters;
        let mut loras = Vec::with_capacity(files.len());
        for adapter in files {
            file = adapter.join(file, &mut loras)?;
        }
        if let Some(control) = control {
            file = control.join(file)?;
        }
        let adapted = Adapted { file: &file, loras: &loras };
        let of_adapter = |source| match &source {
            bilayer_models::Error::UnusedTensor { name: tensor, .. } => {
                adapts_nothing(&loras, tensor).unwrap_or_else(|| of_model(source))
            }
            _ => of_model(source),
        };
        let (config, graph) = bilayer_models::read_adapted(&adapted).map_err(of_adapter)?;
        let tokenizer = words(&file)?;
        vocabulary::LISTS.iter().for_each(|list| file.forget(&vocabulary::key(list)));
        let grammar_tokens = OnceLock::new();
        Ok(Model(Arc::new(Parts {
            config,
            graph,
            tokenizer,
            grammar_tokens,
            digest: OnceLock::new(),
            loras,
            strength,
            file,
        })))
    }

    /// A copy of the model with other weights in the tensor `name`: `bytes` of type `ty`, in the tensor's shape.
    ///
    /// # Errors
    /// There is no such tensor, or the number of bytes contradicts type and shape.
    pub fn with_tensor(&self, name: &str, ty: Type, bytes: SharedBytes) -> Result<Model, Error> {
        let file = self.file().with_tensor(name, ty, bytes).map_err(Error::File)?;
        let config = self.config().clone();
        let (loras, strength) = (self.0.loras.clone(), self.0.strength);
        let graph = bilayer_models::record(&config, &Adapted { file: &file, loras: &loras })
            .map_err(|source| Error::Model { file: file.name().to_owned(), source })?;
        let (tokenizer, grammar_tokens) = (self.tokenizer().clone(), self.0.grammar_tokens.clone());
        Ok(Model(Arc::new(Parts {
            config,
            graph,
            tokenizer,
            grammar_tokens,
            digest: OnceLock::new(),
            loras,
            strength,
            file,
        })))
    }

    /// The model's name in the file, or the file name.
    pub fn name(&self) -> String {
        let file = self.file();
        file.metadata().str("general.name").unwrap_or(file.name()).to_owned()
    }

    /// The file with its tensor directory and metadata, without the lists of the vocabulary, which the tokenizer
    /// owns.
    pub fn file(&self) -> &File {
        &self.0.file
    }

    /// Where a weight is in the file's map, or `None` if it was read into memory or is no tensor of the file.
    pub fn mapped(&self, weight: &Weight) -> Option<MappedWeight> {
        let file = self.file();
        let tensor = file.bytes(file.tensor(&weight.name)?);
        let within = |map: &SharedBytes| {
            let start = (tensor.as_ptr() as usize).checked_sub(map.as_ptr() as usize)?;
            let rows = weight.range_in_tensor();
            let range = start + rows.start..start + rows.end;
            (range.end <= map.len()).then(|| MappedWeight {
                id: weight.id,
                map: map.clone(),
                range,
            })
        };
        file.maps().find_map(within)
    }

    /// Identifies the model by its configuration and its tensors' names, types, shapes and samples. The file is read once,
    /// since it may be another one when a sequence is saved: a session has it before it checks that the file of the weights
    /// that it loaded is unchanged.
    pub(crate) fn digest(&self) -> u64 {
        *self.0.digest.get_or_init(|| digest::of_model(self.config(), self.file()))
    }

    /// Computes [`Model::digest`] on another thread: samples that are not in the page cache would delay the load.
    pub(crate) fn begin_digest(&self) {
        if self.0.digest.get().is_none() {
            let model = self.clone();
            let begin = move || {
                model.digest();
            };
            // Without the thread, it is computed where it is asked for.
            let _ = std::thread::Builder::new().name("bilayer digest".into()).spawn(begin);
        }
    }

    /// Reads the weights, and those of its adapters, and locks them in memory.
    ///
    /// # Errors
    /// [`Error::File`]: the limit on locked memory is too low.
    pub fn lock(&self) -> Result<(), Error> {
        self.file().lock().map_err(Error::File)
    }

    fn directory(&self) -> Adapted<'_> {
        Adapted { file: self.file(), loras: &self.0.loras }
    }

    /// The adapters, in the order in which they were given.
    pub fn loras(&self) -> &[Lora] {
        &self.0.loras
    }

    /// Whether each sequence may set the strength of the adapters.
    pub fn is_adapted_by_sequence(&self) -> bool {
        self.0.strength == Strength::OfSequence && !self.0.loras.is_empty()
    }

    /// The typed configuration.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The recorded graph, for the trained context.
    pub fn graph(&self) -> &Graph {
        &self.0.graph
    }

    /// The graph for sequences of up to `context` tokens, which selects the RoPE factors of some models. Its weights
    /// and values have the same ids for every context. The purpose selects its result.
    ///
    /// # Errors
    /// The model has fewer learned positions, or does not support the purpose.
    pub fn graph_for(&self, context: usize, purpose: Purpose) -> Result<Graph, Error> {
        let config = self.config();
        if let Some(most) = config.positions.filter(|&most| context > most) {
            let expected = format!("at most {most}: the model has learned no more positions");
            return Err(Error::setting(Setting::Context, context, expected));
        }
        let mut config = Config { context, ..config.clone() };
        match (purpose, &mut config.encoder) {
            (Purpose::Own, _) => {}
            (Purpose::WithHidden | Purpose::Mtp, _) if config.mtp.is_empty() => {
                let (file, key) = (self.file().name().to_owned(), config.mtp_key());
                return Err(Error::NoMtp { file, key });
            }
            (Purpose::WithHidden, _) => config.output = Output::WithHidden,
            (Purpose::Mtp, _) => config.output = Output::Mtp,
            (_, None) => return Err(Error::NoEncoder { name: self.name() }),
            (Purpose::Score, Some(encoder)) if !encoder.scores => {
                return Err(Error::NoHead { name: self.name() });
            }
            (_, Some(encoder)) => purpose.apply(encoder),
        }
        bilayer_models::record(&config, &self.directory())
            .map_err(|source| Error::Model { file: self.file().name().to_owned(), source })
    }

    /// A prompt's tokens, including special tokens around it. Control tokens may be written as text, since a prompt
    /// may be in the model's chat format.
    ///
    /// # Errors
    /// The vocabulary cannot express the text.
    pub fn prompt_tokens(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encode = Encode { add_special: true, parse_special: true };
        self.tokenizer().encode(text, encode).map_err(Error::Text)
    }

    /// Whether all tokens are in the vocabulary.
    ///
    /// # Errors
    /// The first one that is not.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<(), Error> {
        let vocab = self.config().vocab;
        match tokens.iter().find(|&&token| token as usize >= vocab) {
            Some(&token) => Err(Error::Token { token, vocab }),
            None => Ok(()),
        }
    }

    /// What ends a DRY match: control tokens, and tokens whose text contains one of `texts`, alone or in a row.
    pub fn dry_breakers(&self, texts: &[impl AsRef<str>]) -> Breakers {
        let tokenizer = self.tokenizer();
        let piece = |id| tokenizer.piece(id).filter(|_| !tokenizer.is_control(id));
        Breakers::new((0..self.config().vocab as u32).map(piece), texts)
    }

    /// A constraint for answers of this model: a grammar compiled for its vocabulary, within [`Limits`] by default.
    /// The first call prepares the vocabulary, which takes up to half a second for 128k tokens.
    ///
    /// # Errors
    /// [`Error::Constraint`]: the grammar is invalid, not supported or too large, or the vocabulary is.
    pub fn constraint(&self, grammar: &Grammar) -> Result<Constraint, Error> {
        Ok(Constraint::new(&self.grammar_tokens()?, grammar, Limits::default())?)
    }

    /// The vocabulary prepared for grammars.
    fn grammar_tokens(&self) -> Result<Tokens, Error> {
        if let Some(tokens) = self.0.grammar_tokens.get() {
            return Ok(tokens.clone());
        }
        let tokenizer = self.tokenizer();
        let token = |id| match (tokenizer.text(id), tokenizer.piece(id)) {
            (Some(bytes), _) => Token::Text(bytes),
            (None, Some(name)) => Token::Control(name),
            (None, None) => Token::Unused,
        };
        let tokens = Tokens::new((0..self.config().vocab as u32).map(token), tokenizer.ends())?;
        Ok(self.0.grammar_tokens.get_or_init(|| tokens).clone())
    }

    /// The tokens of fill-in-the-middle prompts.
    pub fn fill_in_middle(&self) -> vocabulary::FillInMiddle {
        vocabulary::fill_in_middle(self.file().metadata(), self.tokenizer().len())
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.0.tokenizer
    }
}

/// The tokenizer of a file, which may lack tensors.
///
/// # Errors
/// The file is missing, unreadable or damaged, or its vocabulary cannot be used.
pub fn tokenizer(path: &Path) -> Result<Arc<Tokenizer>, Error> {
    words(&open_file(path)?)
}

/// The problems that prevent a file from running; empty if it runs.
pub fn problems(file: &File) -> Vec<String> {
    let model = bilayer_models::read(file).err().map(|error| error.to_string());
    let words = words(file).err().map(|error| match error {
        Error::Vocabulary { source, .. } => source.to_string(),
        Error::Model { source, .. } => source.to_string(),
        other => other.to_string(),
    });
    model.into_iter().chain(words).collect()
}

fn words(file: &File) -> Result<Arc<Tokenizer>, Error> {
    let name = || file.name().to_owned();
    let words = vocabulary(file.metadata()).map_err(Error::File)?;
    let tokenizer =
        Tokenizer::new(words).map_err(|source| Error::Vocabulary { file: name(), source })?;
    Ok(Arc::new(tokenizer))
}
