//! What is checked before a release besides the tests: other targets, the oldest compiler, dependencies, the interface.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{dist, output, status, tools};

pub const TARGETS_USAGE: &str = "\
cargo xtask check-targets [TARGET ...]
                              type-check the program and the library for macOS and Windows, or for those named";

pub const MSRV_USAGE: &str = "\
cargo xtask msrv              check the workspace with the compiler that Cargo.toml's `rust-version` names";

pub const DENY_USAGE: &str = "\
cargo xtask deny [--without-advisories]
                              check licences, sources and bans of dependencies by .deny.toml, and known vulnerabilities,
                              whose list comes from github.com";

pub const SEMVER_USAGE: &str = "\
cargo xtask semver-checks [--baseline REVISION]
                              compare the interface of the library `bilayer` with a revision's (the last tag `v*`)";

const DENY: tools::Tool = tools::Tool { name: "cargo-deny", version: "0.20.2" };

const SEMVER_CHECKS: tools::Tool = tools::Tool { name: "cargo-semver-checks", version: "0.51.0" };

/// The targets that are type-checked. C code of dependencies is compiled by zig, which has no headers for MSVC; nothing is
/// linked, which would take the systems' own libraries.
const FOREIGN: [&str; 3] = ["aarch64-apple-darwin", "x86_64-apple-darwin", "x86_64-pc-windows-gnu"];

/// Checks all targets, or those that are named.
pub fn check_targets(args: &[String]) -> Result<()> {
    if let Some(other) = args.iter().find(|arg| FOREIGN.iter().all(|it| *it != arg.as_str())) {
        bail!("{other}: not a target that is checked; usage:\n{TARGETS_USAGE}");
    }
    let chosen = |target: &&&str| args.is_empty() || args.iter().any(|arg| arg == **target);
    let zig = dist::zig()?;
    for target in FOREIGN.iter().filter(chosen) {
        status(Command::new("rustup").args(["target", "add", target]))?;
        let mut cargo = Command::new(zig.join("cargo-zigbuild"));
        cargo.arg("check").env("PATH", dist::path(&zig)?);
        status(cargo.args(["--locked", "--package", "bilayer", "--target", target]))?;
        eprintln!("xtask: {target}: good");
    }
    Ok(())
}

/// Checks with the oldest compiler, which rustup installs.
pub fn msrv(args: &[String]) -> Result<()> {
    nothing(args, MSRV_USAGE)?;
    let manifest = std::fs::read_to_string("Cargo.toml")?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = "));
    let version = version.context("Cargo.toml has no rust-version")?.trim_matches('"');
    let mut rustup = Command::new("rustup");
    status(rustup.args(["toolchain", "install", version, "--profile", "minimal"]))?;
    let mut cargo = Command::new("rustup");
    cargo.args(["run", version, "cargo", "check", "--workspace", "--all-targets", "--locked"]);
    // The calling cargo's compiler would be used otherwise.
    cargo.env_remove("RUSTC").env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    status(&mut cargo)?;
    eprintln!("xtask: Rust {version} compiles the workspace");
    Ok(())
}

/// Checks the dependencies.
pub fn deny(args: &[String]) -> Result<()> {
    let checks: &[&str] = match args {
        [] => &["advisories"],
        [flag] if flag == "--without-advisories" => &[],
        [other, ..] => bail!("{other}: unknown; usage:\n{DENY_USAGE}"),
    };
    let deny = tools::ready(&DENY)?;
    let check = |what: &[&str]| {
        let mut cargo = Command::new(&deny);
        cargo.args(["--all-features", "--locked", "check", "--hide-inclusion-graph"]).args(what);
        status(&mut cargo)
    };
    check(&["bans", "licenses", "sources"])?;
    if !checks.is_empty() {
        check(checks).context("where github.com cannot be reached: --without-advisories")?;
    }
    Ok(())
}

/// Compares the library's interface with that of a revision.
pub fn semver_checks(args: &[String]) -> Result<()> {
    let baseline = match args {
        [] => tag()?,
        [flag, revision] if flag == "--baseline" => revision.clone(),
        [other, ..] => bail!("{other}: unknown; usage:\n{SEMVER_USAGE}"),
    };
    let mut cargo = Command::new(tools::ready(&SEMVER_CHECKS)?);
    cargo.args(["semver-checks", "--package", "bilayer", "--baseline-rev", &baseline]);
    // The tool documents the library in a workspace without members, where this setting leaves no library.
    cargo.env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION");
    status(&mut cargo)
}

/// The last release.
fn tag() -> Result<String> {
    let tags = output(Command::new("git").args(["tag", "--list", "v*", "--sort=-v:refname"]))?;
    let last = tags.lines().next().map(str::to_owned);
    last.context("no tag v* to compare with: --baseline REVISION")
}

fn nothing(args: &[String], usage: &str) -> Result<()> {
    if !args.is_empty() {
        bail!("{}: unknown; usage:\n{usage}", args.join(" "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{check_targets, deny, msrv, semver_checks};

    #[test]
    fn what_is_unknown_is_named() {
        for task in [check_targets, msrv, deny, semver_checks] {
            let error = task(&["--foo".to_owned()]).unwrap_err().to_string();
            assert!(error.starts_with("--foo: ") && error.contains("usage:"), "{error}");
        }
    }
}
