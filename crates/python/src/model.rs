//! An open model, as `python/bilayer` sees it.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use bilayer::{Cancel, Encode, Error, Excess, Norm};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::answer::Answer;
use crate::array::Array;
use crate::error;
use crate::request::{Asked, Prompt, prompt};
use crate::settings::{Settings, json};
use crate::worker::{self, Worker};

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

/// A model in its thread.
#[pyclass(frozen, module = "bilayer._native")]
pub struct Model(Arc<Worker>);

impl Model {
    /// Runs a job that may fail in the model's thread.
    fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        job: impl FnOnce(&mut bilayer::Model) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        self.0.call(py, job)?.map_err(|error| error::of(py, &error))
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
    #[new]
    fn new(py: Python<'_>, path: PathBuf, settings: Settings) -> PyResult<Model> {
        settings.check(py)?;
        let cancel = Cancel::new();
        let handle = cancel.clone();
        let opened = worker::beside(py, move || settings.builder(path, &handle).open())?;
        let model = opened.map_err(|error| error::of(py, &error))?;
        Ok(Model(Worker::start(model, cancel)?))
    }

    fn generate(&self, py: Python<'_>, asked: Asked) -> PyResult<Answer> {
        Answer::begin(py, &self.0, asked.request(py)?)
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

    fn tokenize(&self, py: Python<'_>, text: String, special: Special) -> PyResult<Vec<u32>> {
        let Special(add_special, parse_special) = special;
        self.call(py, move |model| model.tokens_as(&text, Encode { add_special, parse_special }))
    }

    /// The text of tokens, without control tokens.
    fn detokenize(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<String> {
        self.call(py, move |model| Ok(model.text(&tokens)))
    }

    /// The bytes of each token, and whether it is a control token.
    fn pieces<'py>(
        &self,
        py: Python<'py>,
        tokens: Vec<u32>,
    ) -> PyResult<Vec<(Bound<'py, PyBytes>, bool)>> {
        let pieces = self.call(py, move |model| {
            let piece = |&token: &u32| {
                let bytes = model.piece(token).unwrap_or_default().to_vec();
                (bytes, model.is_control(token))
            };
            Ok(tokens.iter().map(piece).collect::<Vec<_>>())
        })?;
        let bytes = |(bytes, is_control): (Vec<u8>, bool)| (PyBytes::new(py, &bytes), is_control);
        Ok(pieces.into_iter().map(bytes).collect())
    }

    /// What runs where: as text, and as JSON.
    fn plan(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let plan = self.call(py, |model| Ok(model.plan().clone()))?;
        Ok((plan.to_string(), json(py, &plan)?))
    }

    /// Facts that do not change.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let facts = PyDict::new(py);
        let (name, context, sizes, ends, generates) = self.call(py, |model| {
            let sizes = (model.vocab(), model.width());
            let ends = (model.bos(), model.eos());
            Ok((model.name(), model.context(), sizes, ends, model.generates()))
        })?;
        facts.set_item("name", name)?;
        facts.set_item("context", context)?;
        facts.set_item("vocab", sizes.0)?;
        facts.set_item("width", sizes.1)?;
        facts.set_item("bos", ends.0)?;
        facts.set_item("eos", ends.1)?;
        facts.set_item("generates", generates)?;
        Ok(facts)
    }

    /// The file's metadata as text, by key; lists are left out.
    fn metadata(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let owned = |(key, value): (&str, String)| (key.to_owned(), value);
        self.call(py, move |model| Ok(model.metadata().map(owned).collect()))
    }

    /// What has happened since the last call that the user should know.
    fn take_warnings(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.call(py, |model| Ok(model.take_warnings().iter().map(ToString::to_string).collect()))
    }

    /// Ends all work and frees the model.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.close(py)
    }

    fn is_open(&self) -> bool {
        self.0.is_open()
    }
}
