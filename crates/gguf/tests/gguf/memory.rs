//! What the system keeps of mapped files in memory. Its own account is read, so these tests are for Linux; each is
//! skipped where the system does not do what is asked of it, which a plain file shows.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use bilayer_gguf::{File, Metadata, NewTensor, OpenOptions, Tensor, write};
use bilayer_quant::Type;

use super::folder;

const MIB: usize = 1 << 20;

/// A file with tensors `a` and `b` of `mib` MiB each.
fn model(path: &Path, mib: usize) {
    let tensor = |name| NewTensor::bytes(name, Type::I8, &[(mib * MIB) as u64], vec![1; mib * MIB]);
    write(path, &Metadata::new(), [tensor("a"), tensor("b")]).unwrap();
}

fn tensor<'a>(file: &'a File, name: &str) -> &'a Tensor {
    file.tensor(name).unwrap()
}

/// The sum of `field` (such as `Rss`) over this process's maps of the file, in bytes.
fn mapped(path: &Path, field: &str) -> usize {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let name = path.to_str().unwrap();
    let (mut is_of_file, mut kib) = (false, 0);
    for line in maps.lines() {
        let (first, rest) = line.split_once(' ').unwrap();
        match first.strip_suffix(':') {
            None => is_of_file = line.ends_with(name),
            Some(found) if is_of_file && found == field => {
                kib += rest.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap();
            }
            Some(_) => (),
        }
    }
    kib * 1024
}

/// Touches every page.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(1024).map(|&byte| u64::from(byte)).sum()
}

#[test]
fn released_tensors_take_no_memory_until_they_are_read_again() {
    /// A huge page, which is unmapped as a whole where tensors begin and end within it.
    const PAGE: usize = 2 * MIB;
    let folder = folder();
    let (path, other) = (folder.path().join("model.gguf"), folder.path().join("other.gguf"));
    model(&path, 8);
    model(&other, 8);
    let (file, other) = (File::open(&path).unwrap(), File::open(&other).unwrap());
    let read = || ["a", "b"].map(|name| sum(&file.bytes(tensor(&file, name))));
    assert_eq!(read(), [8192, 8192]);
    let all = mapped(&path, "Rss");
    assert!(all >= 16 * MIB, "{all}");
    file.release(tensor(&other, "a"));
    assert_eq!(mapped(&path, "Rss"), all, "a tensor of another file");
    file.release(tensor(&file, "a"));
    let left = mapped(&path, "Rss");
    assert!((8 * MIB - PAGE..=all - 8 * MIB + PAGE).contains(&left), "{left} of {all}");
    // The last tensor ends with the file.
    file.release(tensor(&file, "b"));
    assert!(mapped(&path, "Rss") <= left.saturating_sub(8 * MIB) + PAGE);
    assert_eq!(read(), [8192, 8192]);
    assert!(mapped(&path, "Rss") >= 16 * MIB);
}

/// Where the system maps a file of whole pieces as huge pages, it does so with a file of ours.
#[test]
fn a_written_model_is_mapped_as_huge_pages() {
    let folder = folder();
    let (path, plain) = (folder.path().join("model.gguf"), folder.path().join("plain.gguf"));
    model(&path, 8);
    let mut copy = fs::File::create(&plain).unwrap();
    fs::read(&path).unwrap().chunks(2 * MIB).for_each(|piece| copy.write_all(piece).unwrap());
    let [ours, possible] = [&path, &plain].map(|path| {
        let file = File::open(path).unwrap();
        for name in ["a", "b"] {
            sum(&file.bytes(tensor(&file, name)));
        }
        mapped(path, "FilePmdMapped")
    });
    if possible == 0 {
        eprintln!("skipped: no file is mapped as huge pages here");
    }
    assert!(ours >= possible, "{ours} of {possible}");
}

#[test]
fn a_locked_model_is_all_in_memory() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    write(&path, &Metadata::new(), [NewTensor::zeros("t", Type::I8, &[8000])]).unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(mapped(&path, "Locked"), 0);
    match file.lock() {
        Ok(()) => assert_eq!(mapped(&path, "Locked"), mapped(&path, "Size")),
        Err(error) => assert!(error.to_string().contains("ulimit -l"), "{error}"),
    }
}

#[test]
fn cached_pages_of_a_model_that_is_read_ahead_are_mapped() {
    let folder = folder();
    let (path, touched) = (folder.path().join("model.gguf"), folder.path().join("touched.gguf"));
    model(&path, 3);
    model(&touched, 3);
    // What the system maps around one byte in 64 KiB.
    let plain = File::open(&touched).unwrap();
    let bytes = plain.maps().next().unwrap();
    assert!(bytes.iter().step_by(64 << 10).all(|byte| *byte < 0xff));
    let expected = mapped(&touched, "Rss");

    let options = OpenOptions { ahead: true, ..OpenOptions::default() };
    let file = File::open_with(&path, options).unwrap();
    let start = Instant::now();
    while mapped(&path, "Rss") < expected {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", mapped(&path, "Rss"));
        std::thread::sleep(Duration::from_millis(1));
    }
    file.check_unchanged().unwrap();
}

/// Bytes that this thread's calls read from disks, if the system says so.
fn read_from_disks() -> Option<u64> {
    let account = fs::read_to_string("/proc/thread-self/io").ok()?;
    account.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

/// Lets the system forget the file's pages.
fn forget(path: &Path) {
    use rustix::fs::{Advice, fadvise};
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}

#[test]
fn a_tensor_that_is_prefetched_is_read_from_the_disk() {
    let folder = folder();
    let (path, plain) = (folder.path().join("model.gguf"), folder.path().join("plain.gguf"));
    model(&path, 2);
    model(&plain, 2);
    let file = File::open(&path).unwrap();
    forget(&path);
    forget(&plain);
    let Some(before) = read_from_disks() else {
        eprintln!("skipped: the system does not say what is read");
        return;
    };
    fs::read(&plain).unwrap();
    let opened = read_from_disks().unwrap();
    if opened == before {
        eprintln!("skipped: files of this folder are not read from a disk");
        return;
    }
    file.prefetch(tensor(&file, "b"));
    assert!(read_from_disks().unwrap() > opened, "nothing was read");
}
