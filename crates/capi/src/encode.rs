//! Embeddings and relevance scores.

use std::ffi::c_char;

use bilayer::Excess;

use crate::failure::{Failure, guarded};
use crate::model::{BilayerModel, given};
use crate::pointers::{give, slice, text};

/// Writes a vector of length 1 for each of `count` texts to `vectors`, one after the other, which has room for `room` floats:
/// `count` times bilayer_width. Texts longer than the context are cut if `truncate`, and refused otherwise.
///
/// # Safety
/// `model` is from bilayer_open and not freed; `texts` points to `count` texts that end with NUL; `vectors` has room for
/// `room` floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_embed(
    model: *const BilayerModel,
    texts: *const *const c_char,
    count: usize,
    truncate: bool,
    vectors: *mut f32,
    room: usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, texts) = unsafe { (given(model)?, all(texts, count, "texts")?) };
        let found = model.with(|model| {
            model.set_excess(if truncate { Excess::Truncate } else { Excess::Refuse });
            Ok(model.embed(&texts)?.concat())
        })?;
        // SAFETY: the caller's promise.
        unsafe { give(&found, (vectors, room), std::ptr::null_mut()) }
    })
}

/// Writes the relevance of each of `count` documents to `query` to `scores`: the higher, the more relevant.
///
/// # Safety
/// As of bilayer_embed; `scores` has room for `count` floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_rerank(
    model: *const BilayerModel,
    query: *const c_char,
    documents: *const *const c_char,
    count: usize,
    scores: *mut f32,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, query) = unsafe { (given(model)?, text(query, "query")?) };
        // SAFETY: the caller's promise.
        let documents = unsafe { all(documents, count, "documents")? };
        let found = model.with(|model| {
            model.set_excess(Excess::Refuse);
            Ok(model.rerank(query, &documents)?)
        })?;
        // SAFETY: the caller's promise.
        unsafe { give(&found, (scores, count), std::ptr::null_mut()) }
    })
}

/// Several texts.
///
/// # Safety
/// `texts` is NULL or points to `count` pointers, each NULL or a text that ends with NUL.
unsafe fn all<'a>(
    texts: *const *const c_char,
    count: usize,
    name: &str,
) -> Result<Vec<&'a str>, Failure> {
    // SAFETY: the caller's promise.
    let texts = unsafe { slice(texts, count, name)? };
    // SAFETY: the caller's promise.
    texts.iter().map(|&each| unsafe { text(each, name) }).collect()
}
