//! The samplers that a request names, by llama.cpp's names or letters; those that it does not name are off.

use bilayer_engine::Model;
use bilayer_engine::sampling::{self, Infill, Options};
use serde_json::Value;

use crate::error::ApiError;
use crate::fields::{Accepts, Body, Field};

/// The field.
pub const FIELD: Field = Field::new(
    "samplers",
    Accepts::Texts(32, 64),
    "The samplers to use, a list of names or a text of llama.cpp's letters; their order is fixed.",
);

/// A sampler as requests name it.
struct Sampler {
    name: &'static str,
    letter: char,
    /// Its other names, with `_` between words.
    others: &'static [&'static str],
}

const fn sampler(name: &'static str, letter: char, others: &'static [&'static str]) -> Sampler {
    Sampler { name, letter, others }
}

/// Those of llama.cpp. Three change nothing: `top_n_sigma` and `adaptive_p` are refused by their numbers if they are on, and
/// `tfs_z` was removed from llama.cpp.
const SAMPLERS: &[Sampler] = &[
    sampler("penalties", 'e', &[]),
    sampler("dry", 'd', &[]),
    sampler("top_n_sigma", 's', &[]),
    sampler("top_k", 'k', &[]),
    sampler("typical", 'y', &["typical_p", "typ_p", "typ"]),
    sampler("top_p", 'p', &["nucleus"]),
    sampler("min_p", 'm', &[]),
    sampler("xtc", 'x', &[]),
    sampler("infill", 'i', &[]),
    sampler("temperature", 't', &["temp"]),
    sampler("adaptive_p", 'a', &[]),
    sampler("tfs_z", 'f', &["tfs"]),
];

/// The names of the samplers that a body asks for; `None` if it leaves the choice to the server.
///
/// # Errors
/// It names one that llama.cpp does not have.
pub fn named(body: &Body) -> Result<Option<Vec<&'static str>>, ApiError> {
    let unknown = |name: &str| {
        let problem = format!("names no sampler of this server: '{name}'");
        ApiError::field(FIELD.name, problem)
    };
    let by_name = |name: &str| {
        let plain = name.replace('-', "_");
        let is_it =
            |sampler: &&Sampler| sampler.name == plain || sampler.others.contains(&plain.as_str());
        SAMPLERS.iter().find(is_it).map(|sampler| sampler.name).ok_or_else(|| unknown(name))
    };
    let by_letter = |letter: char| {
        let found = SAMPLERS.iter().find(|sampler| sampler.letter == letter);
        found.map(|sampler| sampler.name).ok_or_else(|| unknown(&letter.to_string()))
    };
    let named: Vec<&'static str> = match body.get(FIELD.name) {
        None => return Ok(None),
        Some(Value::String(letters)) => letters.chars().map(by_letter).collect::<Result<_, _>>()?,
        Some(_) => {
            let names = body.texts(FIELD.name);
            names.iter().map(|name| by_name(name)).collect::<Result<_, _>>()?
        }
    };
    Ok(Some(named))
}

/// The names of the samplers that a request uses, in the order in which they run.
pub fn used(named: Option<&[&str]>) -> Vec<&'static str> {
    let is_used = |name: &&'static str| match named {
        None => *name != "infill",
        Some(named) => named.contains(name) || SAMPLERS.iter().all(|sampler| sampler.name != *name),
    };
    sampling::names().filter(is_used).collect()
}

/// Turns off every sampler that is not named, and turns on those that only a name turns on.
pub fn choose(options: &mut Options, named: &[&str], model: &Model) {
    let is_off = |name: &str| !named.contains(&name);
    if is_off("penalties") {
        options.repeat_penalty = 1.0;
        (options.presence_penalty, options.frequency_penalty) = (0.0, 0.0);
    }
    if is_off("dry") {
        options.dry = None;
    }
    if is_off("top_k") {
        options.top_k = 0;
    }
    if is_off("typical") {
        options.typical = 1.0;
    }
    if is_off("top_p") {
        options.top_p = 1.0;
    }
    if is_off("min_p") {
        options.min_p = 0.0;
    }
    if is_off("xtc") {
        options.xtc = None;
    }
    if is_off("temperature") {
        (options.temperature, options.dynatemp_range) = (1.0, Options::default().dynatemp_range);
    }
    options.infill = (!is_off("infill")).then(|| Infill::new(model.tokenizer().clone()));
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{FIELD, named, used};
    use crate::fields::Body;

    fn body(samplers: &Value) -> Body {
        Body::check(json!({ "samplers": samplers }), &[&[FIELD]]).expect("a body")
    }

    #[test]
    fn samplers_have_names_and_letters() {
        let names = json!(["top_k", "top-p", "typ_p", "infill", "temp"]);
        let expected = Some(vec!["top_k", "top_p", "typical", "infill", "temperature"]);
        assert_eq!(named(&body(&names)).expect("names"), expected);
        assert_eq!(named(&body(&json!("kpyit"))).expect("letters"), expected);
        let all = named(&body(&json!("edskypmxita"))).expect("llama.cpp's default and others");
        assert_eq!(all.map(|all| all.len()), Some(11));
        assert_eq!(
            named(&body(&json!("kfypmt"))).expect("of older clients").map(|n| n.len()),
            Some(6)
        );
        for wrong in [json!(["top_k", "nothing"]), json!("kq")] {
            let error = named(&body(&wrong)).expect_err("unknown");
            assert_eq!(error.param.as_deref(), Some("samplers"));
        }
    }

    #[test]
    fn infill_is_used_only_if_it_is_named() {
        assert!(!used(None).contains(&"infill"));
        let used = used(Some(&["top_k", "infill", "tfs_z"]));
        assert_eq!(used, ["logit_bias", "top_k", "infill", "mirostat"]);
    }
}
