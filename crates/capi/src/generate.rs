//! Generating with a callback.

use std::ffi::{c_char, c_void};

use bilayer::{Message, Model, Prompt, Request, Role, Samplers, Sampling, Tools};

use crate::failure::{BILAYER_INTERRUPTED, Failure, guarded};
use crate::model::{BilayerCallback, BilayerModel, given};
use crate::pointers::{slice, text, text_or_null};

/// How an answer is made. bilayer_request_default fills it in.
#[repr(C)]
pub struct BilayerRequest {
    /// Ends the answer after so many tokens; 0: the model or the context ends it.
    pub max_tokens: usize,
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keeps so many most likely tokens; 0: all.
    pub top_k: usize,
    /// Keeps the most likely tokens with at least this mass; 1: all.
    pub top_p: f32,
    /// Keeps tokens at least this share as likely as the most likely; 0: all.
    pub min_p: f32,
    /// Keeps logits within so many standard deviations of the highest; 0 or less: all.
    pub top_n_sigma: f32,
    /// Divides the logits of recent tokens; 1: off.
    pub repeat_penalty: f32,
    /// Names of the samplers that run, in this order, separated by `;`, such as `top_k;temperature;min_p`; those left out are
    /// off. NULL or empty: llama.cpp's default order.
    pub samplers: *const c_char,
    /// Key of the random stream: equal requests with equal seeds give equal texts.
    pub seed: u64,
    /// A text that ends the answer and is no part of it; NULL: none.
    pub stop: *const c_char,
    /// A JSON schema that the answer must satisfy; NULL: none.
    pub json_schema: *const c_char,
    /// A grammar in GBNF that the answer must satisfy; NULL: none.
    pub grammar: *const c_char,
    /// Continues after the tokens with which a model ends its answer.
    pub ignore_eos: bool,
    /// Of a conversation whose last message is the assistant's: the answer continues that message.
    pub continue_final_message: bool,
}

/// A message of a conversation.
#[repr(C)]
pub struct BilayerMessage {
    /// `system`, `user` or `assistant`.
    pub role: *const c_char,
    /// Its text.
    pub content: *const c_char,
}

/// The default request.
#[unsafe(no_mangle)]
pub extern "C" fn bilayer_request_default() -> BilayerRequest {
    let usual = Sampling::default();
    BilayerRequest {
        max_tokens: 0,
        temperature: usual.temperature,
        top_k: usual.top_k,
        top_p: usual.top_p,
        min_p: usual.min_p,
        top_n_sigma: usual.top_n_sigma,
        repeat_penalty: usual.repeat_penalty,
        samplers: std::ptr::null(),
        seed: usual.seed,
        stop: std::ptr::null(),
        json_schema: std::ptr::null(),
        grammar: std::ptr::null(),
        ignore_eos: false,
        continue_final_message: false,
    }
}

/// Continues `prompt` and calls `callback` for each token. `request` may be NULL for the default. BILAYER_INTERRUPTED if the
/// callback or bilayer_cancel ended the answer.
///
/// # Safety
/// `model` is from bilayer_open and not freed; `prompt` and the texts of `request` end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_generate(
    model: *const BilayerModel,
    prompt: *const c_char,
    request: *const BilayerRequest,
    callback: BilayerCallback,
    user: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, asked) =
            unsafe { (given(model)?, asked(text(prompt, "prompt")?.into(), request)?) };
        answer(model, asked, callback, user)
    })
}

/// Answers a conversation of `count` messages, given whole, as bilayer_generate does. bilayer_chat_json also
/// takes tool calls and results.
///
/// # Safety
/// As of bilayer_generate; `messages` points to `count` messages whose texts end with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_chat(
    model: *const BilayerModel,
    messages: *const BilayerMessage,
    count: usize,
    request: *const BilayerRequest,
    callback: BilayerCallback,
    user: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, asked) = unsafe {
            let model = given(model)?;
            let messages = slice(messages, count, "messages")?.iter().map(|each| message(each));
            (model, asked(messages.collect::<Result<Vec<_>, _>>()?.into(), request)?)
        };
        answer(model, asked, callback, user)
    })
}

/// Answers a conversation in JSON, given whole, as bilayer_generate does: a list of messages as in the OpenAI API, with
/// `tool_calls`, the role `tool`, lists of text parts and further fields for the chat template. `tools` is a JSON list of
/// functions that the model may call; NULL: none. Tool calls appear in the text as the model writes them.
///
/// # Safety
/// As of bilayer_generate; `messages` ends with NUL; `tools` is NULL or ends with NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_chat_json(
    model: *const BilayerModel,
    messages: *const c_char,
    tools: *const c_char,
    request: *const BilayerRequest,
    callback: BilayerCallback,
    user: *mut c_void,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, mut asked, tools) = unsafe {
            let model = given(model)?;
            let messages = Message::list(text(messages, "messages")?);
            let messages = messages.map_err(|error| usage(&error))?;
            (model, asked(messages.into(), request)?, text_or_null(tools, "tools")?)
        };
        if let Some(tools) = tools {
            let tools = Tools::parse(tools);
            asked = asked.tools(tools.map_err(|error| usage(&format!("tools: {error}")))?);
        }
        answer(model, asked, callback, user)
    })
}

/// An invalid argument.
fn usage(error: &impl ToString) -> Failure {
    Failure::usage(error.to_string())
}

/// A message of the library.
///
/// # Safety
/// Its texts are NULL or end with NUL.
unsafe fn message(message: &BilayerMessage) -> Result<Message, Failure> {
    // SAFETY: the caller's promise.
    let (role, content) =
        unsafe { (text(message.role, "role")?, text(message.content, "content")?) };
    let role = match role {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        other => {
            let line = format!(
                "role is {other}; it must be system, user or assistant, or given to bilayer_chat_json"
            );
            return Err(Failure::usage(line));
        }
    };
    Ok(Message::new(role, content))
}

/// The request of the library.
///
/// # Safety
/// `given` is NULL or valid, and its texts are NULL or end with NUL.
unsafe fn asked(prompt: Prompt, given: *const BilayerRequest) -> Result<Request, Failure> {
    // SAFETY: the caller's promise.
    let Some(given) = (unsafe { given.as_ref() }) else { return Ok(Request::new(prompt)) };
    // SAFETY: the caller's promise.
    let samplers = unsafe { text_or_null(given.samplers, "samplers")? };
    let samplers = samplers.filter(|names| !names.is_empty()).map(Samplers::parse);
    let samplers = samplers.transpose().map_err(|error| Failure::usage(error.to_string()))?;
    let mut request = Request::new(prompt).sampling(Sampling {
        temperature: given.temperature,
        top_k: given.top_k,
        top_p: given.top_p,
        min_p: given.min_p,
        top_n_sigma: given.top_n_sigma,
        repeat_penalty: given.repeat_penalty,
        samplers,
        seed: given.seed,
        ..Sampling::default()
    });
    if given.max_tokens > 0 {
        request = request.max_tokens(given.max_tokens);
    }
    // SAFETY: the caller's promise.
    let (stop, schema, grammar) = unsafe {
        (
            text_or_null(given.stop, "stop")?,
            text_or_null(given.json_schema, "json_schema")?,
            text_or_null(given.grammar, "grammar")?,
        )
    };
    if let Some(stop) = stop {
        request = request.stop(stop);
    }
    let request = match (schema, grammar) {
        (Some(_), Some(_)) => {
            return Err(Failure::usage("json_schema and grammar exclude each other"));
        }
        (Some(schema), None) => request.json_schema(schema),
        (None, Some(grammar)) => request.grammar(grammar),
        (None, None) => request,
    };
    let request = if given.ignore_eos { request.ignore_eos() } else { request };
    Ok(match given.continue_final_message {
        true => request.continue_final_message(),
        false => request,
    })
}

/// Makes the answer.
fn answer(
    model: &BilayerModel,
    request: Request,
    callback: BilayerCallback,
    user: *mut c_void,
) -> Result<(), Failure> {
    let Some(callback) = callback else { return Err(Failure::usage("callback is NULL")) };
    let request = match model.strengths() {
        Some(strengths) => request.lora(strengths),
        None => request,
    };
    let made = |model: &mut Model| {
        let mut answer = model.generate(request)?;
        for token in &mut answer {
            let token = token?;
            let text = token.text.as_bytes();
            // SAFETY: the caller promises a function of this type; the text outlives the call.
            let goes_on = unsafe { callback(text.as_ptr().cast(), text.len(), token.id, user) };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(answer.stop() != Some(bilayer::Stop::Interrupted))
    };
    match model.work(made)? {
        true => Ok(()),
        false => Err(Failure(BILAYER_INTERRUPTED, "interrupted".to_owned())),
    }
}
