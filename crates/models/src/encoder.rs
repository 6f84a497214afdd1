//! The encoder: attention over texts, to both sides unless it is made of a decoder; the output is one row per text, all rows,
//! or scores.
//!
//! Its layers are the decoder's ([`Block`]); differences are fields of [`Config`]. A decoder whose file says how rows are
//! pooled ends as an encoder, too ([`Encoder::of_decoder`]). Each line notes its output shape; `T` is the number of tokens in
//! the step, `R` the number of requested rows.

use bilayer_gguf::{MetadataOverride, Strings};
use bilayer_graph::{Activation, Catalog, Error, Recorder, Value};

use crate::decoder::{Block, Carried, norm};
use crate::keys::Keys;
use crate::{Config, Draft, Layer, Mixer, NormAt, Settings, limits};

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
    pub(crate) fn read(keys: &Keys<'_>, head: Head) -> Result<Self, crate::Error> {
        keys.refuse("attention.causal", "an encoder that sees what is before alone")?;
        Encoder::pooled(keys, head)
    }

    /// Reads the keys of a decoder whose rows are embeddings or scores: one whose file says how they are pooled, as the
    /// converters write it for models of Sentence Transformers. `None` if it generates text.
    ///
    /// # Errors
    /// A key is of another kind, or out of bounds; the decoder's tokens see later ones, and it has layers that cannot.
    pub(crate) fn of_decoder(
        keys: &Keys<'_>,
        layers: &[Layer],
    ) -> Result<Option<Self>, crate::Error> {
        let is_causal = keys.opt_flag("attention.causal")?.unwrap_or(true);
        let embeds = keys.opt_size(POOLING, 0..=RANK)?.is_some_and(|pooling| pooling > 0);
        let attends = |layer: &Layer| layer.mixer == Mixer::Attention;
        let is_supported = is_causal || embeds && layers.iter().all(attends);
        if !is_supported {
            return Err(crate::Error::Unsupported {
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
    fn pooled(keys: &Keys<'_>, head: Head) -> Result<Self, crate::Error> {
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
    pub(crate) fn with_types(self, keys: &Keys<'_>) -> Result<Self, crate::Error> {
        let key = "tokenizer.ggml.token_type_count";
        let types = keys.metadata.opt_usize(key)?.unwrap_or(2);
        if !(1..=limits::VOCAB).contains(&types) {
            let (expected, found) = ("at least 1".to_owned(), types.to_string());
            return Err(crate::Error::Value { key: key.to_owned(), expected, found });
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

/// Reads the encoder fields of a checkpoint besides sizes: token types, separator token, labels.
pub(crate) fn draft(draft: &mut Draft<'_>) -> Result<(), crate::Error> {
    draft_of(draft, "absolute")
}

/// [`draft`] of a checkpoint whose positions are of that type.
pub(crate) fn draft_of(draft: &mut Draft<'_>, positions: &str) -> Result<(), crate::Error> {
    let feature = "positions of another type";
    draft.refuse("position_embedding_type", &[positions.into()], feature)?;
    draft.set("attention.causal", false);
    if let Some(types) = draft.settings.size(&["type_vocab_size"])? {
        draft.metadata.set("tokenizer.ggml.token_type_count", types);
    }
    if let Some(id) = draft.settings.size(&["sep_token_id"])? {
        draft.metadata.set("tokenizer.ggml.seperator_token_id", id);
    }
    if classifies(draft.settings) {
        let labels: Strings = labels(draft.settings).iter().map(String::as_str).collect();
        draft.set("classifier.output_labels", labels);
    }
    if classifies_tokens(draft.settings) {
        draft.set(PER_TOKEN, true);
    }
    if draft.settings.0["problem_type"] == "multi_label_classification" {
        draft.set(MULTI_LABEL, true);
    }
    Ok(())
}

/// Whether the checkpoint's class has a classification head for texts or tokens.
fn classifies(settings: Settings<'_>) -> bool {
    classifies_texts(settings) || classifies_tokens(settings)
}

/// Whether the checkpoint's class has a head that scores texts.
pub(crate) fn classifies_texts(settings: Settings<'_>) -> bool {
    is_for(settings, "ForSequenceClassification")
}

/// Whether the checkpoint's class has a head that scores each token.
pub(crate) fn classifies_tokens(settings: Settings<'_>) -> bool {
    is_for(settings, "ForTokenClassification")
}

fn is_for(settings: Settings<'_>, task: &str) -> bool {
    settings.0["architectures"][0].as_str().is_some_and(|class| class.ends_with(task))
}

/// The labels ordered by their numbers; two generic ones if the checkpoint names none.
fn labels(settings: Settings<'_>) -> Vec<String> {
    let Some(given) = settings.0["id2label"].as_object() else {
        return ["LABEL_0", "LABEL_1"].map(str::to_owned).to_vec();
    };
    let number = |key: &str| key.parse::<usize>().unwrap_or(usize::MAX);
    let mut labels: Vec<_> = given.iter().map(|(key, label)| (number(key), label)).collect();
    labels.sort_by_key(|(number, _)| *number);
    labels.into_iter().map(|(_, label)| label.as_str().unwrap_or_default().to_owned()).collect()
}

/// The separator token: from its key, otherwise the token spelled as in BERT.
fn separator(keys: &Keys<'_>) -> Result<u32, crate::Error> {
    if let Some(id) = keys.metadata.opt_u32("tokenizer.ggml.seperator_token_id")? {
        return Ok(id);
    }
    let tokens = keys.metadata.opt_strings("tokenizer.ggml.tokens")?;
    let named = tokens.and_then(|tokens| tokens.iter().position(|token| token == "[SEP]"));
    Ok(named.map_or(u32::MAX, |id| id as u32))
}

/// Records embedding, layers and output: hidden states `[R, width]` (all rows or one per text), projected `[R, dense]` if
/// the model does so, or scores `[R, labels]`.
pub(crate) fn record(config: &Config, r: &mut Recorder<'_>) -> Result<Value, Error> {
    let encoder = config.encoder.as_ref().expect("an encoder's configuration");
    let mut hidden = embedding(config, encoder, r)?; // [T, width]
    let mut carried = Carried::default();
    for (index, layer) in config.layers.iter().enumerate() {
        r.layer(Some(index as u32));
        let narrows = config.narrows(index);
        hidden = Block { config, layer, index, narrows }.record(hidden, &mut carried, r)?;
    }
    r.layer(None);
    if config.norm_at == NormAt::Before {
        hidden = norm(config, r, "result_norm", config.output_norm, hidden)?; // [.., width]
    }
    output(config, encoder, r, hidden)
}

/// What comes of the last layer's rows, `[R, width]`, or `[T, width]` if they are pooled.
pub(crate) fn output(
    config: &Config,
    encoder: &Encoder,
    r: &mut Recorder<'_>,
    mut hidden: Value,
) -> Result<Value, Error> {
    if encoder.pools() {
        hidden = r.pool("result_pooled", hidden); // [R, width]
    }
    if encoder.scores {
        return scores(config, &encoder.head, r, hidden);
    }
    if encoder.pooling_recorded() == Pooling::None {
        return Ok(hidden);
    }
    let mut width = config.width;
    for (number, &dense) in (2..).zip(&encoder.dense) {
        let matrix = r.matrix(&format!("dense_{number}.weight"), dense, width)?;
        let bias = r.optional_vector(&format!("dense_{number}.bias"), dense)?;
        hidden = r.matmul("result_dense", hidden, matrix, bias); // [R, dense]
        width = dense;
    }
    Ok(hidden)
}

/// The sum of token, token type and position embedding, normalized unless the first layer does so: `[T, width]`.
fn embedding(config: &Config, encoder: &Encoder, r: &mut Recorder<'_>) -> Result<Value, Error> {
    let table = r.matrix("token_embd.weight", config.vocab, config.width)?;
    let mut hidden = r.embed("token_embd", table);
    if let Some(types) = encoder.token_types {
        let table = r.matrix(TYPES, types, config.width)?;
        let ty = r.embed_segments("token_types", table, encoder.separator);
        hidden = r.add("embd_typed", hidden, ty);
    }
    if let Some(positions) = config.positions {
        let table = r.matrix("position_embd.weight", positions, config.width)?;
        let place = r.embed_positions("position_embd", table);
        hidden = r.add("embd_placed", hidden, place);
    }
    match encoder.norms_embedding {
        true => norm(config, r, "embd_norm", "token_embd_norm", hidden),
        false => Ok(hidden),
    }
}

/// The optional dense layer and norm, then the scores: `[R, width]` to `[R, labels]`, with `R` all tokens if each is scored.
fn scores(
    config: &Config,
    head: &Head,
    r: &mut Recorder<'_>,
    mut hidden: Value,
) -> Result<Value, Error> {
    let width = config.width;
    if head.has_layers() && r.has("cls.weight") {
        let dense = r.matrix("cls.weight", width, width)?;
        let bias = r.optional_vector("cls.bias", width)?;
        hidden = r.matmul("cls", hidden, dense, bias);
        hidden = match head.activation {
            Some(activation) => r.gate("cls_act", hidden, None, activation),
            None => r.soft_cap("cls_act", hidden, 1.0), // tanh
        };
    }
    if head.has_layers() && r.has("cls.norm.weight") {
        let gain = r.vector("cls.norm.weight", width)?;
        hidden = r.layer_norm("cls_norm", hidden, gain, None, config.norm_eps);
    }
    let labels = head.labels.len();
    let output = r.matrix(HEAD, labels, width)?;
    let bias = r.optional_vector("cls.output.bias", labels)?;
    Ok(r.matmul("result_scores", hidden, output, bias)) // [R, labels]
}
