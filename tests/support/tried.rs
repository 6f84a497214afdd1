//! What a test tries as often as it is asked to, under a name by which `cargo xtask` records it.

/// Prints a line of that name if the test fails while it is tried.
pub struct Tried(String);

impl Tried {
    /// `subject` is a word and a name, such as `writer batch`.
    pub fn new(subject: impl Into<String>) -> Tried {
        Tried(subject.into())
    }

    /// Prints how often it was tried, and what came out.
    pub fn done(self, figures: &str) {
        println!("{}: {figures}", self.0);
    }
}

impl Drop for Tried {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}: 0 runs without a failure, FAILED", self.0);
        }
    }
}
