//! Routes texts to labels by the similarity of their embeddings to those of examples, without a classification head.

use super::{Encoder, Excess, Input, Norm};
use crate::Error;

/// A label with texts that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its name.
    pub label: String,
    /// Texts that belong to it; the name itself is a good one.
    pub examples: Vec<String>,
}

/// The direction of each label: the mean of its examples' vectors of length 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    labels: Vec<String>,
    directions: Vec<Vec<f32>>,
}

impl Router {
    /// Embeds the examples of all routes.
    ///
    /// # Errors
    /// There is no route, or one without examples; the encoder does not give one vector per text; an example is longer than
    /// the context.
    pub fn new(encoder: &mut Encoder, routes: &[Route]) -> Result<Router, Error> {
        encoder.check_embeds()?;
        let none = |found: &str| Error::setting("labels", found, "labels with examples");
        if routes.is_empty() {
            return Err(none("none"));
        }
        if let Some(route) = routes.iter().find(|route| route.examples.is_empty()) {
            return Err(none(&format!("no example of {}", route.label)));
        }
        let examples = routes.iter().flat_map(|route| &route.examples);
        let inputs =
            examples.map(|text| encoder.tokens(Input { text, pair: None }, Excess::Refuse));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let mut vectors = Vec::with_capacity(inputs.len());
        encoder.run(inputs.into_iter().map(Ok), &mut |_, _, row| {
            vectors.push(unit(row));
            Ok::<_, Error>(())
        })?;
        let mut rest = vectors.as_slice();
        let directions = routes.iter().map(|route| {
            let (own, after) = rest.split_at(route.examples.len());
            rest = after;
            let mut sum = vec![0.0; own[0].len()];
            for vector in own {
                sum.iter_mut().zip(vector).for_each(|(sum, x)| *sum += x);
            }
            unit(&sum)
        });
        let directions = directions.collect();
        Ok(Router { labels: routes.iter().map(|route| route.label.clone()).collect(), directions })
    }

    /// The labels, in the order of the routes.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The cosine of a text's row and each label's direction. Sums are f64.
    pub fn cosines(&self, row: &[f32]) -> Vec<f32> {
        let row = unit(row);
        let cosine = |direction: &Vec<f32>| {
            let products = direction.iter().zip(&row);
            products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32
        };
        self.directions.iter().map(cosine).collect()
    }
}

fn unit(row: &[f32]) -> Vec<f32> {
    let mut row = row.to_vec();
    Norm::P(2).apply(&mut row);
    row
}
