//! Converting: a checkpoint of `transformers`, or an adapter of PEFT, as a GGUF file, as the command `convert` writes it.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use std::path::Path;
//!
//! use bilayer::convert::Convert;
//!
//! let plan = Convert::default().plan(Path::new("Qwen3-0.6B"))?;
//! plan.write(Path::new("qwen3.gguf"), &mut |_, _| ControlFlow::Continue(()))?;
//! # Ok::<(), bilayer::convert::Error>(())
//! ```

pub use bilayer_convert::convert::{Convert, Plan, PlannedTensor, outtype};
pub use bilayer_convert::{Error, Progress};
pub use bilayer_quant::Type;
