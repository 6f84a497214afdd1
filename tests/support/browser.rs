//! A headless browser, if installed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::program::Ran;

#[path = "required.rs"]
mod required;

use required::skip;

/// Names of Chromium's executable.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Loading a page takes one or two seconds; the limit keeps a hanging browser from blocking the suite.
const PATIENCE: Duration = Duration::from_secs(60);

/// The preferred colour scheme; the numbers are Blink's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Theme {
    Dark = 0,
    Light = 1,
}

/// Chromium's path. Without one the test is skipped with a message, or fails if `BILAYER_REQUIRE_GPU=1`, which states that
/// everything the tests need is installed.
pub fn chromium() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&folders).flat_map(|f| NAMES.map(|name| f.join(name)));
    let found = places.find(|path| path.is_file());
    if found.is_none() {
        skip("no chromium");
    }
    found
}

/// [`load_in`] a window 1200 pixels wide.
pub fn load(chromium: &Path, page: &Path, profile: &Path, theme: Theme) -> Ran {
    load_in((1200, 1600), chromium, page, (profile, theme))
}

/// Loads a page in a window of that width and height, runs its scripts, and returns the resulting document and the log.
/// A screenshot is written next to the page, with the extension `.png`.
pub fn load_in(
    (width, height): (u32, u32),
    chromium: &Path,
    page: &Path,
    (profile, theme): (&Path, Theme),
) -> Ran {
    let mut command = Command::new(chromium);
    let picture = page.with_extension("png");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--disable-extensions", "--hide-scrollbars"])
        .arg(format!("--window-size={width},{height}"))
        .arg("--virtual-time-budget=2000")
        .args(["--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--blink-settings=preferredColorScheme={}", theme as u8))
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(format!("file://{}", page.display()));
    // Files, since pipes are not read while waiting.
    let streams = ["out", "err"].map(|ending| page.with_extension(ending));
    let [out, err] = streams.each_ref().map(|path| File::create(path).unwrap());
    let mut child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().unwrap();
    let since = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if since.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{command:?} took longer than {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let [out, err] =
        streams.map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned());
    Ran { code: status.code(), out, err }
}
