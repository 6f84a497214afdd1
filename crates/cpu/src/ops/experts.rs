//! Mixture-of-experts products: rows are sorted by expert, then multiplied expert by expert.
//!
//! Three stages. [`Sort`] lists each expert's pairs of row and slot in the route: a group. [`Fill`] prepares every
//! group's inputs for the kernels of its size: columns for dot kernels if it is small, packed chunks if it is large.
//! [`Multiply`] runs chunks of the weight rows of the experts with a group, so decode reads only the chosen matrices,
//! each once and sequentially.
//!
//! The number of groups is unknown until the route is computed: stages have as many chunks as the worst case needs,
//! and surplus chunks return immediately.
//!
//! Pairs without an expert are listed behind all groups. [`Multiply`] has a few more chunks that set their products to 0.

use std::ops::Range;
use std::sync::Arc;

use bilayer_graph::{Activation, NO_EXPERT};

use crate::gemm::Packing;
use crate::memory::lines;
use crate::numa::Nodes;
use crate::ops::gate;
use crate::ops::matmul::{Band, Cuts, Inputs, Layouts, Linear, names};
use crate::stage::{Buffer, Context, Stage};
use crate::state::State;

/// Chunks that set the products of pairs without an expert to 0.
const ABSENT_CHUNKS: usize = 8;

/// One output of a group of products.
pub(crate) enum ExpertProduct {
    /// One matrix per expert.
    Plain { linears: Vec<Linear>, out: Buffer },
    /// `activation(gate) * up`; all of equal shape.
    Gated { gates: Vec<Linear>, ups: Vec<Linear>, activation: Activation, out: Buffer },
}

impl ExpertProduct {
    /// An expert's matrices.
    fn of(&self, expert: usize) -> impl Iterator<Item = &Linear> + Clone {
        let (first, second) = match self {
            ExpertProduct::Plain { linears, .. } => (&linears[expert], None),
            ExpertProduct::Gated { gates, ups, .. } => (&gates[expert], Some(&ups[expert])),
        };
        std::iter::once(first).chain(second)
    }

    fn out(&self) -> &Buffer {
        match self {
            ExpertProduct::Plain { out, .. } | ExpertProduct::Gated { out, .. } => out,
        }
    }

    fn experts(&self) -> usize {
        match self {
            ExpertProduct::Plain { linears, .. } | ExpertProduct::Gated { gates: linears, .. } => {
                linears.len()
            }
        }
    }

    /// Rows per matrix.
    fn rows(&self) -> usize {
        self.of(0).next().map_or(0, |linear| linear.rows)
    }
}

/// Products with one input and one route.
pub(crate) struct Mixture {
    pub(crate) input: Buffer,
    pub(crate) route: Buffer,
    pub(crate) parts: Vec<ExpertProduct>,
    /// How each output's matrices are split.
    cuts: Vec<Cuts>,
    /// Offset of its own memory in the arena: the groups, then their inputs.
    pub(crate) offset: usize,
    layouts: Layouts,
    /// Maximum rows of the input.
    rows: usize,
}

impl Mixture {
    /// Products of at most `rows` rows, shared by the threads of some nodes.
    pub(crate) fn new(
        input: Buffer,
        route: Buffer,
        parts: Vec<ExpertProduct>,
        rows: usize,
        nodes: &Nodes,
    ) -> Mixture {
        let first = |part| ExpertProduct::of(part, 0);
        let cols = parts.iter().flat_map(first).next().map_or(0, |linear| linear.cols);
        let layouts = Layouts::of(cols, parts.iter().flat_map(first));
        let cuts = parts.iter().map(|part| Cuts::new(part.of(0), nodes)).collect();
        Mixture { input, route, parts, cuts, offset: 0, layouts, rows }
    }

    /// Such as `experts q4_k.avx2 x2 gate`.
    pub(crate) fn name(&self) -> String {
        let kernels = names(self.parts.iter().flat_map(|part| part.of(0)));
        let gated = self.parts.iter().any(|part| matches!(part, ExpertProduct::Gated { .. }));
        let words = std::iter::once("experts".to_owned()).chain(kernels);
        words.chain(gated.then(|| "gate".to_owned())).collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn stages(self) -> Vec<Box<dyn Stage>> {
        let mixture = Arc::new(self);
        vec![
            Box::new(Sort(mixture.clone())),
            Box::new(Fill(mixture.clone())),
            Box::new(Multiply(mixture)),
        ]
    }

    /// The outputs and how each is split.
    fn parts(&self) -> impl Iterator<Item = (&ExpertProduct, &Cuts)> {
        self.parts.iter().zip(&self.cuts)
    }

    /// Size of its own memory in bytes.
    pub(crate) fn own_bytes(&self) -> usize {
        // However pairs are distributed, each costs at most as much as in groups of the least favourable size.
        let each =
            (1..=self.rows).map(|n| self.layouts.bytes_max(n).div_ceil(n)).max().unwrap_or(0);
        self.table_bytes() + lines(each * self.rows * self.used())
    }

    fn table_bytes(&self) -> usize {
        lines(4 * Groups::words(self.groups_max(self.rows), self.rows * self.used()))
    }

    /// Experts per row.
    fn used(&self) -> usize {
        self.route.width / 2
    }

    fn experts(&self) -> usize {
        self.parts[0].experts()
    }

    /// Maximum number of groups for `rows` rows.
    fn groups_max(&self, rows: usize) -> usize {
        self.experts().min(rows * self.used())
    }

    /// The input of a pair, written by an earlier stage.
    fn x<'m>(&self, context: &Context<'m>, pair: usize) -> &'m [f32] {
        let (row, place) = (pair / self.used(), pair % self.used());
        let cols = self.layouts.cols;
        let first = if self.input.width == cols { 0 } else { place * cols };
        let start = row * self.input.width + first;
        self.input.elements(context, start..start + cols)
    }

    /// The groups, written by an earlier stage.
    fn groups<'m>(&self, context: &Context<'m>) -> Groups<'m> {
        Groups { words: context.read(self.offset, self.table_bytes() / 4) }
    }
}

/// Pairs by expert, in words: the number of groups `g`; the expert of each; `g + 1` indices of its first pair in the
/// list of pairs; `g + 1` offsets of its inputs, in lines of 64 bytes; the pairs.
struct Groups<'m> {
    words: &'m [u32],
}

impl<'m> Groups<'m> {
    /// Words for a number of groups.
    fn words(groups: usize, pairs: usize) -> usize {
        1 + groups + 2 * (groups + 1) + pairs
    }

    fn count(&self) -> usize {
        self.words[0] as usize
    }

    fn expert(&self, group: usize) -> usize {
        self.words[1 + group] as usize
    }

    /// Indices of the first pairs.
    fn starts(&self) -> &'m [u32] {
        &self.words[1 + self.count()..][..self.count() + 1]
    }

    /// The indices of a group in the list.
    fn range(&self, group: usize) -> Range<usize> {
        self.starts()[group] as usize..self.starts()[group + 1] as usize
    }

    /// Offset of a group's inputs in bytes, relative to the first group's.
    fn offset(&self, group: usize) -> usize {
        64 * self.words[2 + 2 * self.count() + group] as usize
    }

    /// A group's pairs, by index in the list.
    fn pairs(&self) -> &'m [u32] {
        &self.words[3 + 3 * self.count()..]
    }

    /// Pairs with an expert, the first ones in the list.
    fn present(&self) -> usize {
        self.starts()[self.count()] as usize
    }
}

/// Lists the groups.
struct Sort(Arc<Mixture>);

impl Stage for Sort {
    fn chunks(&self, state: &State) -> usize {
        usize::from(state.rows(self.0.route.rows) > 0)
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.0.experts()
    }

    fn writes(&self, _: &State) -> Vec<Range<usize>> {
        vec![self.0.offset..self.0.offset + self.0.table_bytes(); 1]
    }

    fn run(&self, context: Context<'_>, _: usize) {
        let mixture = &*self.0;
        let (used, rows) = (mixture.used(), context.state.rows(mixture.route.rows));
        let route = mixture.route.get(&context, 0..rows);
        // SAFETY: this stage has one chunk, which alone writes the table.
        let words = unsafe { context.write::<u32>(mixture.offset, mixture.table_bytes() / 4) };
        let scratch: &mut [u32] = bytemuck::cast_slice_mut(context.scratch);
        let counts = &mut scratch[..mixture.experts()];
        let last = counts.len() - 1;
        let experts = || {
            let numbers = route.chunks_exact(2 * used).flat_map(|row| &row[used..]);
            let expert = |number: f32| (number != NO_EXPERT).then(|| (number as usize).min(last));
            numbers.map(move |&number| expert(number))
        };
        counts.fill(0);
        experts().flatten().for_each(|expert| counts[expert] += 1);
        assert!(counts.iter().all(|&n| n as usize <= rows), "a row goes to an expert once");
        let groups = counts.iter().filter(|&&n| n > 0).count();
        let (head, pairs) = words.split_at_mut(3 + 3 * groups);
        head[0] = groups as u32;
        let (numbers, places) = head[1..].split_at_mut(groups);
        let (starts, offsets) = places.split_at_mut(groups + 1);
        (starts[0], offsets[0]) = (0, 0);
        let present = counts.iter_mut().enumerate().filter(|(_, count)| **count > 0);
        for (group, (expert, count)) in present.enumerate() {
            numbers[group] = expert as u32;
            starts[group + 1] = starts[group] + *count;
            let inputs = mixture.layouts.count(*count as usize, context.state);
            let bytes = mixture.layouts.bytes(inputs);
            offsets[group + 1] = offsets[group] + (bytes / 64) as u32;
            // From here on, the index of the expert's next pair.
            *count = starts[group];
        }
        let mut absent = starts[groups] as usize;
        for (pair, expert) in experts().enumerate() {
            let place = match expert {
                Some(expert) => {
                    counts[expert] += 1;
                    counts[expert] as usize - 1
                }
                None => {
                    absent += 1;
                    absent - 1
                }
            };
            pairs[place] = pair as u32;
        }
    }
}

/// Prepares the inputs of all groups, one chunk per pair.
struct Fill(Arc<Mixture>);

impl Stage for Fill {
    fn chunks(&self, state: &State) -> usize {
        state.rows(self.0.route.rows) * self.0.used()
    }

    fn scratch_bytes(&self) -> usize {
        4 * self.0.layouts.cols * self.0.layouts.tokens_most()
    }

    fn writes(&self, _: &State) -> Vec<Range<usize>> {
        let start = self.0.offset;
        vec![start + self.0.table_bytes()..start + self.0.own_bytes(); 1]
    }

    fn run(&self, mut context: Context<'_>, chunk: usize) {
        let mixture = &*self.0;
        let groups = mixture.groups(&context);
        if chunk >= groups.present() {
            return;
        }
        let group = groups.starts().partition_point(|&start| start as usize <= chunk) - 1;
        let range = groups.range(group);
        let mine = Filled {
            mixture,
            pairs: &groups.pairs()[range.clone()],
            start: mixture.offset + mixture.table_bytes() + groups.offset(group),
        };
        let place = chunk - range.start;
        let count = mixture.layouts.count(range.len(), context.state);
        if count.few {
            mine.column(&context, place)
        } else {
            mine.pack(&mut context, mixture.layouts.packings(count), place)
        }
    }
}

/// A group's inputs under construction.
struct Filled<'a> {
    mixture: &'a Mixture,
    pairs: &'a [u32],
    /// Their offset in the arena.
    start: usize,
}

impl Filled<'_> {
    /// Prepares the columns of one pair.
    fn column(&self, context: &Context<'_>, place: usize) {
        let x = self.mixture.x(context, self.pairs[place] as usize);
        let mut start = self.start;
        for format in &self.mixture.layouts.formats {
            let bytes = format.column_bytes(x.len());
            // SAFETY: each pair has its own column in each format.
            let column = unsafe { context.write(start + place * bytes, bytes) };
            format.prepare(context.level, x, column);
            start += self.pairs.len() * bytes;
        }
    }

    /// Packs some of the group's chunks, of which there are at most about as many as pairs.
    fn pack(&self, context: &mut Context<'_>, packings: &[Packing], place: usize) {
        let (cols, tokens) = (self.mixture.layouts.cols, self.pairs.len());
        let scratch = std::mem::take(&mut context.scratch);
        let scratch: &mut [f32] = bytemuck::cast_slice_mut(scratch);
        let (mut start, mut first) = (self.start, 0);
        for packing in packings {
            let (chunks, bytes) = (packing.chunks(tokens), packing.chunk_bytes(tokens));
            for chunk in (0..chunks).filter(|chunk| (first + chunk) % tokens == place) {
                let pairs = &self.pairs[packing.chunk_range(chunk, tokens)];
                let rows = &mut scratch[..pairs.len() * cols];
                for (row, &pair) in rows.chunks_exact_mut(cols).zip(pairs) {
                    row.copy_from_slice(self.mixture.x(context, pair as usize));
                }
                // SAFETY: each chunk has its own bytes and belongs to one pair.
                let out = unsafe { context.write(start + chunk * bytes, bytes) };
                packing.pack_rows(rows, tokens, out);
            }
            start += chunks * bytes;
            first += chunks;
        }
    }
}

/// Runs chunks of the weight rows of the experts that have a group.
struct Multiply(Arc<Mixture>);

impl Multiply {
    /// Number of NUMA nodes.
    fn nodes(&self) -> usize {
        self.0.cuts.first().map_or(0, Cuts::nodes)
    }

    /// Chunks of the products of some NUMA nodes.
    fn products(&self, state: &State, nodes: Range<usize>) -> usize {
        let most = |node| self.0.cuts.iter().map(move |cuts| cuts.chunks_max(node));
        self.0.groups_max(state.rows(self.0.route.rows)) * nodes.flat_map(most).sum::<usize>()
    }
}

/// The chunks of a NUMA node are those of all parts and groups with its rows.
impl Stage for Multiply {
    fn chunks(&self, state: &State) -> usize {
        match self.products(state, 0..self.nodes()) {
            0 => 0,
            products => products + ABSENT_CHUNKS,
        }
    }

    fn end(&self, state: &State, _: &Nodes, node: usize) -> usize {
        match node + 1 == self.nodes() {
            true => self.chunks(state),
            false => self.products(state, 0..node + 1),
        }
    }

    fn scratch_bytes(&self) -> usize {
        let parts = self.0.parts();
        parts.map(|(part, cuts)| cuts.scratch_bytes(part.of(0), self.0.rows)).max().unwrap_or(0)
    }

    fn writes(&self, state: &State) -> Vec<Range<usize>> {
        self.0.parts.iter().map(|part| part.out().region(state)).collect()
    }

    fn run(&self, mut context: Context<'_>, mut chunk: usize) {
        let mixture = &*self.0;
        let scratch = std::mem::take(&mut context.scratch);
        let groups = mixture.groups(&context);
        let most = mixture.groups_max(context.state.rows(mixture.route.rows));
        let nodes = 0..self.nodes();
        for (node, (part, cuts)) in
            nodes.flat_map(|node| mixture.parts().map(move |part| (node, part)))
        {
            let chunks = cuts.chunks_max(node);
            if chunk >= most * chunks {
                chunk -= most * chunks;
                continue;
            }
            let (group, place) = (chunk / chunks, chunk % chunks);
            if group >= groups.count() {
                return;
            }
            let (expert, range) = (groups.expert(group), groups.range(group));
            let count = mixture.layouts.count(range.len(), context.state);
            let start = mixture.offset + mixture.table_bytes() + groups.offset(group);
            let data = context.read(start, mixture.layouts.bytes(count));
            let tile = Tile {
                part,
                expert,
                inputs: Inputs { layouts: &mixture.layouts, count, data },
                pairs: &groups.pairs()[range],
                bytes: cuts.tile_bytes(count),
            };
            // Empty if fewer chunks than the maximum serve this group.
            for band in cuts.bands(count, node, place) {
                tile.run(&context, &band, scratch);
            }
            return;
        }
        mixture.clear(&context, chunk);
    }
}

impl Mixture {
    /// Sets the products of some of the pairs without an expert to 0.
    fn clear(&self, context: &Context<'_>, chunk: usize) {
        let (groups, rows) = (self.groups(context), context.state.rows(self.route.rows));
        let absent = &groups.pairs()[groups.present()..rows * self.used()];
        for &pair in absent.iter().skip(chunk).step_by(ABSENT_CHUNKS) {
            for part in &self.parts {
                place(context, part, pair, 0..part.rows()).fill(0.0);
            }
        }
    }
}

/// Some products of a pair of token and expert. Each chunk writes others, and asks for those of a pair once: a pair is in one
/// group, or absent from all.
fn place<'a>(
    context: &Context<'a>,
    part: &ExpertProduct,
    pair: u32,
    rows: Range<usize>,
) -> &'a mut [f32] {
    let first = pair as usize * part.rows();
    // SAFETY: as said above.
    unsafe { part.out().elements_mut(context, first + rows.start..first + rows.end) }
}

/// Some rows of an expert's matrices times its group.
struct Tile<'a> {
    part: &'a ExpertProduct,
    expert: usize,
    inputs: Inputs<'a>,
    pairs: &'a [u32],
    /// Bytes of a matrix's products.
    bytes: usize,
}

impl Tile<'_> {
    fn run(&self, context: &Context<'_>, band: &Band, scratch: &mut [u8]) {
        let rows = band.rows.len();
        let (one, rest) = scratch.split_at_mut(self.bytes);
        let (two, rest) = rest.split_at_mut(self.bytes);
        let one = &mut bytemuck::cast_slice_mut::<u8, f32>(one)[..rows * self.pairs.len()];
        let place = |pair: u32| place(context, self.part, pair, band.rows.clone());
        match self.part {
            ExpertProduct::Plain { linears, .. } => {
                linears[self.expert].product(&self.inputs, band, rest, one);
                for (&pair, results) in self.pairs.iter().zip(one.chunks_exact(rows)) {
                    place(pair).copy_from_slice(results);
                }
            }
            ExpertProduct::Gated { gates, ups, activation, .. } => {
                let two = &mut bytemuck::cast_slice_mut::<u8, f32>(two)[..one.len()];
                gates[self.expert].product(&self.inputs, band, rest, one);
                ups[self.expert].product(&self.inputs, band, rest, two);
                let results = one.chunks_exact(rows).zip(two.chunks_exact(rows));
                for (&pair, (gate, up)) in self.pairs.iter().zip(results) {
                    gate::join(context.level, *activation, gate, Some(up), place(pair));
                }
            }
        }
    }
}
