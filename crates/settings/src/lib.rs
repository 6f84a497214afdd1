//! The names of settings on the command line and in programs, and texts that name them.
//!
//! **Purpose.** Advice such as "use a smaller batch" names a setting, which is a flag on the command line and an argument in a
//! program. A [`Phrase`] is a text in both forms, made of text and [`Setting`]s: `{}` writes flags, `{:#}` names. Errors
//! that contain phrases have both forms, too.
//!
//! **What it does not know.** What settings do, their values and their defaults.
//!
//! **Read first.** [`Setting`], [`Phrase`].
//!
//! ```
//! use bilayer_settings::{Phrase, Setting};
//!
//! let advice = Phrase::from("use ").value(Setting::GpuLayers, 3).text(" or a shorter ");
//! let advice = advice.noun("context", Setting::Context);
//! assert_eq!(format!("{advice}"), "use -ngl 3 or a shorter context (-c)");
//! assert_eq!(format!("{advice:#}"), "use gpu_layers=3 or a shorter `context`");
//! ```
#![forbid(unsafe_code)]

mod phrase;
mod setting;

pub use phrase::Phrase;
pub use setting::Setting;
