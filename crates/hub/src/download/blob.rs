//! One file of the cache: locked, resumed, checked, then moved to its place.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bilayer_files::hash::{Sha256, hex};
use bilayer_files::{PieceWriter, flush, free_bytes, rename};

use super::client::{Blob, Client};
use crate::Error;
use crate::cache::HubCache;
use crate::name::Repo;

/// What an answer that is not the file, such as a page for logging in, is shorter than.
const PAGE_BYTES: u64 = 1 << 20;

/// Bytes that are read at a time.
const CHUNK_BYTES: usize = 256 << 10;

/// Connections in a row that may bring nothing.
const ATTEMPTS_MAX: u32 = 4;

/// The wait before the second of these; each later one is twice as long.
const PAUSE: Duration = Duration::from_millis(300);

/// How often a lock that another process has is looked at.
const LOCK_POLL: Duration = Duration::from_millis(200);

/// Hears how many bytes of the file are there.
type Within<'t> = dyn FnMut(u64) -> ControlFlow<()> + 't;

/// The path of the blob, which is downloaded unless it is there. Of several processes one downloads and the others wait.
pub(super) fn ensure(
    client: &Client,
    cache: &HubCache,
    repo: &Repo,
    blob: &Blob,
    tell: &mut Within<'_>,
) -> Result<PathBuf, Error> {
    let folder = cache.repo(repo).join("blobs");
    let path = folder.join(&blob.etag);
    if is_whole(&path, blob) {
        return Ok(path);
    }
    let locks = cache.root().join(".locks").join(repo.folder());
    for folder in [&folder, &locks] {
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    }
    let _lock = lock(&locks.join(format!("{}.lock", blob.etag)), tell)?;
    if is_whole(&path, blob) {
        return Ok(path);
    }
    let part_path = incomplete(&folder, blob);
    let mut part = BlobPart::open(&part_path, blob, tell)?;
    room(&folder, &blob.file, blob.bytes - part.len)?;
    receive(client, blob, &mut part, tell)?;
    part.check(blob)?;
    rename(&part_path, &path).map_err(Error::io(&path))?;
    Ok(path)
}

/// Refuses the download of a model's files if the disk has no space for all that is missing of them.
pub(super) fn room_for_all(cache: &HubCache, repo: &Repo, blobs: &[Blob]) -> Result<(), Error> {
    let folder = cache.repo(repo).join("blobs");
    let missing = |blob: &&Blob| !is_whole(&folder.join(&blob.etag), blob);
    let missing: Vec<&Blob> = blobs.iter().filter(missing).collect();
    let [first, others @ ..] = &missing[..] else { return Ok(()) };
    std::fs::create_dir_all(&folder).map_err(Error::io(&folder))?;
    let still_to_come = |blob: &&Blob| {
        let here = incomplete(&folder, blob).metadata().map_or(0, |facts| facts.len());
        blob.bytes.saturating_sub(here)
    };
    let needed_bytes = missing.iter().map(still_to_come).fold(0, u64::saturating_add);
    let what = match others.len() {
        0 => first.file.clone(),
        count => format!("{} and {count} more", first.file),
    };
    room(&folder, &what, needed_bytes)
}

/// Where a file is while it arrives.
fn incomplete(folder: &Path, blob: &Blob) -> PathBuf {
    folder.join(format!("{}.incomplete", blob.etag))
}

fn is_whole(path: &Path, blob: &Blob) -> bool {
    path.metadata().is_ok_and(|facts| facts.is_file() && facts.len() == blob.bytes)
}

/// Waits for the lock of a blob; it is released when the file is closed, also by the end of the process.
fn lock(path: &Path, tell: &mut Within<'_>) -> Result<File, Error> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(Error::io(path))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
            // A file system without locks: the checksum still protects the result.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                return Ok(file);
            }
            Err(TryLockError::Error(error)) => return Err(Error::io(path)(error)),
        }
        if tell(0).is_break() {
            return Err(Error::Interrupted);
        }
        std::thread::sleep(LOCK_POLL);
    }
}

/// What has arrived of a file, with its checksum so far.
struct BlobPart {
    path: PathBuf,
    file: PieceWriter<File>,
    /// Bytes of it, those included that are not written yet.
    len: u64,
    sha256: Sha256,
}

impl BlobPart {
    /// Opens what an earlier download left, or begins anew. `tell` hears how much of it is read for the checksum.
    fn open(path: &Path, blob: &Blob, tell: &mut Within<'_>) -> Result<BlobPart, Error> {
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
        let file = file.map_err(Error::io(path))?;
        if file.metadata().map_err(Error::io(path))?.len() > blob.bytes {
            file.set_len(0).map_err(Error::io(path))?;
        }
        let (mut len, mut sha256) = (0, Sha256::new());
        let hashed = sha256.update_from(BufReader::with_capacity(CHUNK_BYTES, &file), |done| {
            len = done;
            tell(done)
        });
        match hashed.map_err(Error::io(path))? {
            ControlFlow::Continue(()) => {
                let file = PieceWriter::new(file).map_err(Error::io(path))?;
                Ok(BlobPart { path: path.to_owned(), file, len, sha256 })
            }
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    }

    /// Forgets what has arrived.
    fn restart(&mut self) -> Result<(), Error> {
        let emptied = self.file.seek(SeekFrom::Start(0));
        let emptied = emptied.and_then(|_| self.file.get_ref().set_len(0));
        emptied.map_err(Error::io(&self.path))?;
        self.len = 0;
        self.sha256 = Sha256::new();
        Ok(())
    }

    fn append(&mut self, bytes: &[u8], blob: &Blob) -> Result<(), Error> {
        self.written(blob, |file| file.write_all(bytes))?;
        self.sha256.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Writes what has arrived to the file.
    fn settle(&mut self, blob: &Blob) -> Result<(), Error> {
        self.written(blob, Write::flush)
    }

    fn written(
        &mut self,
        blob: &Blob,
        write: impl FnOnce(&mut PieceWriter<File>) -> io::Result<()>,
    ) -> Result<(), Error> {
        write(&mut self.file).map_err(|error| match error.kind() {
            // The next attempt goes on from what the disk took.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace {
                folder: self.path.parent().unwrap_or(&self.path).to_owned(),
                file: blob.file.clone(),
                needed_bytes: blob.bytes.saturating_sub(self.len),
                free_bytes: 0,
            },
            _ => Error::io(&self.path)(error),
        })
    }

    /// Compares the checksum; bytes that are wrong are deleted.
    fn check(mut self, blob: &Blob) -> Result<(), Error> {
        self.settle(blob)?;
        flush(self.file.get_ref()).map_err(Error::io(&self.path))?;
        let found = hex(self.sha256.finish());
        match blob.sha256() {
            Some(expected) if !expected.eq_ignore_ascii_case(&found) => {
                std::fs::remove_file(&self.path).map_err(Error::io(&self.path))?;
                let expected = expected.to_owned();
                Err(Error::Checksum { file: blob.file.clone(), expected, found })
            }
            _ => Ok(()),
        }
    }
}

/// Refuses a download that the disk has no space for. A file system that cannot tell is tried.
fn room(folder: &Path, what: &str, needed_bytes: u64) -> Result<(), Error> {
    match free_bytes(folder) {
        Some(free_bytes) if needed_bytes > free_bytes => Err(Error::NoSpace {
            folder: folder.to_owned(),
            file: what.to_owned(),
            needed_bytes,
            free_bytes,
        }),
        _ => Ok(()),
    }
}

/// Reads until the file is complete, over as many connections as bring something.
fn receive(
    client: &Client,
    blob: &Blob,
    part: &mut BlobPart,
    tell: &mut Within<'_>,
) -> Result<(), Error> {
    let (mut failures, mut reason) = (0, String::new());
    loop {
        if tell(part.len).is_break() {
            return Err(Error::Interrupted);
        }
        if part.len == blob.bytes {
            return Ok(());
        }
        if failures == ATTEMPTS_MAX {
            return Err(Error::Broken {
                file: blob.file.clone(),
                done_bytes: part.len,
                total_bytes: blob.bytes,
                reason,
            });
        }
        if failures > 0 {
            std::thread::sleep(PAUSE * 2u32.pow(failures - 1));
        }
        let before = part.len;
        let ended = connection(client, blob, part, tell);
        let settled = part.settle(blob);
        match ended.and_then(|ended| settled.map(|()| ended))? {
            Ended::Whole => {}
            Ended::Early(why) => {
                failures = if part.len > before { 1 } else { failures + 1 };
                reason = why;
            }
        }
    }
}

/// How a connection ended.
enum Ended {
    Whole,
    /// Why another one is worth trying.
    Early(String),
}

/// Reads what one connection brings.
fn connection(
    client: &Client,
    blob: &Blob,
    part: &mut BlobPart,
    tell: &mut Within<'_>,
) -> Result<Ended, Error> {
    let body = match opened(client, blob, part)? {
        Ok(body) => body,
        Err(why) => return Ok(Ended::Early(why)),
    };
    // The end of a whole answer without Content-Length is that of a shorter document.
    let is_unsized = part.len == 0 && body.content_length().is_none();
    let mut body = body.into_reader();
    let mut chunk = vec![0; CHUNK_BYTES];
    while part.len < blob.bytes {
        let wanted = (blob.bytes - part.len).min(CHUNK_BYTES as u64) as usize;
        match body.read(&mut chunk[..wanted]) {
            // A longer one was cut off.
            Ok(0) if is_unsized && part.len < PAGE_BYTES => {
                let found = part.len;
                part.restart()?;
                return Err(not_the_file(blob, found));
            }
            Ok(0) => return Ok(Ended::Early("the connection was closed".to_owned())),
            Ok(read) => part.append(&chunk[..read], blob)?,
            Err(error) => return Ok(Ended::Early(error.to_string())),
        }
        if tell(part.len).is_break() {
            return Err(Error::Interrupted);
        }
    }
    Ok(Ended::Whole)
}

/// The bytes that follow those of `part`, which is emptied where the storage can only send the whole file. The inner error
/// is why another connection is worth trying.
///
/// # Errors
/// A refusal, or an answer that is not the file: what has arrived is kept.
fn opened(
    client: &Client,
    blob: &Blob,
    part: &mut BlobPart,
) -> Result<Result<ureq::Body, String>, Error> {
    let ask = |first| match client.bytes(blob, first) {
        Ok(reply) => Ok(Ok(reply.response)),
        Err(Error::Unreachable { reason, .. }) => Ok(Err(reason)),
        Err(error) => Err(error),
    };
    let is_wanted =
        |response: &Response| response.status().as_u16() == 206 && starts_at(response, part.len);
    let mut response = match ask(part.len)? {
        Ok(response) => response,
        Err(why) => return Ok(Err(why)),
    };
    if part.len > 0 && [206, 416].contains(&response.status().as_u16()) && !is_wanted(&response) {
        // The storage does not have this range: the whole file.
        response = match ask(0)? {
            Ok(response) => response,
            Err(why) => return Ok(Err(why)),
        };
    }
    match response.status().as_u16() {
        206 if is_wanted(&response) => {}
        200 => {
            is_file(&response, blob, part)?;
            part.restart()?;
        }
        status @ (429 | 500..=599) => return Ok(Err(format!("HTTP status {status}"))),
        status => return Err(client.refused(status, &blob.file, &blob.url)),
    }
    Ok(Ok(response.into_body()))
}

/// An answer of the storage.
type Response = ureq::http::Response<ureq::Body>;

/// # Errors
/// A whole answer that is not as long as the file, such as the page of a network that wants a login; one of unknown length,
/// where something has arrived that it would replace.
fn is_file(response: &Response, blob: &Blob, part: &BlobPart) -> Result<(), Error> {
    match response.body().content_length() {
        Some(len) if len != blob.bytes => Err(not_the_file(blob, len)),
        None if part.len > 0 => Err(Error::Answer {
            url: blob.url.clone(),
            reason: format!(
                "the answer has no Content-Length, so it may be another document; to download the whole file, delete {}",
                part.path.display()
            ),
        }),
        _ => Ok(()),
    }
}

/// The error for a whole answer of `len` bytes.
fn not_the_file(blob: &Blob, len: u64) -> Error {
    let reason = format!("the answer has {len} bytes, the file {}", blob.bytes);
    Error::Answer { url: blob.url.clone(), reason }
}

/// Whether a part of a file begins where it was asked to.
fn starts_at(response: &Response, first: u64) -> bool {
    let range = response.headers().get("content-range").and_then(|range| range.to_str().ok());
    let begin =
        range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
    begin == Some(first)
}
