//! Zeroed, 64-byte aligned memory that the threads of a pool share as bounds-checked slices.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use bilayer_graph::Error;
use bytemuck::Pod;

#[cfg(debug_assertions)]
pub(crate) mod claims;

/// Alignment of every buffer, bytes: a cache line, and the widest vector.
pub(crate) const LINE_BYTES: usize = 64;

/// Huge pages are requested for memory above this size, bytes.
#[cfg(target_os = "linux")]
const HUGE_BYTES: usize = 4 << 20;

/// `bytes` rounded up to whole cache lines.
pub(crate) fn lines(bytes: usize) -> usize {
    bytes.next_multiple_of(LINE_BYTES)
}

/// A block of zeroed memory. The operating system provides its pages on first touch.
pub(crate) struct Memory {
    allocated: NonNull<u8>,
    layout: Layout,
    aligned: NonNull<u8>,
    bytes: usize,
    /// What chunks of the current stage write.
    #[cfg(debug_assertions)]
    claims: claims::Claims,
}

// SAFETY: the memory is plain bytes owned by this value; slices into it are created by unsafe functions whose callers
// keep writers apart.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Bytes reserved.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Allocates `bytes` for `what`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn new(bytes: usize, what: &str) -> Result<Memory, Error> {
        let fail = || Error::OutOfMemory { device: "cpu".to_owned(), what: what.to_owned(), bytes };
        // An alignment of 16 lets the allocator return fresh zero pages instead of clearing them one by one; the rest
        // of the alignment is done here.
        let padded = bytes.checked_add(LINE_BYTES).ok_or_else(fail)?;
        let layout = Layout::from_size_align(padded, 16).map_err(|_| fail())?;
        // SAFETY: the layout's size is at least LINE_BYTES.
        let allocated = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(fail)?;
        let shift = allocated.as_ptr().align_offset(LINE_BYTES);
        // SAFETY: `shift` is less than LINE_BYTES, which the layout adds to `bytes`.
        let aligned = unsafe { allocated.add(shift) };
        advise_huge(aligned, bytes);
        Ok(Memory {
            allocated,
            layout,
            aligned,
            bytes,
            #[cfg(debug_assertions)]
            claims: claims::Claims::default(),
        })
    }

    /// `len` elements from byte `offset` on, for reading.
    ///
    /// # Safety
    /// No thread writes to them while the slice is alive.
    pub(crate) unsafe fn get<T: Pod>(&self, offset: usize, len: usize) -> &[T] {
        let start = self.check::<T>(offset, len);
        // SAFETY: in bounds and aligned (checked), plain data; the caller guarantees that there is no writer.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// `len` elements from byte `offset` on, for writing.
    ///
    /// # Safety
    /// No other thread accesses them while the slice is alive.
    #[expect(clippy::mut_from_ref, reason = "the threads of a stage write disjoint parts")]
    pub(crate) unsafe fn get_mut<T: Pod>(&self, offset: usize, len: usize) -> &mut [T] {
        let start = self.check::<T>(offset, len);
        #[cfg(debug_assertions)]
        self.claims.claim(&(offset..offset + len * size_of::<T>()));
        // SAFETY: in bounds and aligned (checked), plain data; the caller guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    fn check<T>(&self, offset: usize, len: usize) -> *mut T {
        let end = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        assert!(end.is_some_and(|end| end <= self.bytes), "outside of {} bytes", self.bytes);
        assert!(offset.is_multiple_of(align_of::<T>()), "offset {offset} is not aligned");
        // SAFETY: `offset` is within the allocation, as just checked.
        unsafe { self.aligned.as_ptr().add(offset).cast() }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.allocated.as_ptr(), self.layout) }
    }
}

/// Large buffers are read in strides of a KV page, each of which costs a page walk with 4 KiB pages. A refusal only
/// costs speed, so the result is ignored.
#[cfg(target_os = "linux")]
fn advise_huge(start: NonNull<u8>, bytes: usize) {
    if bytes < HUGE_BYTES {
        return;
    }
    let shift = start.as_ptr().align_offset(4096);
    if shift < bytes {
        // SAFETY: the range is within our allocation; the advice changes no content.
        unsafe {
            libc::madvise(start.as_ptr().add(shift).cast(), bytes - shift, libc::MADV_HUGEPAGE);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn advise_huge(_start: NonNull<u8>, _bytes: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_bounded() {
        let memory = Memory::new(1000, "a test").unwrap_or_else(|e| panic!("{e}"));
        // SAFETY: one thread, one slice at a time.
        let floats: &[f32] = unsafe { memory.get(0, 250) };
        assert!(floats.as_ptr().addr().is_multiple_of(LINE_BYTES));
        assert!(floats.iter().all(|&x| x == 0.0));
        let over = std::panic::catch_unwind(|| {
            // SAFETY: panics before a slice is created.
            let slice: &[f32] = unsafe { memory.get(0, 251) };
            slice.len()
        });
        assert!(over.is_err());
    }

    #[test]
    fn too_much_memory_is_an_error() {
        assert!(Memory::new(usize::MAX - 10, "the sky").is_err());
    }
}
