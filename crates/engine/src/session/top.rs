//! The best tokens of requested rows, as found by a device.

use super::Reading;

/// The best tokens of each requested row.
#[derive(Clone, Copy, Debug)]
pub struct Top<'a> {
    /// Places for logits in a row, and for ids.
    k: usize,
    /// Number of tokens of a row.
    count: usize,
    /// `[rows, 2k]`: `k` places for logits, then `k` for ids; the first `count` of each are filled.
    data: &'a [f32],
}

impl<'a> Top<'a> {
    /// The rows `[rows, width]` of a step that reads best tokens.
    pub(crate) fn new(reading: Reading, data: &'a [f32]) -> Top<'a> {
        Top { k: reading.width / 2, count: reading.top_k.unwrap_or(0), data }
    }

    /// The tokens of a row with their logits, largest first, lower id first on ties.
    pub fn row(&self, row: usize) -> impl Iterator<Item = (u32, f32)> + use<'a> {
        let (logits, ids) = self.data[2 * self.k * row..][..2 * self.k].split_at(self.k);
        ids.iter().zip(logits).take(self.count).map(|(&id, &logit)| (id as u32, logit))
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / (2 * self.k)
    }
}

#[cfg(test)]
mod tests {
    use bilayer_scheduler::Offload;

    use super::Top;
    use crate::placement::Placing;
    use crate::session::{Run, Session, Settings, Wanted};
    use crate::{Model, OpenOptions};

    #[test]
    fn best_tokens_of_the_device_match_the_logits() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/assets/demo.gguf");
        let model = Model::open(path.as_ref(), OpenOptions::default()).unwrap();
        let placing = Placing { gpu_layers: Offload::Count(0), ..Placing::default() };
        let (outputs, top_k, ctx_size) = (Some(8), Some(5), Some(64));
        let settings = Settings { outputs, top_k, ctx_size, placing, ..Settings::default() };
        let mut session = Session::new(&model, settings).unwrap();
        let (sequence, tokens) = (session.open().unwrap(), [3, 14, 15, 92, 65, 35, 89, 79]);
        let runs = [Run { sequence, tokens: &tokens, wanted: Wanted::All }];
        let all = session.step(&runs).unwrap().to_vec();
        for needs in [5, 2] {
            session.truncate(sequence, 0);
            let reading = session.reading(Some(needs));
            let top = Top::new(reading, session.step_reading(&runs, reading).unwrap());
            assert_eq!(top.rows(), tokens.len());
            for (row, logits) in all.chunks_exact(model.config().vocab).enumerate() {
                let mut order: Vec<u32> = (0..logits.len() as u32).collect();
                order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
                let logit = |&id: &u32| (id, logits[id as usize]);
                let expected: Vec<(u32, f32)> = order[..needs].iter().map(logit).collect();
                assert_eq!(top.row(row).collect::<Vec<_>>(), expected);
            }
        }
    }
}
