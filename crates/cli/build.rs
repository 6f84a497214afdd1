//! Tells the program its commit, unless `BILAYER_BUILD_COMMIT` is set or the sources are in no repository.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=BILAYER_BUILD_COMMIT");
    println!("cargo::rerun-if-env-changed=BILAYER_BUILD_NUMBER");
    println!("cargo::rerun-if-changed=build.rs");
    // Every commit and checkout appends to this file. Only a release is built anew for its commit alone.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if let Some(log) = log.filter(|log| is_release && Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    let values = [
        ("BILAYER_BUILD_COMMIT", git(&["rev-parse", "--short=9", "HEAD"])),
        ("BILAYER_BUILD_NUMBER", git(&["rev-list", "--count", "HEAD"])),
    ];
    for (name, value) in values {
        if let (Err(_), Some(value)) = (std::env::var(name), value) {
            println!("cargo::rustc-env={name}={value}");
        }
    }
}

/// The answer of git, if there is one.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned()).filter(|text| !text.is_empty())
}
