//! Requests as Python gives them.

use bilayer::{Message, Request, Samplers, Sampling, SamplingError, Tools};
use pyo3::prelude::*;

use crate::error::{self, usage};
use crate::settings::parameter;
use crate::worker;

/// A prompt: a text, tokens, or a tuple of messages in JSON.
#[derive(FromPyObject)]
pub enum Prompt {
    #[pyo3(transparent, annotation = "str")]
    Text(String),
    #[pyo3(transparent, annotation = "list[int]")]
    Tokens(Vec<u32>),
    #[pyo3(transparent, annotation = "tuple[str]")]
    Messages((String,)),
}

/// A request; `python/bilayer` gives every entry.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Asked {
    prompt: Prompt,
    max_tokens: Option<usize>,
    stop: Vec<String>,
    /// Sampling parameters by name, as text.
    sampling: Vec<(String, String)>,
    /// Names of the samplers that run, in order.
    samplers: Option<Vec<String>>,
    seed: u64,
    logit_bias: Vec<(u32, f32)>,
    logprobs: Option<usize>,
    /// Its kind, and its text.
    grammar: Option<(String, String)>,
    ignore_eos: bool,
    show_control: bool,
    context_shift: Option<usize>,
    /// The strengths of adapters.
    lora: Option<Vec<f32>>,
    /// A JSON list of functions.
    tools: Option<String>,
    continue_final_message: bool,
}

impl Asked {
    /// The request of the library.
    ///
    /// # Errors
    /// An entry that names nothing.
    pub fn request(self, py: Python<'_>) -> PyResult<Request> {
        let sampling = self.sampling(py)?;
        let mut request = Request::new(prompt(py, self.prompt)?).sampling(sampling);
        for text in self.stop {
            request = request.stop(text);
        }
        if let Some(tokens) = self.max_tokens {
            request = request.max_tokens(tokens);
        } else if self.context_shift.is_some() {
            return Err(usage(py, "context_shift needs max_tokens: the answer would not end"));
        }
        if let Some(tools) = self.tools {
            let tools = Tools::parse(&tools);
            request = request.tools(tools.map_err(|e| usage(py, &format!("tools: {e}")))?);
        }
        if let Some(top) = self.logprobs {
            request = request.logprobs(top);
        }
        if let Some(keep) = self.context_shift {
            request = request.context_shift(keep);
        }
        if let Some(strengths) = self.lora {
            request = request.lora(strengths);
        }
        if self.ignore_eos {
            request = request.ignore_eos();
        }
        if self.continue_final_message {
            request = request.continue_final_message();
        }
        if self.show_control {
            request = request.show_control();
        }
        match self.grammar {
            None => Ok(request),
            Some((kind, text)) => match kind.as_str() {
                "json_schema" => Ok(request.json_schema(text)),
                "json_object" => Ok(request.json_object()),
                "gbnf" => Ok(request.grammar(text)),
                "regex" => Ok(request.regex(text)),
                "lark" => Ok(request.lark(text)),
                other => Err(usage(py, &format!("{other}: no kind of grammar"))),
            },
        }
    }

    fn sampling(&self, py: Python<'_>) -> PyResult<Sampling> {
        let values: Vec<_> = self
            .sampling
            .iter()
            .map(|(name, text)| Ok((parameter(py, name)?, text.as_str())))
            .collect::<PyResult<_>>()?;
        let wrong = |error: SamplingError| usage(py, &format!("{error:#}"));
        let options = Sampling::parse(values).map_err(wrong)?;
        let names = |names: &Vec<String>| Samplers::named(names.iter().map(String::as_str));
        let samplers = self.samplers.as_ref().map(names).transpose().map_err(wrong)?;
        Ok(Sampling { seed: self.seed, logit_bias: self.logit_bias.clone(), samplers, ..options })
    }
}

/// Checks a grammar in GBNF, or else a JSON schema, without a model.
#[pyfunction]
pub fn check_grammar(py: Python<'_>, kind: &str, text: String) -> PyResult<()> {
    let request = Request::new("");
    let request = if kind == "gbnf" { request.grammar(text) } else { request.json_schema(text) };
    let checked = worker::beside(py, move || request.check_grammar())?;
    checked.map_err(|error| error::of(py, &error))
}

/// The prompt of the library.
///
/// # Errors
/// Messages of another form.
pub fn prompt(py: Python<'_>, prompt: Prompt) -> PyResult<bilayer::Prompt> {
    Ok(match prompt {
        Prompt::Text(text) => text.into(),
        Prompt::Tokens(tokens) => tokens.into(),
        Prompt::Messages((json,)) => {
            Message::list(&json).map_err(|error| usage(py, &error.to_string()))?.into()
        }
    })
}
