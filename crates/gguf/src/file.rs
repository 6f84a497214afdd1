//! An open model: its metadata, its tensor directory and its bytes, of one file or all shards.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use bilayer_quant::Type;
use bytes::Bytes;

use crate::cursor::Cursor;
use crate::map::Region;
use crate::parse::{Parsed, parse};
use crate::{Error, Metadata, MetadataOverride, Stamp, TensorLayout, limits, shards};

/// An open GGUF model.
///
/// The bytes of tensors are slices of the mapped file (see [`File::open_with`] for the alternative). Do not truncate
/// or overwrite a file in place while it is open; replacing it by rename is safe. A page that no longer exists reads as
/// zeros, so whoever computes with the bytes asks [`File::check_readable`] before using the result.
#[derive(Debug)]
pub struct File {
    name: String,
    version: u32,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    places: HashMap<String, usize>,
    shards: Vec<Arc<Shard>>,
}

/// A tensor of an open model: name, layout and (shared) bytes.
#[derive(Debug, Clone)]
pub struct Tensor {
    name: String,
    layout: TensorLayout,
    shard: usize,
    bytes: Bytes,
}

/// Options for opening a file.
pub struct OpenOptions<'a> {
    /// Map the file (default) instead of reading it into memory first (`--no-mmap`).
    pub map: bool,
    /// Let a background thread map the pages of the (first) file that are already in the page cache, in order: for a
    /// model whose weights the CPU will read completely. It stops at the first page that is not cached, so a model
    /// larger than memory is left alone. Linux only.
    pub ahead: bool,
    /// Called while reading, after each 16 MiB; never when mapping.
    pub progress: Option<&'a mut dyn FnMut(Progress<'_>)>,
}

impl Default for OpenOptions<'_> {
    fn default() -> Self {
        Self { map: true, ahead: false, progress: None }
    }
}

/// How far a file has been read.
#[derive(Debug, Clone, Copy)]
pub struct Progress<'a> {
    /// The file's path.
    pub file: &'a str,
    /// Bytes read so far.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// One file of a model.
pub(crate) struct Shard {
    pub name: String,
    bytes: Bytes,
    /// Absent if the bytes were passed in.
    region: Option<Arc<Region>>,
    /// The open file as it was when it was mapped.
    mapped: Option<(fs::File, Stamp)>,
}

impl std::fmt::Debug for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shard").field("name", &self.name).field("bytes", &self.bytes.len()).finish()
    }
}

/// Owner that lets `Bytes` keep the pages alive.
struct Pages(Arc<Region>);

impl AsRef<[u8]> for Pages {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

impl Tensor {
    /// Its bytes.
    pub(crate) fn data(&self) -> &[u8] {
        &self.bytes
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its type, shape and place.
    pub fn layout(&self) -> &TensorLayout {
        &self.layout
    }

    /// The shard that contains it, an index into [`File::shard_names`].
    pub fn shard(&self) -> usize {
        self.shard
    }
}

impl File {
    /// Maps the model at `path`. For a model in shards (`NAME-00001-of-00005.gguf`), pass the first; all are opened,
    /// and [`Self::metadata`] is that of the first.
    ///
    /// # Errors
    /// Any [`Error`] about a file.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, OpenOptions::default())
    }

    /// [`Self::open`] with options.
    ///
    /// # Errors
    /// Any [`Error`] about a file.
    pub fn open_with(path: &Path, mut options: OpenOptions<'_>) -> Result<Self, Error> {
        let first = Shard::open(path, &mut options)?;
        if options.ahead {
            first.enter();
        }
        let parsed = parse(&first.name, &first.bytes)?;
        let version = parsed.version;
        let mut shards = vec![];
        let mut tensors = vec![];
        let others = shards::others(path, &first.name, &parsed.metadata)?;
        let (metadata, count) = (parsed.metadata, others.len());
        add(&mut shards, &mut tensors, first, parsed.tensors)?;
        for (index, path) in others.iter().enumerate() {
            let shard = Shard::open(path, &mut options)?;
            let Parsed { metadata, tensors: more, .. } = parse(&shard.name, &shard.bytes)?;
            shards::check_member(&shard.name, &metadata, index + 1, count + 1)?;
            add(&mut shards, &mut tensors, shard, more)?;
        }
        if !others.is_empty() {
            shards::check_total(&shards[0].name, &metadata, tensors.len())?;
        }
        let file = Self::build(version, metadata, shards, tensors)?;
        file.check_readable()?;
        Ok(file)
    }

    /// Opens a model in memory, such as one embedded in the program; `name` replaces the path in messages. The bytes
    /// are copied only if they are not 64-byte aligned.
    ///
    /// # Errors
    /// Any [`Error`] about a file; a shard of several is refused.
    pub fn from_bytes(name: &str, bytes: Bytes) -> Result<Self, Error> {
        let parsed = parse(name, &bytes)?;
        shards::check_single(name, &parsed.metadata)?;
        let shard = Shard::in_memory(name, bytes)?;
        let (mut shards, mut tensors) = (vec![], vec![]);
        add(&mut shards, &mut tensors, shard, parsed.tensors)?;
        Self::build(parsed.version, parsed.metadata, shards, tensors)
    }

    fn build(
        version: u32,
        mut metadata: Metadata,
        shards: Vec<Shard>,
        tensors: Vec<Tensor>,
    ) -> Result<Self, Error> {
        metadata.set_file_bytes(shards.iter().map(|shard| shard.bytes.len() as u64).sum());
        let mut places: HashMap<String, usize> = HashMap::with_capacity(tensors.len());
        for (place, tensor) in tensors.iter().enumerate() {
            if let Some(other) = places.insert(tensor.name.clone(), place) {
                let first = &shards[tensors[other].shard].name;
                return Err(Error::Duplicate {
                    file: shards[tensor.shard].name.clone(),
                    field: format!("tensor {}", tensor.name),
                    place: format!(" (first in {first})"),
                });
            }
        }
        let name = shards[0].name.clone();
        let shards = shards.into_iter().map(Arc::new).collect();
        Ok(Self { name, version, metadata, tensors, places, shards })
    }

    /// A copy of the model with other weights in the tensor `name`, in order to measure their effect: `bytes` of type
    /// `ty` in the tensor's shape. Everything else is shared. The bytes are copied only if they are not 64-byte
    /// aligned.
    ///
    /// # Errors
    /// [`Error::SourceLength`] if their number contradicts type and shape, or there is no such tensor;
    /// [`Error::Quant`] if rows are not whole blocks.
    pub fn with_tensor(&self, name: &str, ty: Type, bytes: Bytes) -> Result<Self, Error> {
        let found = bytes.len() as u64;
        let wrong = |expected| {
            let (file, tensor) = (self.name.clone(), name.to_owned());
            Error::SourceLength { file, tensor, expected, found }
        };
        let place = *self.places.get(name).ok_or_else(|| wrong(0))?;
        let mut tensors = self.tensors.clone();
        let tensor = &mut tensors[place];
        let (shape, offset) = (tensor.layout.shape(), tensor.layout.offset());
        tensor.layout = TensorLayout::new(&self.name, name, ty, shape, offset)?;
        if tensor.layout.len_bytes() != found {
            return Err(wrong(tensor.layout.len_bytes()));
        }
        tensor.bytes = Shard::in_memory(&self.name, bytes)?.bytes;
        Ok(Self {
            name: self.name.clone(),
            version: self.version,
            metadata: self.metadata.clone(),
            tensors,
            places: self.places.clone(),
            shards: self.shards.clone(),
        })
    }

    /// The model with the tensors of another file besides its own, under their names behind `prefix`.
    ///
    /// # Errors
    /// [`Error::Duplicate`]: it has a tensor of that name.
    pub fn joined(mut self, other: File, prefix: &str) -> Result<Self, Error> {
        let first = self.shards.len();
        self.shards.extend(other.shards);
        for tensor in other.tensors {
            let name = format!("{prefix}{}", tensor.name);
            if self.places.insert(name.clone(), self.tensors.len()).is_some() {
                return Err(Error::Duplicate {
                    file: other.name,
                    field: format!("tensor {}", tensor.name),
                    place: format!(" ({} has it)", self.name),
                });
            }
            self.tensors.push(Tensor { name, shard: first + tensor.shard, ..tensor });
        }
        Ok(self)
    }

    /// The model with other metadata and with those of its tensors to which `name` gives a name, under it. Weights are
    /// shared, not copied.
    ///
    /// # Errors
    /// [`Error::Duplicate`]: two tensors get one name.
    pub fn renamed(
        &self,
        metadata: Metadata,
        name: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let (mut tensors, mut places) = (Vec::new(), HashMap::new());
        for tensor in &self.tensors {
            let Some(name) = name(&tensor.name) else { continue };
            if places.insert(name.clone(), tensors.len()).is_some() {
                return Err(Error::Duplicate {
                    file: self.name.clone(),
                    field: format!("tensor {name}"),
                    place: String::new(),
                });
            }
            tensors.push(Tensor { name, ..tensor.clone() });
        }
        let (name, shards) = (self.name.clone(), self.shards.clone());
        Ok(Self { name, version: self.version, metadata, tensors, places, shards })
    }

    /// The path of the (first) file, or the name passed in, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The paths of all files of the model, the first first.
    pub fn shard_names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.shards.iter().map(|shard| shard.name.as_str())
    }

    /// The format's version: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The keys and values (of the first shard).
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The file with other values of some keys; the bytes on disk stay as they are.
    ///
    /// # Errors
    /// [`Error::Override`].
    pub fn overridden(mut self, overrides: &[MetadataOverride]) -> Result<Self, Error> {
        let name = self.name().to_owned();
        overrides.iter().try_for_each(|one| one.apply(&name, &mut self.metadata))?;
        Ok(self)
    }

    /// Removes a key and frees its value, such as a long list that has been read.
    pub fn forget(&mut self, key: &str) {
        self.metadata.remove(key);
    }

    /// All tensors, in the order of the directory, shard by shard.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.places.get(name).map(|&place| &self.tensors[place])
    }

    /// The tensor's bytes: a slice of the map, shared and not copied, `layout().len_bytes()` long. It is aligned to
    /// `general.alignment` (at most the page size, or 64 for [`Self::from_bytes`]) and keeps the pages alive.
    pub fn bytes(&self, tensor: &Tensor) -> Bytes {
        tensor.bytes.clone()
    }

    /// The size of all files together, in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes.len() as u64).sum()
    }

    /// Whether tensors are slices of mapped files, which are paged in on demand.
    pub fn is_mapped(&self) -> bool {
        self.shards.iter().any(|shard| shard.region.as_ref().is_some_and(|region| region.is_map()))
    }

    /// Advises the operating system to read the tensor ahead. Returns at once; does nothing unless the file is
    /// mapped.
    pub fn prefetch(&self, tensor: &Tensor) {
        if let Some(region) = self.region_of(tensor) {
            region.will_need(&tensor.bytes);
        }
    }

    /// [`Self::prefetch`] of a part of a tensor's bytes.
    pub(crate) fn prefetch_part(&self, tensor: &Tensor, part: &[u8]) {
        if let Some(region) = self.region_of(tensor) {
            region.will_need(part);
        }
    }

    /// Releases the memory of the tensor's pages, for example after an upload to a device. The bytes stay valid: the
    /// next access reads the file again. Only advice, and without effect unless the file is mapped.
    pub fn release(&self, tensor: &Tensor) {
        if let Some(region) = self.region_of(tensor) {
            region.release(&tensor.bytes);
        }
    }

    /// All bytes of each mapped file, page-aligned; tensors are slices of them. A device that shares the host's
    /// memory may read them in place.
    pub fn maps(&self) -> impl Iterator<Item = &Bytes> {
        let mapped =
            |shard: &&Arc<Shard>| shard.region.as_ref().is_some_and(|region| region.is_map());
        self.shards.iter().filter(mapped).map(|shard| &shard.bytes)
    }

    /// Reads all pages and locks them in memory (`--mlock`).
    ///
    /// # Errors
    /// [`Error::Io`] if the limit on locked memory is too low.
    pub fn lock(&self) -> Result<(), Error> {
        let action = "lock its memory (raise the limit, ulimit -l, or leave out mlock)";
        for shard in self.shards.iter() {
            let Some(region) = &shard.region else { continue };
            let file = || shard.name.clone();
            region.lock().map_err(|source| Error::Io { file: file(), action, source })?;
        }
        Ok(())
    }

    /// Checks that no read of a mapped file failed so far. Costs a load per shard.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn check_readable(&self) -> Result<(), Error> {
        for shard in self.shards.iter() {
            if let Some(offset) = shard.region.as_ref().and_then(|region| region.lost()) {
                return Err(Error::Lost { file: shard.name.clone(), offset });
            }
        }
        Ok(())
    }

    /// [`Self::check_readable`], and checks that the mapped files still have the size and modification time they were
    /// opened with. Costs a system call per shard. Replacement by rename is not a change: the old file is still mapped.
    ///
    /// # Errors
    /// [`Error::Lost`], [`Error::Changed`], [`Error::Io`].
    pub fn check_unchanged(&self) -> Result<(), Error> {
        self.check_readable()?;
        for shard in self.shards.iter() {
            let Some((file, opened)) = &shard.mapped else { continue };
            let facts = file.metadata().map_err(|source| io(&shard.name, "examine it", source))?;
            let found = Stamp::of(&facts);
            if found != *opened {
                let (file, expected, found) = (shard.name.clone(), opened.len, found.len);
                return Err(Error::Changed { file, expected, found });
            }
        }
        Ok(())
    }

    /// Makes a page of the first shard's map unreadable, as a disk that fails does: the one with byte `offset` of the file. To
    /// test what comes of it.
    ///
    /// # Errors
    /// [`Error::Io`]: the file is not mapped, or has no such byte.
    #[doc(hidden)]
    #[cfg(target_os = "linux")]
    pub fn break_page(&self, offset: u64) -> Result<(), Error> {
        let mapped = self.shards.iter().find(|shard| shard.mapped.is_some());
        let region = mapped.and_then(|shard| Some((shard, shard.region.as_ref()?)));
        let (shard, region) = region.ok_or_else(|| {
            io("the file", "break a page", std::io::Error::other("it is not mapped"))
        })?;
        let broken = region.break_page(usize::try_from(offset).unwrap_or(usize::MAX));
        broken.map_err(|source| io(&shard.name, "break a page", source))
    }

    fn region_of(&self, tensor: &Tensor) -> Option<&Region> {
        self.shards.get(tensor.shard)?.region.as_deref()
    }
}

/// Adds a shard and its tensors.
fn add(
    shards: &mut Vec<Shard>,
    tensors: &mut Vec<Tensor>,
    shard: Shard,
    layouts: Vec<(String, TensorLayout)>,
) -> Result<(), Error> {
    let found = (tensors.len() + layouts.len()) as u64;
    if found > limits::TENSORS {
        let field = "tensor count of all shards".into();
        return Err(Error::Limit { file: shard.name, field, max: limits::TENSORS, found });
    }
    tensors.extend(layouts.into_iter().map(|(name, layout)| {
        // Both numbers were checked against the file's length, which is a usize.
        let (start, len) = (layout.offset() as usize, layout.len_bytes() as usize);
        Tensor { name, layout, shard: shards.len(), bytes: shard.bytes.slice(start..start + len) }
    }));
    shards.push(shard);
    Ok(())
}

impl Shard {
    fn open(path: &Path, options: &mut OpenOptions<'_>) -> Result<Self, Error> {
        let name = path.display().to_string();
        // Checked before opening, since opening a pipe would wait for its other end.
        let facts = fs::metadata(path).map_err(|source| io(&name, "open it", source))?;
        if !facts.is_file() {
            let found = if facts.is_dir() { "a folder" } else { "a pipe or device" };
            return Err(Error::NotAFile { file: name, found });
        }
        let mut file = fs::File::open(path).map_err(|source| io(&name, "open it", source))?;
        let facts = file.metadata().map_err(|source| io(&name, "examine it", source))?;
        let Ok(len) = usize::try_from(facts.len()) else {
            let (found, max) = (facts.len(), usize::MAX as u64);
            return Err(Error::Limit { file: name, field: "file size".into(), max, found });
        };
        if len == 0 {
            return Err(empty(&name));
        }
        if options.map {
            let region = Region::map(&file).map_err(|source| io(&name, "map it", source))?;
            let mapped = Some((file, Stamp::of(&facts)));
            return Ok(Self { mapped, ..Self::of(name, region) });
        }
        let region = Region::read(&mut file, len, |done_bytes| {
            if let Some(progress) = &mut options.progress {
                progress(Progress { file: &name, done_bytes, total_bytes: len as u64 });
            }
        });
        let region = region.map_err(|source| io(&name, "read it into memory", source))?;
        Ok(Self::of(name, region))
    }

    /// Starts a thread that maps cached pages until all are mapped, one is missing, or the file is closed.
    #[cfg(target_os = "linux")]
    fn enter(&self) {
        /// Bytes per probed page: the page cache fills and evicts in runs of about this size.
        const STEP: usize = 2 << 20;
        let Some((Some(region), Ok(file))) =
            self.mapped.as_ref().map(|(file, ..)| (self.region.as_ref(), file.try_clone()))
        else {
            return;
        };
        let (region, len) = (Arc::downgrade(region), self.bytes.len());
        let enter = move || {
            let mut parts = (0..len).step_by(STEP).map(|at| at..len.min(at + STEP));
            parts.all(|part| region.upgrade().is_some_and(|region| region.enter(&file, part)))
        };
        // Without the thread, pages are mapped on first access.
        let _ = std::thread::Builder::new().name("bilayer map".into()).spawn(enter);
    }

    #[cfg(not(target_os = "linux"))]
    fn enter(&self) {}

    fn in_memory(name: &str, bytes: Bytes) -> Result<Self, Error> {
        // Kernels rely on the alignment of blocks, wherever a model comes from.
        if bytes.as_ptr().addr().is_multiple_of(64) {
            return Ok(Self { name: name.into(), bytes, region: None, mapped: None });
        }
        let region = Region::copy(&bytes).map_err(|source| io(name, "copy it", source))?;
        Ok(Self::of(name.into(), region))
    }

    fn of(name: String, region: Region) -> Self {
        let region = Arc::new(region);
        let bytes = Bytes::from_owner(Pages(region.clone()));
        Self { name, bytes, region: Some(region), mapped: None }
    }
}

fn io(name: &str, action: &'static str, source: std::io::Error) -> Error {
    Error::Io { file: name.into(), action, source }
}

/// The error for an empty file, which cannot be mapped.
fn empty(name: &str) -> Error {
    let mut cursor = Cursor::new(name, &[]);
    match cursor.take(4, format_args!("field magic")) {
        Err(error) => error,
        Ok(_) => unreachable!("there are no bytes to take"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_shards_together_have_as_many_tensors_as_allowed() {
        let layout = TensorLayout::new("a", "t", Type::I8, &[1], 0).unwrap();
        let (mut shards, mut tensors) = (vec![], vec![]);
        let mut more = |name: &str, count| {
            let (name, bytes) = (name.to_owned(), Bytes::from_static(&[1]));
            let shard = Shard { name, bytes, region: None, mapped: None };
            add(&mut shards, &mut tensors, shard, vec![(String::new(), layout); count])
        };
        more("a", 65_535).unwrap();
        more("b", 1).unwrap();
        let error = more("c", 1).unwrap_err();
        let Error::Limit { file, max, found, .. } = error else { panic!("{error}") };
        assert_eq!((&*file, max, found), ("c", 65_536, 65_537));
        assert_eq!((shards.len(), tensors.len()), (2, 65_536));
    }
}
