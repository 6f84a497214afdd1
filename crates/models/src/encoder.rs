//! What encoders have beside the settings of decoders: how rows become embeddings or scores, and what the file says of it.
//!
//! A decoder whose file says how rows are pooled ends as an encoder, too ([`Encoder::of_decoder`]).

use bilayer_gguf::MetadataOverride;
use bilayer_graph::{Activation, Catalog};

use crate::keys::Keys;
use crate::{Error, Layer, Mixer, limits};

mod draft;
mod output;
mod record;

pub(crate) use draft::{classifies_texts, classifies_tokens, draft, draft_of};
pub(crate) use output::output;
pub(crate) use record::record;

/// The matrix that maps a text's row to scores; a file without it has no classification head.
pub const HEAD: &str = "cls.output.weight";

/// The key for how the rows of a text are pooled, as a number of llama.cpp.
const POOLING: &str = "pooling_type";

/// llama.cpp's number of a pooling whose rows become scores.
pub const RANK: usize = 4;

/// The embedding of token types.
const TYPES: &str = "token_types.weight";

/// Whether each token has scores of its own: our key, since llama.cpp has no such head. It reads such a file as one of
/// embeddings.
const PER_TOKEN: &str = "classifier.per_token";

/// The key for labels of which several may hold.
const MULTI_LABEL: &str = "classifier.multi_label";

/// The keys for the elements that the matrices after pooling make, as llama.cpp names them and their tensors: by the number of
/// the Sentence Transformers module, of which the first two are the model and its pooling.
const DENSE_WIDTHS: [&str; 2] = ["dense_2_feat_out", "dense_3_feat_out"];

/// Suffixes of tensor names that a file may contain and the recorded model does not read: layers below an
/// absent head, and the heads used only in pretraining.
pub(crate) const IGNORED: &[&str] = &[
    "cls.weight",
    "cls.bias",
    "cls.norm.weight",
    "embeddings.position_ids",
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
    "cls.predictions.bias",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.dense.bias",
    "cls.predictions.transform.LayerNorm.weight",
    "cls.predictions.transform.layer_norm.weight",
    "cls.predictions.transform.layer_norm.bias",
    "cls.predictions.transform.LayerNorm.bias",
    "decoder.weight",
    "decoder.bias",
    "lm_head.bias",
    "lm_head.dense.weight",
    "lm_head.dense.bias",
    "lm_head.layer_norm.weight",
    "lm_head.layer_norm.bias",
];

/// Settings that only encoders have.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoder {
    /// Rows of the token type (segment) embedding, if there is one.
    pub token_types: Option<usize>,
    /// The token that ends a text; `u32::MAX` if unknown, then the texts of a pair are not distinguished.
    pub separator: u32,
    /// Whether the embedding is normalized, in place of the first layer's norm before attention.
    pub norms_embedding: bool,
    /// Whether a token sees only those before it, as in the decoder that the model is otherwise.
    pub is_causal: bool,
    /// How the rows of a text are pooled.
    pub pooling: Pooling,
    /// Elements that each matrix after pooling makes (`Dense` of Sentence Transformers); the last ones are the embedding.
    pub dense: Vec<usize>,
    /// Whether the recording ends in scores. Initially what the metadata implies; corrected once the tensors
    /// are known or when a session requests the embedding below the head.
    pub scores: bool,
    /// The classification head.
    pub head: Head,
}

/// A classification head: from a text's rows to scores.
#[derive(Clone, Debug, PartialEq)]
pub struct Head {
    /// Names of the scores.
    pub labels: Vec<String>,
    /// How the rows of a text are pooled; [`Pooling::None`] where each token has scores.
    pub pooling: Pooling,
    /// Whether each label holds or not, whatever the others; else one of them does.
    pub multi_label: bool,
    /// Whether the layers before the scores belong to a head that scores tokens, too.
    pub layers_for_tokens: bool,
    /// Activation after the first matrix; `None` means tanh.
    pub activation: Option<Activation>,
}

/// How the rows of a text are pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// No pooling: all rows are returned.
    None,
    /// The mean of all rows.
    Mean,
    /// The first row, which belongs to the token `[CLS]`.
    Cls,
    /// The last row.
    Last,
}

impl Pooling {
    /// The value of a file's metadata by which a decoder ends as an encoder that pools so. Rows that are not pooled have no
    /// number of their own: the session says that none are.
    pub fn of_decoder(self) -> MetadataOverride {
        let number = match self {
            Pooling::None | Pooling::Mean => 1i64,
            Pooling::Cls => 2,
            Pooling::Last => 3,
        };
        MetadataOverride::new(format!("{{arch}}.{POOLING}"), number)
    }
}

impl Encoder {
    /// Reads the keys that all encoders of both sides share; `head` is the classification head.
    ///
    /// # Errors
    /// A key is of another kind, or out of bounds.
    pub(crate) fn read(keys: &Keys<'_>, head: Head) -> Result<Self, Error> {
        keys.refuse("attention.causal", "an encoder that sees what is before alone")?;
        Encoder::pooled(keys, head)
    }

    /// Reads the keys of a decoder whose rows are embeddings or scores: one whose file says how they are pooled, as the
    /// converters write it for models of Sentence Transformers. `None` if it generates text.
    ///
    /// # Errors
    /// A key is of another kind, or out of bounds; the decoder's tokens see later ones, and it has layers that cannot.
    pub(crate) fn of_decoder(keys: &Keys<'_>, layers: &[Layer]) -> Result<Option<Self>, Error> {
        let is_causal = keys.opt_flag("attention.causal")?.unwrap_or(true);
        let embeds = keys.opt_size(POOLING, 0..=RANK)?.is_some_and(|pooling| pooling > 0);
        let attends = |layer: &Layer| layer.mixer == Mixer::Attention;
        let is_supported = is_causal || embeds && layers.iter().all(attends);
        if !is_supported {
            return Err(Error::Unsupported {
                key: keys.key("attention.causal"),
                found: false.to_string(),
                feature: "a decoder whose tokens see later ones",
            });
        }
        if !embeds {
            return Ok(None);
        }
        let head = Head { pooling: Pooling::Last, ..Head::of_cls() };
        Ok(Some(Encoder { is_causal, norms_embedding: false, ..Encoder::pooled(keys, head)? }))
    }

    /// Reads pooling and head.
    fn pooled(keys: &Keys<'_>, head: Head) -> Result<Self, Error> {
        let labels = "classifier.output_labels";
        let given = keys.metadata.opt_strings(&keys.key(labels))?;
        let given: Vec<String> =
            given.into_iter().flat_map(|labels| labels.iter()).map(str::to_owned).collect();
        let head = match keys.metadata.opt_bool(&keys.key(PER_TOKEN))?.unwrap_or(false) {
            true => Head { pooling: Pooling::None, ..head },
            false => head,
        };
        let multi_label = keys.metadata.opt_bool(&keys.key(MULTI_LABEL))?.unwrap_or(false);
        let head = Head { multi_label, ..head };
        let pooling = keys.opt_size(POOLING, 0..=RANK)?;
        Ok(Encoder {
            token_types: None,
            separator: separator(keys)?,
            norms_embedding: true,
            is_causal: false,
            pooling: match pooling {
                None | Some(1) => Pooling::Mean,
                Some(0) => Pooling::None,
                Some(2) => Pooling::Cls,
                Some(3) => Pooling::Last,
                Some(_) => head.pooling,
            },
            dense: {
                let widths = DENSE_WIDTHS.map(|key| keys.opt_size(key, 1..=limits::WIDTH));
                widths.into_iter().map_while(Result::transpose).collect::<Result<_, _>>()?
            },
            scores: !given.is_empty() || pooling == Some(RANK),
            head: match given.is_empty() {
                true => head,
                false => Head { labels: given, ..head },
            },
        })
    }

    /// Adds the token type embedding, which has two rows unless the file says otherwise.
    ///
    /// # Errors
    /// The key is of another kind, or out of bounds.
    pub(crate) fn with_types(self, keys: &Keys<'_>) -> Result<Self, Error> {
        let key = "tokenizer.ggml.token_type_count";
        let types = keys.metadata.opt_usize(key)?.unwrap_or(2);
        if !(1..=limits::VOCAB).contains(&types) {
            let (expected, found) = ("at least 1".to_owned(), types.to_string());
            return Err(Error::Value { key: key.to_owned(), expected, found });
        }
        Ok(Encoder { token_types: Some(types), ..self })
    }

    /// Adapts what the metadata imply to the tensors of a file: the classification head, and whether there are types of tokens.
    pub(crate) fn adapt(&mut self, catalog: &dyn Catalog) {
        self.scores = catalog.find(HEAD).is_some();
        // DistilBERT has one type and no row for it.
        if self.token_types == Some(1) && catalog.find(TYPES).is_none() {
            self.token_types = None;
        }
    }

    /// The pooling that is recorded: the head's if scores are requested.
    pub fn pooling_recorded(&self) -> Pooling {
        if self.scores { self.head.pooling } else { self.pooling }
    }

    /// Whether all tokens of a text must be in one step: they see later ones, or their rows come out together.
    pub fn takes_whole_texts(&self) -> bool {
        !self.is_causal || self.pooling_recorded() != Pooling::Last
    }

    /// Whether pooling needs all rows of a text up to the last layer.
    pub(crate) fn pools(&self) -> bool {
        self.pooling_recorded() == Pooling::Mean
    }
}

impl Head {
    /// BERT's head: one score from the first row, with tanh.
    pub(crate) fn of_cls() -> Self {
        let labels = vec!["LABEL_0".to_owned()];
        Head {
            labels,
            pooling: Pooling::Cls,
            multi_label: false,
            layers_for_tokens: false,
            activation: None,
        }
    }

    /// Whether layers come before the scores, if the file has them. A BERT that scores tokens may have a pooler, which is not
    /// read.
    fn has_layers(&self) -> bool {
        self.pooling != Pooling::None || self.layers_for_tokens
    }
}

/// The separator token: from its key, otherwise the token spelled as in BERT.
fn separator(keys: &Keys<'_>) -> Result<u32, Error> {
    if let Some(id) = keys.metadata.opt_u32("tokenizer.ggml.seperator_token_id")? {
        return Ok(id);
    }
    let tokens = keys.metadata.opt_strings("tokenizer.ggml.tokens")?;
    let named = tokens.and_then(|tokens| tokens.iter().position(|token| token == "[SEP]"));
    Ok(named.map_or(u32::MAX, |id| id as u32))
}
