//! The tensors of a checkpoint under GGUF's names: which are made of what, and whether they make a whole model.

use std::collections::{BTreeMap, BTreeSet};

use bilayer_gguf::Metadata;
use bilayer_models::{
    Architecture, Change, Config, DeltaNet, Latent, Listing, Made, Mixer, OfKeyHeads, Outline,
    Output, SCORE_MATRIX, Tiled, Translated, layer_of, mtp_name, of_another_tower, translate,
};
use bilayer_quant::Type;

use crate::Error;
use crate::checkpoint::{Checkpoint, Float, Stored};
use crate::mix::{Facts, Mix, fitting};

use super::mtp::unused_blocks;

mod stacked;
mod tied;

use stacked::{packed, stack};

/// One tensor of the file.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub name: String,
    /// `[.., rows, cols]`.
    pub shape: Vec<u64>,
    pub ty: Type,
    pub from: From,
}

/// What a tensor is made of.
#[derive(Clone, Debug)]
pub(super) enum From {
    /// Tensors of the checkpoint: one, or those of all experts in order.
    Stored { parts: Vec<SourceTensor>, float: Float, change: Done },
    /// Matrices of experts in MXFP4, and their exponents: of the rows those from `first` on at every `step`.
    Packed { blocks: SourceTensor, scales: SourceTensor, first: usize, step: usize },
    /// Values that no checkpoint holds.
    Made(Vec<f32>),
}

/// A tensor of the checkpoint.
#[derive(Clone, Debug)]
pub(super) struct SourceTensor {
    pub name: String,
    pub stored: Stored,
}

/// What is done to rows on their way, with its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// They are as they were.
    Nothing,
    /// The first `dims` rows of each head of `head_dim` go from halves to pairs.
    Interleaved { head_dim: usize, dims: usize },
    /// Those of each matrix of the stack, `rows`, were every `step`-th of its `width` columns from `first` on; of its
    /// `depth` rows the first are read.
    Transposed { rows: usize, width: usize, first: usize, step: usize, depth: usize },
    /// They were, of every `of` rows, `rows` from number `first` on.
    Strided { rows: usize, first: usize, of: usize },
    /// They leave the groups of heads ([`bilayer_models::regrouped_source`]).
    Regrouped { head_dim: usize, heads: usize, kv_heads: usize },
    /// So many rows before them are left out.
    After(usize),
    /// They were every `step`-th element of a row from `first` on.
    Picked { first: usize, step: usize },
    /// Each element gets 1 more.
    OneMore,
    /// Each element `x` becomes `-exp(x)`.
    Decay,
    /// Heads of values take turns, in rows, columns or elements.
    Tiled { tiled: Tiled, tiling: Tiling },
    /// Parts of groups of `group` rows are gathered, each of all `groups` ([`bilayer_models::ungrouped_source`]).
    Ungrouped { groups: usize, group: usize, parts: [(usize, usize); 3] },
    /// Of the rows of each matrix, `parts * rows`, those of one part are kept.
    RowPart { rows: usize, part: usize, parts: usize },
    /// They were those of these numbers.
    Selected([u32; 2]),
}

/// How heads of values are reordered ([`bilayer_models::tiled_source`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiling {
    /// Rows or columns before them, which stay.
    pub before: usize,
    /// Rows or columns of a head.
    pub head: usize,
    /// Heads of keys.
    pub groups: usize,
    /// Heads of values for each.
    pub each: usize,
}

/// All tensors, in the order of the file.
pub(super) struct Tensors(Vec<Planned>);

impl Planned {
    fn entry(&self) -> (String, Type, Vec<u64>) {
        (self.name.clone(), self.ty, self.shape.clone())
    }

    /// Whether it is a bias whose elements move as the rows of its matrix do.
    pub fn permutes_elements(&self) -> bool {
        let moves = matches!(
            self.from,
            From::Stored {
                change: Done::Interleaved { .. }
                    | Done::Regrouped { .. }
                    | Done::RowPart { .. }
                    | Done::Tiled { .. },
                ..
            }
        );
        self.shape.len() == 1 && moves
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> u64 {
        let (cols, rows) = self.shape.split_last().map_or((&1, &[][..]), |split| split);
        let row_bytes = self.ty.row_bytes(*cols as usize).expect("the plan fits types to rows");
        rows.iter().product::<u64>() * row_bytes as u64
    }
}

impl Tensors {
    /// Names every tensor, stacks experts, and keeps those that the model reads.
    ///
    /// # Errors
    /// [`Error::Tensor`] where a tensor has no name, an odd type or a shape that the settings do not imply;
    /// [`Error::OfCheckpoint`] where one is missing.
    pub fn plan(
        checkpoint: &Checkpoint,
        architecture: &'static Architecture,
        config: &Config,
        made: Vec<Made>,
    ) -> Result<Tensors, Error> {
        let (layers, unused) = (config.layers.len(), unused_blocks(checkpoint, config));
        let has_no_use = |name: &str| {
            let is_block = layer_of(name).is_some_and(|layer| unused.contains(&layer));
            name.starts_with("mtp.") || is_block
        };
        let tied =
            checkpoint.settings().flag(&["tie_word_embeddings", "tie_embedding"]).ok().flatten();
        let names = checkpoint.shards.tensors().keys();
        let possible: Vec<_> = names.flat_map(|name| translate(architecture.names, name)).collect();
        let read = read_by(config, &possible)?;
        let mut found = BTreeMap::new();
        let mut stacks: BTreeMap<String, BTreeMap<usize, SourceTensor>> = BTreeMap::new();
        for (name, stored) in checkpoint.shards.tensors() {
            let is_ignored = architecture.ignored.iter().any(|end| name.ends_with(end));
            let block = mtp_name(name, layers).filter(|_| !config.mtp.is_empty());
            let usual = block.as_deref().unwrap_or(name);
            if is_ignored || of_another_tower(name) || has_no_use(usual) {
                continue;
            }
            let part = SourceTensor { name: name.clone(), stored: stored.clone() };
            let mut places = translate(architecture.names, usual);
            // Of several places those that this model reads.
            if places.iter().any(|known| read.contains(&known.name)) {
                places.retain(|known| read.contains(&known.name));
            }
            if places.is_empty() {
                let (name, architecture) = (name.clone(), architecture.name);
                return Err(part.wrong(&format!(
                    "architecture {architecture} has no place for {name}; the model is of a variant that is not supported"
                )));
            }
            for known in places {
                // A head that is the embedding is not kept twice.
                if known.name == "output.weight"
                    && tied != Some(false)
                    && tied::is_embedding(stored, checkpoint, architecture)?
                        .unwrap_or(tied == Some(true))
                {
                    continue;
                }
                let part = part.clone();
                if let Some(expert) = known.expert {
                    stacks.entry(known.name).or_default().insert(expert, part);
                    continue;
                }
                let planned = match known.by.change {
                    Change::Packed { first, step } => {
                        packed(known.name, part, checkpoint, (first, step))?
                    }
                    change => one(known.name, part, change, config)?,
                };
                if let Some(Planned { name, .. }) = found.insert(planned.name.clone(), planned) {
                    let part = SourceTensor { name: name.clone(), stored: stored.clone() };
                    return Err(part.wrong("the checkpoint has it under two names"));
                }
            }
        }
        for (name, parts) in stacks {
            found.insert(name.clone(), stack(name, parts)?);
        }
        let has_head = config.encoder.is_some() || found.contains_key("output.weight");
        if tied == Some(false) && !has_head {
            let reason = "has `tie_word_embeddings` false, but the weights have no output matrix";
            return Err(checkpoint.wrong("config.json", reason));
        }
        for Made { name, values } in made {
            let shape = vec![values.len() as u64];
            let planned =
                Planned { name: name.clone(), shape, ty: Type::F32, from: From::Made(values) };
            found.insert(name, planned);
        }
        Ok(Tensors(found.into_values().collect()))
    }

    /// Adds the head of a reranker: the rows of the output matrix, or of the embedding that is also that, for the tokens whose
    /// logits are scores. There are none if it is no reranker.
    ///
    /// # Errors
    /// [`Error::Tensor`]: the matrix has no such rows, or is stored in another order.
    pub fn scored(mut self, tokens: &[u32]) -> Result<Tensors, Error> {
        let [Some(&first), last] = [tokens.first(), tokens.last()] else { return Ok(self) };
        let head = self.get("output.weight").or_else(|| self.get("token_embd.weight")).cloned();
        let Some(mut head) = head else { return Ok(self) };
        let From::Stored { parts, change, .. } = &mut head.from else { return Ok(self) };
        let rows = head.shape[0];
        if *change != Done::Nothing || tokens.iter().any(|&token| u64::from(token) >= rows) {
            let what =
                format!("it has no rows of the tokens {tokens:?}, by which pairs are scored");
            return Err(parts[0].wrong(&what));
        }
        *change = Done::Selected([first, *last.unwrap_or(&first)]);
        head.shape[0] = tokens.len() as u64;
        head.name = SCORE_MATRIX.to_owned();
        self.0.push(head);
        Ok(self)
    }

    /// The type that most weights of matrices have.
    pub fn usual(&self) -> Type {
        let mut weights: BTreeMap<u32, (u64, Type)> = BTreeMap::new();
        for Planned { shape, from, .. } in self.0.iter().filter(|tensor| tensor.shape.len() > 1) {
            if let From::Stored { float, .. } = from {
                let entry = weights.entry(float.usual.gguf_id).or_insert((0, float.usual));
                entry.0 += shape.iter().product::<u64>();
            }
        }
        weights.into_values().max_by_key(|(weights, _)| *weights).map_or(Type::F32, |(_, ty)| ty)
    }

    /// Gives each tensor its type, checks that all make a model, and puts them in the order in which that reads them.
    ///
    /// # Errors
    /// As [`Tensors::plan`].
    pub fn typed(mut self, mix: &Mix, metadata: &Metadata) -> Result<Tensors, Error> {
        let facts = Facts {
            layers: 0,
            heads: 1,
            kv_heads: 1,
            experts: 0,
            attention: Vec::new(),
            is_falcon: false,
            tied: self.get("output.weight").is_none(),
            importance: false,
        };
        for Planned { name, shape, ty, from } in &mut self.0 {
            // What is packed stays as it is.
            if matches!(from, From::Packed { .. }) {
                continue;
            }
            *ty = match mix.tensor(name, shape, &facts) {
                None => Type::F32,
                // As llama.cpp's converter: what does not fit stays in half precision.
                Some(_) if fitting(mix.base, shape[shape.len() - 1]) != mix.base => Type::F16,
                Some(ty) => ty,
            };
        }
        let names = self.0.iter().map(|tensor| tensor.name.as_str());
        let listing = Listing::new(self.0.iter().map(Planned::entry));
        let of_model = |error| self.of_model(error);
        let (config, graph) =
            bilayer_models::read_parts(metadata, &listing, names).map_err(of_model)?;
        let mut order: Vec<String> = graph.weights.into_iter().map(|weight| weight.name).collect();
        // Of two lists of factors the graph reads the one of its context; the file has both.
        let short = Config { context: 1, ..config.clone() };
        let short = bilayer_models::record(&short, &listing).map_err(|e| self.of_model(e))?;
        order.extend(short.weights.into_iter().map(|weight| weight.name));
        if !config.mtp.is_empty() {
            let mtp = Config { output: Output::Mtp, ..config };
            let mtp = bilayer_models::record(&mtp, &listing).map_err(|e| self.of_model(e))?;
            order.extend(mtp.weights.into_iter().map(|weight| weight.name));
        }
        let mut left: BTreeMap<String, Planned> =
            self.0.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        Ok(Tensors(order.into_iter().filter_map(|name| left.remove(&name)).collect()))
    }

    /// Tensors in the given order, which make no model.
    pub fn parts(tensors: Vec<Planned>) -> Tensors {
        Tensors(tensors)
    }

    /// The tensors.
    pub fn iter(&self) -> std::slice::Iter<'_, Planned> {
        self.0.iter()
    }

    fn get(&self, name: &str) -> Option<&Planned> {
        self.0.iter().find(|tensor| tensor.name == name)
    }

    /// An error of the recorded model with the checkpoint's name of the tensor.
    fn of_model(&self, error: bilayer_models::Error) -> Error {
        let name = error.tensor().and_then(|name| self.get(name));
        match name.map(|planned| &planned.from) {
            Some(From::Stored { parts, .. }) => parts[0].wrong(&error.to_string()),
            Some(From::Packed { blocks, .. }) => blocks.wrong(&error.to_string()),
            _ => Error::Incomplete { source: Box::new(error) },
        }
    }
}

impl SourceTensor {
    pub fn wrong(&self, reason: &str) -> Error {
        Error::Tensor { tensor: self.name.clone(), reason: reason.to_owned() }
    }

    fn float(&self) -> Result<Float, Error> {
        let dtype = self.stored.dtype();
        let reason = format!(
            "its weights are {dtype}; F32, F16, BF16, and FP8, NVFP4 and MXFP4 with scales can be converted"
        );
        self.stored.float().ok_or_else(|| self.wrong(&reason))
    }
}

/// The names of the tensors that a model reads where it may have the `possible` ones.
fn read_by(config: &Config, possible: &[Translated<'_>]) -> Result<BTreeSet<String>, Error> {
    let possible: Vec<&str> = possible.iter().map(|known| known.name.as_str()).collect();
    let outline = Outline::new(Type::F32, &possible);
    let of_model = |error| Error::Incomplete { source: Box::new(error) };
    bilayer_models::record(config, &outline).map_err(of_model)?;
    if !config.mtp.is_empty() {
        let mtp = Config { output: Output::Mtp, ..config.clone() };
        bilayer_models::record(&mtp, &outline).map_err(of_model)?;
    }
    Ok(outline.tensors().into_iter().map(|(name, _)| name).collect())
}

/// A tensor of one of the checkpoint's.
pub(super) fn one(
    name: String,
    part: SourceTensor,
    change: Change,
    config: &Config,
) -> Result<Planned, Error> {
    let mut shape = part.stored.shape.clone();
    if shape.is_empty() || shape.contains(&0) {
        return Err(part.wrong("it has no elements, or no dimensions"));
    }
    let change = match change {
        Change::Transposed if shape.len() == 2 => {
            shape.reverse();
            let rows = shape[0] as usize;
            Done::Transposed { rows, width: rows, first: 0, step: 1, depth: shape[1] as usize }
        }
        Change::KeysOfHeads => of_heads(&part, &mut shape, config, Side::Keys)?,
        Change::ValuesOfHeads => of_heads(&part, &mut shape, config, Side::Values)?,
        Change::PartTransposed { part: place, parts } => {
            if shape.len() != 3 || !shape[2].is_multiple_of(parts as u64) {
                return Err(part.wrong(&format!("it is no stack of matrices of {parts} parts")));
            }
            let width = shape[2] as usize;
            shape = vec![shape[0], shape[2] / parts as u64, shape[1]];
            let rows = shape[1] as usize;
            let depth = shape[2] as usize;
            Done::Transposed { rows, width, first: place * rows, step: 1, depth }
        }
        Change::Regrouped => regrouped(&part, &shape, config)?,
        Change::Squeezed => {
            shape.retain(|&size| size > 1);
            Done::Nothing
        }
        Change::Positions => {
            let positions = config.positions.unwrap_or(0) as u64;
            let unused = shape[0].saturating_sub(positions);
            shape[0] -= unused;
            Done::After(unused as usize)
        }
        Change::EachTransposed { first, step } => each(&part, &mut shape, first, step)?,
        Change::Interleaved => interleaved(&part, &shape, config)?,
        Change::OneMore => Done::OneMore,
        Change::Tiled(_)
        | Change::OfKeyHeads(_)
        | Change::Column
        | Change::Grouped
        | Change::Decay
        | Change::RowPart { .. } => recurrent(&part, &mut shape, change, config)?,
        Change::None | Change::Transposed | Change::Stacked | Change::Packed { .. } => {
            Done::Nothing
        }
    };
    let float = part.float()?;
    let from = From::Stored { parts: vec![part], float, change };
    Ok(Planned { name, shape, ty: Type::F32, from })
}

/// What is done to a tensor of a recurrence, or to one of which a part is wanted; `shape` becomes that of the result.
fn recurrent(
    part: &SourceTensor,
    shape: &mut Vec<u64>,
    change: Change,
    config: &Config,
) -> Result<Done, Error> {
    Ok(match change {
        Change::Tiled(tiled) => {
            let along = if tiled == Tiled::Columns { shape.len() - 1 } else { 0 };
            let tiling = tiling(shape[along] as usize, config);
            let tiling =
                tiling.ok_or_else(|| part.wrong("it has other sizes than heads of values"))?;
            if shape.len() > 2 {
                shape.retain(|&size| size > 1);
            }
            Done::Tiled { tiled, tiling }
        }
        Change::OfKeyHeads(which) => of_key_heads(part, shape, config, which)?,
        Change::Column | Change::Decay if shape.len() == 1 => {
            shape.push(1);
            if change == Change::Column { Done::Nothing } else { Done::Decay }
        }
        Change::Grouped => {
            let groups = config.layers.iter().find_map(|layer| match layer.mixer {
                Mixer::Mamba2(sizes) => Some(sizes.groups as u64),
                _ => None,
            });
            let groups =
                groups.filter(|&groups| shape.len() == 1 && shape[0].is_multiple_of(groups));
            let groups = groups.ok_or_else(|| part.wrong("it is no vector of whole groups"))?;
            *shape = vec![groups, shape[0] / groups];
            Done::Nothing
        }
        Change::Column | Change::Decay => return Err(part.wrong("it is no vector")),
        Change::RowPart { part: place, parts } => {
            let at = shape.len().saturating_sub(2);
            if shape.get(at).is_none_or(|rows| !rows.is_multiple_of(parts as u64)) {
                return Err(part.wrong(&format!("its matrices have no {parts} parts of rows")));
            }
            shape[at] /= parts as u64;
            Done::RowPart { rows: shape[at] as usize, part: place, parts }
        }
        _ => Done::Nothing,
    })
}

/// Rows of a delta net's projection that leave the groups of heads of keys; `shape` becomes that of the part.
fn of_key_heads(
    part: &SourceTensor,
    shape: &mut [u64],
    config: &Config,
    which: OfKeyHeads,
) -> Result<Done, Error> {
    let sizes = delta_net(config).ok_or_else(|| part.wrong("the model has no delta nets"))?;
    let (groups, head) = (sizes.key_heads, sizes.head_dim);
    let values = sizes.value_heads / groups * head;
    let group = 2 * (head + values);
    if shape[0] != (groups * group) as u64 {
        return Err(part.wrong(&format!("it has {} rows, not {}", shape[0], groups * group)));
    }
    let parts = match which {
        OfKeyHeads::Mixed => [(0, head), (head, head), (2 * head, values)],
        OfKeyHeads::Gate => [(2 * head + values, values), (0, 0), (0, 0)],
    };
    shape[0] = (groups * parts.iter().map(|(_, rows)| rows).sum::<usize>()) as u64;
    Ok(Done::Ungrouped { groups, group, parts })
}

/// The sizes of a model's delta nets.
fn delta_net(config: &Config) -> Option<DeltaNet> {
    config.layers.iter().find_map(|layer| match layer.mixer {
        Mixer::DeltaNet(sizes) => Some(sizes),
        _ => None,
    })
}

/// Rows that leave the groups of heads.
fn regrouped(part: &SourceTensor, shape: &[u64], config: &Config) -> Result<Done, Error> {
    let layer = config.layers[0];
    let head_dim = layer.head_dim;
    let expected = (layer.heads + 2 * layer.kv_heads) * head_dim;
    if shape[0] != expected as u64 {
        return Err(part.wrong(&format!("it has {} rows, not {expected}", shape[0])));
    }
    Ok(Done::Regrouped { head_dim, heads: layer.heads, kv_heads: layer.kv_heads })
}

/// Rows of heads that go from halves to pairs.
fn interleaved(part: &SourceTensor, shape: &[u64], config: &Config) -> Result<Done, Error> {
    let head_dim = config.layers[0].head_dim;
    let rope = config.layers.iter().find_map(|layer| layer.rope);
    let dims = rope.map_or(head_dim, |rope| rope.dims);
    if !shape[0].is_multiple_of(head_dim as u64) {
        let rows = shape[0];
        return Err(part.wrong(&format!("its {rows} rows are not whole heads of {head_dim}")));
    }
    Ok(Done::Interleaved { head_dim, dims })
}

/// How the last of `len` rows or columns are those of a delta net's heads of values.
fn tiling(len: usize, config: &Config) -> Option<Tiling> {
    let sizes = delta_net(config)?;
    let (keys, heads) = (sizes.key_heads * sizes.head_dim, sizes.value_heads);
    let values = heads * sizes.head_dim;
    let (before, head) = match len {
        len if len == heads => (0, 1),
        len if len == values => (0, sizes.head_dim),
        len if len == 2 * keys + values => (2 * keys, sizes.head_dim),
        _ => return None,
    };
    // Heads that stay neighbours are in the checkpoint's order.
    let groups = if sizes.neighbours > 1 { 1 } else { sizes.key_heads };
    Some(Tiling { before, head, groups, each: heads / groups })
}

/// Every `step`-th row from `first` on of each matrix of a stack, turned, or of each of its biases.
fn each(part: &SourceTensor, shape: &mut [u64], first: usize, step: usize) -> Result<Done, Error> {
    let last = shape.len() - 1;
    if !(2..=3).contains(&shape.len()) || !shape[last].is_multiple_of(step as u64) {
        let what = format!("it is no stack of matrices whose rows come from {step} in turn");
        return Err(part.wrong(&what));
    }
    shape[last] /= step as u64;
    // Biases have no columns to turn.
    if shape.len() == 2 {
        return Ok(Done::Picked { first, step });
    }
    shape.swap(1, 2);
    let rows = shape[1] as usize;
    Ok(Done::Transposed { rows, width: step * rows, first, step, depth: shape[2] as usize })
}

/// The part of a matrix for keys and values.
#[derive(Clone, Copy)]
enum Side {
    Keys,
    Values,
}

/// One side of a matrix `[heads * (key rows + value rows), rank]` of latent attention, head by head; keys turned.
fn of_heads(
    part: &SourceTensor,
    shape: &mut Vec<u64>,
    config: &Config,
    side: Side,
) -> Result<Done, Error> {
    let layer = config.layers[0];
    let Mixer::Latent(latent) = layer.mixer else {
        return Err(part.wrong("the model's attention is not latent"));
    };
    let Latent { plain_dim, value_dim, rank, .. } = latent;
    let of = plain_dim + value_dim;
    let expected = [layer.heads * of, rank].map(|size| size as u64);
    if shape[..] != expected {
        return Err(part.wrong(&format!("its shape is {shape:?}, not {expected:?}")));
    }
    let (matrix, done) = match side {
        Side::Keys => {
            let done = Done::Transposed { rows: rank, width: rank, first: 0, step: 1, depth: of };
            ([rank, plain_dim], done)
        }
        Side::Values => {
            ([value_dim, rank], Done::Strided { rows: value_dim, first: plain_dim, of })
        }
    };
    *shape = [layer.heads, matrix[0], matrix[1]].map(|size| size as u64).to_vec();
    Ok(done)
}
