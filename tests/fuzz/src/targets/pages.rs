//! Operations on the pages of the KV cache, and a plain map of what each sequence should hold.

use std::collections::BTreeSet;

use bilayer_engine::session::{Pages, SequenceId};
use bilayer_graph::PAGE_TOKENS;

/// Pages, sequences, and tokens of a sequence.
const SIZES: (usize, usize, usize) = (12, 4, 200);

/// Pages with their contents, as in a backend's memory.
struct Memory {
    pages: Pages,
    contents: Vec<[u32; PAGE_TOKENS]>,
    /// Each open sequence with the tokens it should hold.
    model: Vec<(SequenceId, Vec<u32>)>,
    stamp: u32,
}

impl Memory {
    /// Applies an operation to the pages and to the map: what to do, and two numbers for it.
    fn apply(&mut self, [operation, s, n]: [u8; 3]) {
        let (count, n) = (self.model.len(), usize::from(n));
        let is_full = count == SIZES.1;
        match (operation % 12, count) {
            (0 | 1, _) => match self.pages.open() {
                Ok(id) => self.model.push((id, Vec::new())),
                Err(error) => assert!(is_full, "{error}"),
            },
            (_, 0) => {}
            (2 | 3, _) => {
                let (from, tokens) = self.model[usize::from(s) % count].clone();
                match self.pages.fork(from) {
                    Ok(id) => self.model.push((id, tokens)),
                    Err(error) => assert!(is_full, "{error}"),
                }
            }
            (4, _) => {
                let (id, _) = self.model.remove(usize::from(s) % count);
                self.pages.close(id);
            }
            (5 | 6, _) => {
                let (id, tokens) = &mut self.model[usize::from(s) % count];
                tokens.truncate(n);
                self.pages.truncate(*id, tokens.len());
            }
            _ => self.append(usize::from(s) % count, n % 80),
        }
    }

    fn append(&mut self, s: usize, n: usize) {
        let id = self.model[s].0;
        let mut copies = Vec::new();
        let tokens: Vec<u32> = (self.stamp + 1..).take(n).collect();
        let state = |pages: &Pages| (pages.len(id), pages.free_pages(), pages.table(id).to_vec());
        let before = state(&self.pages);
        let needed = self.pages.pages_needed(id, n);
        match self.pages.append(id, &tokens, &mut copies) {
            Err(_) => {
                assert_eq!(before, state(&self.pages), "a refused append changes nothing");
                assert!(copies.is_empty());
                let is_long = before.0 + n > SIZES.2;
                assert!(is_long || needed > before.1, "refused with {} of {needed}", before.1);
            }
            Ok(first) => {
                assert!(needed <= before.1, "{needed} needed, {} free", before.1);
                for copy in copies {
                    self.contents[copy.to as usize] = self.contents[copy.from as usize];
                }
                assert_eq!(first, self.model[s].1.len());
                for position in first..first + n {
                    self.stamp += 1;
                    let page = self.pages.table(id)[position / PAGE_TOKENS];
                    self.contents[page as usize][position % PAGE_TOKENS] = self.stamp;
                    self.model[s].1.push(self.stamp);
                }
            }
        }
    }

    fn check(&self) {
        let mut used = BTreeSet::new();
        for (id, tokens) in &self.model {
            let table = self.pages.table(*id);
            assert_eq!(self.pages.tokens(*id), tokens);
            assert_eq!(table.len(), tokens.len().div_ceil(PAGE_TOKENS));
            used.extend(table.iter().copied());
            for (position, expected) in tokens.iter().enumerate() {
                let page = table[position / PAGE_TOKENS] as usize;
                assert_eq!(self.contents[page][position % PAGE_TOKENS], *expected);
            }
        }
        let free = self.pages.free_pages();
        assert_eq!(used.len() + free, self.contents.len(), "pages are conserved");
        assert_eq!(self.pages.pages_in_use(), used.into_iter().collect::<Vec<_>>());
    }
}

/// Operations of three bytes each, at most a hundred.
pub fn pages(data: &[u8]) {
    let (pages, sequences, context) = SIZES;
    let mut memory = Memory {
        pages: Pages::new(pages, sequences, context),
        contents: vec![[0; PAGE_TOKENS]; pages],
        model: Vec::new(),
        stamp: 0,
    };
    for operation in data.as_chunks().0.iter().take(100) {
        memory.apply(*operation);
        memory.check();
    }
}
