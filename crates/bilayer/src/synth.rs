//! Random models in the shapes of known ones, as the command `synth` writes them: speed, placement and memory can be measured
//! without a download.
//!
//! ```
//! use std::ops::ControlFlow;
//!
//! use bilayer::synth::{Mix, Shape, Synth};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = &folder.path().join("tiny.gguf");
//! let made = Synth::new(Shape::find("tiny")?, Mix::find("Q4_K_M")?);
//! let made = made.write(path, &mut |_, _| ControlFlow::Continue(()))?;
//! println!("{} weights, {} bytes", made.parameters, made.bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use bilayer_convert::mix::Mix;
pub use bilayer_convert::synth::{Made, Shape, Sizes, Synth};
pub use bilayer_convert::{Error, Progress};
