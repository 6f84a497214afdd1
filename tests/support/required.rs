//! What the tests need of a machine: without it a test is skipped with a message, or fails where all of it is installed.

use std::fmt::Display;

/// Says that a test is skipped, and why.
///
/// # Panics
/// `BILAYER_REQUIRE_GPU=1` says that everything that the tests need is installed.
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
#[track_caller]
pub fn skip(why: impl Display) {
    let required = std::env::var("BILAYER_REQUIRE_GPU").is_ok_and(|value| value == "1");
    assert!(!required, "{why}, which BILAYER_REQUIRE_GPU=1 does not allow");
    println!("skipped: {why}");
}
