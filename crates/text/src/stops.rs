//! Finds stop strings in streamed text and withholds possible beginnings of one.

use std::sync::Arc;

/// Stop strings, prepared for the search. Clones share them: a decoder of its own costs 4 bytes for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStrings(Arc<[Stop]>);

impl FromIterator<String> for StopStrings {
    fn from_iter<I: IntoIterator<Item = String>>(texts: I) -> StopStrings {
        StopStrings(texts.into_iter().map(|text| Stop::new(text.into_bytes())).collect())
    }
}

impl From<Vec<String>> for StopStrings {
    fn from(texts: Vec<String>) -> StopStrings {
        texts.into_iter().collect()
    }
}

/// A matcher (Knuth, Morris, Pratt) per stop string, and the text withheld.
///
/// Each character is examined once per stop string; the withheld text is never longer than the longest of them. The
/// match that ends first counts, the longest on ties, so the result does not depend on how the text is split.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    stops: StopStrings,
    /// Bytes of each stop string that the text currently ends with.
    matched: Box<[u32]>,
    held: String,
    found: Option<usize>,
}

#[derive(Debug, PartialEq, Eq)]
struct Stop {
    text: Box<[u8]>,
    /// `borders[n]`: the longest proper prefix of the stop string that ends its first `n` bytes.
    borders: Box<[u32]>,
}

impl Stops {
    /// An empty stop string never matches.
    pub fn new(stops: StopStrings) -> Self {
        Self { matched: vec![0; stops.0.len()].into(), stops, ..Self::default() }
    }

    /// Index of the stop string that ended the text.
    pub fn found(&self) -> Option<usize> {
        self.found
    }

    /// Index of the stop string with this spelling.
    pub fn index(&self, spelling: &[u8]) -> Option<usize> {
        self.stops.0.iter().position(|stop| !stop.text.is_empty() && *stop.text == *spelling)
    }

    /// Ends the text with the stop string of this index, unless it has ended.
    pub fn end(&mut self, index: usize) {
        self.found.get_or_insert(index);
    }

    /// Appends text and returns what can no longer be part of a stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        for (at, byte) in text.bytes().enumerate() {
            let mut longest = None;
            for (index, (stop, matched)) in
                self.stops.0.iter().zip(self.matched.iter_mut()).enumerate()
            {
                *matched = stop.step(*matched, byte);
                let is_found = *matched > 0 && *matched as usize == stop.text.len();
                if is_found && longest.is_none_or(|(len, _)| len < stop.text.len()) {
                    longest = Some((stop.text.len(), index));
                }
            }
            if let Some((len, index)) = longest {
                self.found = Some(index);
                self.held.push_str(&text[..=at]);
                self.held.truncate(self.held.len() - len);
                return std::mem::take(&mut self.held);
            }
        }
        self.held.push_str(text);
        let matched = self.matched.iter().copied().max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - matched as usize);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the text and returns what was withheld. What follows is another text.
    pub fn finish(&mut self) -> String {
        self.matched.fill(0);
        std::mem::take(&mut self.held)
    }
}

impl Stop {
    fn new(text: Vec<u8>) -> Self {
        assert!(u32::try_from(text.len()).is_ok(), "a stop string of 4 GiB");
        let mut stop = Self { borders: vec![0; text.len() + 1].into(), text: text.into() };
        let mut border = 0;
        for at in 1..stop.text.len() {
            border = stop.step(border, stop.text[at]);
            stop.borders[at + 1] = border;
        }
        stop
    }

    /// Bytes of the stop string that the text ends with after its next `byte`, of `matched` before it.
    fn step(&self, mut matched: u32, byte: u8) -> u32 {
        if self.text.is_empty() {
            return 0;
        }
        while matched > 0 && self.text[matched as usize] != byte {
            matched = self.borders[matched as usize];
        }
        matched + u32::from(self.text[matched as usize] == byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_let_go_that_a_stop_string_may_begin_with() {
        let mut stops = Stops::new(vec!["aab".into(), String::new()].into());
        let parts = ["xa", "a", "a", "c", "a"].map(|part| stops.push(part));
        assert_eq!(parts, ["x", "", "a", "aac", ""]);
        assert_eq!(stops.push("abz"), "");
        assert_eq!(
            (stops.found(), stops.push("more"), stops.finish()),
            (Some(0), String::new(), String::new())
        );
    }

    /// A text may end in the middle of a stop string.
    #[test]
    fn a_text_ends_once_and_what_follows_is_another() {
        let mut stops = Stops::new(vec!["abc".into()].into());
        assert_eq!((stops.push("xab"), stops.finish()), ("x".to_owned(), "ab".to_owned()));
        assert_eq!((stops.push(""), stops.finish()), (String::new(), String::new()));
        assert_eq!((stops.push("cab"), stops.push("c")), ("c".to_owned(), String::new()));
        assert_eq!(stops.found(), Some(0));
    }

    #[test]
    fn the_first_end_wins_then_the_longest() {
        let cases = [("xabcd", ["bc", "abcd"], "xa", 0), ("xabcd", ["bc", "abc"], "x", 1)];
        for (text, stops, before, found) in cases {
            for cut in 0..text.len() {
                let mut stops = Stops::new(stops.map(String::from).into_iter().collect());
                let shown = stops.push(&text[..cut]) + &stops.push(&text[cut..]);
                assert_eq!((shown.as_str(), stops.found()), (before, Some(found)), "cut at {cut}");
            }
        }
    }

    /// A request may have thousands of answers, all with its stop strings.
    #[test]
    fn searches_share_what_is_prepared() {
        let stops: StopStrings = (0..512).map(|number| format!("{number:256}")).collect();
        let [first, second] = [(); 2].map(|()| Stops::new(stops.clone()));
        assert!(Arc::ptr_eq(&first.stops.0, &second.stops.0));
        assert_eq!(size_of_val(&*first.matched), 4 * 512);
        let prepared = stops.0.iter().map(|stop| stop.text.len() + size_of_val(&*stop.borders));
        assert!(prepared.sum::<usize>() <= 512 * 5 * 257);
    }
}
