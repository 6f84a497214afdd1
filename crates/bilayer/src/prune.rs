//! Pruning: weights of a model file are set to zero, and layers removed, as the command `prune` does.
//!
//! A run that is stopped or killed goes on when it is begun again: finished matrices are kept beside the output
//! ([`journal_of`]).
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::path::Path;
//!
//! use bilayer::prune::{Job, Method, Prune, type_by_name};
//!
//! # let input = Path::new("crates/cli/assets/demo.gguf");
//! # let folder = tempfile::tempdir()?;
//! # let out = &folder.path().join("pruned.gguf");
//! // The model's own types may have no zero.
//! let ty = Some(type_by_name("Q8_0")?);
//! let prune = Prune { ty, requantize: true, ..Prune::new(Method::Magnitude, "2:4".parse()?) };
//! let done = Job::new(input, out, prune).run(&mut |_, _, _| ControlFlow::Continue(()))?;
//! assert!(2 * done.pruned.zeros >= done.pruned.weights);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub use bilayer_convert::prune::drop::{Dropped, LayerBlock, LayerChoice};
pub use bilayer_convert::prune::job::{Done, Job, Step, Told};
pub use bilayer_convert::prune::ratios::{ChosenPattern, Goal, SparseFamily};
pub use bilayer_convert::prune::{
    Comparison, MatrixPattern, Method, Pattern, Prune, Pruned, journal_of,
};
pub use bilayer_convert::{Calibration, Error};
pub use bilayer_quant::{Type, by_name as type_by_name};
