//! Embeddings and relevance scores.

use std::ffi::c_char;

use bilayer::{Excess, Norm};

use crate::failure::{Failure, guarded};
use crate::model::{BilayerModel, given};
use crate::pointers::{give, slice, text};

/// Writes a vector for each of `count` texts to `vectors`, one after the other, which has room for `room` floats: `count` times
/// bilayer_width. They have length 1 unless the checkpoint has no Normalize module. Texts longer than the context are cut if
/// `truncate`, and refused otherwise.
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
    let excess = if truncate { Excess::Truncate } else { Excess::Refuse };
    // SAFETY: the caller's promise.
    guarded(|| unsafe { embed(model, (texts, count), excess, None, (vectors, room)) })
}

/// As bilayer_embed, with vectors scaled as `norm` says: any negative number not at all, 2 to length 1, 0 to a largest
/// absolute value of 32760, any other P to a P-norm of 1.
///
/// # Safety
/// As of bilayer_embed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_embed_scaled(
    model: *const BilayerModel,
    texts: *const *const c_char,
    count: usize,
    truncate: bool,
    norm: i32,
    vectors: *mut f32,
    room: usize,
) -> i32 {
    let excess = if truncate { Excess::Truncate } else { Excess::Refuse };
    let norm = Norm::numbered(norm.into());
    // SAFETY: the caller's promise.
    guarded(|| unsafe { embed(model, (texts, count), excess, Some(norm), (vectors, room)) })
}

/// Embeds texts; without a norm they are scaled as the checkpoint says.
///
/// # Safety
/// As of bilayer_embed.
unsafe fn embed(
    model: *const BilayerModel,
    (texts, count): (*const *const c_char, usize),
    excess: Excess,
    norm: Option<Norm>,
    vectors: (*mut f32, usize),
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let (model, texts) = unsafe { (given(model)?, all(texts, count, "texts")?) };
    let found = model.work(|model| {
        model.set_excess(excess);
        let usual = model.norm();
        model.set_norm(norm.unwrap_or(usual));
        let found = model.embed(&texts);
        model.set_norm(usual);
        Ok(found?.concat())
    })?;
    // SAFETY: the caller's promise.
    unsafe { give(&found, vectors, std::ptr::null_mut()) }
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
        let (model, query, documents) =
            unsafe { (given(model)?, text(query, "query")?, all(documents, count, "documents")?) };
        let found = model.work(|model| {
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
    unsafe { slice(texts, count, name)?.iter().map(|&each| text(each, name)).collect() }
}
