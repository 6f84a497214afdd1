//! What the tests need of a machine: without it a test is skipped with a message, or fails where all of it is installed.

use std::fmt::Display;
use std::io::Write;

/// The variable that says that everything that the tests need is installed.
const GPU: &str = "BILAYER_REQUIRE_GPU";

/// The variable that says that the adapter has cooperative matrices, and that there is time to compile what takes it minutes.
/// `cargo xtask coop-check` sets it.
const COOP: &str = "BILAYER_REQUIRE_COOP";

/// Says that a test is skipped, and why.
///
/// # Panics
/// `BILAYER_REQUIRE_GPU=1`.
#[track_caller]
pub fn skip(why: impl Display) {
    assert!(!is_one(GPU), "{why}, which {GPU}=1 does not allow");
    say(&format!("skipped: {why}"));
}

/// Says that a test of cooperative matrices is skipped, why, and the task of xtask that runs it.
///
/// # Panics
/// `BILAYER_REQUIRE_COOP=1`.
#[allow(dead_code, reason = "each test file uses its part")]
#[track_caller]
pub fn skip_matrices(why: impl Display, task: &str) {
    assert!(!is_one(COOP), "{why}, which {COOP}=1 does not allow");
    say(&format!("skipped: {why}; cargo xtask {task} runs this"));
}

/// Whether tests that take minutes run.
#[allow(dead_code, reason = "each test file uses its part")]
pub fn has_time() -> bool {
    is_one(COOP)
}

fn is_one(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == "1")
}

/// Writes to stderr itself, since what macros print is shown only of tests that fail.
fn say(line: &str) {
    let thread = std::thread::current();
    // There is nowhere to report that stderr cannot be written.
    let _ = writeln!(std::io::stderr(), "{line} [{}]", thread.name().unwrap_or_default());
}
