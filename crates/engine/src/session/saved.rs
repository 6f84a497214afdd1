//! Sequences in files: their tokens, their keys and values, and their states, to continue them in another process.
//!
//! A file is [`MAGIC`], the model's digest, 1 if keys are after the Hadamard transform or 0, the number of tokens, the
//! tokens, then for each cache of the graph the type of its numbers (2 bytes each if all are exact as f16, else 4), how
//! many, keys and values, then in the same form each state at the end of the sequence, and at the end the FNV-1a hash of all
//! before it; integers are little-endian.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use bilayer_files::Access;
use bilayer_files::hash::{FNV_START, fnv_from};
use bilayer_graph::{CacheId, CachePages, Graph, Op, PAGE_TOKENS, StateId, host_zeros};
use half::f16;

use super::{Checkpoint, Purpose, SequenceId, Session};
use crate::digest::Digest;
use crate::{Error, Model};

/// The first bytes of a file. The last of them is the version, of the layout and of what the digest is of.
const MAGIC: &[u8; 8] = b"BLYRSEQ4";

/// A sequence outside a session.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedSequence {
    model: u64,
    /// Whether keys are after the Hadamard transform.
    hadamard_keys: bool,
    tokens: Vec<u32>,
    /// Keys and values of the tokens, without the rest of their last page.
    caches: BTreeMap<CacheId, CachePages>,
    /// States after the last token.
    states: BTreeMap<StateId, Vec<f32>>,
}

impl SavedSequence {
    /// Its tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Writes it to a file: under a temporary name, which is then renamed. Returns the number of bytes.
    ///
    /// # Errors
    /// [`Error::Saved`]: the file cannot be written, or a key, value or state is not finite.
    pub fn write(&self, path: &Path) -> Result<u64, Error> {
        let write = || {
            let file = bilayer_files::create(path, Access::Owner)?;
            let mut out = Hashed { inner: BufWriter::new(file), hash: FNV_START, bytes: 0 };
            self.write_to(&mut out)?;
            let (hash, bytes) = (out.hash, out.bytes);
            out.inner.write_all(&hash.to_le_bytes())?;
            let file = out.inner.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.finish(path)?;
            Ok(bytes + 8)
        };
        write().map_err(|error: io::Error| damaged(path, error.to_string()))
    }

    fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(MAGIC)?;
        out.write_all(&self.model.to_le_bytes())?;
        out.write_all(&u64::from(self.hadamard_keys).to_le_bytes())?;
        out.write_all(&(self.tokens.len() as u64).to_le_bytes())?;
        for token in &self.tokens {
            out.write_all(&token.to_le_bytes())?;
        }
        out.write_all(&(self.caches.len() as u64).to_le_bytes())?;
        for (cache, pages) in &self.caches {
            out.write_all(&u64::from(cache.0).to_le_bytes())?;
            write_numbers(out, &pages.keys)?;
            write_numbers(out, &pages.values)?;
        }
        out.write_all(&(self.states.len() as u64).to_le_bytes())?;
        for (state, numbers) in &self.states {
            out.write_all(&u64::from(state.0).to_le_bytes())?;
            write_numbers(out, numbers)?;
        }
        Ok(())
    }

    /// Whether there is a saved sequence at a path, of this version or another: a file that may be replaced by one.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn is_at(path: &Path) -> io::Result<bool> {
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Ok(false);
        }
        let mut name = [0; MAGIC.len() - 1];
        match std::fs::File::open(path)?.read_exact(&mut name) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| MAGIC.starts_with(&name)),
        }
    }

    /// Reads a file that [`SavedSequence::write`] wrote, for a model and a context of `context` tokens.
    ///
    /// # Errors
    /// [`Error::Saved`]: the file is damaged, or of another version, or belongs to another model or a context with other RoPE
    /// factors, or is too long.
    pub fn read(path: &Path, model: &Model, context: usize) -> Result<SavedSequence, Error> {
        let failed = |error: io::Error| damaged(path, error.to_string());
        let file = std::fs::File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        SavedSequence::read_from(path, BufReader::new(file), length, model, context)
    }

    /// [`SavedSequence::read`] of `length` bytes from anywhere; errors name `path`.
    ///
    /// # Errors
    /// Those of [`SavedSequence::read`].
    pub fn read_from(
        path: &Path,
        inner: impl Read,
        length: u64,
        model: &Model,
        context: usize,
    ) -> Result<SavedSequence, Error> {
        let failed = |problem: String| damaged(path, problem);
        let mut from = Hashed { inner, hash: FNV_START, bytes: 0 };
        let read = Reading { from: &mut from, length }.all(model, context);
        let saved = read.map_err(|problem| failed(problem.to_string()))?;
        let hash = from.hash;
        let mut end = [0; 8];
        from.inner.read_exact(&mut end).map_err(|_| failed("it is cut off".to_owned()))?;
        if u64::from_le_bytes(end) != hash {
            return Err(failed("it is damaged: its hash is wrong".to_owned()));
        }
        Ok(saved)
    }
}

impl Session {
    /// Copies a sequence out of the session.
    ///
    /// # Errors
    /// A device failed; there is no memory for the copy.
    pub fn save(&mut self, sequence: SequenceId) -> Result<SavedSequence, Error> {
        self.assert_none_begun();
        self.regain_states()?;
        let tokens = self.cache.tokens(sequence).to_vec();
        let pages = self.cache.table(sequence).to_vec();
        let mut caches = BTreeMap::new();
        for (cache, device) in self.caches() {
            let mut data = self.pipeline.backends[device].save(cache, &pages)?;
            // The rest of the last page may belong to others.
            for numbers in [&mut data.keys, &mut data.values] {
                let width = numbers.len() / (pages.len() * PAGE_TOKENS).max(1);
                numbers.truncate(width * tokens.len());
            }
            caches.insert(cache, data);
        }
        let mut states = BTreeMap::new();
        if let Some(Checkpoint { slot, .. }) = self.cache.checkpoints(sequence).last().copied() {
            for (state, device) in self.states() {
                let data = self.pipeline.backends[device].save_state(state, &[slot])?;
                states.insert(state, data);
            }
        }
        let hadamard_keys = self.limits.hadamard_keys;
        let model = digest(&self.model, &self.graph);
        Ok(SavedSequence { model, hadamard_keys, tokens, caches, states })
    }

    /// Opens a sequence with saved contents.
    ///
    /// # Errors
    /// It was saved from another model, or with other RoPE factors, or with keys that were transformed otherwise, or does not
    /// fit; no sequence or page is free; a device failed.
    pub fn restore(&mut self, saved: &SavedSequence) -> Result<SequenceId, Error> {
        self.assert_none_begun();
        self.check_saved(saved)?;
        let sequence = self.open()?;
        let restored = self.fill(sequence, saved);
        if restored.is_err() {
            self.close(sequence);
        }
        restored.map(|()| sequence)
    }

    /// Whether saved contents belong to this session.
    ///
    /// # Errors
    /// It was saved from another model, or with other RoPE factors, or with keys that were transformed otherwise, or does not
    /// fit.
    pub fn check_saved(&self, saved: &SavedSequence) -> Result<(), Error> {
        let wrong = |problem: &str| damaged(Path::new("the saved sequence"), problem.to_owned());
        let vocab = self.vocab() as u32;
        let model = digest(&self.model, &self.graph);
        if saved.model != model || saved.tokens.iter().any(|&id| id >= vocab) {
            return Err(wrong(OTHER_MODEL));
        }
        if saved.hadamard_keys != self.limits.hadamard_keys {
            let found = if saved.hadamard_keys { "with" } else { "without" };
            return Err(wrong(&format!("its keys were saved {found} k-cache-hadamard")));
        }
        let caches = self.caches();
        if !caches.keys().eq(saved.caches.keys()) {
            return Err(wrong("it has not the caches of this model"));
        }
        let states = self.states();
        let tokens = saved.tokens.len();
        let is_whole = |(id, data): (&CacheId, &CachePages)| {
            let cache = self.graph.cache(*id);
            data.keys.len() == tokens * cache.width()
                && data.values.len() == tokens * cache.value_width()
        };
        if !saved.caches.iter().all(is_whole) {
            return Err(wrong("it has not the keys and values of all its tokens"));
        }
        let sizes = states.keys().map(|&state| (state, self.graph.state(state).elements));
        if !sizes.eq(saved.states.iter().map(|(state, numbers)| (*state, numbers.len()))) {
            return Err(wrong("it has not the states of this model"));
        }
        Ok(())
    }

    fn fill(&mut self, sequence: SequenceId, saved: &SavedSequence) -> Result<(), Error> {
        let (caches, states) = (self.caches(), self.states());
        self.cache.begin();
        self.cache.append(sequence, &saved.tokens, &mut self.copies)?;
        let pages = self.cache.table(sequence).to_vec();
        for (cache, device) in caches {
            let whole = |numbers: &[f32], width: usize| {
                let mut all = host_zeros("restored pages", width * pages.len() * PAGE_TOKENS)?;
                all[..numbers.len()].copy_from_slice(numbers);
                Ok::<_, bilayer_graph::Error>(all)
            };
            let (data, info) = (&saved.caches[&cache], self.graph.cache(cache));
            let keys = whole(&data.keys, info.width())?;
            let values = whole(&data.values, info.value_width())?;
            self.pipeline.backends[device].restore(cache, &pages, &CachePages { keys, values })?;
        }
        if let Some(Checkpoint { slot, .. }) = self.cache.checkpoints(sequence).last().copied() {
            for (state, device) in states {
                let data = &saved.states[&state];
                self.pipeline.backends[device].restore_state(state, &[slot], data)?;
            }
        }
        Ok(())
    }

    /// The states with their devices.
    fn states(&self) -> BTreeMap<StateId, usize> {
        super::load::states(&self.graph, &self.plan)
    }

    /// The caches with their devices.
    fn caches(&self) -> BTreeMap<CacheId, usize> {
        super::load::caches(&self.graph, &self.plan)
    }
}

/// Where a file stands while it is read.
struct Reading<'a, R> {
    from: &'a mut Hashed<R>,
    /// Bytes of the file: nothing in it is longer.
    length: u64,
}

impl<R: Read> Reading<'_, R> {
    fn all(&mut self, model: &Model, context: usize) -> Result<SavedSequence, String> {
        let mut magic = [0; 8];
        self.exact(&mut magic)?;
        if &magic != MAGIC {
            let is_other = magic.starts_with(&MAGIC[..MAGIC.len() - 1]);
            let problem = if is_other { OTHER_VERSION } else { "it is no saved sequence" };
            return Err(problem.to_owned());
        }
        let found = self.integer()?;
        let graph = model.graph_for(context, Purpose::Own).map_err(|error| error.to_string())?;
        if found != digest(model, &graph) {
            return Err(OTHER_MODEL.to_owned());
        }
        let hadamard_keys = match self.integer()? {
            0 => false,
            1 => true,
            found => return Err(format!("it is damaged: {found} says nothing of its keys")),
        };
        let count = self.count(4)?;
        if count == 0 || count > context {
            return Err(format!("its {count} tokens do not fit the context of {context} tokens"));
        }
        let vocab = model.config().vocab as u32;
        let mut tokens = Vec::with_capacity(count);
        for _ in 0..count {
            let mut token = [0; 4];
            self.exact(&mut token)?;
            let token = u32::from_le_bytes(token);
            if token >= vocab {
                return Err(format!("token {token} is not in the vocabulary"));
            }
            tokens.push(token);
        }
        let mut caches = BTreeMap::new();
        for _ in 0..self.count(8)? {
            let cache = CacheId(u32::try_from(self.integer()?).map_err(|e| e.to_string())?);
            let pages = CachePages { keys: self.numbers(count)?, values: self.numbers(count)? };
            caches.insert(cache, pages);
        }
        let mut states = BTreeMap::new();
        for _ in 0..self.count(8)? {
            let state = StateId(u32::try_from(self.integer()?).map_err(|e| e.to_string())?);
            states.insert(state, self.numbers(1)?);
        }
        Ok(SavedSequence { model: found, hadamard_keys, tokens, caches, states })
    }

    /// Numbers, as many for each of `tokens` tokens.
    fn numbers(&mut self, tokens: usize) -> Result<Vec<f32>, String> {
        let bytes = self.integer()?;
        let count = self.count(2)?;
        if !matches!(bytes, 2 | 4) || !count.is_multiple_of(tokens) {
            return Err("it is damaged".to_owned());
        }
        let mut numbers = Vec::new();
        let refused = |_| format!("there is no memory for {count} numbers");
        numbers.try_reserve_exact(count).map_err(refused)?;
        for _ in 0..count {
            let number = if bytes == 2 {
                let mut half = [0; 2];
                self.exact(&mut half)?;
                f16::from_le_bytes(half).to_f32()
            } else {
                let mut single = [0; 4];
                self.exact(&mut single)?;
                f32::from_le_bytes(single)
            };
            if !number.is_finite() {
                return Err(format!("it is damaged: {NOT_FINITE}"));
            }
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// A number of things of so many bytes each, no more than the file can hold.
    fn count(&mut self, each: u64) -> Result<usize, String> {
        let count = self.integer()?;
        let fits = count.checked_mul(each).is_some_and(|bytes| bytes <= self.length);
        if !fits {
            return Err("it is damaged: a length exceeds the file".to_owned());
        }
        Ok(count as usize)
    }

    fn integer(&mut self) -> Result<u64, String> {
        let mut bytes = [0; 8];
        self.exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn exact(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        self.from.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => "it is cut off".to_owned(),
            _ => error.to_string(),
        })
    }
}

/// # Errors
/// A number is not finite: nothing could read the file.
fn write_numbers(out: &mut impl Write, numbers: &[f32]) -> io::Result<()> {
    if !numbers.iter().all(|number| number.is_finite()) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, NOT_FINITE));
    }
    let is_exact = |number: &f32| f16::from_f32(*number).to_f32().to_bits() == number.to_bits();
    let is_short = numbers.iter().all(is_exact);
    out.write_all(&if is_short { 2u64 } else { 4 }.to_le_bytes())?;
    out.write_all(&(numbers.len() as u64).to_le_bytes())?;
    for number in numbers {
        match is_short {
            true => out.write_all(&f16::from_f32(*number).to_le_bytes())?,
            false => out.write_all(&number.to_le_bytes())?,
        }
    }
    Ok(())
}

/// What is wrong with keys, values or states that overflowed.
const NOT_FINITE: &str = "a number is not finite";

/// What is wrong with a file whose magic differs in its last byte alone.
const OTHER_VERSION: &str = "it was saved by another version";

/// What is wrong with a sequence whose digest differs.
const OTHER_MODEL: &str = "it was saved from another model, or with other RoPE factors";

/// Identifies what a sequence was computed with: the model, the strength of its adapters, and the RoPE factors that a graph
/// for its context uses.
fn digest(model: &Model, graph: &Graph) -> u64 {
    let mut digest = Digest(model.digest());
    // Nothing that is hashed refuses.
    for lora in model.loras() {
        let _ = write!(digest, "{:?} {:?}", lora.scale, lora.alpha);
    }
    let factors = graph.nodes.iter().filter_map(|node| match &node.op {
        Op::Rope { rope, .. } => rope.factors,
        _ => None,
    });
    let names: BTreeSet<&str> = factors.map(|of| graph.weight(of).name.as_str()).collect();
    for name in names {
        let _ = write!(digest, "{name}");
    }
    digest.0
}

fn damaged(path: &Path, problem: String) -> Error {
    Error::Saved { file: path.display().to_string(), problem }
}

/// Hashes what passes through, FNV-1a of 64 bits, and counts it.
struct Hashed<T> {
    inner: T,
    hash: u64,
    bytes: u64,
}

impl<T> Hashed<T> {
    fn take(&mut self, data: &[u8]) {
        self.hash = fnv_from(self.hash, data);
        self.bytes += data.len() as u64;
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(data)?;
        self.take(&data[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, data: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(data)?;
        self.take(&data[..read]);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not finite would be refused when it is read.
    #[test]
    fn numbers_that_are_not_finite_are_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot");
        let saved = |number: f32, in_states: bool| {
            let numbers = |of: bool| vec![if of { number } else { 1.0 }; 2];
            let pages = CachePages { keys: vec![1.0; 2], values: numbers(!in_states) };
            SavedSequence {
                model: 0,
                hadamard_keys: false,
                tokens: vec![1],
                caches: BTreeMap::from_iter([(CacheId(0), pages)]),
                states: BTreeMap::from_iter([(StateId(0), numbers(in_states))]),
            }
        };
        saved(0.5, false).write(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for (number, in_states) in
            [(f32::NAN, false), (f32::INFINITY, true), (f32::NEG_INFINITY, false)]
        {
            let refused = saved(number, in_states).write(&path).unwrap_err().to_string();
            assert!(refused.contains("a number is not finite"), "{refused}");
            assert_eq!(std::fs::read(&path).unwrap(), whole, "the old file stays");
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
