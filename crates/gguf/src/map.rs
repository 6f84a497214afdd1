//! The bytes of a file in memory: mapped from it, or copied into pages of our own.
//!
//! A mapping is a window on the file, not a copy: who overwrites the file in place changes the
//! weights of a running model, and who truncates it makes the next access to the lost pages a
//! SIGBUS, which ends the process. Nothing in user space prevents that (the file may even lie on
//! another machine). What we do: hold every extent against the file's size when it is opened,
//! copy all metadata, offer [`File::check_unchanged`](crate::File::check_unchanged), and read
//! into own memory where asked (`--no-mmap`). Replacing a file by rename, as our writer does, is
//! harmless: the mapping keeps the old one.

use std::fs;
use std::io::{self, Read};
use std::ops::Range;

#[cfg(unix)]
use memmap2::{Advice, UncheckedAdvice};
use memmap2::{Mmap, MmapMut};

/// Read-only pages. The start is page-aligned in either case.
pub(crate) struct Region {
    pages: Mmap,
    of_file: bool,
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        &self.pages
    }
}

impl Region {
    /// Maps all of `file`.
    pub fn map(file: &fs::File) -> io::Result<Self> {
        // SAFETY: the mapping is read-only, and as long as others leave the file alone its bytes
        // do not change while slices of it exist. That others do so cannot be checked; the
        // module's text says what happens otherwise and what we do about it. All that is derived
        // from these bytes and relied on later (names, text, layouts) is copied before it is
        // checked, so a change can alter weights but not break an invariant of a Rust type:
        // tensors are only ever read as numbers, of which every bit pattern is valid.
        let pages = unsafe { Mmap::map(file)? };
        // What is read from disk through the map then comes in huge pages, and the next process that maps the file has
        // less to enter and to take out. Only a wish.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(Advice::HugePage);
        Ok(Self { pages, of_file: true })
    }

    /// Reads the next `len` bytes of `file` into anonymous pages; `progress` gets the bytes read
    /// so far after each 16 MiB.
    pub fn read(
        file: &mut fs::File,
        len: usize,
        mut progress: impl FnMut(u64),
    ) -> io::Result<Self> {
        const STEP: usize = 16 << 20;
        let mut pages = MmapMut::map_anon(len)?;
        // Fewer and larger pages make the row streams of a decode step cheaper. Only a wish.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(Advice::HugePage);
        let mut done = 0;
        for chunk in pages.chunks_mut(STEP) {
            file.read_exact(chunk)?;
            done += chunk.len() as u64;
            progress(done);
        }
        Ok(Self { pages: pages.make_read_only()?, of_file: false })
    }

    /// Copies `bytes` into anonymous pages.
    pub fn copy(bytes: &[u8]) -> io::Result<Self> {
        let mut pages = MmapMut::map_anon(bytes.len())?;
        pages.copy_from_slice(bytes);
        Ok(Self { pages: pages.make_read_only()?, of_file: false })
    }

    /// Whether these are the pages of a file.
    pub fn is_map(&self) -> bool {
        self.of_file
    }

    /// Asks for `part` to be read ahead.
    pub fn will_need(&self, part: &[u8]) {
        #[cfg(unix)]
        if let Some(range) = self.of_file.then(|| self.place(part)).flatten() {
            // Advice may be refused (old kernels, odd file systems) without consequence.
            let _ = self.pages.advise_range(Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = (part, Self::place);
    }

    /// Enters a range of `file`, which is mapped here, into the map if its first page is in memory already, as the first
    /// access to each page would do. False where it would come from disk.
    ///
    /// By touching pages, though Linux has a call that does it in two thirds of the time (`MADV_POPULATE_READ`): while
    /// that runs, other threads wait up to 4 ms for each allocation that needs pages.
    #[cfg(target_os = "linux")]
    pub fn enter(&self, file: &fs::File, range: Range<usize>) -> bool {
        use rustix::io::{ReadWriteFlags, preadv2};
        /// Bytes that Linux enters at once, where all of them are in memory.
        const AROUND: usize = 64 << 10;
        let mut byte = [0];
        let byte = &mut [io::IoSliceMut::new(&mut byte)];
        if preadv2(file, byte, range.start as u64, ReadWriteFlags::NOWAIT) != Ok(1) {
            return false;
        }
        self.pages[range].iter().step_by(AROUND).for_each(|byte| {
            std::hint::black_box(*byte);
        });
        true
    }

    /// Gives back the memory of `part`'s pages; the next access reads the file again.
    pub fn release(&self, part: &[u8]) {
        #[cfg(unix)]
        if let Some(range) = self.of_file.then(|| self.place(part)).flatten() {
            let (start, len) = (range.start, range.len());
            // SAFETY: the pages are a shared, read-only mapping of a file (`of_file`; anonymous
            // pages, which this would zero, are excluded), so after MADV_DONTNEED an access
            // finds the file's bytes again. `place` keeps the range within this mapping.
            let _ =
                unsafe { self.pages.unchecked_advise_range(UncheckedAdvice::DontNeed, start, len) };
        }
        #[cfg(not(unix))]
        let _ = part;
    }

    /// Keeps all pages in memory.
    pub fn lock(&self) -> io::Result<()> {
        #[cfg(unix)]
        return self.pages.lock();
        #[cfg(not(unix))]
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Where `part` lies in these pages; `None` for other memory.
    fn place(&self, part: &[u8]) -> Option<Range<usize>> {
        let start = part.as_ptr().addr().checked_sub(self.pages.as_ptr().addr())?;
        let end = start.checked_add(part.len())?;
        (end <= self.pages.len()).then_some(start..end)
    }
}
