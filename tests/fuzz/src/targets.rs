//! One function per kind of hostile input, by subject. Each takes any bytes and must return; `tests/reliability.rs` runs
//! them on the inputs in `seeds` and `findings`.

#[path = "targets/files.rs"]
pub mod files;
#[path = "targets/models.rs"]
pub mod models;
#[path = "targets/numbers.rs"]
pub mod numbers;
#[path = "targets/pages.rs"]
pub mod pages;
#[path = "targets/requests.rs"]
pub mod requests;
#[path = "targets/text.rs"]
pub mod text;

/// A target: its name, and what runs an input.
pub type Target = (&'static str, fn(&[u8]));

/// The functions by name.
pub const TARGETS: &[Target] = &[
    ("gguf", models::gguf),
    ("gguf_edits", models::gguf_edits),
    ("first_token", models::first_token),
    ("template", text::template),
    ("tokenizer", text::tokenizer),
    ("stops", text::stops),
    ("reply", text::reply),
    ("quant", numbers::quant),
    ("kernels", numbers::kernels),
    ("checkpoint", files::checkpoint),
    ("sentencepiece", files::sentencepiece),
    ("imatrix", files::imatrix),
    ("kl_base", files::kl_base),
    ("saved", files::saved),
    ("settings", files::settings),
    ("request", requests::request),
    ("grammar", requests::grammar),
    ("pages", pages::pages),
];
