//! The KV cache of one layer: pages of 32 tokens, rounded as a device stores them.

use bilayer_quant::Type;
use bilayer_quant::cache::{BLOCK, Form, form, names};

use crate::{Attend, CacheInfo, CachePages, Error, Limits, OpKind, PAGE_TOKENS, PageCopy, Step};

/// The KV cache of one layer.
#[derive(Debug)]
pub(super) struct Cache {
    pub keys: CacheRows,
    pub values: CacheRows,
    /// Whether keys are stored after the Hadamard transform.
    pub hadamard_keys: bool,
    pages: usize,
}

/// One row with all heads per token of every page: `[pages * PAGE_TOKENS, width]`; of width 0 for values in keys.
#[derive(Debug)]
pub(super) struct CacheRows {
    ty: Type,
    form: Form,
    head_dim: usize,
    width: usize,
    rows: Vec<f32>,
    bytes: Vec<u8>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// The type is not a cache type, or keys are to be transformed and cannot be.
    pub fn new(info: &CacheInfo, limits: &Limits) -> Result<Self, Error> {
        let rows = |ty: Type, width: usize| {
            let form = form(ty).ok_or_else(|| Error::Unsupported {
                device: super::NAME.to_owned(),
                op: OpKind::Attend,
                what: format!("a cache of type {ty} (it has {})", names()),
            })?;
            let rows = vec![0.0; limits.pages * PAGE_TOKENS * width];
            let bytes = vec![0; width * ty.block_bytes];
            Ok(CacheRows { ty, form, head_dim: info.head_dim, width, rows, bytes })
        };
        let keys = rows(limits.key_type, info.width())?;
        let values = rows(limits.value_type, info.value_width())?;
        let hadamard_keys = limits.transforms(info, super::NAME)?;
        Ok(Cache { keys, values, hadamard_keys, pages: limits.pages })
    }

    /// An empty f32 cache for one step of an attention without a cache.
    pub fn scratch(op: &Attend, step: &Step<'_>) -> Self {
        let pages = step.pages.iter().max().map_or(0, |&page| page as usize + 1);
        let CacheInfo { head_dim, .. } = op.scratch();
        let width = op.scratch().width();
        let rows = || CacheRows {
            ty: Type::F32,
            form: Form::Float,
            head_dim,
            width,
            rows: vec![0.0; pages * PAGE_TOKENS * width],
            bytes: Vec::new(),
        };
        Cache { keys: rows(), values: rows(), hadamard_keys: false, pages }
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The rows of whole pages.
    pub fn save(&self, pages: &[u32]) -> CachePages {
        let of = |rows: &CacheRows| {
            let page = PAGE_TOKENS * rows.width;
            pages.iter().flat_map(|&p| &rows.rows[p as usize * page..][..page]).copied().collect()
        };
        CachePages { keys: of(&self.keys), values: of(&self.values) }
    }

    /// Stores the rows of whole pages.
    pub fn restore(&mut self, pages: &[u32], data: &CachePages) {
        let sides = [(&mut self.keys, &data.keys), (&mut self.values, &data.values)];
        for (rows, data) in sides.into_iter().filter(|(rows, _)| rows.width > 0) {
            let slots = pages.iter().flat_map(|&p| (0..PAGE_TOKENS).map(move |t| (p, t)));
            for ((page, token), row) in slots.zip(data.chunks_exact(rows.width)) {
                rows.store(page as usize * PAGE_TOKENS + token, row);
            }
        }
    }

    /// Copies whole pages, in order.
    pub fn copy(&mut self, copies: &[PageCopy]) {
        for copy in copies {
            for rows in [&mut self.keys, &mut self.values] {
                let page = PAGE_TOKENS * rows.width;
                let from = copy.from as usize * page;
                rows.rows.copy_within(from..from + page, copy.to as usize * page);
            }
        }
    }
}

impl CacheRows {
    /// Stores one token's row at its slot, rounded through the cache's type.
    pub fn store(&mut self, slot: usize, row: &[f32]) {
        let kept = &mut self.rows[slot * self.width..][..self.width];
        if self.ty == Type::F32 {
            kept.copy_from_slice(row);
            return;
        }
        if !row.iter().all(|x| x.is_finite()) {
            // They must stay visible.
            kept.fill(f32::NAN);
            return;
        }
        match self.form {
            Form::Float => {
                let bytes = &mut self.bytes[..row.len() * self.ty.block_bytes];
                let stored = self.ty.quantize(row, None, bytes);
                stored.and_then(|()| self.ty.dequantize(bytes, kept)).expect("whole, finite rows");
            }
            Form::Blocks(coding) => {
                let heads = row.chunks(self.head_dim).zip(kept.chunks_mut(self.head_dim));
                for (head, kept) in heads {
                    for (block, kept) in head.chunks(BLOCK).zip(kept.chunks_mut(BLOCK)) {
                        coding.decode(&coding.encode(block), kept);
                    }
                }
            }
        }
    }

    /// One head's part `[head_dim]` of the row at `slot`.
    pub fn head(&self, slot: usize, head: usize, head_dim: usize) -> &[f32] {
        &self.rows[slot * self.width + head * head_dim..][..head_dim]
    }
}

/// The slot of a position, given its sequence's page table.
pub(super) fn slot(pages: &[u32], position: u32) -> usize {
    let position = position as usize;
    pages[position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS
}

#[cfg(test)]
mod tests {
    use bilayer_quant::Type;

    use super::{Cache, slot};
    use crate::reference::tests::limits;
    use crate::{CacheInfo, Limits, PageCopy};

    fn cache(ty: Type, head_dim: usize) -> Cache {
        let info =
            CacheInfo { layer: 0, kv_heads: 1, head_dim, values_in_keys: None, window: None };
        Cache::new(&info, &Limits { key_type: ty, pages: 3, ..limits() }).unwrap()
    }

    #[test]
    fn a_position_lies_in_the_page_its_table_names() {
        assert_eq!(slot(&[7, 2], 31), 7 * 32 + 31);
        assert_eq!(slot(&[7, 2], 32), 2 * 32);
    }

    #[test]
    fn rows_round_as_their_type_does() {
        let mut exact = cache(Type::F32, 1);
        exact.keys.store(5, &[0.1]);
        assert_eq!(exact.keys.head(5, 0, 1), [0.1]);
        // The f16 nearest to 0.1 is 0x2E66.
        let mut half = cache(Type::F16, 1);
        half.keys.store(5, &[0.1]);
        assert_eq!(half.keys.head(5, 0, 1), [0.099_975_586]);
        // Scale 127 / 127 = 1: integers stay, halves round away from zero.
        let mut eight = cache(Type::Q8_0, 32);
        let mut row = [0.0; 32];
        (row[0], row[1], row[2]) = (127.0, 3.2, -2.5);
        eight.keys.store(0, &row);
        assert_eq!(eight.keys.head(0, 0, 32)[..4], [127.0, 3.0, -3.0, 0.0]);
    }

    #[test]
    fn a_block_never_spans_heads_and_other_types_are_refused() {
        // Heads of 40: a block of 32 and one of 8 each.
        let info =
            CacheInfo { layer: 0, kv_heads: 2, head_dim: 40, values_in_keys: None, window: None };
        let limits = |ty| Limits { key_type: ty, ..limits() };
        let mut cache = Cache::new(&info, &limits(Type::Q8_0)).unwrap();
        let mut row = [0.0; 80];
        (row[31], row[32], row[40]) = (127.0, 0.25, 1000.0);
        cache.keys.store(0, &row);
        let kept = cache.keys.head(0, 0, 40);
        // 0.25 has the scale 0.25 / 127 as f16, not that of its neighbours.
        assert!(kept[31] == 127.0 && (kept[32] - 0.25).abs() < 1e-4, "{kept:?}");
        for ty in [Type::Q4_K, Type::I8] {
            let error = Cache::new(&info, &limits(ty)).unwrap_err().to_string();
            assert!(error.contains(ty.name) && error.contains("q5_1"), "{error}");
        }
    }

    #[test]
    fn copies_are_made_in_order() {
        let mut cache = cache(Type::F32, 1);
        cache.keys.store(slot(&[0], 31), &[1.0]);
        cache.values.store(slot(&[0], 31), &[2.0]);
        cache.copy(&[PageCopy { from: 0, to: 1 }, PageCopy { from: 1, to: 2 }]);
        assert_eq!(cache.keys.head(slot(&[2], 31), 0, 1), [1.0]);
        assert_eq!(cache.values.head(slot(&[2], 31), 0, 1), [2.0]);
    }
}
