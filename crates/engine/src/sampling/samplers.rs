//! Which samplers run, and in which order: a list of names or a text of letters, those of llama.cpp.

use std::sync::Arc;

use bilayer_text::Tokenizer;

use super::options::{Options, OptionsError};
use super::{Bound, Infill, LINKS, Link, Listed, Phase};

/// Samplers in the order in which they run. Those that are not listed are off, those that are listed twice run twice.
#[derive(Clone, Debug, PartialEq)]
pub struct Samplers(Arc<[&'static Link]>);

/// Name and letter of a sampler that llama.cpp had once: a list may name it, and nothing runs.
const REMOVED: (&[&str], char) = (&["tfs_z", "tfs"], 'f');

impl Default for Samplers {
    /// llama.cpp's default.
    fn default() -> Samplers {
        Samplers(LINKS.iter().filter(|link| matches!(link.listed, Listed::Usual(_))).collect())
    }
}

impl Samplers {
    /// Those of these names, with `-` or `_` between words.
    ///
    /// # Errors
    /// The first name that is none.
    pub fn named<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Samplers, OptionsError> {
        let mut found = Vec::new();
        for name in names {
            let plain = name.replace('-', "_");
            let is_it = |link: &&Link| link.name == plain || link.aliases.contains(&plain.as_str());
            match listable().find(is_it) {
                Some(link) => found.push(link),
                None if REMOVED.0.contains(&plain.as_str()) => {}
                None => {
                    let known: Vec<&str> = listable().map(|link| link.name).collect();
                    return Err(unknown(name, &known.join(", ")));
                }
            }
        }
        Ok(Samplers(found.into()))
    }

    /// Those of a text of names that are separated by `;`, or by commas, as a list of a settings file is.
    ///
    /// # Errors
    /// The first name that is none.
    pub fn parse(names: &str) -> Result<Samplers, OptionsError> {
        Samplers::named(names.split([';', ',']).map(str::trim).filter(|name| !name.is_empty()))
    }

    /// Those of these letters.
    ///
    /// # Errors
    /// The first letter that is none.
    pub fn lettered(letters: &str) -> Result<Samplers, OptionsError> {
        let mut found = Vec::new();
        for letter in letters.chars() {
            match listable().find(|link| link.letter() == Some(letter)) {
                Some(link) => found.push(link),
                None if letter == REMOVED.1 => {}
                None => {
                    let known: String = listable().filter_map(Link::letter).collect();
                    return Err(unknown(&letter.to_string(), &format!("the letters {known}")));
                }
            }
        }
        Ok(Samplers(found.into()))
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|link| link.name)
    }

    /// The letters, in order.
    pub fn letters(&self) -> String {
        self.0.iter().filter_map(|link| link.letter()).collect()
    }
}

fn unknown(found: &str, known: &str) -> OptionsError {
    let expected = format!("one of {known}");
    OptionsError { name: "samplers", found: format!("'{found}'"), expected }
}

/// The samplers that a list may name.
fn listable() -> impl Iterator<Item = &'static Link> {
    LINKS.iter().filter(|link| link.letter().is_some())
}

impl Options {
    /// Whether the most likely token is taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 && self.is_listed("temperature")
    }

    /// The names of the samplers, in order: the list, or else the default and those beyond it that are on.
    pub fn sampler_names(&self) -> Vec<&'static str> {
        let is_used = |link: &&Link| match link.listed {
            Listed::Never => false,
            Listed::Usual(_) => true,
            Listed::Asked(_) => (link.is_on)(self),
        };
        match &self.samplers {
            Some(samplers) => samplers.names().collect(),
            None => LINKS.iter().filter(is_used).map(|link| link.name).collect(),
        }
    }

    /// Turns infill on for a vocabulary if a list of samplers names it, off if the list leaves it out.
    pub fn set_infill(&mut self, tokenizer: &Arc<Tokenizer>) {
        if self.samplers.is_some() {
            self.infill = self.is_listed("infill").then(|| Infill::new(tokenizer.clone()));
        }
    }

    /// Whether the sampler may run: there is no list, or it names the sampler.
    pub(super) fn is_listed(&self, name: &str) -> bool {
        self.samplers.as_ref().is_none_or(|samplers| samplers.names().any(|it| it == name))
    }

    /// The samplers that run, in order. With mirostat, no truncation does. A greedy choice ends the chain, and has no use
    /// for truncations but infill, which may end the text; then typical and XTC, which may drop the most
    /// likely token, run too.
    pub(super) fn chain(&self) -> Vec<&'static Link> {
        let mut chain: Vec<&'static Link> = match &self.samplers {
            None => LINKS.iter().collect(),
            Some(samplers) => {
                let unlisted = |link: &&Link| link.listed == Listed::Never;
                let is_last = |link: &&'static Link| link.phase == Phase::Target;
                let listed = samplers.0.iter().copied().filter(|link| !is_last(link));
                let last = |link: &&'static Link| {
                    is_last(link) && (unlisted(link) || self.is_listed(link.name))
                };
                let first = LINKS.iter().filter(|link| unlisted(link) && !is_last(link));
                first.chain(listed).chain(LINKS.iter().filter(last)).collect()
            }
        };
        chain.retain(|link| (link.is_on)(self));
        let mut has_truncations = self.mirostat.is_none();
        if self.is_greedy() {
            let choice = chain.iter().position(|link| link.phase == Phase::Temperature);
            chain.truncate(choice.map_or(chain.len(), |at| at + 1));
            has_truncations &= chain.iter().any(|link| link.name == "infill");
        }
        chain.retain(|link| has_truncations || link.phase != Phase::Truncation);
        chain
    }

    /// The number of best tokens that suffice: nothing examines the others, and even if all tokens that may be lowered
    /// are among the best, enough are left. `None` if all are needed.
    pub fn needs(&self) -> Option<usize> {
        let mut lowered = 0usize;
        for link in self.chain() {
            match (link.bound)(self) {
                Bound::Lowers(most) => lowered = lowered.checked_add(most)?,
                Bound::Keeps(best) => return lowered.checked_add(best),
                Bound::All => return None,
            }
        }
        None
    }
}
