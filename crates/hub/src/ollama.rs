//! ollama's store, read in place: manifests in JSON name the blob that is the GGUF file.
//!
//! ```text
//! manifests/registry.ollama.ai/library/llama3.2/1b     layers, each with a media type and a digest
//! blobs/sha256-<hex>
//! ```

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::listing::{Found, Origin};
use crate::name::relative;
use crate::{Error, walk};

/// The registry that a name without one means, and its folder of models without an owner.
const REGISTRY: &str = "registry.ollama.ai";
const LIBRARY: &str = "library";

/// The layer that is the model.
const MODEL: &str = "application/vnd.ollama.image.model";

/// Registry, owner, name: folders above a manifest.
const DEPTH: usize = 3;

/// Bytes that a manifest has at most.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

/// The GGUF file of `name` or `name:tag`.
///
/// # Errors
/// No store has it, or its manifest is damaged.
pub(crate) fn locate(stores: &[PathBuf], name: &str) -> Result<PathBuf, Error> {
    let missing = || Error::NotInStore {
        store: "ollama",
        name: name.to_owned(),
        folders: stores.iter().filter(|store| store.is_dir()).cloned().collect(),
    };
    let path = relative(&manifest_path(name)).ok_or_else(missing)?;
    for store in stores {
        let manifest = store.join("manifests").join(&path);
        if manifest.is_file() {
            return model(store, &manifest);
        }
    }
    Err(missing())
}

/// Every model in the stores.
pub(crate) fn list(stores: &[PathBuf]) -> Vec<Found> {
    let of_store = |store: &PathBuf| {
        let manifests = store.join("manifests");
        let named = |path: String| {
            let file = model(store, &manifests.join(&path)).ok()?;
            let name = format!("ollama:{}", model_name(&path)?);
            Found::new(name, Origin::Ollama, file, &[])
        };
        let found: Vec<Found> =
            walk::files(&manifests, DEPTH).into_iter().filter_map(named).collect();
        found
    };
    stores.iter().flat_map(of_store).collect()
}

/// The path of the manifest of `[[registry/]owner/]name[:tag]`.
fn manifest_path(name: &str) -> String {
    // A registry may have a port.
    let (name, tag) = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (name, "latest"),
    };
    match name.matches('/').count() {
        0 => format!("{REGISTRY}/{LIBRARY}/{name}/{tag}"),
        1 => format!("{REGISTRY}/{name}/{tag}"),
        _ => format!("{name}/{tag}"),
    }
}

/// The shortest name of the model with that manifest.
fn model_name(path: &str) -> Option<String> {
    let (name, tag) = path.rsplit_once('/')?;
    let name = name.strip_prefix(&format!("{REGISTRY}/")).unwrap_or(name);
    let name = name.strip_prefix(&format!("{LIBRARY}/")).unwrap_or(name);
    Some(format!("{name}:{tag}"))
}

/// The blob of the model that a manifest describes.
fn model(store: &Path, manifest: &Path) -> Result<PathBuf, Error> {
    let wrong = |reason: String| Error::Manifest { path: manifest.to_owned(), reason };
    let facts = manifest.metadata().map_err(Error::io(manifest))?;
    if facts.len() > MANIFEST_BYTES_MAX {
        return Err(wrong(format!("{} bytes are no manifest", facts.len())));
    }
    let text = std::fs::read_to_string(manifest).map_err(Error::io(manifest))?;
    let read: Manifest =
        serde_json::from_str(&text).map_err(|error| wrong(format!("no manifest: {error}")))?;
    let layer = read.layers.iter().find(|layer| layer.media_type == MODEL);
    let layer = layer.ok_or_else(|| wrong(format!("no layer of type {MODEL}")))?;
    let hex = layer
        .digest
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let hex = hex.ok_or_else(|| wrong(format!("`{}` is no SHA-256 digest", layer.digest)))?;
    let blob = store.join("blobs").join(format!("sha256-{hex}"));
    match blob.is_file() {
        true => Ok(blob),
        false => Err(wrong(format!("its blob {} is missing", blob.display()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_manifests_belong_together() {
        let cases = [
            ("llama3.2", "registry.ollama.ai/library/llama3.2/latest", "llama3.2:latest"),
            ("llama3.2:1b", "registry.ollama.ai/library/llama3.2/1b", "llama3.2:1b"),
            ("me/mine:q4", "registry.ollama.ai/me/mine/q4", "me/mine:q4"),
            ("hf.co/org/repo:Q4_K_M", "hf.co/org/repo/Q4_K_M", "hf.co/org/repo:Q4_K_M"),
        ];
        for (name, path, shown) in cases {
            assert_eq!(manifest_path(name), path);
            assert_eq!(model_name(path).as_deref(), Some(shown));
        }
        assert!(matches!(locate(&[], "../../x"), Err(Error::NotInStore { .. })));
    }
}
