//! The samplers that a request names, by llama.cpp's names or letters, in the order in which they run.

use bilayer_engine::sampling::Samplers;
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};

/// The field.
pub const FIELD: Field = Field::new(
    "samplers",
    Accepts::Texts(32, 64),
    "The samplers that run, in this order: a list of names or a text of llama.cpp's letters.",
);

/// The samplers that a body asks for; `None` if it leaves the choice to the server.
///
/// # Errors
/// It names one that llama.cpp does not have.
pub fn named(body: &Body) -> Result<Option<Samplers>, ApiError> {
    let named = match body.get(FIELD.name) {
        None => return Ok(None),
        Some(Value::String(letters)) => Samplers::lettered(letters),
        Some(_) => Samplers::named(body.texts(FIELD.name).iter().map(String::as_str)),
    };
    named.map(Some).map_err(|error| {
        let problem = format!("names {}; it must be {}", error.found, error.expected);
        ApiError::field(FIELD.name, problem)
    })
}

#[cfg(test)]
mod tests {
    use bilayer_engine::sampling::Samplers;
    use serde_json::{Value, json};

    use super::{FIELD, named};
    use crate::fields::Body;

    fn body(samplers: &Value) -> Body {
        Body::check(json!({ "samplers": samplers }), &[&[FIELD]]).expect("a body")
    }

    #[test]
    fn samplers_have_names_and_letters_in_order() {
        let letters = |samplers: &Value| {
            named(&body(samplers)).expect("names").as_ref().map(Samplers::letters)
        };
        let names = json!(["top_k", "top-p", "typ_p", "infill", "temp"]);
        assert_eq!(letters(&names).as_deref(), Some("kpyit"));
        assert_eq!(letters(&json!("tpk")).as_deref(), Some("tpk"));
        assert_eq!(letters(&json!("edskypmxita")).as_deref(), Some("edskypmxita"));
        assert_eq!(letters(&json!("kfypmt")).as_deref(), Some("kypmt"), "of older clients");
        assert_eq!(letters(&json!([])).as_deref(), Some(""));
        assert_eq!(letters(&Value::Null), None);
        for wrong in [json!(["top_k", "nothing"]), json!("kq")] {
            let error = named(&body(&wrong)).expect_err("unknown");
            assert_eq!(error.param.as_deref(), Some("samplers"));
        }
    }
}
