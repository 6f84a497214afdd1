//! Finds marker texts in a stream of characters.

/// The result of one character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Undecided: what was read so far may become a marker.
    Partly,
    /// The marker with this index, and what was read beyond it.
    Marker(usize, String),
    /// No marker begins like this; what was read.
    Other(String),
}

/// Reads one marker out of a set, the longest that matches.
#[derive(Debug, Clone, Default)]
pub struct Expect {
    held: String,
    /// The longest marker so far and its length.
    best: Option<(usize, usize)>,
}

impl Expect {
    /// Whether no character was read yet.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Feeds a character. The state is reset by any answer but [`Found::Partly`].
    pub fn push(&mut self, c: char, markers: &[&str]) -> Found {
        self.held.push(c);
        if let Some(at) = markers.iter().position(|marker| *marker == self.held) {
            self.best = Some((at, self.held.len()));
        }
        let longer =
            |marker: &&str| marker.len() > self.held.len() && marker.starts_with(&self.held);
        if markers.iter().any(longer) {
            return Found::Partly;
        }
        let held = std::mem::take(&mut self.held);
        match self.best.take() {
            Some((at, length)) => Found::Marker(at, held[length..].to_owned()),
            None => Found::Other(held),
        }
    }

    /// Takes what is held back.
    pub fn take(&mut self) -> String {
        self.best = None;
        std::mem::take(&mut self.held)
    }
}

/// Finds the next marker of a set in running text. No marker may contain another one except at its end.
#[derive(Debug, Clone, Default)]
pub struct Search {
    held: String,
}

impl Search {
    /// Feeds a character: appends to `free` what belongs to no marker, and returns the index of a completed marker.
    pub fn push(&mut self, c: char, markers: &[&str], free: &mut String) -> Option<usize> {
        self.held.push(c);
        let mut start = 0;
        let found = loop {
            let rest = &self.held[start..];
            if rest.is_empty() {
                break None;
            }
            if let Some(at) = markers.iter().position(|marker| *marker == rest) {
                break Some(at);
            }
            if markers.iter().any(|marker| marker.starts_with(rest)) {
                free.push_str(&self.held[..start]);
                self.held.drain(..start);
                return None;
            }
            start += rest.chars().next().map_or(1, char::len_utf8);
        };
        free.push_str(&self.held[..start]);
        self.held.clear();
        found
    }

    /// Whether nothing is held back.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Takes what is held back.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_holds_back_only_what_may_become_a_marker() {
        let markers = ["\n</p>", "</p>", "]<]m[>["];
        let mut search = Search::default();
        let mut free = String::new();
        let mut found = Vec::new();
        for c in "a\n\n</p></q>]<]<]m[>[\n</".chars() {
            if let Some(at) = search.push(c, &markers, &mut free) {
                found.push(at);
            }
        }
        assert_eq!((free.as_str(), found), ("a\n</q>]<", vec![0, 2]));
        assert_eq!(search.take(), "\n</");
    }

    #[test]
    fn expect_prefers_the_longest_marker() {
        let markers = ["<", "</a>"];
        let run = |text: &str| {
            let mut expect = Expect::default();
            text.chars().map(|c| expect.push(c, &markers)).find(|found| *found != Found::Partly)
        };
        assert_eq!(run("</a>"), Some(Found::Marker(1, String::new())));
        assert_eq!(run("</b"), Some(Found::Marker(0, "/b".into())));
        assert_eq!(run("x"), Some(Found::Other("x".into())));
    }
}
