//! Reads a SentencePiece model (`tokenizer.model`, `spiece.model`) in Protocol Buffers encoding.
//!
//! Source: `sentencepiece_model.proto`; the wire format is described at
//! protobuf.dev/programming-guides/encoding. Fields that a vocabulary does not need are skipped.

/// The fields that a vocabulary needs.
#[derive(Debug, PartialEq)]
pub(super) struct Model {
    pub pieces: Vec<Piece>,
    /// Model type: 1 unigram, 2 BPE, 3 word, 4 character.
    pub kind: u64,
    /// Ids of the special tokens; -1 if absent.
    pub unk: i32,
    pub bos: i32,
    pub eos: i32,
    pub pad: i32,
    /// Whether words end with their space instead of beginning with it.
    pub space_is_last: bool,
    /// The compiled rules of normalization; empty without rules.
    pub charsmap: Vec<u8>,
    /// Whether a space is added before the text.
    pub adds_space: bool,
    /// Whether runs of spaces are collapsed.
    pub removes_spaces: bool,
}

/// A token.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Piece {
    pub text: String,
    pub score: f32,
    /// 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte: GGUF's numbers.
    pub kind: i32,
}

/// The model type unigram.
pub(super) const UNIGRAM: u64 = 1;

/// The model type BPE.
pub(super) const BYTE_PAIRS: u64 = 2;

/// A field's value.
enum Value<'b> {
    Number(u64),
    Bytes(&'b [u8]),
    Float(f32),
    Other,
}

/// Parses the message; the error describes the problem.
pub(super) fn parse(bytes: &[u8]) -> Result<Model, String> {
    // Defaults of absent fields, from the .proto file.
    let mut model = Model {
        pieces: Vec::new(),
        kind: UNIGRAM,
        unk: 0,
        bos: 1,
        eos: 2,
        pad: -1,
        space_is_last: false,
        charsmap: Vec::new(),
        adds_space: true,
        removes_spaces: true,
    };
    each(bytes, |field, value| {
        match (field, value) {
            (1, Value::Bytes(piece)) => model.pieces.push(self::piece(piece)?),
            (2, Value::Bytes(trainer)) => each(trainer, |field, value| {
                match (field, value) {
                    (3, Value::Number(kind)) => model.kind = kind,
                    (24, Value::Number(flag)) => model.space_is_last = flag != 0,
                    // Negative numbers are encoded as 64 bits; the lower 32 are the value.
                    (40, Value::Number(id)) => model.unk = id as i32,
                    (41, Value::Number(id)) => model.bos = id as i32,
                    (42, Value::Number(id)) => model.eos = id as i32,
                    (43, Value::Number(id)) => model.pad = id as i32,
                    _ => {}
                }
                Ok(())
            })?,
            (3, Value::Bytes(normalizer)) => each(normalizer, |field, value| {
                match (field, value) {
                    (2, Value::Bytes(rules)) => model.charsmap = rules.to_vec(),
                    (3, Value::Number(flag)) => model.adds_space = flag != 0,
                    (4, Value::Number(flag)) => model.removes_spaces = flag != 0,
                    _ => {}
                }
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    match model.pieces.is_empty() {
        true => Err("has no pieces".into()),
        false => Ok(model),
    }
}

fn piece(bytes: &[u8]) -> Result<Piece, String> {
    let mut piece = Piece { kind: 1, ..Piece::default() };
    each(bytes, |field, value| {
        match (field, value) {
            (1, Value::Bytes(text)) => {
                let text = std::str::from_utf8(text).map_err(|_| "has a piece that is no text")?;
                piece.text = text.to_owned();
            }
            (2, Value::Float(score)) => piece.score = score,
            (3, Value::Number(kind)) => {
                let kind = i32::try_from(kind).ok().filter(|kind| (1..=6).contains(kind));
                piece.kind = kind.ok_or("has a piece of an unknown kind")?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(piece)
}

/// Calls `take` with the number and value of each field.
fn each(
    mut bytes: &[u8],
    mut take: impl FnMut(u64, Value<'_>) -> Result<(), String>,
) -> Result<(), String> {
    const CUT: &str = "is no SentencePiece model, or cut off";
    while !bytes.is_empty() {
        let tag = varint(&mut bytes).ok_or(CUT)?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes).ok_or(CUT)?),
            1 => {
                bytes = bytes.get(8..).ok_or(CUT)?;
                Value::Other
            }
            2 => {
                let len =
                    varint(&mut bytes).and_then(|len| usize::try_from(len).ok()).ok_or(CUT)?;
                let (value, rest) = bytes.split_at_checked(len).ok_or(CUT)?;
                bytes = rest;
                Value::Bytes(value)
            }
            5 => {
                let (value, rest) = bytes.split_first_chunk().ok_or(CUT)?;
                bytes = rest;
                Value::Float(f32::from_le_bytes(*value))
            }
            _ => return Err(CUT.into()),
        };
        take(tag >> 3, value)?;
    }
    Ok(())
}

/// A varint: seven bits per byte, lowest first.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{BYTE_PAIRS, Piece, parse};

    /// `<unk>` unknown, `▁a` with score -1; BPE without begin and pad, no space added.
    fn model() -> Vec<u8> {
        let unk = [&[0x0A, 5][..], b"<unk>", &[0x18, 2]].concat();
        let a = [&[0x0A, 4][..], "▁a".as_bytes(), &[0x15], &(-1f32).to_le_bytes()].concat();
        let minus = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x01];
        let trainer = [&[0x18, 2, 0xC8, 2][..], &minus].concat();
        let parts = [(1, unk), (1, a), (2, trainer), (3, vec![0x18, 0])];
        let part = |(field, bytes): (u8, Vec<u8>)| {
            [&[field << 3 | 2, bytes.len() as u8][..], &bytes].concat()
        };
        parts.map(part).concat()
    }

    #[test]
    fn fields_are_read_and_absent_ones_have_defaults() {
        let model = parse(&model()).unwrap();
        let piece = |text: &str, score, kind| Piece { text: text.into(), score, kind };
        assert_eq!(model.pieces, [piece("<unk>", 0.0, 2), piece("▁a", -1.0, 1)]);
        assert_eq!((model.kind, model.unk, model.bos, model.eos), (BYTE_PAIRS, 0, -1, 2));
        assert_eq!((model.adds_space, model.removes_spaces), (false, true));
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_an_error() {
        let whole = model();
        let parses = (1..whole.len()).filter(|&len| parse(&whole[..len]).is_ok()).count();
        // Only at the end of a field.
        assert_eq!(parses, 3);
        assert!(parse(b"").is_err());
        assert!(parse(&[0xFF; 20]).is_err());
        assert!(parse(b"{\"model\": 1}").is_err());
    }
}
