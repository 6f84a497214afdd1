//! Zeroed, 64-byte aligned memory that the threads of a pool share as bounds-checked slices.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use bilayer_graph::{Error, SharedBytes};
use bytemuck::Pod;

#[cfg(debug_assertions)]
pub(crate) mod claims;

/// Alignment of every buffer, bytes: a cache line, and the widest vector.
pub(crate) const LINE_BYTES: usize = 64;

/// Huge pages are requested for memory above this size, bytes.
#[cfg(target_os = "linux")]
const HUGE_BYTES: usize = 4 << 20;

/// Blocks from this size on are mapped, bytes. What the C library allocates may stay with it when it is freed, in a heap of
/// the thread that asked for it: if each model is loaded on another thread, each heap comes to hold as much as a model.
#[cfg(target_os = "linux")]
const MAPPED_BYTES: usize = 128 << 10;

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

/// Rows of equal length at equal distances, in elements.
#[derive(Clone, Copy)]
pub(crate) struct Strided {
    pub(crate) count: usize,
    pub(crate) len: usize,
    pub(crate) stride: usize,
}

impl Strided {
    /// From the first element of the first row to the end of the last one.
    fn span(self) -> usize {
        self.count.checked_sub(1).map_or(0, |before| before * self.stride + self.len)
    }

    /// [`Strided::span`] in bytes.
    pub(crate) fn span_bytes<T>(self) -> usize {
        self.span() * size_of::<T>()
    }
}

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
        let allocated = NonNull::new(allocate(layout)).ok_or_else(fail)?;
        let shift = allocated.as_ptr().align_offset(LINE_BYTES);
        let aligned = NonNull::new(allocated.as_ptr().wrapping_add(shift)).ok_or_else(fail)?;
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
    #[inline(always)]
    pub(crate) unsafe fn get_mut<T: Pod>(&self, offset: usize, len: usize) -> &mut [T] {
        let start = self.check::<T>(offset, len);
        #[cfg(debug_assertions)]
        self.claims.claim(&(offset..offset + len * size_of::<T>()));
        // SAFETY: in bounds and aligned (checked), plain data; the caller guarantees exclusive access.
        unsafe { std::slice::from_raw_parts_mut(start, len) }
    }

    /// Rows of `len` elements for writing: the first begins at byte `offset`, each of the others `stride` elements after the
    /// one before.
    ///
    /// # Safety
    /// No other thread accesses them while the slices are alive.
    ///
    /// # Panics
    /// If they overlap or lie outside of the memory.
    #[inline(always)]
    pub(crate) unsafe fn rows_mut<T: Pod>(
        &self,
        offset: usize,
        rows: Strided,
    ) -> impl Iterator<Item = &mut [T]> {
        let Strided { count, len, stride } = rows;
        assert!(len <= stride, "rows of {len} elements every {stride} overlap");
        let start = self.check::<T>(offset, rows.span());
        (0..count).map(move |row| {
            #[cfg(debug_assertions)]
            self.claims.claim(&{
                let offset = offset + row * stride * size_of::<T>();
                offset..offset + len * size_of::<T>()
            });
            // SAFETY: in bounds, aligned and apart from the other rows (checked), plain data; the caller guarantees
            // exclusive access.
            unsafe { std::slice::from_raw_parts_mut(start.add(row * stride), len) }
        })
    }

    /// All bytes, for filling them before they are [shared](Memory::freeze).
    pub(crate) fn fill(&mut self) -> &mut [u8] {
        // SAFETY: the memory is initialized, `bytes` long, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.aligned.as_ptr(), self.bytes) }
    }

    /// The bytes, which nobody writes any more.
    pub(crate) fn freeze(self) -> SharedBytes {
        SharedBytes::from_owner(Frozen(self))
    }

    #[inline(always)]
    fn check<T>(&self, offset: usize, len: usize) -> *mut T {
        let end = len.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        assert!(end.is_some_and(|end| end <= self.bytes), "outside of {} bytes", self.bytes);
        assert!(offset.is_multiple_of(align_of::<T>()), "offset {offset} is not aligned");
        self.aligned.as_ptr().wrapping_add(offset).cast()
    }
}

/// See [`Memory::freeze`].
struct Frozen(Memory);

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: nothing else has the memory, and this gives it to readers only.
        unsafe { self.0.get(0, self.0.bytes) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `allocate` returned it for this layout, and no slice of it is left.
        unsafe {
            #[cfg(target_os = "linux")]
            if self.layout.size() >= MAPPED_BYTES {
                libc::munmap(self.allocated.as_ptr().cast(), self.layout.size());
                return;
            }
            dealloc(self.allocated.as_ptr(), self.layout);
        }
    }
}

/// Zeroed memory; null if there is none. The layout has at least a cache line.
fn allocate(layout: Layout) -> *mut u8 {
    #[cfg(target_os = "linux")]
    if layout.size() >= MAPPED_BYTES {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the system chooses an address that is not in use.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), layout.size(), access, kind, -1, 0) };
        return if start == libc::MAP_FAILED { std::ptr::null_mut() } else { start.cast() };
    }
    // SAFETY: the layout's size is not zero.
    unsafe { alloc_zeroed(layout) }
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
        // SAFETY: nothing is written.
        let first = |len| unsafe { memory.get::<f32>(0, len) };
        let floats = first(250);
        assert!(floats.as_ptr().addr().is_multiple_of(LINE_BYTES));
        assert!(floats.iter().all(|&x| x == 0.0));
        assert!(std::panic::catch_unwind(|| first(251).len()).is_err());
    }

    /// Whether the page of an address is in memory.
    #[cfg(target_os = "linux")]
    fn is_resident(address: usize) -> bool {
        // SAFETY: the call only returns a value.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let page = std::ptr::without_provenance_mut(address / page_bytes * page_bytes);
        let mut state = 0;
        // SAFETY: the kernel writes one byte for one page.
        let is_mapped = unsafe { libc::mincore(page, page_bytes, &mut state) } == 0;
        is_mapped && state & 1 == 1
    }

    /// In a process of its own, since what other tests have freed may be used again for its blocks.
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn freed_memory_goes_back_to_the_system() {
        let mut alone = std::process::Command::new(std::env::current_exe().expect("this program"));
        alone.args(["--ignored", "--exact", "memory::tests::freed_memory_alone"]);
        // An emulator of another CPU may start no program of it.
        let Ok(output) = alone.output() else { return freed_memory_alone() };
        let printed = String::from_utf8_lossy(&output.stdout);
        let is_right = output.status.success() && printed.contains("1 passed");
        assert!(is_right, "{printed}\n{}", String::from_utf8_lossy(&output.stderr));
    }

    /// All three leave it behind without a repair: the C library has learned from the first block to keep such blocks, and
    /// cannot return what lies below a block in use by itself.
    #[test]
    #[ignore = "run by freed_memory_goes_back_to_the_system"]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn freed_memory_alone() {
        drop(std::hint::black_box(vec![1u8; 16 << 20]));
        let mapped = || {
            let mut memory = Memory::new(2 << 20, "a test").unwrap_or_else(|e| panic!("{e}"));
            let bytes = memory.fill();
            bytes.fill(1);
            let middle = bytes.as_ptr().addr() + (1 << 20);
            assert!(is_resident(middle));
            drop(memory);
            middle
        };
        let heap = || {
            let mut blocks: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 64 << 10]).collect();
            let middle = blocks[32].as_ptr().addr() + (32 << 10);
            assert!(is_resident(middle));
            blocks.drain(..63);
            crate::host::return_free_memory();
            middle
        };
        let large = || {
            // More than the small blocks have left behind.
            let block = std::hint::black_box(vec![1u8; 12 << 20]);
            let middle = block.as_ptr().addr() + (6 << 20);
            assert!(is_resident(middle));
            drop(block);
            middle
        };
        // Another thread may take the same place at once.
        assert!((0..20).any(|_| !is_resident(mapped())), "blocks of a session");
        assert!((0..20).any(|_| !is_resident(heap())), "small blocks");
        drop(std::hint::black_box(vec![1u8; 16 << 20]));
        assert!((0..20).any(|_| !is_resident(large())), "large blocks of others");
    }

    #[test]
    fn too_much_memory_is_an_error() {
        assert!(Memory::new(usize::MAX - 10, "the sky").is_err());
    }
}
