//! What scores gain by the distance of query and key: slopes of ALiBi, or a table of buckets that layers share.

use bilayer_graph::{Buckets, DistanceBias, Error, Recorder};

use super::Block;
use crate::alibi;

impl Block<'_> {
    /// The bias on scores, if the model has one. A layer without a table of its own reads that of the first.
    pub(super) fn distance_bias(
        &self,
        r: &mut Recorder<'_>,
    ) -> Result<Option<DistanceBias>, Error> {
        let heads = self.layer.heads;
        if let Some((count, distance_max)) = self.config.distance_buckets {
            let [own, first] =
                [self.index, 0].map(|index| self.tensor_of(index, "attn_rel_b.weight"));
            let name = if r.has(&own) { own } else { first };
            let table = r.stack_vector(&name, [count, heads])?; // [count, heads]
            return Ok(Some(DistanceBias::Buckets(Buckets { table, count, distance_max })));
        }
        let slopes = self.config.alibi_bias_max.map(|bias_max| alibi::slopes(heads, bias_max));
        Ok(slopes.map(DistanceBias::Slopes))
    }
}
