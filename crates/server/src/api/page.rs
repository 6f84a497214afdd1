//! The web page at `/`: a few files inside the program, which ask nothing of any other server.

use std::sync::Arc;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
};

use crate::app::App;

/// Scripts and styles of the page itself alone, no frames around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

struct Asset {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// A file of the folder `web`.
macro_rules! asset {
    ($path:literal, $kind:expr, $file:literal) => {
        Asset { path: $path, kind: $kind, text: include_str!(concat!("../../web/", $file)) }
    };
}

const ASSETS: &[Asset] = &[
    asset!("/", HTML, "index.html"),
    asset!("/style.css", STYLE, "style.css"),
    asset!("/api.js", SCRIPT, "api.js"),
    asset!("/app.js", SCRIPT, "app.js"),
    asset!("/card.js", SCRIPT, "card.js"),
    asset!("/charts.js", SCRIPT, "charts.js"),
    asset!("/chat.js", SCRIPT, "chat.js"),
    asset!("/dom.js", SCRIPT, "dom.js"),
    asset!("/inline.js", SCRIPT, "inline.js"),
    asset!("/list.js", SCRIPT, "list.js"),
    asset!("/live.js", SCRIPT, "live.js"),
    asset!("/markdown.js", SCRIPT, "markdown.js"),
    asset!("/run.js", SCRIPT, "run.js"),
    asset!("/settings.js", SCRIPT, "settings.js"),
    asset!("/store.js", SCRIPT, "store.js"),
    asset!("/theme.js", SCRIPT, "theme.js"),
    asset!("/transcript.js", SCRIPT, "transcript.js"),
];

/// Whether a path is one of the page's files, which need no key.
pub fn is_asset(path: &str) -> bool {
    ASSETS.iter().any(|asset| asset.path == path)
}

/// Adds the files.
pub fn routes(router: Router<Arc<App>>) -> Router<Arc<App>> {
    ASSETS
        .iter()
        .fold(router, |router, asset| router.route(asset.path, get(async move || send(asset))))
}

fn send(asset: &Asset) -> Response {
    let mut response = asset.text.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(
        HeaderName::from_static("referrer-policy"),
        HeaderValue::from_static("no-referrer"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::ASSETS;

    #[test]
    fn every_file_of_the_folder_is_served_and_all_are_small() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/web");
        let names = std::fs::read_dir(folder)
            .expect("the folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
        for name in names.filter(|name| name != "README.md" && name != "index.html") {
            let path = format!("/{name}");
            assert!(ASSETS.iter().any(|asset| asset.path == path), "{name} is not served");
        }
        let bytes: usize = ASSETS.iter().map(|asset| asset.text.len()).sum();
        assert!(bytes <= 150_000, "{bytes} bytes");
    }
}
