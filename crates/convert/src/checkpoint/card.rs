//! The model card: licence and origin from the front matter of `README.md`.

use super::Checkpoint;
use crate::Error;

/// The front matter of a card: keys with one or several values. Parses the subset of YAML that cards use: `key:
/// value`, `key: [a, b]`, and `key:` before lines of `- value`.
#[derive(Debug, Default)]
pub(crate) struct Card(Vec<(String, Vec<String>)>);

impl Card {
    /// Reads the card of a checkpoint; empty if there is none.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it cannot be read.
    pub fn read(checkpoint: &Checkpoint) -> Result<Card, Error> {
        Ok(checkpoint.text("README.md")?.map(|text| Card::parse(&text)).unwrap_or_default())
    }

    fn parse(text: &str) -> Card {
        let mut lines = text.lines();
        let mut card = Card::default();
        if lines.next().map(str::trim_end) != Some("---") {
            return card;
        }
        for line in lines.take_while(|line| line.trim_end() != "---") {
            let item = line.trim_start().strip_prefix("- ").map(plain);
            if let (Some(item), Some((_, values))) = (item, card.0.last_mut()) {
                values.extend((!item.is_empty()).then_some(item));
            } else if let Some((key, value)) =
                line.split_once(':').filter(|(key, _)| !key.starts_with([' ', '\t', '#']))
            {
                card.0.push((plain(key), values(value)));
            }
        }
        card
    }

    /// All values of a key.
    pub fn all(&self, key: &str) -> &[String] {
        self.0.iter().find(|(known, _)| known == key).map_or(&[], |(_, values)| values)
    }

    /// The value of a key with exactly one.
    pub fn one(&self, key: &str) -> Option<&str> {
        match self.all(key) {
            [value] => Some(value),
            _ => None,
        }
    }
}

fn values(text: &str) -> Vec<String> {
    let text = text.trim();
    let list = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let values: Vec<String> = match list {
        Some(list) => list.split(',').map(plain).collect(),
        None => vec![plain(text)],
    };
    values.into_iter().filter(|value| !value.is_empty()).collect()
}

/// A scalar without its quotes.
fn plain(text: &str) -> String {
    let text = text.trim();
    let quoted = ['"', '\''].iter().find_map(|&q| text.strip_prefix(q)?.strip_suffix(q));
    quoted.unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::Card;

    #[test]
    fn keys_have_one_value_or_several() {
        let text = "---\nlicense: 'apache-2.0'\nlanguage:\n- en\n  - \"de\"\ntags: [a, 'b']\nempty:\n\
                    # no: comment\nwidget:\n  text: no\n---\nlicense: mit\n";
        let card = Card::parse(text);
        assert_eq!(card.one("license"), Some("apache-2.0"));
        assert_eq!(card.all("language"), ["en", "de"]);
        assert_eq!(card.all("tags"), ["a", "b"]);
        assert_eq!((card.one("empty"), card.one("tags"), card.one("no")), (None, None, None));
        assert_eq!(Card::parse("# Title\nlicense: mit\n").one("license"), None);
    }
}
