//! Device memory of weights: a few large blocks that contain each matrix in the layout of its loader.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use bilayer_graph::{
    Error as GraphError, Holding, MappedWeight, SharedBytes, StreamedLayer, Weight, WeightId,
};

use crate::device::Device;
use crate::kernels::weights::Layout;
use crate::staging::{Pace, Staging};
use crate::unified::{self, Window};
use convert::convert;
use shape::{
    ALIGNMENT, WINDOW_ALIGNMENT, extent, in_window, is_read_in_place, is_vector, most_rows,
    row_blocks, rows_at_once, shape,
};

mod convert;
mod shape;

pub use shape::{Home, Placed, ROW_MULTIPLE, RowRange, device_bytes, device_type};

/// Maximum bytes per block, unless the GPU binds less.
const BLOCK_BYTES: u64 = 1 << 30;

/// One buffer of weights.
struct Block {
    buffer: wgpu::Buffer,
    bytes: u64,
}

/// All weights of a device.
pub struct Weights {
    device: Arc<Device>,
    /// Blocks by index; `None` for released ones.
    blocks: Vec<Option<Block>>,
    placed: HashMap<WeightId, Placed>,
    /// Whether each weight has been uploaded.
    loaded: HashMap<WeightId, bool>,
    /// Weights that take turns in slots.
    streamed: HashMap<WeightId, Streamed>,
    /// Single vectors also as host floats: RoPE tables are computed from some.
    vectors: HashMap<WeightId, Vec<f32>>,
    /// What uploads go through.
    staging: Staging,
    /// Windows of file maps that shaders read in place.
    windows: Vec<Option<Window>>,
}

/// A weight that is copied to its slot when it is needed.
#[derive(Clone)]
struct Streamed {
    weight: Weight,
    bytes: SharedBytes,
    slot: usize,
}

/// Bytes of rows of a weight, from its row `first` on.
#[derive(Clone, Copy)]
struct RowBytes<'a> {
    bytes: &'a [u8],
    first: usize,
}

impl Weights {
    /// An empty set of weights.
    pub fn new(device: Arc<Device>) -> Weights {
        Weights {
            device,
            blocks: Vec::new(),
            placed: HashMap::new(),
            loaded: HashMap::new(),
            streamed: HashMap::new(),
            vectors: HashMap::new(),
            staging: Staging::default(),
            windows: Vec::new(),
        }
    }

    /// Allocates memory for weights, adjacent in list order, and for slots; imports what is read in a file's map, where the
    /// device shares the host's memory and its driver can. Existing weights that are named keep their place; all others are
    /// dropped, and so are all slots.
    ///
    /// # Errors
    /// Out of memory; then nothing new is allocated.
    pub fn reserve(&mut self, holding: &Holding<'_>) -> Result<(), GraphError> {
        let Holding { weights, mapped, streamed, .. } = *holding;
        self.streamed.clear();
        let wanted: HashSet<WeightId> = weights.iter().map(|weight| weight.id).collect();
        let loaded = &self.loaded;
        self.placed.retain(|id, _| wanted.contains(id) && loaded.get(id) == Some(&true));
        let placed = &self.placed;
        self.loaded.retain(|id, _| placed.contains_key(id));
        self.vectors.retain(|id, _| placed.contains_key(id));
        let parts = self.placed.values().flat_map(|placed| &placed.parts);
        let used: HashSet<Home> = parts.map(|part| part.home).collect();
        for (number, block) in self.blocks.iter_mut().enumerate() {
            if !used.contains(&Home::Block(number)) {
                *block = None;
            }
        }
        for (number, window) in self.windows.iter_mut().enumerate() {
            if !used.contains(&Home::Window(number)) {
                *window = None;
            }
        }
        let first = self.windows.len();
        if unified::imports(self.device.caps()) {
            self.import(weights, mapped);
        }
        let new = weights.iter().copied().filter(|w| !self.placed.contains_key(&w.id));
        let laid_out = self.lay_out(&new.collect::<Vec<_>>());
        let laid_out = laid_out.and_then(|()| self.lay_out_slots(streamed));
        if laid_out.is_err() {
            self.windows.truncate(first);
            let is_gone = |home: Home| matches!(home, Home::Window(number) if number >= first);
            self.placed.retain(|_, placed| !placed.parts.iter().any(|part| is_gone(part.home)));
        }
        laid_out
    }

    /// Places weights that shaders read directly in a file's map, as far as the driver imports it.
    fn import(&mut self, weights: &[&Weight], mapped: &[MappedWeight]) {
        let known: HashMap<WeightId, &Weight> = weights.iter().map(|w| (w.id, *w)).collect();
        let mut maps: BTreeMap<usize, Vec<(&Weight, &MappedWeight)>> = BTreeMap::new();
        for one in mapped {
            let Some(&weight) = known.get(&one.id) else { continue };
            let is_whole = one.range.len() == weight.bytes();
            let is_aligned = one.range.start.is_multiple_of(WINDOW_ALIGNMENT);
            let is_new = !self.placed.contains_key(&weight.id);
            if is_new && is_whole && is_aligned && is_read_in_place(weight) {
                maps.entry(one.map.as_ptr() as usize).or_default().push((weight, one));
            }
        }
        for all in maps.into_values() {
            let extents = all.iter().map(|(weight, one)| (weight.layer, one.range.clone()));
            let map = &all[0].1.map;
            for range in unified::cut(extents.collect(), self.device.caps().max_binding) {
                let Some(window) = unified::import(&self.device.device, map, range) else { return };
                let home = Home::Window(self.windows.len());
                for (weight, one) in &all {
                    let Some(at) = window.offset(&map[one.range.clone()]) else { continue };
                    self.placed.insert(weight.id, in_window(weight, home, at));
                    self.loaded.insert(weight.id, false);
                }
                self.windows.push(Some(window));
            }
        }
    }

    /// Allocates blocks for weights.
    fn lay_out(&mut self, new: &[&Weight]) -> Result<(), GraphError> {
        let first = self.blocks.len();
        let sizes = self.pack(new, first);
        let made = self.make_blocks(&sizes);
        if made.is_err() {
            self.blocks.truncate(first);
            for weight in new {
                self.placed.remove(&weight.id);
                self.loaded.remove(&weight.id);
            }
        }
        made
    }

    /// Allocates the blocks of each slot, which all its layers use.
    fn lay_out_slots(&mut self, layers: &[StreamedLayer<'_>]) -> Result<(), GraphError> {
        let slots: BTreeSet<usize> = layers.iter().map(|layer| layer.slot).collect();
        for slot in slots {
            let first = self.blocks.len();
            let mut sizes: Vec<u64> = Vec::new();
            for layer in layers.iter().filter(|layer| layer.slot == slot) {
                let weights: Vec<&Weight> = layer.weights.iter().map(|(of, _)| *of).collect();
                let needed = self.pack(&weights, first);
                sizes.resize(sizes.len().max(needed.len()), 0);
                sizes.iter_mut().zip(needed).for_each(|(size, needed)| *size = needed.max(*size));
                let streamed = layer.weights.iter().map(|(weight, bytes)| {
                    let (weight, bytes) = ((*weight).clone(), bytes.clone());
                    (weight.id, Streamed { weight, bytes, slot })
                });
                self.streamed.extend(streamed);
            }
            if let Err(error) = self.make_blocks(&sizes) {
                self.blocks.truncate(first);
                self.streamed.drain().for_each(|(id, _)| drop(self.placed.remove(&id)));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Places weights in blocks from number `first` on, and returns the sizes of these blocks. None contains weights of
    /// two layers, so that a layer can be released separately.
    fn pack(&mut self, new: &[&Weight], first: usize) -> Vec<u64> {
        let block_bytes = self.block_bytes();
        // The contents of each new block are known before it is allocated, so that none is larger than needed.
        let mut sizes: Vec<u64> = Vec::new();
        let mut layer = None;
        for weight in new {
            let mut placed = shape(weight);
            let most_rows = most_rows(&placed, block_bytes);
            let mut row = 0;
            while row < weight.rows {
                let rows = (weight.rows - row).min(most_rows);
                let (blocks, bytes) = extent(&placed, rows);
                let room = sizes.last().is_some_and(|&used| used + bytes <= block_bytes);
                let same_layer = layer.replace(weight.layer) == Some(weight.layer);
                if !room || !same_layer {
                    sizes.push(0);
                }
                let block = first + sizes.len() - 1;
                let used = sizes.last_mut().expect("just pushed");
                placed.parts.push(RowRange {
                    home: Home::Block(block),
                    base: *used as u32,
                    blocks: blocks as u32,
                    row_blocks: row_blocks(&placed) as u32,
                    first_row: row as u32,
                    rows: rows as u32,
                });
                *used += bytes.next_multiple_of(ALIGNMENT);
                row += rows;
            }
            self.placed.insert(weight.id, placed);
            self.loaded.insert(weight.id, false);
        }
        sizes
    }

    fn make_blocks(&mut self, sizes: &[u64]) -> Result<(), GraphError> {
        for &bytes in sizes {
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
            let buffer = self.device.buffer("weights", bytes, usage)?;
            self.blocks.push(Some(Block { buffer, bytes }));
        }
        Ok(())
    }

    /// Uploads a weight. An existing one is unchanged.
    ///
    /// # Errors
    /// Wrong length, out of memory, a lost device.
    pub fn load(&mut self, weight: &Weight, bytes: &[u8]) -> Result<(), GraphError> {
        if bytes.len() != weight.bytes() {
            return Err(GraphError::WeightBytes {
                name: weight.name.clone(),
                expected: weight.bytes(),
                found: bytes.len(),
            });
        }
        if self.loaded.get(&weight.id) == Some(&true) {
            return Ok(());
        }
        match self.placed.get(&weight.id).and_then(|placed| placed.parts.first().copied()) {
            Some(RowRange { home: Home::Window(number), base, .. }) => {
                let window = self.windows[number].as_ref().expect("a window that holds something");
                if window.offset(bytes) == Some(base as usize) {
                    self.loaded.insert(weight.id, true);
                    return Ok(());
                }
                self.placed.remove(&weight.id);
                self.lay_out(&[weight])?;
            }
            Some(_) => {}
            None => self.lay_out(&[weight])?,
        }
        if is_vector(weight) && weight.stacked == 1 {
            let mut values = vec![0.0; weight.cols];
            weight.ty.dequantize(bytes, &mut values).map_err(|_| GraphError::WeightBytes {
                name: weight.name.clone(),
                expected: weight.bytes(),
                found: bytes.len(),
            })?;
            self.vectors.insert(weight.id, values);
        }
        let placed = self.placed[&weight.id].clone();
        let source = RowBytes { bytes, first: 0 };
        self.upload(weight, &placed, (source, 0..weight.rows), Pace::Bounded)?;
        self.loaded.insert(weight.id, true);
        self.device.check()
    }

    /// Copies rows of a weight to its slot, behind the work submitted before.
    ///
    /// # Errors
    /// It is in no slot, or has fewer rows; a lost device.
    pub fn stream(&mut self, id: WeightId, rows: Range<usize>) -> Result<(), GraphError> {
        let Some(Streamed { weight, bytes, .. }) = self.streamed.get(&id).cloned() else {
            let (found, what) = (id.0 as usize, "as the number of a streamed weight");
            return Err(GraphError::Limit { what, limit: 0, found });
        };
        if rows.end > weight.rows {
            let (limit, found) = (weight.rows, rows.end);
            return Err(GraphError::Limit { what: "rows of a streamed weight", limit, found });
        }
        let placed = self.placed[&id].clone();
        let source = RowBytes { bytes: &bytes, first: 0 };
        self.upload(&weight, &placed, (source, rows), Pace::Queued)?;
        self.device.submit(None);
        self.device.check()
    }

    /// Replaces a matrix or vector of a weight, behind the work submitted before.
    ///
    /// # Errors
    /// It is not loaded, or has no such matrix; wrong length; a lost device.
    pub fn exchange(
        &mut self,
        weight: &Weight,
        matrix: usize,
        bytes: &[u8],
    ) -> Result<(), GraphError> {
        let rows = weight.rows / weight.stacked;
        let is_one = bytes.len() == rows * weight.row_bytes() && matrix < weight.stacked;
        if !(weight.is_resident && is_one && self.is_loaded(weight.id)) {
            let what = "as the number of an exchanged matrix";
            return Err(GraphError::Limit { what, limit: weight.stacked, found: matrix });
        }
        let placed = self.placed[&weight.id].clone();
        let source = RowBytes { bytes, first: matrix * rows };
        let wanted = source.first..source.first + rows;
        self.upload(weight, &placed, (source, wanted), Pace::Bounded)?;
        self.device.check()
    }

    fn is_loaded(&self, id: WeightId) -> bool {
        self.loaded.get(&id) == Some(&true)
    }

    /// The slot of a weight that is streamed.
    pub fn slot(&self, id: WeightId) -> Option<usize> {
        self.streamed.get(&id).map(|streamed| streamed.slot)
    }

    /// A loaded weight, or one that is streamed.
    pub fn get(&self, id: WeightId) -> Option<&Placed> {
        let is_there = self.is_loaded(id) || self.streamed.contains_key(&id);
        if is_there { self.placed.get(&id) } else { None }
    }

    /// A placed weight, whose bytes may not be loaded yet.
    pub fn placed(&self, id: WeightId) -> Option<&Placed> {
        self.placed.get(&id)
    }

    /// A loaded vector, as floats.
    pub fn vector(&self, id: WeightId) -> Option<&[f32]> {
        self.vectors.get(&id).map(Vec::as_slice)
    }

    /// The buffer of a block or window.
    pub fn buffer(&self, home: Home) -> &wgpu::Buffer {
        match home {
            Home::Block(block) => {
                &self.blocks[block].as_ref().expect("a block that holds something").buffer
            }
            Home::Window(window) => {
                &self.windows[window].as_ref().expect("a window that holds something").buffer
            }
        }
    }

    /// Bytes of weights that are read directly from a file's map.
    pub fn mapped_bytes(&self) -> u64 {
        let parts = self.placed.values().flat_map(|placed| {
            placed.parts.iter().map(|part| {
                let blocks = u64::from(part.rows) * u64::from(part.row_blocks);
                (part.home, blocks * placed.ty.block_bytes as u64)
            })
        });
        parts.filter(|(home, _)| matches!(home, Home::Window(_))).map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of device memory in use.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().flatten().map(|block| block.bytes).sum()
    }

    fn block_bytes(&self) -> u64 {
        BLOCK_BYTES.min(self.device.block_bytes()) / ALIGNMENT * ALIGNMENT
    }

    /// Uploads rows of a weight, which are among those of the source.
    fn upload(
        &mut self,
        weight: &Weight,
        placed: &Placed,
        (source, wanted): (RowBytes<'_>, Range<usize>),
        pace: Pace,
    ) -> Result<(), GraphError> {
        for part in &placed.parts {
            for (row, rows) in rows_at_once((weight, placed), part, &wanted) {
                let first = part.first_row as usize + row - source.first;
                let source =
                    &source.bytes[first * weight.row_bytes()..][..rows * weight.row_bytes()];
                let converted;
                let source = if placed.ty == weight.ty {
                    source
                } else {
                    converted = convert(weight, placed.ty, source);
                    &converted
                };
                self.send(placed, part, (row, rows), source, pace)?;
            }
        }
        Ok(())
    }

    /// Uploads rows that already have the device's type.
    fn send(
        &mut self,
        placed: &Placed,
        part: &RowRange,
        (row, rows): (usize, usize),
        source: &[u8],
        pace: Pace,
    ) -> Result<(), GraphError> {
        let buffer = self.buffer(part.home).clone();
        let (device, staging) = (&self.device, &mut self.staging);
        let (ty, row_blocks) = (placed.ty, part.row_blocks as usize);
        if placed.layout == Layout::Raw {
            let at = u64::from(part.base) + (row * row_blocks * ty.block_bytes) as u64;
            return staging.write(device, (&buffer, at), source.len(), pace, |first, mut to| {
                to.copy_from_slice(&source[first..][..to.len()]);
            });
        }
        let blocks = placed.cols as usize / ty.block_weights;
        for plane in ty.planes {
            let row_bytes = row_blocks * plane.len;
            let at = part.base as usize + part.blocks as usize * plane.offset + row * row_bytes;
            let to = (&buffer, at as u64);
            staging.write(device, to, rows * row_bytes, pace, |first, mut to| {
                let mut at = first;
                while !to.is_empty() {
                    let (row, block) = (at / row_bytes, at % row_bytes / plane.len);
                    let skipped = at % plane.len;
                    let len = (plane.len - skipped).min(to.len());
                    let (mut some, rest) = to.split_at(len);
                    match block < blocks {
                        true => {
                            let from = (row * blocks + block) * ty.block_bytes + plane.offset;
                            some.copy_from_slice(&source[from + skipped..][..some.len()]);
                        }
                        // The padding of rows.
                        false => some.fill(0),
                    }
                    at += some.len();
                    to = rest;
                }
            })?;
        }
        Ok(())
    }
}
