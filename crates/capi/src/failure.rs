//! Failures: a code that is returned, and a message that the thread keeps.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bilayer::{Error, Exit};

/// The call succeeded.
pub const BILAYER_OK: i32 = 0;
/// An argument is out of range, or the call does not suit the model.
pub const BILAYER_USAGE: i32 = 2;
/// The model file cannot be used.
pub const BILAYER_BAD_MODEL: i32 = 65;
/// The file does not exist.
pub const BILAYER_NO_FILE: i32 = 66;
/// The device does not exist or does not work.
pub const BILAYER_NO_DEVICE: i32 = 69;
/// An internal error.
pub const BILAYER_INTERNAL: i32 = 70;
/// Reading or writing failed.
pub const BILAYER_IO: i32 = 74;
/// The model does not fit the memory, or a text does not fit the context.
pub const BILAYER_DOES_NOT_FIT: i32 = 75;
/// The callback or bilayer_cancel ended the call.
pub const BILAYER_INTERRUPTED: i32 = 130;

/// The codes are those of the command line.
const _: () = {
    assert!(BILAYER_USAGE == Exit::Usage as i32 && BILAYER_BAD_MODEL == Exit::BadModel as i32);
    assert!(BILAYER_NO_FILE == Exit::NoFile as i32 && BILAYER_NO_DEVICE == Exit::NoDevice as i32);
    assert!(BILAYER_INTERNAL == Exit::Internal as i32 && BILAYER_IO == Exit::Io as i32);
    assert!(BILAYER_DOES_NOT_FIT == Exit::DoesNotFit as i32);
    assert!(BILAYER_INTERRUPTED == Exit::Interrupted as i32);
};

/// A code and its message.
pub struct Failure(pub i32, pub String);

impl Failure {
    /// An invalid argument.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure(BILAYER_USAGE, message.into())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(error.exit_code() as i32, bilayer::message(&error))
    }
}

thread_local! {
    /// The message of the thread's last failure.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs a call. Its failure, or its panic, becomes a code, and its message the thread's.
pub fn guarded(call: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let Failure(code, message) = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return BILAYER_OK,
        Ok(Err(failure)) => failure,
        Err(fault) => {
            let text = bilayer::panic_text(fault.as_ref());
            Failure(BILAYER_INTERNAL, format!("internal error: {text}; please report it"))
        }
    };
    // A message with a NUL byte inside ends there.
    let bytes: Vec<u8> = message.into_bytes().into_iter().take_while(|&byte| byte != 0).collect();
    // It is gone when destructors of static objects call, after the thread's end.
    let _ = MESSAGE.try_with(|kept| *kept.borrow_mut() = CString::new(bytes).unwrap_or_default());
    code
}

/// The message of this thread's last failure; empty if none has failed. It is valid until the thread's next call.
#[unsafe(no_mangle)]
pub extern "C" fn bilayer_error_message() -> *const c_char {
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
