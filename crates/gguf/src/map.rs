//! The bytes of a file in memory: mapped, or copied into anonymous pages.
//!
//! A mapping is a view of the file, not a copy: overwriting the file in place changes the weights of a running model,
//! and truncating it makes the next access to the lost pages fail. User space cannot prevent that (the file may even be
//! on another machine). Mitigations: every extent is checked against the file's size on opening, all metadata is
//! copied, a failed access is noted (`fault.rs`), [`File::check_unchanged`](crate::File::check_unchanged) reports both,
//! and `--no-mmap` reads into private memory. Replacing a file by rename, as our writer does, is harmless: the
//! mapping keeps the old one.

use std::fs;
use std::io::{self, Read};
use std::ops::Range;

#[cfg(unix)]
use memmap2::{Advice, UncheckedAdvice};
use memmap2::{Mmap, MmapMut};

#[cfg(unix)]
use crate::fault::Guard;

/// Read-only pages. The start is page-aligned in either case.
pub(crate) struct Region {
    /// Dropped before the pages.
    #[cfg(unix)]
    guard: Option<Guard>,
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
        // File pages then come as huge pages, so this process and the next one to map the file have fewer page table
        // entries to set up and tear down. Only a hint.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(Advice::HugePage);
        Ok(Self {
            #[cfg(unix)]
            guard: Some(Guard::new(&pages, file.try_clone()?)),
            pages,
            of_file: true,
        })
    }

    /// The offset of the first read that failed, in bytes.
    pub fn lost(&self) -> Option<u64> {
        #[cfg(unix)]
        return self.guard.as_ref()?.lost();
        #[cfg(not(unix))]
        None
    }

    /// Makes the page with byte `offset` unreadable.
    #[cfg(target_os = "linux")]
    pub fn break_page(&self, offset: usize) -> io::Result<()> {
        crate::fault::break_page(&self.pages, offset)
    }

    /// Reads the next `len` bytes of `file` into anonymous pages; `progress` receives the bytes read so far after
    /// each 16 MiB.
    pub fn read(
        file: &mut fs::File,
        len: usize,
        mut progress: impl FnMut(u64),
    ) -> io::Result<Self> {
        const STEP: usize = 16 << 20;
        let mut pages = MmapMut::map_anon(len)?;
        // Huge pages make the row streams of a decode step cheaper. Only a hint.
        #[cfg(target_os = "linux")]
        let _ = pages.advise(Advice::HugePage);
        let mut done = 0;
        for chunk in pages.chunks_mut(STEP) {
            file.read_exact(chunk)?;
            done += chunk.len() as u64;
            progress(done);
        }
        Ok(Self::private(pages.make_read_only()?))
    }

    /// Copies `bytes` into anonymous pages.
    pub fn copy(bytes: &[u8]) -> io::Result<Self> {
        let mut pages = MmapMut::map_anon(bytes.len())?;
        pages.copy_from_slice(bytes);
        Ok(Self::private(pages.make_read_only()?))
    }

    fn private(pages: Mmap) -> Self {
        Self {
            #[cfg(unix)]
            guard: None,
            pages,
            of_file: false,
        }
    }

    /// Whether these pages map a file.
    pub fn is_map(&self) -> bool {
        self.of_file
    }

    /// Advises the system to read `part` ahead.
    pub fn will_need(&self, part: &[u8]) {
        #[cfg(unix)]
        if let Some(range) = self.of_file.then(|| self.place(part)).flatten() {
            // Refused advice (old kernels, unusual file systems) has no consequence.
            let _ = self.pages.advise_range(Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = (part, Self::place);
    }

    /// Maps a range of `file` if its first page is in the page cache, as the first access to each page would. Returns
    /// false if it would have to be read from disk.
    ///
    /// Pages are touched although Linux has a call that takes two thirds of the time (`MADV_POPULATE_READ`): while it
    /// runs, other threads wait up to 4 ms for every allocation that needs pages.
    #[cfg(target_os = "linux")]
    pub fn enter(&self, file: &fs::File, range: Range<usize>) -> bool {
        use rustix::io::{ReadWriteFlags, preadv2};
        /// Bytes that Linux maps around a fault if they are in the page cache.
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

    /// Releases the memory of `part`'s pages; the next access reads the file again.
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

    /// Locks all pages in memory.
    pub fn lock(&self) -> io::Result<()> {
        #[cfg(unix)]
        return self.pages.lock();
        #[cfg(not(unix))]
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The range of `part` in these pages; `None` for other memory.
    fn place(&self, part: &[u8]) -> Option<Range<usize>> {
        let start = part.as_ptr().addr().checked_sub(self.pages.as_ptr().addr())?;
        let end = start.checked_add(part.len())?;
        (end <= self.pages.len()).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of `len` ones, and its map.
    fn ones(len: usize) -> (fs::File, Region) {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &vec![1; len]).unwrap();
        let region = Region::map(&file).unwrap();
        (file, region)
    }

    #[test]
    fn only_parts_of_the_pages_have_a_place() {
        let (_file, region) = ones(10_000);
        let all = region.as_ref();
        assert_eq!(region.place(all), Some(0..10_000));
        assert_eq!(region.place(&all[5000..10_000]), Some(5000..10_000));
        assert_eq!(region.place(&all[7..8]), Some(7..8));
        let (_other, second) = ones(10_000);
        let third = Region::copy(&[1; 10_000]).unwrap();
        for [one, two] in [[&region, &second], [&second, &third], [&region, &third]] {
            assert_eq!((one.place(two.as_ref()), two.place(one.as_ref())), (None, None));
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn only_bytes_that_are_cached_are_entered() {
        use rustix::io::{ReadWriteFlags, preadv2};
        const LEN: usize = 300_000;
        let (file, region) = ones(LEN);
        let mut byte = [0];
        let first = &mut [io::IoSliceMut::new(&mut byte)];
        // Some file systems cannot tell.
        if preadv2(&file, first, 0, ReadWriteFlags::NOWAIT) == Ok(1) {
            assert!(region.enter(&file, 0..LEN));
            assert!(region.enter(&file, 100_000..200_000));
        }
        // The file has no byte there.
        assert!(!region.enter(&file, LEN..LEN));
    }
}
