//! A model that was opened and understood, before any device has it: file, configuration, graph, tokenizer.

use std::path::Path;
use std::sync::Arc;

use bilayer_gguf::{File, OpenOptions};
use bilayer_graph::Graph;
use bilayer_models::Config;
use bilayer_text::Tokenizer;

use crate::{Error, SharedBytes, vocabulary::vocabulary};

/// A complete, supported model.
pub struct Model {
    file: File,
    config: Config,
    graph: Graph,
    tokenizer: Arc<Tokenizer>,
}

impl Model {
    /// Opens a model file (or the first of its shards). No tensor is read.
    ///
    /// # Errors
    /// The file is missing, unreadable, damaged, no model, or one that is not supported.
    pub fn open(path: &Path, options: OpenOptions<'_>) -> Result<Model, Error> {
        if !path.exists() {
            return Err(Error::NoSuchFile { path: path.display().to_string() });
        }
        Model::new(File::open_with(path, options).map_err(Error::File)?)
    }

    /// Understands a model that is already in memory, such as one embedded in the binary.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn from_bytes(name: &str, bytes: SharedBytes) -> Result<Model, Error> {
        Model::new(File::from_bytes(name, bytes).map_err(Error::File)?)
    }

    fn new(file: File) -> Result<Model, Error> {
        let name = || file.name().to_owned();
        let (config, graph) = bilayer_models::read(&file)
            .map_err(|source| Error::Model { file: name(), source })?;
        let words = vocabulary(file.metadata())
            .map_err(|source| Error::Model { file: name(), source: source.into() })?;
        let tokenizer = Tokenizer::new(words)
            .map_err(|source| Error::Vocabulary { file: name(), source })?;
        Ok(Model { config, graph, tokenizer: Arc::new(tokenizer), file })
    }

    /// The file with its metadata and tensor directory.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The typed configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The recorded graph.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }
}
