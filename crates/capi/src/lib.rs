//! The C interface of the library: functions that take and return plain data, and never unwind.
//!
//! **Purpose.** Open a model, generate with a callback, embed, tokenize, free. `include/bilayer.h` is made from these
//! files by cbindgen.
//!
//! **What it does not know.** Kernels, formats, schedules: those are asked of the library.
//!
//! **Read first.** [`bilayer_open`](model::bilayer_open), [`bilayer_generate`](generate::bilayer_generate),
//! [`failure`] (codes and messages).

pub mod encode;
pub mod failure;
pub mod generate;
pub mod model;
mod pointers;
pub mod settings;
