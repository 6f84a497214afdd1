//! Removes whole layers: those blocks of consecutive layers that change the hidden state least (Gromov et al. 2024).
//!
//! The change is the angle between the hidden state before and after a block, as a share of half a turn, averaged over
//! sampled tokens of the calibration text; one run of the text measures all blocks. Removing layers copies no weights:
//! the new file has other metadata and other names for the tensors that stay, and every later step works with it.

use std::str::FromStr;

use bilayer_engine::Model;
use bilayer_engine::layers::{Layers, Then};
use bilayer_gguf::File;

use super::Source;
use crate::calibration::{self, Calibration, Runs, predicts};
use crate::{Error, Progress};

/// Tokens whose hidden states are compared.
const SAMPLES: usize = 512;

/// The divergence up to which layers are removed by default, nats per token.
const AUTO_KL: f64 = 0.1;

/// Which layers are removed.
#[derive(Clone, Debug, PartialEq)]
pub enum Dropped {
    /// The longest block that changes the predictions on the calibration text by at most this mean divergence, nats per
    /// token; each longer block is tried until one is worse, up to half of the layers.
    Auto {
        /// The divergence.
        kl: f64,
    },
    /// The block of so many layers that changes the hidden state least.
    Count(usize),
    /// These, ascending.
    Listed(Vec<usize>),
}

impl FromStr for Dropped {
    type Err = String;

    /// Parses `auto`, `auto:KL`, a number of layers, or a list with a comma or a range, such as `3,5-7`; `5-5` and `5,`
    /// are layer 5 alone.
    fn from_str(text: &str) -> Result<Dropped, String> {
        let wrong = || {
            format!(
                "`{text}` is neither auto, auto:KL, a number of layers, nor a list such as 3,5-7"
            )
        };
        if let Some(rest) = text.strip_prefix("auto") {
            let kl = match rest.strip_prefix(':') {
                None if rest.is_empty() => AUTO_KL,
                None => return Err(wrong()),
                Some(kl) => kl.parse().map_err(|_| wrong())?,
            };
            return if kl > 0.0 && f64::is_finite(kl) {
                Ok(Dropped::Auto { kl })
            } else {
                Err(wrong())
            };
        }
        if let Ok(count) = text.parse() {
            return if count > 0 { Ok(Dropped::Count(count)) } else { Err(wrong()) };
        }
        let mut layers = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) =
                (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
            if first > last || last > bilayer_models::limits::LAYERS {
                return Err(wrong());
            }
            layers.extend(first..=last);
        }
        layers.sort_unstable();
        layers.dedup();
        if layers.is_empty() { Err(wrong()) } else { Ok(Dropped::Listed(layers)) }
    }
}

/// A block of consecutive layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerBlock {
    /// Its first layer.
    pub first: usize,
    /// Number of layers.
    pub len: usize,
    /// Mean angle between the hidden states before and after it, as a share of half a turn.
    pub angle: f64,
}

/// The layers to remove, and what was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerChoice {
    /// The layers, ascending.
    pub layers: Vec<usize>,
    /// For every length up to half of the layers, the block that changes the hidden state least; empty for a list.
    pub blocks: Vec<LayerBlock>,
}

impl Dropped {
    /// Chooses the layers; a list is only checked. The calibration text runs once, and for [`Dropped::Auto`] once more for
    /// every length that is tried. `progress` receives steps done and their total.
    ///
    /// # Errors
    /// [`Error::Prune`] for more layers than the model has, and if there is no text; [`Error::Text`] if it is too short;
    /// [`Error::NoPredictions`] for an encoder and [`Dropped::Auto`]; [`Error::Calibration`] if a device fails;
    /// [`Error::Model`] if the model cannot lose so many layers, which is found before the text runs;
    /// [`Error::Interrupted`].
    pub fn choose(
        &self,
        source: Source<'_>,
        calibration: Option<&Calibration<'_>>,
        threads: Option<usize>,
        progress: Progress<'_>,
    ) -> Result<LayerChoice, Error> {
        let all = source.model.config().layers.len();
        let wrong = |reason: String| Error::Prune { tensor: "--drop-layers".into(), reason };
        if let Dropped::Listed(layers) = self {
            if let Some(layer) = layers.iter().find(|&&layer| layer >= all) {
                return Err(wrong(format!("there is no layer {layer}; the last is {}", all - 1)));
            }
            // A model that cannot lose them is refused here.
            without(source, layers)?;
            return Ok(LayerChoice { layers: layers.clone(), blocks: Vec::new() });
        }
        if let Dropped::Count(count) = self
            && *count >= all
        {
            return Err(wrong(format!("{count} of {all} layers; at least one has to stay")));
        }
        let calibration =
            calibration.ok_or_else(|| wrong("this needs a calibration text; give one".into()))?;
        let most = match self {
            Dropped::Count(count) => *count,
            _ => (all / 2).max(1),
        };
        if all == 1 {
            return Ok(LayerChoice { layers: Vec::new(), blocks: Vec::new() });
        }
        if let Dropped::Auto { .. } = self {
            predicts(source.model, "--drop-layers auto")?;
        }
        // Before the text runs: whether any block of the least length can go.
        let least = if let Dropped::Count(count) = self { *count } else { 1 };
        removable(source, least, &|_| 0.0)?;
        let steps = (all + 3 + most) as u64;
        let states = states(source, calibration, threads, &mut |done, _| progress(done, steps))?;
        let blocks = (1..all)
            .filter_map(|len| removable(source, len, &|first| states.angle(first, len)).ok());
        let blocks: Vec<LayerBlock> = blocks.collect();
        let block = |len: usize| blocks.iter().find(|block| block.len == len);
        let kept = |block: &LayerBlock| (block.first..block.first + block.len).collect::<Vec<_>>();
        let layers = match self {
            Dropped::Auto { kl } => {
                let mut runs = Runs::new(source.model, calibration, threads, steps, progress)?;
                runs.skip(all as u64);
                runs.base()?;
                let mut chosen = Vec::new();
                for block in (1..=most).filter_map(block) {
                    let layers = kept(block);
                    let cut = Model::new(without(source, &layers)?).map_err(Error::calibration)?;
                    let found = runs.divergence(&cut)?;
                    runs.step()?;
                    if found > *kl {
                        break;
                    }
                    chosen = layers;
                }
                chosen
            }
            _ => block(most).map(kept).unwrap_or_default(),
        };
        Ok(LayerChoice { layers, blocks })
    }
}

/// The block of `len` layers of the smallest angle, by its first layer, among those that the model can lose.
///
/// # Errors
/// [`Error::Model`] if it can lose none.
fn removable(
    source: Source<'_>,
    len: usize,
    angle: &dyn Fn(usize) -> f64,
) -> Result<LayerBlock, Error> {
    let all = source.model.config().layers.len();
    let mut blocks: Vec<LayerBlock> =
        (0..=all - len).map(|first| LayerBlock { first, len, angle: angle(first) }).collect();
    blocks.sort_by(|a, b| a.angle.total_cmp(&b.angle));
    let mut refused = None;
    for block in blocks {
        let layers: Vec<usize> = (block.first..block.first + len).collect();
        match without(source, &layers) {
            Ok(_) => return Ok(block),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.expect("there is a block of every length"))
}

/// The model's file without some layers; weights are shared.
///
/// # Errors
/// [`Error::Model`] if the model cannot lose them.
pub fn without(Source { model, metadata }: Source<'_>, layers: &[usize]) -> Result<File, Error> {
    let all = 0..model.config().layers.len();
    let kept: Vec<usize> = all.filter(|layer| !layers.contains(layer)).collect();
    let metadata = match layers.is_empty() {
        true => metadata.clone(),
        false => {
            let mut metadata = bilayer_models::cut(metadata, &kept)?;
            // It is about all layers.
            metadata.remove("general.size_label");
            metadata
        }
    };
    let name = |name: &str| match layers.is_empty() {
        true => Some(name.to_owned()),
        false => bilayer_models::renumbered(name, &kept),
    };
    Ok(model.file().renamed(metadata, &name)?)
}

/// Hidden states of sampled tokens.
struct States {
    width: usize,
    /// Before the first layer, and after each, `[tokens, width]`.
    rows: Vec<Vec<f32>>,
}

impl States {
    /// Mean angle between those before layer `first` and after `len` layers, as a share of half a turn.
    fn angle(&self, first: usize, len: usize) -> f64 {
        angle(&self.rows[first], &self.rows[first + len], self.width)
    }
}

/// Runs the text for the hidden states before and after every layer.
fn states(
    Source { model, .. }: Source<'_>,
    calibration: &Calibration<'_>,
    threads: Option<usize>,
    progress: Progress<'_>,
) -> Result<States, Error> {
    let sequences = calibration::sequences(model, calibration)?;
    let tokens: usize = sequences.iter().map(Vec::len).sum();
    let width = model.config().width;
    let mut layers = Layers::new(model, sequences, threads).map_err(Error::calibration)?;
    let count = layers.len();
    let mut states: Vec<Vec<f32>> = vec![Vec::new(); count + 1];
    for layer in 0..count {
        if progress(layer as u64, count as u64).is_break() {
            return Err(Error::Interrupted);
        }
        let (before, after) = (layers.hidden(), layers.result(layer));
        let mut seen = [0; 2];
        let whole = layers.run(model, &[after], Then::Advance, &mut |_, values| {
            let before = before.filter(|_| layer == 0);
            let kinds = [(0, before, layer), (1, Some(after), layer + 1)];
            for (kind, value, place) in kinds {
                let Some(rows) = value.and_then(|value| values.get(value)) else { continue };
                for row in rows.chunks_exact(width) {
                    if sampled(seen[kind], tokens) {
                        states[place].extend_from_slice(row);
                    }
                    seen[kind] += 1;
                }
            }
            progress(layer as u64, count as u64).is_continue()
        });
        if !whole.map_err(Error::calibration)? {
            return Err(Error::Interrupted);
        }
    }
    if let Some(layer) = states.iter().position(|rows| rows.iter().any(|x| !x.is_finite())) {
        let tensor = format!("the hidden state before layer {layer}");
        let reason = "it is not finite on the calibration text; the model is damaged".to_owned();
        return Err(Error::Prune { tensor, reason });
    }
    Ok(States { width, rows: states })
}

/// Whether the row of this number is one of the sample.
fn sampled(number: usize, tokens: usize) -> bool {
    number.is_multiple_of(tokens.div_ceil(SAMPLES))
}

/// Mean angle between rows, as a share of half a turn.
fn angle(a: &[f32], b: &[f32], width: usize) -> f64 {
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
    let count = rows.len().max(1) as f64;
    let angles = rows.map(|(a, b)| {
        let dot = |a: &[f32], b: &[f32]| -> f64 {
            a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let sizes = (dot(a, a) * dot(b, b)).sqrt();
        // A row of zeros has no direction.
        let cosine = if sizes == 0.0 { 0.0 } else { dot(a, b) / sizes };
        cosine.clamp(-1.0, 1.0).acos() / std::f64::consts::PI
    });
    angles.sum::<f64>() / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_parsed() {
        let listed = |layers: &[usize]| Ok(Dropped::Listed(layers.to_vec()));
        assert_eq!("3,5-7".parse(), listed(&[3, 5, 6, 7]));
        assert_eq!("5-5".parse(), listed(&[5]));
        assert_eq!("5,".parse(), listed(&[5]));
        assert_eq!("7,3,3".parse(), listed(&[3, 7]));
        assert_eq!("4".parse(), Ok(Dropped::Count(4)));
        assert_eq!("auto".parse(), Ok(Dropped::Auto { kl: AUTO_KL }));
        assert_eq!("auto:0.5".parse(), Ok(Dropped::Auto { kl: 0.5 }));
        for wrong in
            ["", "0", "auto:", "auto:-1", "auto:nan", "automatic", "3-1", "-1", ",", "1-99999999"]
        {
            assert!(wrong.parse::<Dropped>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn angles_are_shares_of_half_a_turn() {
        let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}");
        close(angle(&[1.0, 0.0], &[2.0, 0.0], 2), 0.0);
        close(angle(&[1.0, 0.0], &[0.0, 3.0], 2), 0.5);
        close(angle(&[1.0, 0.0, 1.0, 1.0], &[-1.0, 0.0, 2.0, 2.0], 2), 0.5);
        close(angle(&[0.0, 0.0], &[0.0, 1.0], 2), 0.5);
    }
}
