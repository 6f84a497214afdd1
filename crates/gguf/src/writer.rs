//! Writes a file atomically: header, then each tensor from its source.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use bilayer_files::{Access, Draft, PieceWriter, folder_of, free_bytes};
use bilayer_quant::Type;
use bilayer_quant::private::KEY;
use bytes::Bytes;

use crate::{
    Array, Error, File, Metadata, SourceError, Tensor, TensorLayout, Value, encode, limits, names,
};

type Fill<'a> = Box<dyn FnOnce(&mut dyn Write) -> Result<(), SourceError> + 'a>;

/// A tensor to be written: name, type, shape `[.., rows, cols]`, and the source of its bytes.
pub struct NewTensor<'a> {
    name: String,
    ty: Type,
    shape: Vec<u64>,
    data: Data<'a>,
}

enum Data<'a> {
    Zeros,
    Bytes(Bytes),
    Stream(Fill<'a>),
}

impl<'a> NewTensor<'a> {
    /// A tensor whose bytes are in memory.
    pub fn bytes(name: &str, ty: Type, shape: &[u64], bytes: impl Into<Bytes>) -> Self {
        let data = Data::Bytes(bytes.into());
        Self { name: name.into(), ty, shape: shape.into(), data }
    }

    /// A tensor of an open model, unchanged; its bytes are shared, not copied.
    pub fn copied(file: &File, tensor: &Tensor) -> Self {
        let layout = tensor.layout();
        Self::bytes(tensor.name(), layout.ty(), layout.shape(), file.bytes(tensor))
    }

    /// A tensor whose bytes are produced during writing. `fill` is called once, after the preceding tensors are
    /// written, and passes its bytes to `write_all` in pieces of any size, which bounds the memory used.
    pub fn stream(
        name: &str,
        ty: Type,
        shape: &[u64],
        fill: impl FnOnce(&mut dyn Write) -> Result<(), SourceError> + 'a,
    ) -> Self {
        let data = Data::Stream(Box::new(fill));
        Self { name: name.into(), ty, shape: shape.into(), data }
    }

    /// A tensor of zeros, which use no disk space: a file of such tensors is hollow, with the header, size and
    /// tensors of a real one.
    pub fn zeros(name: &str, ty: Type, shape: &[u64]) -> Self {
        Self { name: name.into(), ty, shape: shape.into(), data: Data::Zeros }
    }
}

/// Writes `metadata` and `tensors`, in their order, to `path`: first to a temporary file in the same folder, then
/// flushed to disk and renamed. On an error nothing is left behind and an existing file at `path` is untouched; a
/// file abandoned by a killed writer is removed by the next writer of the same path. The target may be open as input.
/// A symbolic link is followed: the file it points to is replaced.
///
/// The layout is canonical: version 3, every tensor (the last too) padded with zeros to
/// `general.alignment`, no gaps; the same input gives the same bytes.
///
/// # Errors
/// [`Error::Io`], [`Error::NoRoom`], [`Error::NotAFile`], [`Error::Source`], [`Error::SourceLength`]; and the
/// reader's errors for invalid keys, names, shapes and alignments.
pub fn write<'a>(
    path: &Path,
    metadata: &Metadata,
    tensors: impl IntoIterator<Item = NewTensor<'a>>,
) -> Result<(), Error> {
    put_in_place(write_draft(path, metadata, tensors)?, path)
}

/// Gives a file of [`write_draft`] its name.
///
/// # Errors
/// [`Error::Io`], as of [`Draft::finish`].
pub fn put_in_place(draft: Draft, path: &Path) -> Result<(), Error> {
    draft.finish(path).map_err(|source| Error::Io {
        file: path.display().to_string(),
        action: "flush it to the disk and put it in place",
        source,
    })
}

/// [`write()`] without the last step: the complete file has its temporary name, and [`put_in_place`] gives it that of `path`.
///
/// # Errors
/// Those of [`write()`].
pub fn write_draft<'a>(
    path: &Path,
    metadata: &Metadata,
    tensors: impl IntoIterator<Item = NewTensor<'a>>,
) -> Result<Draft, Error> {
    let file = path.display().to_string();
    let plan = Plan::new(&file, metadata, tensors)?;
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    // Renaming would replace a device by a file, for all its users.
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => return Err(Error::NotAFile { file, found: "a folder" }),
        Ok(there) if !there.is_file() => {
            return Err(Error::NotAFile { file, found: "a pipe or device" });
        }
        _ => {}
    }
    let io = |action| {
        let file = &file;
        move |source| Error::Io { file: file.clone(), action, source }
    };
    let partial = create_sized(path, plan.len_bytes())?;

    let mut out = PieceWriter::new(&partial).map_err(io("write it"))?;
    let total_bytes = plan.write(&file, &mut out)?;
    out.flush().map_err(io("write it"))?;
    drop(out);
    // Trailing zeros were skipped, not written.
    partial.set_len(total_bytes).map_err(io("write it"))?;
    Ok(partial)
}

/// The temporary file of one that will have `len_bytes` on disk.
fn create_sized(path: &Path, len_bytes: u64) -> Result<Draft, Error> {
    let file = || path.display().to_string();
    let action = "create a temporary file in its folder";
    let made = bilayer_files::create(path, Access::Usual);
    let made = made.map_err(|source| Error::Io { file: file(), action, source })?;
    match free_bytes(folder_of(path)).filter(|free| *free < len_bytes) {
        Some(free) => Err(Error::NoRoom { file: file(), needed: len_bytes, free }),
        None => Ok(made),
    }
}

/// Produces the file in memory.
///
/// # Errors
/// Those of [`write()`].
pub fn to_bytes<'a>(
    metadata: &Metadata,
    tensors: impl IntoIterator<Item = NewTensor<'a>>,
) -> Result<Bytes, Error> {
    let file = "memory";
    let mut out = Vec::new();
    Plan::new(file, metadata, tensors)?.write(file, &mut out)?;
    Ok(out.into())
}

/// A validated file, ready to be written.
struct Plan<'a> {
    header: Vec<u8>,
    alignment: u64,
    tensors: Vec<(String, TensorLayout, Data<'a>)>,
}

impl<'a> Plan<'a> {
    /// Lays out all tensors and applies the reader's rules.
    fn new(
        file: &str,
        metadata: &Metadata,
        tensors: impl IntoIterator<Item = NewTensor<'a>>,
    ) -> Result<Self, Error> {
        let limit = |field: &str, found: usize, max: u64| match found as u64 {
            found if found > max => {
                Err(Error::Limit { file: file.into(), field: field.into(), max, found })
            }
            _ => Ok(()),
        };
        limit("key count", metadata.len(), limits::KEYS)?;
        for (key, value) in metadata.iter() {
            names::check_key(file, key)?;
            match value {
                Value::String(text) => {
                    limit(&format!("length of key {key}"), text.len(), limits::STRING_BYTES)?
                }
                Value::Array(array) => {
                    limit(&format!("elements of key {key}"), array.len(), limits::ARRAY_ELEMENTS)?
                }
                _ => (),
            }
            if let Value::Array(Array::String(strings)) = value {
                let longest = strings.iter().map(str::len).max().unwrap_or_default();
                limit(&format!("longest string of key {key}"), longest, limits::STRING_BYTES)?;
            }
        }
        let alignment = u64::from(metadata.alignment()?);
        let tensors: Vec<NewTensor<'a>> = tensors.into_iter().collect();
        let metadata = &listed(metadata, tensors.iter().map(|tensor| tensor.ty));

        let mut placed = vec![];
        let mut seen = HashSet::new();
        let mut offset = 0;
        for NewTensor { name, ty, shape, data } in tensors {
            names::check_tensor(file, &name)?;
            if !seen.insert(name.clone()) {
                let (file, field) = (file.into(), format!("tensor {name}"));
                return Err(Error::Duplicate { file, field, place: String::new() });
            }
            let layout = TensorLayout::new(file, &name, ty, &shape, offset)?;
            // The layout's end is below 2^63, so rounding it up cannot overflow.
            offset = (offset + layout.len_bytes()).next_multiple_of(alignment);
            placed.push((name, layout, data));
        }
        limit("tensor count", placed.len(), limits::TENSORS)?;
        let directory: Vec<_> =
            placed.iter().map(|(name, layout, _)| (name.as_str(), *layout)).collect();
        let header = encode::header(metadata, &directory);
        Ok(Self { header, alignment, tensors: placed })
    }

    /// Approximate bytes on disk: holes take no space, and padding little.
    fn len_bytes(&self) -> u64 {
        let written = self.tensors.iter().filter(|(_, _, data)| !matches!(data, Data::Zeros));
        self.header.len() as u64 + written.map(|(_, layout, _)| layout.len_bytes()).sum::<u64>()
    }

    /// Writes everything; returns the length of the file in bytes.
    fn write(self, file: &str, out: &mut dyn Output) -> Result<u64, Error> {
        let io = |source| Error::Io { file: file.into(), action: "write it", source };
        let mut at = self.header.len() as u64;
        out.write_all(&self.header).map_err(io)?;
        let padding = |at: u64| at.next_multiple_of(self.alignment) - at;
        out.skip(padding(at)).map_err(io)?;
        at += padding(at);
        for (name, layout, data) in self.tensors {
            let len = layout.len_bytes();
            match data {
                Data::Zeros => out.skip(len).map_err(io)?,
                Data::Bytes(bytes) => {
                    exact(file, name, out, len, Box::new(move |out| Ok(out.write_all(&bytes)?)))?;
                }
                Data::Stream(fill) => exact(file, name, out, len, fill)?,
            }
            out.skip(padding(at + len)).map_err(io)?;
            at += len + padding(at + len);
        }
        Ok(at)
    }
}

/// The metadata with a list of the types in use that are not part of GGUF, so that a reader without them can name
/// them; without such types, none.
fn listed(metadata: &Metadata, types: impl Iterator<Item = Type>) -> Metadata {
    let private = types.filter(|ty| !ty.is_gguf());
    let private: BTreeSet<String> = private.map(|ty| format!("{}={ty}", ty.gguf_id)).collect();
    let mut metadata = metadata.clone();
    match private.is_empty() {
        true => drop(metadata.remove(KEY)),
        false => metadata.set(KEY, Array::String(private.into_iter().collect())),
    }
    metadata
}

/// Lets `fill` write exactly `len` bytes.
fn exact(
    file: &str,
    tensor: String,
    out: &mut dyn Output,
    len: u64,
    fill: Fill<'_>,
) -> Result<(), Error> {
    let mut counted = Counted { out, left: len, excess: 0, error: None };
    let result = fill(&mut counted);
    let Counted { left, excess, error, .. } = counted;
    let file = file.to_owned();
    // An error of the disk takes precedence over what the source made of it.
    if let Some(source) = error {
        return Err(Error::Io { file, action: "write it", source });
    }
    if excess > 0 {
        return Err(Error::SourceLength { file, tensor, expected: len, found: len + excess });
    }
    result.map_err(|source| Error::Source {
        file: file.clone(),
        tensor: tensor.clone(),
        source,
    })?;
    if left > 0 {
        return Err(Error::SourceLength { file, tensor, expected: len, found: len - left });
    }
    Ok(())
}

/// Counts a source's bytes, and records whether an error came from the output.
struct Counted<'a> {
    out: &'a mut dyn Output,
    left: u64,
    excess: u64,
    error: Option<io::Error>,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len() as u64;
        if len > self.left {
            self.excess = len - self.left;
            return Err(io::Error::other("more bytes than type and shape say"));
        }
        match self.out.write(bytes) {
            Ok(written) => {
                self.left -= written as u64;
                Ok(written)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let copy = io::Error::new(error.kind(), error.to_string());
                self.error = Some(error);
                Err(copy)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Destination of a file.
trait Output: Write {
    /// Leaves `len` bytes zero.
    fn skip(&mut self, len: u64) -> io::Result<()>;
}

impl Output for PieceWriter<&Draft> {
    fn skip(&mut self, len: u64) -> io::Result<()> {
        // Below this size, writing zeros is cheaper than a hole.
        const HOLE: u64 = 1 << 16;
        if len < HOLE {
            return io::copy(&mut io::Read::take(io::repeat(0), len), self).map(drop);
        }
        let len = i64::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        self.seek(SeekFrom::Current(len)).map(drop)
    }
}

impl Output for Vec<u8> {
    fn skip(&mut self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        self.try_reserve(len)?;
        self.resize(self.len() + len, 0);
        Ok(())
    }
}
