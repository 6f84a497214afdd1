//! What encoders compute: embeddings, relevance scores and labels of texts.

use std::borrow::Cow;

use bilayer_engine::Error as Engine;
use bilayer_engine::encode::extract::{Entity, Options};
use bilayer_engine::encode::pair::Relevance;
use bilayer_engine::encode::route::{Route, Router};
use bilayer_engine::encode::{Encoder, Excess, Input, Norm};
use bilayer_settings::Phrase;

use crate::model::Running;
use crate::{Error, Model};

/// A text to be classified, or a pair of texts that a classifier evaluates together, such as a premise and a hypothesis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text<'t> {
    /// A text.
    One(&'t str),
    /// Two texts.
    Pair(&'t str, &'t str),
}

/// Types that are one text. Not all of `AsRef<str>`, which tuples, the pairs, could come to be.
macro_rules! one {
    ($($text:ty),+) => {
        $(impl<'t> From<&'t $text> for Text<'t> {
            fn from(text: &'t $text) -> Text<'t> {
                Text::One(text)
            }
        })+
    };
}

one!(str, &str, String, &String, Cow<'_, str>, Box<str>);

impl<'t> From<&Text<'t>> for Text<'t> {
    fn from(text: &Text<'t>) -> Text<'t> {
        *text
    }
}

impl<'t, A: AsRef<str>, B: AsRef<str>> From<&'t (A, B)> for Text<'t> {
    fn from((first, second): &'t (A, B)) -> Text<'t> {
        Text::Pair(first.as_ref(), second.as_ref())
    }
}

impl<'t> Text<'t> {
    fn input(self) -> Input<'t> {
        match self {
            Text::One(text) => Input { text, pair: None },
            Text::Pair(text, pair) => Input { text, pair: Some(pair) },
        }
    }
}

/// A label with its probability.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Its name in the model file.
    pub name: String,
    /// Its probability; those of a text's labels sum to 1, unless the model says that several labels may hold.
    pub probability: f32,
}

impl Model {
    /// What [`Model::embed`], [`Model::rerank`] and [`Model::classify`] do with a text longer than the context: refuse it,
    /// as by default, or truncate it. [`Model::extract`] reads the first window of a long text then, instead of all.
    pub fn set_excess(&mut self, excess: Excess) {
        self.excess = excess;
    }

    /// How [`Model::embed`] scales vectors, in place of [`Builder::norm`](crate::Builder::norm) or what the checkpoint says.
    pub fn set_norm(&mut self, norm: Norm) {
        self.norm = norm;
    }

    /// The norm by which [`Model::embed`] scales vectors.
    pub fn norm(&self) -> Norm {
        self.norm
    }

    /// Sets the text that [`Model::embed`] and [`Model::route`] put before each of theirs: the model's prompt of that name, such as
    /// `query`, or its default, which most models do not have.
    ///
    /// # Errors
    /// The model is a decoder or has no such prompt.
    pub fn set_prompt(&mut self, name: Option<&str>) -> Result<(), Error> {
        Ok(self.encoder()?.0.set_prompt(name)?)
    }

    /// A vector for each text, `[width]` f32: of length 1 unless the checkpoint has no `Normalize` module or
    /// [another norm](Model::set_norm) is set.
    ///
    /// # Errors
    /// [`Cancel`](crate::Cancel) ended it.
    /// The model is a decoder, was opened for scores ([`Builder::embeddings`](crate::Builder::embeddings)) or gives one vector
    /// per token; a text is longer than the context.
    pub fn embed(&mut self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>, Error> {
        let norm = self.norm;
        let (encoder, excess) = self.encoder()?;
        encoder.check_embeds()?;
        let inputs = texts.iter().map(|text| Input { text: text.as_ref(), pair: None });
        rows(encoder, excess, inputs, |row| {
            let mut vector = row.to_vec();
            norm.apply(&mut vector);
            vector
        })
    }

    /// The relevance of each document to a query, `[documents]`: the higher, the more relevant. It is the output of the
    /// cross-encoder's head, a logit of any size; of a reranker with the labels `yes` and `no` the probability of `yes`, 0 to 1.
    ///
    /// # Errors
    /// The model is not an encoder with a single score; a query and its document are longer than the context;
    /// [`Cancel`](crate::Cancel) ended it.
    ///
    /// ```no_run
    /// let mut model = bilayer::Model::open("bge-reranker-base.gguf")?;
    /// let documents = ["Paris is the capital of France.", "Bread is made of flour."];
    /// let scores = model.rerank("What is the capital of France?", &documents)?;
    /// assert!(scores[0] > scores[1]);
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn rerank(
        &mut self,
        query: &str,
        documents: &[impl AsRef<str>],
    ) -> Result<Vec<f32>, Error> {
        let (encoder, excess) = self.encoder()?;
        let labels = encoder.text_labels()?;
        if labels.is_empty() {
            return Err(purpose("embeddings", "relevance scores; open a reranker"));
        }
        let several = || {
            let pairs = Phrase::from("one score; ").either("`Model::classify`", "`classify`");
            purpose("several scores", pairs.text(" takes pairs"))
        };
        let relevance = Relevance::of(labels).ok_or_else(several)?;
        let pair = |document| Input { text: query, pair: Some(document) };
        let inputs = documents.iter().map(|document| pair(document.as_ref()));
        rows(encoder, excess, inputs, |row| relevance.score(row))
    }

    /// The labels of each text or pair of texts, in the model's order, with their probabilities.
    ///
    /// # Errors
    /// The model is not an encoder with a classification head; a text is longer than the context;
    /// [`Cancel`](crate::Cancel) ended it.
    ///
    /// ```no_run
    /// let mut model = bilayer::Model::open("distilbert-sst2.gguf")?;
    /// for labels in model.classify(&["What a beautiful day!", "I want my money back."])? {
    ///     let best = labels.iter().max_by(|a, b| a.probability.total_cmp(&b.probability));
    ///     println!("{best:?}");
    /// }
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    ///
    /// A model for natural language inference takes pairs:
    ///
    /// ```no_run
    /// let mut model = bilayer::Model::open("modernbert-mnli.gguf")?;
    /// let labels = &model.classify(&[("A cat sits on a mat.", "An animal rests.")])?[0];
    /// # let _ = labels;
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn classify<'t, T>(&mut self, texts: &'t [T]) -> Result<Vec<Vec<Label>>, Error>
    where
        &'t T: Into<Text<'t>>,
    {
        let (encoder, excess) = self.encoder()?;
        let names = encoder.text_labels()?.to_vec();
        if names.is_empty() {
            return Err(purpose("embeddings", "scores; open a classifier"));
        }
        let labelling = encoder.labelling();
        let inputs = texts.iter().map(|text| text.into().input());
        rows(encoder, excess, inputs, |row| {
            let label =
                |(name, probability): (&String, f32)| Label { name: name.clone(), probability };
            names.iter().zip(labelling.probabilities(row)).map(label).collect()
        })
    }

    /// How similar each text is to each label, `[texts, routes]`, -1 to 1: the cosine of its vector and the label's, which is
    /// the mean of those of the label's examples. It takes no classification head.
    ///
    /// # Errors
    /// Those of [`Model::embed`]; no route, or one without examples.
    ///
    /// ```no_run
    /// use bilayer::route::Route;
    ///
    /// let mut model = bilayer::Model::open("all-minilm-l6-v2.gguf")?;
    /// let route = |label: &str, example: &str| Route { label: label.into(), examples: vec![example.into()] };
    /// let routes = [route("billing", "I was charged twice."), route("technical", "It crashes.")];
    /// let cosines = &model.route(&["My invoice is wrong."], &routes)?[0];
    /// assert!(cosines[0] > cosines[1]);
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn route(
        &mut self,
        texts: &[impl AsRef<str>],
        routes: &[Route],
    ) -> Result<Vec<Vec<f32>>, Error> {
        let (encoder, excess) = self.encoder()?;
        let router = Router::new(encoder, routes)?;
        let inputs = texts.iter().map(|text| Input { text: text.as_ref(), pair: None });
        rows(encoder, excess, inputs, |row| router.cosines(row))
    }

    /// The entities of each text, in their order: parts of the text that the labels of its tokens mark. A text longer than
    /// the context is run in windows.
    ///
    /// # Errors
    /// The model is not an encoder with a head that labels tokens; [`Options::stride`] is not less than a window;
    /// [`Cancel`](crate::Cancel) ended it.
    ///
    /// ```no_run
    /// use bilayer::extract::Options;
    ///
    /// let mut model = bilayer::Model::open("bert-base-ner.gguf")?;
    /// for entities in model.extract(&["Ada Lovelace was born in London."], &Options::default())? {
    ///     for entity in entities {
    ///         println!("{} {:?} at {:?}", entity.label, entity.text, entity.chars);
    ///     }
    /// }
    /// # Ok::<(), bilayer::Error>(())
    /// ```
    pub fn extract(
        &mut self,
        texts: &[impl AsRef<str>],
        options: &Options,
    ) -> Result<Vec<Vec<Entity>>, Error> {
        let (encoder, excess) = self.encoder()?;
        let extractor = encoder.extractor(options.clone())?;
        let documents = texts.iter().map(|text| {
            encoder.check_cancel()?;
            extractor.document(text.as_ref(), excess)
        });
        let documents: Vec<_> = documents.collect::<Result<_, _>>()?;
        let mut found = Vec::with_capacity(texts.len());
        encoder.extract(&extractor, &documents, &mut |_, entities| {
            found.push(entities);
            Ok::<_, Engine>(())
        })?;
        Ok(found)
    }

    fn encoder(&mut self) -> Result<(&mut Encoder, Excess), Error> {
        match &mut self.running {
            Running::Encoder(encoder) => Ok((encoder, self.excess)),
            Running::Decoder(..) => Err(Engine::NoEncoder { name: self.model.name() }.into()),
        }
    }
}

/// The error for a model that gives something else.
fn purpose(found: &str, expected: impl Into<Phrase>) -> Error {
    Engine::setting("output of the model", found, expected).into()
}

/// Runs inputs and converts the row of each.
fn rows<'t, T>(
    encoder: &mut Encoder,
    excess: Excess,
    inputs: impl Iterator<Item = Input<'t>>,
    convert: impl Fn(&[f32]) -> T,
) -> Result<Vec<T>, Error> {
    // All inputs are tokenized first, so that one that is too long is reported before any work.
    let tokens = inputs.map(|input| {
        encoder.check_cancel()?;
        encoder.tokens(input, excess)
    });
    let inputs: Vec<Vec<u32>> = tokens.collect::<Result<_, _>>()?;
    let mut converted = Vec::with_capacity(inputs.len());
    encoder.run(inputs.into_iter().map(Ok::<_, Engine>), &mut |_, _, row| {
        converted.push(convert(row));
        Ok(())
    })?;
    Ok(converted)
}
