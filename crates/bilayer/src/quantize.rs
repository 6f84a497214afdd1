//! Quantizing: a model file in other types, as the command `quantize` writes it.
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::path::Path;
//!
//! use bilayer::quantize::{Job, Quantize, mix};
//!
//! # let input = Path::new("crates/cli/assets/demo.gguf");
//! # let folder = tempfile::tempdir()?;
//! # let out = &folder.path().join("small.gguf");
//! let quantize = Quantize { requantize: true, ..Quantize::new(mix("Q4_0")?) };
//! let done = Job::new(input, out, quantize).run(&mut |_| ControlFlow::Continue(()))?;
//! assert!(done.to_bytes < done.from_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Method`] says what else decides how weights are rounded: an importance matrix ([`Builder::imatrix`](crate::Builder::imatrix)
//! makes one), a size, or the activations of a text.

pub use bilayer_convert::imatrix::{Entry, Imatrix};
pub use bilayer_convert::mix::Mix;
pub use bilayer_convert::quantize::gptq::Rounded;
pub use bilayer_convert::quantize::job::{Done, Event, Job, Method, Step, Told};
pub use bilayer_convert::quantize::mixed::Coarse;
pub use bilayer_convert::quantize::sensitivity::{Choices, Chosen};
pub use bilayer_convert::quantize::{Dropped, Override, Plan, Planned, Quantize, mix, weight_type};
pub use bilayer_convert::smooth::{Alpha, Folded, Smoothed};
pub use bilayer_convert::{Calibration, Error, Progress};
pub use bilayer_quant::Type;
