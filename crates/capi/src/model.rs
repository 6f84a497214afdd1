//! Models: opening, facts, tokens, freeing.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use bilayer::{Builder, Cancel, Encode, GpuLayers, Model, Numa};

use crate::failure::{BILAYER_INTERNAL, Failure, guarded};
use crate::pointers::{give, slice, text, text_or_null};

/// `gpu_layers`: as many layers on the GPU as are of use and fit.
pub const BILAYER_LAYERS_AUTO: i32 = -1;
/// `gpu_layers`: all layers on the GPU.
pub const BILAYER_LAYERS_ALL: i32 = -2;

/// A model on its devices.
pub struct BilayerModel {
    model: Mutex<Option<Model>>,
    cancel: Cancel,
    /// Strengths of adapters for the next answers, if any were set.
    strengths: Mutex<Option<Vec<f32>>>,
}

/// Called with the text of each token, `len` bytes of UTF-8 without a NUL at its end, and with the pointer given along. The answer
/// goes on while it returns true. It must not call functions on the same model other than `bilayer_cancel`, also not through a
/// callback of another model; they refuse. Two threads whose callbacks call each other's models wait for each other forever.
/// It returns: an exception of C++ that leaves it, or a longjmp out of it, is undefined.
pub type BilayerCallback = Option<
    unsafe extern "C" fn(text: *const c_char, len: usize, token: u32, user: *mut c_void) -> bool,
>;

/// How a model is opened. Zero everywhere is valid and runs all layers on the CPU.
#[repr(C)]
pub struct BilayerOptions {
    /// Layers on the GPU, the output head first; BILAYER_LAYERS_AUTO, BILAYER_LAYERS_ALL.
    pub gpu_layers: i32,
    /// Tokens of a prompt and its answer together; 0: the model's own, at most 8192.
    pub context: usize,
    /// CPU threads; 0: one for each physical core.
    pub threads: usize,
    /// Opens an encoder with a classification head for embeddings.
    pub embeddings: bool,
    /// Which GPU, as `bilayer devices` prints it; NULL: all discrete GPUs, else the best one.
    pub device: *const c_char,
    /// A chat template, or the name of one, in place of the model's own; NULL: the model's own.
    pub chat_template: *const c_char,
    /// How threads and a copy of the weights are divided among the CPU's NUMA nodes: `off` or `distribute`; NULL: off.
    pub numa: *const c_char,
}

impl BilayerModel {
    /// Runs a call that bilayer_cancel ends. Clears an earlier cancellation.
    ///
    /// # Errors
    /// As of [`with`](BilayerModel::with).
    pub(crate) fn work<T>(
        &self,
        call: impl FnOnce(&mut Model) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.with(|model| {
            self.cancel.reset();
            call(model)
        })
    }

    /// The strengths of adapters for the next answers.
    pub(crate) fn strengths(&self) -> Option<Vec<f32>> {
        self.strengths.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Runs a call on the model.
    ///
    /// # Errors
    /// Those of the call; an earlier call panicked.
    pub(crate) fn with<T>(
        &self,
        call: impl FnOnce(&mut Model) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let _calling = Calling::begin(self)?;
        let mut held = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken out, so that a panic leaves none behind.
        let Some(mut model) = held.take() else {
            let line = "an earlier call on this model ended with an internal error".to_owned();
            return Err(Failure(BILAYER_INTERNAL, line));
        };
        let done = call(&mut model);
        *held = Some(model);
        done
    }
}

thread_local! {
    /// The models that this thread calls: the second in a callback of the first, and so on.
    static CALLED: RefCell<Vec<*const BilayerModel>> = const { RefCell::new(Vec::new()) };
}

/// A call of this thread on a model, so that a callback that calls it again is refused instead of waiting for itself.
struct Calling;

impl Calling {
    fn begin(model: &BilayerModel) -> Result<Calling, Failure> {
        let is_called = CALLED.try_with(|called| {
            let mut called = called.borrow_mut();
            let is_called = called.iter().any(|&known| std::ptr::eq(known, model));
            if !is_called {
                called.push(model);
            }
            is_called
        });
        match is_called {
            Ok(true) => Err(Failure::usage("a callback called a model that waits for it")),
            // The list is gone when destructors of static objects call, after the thread's end.
            Ok(false) | Err(_) => Ok(Calling),
        }
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        let _ = CALLED.try_with(|called| called.borrow_mut().pop());
    }
}

/// The model behind a pointer.
///
/// # Safety
/// `model` is NULL or from bilayer_open and not freed.
pub(crate) unsafe fn given<'a>(model: *const BilayerModel) -> Result<&'a BilayerModel, Failure> {
    // SAFETY: the caller's promise.
    unsafe { model.as_ref() }.ok_or_else(|| Failure::usage("model is NULL"))
}

/// Opens a GGUF file, of several shards the first, and writes the model to `model`. `options` may be NULL: the placement is
/// then automatic. After a failure `model` is NULL.
///
/// # Safety
/// `path` and the texts of `options` end with NUL; `options` is NULL or valid; `model` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_open(
    path: *const c_char,
    options: *const BilayerOptions,
    model: *mut *mut BilayerModel,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, path, options) =
            unsafe { (room(model)?, text(path, "path")?, options.as_ref()) };
        let cancel = Cancel::new();
        let mut builder = Model::builder(path).cancel(&cancel);
        if let Some(options) = options {
            builder = builder.gpu_layers(match options.gpu_layers {
                BILAYER_LAYERS_AUTO => GpuLayers::Auto,
                BILAYER_LAYERS_ALL => GpuLayers::All,
                count => GpuLayers::Count(u32::try_from(count).map_err(|_| {
                    let line = format!("gpu_layers is {count}; it must be a number, -1 or -2");
                    Failure::usage(line)
                })?),
            });
            if options.context > 0 {
                builder = builder.context(options.context);
            }
            if options.threads > 0 {
                builder = builder.threads(options.threads);
            }
            if options.embeddings {
                builder = builder.embeddings();
            }
            // SAFETY: the caller's promise.
            let (device, template, numa) = unsafe {
                (
                    text_or_null(options.device, "device")?,
                    text_or_null(options.chat_template, "chat_template")?,
                    text_or_null(options.numa, "numa")?,
                )
            };
            if let Some(name) = device {
                builder = builder.device(name);
            }
            if let Some(numa) = numa {
                let numa = numa.parse::<Numa>();
                builder = builder.numa(numa.map_err(|e| Failure::usage(e.to_string()))?);
            }
            if let Some(template) = template {
                builder = builder.chat_template(template);
            }
        }
        model.write(opened(builder, cancel)?);
        Ok(())
    })
}

/// Where a model is written. No reference: the program may read it in a callback.
pub(crate) struct Room(NonNull<*mut BilayerModel>);

impl Room {
    pub(crate) fn write(&self, model: *mut BilayerModel) {
        // SAFETY: whoever called `room` promised that it may be written to.
        unsafe { self.0.write(model) };
    }
}

/// Where a model is written, which is NULL until then.
///
/// # Safety
/// `model` is NULL or may be written to as long as the result is used.
pub(crate) unsafe fn room(model: *mut *mut BilayerModel) -> Result<Room, Failure> {
    let room = Room(NonNull::new(model).ok_or_else(|| Failure::usage("model is NULL"))?);
    room.write(std::ptr::null_mut());
    Ok(room)
}

/// Opens a model that is freed by bilayer_free.
pub(crate) fn opened(builder: Builder<'_>, cancel: Cancel) -> Result<*mut BilayerModel, Failure> {
    let (model, strengths) = (Mutex::new(Some(builder.open()?)), Mutex::default());
    Ok(Box::into_raw(Box::new(BilayerModel { model, cancel, strengths })))
}

/// Sets the strength of each of `count` adapters for the answers that begin from now on, of a model that was opened with
/// `adapters_by_request`. NULL: those with which it was opened.
///
/// # Safety
/// `model` is from bilayer_open and not freed; `strengths` is NULL or points to `count` floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_lora(
    model: *const BilayerModel,
    strengths: *const f32,
    count: usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, given) = unsafe { (given(model)?, slice(strengths, count, "strengths")?) };
        let strengths = (!strengths.is_null()).then(|| given.to_vec());
        *model.strengths.lock().unwrap_or_else(PoisonError::into_inner) = strengths;
        Ok(())
    })
}

/// Frees a model; NULL is ignored. No other call on it may be running.
///
/// # Safety
/// `model` is NULL or from bilayer_open, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_free(model: *mut BilayerModel) {
    guarded(|| {
        if !model.is_null() {
            // SAFETY: it is from Box::into_raw, and the caller promises that this is its last use.
            drop(unsafe { Box::from_raw(model) });
        }
        Ok(())
    });
}

/// Ends the call that runs: an answer before its next token, vectors and scores between steps. The call returns
/// BILAYER_INTERRUPTED. Has no effect on a call that has not begun or that waits for another one. May be called while another
/// thread works with the model, and in a signal handler.
///
/// # Safety
/// `model` is NULL or from bilayer_open and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_cancel(model: *const BilayerModel) {
    // SAFETY: the caller's promise.
    if let Some(model) = unsafe { model.as_ref() } {
        model.cancel.cancel();
    }
}

/// Writes the tokens of a text, with those that the model wants around it, to `tokens`, and their number to `count`. With NULL
/// and room 0 only the number. Control tokens that the text spells are parsed if `parse_special`.
///
/// # Safety
/// `text` ends with NUL; `tokens` is NULL or has room for `room` tokens; `count` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_tokenize(
    model: *const BilayerModel,
    text: *const c_char,
    parse_special: bool,
    tokens: *mut u32,
    room: usize,
    count: *mut usize,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { bilayer_tokenize_as(model, text, true, parse_special, tokens, room, count) }
}

/// As bilayer_tokenize, but the tokens that the model wants around a text are left out unless `add_special`.
///
/// # Safety
/// As of bilayer_tokenize.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_tokenize_as(
    model: *const BilayerModel,
    text: *const c_char,
    add_special: bool,
    parse_special: bool,
    tokens: *mut u32,
    room: usize,
    count: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, text) = unsafe { (given(model)?, crate::pointers::text(text, "text")?) };
        let encode = Encode { add_special, parse_special };
        let found = model.with(|model| Ok(model.tokens_as(text, encode)?))?;
        // SAFETY: the caller's promise.
        unsafe { give(&found, (tokens, room), count) }
    })
}

/// Writes the text of tokens, without control tokens and without a NUL at its end, to `text`, and its bytes to `len`. With NULL
/// and room 0 only their number.
///
/// # Safety
/// `tokens` points to `count` tokens; `text` is NULL or has room for `room` bytes; `len` is NULL or may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_detokenize(
    model: *const BilayerModel,
    tokens: *const u32,
    count: usize,
    text: *mut c_char,
    room: usize,
    len: *mut usize,
) -> i32 {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (model, tokens) = unsafe { (given(model)?, slice(tokens, count, "tokens")?) };
        let found = model.with(|model| Ok(model.text(tokens)))?;
        // SAFETY: the caller's promise.
        unsafe { give(found.as_bytes(), (text.cast(), room), len) }
    })
}

/// Elements of an embedding; 0 without a model.
///
/// # Safety
/// `model` is NULL or from bilayer_open and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_width(model: *const BilayerModel) -> usize {
    // SAFETY: the caller's promise.
    fact(unsafe { model.as_ref() }, Model::width)
}

/// Tokens that a prompt and its answer may have together; 0 without a model.
///
/// # Safety
/// `model` is NULL or from bilayer_open and not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bilayer_context(model: *const BilayerModel) -> usize {
    // SAFETY: the caller's promise.
    fact(unsafe { model.as_ref() }, Model::context)
}

/// A fact of the model; 0 without one.
fn fact(model: Option<&BilayerModel>, of: impl Fn(&Model) -> usize) -> usize {
    let mut found = 0;
    guarded(|| {
        if let Some(model) = model {
            found = model.with(|model| Ok(of(model)))?;
        }
        Ok(())
    });
    found
}
