//! The table of endpoints: the router, the OpenAPI document, batches and checks of requests walk it.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::routing::{MethodRouter, get, post};

use crate::api::{
    adapters, chat, completions, embeddings, extract, info, live, messages, native, openapi,
    rerank, responses, slots, tokens,
};
use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Body, Field};
use crate::params;
use crate::translate;

/// A method of a path.
#[derive(Clone, Copy)]
pub struct Endpoint {
    /// Its path and the others that it has, as axum writes them.
    pub paths: &'static [&'static str],
    /// What it does.
    pub summary: &'static str,
    /// What answers it.
    pub route: fn() -> MethodRouter<Arc<App>>,
    /// Parameters of the query.
    pub query: &'static [Parameter],
    /// The body of a request; `None` is a GET.
    pub takes: Option<Takes>,
    /// The type of the answer's content.
    pub content: &'static str,
    /// Whether the lines of a batch may ask for it.
    pub is_batch: bool,
    /// The chat request that a body means.
    pub translation: Option<Translation>,
}

/// A parameter of a query.
#[derive(Clone, Copy)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// Whether it must be there.
    pub is_required: bool,
}

/// Makes a chat request of a body.
pub type Translation = fn(&Body) -> Result<Body, ApiError>;

/// The body of a request.
#[derive(Clone, Copy)]
pub enum Takes {
    /// An object.
    Object {
        /// Its fields.
        tables: &'static [&'static [Field]],
        /// Those that must be there.
        required: &'static [&'static str],
    },
    /// A list of objects with these fields.
    List(&'static [Field]),
}

impl Endpoint {
    /// Its path.
    pub fn path(&self) -> &'static str {
        self.paths[0]
    }

    const fn get(
        paths: &'static [&'static str],
        summary: &'static str,
        route: fn() -> MethodRouter<Arc<App>>,
    ) -> Endpoint {
        Endpoint {
            paths,
            summary,
            route,
            query: &[],
            takes: None,
            content: "application/json",
            is_batch: false,
            translation: None,
        }
    }

    const fn post(
        paths: &'static [&'static str],
        summary: &'static str,
        route: fn() -> MethodRouter<Arc<App>>,
        tables: &'static [&'static [Field]],
        required: &'static [&'static str],
    ) -> Endpoint {
        let takes = Some(Takes::Object { tables, required });
        Endpoint { takes, ..Endpoint::get(paths, summary, route) }
    }

    const fn of_a_model(self) -> Endpoint {
        Endpoint { query: MODEL, ..self }
    }

    const fn in_batches(self) -> Endpoint {
        Endpoint { is_batch: true, ..self }
    }

    const fn as_chat(self, translation: Translation) -> Endpoint {
        Endpoint { translation: Some(translation), ..self }
    }
}

const MODEL: &[Parameter] = &[Parameter {
    name: "model",
    doc: "A model that is loaded; without it, the one used last.",
    is_required: false,
}];

const RELOAD: &[Parameter] = &[Parameter {
    name: "reload",
    doc: "`1`: read the folder of models again before.",
    is_required: false,
}];

const CHAT: &[&[Field]] = &[params::FIELDS, chat::FIELDS];

/// All endpoints; the files of the page are not among them.
pub const ENDPOINTS: &[Endpoint] = &[
    Endpoint::post(
        &["/v1/chat/completions", "/chat/completions"],
        "Answer a conversation.",
        || post(chat::complete),
        CHAT,
        &["messages"],
    )
    .in_batches()
    .as_chat(chat::translation),
    Endpoint::post(
        &["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"],
        "Count the tokens of a conversation.",
        || post(chat::count),
        CHAT,
        &["messages"],
    )
    .as_chat(chat::translation),
    Endpoint::post(
        &["/v1/completions"],
        "Continue texts.",
        || post(completions::complete),
        &[params::FIELDS, completions::FIELDS],
        &["prompt"],
    )
    .in_batches(),
    Endpoint::post(
        &["/v1/responses", "/responses"],
        "Answer an input, with OpenAI's Responses API.",
        || post(responses::create),
        &[responses::FIELDS],
        &["input"],
    )
    .in_batches()
    .as_chat(responses::translation),
    Endpoint::post(
        &["/v1/responses/input_tokens"],
        "Count the tokens of an input.",
        || post(responses::count),
        &[responses::FIELDS],
        &["input"],
    )
    .as_chat(responses::translation),
    Endpoint::post(
        &["/v1/embeddings"],
        "Make a vector of each text.",
        || post(embeddings::embed),
        &[embeddings::FIELDS],
        &["input"],
    )
    .in_batches(),
    Endpoint::post(
        &["/embedding", "/embeddings"],
        "Make a vector of each text, in llama-server's form.",
        || post(embeddings::native),
        &[embeddings::FIELDS],
        &[],
    ),
    Endpoint::post(
        &["/v1/classify", "/classify"],
        "Label texts.",
        || post(rerank::classify),
        &[rerank::CLASSIFY],
        &["input"],
    )
    .in_batches(),
    Endpoint::post(
        &["/v1/extract"],
        "Extract entities from texts.",
        || post(extract::extract),
        &[extract::FIELDS],
        &["input"],
    )
    .in_batches(),
    Endpoint::post(
        &["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"],
        "Score documents for a query.",
        || post(rerank::rerank),
        &[rerank::FIELDS],
        &["query"],
    )
    .in_batches(),
    Endpoint::post(
        &["/v1/messages"],
        "Answer a conversation, with Anthropic's Messages API.",
        || post(messages::create),
        &[messages::FIELDS],
        &["messages"],
    )
    .in_batches()
    .as_chat(messages::translation),
    Endpoint::post(
        &["/v1/messages/count_tokens"],
        "Count the tokens of a conversation, with Anthropic's Messages API.",
        || post(messages::count),
        &[messages::FIELDS],
        &["messages"],
    )
    .as_chat(messages::translation),
    Endpoint::post(
        &["/completion", "/completions"],
        "Continue a text, with llama-server's fields.",
        || post(native::complete),
        &[params::FIELDS, native::FIELDS],
        &["prompt"],
    ),
    Endpoint::post(
        &["/infill"],
        "Fill in code between a prefix and a suffix.",
        || post(native::infill),
        &[params::FIELDS, native::FIELDS, native::INFILL],
        &[],
    ),
    Endpoint::post(
        &["/tokenize"],
        "Turn a text into tokens.",
        || post(tokens::tokenize),
        &[tokens::TOKENIZE],
        &[],
    ),
    Endpoint::post(
        &["/detokenize"],
        "Turn tokens into text.",
        || post(tokens::detokenize),
        &[tokens::DETOKENIZE],
        &["tokens"],
    ),
    Endpoint::post(
        &["/apply-template"],
        "Render a conversation by the chat template.",
        || post(tokens::apply_template),
        CHAT,
        &["messages"],
    )
    .as_chat(chat::translation),
    Endpoint {
        query: RELOAD,
        ..Endpoint::get(&["/v1/models", "/models"], "The models.", || get(info::models))
    },
    Endpoint::get(&["/v1/models/{*id}"], "A model.", || get(info::model)),
    Endpoint::post(
        &["/models/load"],
        "Load a model.",
        || post(info::load),
        &[info::MODEL],
        &["model"],
    ),
    Endpoint::post(
        &["/models/unload"],
        "Unload a model.",
        || post(info::unload),
        &[info::MODEL],
        &["model"],
    ),
    Endpoint::get(&["/props"], "Properties of the server and a model.", || get(info::props))
        .of_a_model(),
    Endpoint::get(&["/slots"], "What is running.", || get(slots::list)).of_a_model(),
    Endpoint {
        query: &[
            MODEL[0],
            Parameter {
                name: "action",
                doc: "`save` the slot to a file, `restore` it from one, or `erase` it.",
                is_required: true,
            },
        ],
        ..Endpoint::post(
            &["/slots/{id}"],
            "Save, restore or erase a slot.",
            || post(slots::act),
            &[slots::FIELDS],
            &[],
        )
    },
    Endpoint::get(&["/lora-adapters"], "The LoRA adapters and their strengths.", || {
        get(adapters::list)
    })
    .of_a_model(),
    Endpoint {
        takes: Some(Takes::List(adapters::FIELDS)),
        ..Endpoint::get(
            &["/lora-adapters"],
            "Set the strengths of LoRA adapters for requests that name none.",
            || post(adapters::set),
        )
        .of_a_model()
    },
    Endpoint::get(&["/health", "/v1/health"], "Whether requests are answered.", || {
        get(info::health)
    }),
    Endpoint::get(&["/livez"], "Whether the process works.", || get(info::alive)),
    Endpoint::get(&["/readyz"], "Whether a balancer shall send requests.", || get(info::ready)),
    Endpoint {
        content: "text/plain",
        ..Endpoint::get(&["/metrics"], "Prometheus metrics.", || get(info::metrics))
    },
    Endpoint {
        content: "text/event-stream",
        ..Endpoint::get(&["/live"], "What runs, as events without an end.", || get(live::stream))
    },
    Endpoint::get(&["/openapi.json"], "This document.", || get(openapi::document)),
];

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
