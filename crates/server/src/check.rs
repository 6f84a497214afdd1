//! Checks bodies of requests as the endpoints do, without a server.

use bilayer_engine::Model;

use crate::constraints;
use crate::conversation;
use crate::endpoint::{Endpoint, Takes};
use crate::endpoints::{ENDPOINTS, has_field};
use crate::error::ApiError;
use crate::fields::Body;
use crate::params::{self, Defaults, Params};

/// The paths of endpoints that [`check`] knows: those whose bodies are objects.
pub fn endpoints() -> impl Iterator<Item = &'static str> {
    let objects = ENDPOINTS.iter().filter(|of| matches!(of.takes, Some(Takes::Object { .. })));
    objects.map(Endpoint::path)
}

/// Checks the body of a request to the endpoint `path` for `model`: its fields, what they translate to, its sampling, its
/// grammar. A prompt is not rendered and nothing is computed.
///
/// # Errors
/// The message that the client would receive.
pub fn check(path: &str, body: &[u8], model: &Model) -> Result<(), String> {
    checked(path, body, model).map_err(|error| error.message)
}

fn checked(path: &str, body: &[u8], model: &Model) -> Result<(), ApiError> {
    let of_path = |of: &&Endpoint| of.takes.is_some() && of.paths.contains(&path);
    let known = ENDPOINTS.iter().find(of_path).map(|of| (of.takes, of.translation));
    let Some((Some(Takes::Object { tables, required }), translation)) = known else {
        return Err(ApiError::not_found("no such endpoint"));
    };
    let given = Body::parse(body, tables, has_field)?;
    for name in required {
        given.required(name)?;
    }
    if let Some(translation) = translation {
        return generates(&translation(&given)?, model);
    }
    if tables.contains(&params::FIELDS) {
        return generates(&given, model);
    }
    Ok(())
}

/// Checks a body that asks for text.
fn generates(body: &Body, model: &Model) -> Result<(), ApiError> {
    if let Some(messages) = body.get("messages") {
        conversation::messages(messages)?;
    }
    conversation::functions(body)?;
    let defaults = Defaults { seed: Some(0), ..Defaults::default() };
    Params::of(body, model, &defaults)?;
    let Some((field, grammar)) = constraints::grammar(body)? else { return Ok(()) };
    let compiled = model.constraint(&grammar);
    compiled.map(drop).map_err(|error| ApiError::field(field, error))
}
