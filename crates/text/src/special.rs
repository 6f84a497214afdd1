//! Finds tokens that are matched in raw text before tokenization, the longest at each position.

/// A segment of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment<'a> {
    /// Text to tokenize.
    Text(&'a str),
    /// A token that was matched.
    Token(u32),
}

/// A sorted set of spellings; matching a text byte by byte narrows a range.
#[derive(Debug, Default)]
pub(crate) struct Matcher {
    entries: Vec<Entry>,
    /// `starts[byte]..starts[byte + 1]`: the entries that begin with that byte.
    starts: Vec<usize>,
}

#[derive(Debug)]
struct Entry {
    text: Box<str>,
    id: u32,
    /// Whether white space after the token is removed with it.
    strips: bool,
}

impl Matcher {
    /// Builds a matcher from `(spelling, id, strips)`; empty spellings match nothing, of duplicates the first counts.
    pub fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32, bool)>) -> Self {
        let mut entries: Vec<Entry> = tokens
            .filter(|(text, ..)| !text.is_empty())
            .map(|(text, id, strips)| Entry { text: text.into(), id, strips })
            .collect();
        entries.sort_by(|a, b| a.text.cmp(&b.text).then(a.id.cmp(&b.id)));
        entries.dedup_by(|later, earlier| later.text == earlier.text);
        let first = |entry: &Entry| usize::from(entry.text.as_bytes()[0]);
        let starts =
            (0..=256).map(|byte| entries.partition_point(|entry| first(entry) < byte)).collect();
        Self { entries, starts }
    }

    /// Splits `text` at the leftmost matches, the longest at each position.
    pub fn split<'a>(&self, text: &'a str) -> Vec<Fragment<'a>> {
        self.split_except(text, &[])
    }

    /// Splits `text` as if the tokens of `except` did not exist.
    pub fn split_except<'a>(&self, text: &'a str, except: &[u32]) -> Vec<Fragment<'a>> {
        let mut fragments = Vec::new();
        let (mut start, mut at) = (0, 0);
        while !self.entries.is_empty() && at < text.len() {
            let Some(entry) = self.longest(&text.as_bytes()[at..], except) else {
                at += 1;
                continue;
            };
            if start < at {
                fragments.push(Fragment::Text(&text[start..at]));
            }
            fragments.push(Fragment::Token(entry.id));
            at += entry.text.len();
            if entry.strips {
                at = text.len() - text[at..].trim_start().len();
            }
            start = at;
        }
        if start < text.len() {
            fragments.push(Fragment::Text(&text[start..]));
        }
        fragments
    }

    /// All spellings with their ids.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, u32)> {
        self.entries.iter().map(|entry| (&*entry.text, entry.id))
    }

    /// Whether white space after token `id` is removed with it.
    pub fn strips(&self, id: u32) -> bool {
        self.entries.iter().any(|entry| entry.id == id && entry.strips)
    }

    fn longest(&self, text: &[u8], except: &[u32]) -> Option<&Entry> {
        let first = usize::from(*text.first()?);
        let mut candidates = &self.entries[self.starts[first]..self.starts[first + 1]];
        let mut best = None;
        for depth in 1.. {
            // Sorted order: a spelling that ends here precedes its extensions.
            let Some(shortest) = candidates.first() else { break };
            if shortest.text.len() == depth {
                best = Some(shortest).filter(|entry| !except.contains(&entry.id)).or(best);
                candidates = &candidates[1..];
            }
            let Some(&next) = text.get(depth) else { break };
            let byte = |entry: &Entry| entry.text.as_bytes()[depth];
            let from = candidates.partition_point(|entry| byte(entry) < next);
            let to = candidates.partition_point(|entry| byte(entry) <= next);
            candidates = &candidates[from..to];
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_and_longest_match_wins() {
        let tokens = [("<a>", 1, false), ("<a>b", 2, false), ("  ", 3, false), ("é", 4, true)];
        let matcher = Matcher::new(tokens.into_iter());
        let split = |text| matcher.split(text);
        assert_eq!(split("x<a>by"), [text("x"), Fragment::Token(2), text("y")]);
        assert_eq!(split("<a<a>"), [text("<a"), Fragment::Token(1)]);
        assert_eq!(split("   "), [Fragment::Token(3), text(" ")]);
        assert_eq!(split("é \n\u{a0}ü"), [Fragment::Token(4), text("ü")]);
        assert_eq!(split("è"), [text("è")]);
        assert_eq!(Matcher::default().split("<a>"), [text("<a>")]);
        let except = |ids| matcher.split_except("<a>b", ids);
        assert_eq!(except(&[2]), [Fragment::Token(1), text("b")]);
        assert_eq!(except(&[1]), [Fragment::Token(2)]);
        assert_eq!(except(&[1, 2]), [text("<a>b")]);
    }

    fn text(text: &str) -> Fragment<'_> {
        Fragment::Text(text)
    }
}
