//! What stands between drafts and the disk, so that tests can let any operation fail.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

/// An operation on a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Creating it.
    Create,
    /// Writing bytes, or changing its length.
    Write,
    /// Flushing it, or its folder, to the disk.
    Sync,
    /// Giving it its name.
    Rename,
}

/// A disk that may refuse operations.
pub trait Disk: Send + Sync {
    /// Called before each operation.
    ///
    /// # Errors
    /// What the operation shall fail with.
    fn before(&self, operation: Operation) -> io::Result<()>;
}

thread_local! {
    /// The disk of drafts that this thread creates; the real one alone if there is none.
    static DISK: RefCell<Option<Arc<dyn Disk>>> = const { RefCell::new(None) };
}

/// Runs `work` with `disk` between the drafts that it creates on this thread and the real disk.
pub fn on_disk<T>(disk: Arc<dyn Disk>, work: impl FnOnce() -> T) -> T {
    /// Restores the disk before, also after a panic.
    struct Restore(Option<Arc<dyn Disk>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            DISK.set(self.0.take());
        }
    }
    let _restore = Restore(DISK.replace(Some(disk)));
    work()
}

/// The disk of this thread.
pub(super) fn current() -> Option<Arc<dyn Disk>> {
    DISK.with_borrow(Clone::clone)
}
