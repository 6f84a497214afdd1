//! Reads of mapped pages that fail: SIGBUS becomes a note of the place, and the read gives zeros.
//!
//! A page of a map cannot be read if its file was truncated or its disk fails. The system then sends SIGBUS, which by
//! default kills the process without a word. The handler here looks the address up among the maps, notes the first
//! place that was lost, and puts anonymous pages there, so that the interrupted read ends. Whoever uses the map asks
//! [`Guard::lost`] afterwards and reports an error: what was computed from those zeros must not be shown. Only the
//! model whose file was lost is affected.
//!
//! A signal handler may do little: it reads and writes atomics, and calls `fstat` and `mmap`, which are system calls.
//! Faults elsewhere go to the handler that was there before.

use std::fs;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// Maps that can be guarded at the same time. More are mapped without a guard.
const SLOTS: usize = 4096;

/// No place was lost.
const NONE: u64 = u64::MAX;

/// A guarded map.
struct Slot {
    /// Its first address; 0 if the slot is free, 1 while it is being filled.
    start: AtomicUsize,
    /// Its length in bytes.
    len: AtomicUsize,
    /// The file's descriptor.
    file: AtomicI32,
    /// Offset of the first failed read.
    lost: AtomicU64,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        file: AtomicI32::new(-1),
        lost: AtomicU64::new(NONE),
    }
}; SLOTS];

/// Slots that have ever been used: the handler looks no further.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Bytes of a page.
static PAGE: AtomicUsize = AtomicUsize::new(4096);

/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Guards the pages of a map from its creation to its drop, which must come before they are unmapped.
#[derive(Debug)]
pub(crate) struct Guard {
    slot: Option<usize>,
    /// Kept open for the handler.
    _file: fs::File,
}

impl Guard {
    /// Guards `pages`, a map of `file` from its beginning.
    pub fn new(pages: &[u8], file: fs::File) -> Self {
        install();
        let free = |slot: &Slot| {
            slot.start.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let slot = TABLE.iter().position(free);
        if let Some(at) = slot {
            let slot = &TABLE[at];
            USED.fetch_max(at + 1, Ordering::AcqRel);
            slot.len.store(pages.len(), Ordering::Relaxed);
            slot.file.store(file.as_raw_fd(), Ordering::Relaxed);
            slot.lost.store(NONE, Ordering::Relaxed);
            slot.start.store(pages.as_ptr().addr(), Ordering::Release);
        }
        Self { slot, _file: file }
    }

    /// The offset of the first read that failed, in bytes. Costs one load.
    pub fn lost(&self) -> Option<u64> {
        let lost = TABLE[self.slot?].lost.load(Ordering::Acquire);
        (lost != NONE).then_some(lost)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            TABLE[slot].start.store(0, Ordering::Release);
        }
    }
}

/// Installs the handler, once.
fn install() {
    BEFORE.get_or_init(|| {
        // SAFETY: sysconf has no preconditions.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        if let Ok(page) = usize::try_from(page) {
            PAGE.store(page, Ordering::Relaxed);
        }
        // SAFETY: a zeroed sigaction is valid: no flags, an empty mask, the default handler.
        let (mut new, mut old): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
        new.sa_sigaction = handler as libc::sighandler_t;
        // The standard library's stack for signals, since the thread's own may be nearly full.
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both point to sigactions; the handler has the signature that SA_SIGINFO asks for and calls only what a
        // handler may call.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const new, &raw mut old) };
        old
    });
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a valid siginfo_t, which has an address for SIGBUS.
    let address = unsafe { (*info).si_addr() }.addr();
    if repair(address) {
        return;
    }
    let Some(before) = BEFORE.get() else { return reset() };
    if before.sa_flags & libc::SA_SIGINFO != 0 && before.sa_sigaction > libc::SIG_IGN {
        // SAFETY: a handler that was installed with SA_SIGINFO has this signature.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(before.sa_sigaction) };
        return handler(signal, info, context);
    }
    reset();
}

/// Restores the default, so that the faulting instruction, which runs again, ends the process.
fn reset() {
    // SAFETY: as in `install`.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, &raw const default, ptr::null_mut());
    }
}

/// If the address is in a guarded map, notes the place and puts zeros there.
fn repair(address: usize) -> bool {
    let used = USED.load(Ordering::Acquire).min(SLOTS);
    let found = TABLE[..used].iter().find_map(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        let len = slot.len.load(Ordering::Relaxed);
        let offset = address.checked_sub(start).filter(|offset| start > 1 && *offset < len)?;
        Some((slot, start, len, offset))
    });
    let Some((slot, start, len, offset)) = found else { return false };
    let page = PAGE.load(Ordering::Relaxed);
    let first = offset / page * page;
    // SAFETY: a zeroed stat is valid; the descriptor is open as long as the slot is in use.
    let size = unsafe {
        let mut facts: libc::stat = std::mem::zeroed();
        match libc::fstat(slot.file.load(Ordering::Relaxed), &raw mut facts) {
            0 => facts.st_size as usize,
            _ => usize::MAX,
        }
    };
    // All pages behind the end of a shorter file are lost; if the disk failed, this one is.
    let bytes = if first >= size { len - first } else { page };
    let range = start + first..start + first + bytes;
    if !replace(range, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1) {
        return false;
    }
    let _ = slot.lost.compare_exchange(NONE, offset as u64, Ordering::AcqRel, Ordering::Relaxed);
    true
}

/// Puts other pages in place of a guarded map's; false if the system refuses. `range` must lie inside of a map of ours that
/// is not dropped meanwhile.
fn replace(range: Range<usize>, flags: libc::c_int, file: RawFd) -> bool {
    let at = ptr::with_exposed_provenance_mut(range.start);
    let flags = flags | libc::MAP_FIXED;
    // SAFETY: both callers take the range from a map of ours that exists, and it is only ever read.
    let pages = unsafe { libc::mmap(at, range.len(), libc::PROT_READ, flags, file, 0) };
    pages != libc::MAP_FAILED
}

/// Makes the page with byte `offset` of a map unreadable: from then on a read of it raises SIGBUS, as one of a disk that
/// fails does, while the file has its length.
#[cfg(target_os = "linux")]
pub(crate) fn break_page(map: &[u8], offset: usize) -> std::io::Result<()> {
    if offset >= map.len() {
        return Err(std::io::Error::other("the map has no such page"));
    }
    let page = PAGE.load(Ordering::Relaxed);
    let first = map.as_ptr().addr() + offset / page * page;
    // A map of an empty file: no byte of it exists.
    let empty = rustix::fs::memfd_create("bilayer-broken", rustix::fs::MemfdFlags::CLOEXEC)?;
    match replace(first..first + page, libc::MAP_SHARED, empty.as_raw_fd()) {
        true => Ok(()),
        false => Err(std::io::Error::other("the page cannot be replaced")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Ordering, PAGE, install, repair};
    use crate::map::Region;
    use crate::{Error, File, Metadata, NewTensor, to_bytes};

    /// A file of `len` ones, and its map.
    fn ones(len: usize) -> (fs::File, Region) {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &vec![1; len]).unwrap();
        let region = Region::map(&file).unwrap();
        (file, region)
    }

    /// Bytes of a page.
    fn page() -> usize {
        install();
        PAGE.load(Ordering::Relaxed)
    }

    fn start(region: &Region) -> usize {
        region.as_ref().as_ptr().addr()
    }

    /// The numbers of the pages that read as zeros.
    fn zeros(region: &Region) -> Vec<usize> {
        let pages = region.as_ref().chunks(page());
        let is_zero = |page: &[u8]| page.iter().all(|&byte| byte == 0);
        pages.enumerate().filter(|(_, page)| is_zero(page)).map(|(number, _)| number).collect()
    }

    #[test]
    fn an_address_in_a_guarded_map_is_noted_and_its_page_replaced() {
        let page = page();
        let len = 4 * page + 100;
        let (_file, region) = ones(len);
        assert_eq!((region.lost(), zeros(&region)), (None, vec![]));
        // Behind the end, but in the last page; and addresses that no map has.
        assert!(![start(&region) + len, 0, 1].into_iter().any(repair));
        assert_eq!((region.lost(), zeros(&region)), (None, vec![]));

        assert!(repair(start(&region) + 2 * page + 5));
        assert_eq!((region.lost(), zeros(&region)), (Some(2 * page as u64 + 5), vec![2]));
        // The first place counts.
        assert!(repair(start(&region) + len - 1));
        assert!(repair(start(&region)));
        assert_eq!((region.lost(), zeros(&region)), (Some(2 * page as u64 + 5), vec![0, 2, 4]));
    }

    /// Also if the file gets a new end meanwhile, its pages must not be those of two versions.
    #[test]
    fn all_pages_behind_a_new_end_are_lost_at_once() {
        let page = page();
        for end in [2 * page, page + 1] {
            // Maps are mostly placed one below the other.
            let (_above, neighbour) = ones(20 * page);
            let (mut file, region) = ones(5 * page);
            file.set_len(end as u64).unwrap();
            assert!(repair(start(&region) + 2 * page + 7));
            std::io::Seek::rewind(&mut file).unwrap();
            std::io::Write::write_all(&mut file, &vec![1; 5 * page]).unwrap();
            assert_eq!(zeros(&region), [2, 3, 4], "new end {end}");
            assert!(zeros(&neighbour).is_empty());
            assert_eq!(region.lost(), Some(2 * page as u64 + 7));
        }
    }

    /// Slots are used again, so the first in the table need not be the one with the highest or lowest address.
    #[test]
    fn the_map_with_the_address_is_the_lost_one() {
        let page = page();
        let (first, second) = (ones(page), ones(4 * page));
        drop(first);
        let third = ones(64 * page);
        let regions = [&second.1, &third.1];
        for (number, region) in regions.iter().enumerate() {
            assert!(repair(start(region) + 3));
            let lost = regions.map(|region| region.lost());
            assert_eq!(lost, [Some(3), (number == 1).then_some(3)]);
        }
    }

    /// A process that gets the signal from outside: the first restores what was there before, a later one ends it.
    #[test]
    fn a_signal_that_no_map_raised_ends_the_process() {
        use std::process::Command;
        const INNER: &str = "BILAYER_TEST_SIGNAL_FROM_OUTSIDE";
        const NAME: &str = "fault::tests::a_signal_that_no_map_raised_ends_the_process";
        if std::env::var_os(INNER).is_some() {
            let _map = ones(100);
            let id = std::process::id().to_string();
            // Two that come at once count as one.
            for _ in 0..20 {
                Command::new("sh").args(["-c", "kill -BUS \"$0\"", &id]).status().unwrap();
            }
            return;
        }
        let tests = std::env::current_exe().unwrap();
        // Before was the standard library's handler, or the signal was ignored, which the library leaves as it is.
        for before in ["", "trap '' BUS && "] {
            let command = format!("{before}exec \"$0\" --exact {NAME} --test-threads=1");
            let mut process = Command::new("sh");
            let output = process.args(["-c", &command]).arg(&tests).env(INNER, "1").output();
            let output = output.unwrap();
            let out = String::from_utf8_lossy(&output.stdout);
            assert!(out.contains("running 1 test"), "{out}");
            assert!(!output.status.success(), "{before:?}: {out}");
        }
    }

    /// A file of a hundred pages.
    fn model(path: &std::path::Path) -> File {
        let tensor = NewTensor::zeros("big", bilayer_quant::Type::F32, &[100, 1024]);
        fs::write(path, to_bytes(&Metadata::new(), [tensor]).unwrap()).unwrap();
        File::open(path).unwrap()
    }

    fn shorten(path: &std::path::Path, len: u64) {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
    }

    fn sum(file: &File) -> u64 {
        file.bytes(&file.tensors()[0]).iter().map(|&byte| u64::from(byte)).sum()
    }

    #[test]
    fn a_truncated_file_gives_an_error_with_the_place_and_leaves_others_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("lost.gguf"), folder.path().join("kept.gguf"));
        for round in 0..100 {
            let (lost, kept) = (model(&path), model(&other));
            lost.check_readable().unwrap();
            let len = 5000 + 2000 * round;
            shorten(&path, len);
            std::thread::scope(|scope| {
                (0..4).for_each(|_| drop(scope.spawn(|| sum(&lost))));
            });
            let found = lost.check_readable();
            let Err(Error::Lost { file, offset }) = &found else { panic!("{found:?}") };
            assert_eq!(file, &path.display().to_string());
            // The rest of the page with the end of the file reads as zeros.
            assert!(*offset >= len && *offset <= 100 * 4096 + 4096, "{len}: {offset}");
            assert!(matches!(lost.check_unchanged(), Err(Error::Lost { .. })));
            sum(&kept);
            kept.check_unchanged().unwrap();
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_page_that_cannot_be_read_is_lost_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broken.gguf");
        drop(model(&path));
        let mut bytes = fs::read(&path).unwrap();
        let start = bytes.len() - 100 * 4096;
        bytes[start..].fill(1);
        fs::write(&path, &bytes).unwrap();
        let file = File::open(&path).unwrap();
        assert_eq!(sum(&file), 100 * 4096);
        // There is no such byte.
        for offset in [bytes.len() as u64, bytes.len() as u64 + 4096, u64::MAX] {
            let error = file.break_page(offset).unwrap_err();
            assert!(matches!(error, Error::Io { .. }), "{error}");
        }
        file.break_page(start as u64 + 9000).unwrap();
        file.check_unchanged().unwrap();
        assert_eq!(sum(&file), 99 * 4096, "zeros in place of one page");
        let found = file.check_unchanged();
        let Err(Error::Lost { offset, .. }) = found else { panic!("{found:?}") };
        assert!(offset.abs_diff(start as u64 + 9000) < 4096, "{offset}");
    }

    #[test]
    fn a_file_that_was_read_is_immune() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("read.gguf");
        drop(model(&path));
        let options = crate::OpenOptions { map: false, ..Default::default() };
        let file = File::open_with(&path, options).unwrap();
        shorten(&path, 100);
        assert_eq!(sum(&file), 0);
        file.check_unchanged().unwrap();
    }
}
