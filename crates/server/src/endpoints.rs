//! The table of endpoints: the router, the OpenAPI document, batches and checks of requests walk it.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::response::Response;
use axum::routing::{get, post};
use hyper::Method;

use crate::api::{
    adapters, chat, completions, embeddings, extract, info, live, messages, native, openapi,
    rerank, responses, slots, tokens,
};
use crate::app::App;
use crate::endpoint::{Endpoint, Parameter, Takes};
use crate::fields::Field;
use crate::keys::Role::{self, Admin, Inference, Metrics};
use crate::params;
use crate::translate;

const MODEL: &[Parameter] = &[Parameter {
    name: "model",
    doc: "A model that is loaded; without it, the one used last.",
    is_required: false,
}];

const SLOT: &[Parameter] = &[
    MODEL[0],
    Parameter {
        name: "action",
        doc: "`save` the slot to a file, `restore` it from one, or `erase` it.",
        is_required: true,
    },
];

const RELOAD: &[Parameter] = &[Parameter {
    name: "reload",
    doc: "`1`: read the folder of models again before.",
    is_required: false,
}];

const fn object(tables: &'static [&'static [Field]], required: &'static [&'static str]) -> Takes {
    Takes::Object { tables, required }
}

const CHAT: &[&[Field]] = &[params::FIELDS, chat::FIELDS];

/// All endpoints; the files of the page are not among them.
pub static ENDPOINTS: &[Endpoint] = &[
    Endpoint::post(
        Some(Inference),
        &["/v1/chat/completions", "/chat/completions"],
        "Answer a conversation.",
        || post(chat::complete),
        object(CHAT, &["messages"]),
    )
    .in_batches()
    .as_chat(chat::translation),
    Endpoint::post(
        Some(Inference),
        &["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
        "Count the tokens of a conversation.",
        || post(chat::count),
        object(CHAT, &["messages"]),
    )
    .as_chat(chat::translation),
    Endpoint::post(
        Some(Inference),
        &["/v1/completions"],
        "Continue texts.",
        || post(completions::complete),
        object(&[params::FIELDS, completions::FIELDS], &["prompt"]),
    )
    .in_batches(),
    Endpoint::post(
        Some(Inference),
        &["/v1/responses", "/responses"],
        "Answer an input, with OpenAI's Responses API.",
        || post(responses::create),
        object(&[responses::FIELDS], &["input"]),
    )
    .in_batches()
    .as_chat(responses::translation),
    Endpoint::post(
        Some(Inference),
        &["/v1/responses/input_tokens"],
        "Count the tokens of an input.",
        || post(responses::count),
        object(&[responses::FIELDS], &["input"]),
    )
    .as_chat(responses::translation),
    Endpoint::post(
        Some(Inference),
        &["/v1/embeddings"],
        "Make a vector of each text.",
        || post(embeddings::embed),
        object(&[embeddings::FIELDS], &["input"]),
    )
    .in_batches(),
    Endpoint::post(
        Some(Inference),
        &["/embedding", "/embeddings"],
        "Make a vector of each text, in llama-server's form.",
        || post(embeddings::native),
        object(&[embeddings::FIELDS], &[]),
    ),
    Endpoint::post(
        Some(Inference),
        &["/v1/classify", "/classify"],
        "Label texts.",
        || post(rerank::classify),
        object(&[rerank::CLASSIFY], &["input"]),
    )
    .in_batches(),
    Endpoint::post(
        Some(Inference),
        &["/v1/extract"],
        "Extract entities from texts.",
        || post(extract::extract),
        object(&[extract::FIELDS], &["input"]),
    )
    .in_batches(),
    Endpoint::post(
        Some(Inference),
        &["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"],
        "Score documents for a query.",
        || post(rerank::rerank),
        object(&[rerank::FIELDS], &["query"]),
    )
    .in_batches(),
    Endpoint::post(
        Some(Inference),
        &["/v1/messages"],
        "Answer a conversation, with Anthropic's Messages API.",
        || post(messages::create),
        object(&[messages::FIELDS], &["messages"]),
    )
    .in_batches()
    .as_chat(messages::translation),
    Endpoint::post(
        Some(Inference),
        &["/v1/messages/count_tokens"],
        "Count the tokens of a conversation, with Anthropic's Messages API.",
        || post(messages::count),
        object(&[messages::FIELDS], &["messages"]),
    )
    .as_chat(messages::translation),
    Endpoint::post(
        Some(Inference),
        &["/completion", "/completions"],
        "Continue a text, with llama-server's fields.",
        || post(native::complete),
        object(&[params::FIELDS, native::FIELDS], &["prompt"]),
    ),
    Endpoint::post(
        Some(Inference),
        &["/infill"],
        "Fill in code between a prefix and a suffix.",
        || post(native::infill),
        object(&[params::FIELDS, native::FIELDS, native::INFILL], &[]),
    ),
    Endpoint::post(
        Some(Inference),
        &["/tokenize"],
        "Turn a text into tokens.",
        || post(tokens::tokenize),
        object(&[tokens::TOKENIZE], &[]),
    ),
    Endpoint::post(
        Some(Inference),
        &["/detokenize"],
        "Turn tokens into text.",
        || post(tokens::detokenize),
        object(&[tokens::DETOKENIZE], &["tokens"]),
    ),
    Endpoint::post(
        Some(Inference),
        &["/apply-template"],
        "Render a conversation by the chat template.",
        || post(tokens::apply_template),
        object(CHAT, &["messages"]),
    )
    .as_chat(chat::translation),
    Endpoint::get(Some(Inference), &["/v1/models", "/models"], "The models.", || get(info::models))
        .asks(RELOAD),
    Endpoint::get(Some(Inference), &["/v1/models/{*id}"], "A model.", || get(info::model)),
    Endpoint::post(
        Some(Admin),
        &["/models/load"],
        "Load a model.",
        || post(info::load),
        object(&[info::MODEL], &["model"]),
    ),
    Endpoint::post(
        Some(Admin),
        &["/models/unload"],
        "Unload a model.",
        || post(info::unload),
        object(&[info::MODEL], &["model"]),
    ),
    Endpoint::get(Some(Inference), &["/props"], "Properties of the server and a model.", || {
        get(info::props)
    })
    .asks(MODEL),
    Endpoint::get(Some(Admin), &["/slots"], "What is running.", || get(slots::list)).asks(MODEL),
    Endpoint::post(
        Some(Admin),
        &["/slots/{id}"],
        "Save, restore or erase a slot.",
        || post(slots::act),
        object(&[slots::FIELDS], &[]),
    )
    .asks(SLOT),
    Endpoint::get(
        Some(Admin),
        &["/lora-adapters"],
        "The LoRA adapters and their strengths.",
        || get(adapters::list),
    )
    .asks(MODEL),
    Endpoint::post(
        Some(Admin),
        &["/lora-adapters"],
        "Set the strengths of LoRA adapters for requests that name none.",
        || post(adapters::set),
        Takes::List(adapters::FIELDS),
    )
    .asks(MODEL),
    Endpoint::get(None, &["/health", "/v1/health"], "Whether requests are answered.", || {
        get(info::health)
    }),
    Endpoint::get(None, &["/livez"], "Whether the process works.", || get(info::alive)),
    Endpoint::get(None, &["/readyz"], "Whether a balancer should send requests.", || {
        get(info::ready)
    }),
    Endpoint::get(Some(Metrics), &["/metrics"], "Prometheus metrics.", || get(info::metrics))
        .answers("text/plain"),
    Endpoint::get(Some(Inference), &["/live"], "What runs, as events without an end.", || {
        get(live::stream)
    })
    .answers("text/event-stream"),
    Endpoint::get(Some(Inference), &["/openapi.json"], "This document.", || get(document)),
];

/// `GET /openapi.json`.
async fn document() -> Response {
    openapi::document(ENDPOINTS)
}

/// The least role that a key needs for a path, as axum writes it; `None` if it needs no key. Where a path does not have the
/// method, no less is needed than for its others.
pub fn role(path: &str, method: &Method) -> Option<Role> {
    let of_path = || ENDPOINTS.iter().filter(|of| of.paths.contains(&path));
    let is_asked = |of: &&Endpoint| of.takes.is_some() == (*method == Method::POST);
    let least = of_path().find(is_asked).map(|of| of.role);
    // A route that is no endpoint is for nobody else.
    least.or_else(|| of_path().map(|of| of.role).max()).unwrap_or(Some(Admin))
}

/// Whether an endpoint reads a field of this name, or a translation does.
pub fn has_field(name: &str) -> bool {
    static NAMES: LazyLock<HashSet<&str>> = LazyLock::new(|| {
        let tables = ENDPOINTS.iter().flat_map(|of| match of.takes {
            Some(Takes::Object { tables, .. }) => tables,
            _ => &[],
        });
        let names = tables.copied().flatten().map(|field| field.name);
        let translated =
            [translate::messages::OWN, translate::responses::OWN].into_iter().flatten();
        names.chain(translated.copied()).collect()
    });
    NAMES.contains(name)
}

/// A router of all endpoints.
pub fn router() -> Router<Arc<App>> {
    let routes = ENDPOINTS
        .iter()
        .flat_map(|endpoint| endpoint.paths.iter().map(move |path| (*path, (endpoint.route)())));
    routes.fold(Router::new(), |router, (path, route)| router.route(path, route))
}
