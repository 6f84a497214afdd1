//! The promise of the C interface: the example compiles and runs, misuse is refused, and the header is that of the library.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its files shall stop")]
#![expect(clippy::print_stdout, reason = "a test that is skipped says so")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder with the library.
fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A program of one C file, or `None` without a compiler.
fn compiled(source: &str, folder: &Path) -> Option<PathBuf> {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: no C compiler `cc`");
        return None;
    }
    let program = folder.join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-pthread"]);
    cc.arg(crate_folder().join(source)).arg("-I").arg(crate_folder().join("include"));
    cc.arg("-L").arg(libraries()).args(["-lbilayer_c", "-o"]).arg(&program);
    let made = cc.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(program)
}

/// The demo model, relative to the crate.
const DEMO: &str = "../cli/assets/demo.gguf";

/// Runs a program with the library and the demo model.
fn ran(mut command: Command, arguments: &[&str]) -> Output {
    let demo = crate_folder().join(DEMO);
    command.env("LD_LIBRARY_PATH", libraries()).arg(demo).args(arguments);
    command.output().unwrap()
}

#[track_caller]
fn good(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_example_generates() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled("examples/generate.c", folder.path()) else { return };
    let text = good(&ran(Command::new(&program), &[]));
    assert!(text.contains("[16 tokens]"), "{text}");
    assert!(text.contains("[code 130: interrupted]"), "{text}");
    assert!(text.contains("tokens: O me!") || text.contains("tokens:  O me!"), "{text}");
    assert!(text.contains("[code 2: ") && text.contains("embeddings and scores"), "{text}");
    let missing = Command::new(&program)
        .env("LD_LIBRARY_PATH", libraries())
        .arg("missing.gguf")
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(66));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("missing.gguf: no such file"));
}

/// The program of docs/c.md.
#[test]
fn the_program_of_the_guide_generates() {
    let folder = tempfile::tempdir().unwrap();
    let page = std::fs::read_to_string(crate_folder().join("../../docs/c.md")).unwrap();
    let blocks: Vec<&str> = page.split("```c\n").skip(1).collect();
    let [block] = blocks[..] else { panic!("{} programs", blocks.len()) };
    let source = folder.path().join("guide.c");
    // A callback that needs not all that it is given.
    let pragma = "#pragma GCC diagnostic ignored \"-Wunused-parameter\"\n";
    std::fs::write(&source, pragma.to_owned() + block.split_once("```").unwrap().0).unwrap();
    let Some(program) = compiled(source.to_str().unwrap(), folder.path()) else { return };
    std::fs::copy(crate_folder().join(DEMO), folder.path().join("model.gguf")).unwrap();
    let mut command = Command::new(program);
    command.current_dir(folder.path());
    let text = good(&ran(command, &[]));
    assert!(text.len() > 20, "{text}");
}

#[test]
fn misuse_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled("tests/misuse.c", folder.path()) else { return };
    assert_eq!(good(&ran(Command::new(&program), &["4"])), "refused\n");
}

/// The program opens a model with a wrong value for every setting of the library, which must be named.
#[test]
fn every_setting_of_the_library_can_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<&str> = bilayer::settings::names().collect();
    let page = std::fs::read_to_string(crate_folder().join("../../docs/c.md")).unwrap();
    for name in &names {
        assert!(page.contains(&format!("`{name}`")), "docs/c.md lacks {name}");
    }
    let Some(program) = compiled("tests/settings.c", folder.path()) else { return };
    assert_eq!(good(&ran(Command::new(&program), &names)), "named\n");
}

/// Takes a minute, so it is asked for: `cargo xtask valgrind`.
#[test]
#[ignore = "takes a minute"]
fn misuse_leaks_nothing_and_reads_nothing_foreign() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compiled("tests/misuse.c", folder.path()) else { return };
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: no valgrind");
        return;
    }
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--error-exitcode=9", "--fair-sched=yes", "--leak-check=full"]);
    // A handle of the main thread stays in std: possibly lost, not definitely.
    valgrind.arg("--errors-for-leak-kinds=definite").arg(&program);
    assert_eq!(good(&ran(valgrind, &["1"])), "refused\n");
}

/// Names of functions, and of fields, that a text declares, as a pattern finds them.
fn names(text: &str, before: &str, after: char) -> BTreeSet<String> {
    let starts = text.match_indices(before).map(|(at, _)| &text[at + before.len()..]);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = starts.filter_map(|rest| {
        let end = rest.find(|c| !is_name(c))?;
        rest[end..].starts_with(after).then(|| format!("bilayer_{}", &rest[..end]))
    });
    names.collect()
}

/// `cargo xtask c-header` writes the header; this finds that it was forgotten.
#[test]
fn the_header_has_every_function_and_constant() {
    let header = std::fs::read_to_string(crate_folder().join("include/bilayer.h")).unwrap();
    let mut sources = String::new();
    for entry in std::fs::read_dir(crate_folder().join("src")).unwrap() {
        sources += &std::fs::read_to_string(entry.unwrap().path()).unwrap();
    }
    let functions = names(&sources, "extern \"C\" fn bilayer_", '(');
    assert!(functions.len() >= 12, "{functions:?}");
    for name in &functions {
        assert!(header.contains(&format!("{name}(")), "the header lacks {name}");
    }
    let constants = names(&sources, "pub const BILAYER_", ':');
    assert!(constants.len() >= 9, "{constants:?}");
    for name in constants {
        let name = name.replace("bilayer_", "BILAYER_");
        assert!(header.contains(&format!("{name} ")), "the header lacks {name}");
    }
    let declared =
        names(&header, " bilayer_", '(').into_iter().chain(names(&header, "*bilayer_", '('));
    assert_eq!(declared.collect::<BTreeSet<_>>(), functions);
}
