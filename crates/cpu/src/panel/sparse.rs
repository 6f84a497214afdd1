//! Unpacks the balanced sparse types: a dense span whose other quants are the code of zero.

use bilayer_quant::Type;
use bilayer_quant::sparse::{GROUP, Layout};

use super::{Form, Quants, Span, Unpack, f16_values};
use crate::bytes::Bytes;

/// The unpacking of each type.
pub(super) static TABLE: &[(Type, Quants)] = &[
    (Type::S4_4_64, Quants::of::<Sparse<4, 4>>()),
    (Type::S4_8_64, Quants::of::<Sparse<8, 4>>()),
    (Type::S4_12_64, Quants::of::<Sparse<12, 4>>()),
    (Type::S4_16_64, Quants::of::<Sparse<16, 4>>()),
    (Type::S4_24_64, Quants::of::<Sparse<24, 4>>()),
    (Type::S4_32_64, Quants::of::<Sparse<32, 4>>()),
    (Type::S8_4_64, Quants::of::<Sparse<4, 8>>()),
    (Type::S8_8_64, Quants::of::<Sparse<8, 8>>()),
    (Type::S8_12_64, Quants::of::<Sparse<12, 8>>()),
    (Type::S8_16_64, Quants::of::<Sparse<16, 8>>()),
    (Type::S8_24_64, Quants::of::<Sparse<24, 8>>()),
    (Type::S8_32_64, Quants::of::<Sparse<32, 8>>()),
];

struct Sparse<const N: usize, const BITS: usize>;

impl<const N: usize, const BITS: usize> Unpack for Sparse<N, BITS> {
    const FORM: Form = Form::Signed32;
    const BIAS: u8 = Layout::<N, BITS>::BIAS;
    const HIGHEST: u8 = 2 * (Layout::<N, BITS>::BIAS - 1) + 1;

    #[inline(always)]
    fn unpack<V: Bytes>(blocks: &[u8], span: &mut Span) {
        let block = &blocks[..Layout::<N, BITS>::BYTES];
        span.quants.fill(Self::BIAS);
        for (group, quants) in span.quants.as_chunks_mut::<GROUP>().0.iter_mut().enumerate() {
            for slot in N * group..N * (group + 1) {
                quants[Layout::<N, BITS>::place(block, slot)] =
                    Layout::<N, BITS>::code(block, slot);
            }
        }
        let [d] = f16_values([Layout::<N, BITS>::d(block)]);
        span.scales[..8].fill(d);
        span.mins.fill(0.0);
        (span.unit, span.min_unit) = (1.0, 1.0);
    }
}
