//! Produces a tensor's bytes in pieces on many threads and writes them in order, in bounded memory.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::ops::ControlFlow;

use bilayer_gguf::SourceError;
use rayon::prelude::*;

use crate::Error;

/// Pieces produced at once; while they are written, the next ones are produced.
pub(crate) const AT_ONCE: usize = 32;

/// Maximum number of threads.
const THREADS: usize = 512;

/// Called after each piece with the bytes written and the total; may stop the rest.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Progress of the file.
pub(crate) struct Reporter<'a> {
    progress: RefCell<Progress<'a>>,
    done: Cell<u64>,
    total: u64,
}

/// The progress callback requested a stop.
#[derive(Debug, thiserror::Error)]
#[error("stopped")]
pub(crate) struct Stopped;

impl<'a> Reporter<'a> {
    /// No bytes of `total` written yet.
    pub fn new(progress: Progress<'a>, total: u64) -> Reporter<'a> {
        Reporter { progress: RefCell::new(progress), done: Cell::new(0), total }
    }

    /// Whether the callback wants the work to go on.
    pub fn goes_on(&self) -> bool {
        (self.progress.borrow_mut())(self.done.get(), self.total).is_continue()
    }

    /// Counts bytes as written.
    pub fn step(&self, bytes: usize) -> Result<(), Stopped> {
        self.done.set(self.done.get() + bytes as u64);
        match (self.progress.borrow_mut())(self.done.get(), self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stopped),
        }
    }
}

/// A pool of `threads` threads; by default one per logical CPU.
///
/// # Errors
/// [`Error::Size`], [`Error::Threads`].
pub(crate) fn pool(threads: Option<usize>) -> Result<rayon::ThreadPool, Error> {
    let threads = threads.unwrap_or(0);
    if threads > THREADS {
        let expected = format!("at most {THREADS}");
        return Err(Error::Size { what: "threads", expected, found: threads as u64 });
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.map_err(|error| Error::Threads { threads, reason: error.to_string() })
}

/// Maps an error of the writer: a requested stop, an error of the file that is read, or the error itself.
pub(crate) fn writer_error(error: bilayer_gguf::Error) -> Error {
    match error {
        bilayer_gguf::Error::Source { source, .. } if source.is::<Stopped>() => Error::Interrupted,
        bilayer_gguf::Error::Source { source, .. } if source.is::<bilayer_gguf::Error>() => {
            let source = source.downcast().expect("it was looked at above");
            Error::File(*source)
        }
        error => Error::File(error),
    }
}

/// A tensor in pieces of `piece_bytes`, the last one shorter; `make` fills piece number `n`.
pub(crate) struct Pieces<F> {
    pub len: u64,
    pub piece_bytes: usize,
    pub make: F,
}

impl<F> Pieces<F>
where
    F: Fn(u64, &mut [u8]) -> Result<(), SourceError> + Sync,
{
    /// Writes all pieces; while some are written, the next ones are produced.
    pub fn write(
        &self,
        pool: &rayon::ThreadPool,
        out: &mut dyn Write,
        reporter: &Reporter<'_>,
    ) -> Result<(), SourceError> {
        let at_once = AT_ONCE.saturating_mul(self.piece_bytes);
        let size = |left: u64| left.min(at_once as u64) as usize;
        let mut left = self.len;
        let mut piece = 0;
        let (mut ready, mut next) = (vec![0; size(left)], Vec::new());
        pool.install(|| self.fill(piece, &mut ready))?;
        while left > 0 {
            left -= ready.len() as u64;
            piece += AT_ONCE as u64;
            next.resize(size(left), 0);
            let mut made = Ok(());
            pool.in_place_scope(|scope| {
                if left > 0 {
                    scope.spawn(|_| made = self.fill(piece, &mut next));
                }
                out.write_all(&ready)
            })?;
            made?;
            reporter.step(ready.len())?;
            std::mem::swap(&mut ready, &mut next);
        }
        Ok(())
    }

    /// Produces pieces from number `first` on, on the threads of the current pool.
    pub fn fill(&self, first: u64, bytes: &mut [u8]) -> Result<(), SourceError> {
        bytes
            .par_chunks_mut(self.piece_bytes)
            .enumerate()
            .try_for_each(|(i, piece)| (self.make)(first + i as u64, piece))
    }
}
