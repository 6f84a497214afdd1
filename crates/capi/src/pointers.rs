//! What callers hand in as pointers, checked as far as it can be.

use std::ffi::{CStr, c_char};

use crate::failure::Failure;

/// A text.
///
/// # Errors
/// It is NULL or not UTF-8.
///
/// # Safety
/// `text` is NULL or ends with NUL and stays unchanged for `'a`.
pub unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::usage(format!("{name} is NULL")));
    }
    // SAFETY: it is not NULL, and the caller promises the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::usage(format!("{name} is not UTF-8")))
}

/// A text that may be left out as NULL.
///
/// # Errors
/// It is not UTF-8.
///
/// # Safety
/// As of [`text`].
pub unsafe fn text_or_null<'a>(
    given: *const c_char,
    name: &str,
) -> Result<Option<&'a str>, Failure> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { text(given, name) }.map(Some)
}

/// Elements to read.
///
/// # Errors
/// They are NULL though there are some.
///
/// # Safety
/// `data` is NULL or points to `len` elements that stay unchanged for `'a`.
pub unsafe fn slice<'a, T>(data: *const T, len: usize, name: &str) -> Result<&'a [T], Failure> {
    match (data.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::usage(format!("{name} is NULL"))),
        // SAFETY: it is not NULL, and the caller promises the rest.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(data, len) }),
    }
}

/// Copies `from` to the caller's memory as far as there is room, and writes the whole length to `len`. NULL with room 0 asks
/// for the length alone. An empty result needs no buffer.
///
/// # Errors
/// There is too little room, or a pointer is NULL.
///
/// # Safety
/// `to` is NULL or has room for `room` elements; `len` is NULL or may be written to.
pub unsafe fn give<T: Copy>(
    from: &[T],
    (to, room): (*mut T, usize),
    len: *mut usize,
) -> Result<(), Failure> {
    if !len.is_null() {
        // SAFETY: it is not NULL, and the caller promises that it may be written to.
        unsafe { len.write(from.len()) };
    }
    if from.is_empty() || (to.is_null() && room == 0 && !len.is_null()) {
        return Ok(());
    }
    if to.is_null() || room < from.len() {
        let needed = from.len();
        return Err(Failure::usage(format!("{needed} elements do not fit into room for {room}")));
    }
    // SAFETY: `to` has room for as many, and the caller's memory does not overlap ours.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    Ok(())
}
