//! `bilayer extract`: entities in texts.

use bilayer_engine::encode::extract::{Document, Entity, Options};
use bilayer_engine::session::Purpose;
use serde::Serialize;
use serde_json::Value;

use super::encode;
use crate::args::Extract;
use crate::failure::Failure;
use crate::{output, progress};

#[derive(Serialize)]
struct Extracted<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: &'a Option<Value>,
    entities: Vec<Shown<'a>>,
}

/// An entity; `start` and `end` count code points, as Python does.
#[derive(Serialize)]
struct Shown<'a> {
    label: &'a str,
    score: f32,
    text: &'a str,
    start: usize,
    end: usize,
    start_byte: usize,
    end_byte: usize,
}

/// Prints the entities of each text.
pub fn execute(args: &Extract) -> Result<u8, Failure> {
    let options = Options {
        aggregation: args.aggregation.parse()?,
        stride: args.stride,
        ignored: args.ignore_labels.clone(),
    };
    let texts = encode::texts(&args.texts)?;
    if let Some(given) = texts.iter().find(|given| given.pair.is_some()) {
        return Err(Failure::usage("`text_pair` has no meaning for `extract`").at(&given.place));
    }
    let mut encoder = encode::encoder(&args.model, Purpose::Score)?;
    let extractor = encoder.extractor(options)?;
    let excess = args.texts.excess();
    let documents = texts.iter().map(|given| {
        let document = extractor.document(&given.text, excess);
        document.map_err(|error| Failure::from(error).at(&given.place))
    });
    let documents: Vec<Document<'_>> = documents.collect::<Result<_, _>>()?;
    let windows = documents.iter().flat_map(Document::windows);
    let count = windows.map(|window| window.ids.len()).sum();
    let bar = progress::steps("texts");
    bar.set_length(texts.len() as u64);
    let began = encoder.session().clock().now();
    encoder.extract(&extractor, &documents, &mut |index, entities| {
        bar.inc(1);
        let entities = entities.iter().map(shown).collect();
        output::json(&Extracted { index, id: &texts[index].id, entities })
    })?;
    bar.finish_and_clear();
    encode::close(&mut encoder, texts.len(), count, began);
    Ok(0)
}

fn shown(entity: &Entity) -> Shown<'_> {
    Shown {
        label: &entity.label,
        score: entity.score,
        text: &entity.text,
        start: entity.chars.start,
        end: entity.chars.end,
        start_byte: entity.bytes.start,
        end_byte: entity.bytes.end,
    }
}
