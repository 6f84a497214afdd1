//! Lists the files of /shaders for embedding, so that a new one is included automatically.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    // The path of this checkout, not of the one that compiled this script: checkouts may share a target folder.
    let crate_root = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&crate_root).join("../../shaders");
    println!("cargo:rerun-if-changed={}", root.display());
    let (mut folders, mut files) = (vec![root.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        println!("cargo:rerun-if-changed={}", folder.display());
        for entry in std::fs::read_dir(&folder).expect("shaders/ lies beside crates/") {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "wgsl") {
                files.push(path);
            }
        }
    }
    files.sort();
    let mut table = String::from("&[\n");
    for file in files {
        let file = file.canonicalize().expect("it was just listed");
        let stem = file.strip_prefix(root.canonicalize().expect("it was just read"));
        let stem = stem.expect("below the root").with_extension("");
        let stem = stem.to_string_lossy().replace('\\', "/");
        writeln!(table, "    ({stem:?}, include_str!({:?})),", file.display().to_string())
            .expect("a string takes everything");
    }
    table.push(']');
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    std::fs::write(out.join("shaders.rs"), table).expect("OUT_DIR can be written to");
}
