//! An endpoint as a row of a table.

use std::sync::Arc;

use axum::routing::MethodRouter;

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Body, Field};
use crate::keys::Role;

/// A method of a path.
#[derive(Clone, Copy)]
pub struct Endpoint {
    /// The least role that a key needs; `None` if it needs no key.
    pub role: Option<Role>,
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

    /// A GET, whose answer is JSON.
    pub const fn get(
        role: Option<Role>,
        paths: &'static [&'static str],
        summary: &'static str,
        route: fn() -> MethodRouter<Arc<App>>,
    ) -> Endpoint {
        Endpoint {
            role,
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

    /// A POST, whose answer is JSON.
    pub const fn post(
        role: Option<Role>,
        paths: &'static [&'static str],
        summary: &'static str,
        route: fn() -> MethodRouter<Arc<App>>,
        takes: Takes,
    ) -> Endpoint {
        Endpoint { takes: Some(takes), ..Endpoint::get(role, paths, summary, route) }
    }

    /// With these parameters of the query.
    pub const fn asks(self, query: &'static [Parameter]) -> Endpoint {
        Endpoint { query, ..self }
    }

    /// With an answer of another type.
    pub const fn answers(self, content: &'static str) -> Endpoint {
        Endpoint { content, ..self }
    }

    /// For which the lines of a batch may ask.
    pub const fn in_batches(self) -> Endpoint {
        Endpoint { is_batch: true, ..self }
    }

    /// Of a body that means a chat request.
    pub const fn as_chat(self, translation: Translation) -> Endpoint {
        Endpoint { translation: Some(translation), ..self }
    }
}
