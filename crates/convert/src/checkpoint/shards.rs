//! The weights of a checkpoint: safetensors files; headers are read completely, data in ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Mutex;

use bilayer_gguf::Stamp;
use bilayer_quant::Type;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::Checkpoint;
use crate::Error;

mod scaled;

/// Maximum header size, a limit of the format.
const HEADER_BYTES: u64 = 100_000_000;

/// A single file, or all files listed by an index.
#[derive(Debug, Default)]
pub(crate) struct Shards {
    files: Vec<Shard>,
    tensors: BTreeMap<String, Stored>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    path: PathBuf,
    file: Mutex<File>,
    /// As it was when its header was read.
    opened: Stamp,
}

/// Location of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    shard: usize,
    /// Offset from the start of the file, in bytes.
    offset: u64,
    /// Rightmost contiguous.
    pub shape: Vec<u64>,
    dtype: Dtype,
    /// The scales of FP8, NVFP4 or MXFP4 weights.
    scales: Option<Box<scaled::Scales>>,
}

/// A floating-point type that can be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Float {
    /// The GGUF type in which the weights are read.
    pub ty: Type,
    /// The type of a file's matrices if none is asked for.
    pub usual: Type,
}

impl Float {
    /// Bytes per weight.
    pub fn bytes(self) -> usize {
        self.ty.block_bytes
    }
}

impl Stored {
    /// The floating-point type; `None` for integers and packed data.
    pub fn float(&self) -> Option<Float> {
        let ty = match self.dtype {
            Dtype::F32 => Type::F32,
            Dtype::F16 => Type::F16,
            Dtype::BF16 => Type::BF16,
            _ if self.is_scaled() => {
                return Some(Float { ty: Type::F32, usual: Type::BF16 });
            }
            _ => return None,
        };
        Some(Float { ty, usual: ty })
    }

    /// Whether the weights are FP8, NVFP4 or MXFP4, with scales.
    pub fn is_scaled(&self) -> bool {
        self.scales.is_some()
    }

    /// Whether the elements are bytes of a packed format.
    pub fn is_packed(&self) -> bool {
        self.dtype == Dtype::U8 && !self.is_scaled()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product::<u64>() as usize
    }

    /// Name of the element type.
    pub fn dtype(&self) -> String {
        format!("{:?}", self.dtype)
    }
}

impl Shards {
    /// Opens one file of the folder.
    pub fn one(checkpoint: &Checkpoint, name: &str) -> Result<Shards, Error> {
        let mut shards = Shards::default();
        shards.add(checkpoint, name)?;
        Ok(shards)
    }

    /// Opens `model.safetensors`, or all files listed in `model.safetensors.index.json`.
    pub fn open(checkpoint: &Checkpoint) -> Result<Shards, Error> {
        const ONE: &str = "model.safetensors";
        const INDEX: &str = "model.safetensors.index.json";
        let mut shards = Shards::default();
        let Some(index) = checkpoint.json(INDEX)? else {
            if !checkpoint.folder().join(ONE).exists() {
                let reason = format!("is missing, and so is {INDEX}; only safetensors can be read");
                return Err(checkpoint.wrong(ONE, &reason));
            }
            return Shards::one(checkpoint, ONE);
        };
        let places = index["weight_map"].as_object();
        let places = places.ok_or_else(|| checkpoint.wrong(INDEX, "has no `weight_map`"))?;
        let mut files = BTreeSet::new();
        for (tensor, file) in places {
            let file = file.as_str().filter(|file| is_plain(file));
            let reason = format!("`weight_map`: {tensor} is in no file of this folder");
            files.insert(file.ok_or_else(|| checkpoint.wrong(INDEX, &reason))?);
        }
        for file in &files {
            shards.add(checkpoint, file)?;
        }
        match places.keys().find(|tensor| !shards.tensors.contains_key(*tensor)) {
            None => Ok(shards),
            Some(tensor) => {
                let file = places[tensor].as_str().unwrap_or_default();
                let reason = format!("tensor {tensor} is missing, which {INDEX} says is in it");
                Err(checkpoint.wrong(file, &reason))
            }
        }
    }

    /// Adds the weights of a `Dense` module of Sentence Transformers under the name `stem`.
    pub fn add_dense(
        &mut self,
        checkpoint: &Checkpoint,
        folder: &str,
        stem: &str,
    ) -> Result<(), Error> {
        let file = format!("{folder}/model.safetensors");
        if !folder.split('/').all(is_plain) {
            return Err(checkpoint.wrong("modules.json", "names a folder outside of this one"));
        }
        if !checkpoint.folder().join(&file).exists() {
            let reason = "is missing: the matrix after pooling; only safetensors can be read";
            return Err(checkpoint.wrong(&file, reason));
        }
        self.add_as(checkpoint, &file, |tensor| match tensor.strip_prefix("linear.") {
            Some(rest) => format!("{stem}.{rest}"),
            None => format!("{stem}.{tensor}"),
        })
    }

    fn add(&mut self, checkpoint: &Checkpoint, name: &str) -> Result<(), Error> {
        self.add_as(checkpoint, name, str::to_owned)
    }

    /// Reads the header of one file, whose tensors get the names of `named`.
    fn add_as(
        &mut self,
        checkpoint: &Checkpoint,
        name: &str,
        named: impl Fn(&str) -> String,
    ) -> Result<(), Error> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                checkpoint.wrong(name, "is missing: a shard of the model; download it")
            }
            _ => checkpoint.unreadable(name, &error),
        };
        let path = checkpoint.folder().join(name);
        // Checked before opening, since opening a pipe would wait for its other end.
        let facts = std::fs::metadata(&path).map_err(failed)?;
        if !facts.is_file() {
            return Err(checkpoint.wrong(name, "is no regular file"));
        }
        let mut file = File::open(&path).map_err(failed)?;
        let len = facts.len();
        let mut word = [0; 8];
        file.read_exact(&mut word).map_err(failed)?;
        let header_bytes = u64::from_le_bytes(word);
        let start = header_bytes.saturating_add(8);
        if header_bytes > HEADER_BYTES || start > len {
            let reason = format!(
                "is damaged: its header is to have {header_bytes} bytes, of {len} in the file"
            );
            return Err(checkpoint.wrong(name, &reason));
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header).map_err(failed)?;
        // The library checks that shapes, types and ranges are consistent and that the ranges leave no gap.
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| checkpoint.wrong(name, &format!("has a bad header: {error}")))?;
        let end = start.checked_add(metadata.data_len() as u64);
        if end != Some(len) {
            let reason = format!(
                "is cut off or damaged: its header speaks of {} bytes of weights, and {} follow it",
                metadata.data_len(),
                len - start
            );
            return Err(checkpoint.wrong(name, &reason));
        }
        let shard = self.files.len();
        let opened = Stamp::of(&facts);
        self.files.push(Shard { name: name.to_owned(), path, file: Mutex::new(file), opened });
        for (tensor, info) in metadata.tensors() {
            let stored = Stored {
                shard,
                offset: start + info.data_offsets.0 as u64,
                shape: info.shape.iter().map(|&size| size as u64).collect(),
                dtype: info.dtype,
                scales: None,
            };
            let tensor = named(&tensor);
            if let Some(other) = self.tensors.insert(tensor.clone(), stored) {
                let reason = format!("tensor {tensor} is also in {}", self.files[other.shard].name);
                return Err(checkpoint.wrong(name, &reason));
            }
        }
        Ok(())
    }

    /// All tensors by name.
    pub fn tensors(&self) -> &BTreeMap<String, Stored> {
        &self.tensors
    }

    /// Names of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|shard| shard.name.as_str())
    }

    /// The file of a tensor, and its offset from the file's start in bytes.
    pub fn place(&self, stored: &Stored) -> (&str, u64) {
        (&self.files[stored.shard].name, stored.offset)
    }

    /// Reads a tensor's bytes from byte `from` on, those of weights with scales as F32.
    ///
    /// # Errors
    /// I/O errors: the file was truncated meanwhile, or the disk fails.
    pub fn read(&self, stored: &Stored, from: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        match &stored.scales {
            Some(scales) => self.read_scaled(stored, scales, from, bytes),
            None => self.read_raw(stored, from, bytes),
        }
    }

    /// Reads a tensor's bytes as they are in the file.
    fn read_raw(&self, stored: &Stored, from: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        let shard = &self.files[stored.shard];
        let named = |error: std::io::Error| {
            let reason = match error.kind() {
                ErrorKind::UnexpectedEof => "it was truncated while it was read".to_owned(),
                _ => error.to_string(),
            };
            std::io::Error::new(error.kind(), format!("{}: {reason}", shard.path.display()))
        };
        // A poisoned lock is harmless: every read seeks first.
        let mut file = shard.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        file.seek(SeekFrom::Start(stored.offset + from)).map_err(named)?;
        file.read_exact(bytes).map_err(named)
    }

    /// Checks that the files still have the length and modification time that they had when they were opened. A file that
    /// was replaced by another one of its name is read to the end.
    ///
    /// # Errors
    /// I/O errors: a file has others.
    pub fn check_unchanged(&self) -> std::io::Result<()> {
        for shard in &self.files {
            let file = shard.file.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if Stamp::of(&file.metadata()?) != shard.opened {
                let path = shard.path.display();
                return Err(std::io::Error::other(format!("{path}: it changed while it was read")));
            }
        }
        Ok(())
    }
}

/// Whether a name is a file name without directories.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != ".." && !name.contains(['/', '\\'])
}
