//! Finds stop strings in streamed text and withholds possible beginnings of one.

/// A matcher (Knuth, Morris, Pratt) per stop string, and the text withheld.
///
/// Each character is examined once per stop string; the withheld text is never longer than the longest of them. The
/// match that ends first counts, the longest on ties, so the result does not depend on how the text is split.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    stops: Vec<Stop>,
    held: String,
    found: Option<usize>,
}

#[derive(Debug)]
struct Stop {
    text: Box<[u8]>,
    /// `borders[n]`: the longest proper prefix of the stop string that ends its first `n` bytes.
    borders: Box<[usize]>,
    /// Bytes of the stop string that the text currently ends with.
    matched: usize,
}

impl Stops {
    /// An empty stop string never matches.
    pub fn new(stops: Vec<String>) -> Self {
        let stops = stops.into_iter().map(|stop| Stop::new(stop.into_bytes())).collect();
        Self { stops, ..Self::default() }
    }

    /// Index of the stop string that ended the text.
    pub fn found(&self) -> Option<usize> {
        self.found
    }

    /// Appends text and returns what can no longer be part of a stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        for (at, byte) in text.bytes().enumerate() {
            let mut longest = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                if stop.step(byte) && longest.is_none_or(|(len, _)| len < stop.text.len()) {
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
        let matched = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - matched);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the text and returns what was withheld.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

impl Stop {
    fn new(text: Vec<u8>) -> Self {
        let mut borders = vec![0; text.len() + 1];
        let mut border = 0;
        for at in 1..text.len() {
            while border > 0 && text[border] != text[at] {
                border = borders[border];
            }
            border += usize::from(text[border] == text[at]);
            borders[at + 1] = border;
        }
        Self { text: text.into(), borders: borders.into(), matched: 0 }
    }

    /// Consumes the next byte; true if the stop string ends with it.
    fn step(&mut self, byte: u8) -> bool {
        if self.text.is_empty() {
            return false;
        }
        while self.matched > 0 && self.text[self.matched] != byte {
            self.matched = self.borders[self.matched];
        }
        self.matched += usize::from(self.text[self.matched] == byte);
        self.matched == self.text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_let_go_that_a_stop_string_may_begin_with() {
        let mut stops = Stops::new(vec!["aab".into(), String::new()]);
        let parts = ["xa", "a", "a", "c", "a"].map(|part| stops.push(part));
        assert_eq!(parts, ["x", "", "a", "aac", ""]);
        assert_eq!(stops.push("abz"), "");
        assert_eq!(
            (stops.found(), stops.push("more"), stops.finish()),
            (Some(0), String::new(), String::new())
        );
    }

    #[test]
    fn the_first_end_wins_then_the_longest() {
        let cases = [("xabcd", ["bc", "abcd"], "xa", 0), ("xabcd", ["bc", "abc"], "x", 1)];
        for (text, stops, before, found) in cases {
            for cut in 0..text.len() {
                let mut stops = Stops::new(stops.map(String::from).to_vec());
                let shown = stops.push(&text[..cut]) + &stops.push(&text[cut..]);
                assert_eq!((shown.as_str(), stops.found()), (before, Some(found)), "cut at {cut}");
            }
        }
    }
}
