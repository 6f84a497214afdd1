//! An open model, as `python/bilayer` sees it.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};

use bilayer::{Cancel, Encode, Error, Excess, Norm, Progress, Stage, Tokenizer};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::answer::Answer;
use crate::array::Array;
use crate::error;
use crate::request::{Asked, Prompt, prompt};
use crate::settings::{Settings, json};
use crate::worker::{self, Worker, locked};

/// Whether texts that are too long are cut.
#[derive(Clone, Copy, FromPyObject)]
struct Truncate(bool);

impl Truncate {
    fn excess(self) -> Excess {
        if self.0 { Excess::Truncate } else { Excess::Refuse }
    }
}

/// Whether special tokens are added around a text, and whether those that it spells are parsed.
#[derive(Clone, Copy, FromPyObject)]
struct Special(bool, bool);

/// What of a model does not change.
struct Facts {
    name: String,
    context: usize,
    vocab: usize,
    width: usize,
    bos: Option<u32>,
    eos: Option<u32>,
    generates: bool,
    metadata: Vec<(String, String)>,
}

impl Facts {
    fn of(model: &bilayer::Model) -> Facts {
        let owned = |(key, value): (&str, String)| (key.to_owned(), value);
        Facts {
            name: model.name(),
            context: model.context(),
            vocab: model.vocab(),
            width: model.width(),
            bos: model.bos(),
            eos: model.eos(),
            generates: model.generates(),
            metadata: model.metadata().map(owned).collect(),
        }
    }
}

/// A model in its thread, with what is read of it without the thread.
#[pyclass(frozen, module = "bilayer._native")]
pub struct Model {
    worker: Arc<Worker>,
    facts: Facts,
    /// `None` once the model is closed, since it keeps the file open.
    tokenizer: Mutex<Option<Tokenizer>>,
}

impl Model {
    /// Runs a job that may fail in the model's thread.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        job: impl FnOnce(&mut bilayer::Model) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        self.worker.call(py, job)?.map_err(|error| error::of(py, &error))
    }

    /// The tokenizer of an open model.
    fn tokenizer(&self, py: Python<'_>) -> PyResult<Tokenizer> {
        self.worker.check(py)?;
        let tokenizer = locked(&self.tokenizer).clone();
        tokenizer.ok_or_else(|| error::usage(py, "the model is closed"))
    }
}

/// A text, or a pair of texts.
#[derive(FromPyObject)]
enum Text {
    #[pyo3(transparent, annotation = "str")]
    One(String),
    #[pyo3(transparent, annotation = "tuple[str, str]")]
    Pair((String, String)),
}

impl Text {
    fn given(&self) -> bilayer::Text<'_> {
        match self {
            Text::One(text) => text.into(),
            Text::Pair(pair) => pair.into(),
        }
    }
}

/// Aggregation, stride, ignored labels.
type ExtractOptions = (String, Option<usize>, Vec<String>);

/// Label, score, text, and the code points where it begins and ends.
type Entity = (String, f32, String, usize, usize);

#[pymethods]
impl Model {
    /// Opens a model. `progress` is called with the stage, the bytes that are loaded, and those of all weights.
    #[new]
    #[pyo3(signature = (path, settings, progress))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        settings: Settings,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Model> {
        let is_asked = progress.is_some();
        let open = move |cancel: &Cancel, sender: Sender<Progress>| {
            let builder = settings.builder(path, cancel)?;
            let builder = match is_asked {
                // The receiver is gone if its thread was interrupted.
                true => builder.progress(move |progress| {
                    let _ = sender.send(progress);
                }),
                false => builder,
            };
            let model = builder.open()?;
            Ok((Facts::of(&model), model, cancel.clone()))
        };
        let told = move |told: Progress| {
            let stage = match told.stage {
                Stage::Measuring => "measuring",
                Stage::Loading => "loading",
            };
            let called =
                |call: &Py<PyAny>| call.call1(py, (stage, told.done_bytes, told.total_bytes));
            progress.as_ref().map(called).transpose().map(drop)
        };
        let opened = worker::reporting(py, open, told)?;
        let (facts, model, cancel) = opened.map_err(|error: Error| error::of(py, &error))?;
        let tokenizer = Mutex::new(Some(model.tokenizer()));
        Ok(Model { worker: Worker::start(model, cancel)?, facts, tokenizer })
    }

    fn generate(&self, py: Python<'_>, asked: Asked) -> PyResult<Answer> {
        Answer::begin(py, &self.worker, asked.request(py)?)
    }

    /// A vector for each text behind the prompt of a name, [texts, width], scaled as a number of a norm says or else the
    /// checkpoint.
    #[pyo3(signature = (texts, truncate, norm, prompt_name))]
    fn embed(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        truncate: Truncate,
        norm: Option<i64>,
        prompt_name: Option<String>,
    ) -> PyResult<Array> {
        self.call(py, move |model| {
            model.set_excess(truncate.excess());
            model.set_prompt(prompt_name.as_deref())?;
            let usual = model.norm();
            model.set_norm(norm.map_or(usual, Norm::numbered));
            let vectors = model.embed(&texts);
            model.set_norm(usual);
            model.set_prompt(None)?;
            let vectors = vectors?;
            let width = vectors.first().map_or(model.width(), Vec::len);
            Ok(Array { shape: vec![vectors.len(), width], data: vectors.concat() })
        })
    }

    /// The relevance of each document to a query.
    fn rerank(
        &self,
        py: Python<'_>,
        query: String,
        documents: Vec<String>,
        truncate: Truncate,
    ) -> PyResult<Array> {
        self.call(py, move |model| {
            model.set_excess(truncate.excess());
            let data = model.rerank(&query, &documents)?;
            Ok(Array { shape: vec![data.len()], data })
        })
    }

    /// The labels of each text or pair of texts with their probabilities.
    fn classify(
        &self,
        py: Python<'_>,
        texts: Vec<Text>,
        truncate: Truncate,
    ) -> PyResult<Vec<Vec<(String, f32)>>> {
        let labels = self.call(py, move |model| {
            model.set_excess(truncate.excess());
            model.classify(&texts.iter().map(Text::given).collect::<Vec<_>>())
        })?;
        let pairs = |labels: Vec<bilayer::Label>| {
            labels.into_iter().map(|label| (label.name, label.probability)).collect()
        };
        Ok(labels.into_iter().map(pairs).collect())
    }

    /// The entities of each text: label, score, text, and where it is in code points.
    fn extract(
        &self,
        py: Python<'_>,
        texts: Vec<String>,
        options: ExtractOptions,
        truncate: Truncate,
    ) -> PyResult<Vec<Vec<Entity>>> {
        let (aggregation, stride, ignored) = options;
        let found = self.call(py, move |model| {
            model.set_excess(truncate.excess());
            let aggregation = aggregation.parse().map_err(bilayer::Error::from)?;
            let options = bilayer::extract::Options { aggregation, stride, ignored };
            model.extract(&texts, &options)
        })?;
        let entity = |entity: bilayer::extract::Entity| {
            let Range { start, end } = entity.chars;
            (entity.label, entity.score, entity.text, start, end)
        };
        Ok(found.into_iter().map(|all| all.into_iter().map(entity).collect()).collect())
    }

    /// The tokens of a prompt, and the logits after each, [tokens, vocab].
    fn logits(&self, py: Python<'_>, asked: Prompt) -> PyResult<(Vec<u32>, Array)> {
        let asked = prompt(py, asked)?;
        let logits = self.call(py, move |model| model.logits(asked))?;
        let (tokens, vocab) = (logits.tokens().to_vec(), logits.vocab());
        let array = Array { shape: vec![tokens.len(), vocab], data: logits.into_vec() };
        Ok((tokens, array))
    }

    /// The tokens of a text, which may be long: beside the interpreter.
    fn tokenize(&self, py: Python<'_>, text: String, special: Special) -> PyResult<Vec<u32>> {
        let Special(add_special, parse_special) = special;
        let tokenizer = self.tokenizer(py)?;
        let encode = Encode { add_special, parse_special };
        let tokens = worker::beside(py, move || tokenizer.encode(&text, encode))?;
        tokens.map_err(|error| error::of(py, &error))
    }

    /// The text of tokens, without control tokens.
    fn detokenize(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        let tokenizer = self.tokenizer(py)?;
        let text = py.detach(move || tokenizer.decode(&tokens));
        text.map_err(|error| error::of(py, &error))
    }

    /// The bytes of each token, and whether it is a control token.
    fn pieces<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, bool)>> {
        let tokenizer = self.tokenizer(py)?;
        let piece = |token: u32| {
            let piece = tokenizer.piece(token).map_err(|error| error::of(py, &error))?;
            Ok((PyBytes::new(py, piece.0), piece.1))
        };
        tokens.into_iter().map(piece).collect()
    }

    /// What runs where: as text, and as JSON.
    fn plan(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let plan = self.worker.status(py)?.plan.clone();
        Ok((plan.to_string(), json(py, &plan)?))
    }

    /// Facts that do not change.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = PyDict::new(py);
        facts.set_item("name", &self.facts.name)?;
        facts.set_item("context", self.facts.context)?;
        facts.set_item("vocab", self.facts.vocab)?;
        facts.set_item("width", self.facts.width)?;
        facts.set_item("bos", self.facts.bos)?;
        facts.set_item("eos", self.facts.eos)?;
        facts.set_item("generates", self.facts.generates)?;
        Ok(facts)
    }

    /// The file's metadata as text, by key; lists are left out.
    fn metadata(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        self.worker.check(py)?;
        Ok(self.facts.metadata.clone())
    }

    /// What has happened since the last call that the user should know.
    fn take_warnings(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(std::mem::take(&mut self.worker.status(py)?.warnings))
    }

    /// Panics in the model's thread, for tests.
    #[cfg(debug_assertions)]
    fn _panic(&self, py: Python<'_>) -> PyResult<Answer> {
        Answer::panicking(py, &self.worker)
    }

    /// Ends all work and frees the model.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        locked(&self.tokenizer).take();
        self.worker.close(py)
    }

    fn is_open(&self) -> bool {
        self.worker.is_open()
    }
}
