//! Unpacks IQ4_NL: codes become the codebook's values, biased by 128.

use bilayer_quant::iq4_nl::{Block, CODEBOOK};

use super::{Block32, Form, Span, Unpack, blocks_of_32, halves};

pub(crate) struct Iq4Nl;

impl Unpack for Iq4Nl {
    const FORM: Form = Form::Signed32;
    const BIAS: u8 = 128;
    const HIGHEST: u8 = 241;
    const CODEBOOK: Option<[u8; 16]> = Some(VALUES);

    #[inline(always)]
    fn unpack(blocks: &[u8], span: &mut Span) {
        blocks_of_32::<Block>(blocks, span);
    }
}

impl Block32 for Block {
    #[inline(always)]
    fn unpack(&self, quants: &mut [u8; 32]) -> [u16; 2] {
        halves(&self.quants, quants);
        [self.d, 0]
    }
}

/// The codebook, biased by 128.
pub(crate) const VALUES: [u8; 16] = {
    let mut values = [0; 16];
    let mut code = 0;
    while code < 16 {
        values[code] = CODEBOOK[code] as u8 ^ 0x80;
        code += 1;
    }
    values
};
