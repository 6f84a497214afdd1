//! ollama's store, read in place: manifests in JSON name the blob that is the GGUF file.
//!
//! ```text
//! manifests/registry.ollama.ai/library/llama3.2/1b     layers, each with a media type and a digest
//! blobs/sha256-<hex>
//! ```

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::found::{Found, Origin};
use crate::name::relative;
use crate::{Error, walk};

/// The registry that a name without one means, and its folder of models without an owner.
const REGISTRY: &str = "registry.ollama.ai";
const LIBRARY: &str = "library";

/// The layer that is the model.
const MODEL: &str = "application/vnd.ollama.image.model";

/// The layers that adapt it.
const ADAPTER: &str = "application/vnd.ollama.image.adapter";

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
/// No store has it, its manifest is damaged, or it has LoRA adapters, which are no part of a model's file.
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
            let layers = Layers::read(store, &manifest)?;
            let (model, adapters) = (layers.model()?, layers.adapters()?);
            let name = format!("ollama:{name}");
            return match adapters.is_empty() {
                true => Ok(model),
                false => Err(Error::Adapter { name, model, adapters }),
            };
        }
    }
    Err(missing())
}

/// Every model in the stores.
pub(crate) fn list(stores: &[PathBuf]) -> Vec<Found> {
    let of_store = |store: &PathBuf| {
        let manifests = store.join("manifests");
        let named = |path: String| {
            let file = Layers::read(store, &manifests.join(&path)).ok()?.model().ok()?;
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

/// The layers of a manifest.
struct Layers<'p> {
    store: &'p Path,
    manifest: &'p Path,
    layers: Vec<Layer>,
}

impl<'p> Layers<'p> {
    fn read(store: &'p Path, manifest: &'p Path) -> Result<Layers<'p>, Error> {
        let wrong = |reason: String| Error::Manifest { path: manifest.to_owned(), reason };
        let facts = manifest.metadata().map_err(Error::io(manifest))?;
        if facts.len() > MANIFEST_BYTES_MAX {
            return Err(wrong(format!("{} bytes are no manifest", facts.len())));
        }
        let text = std::fs::read_to_string(manifest).map_err(Error::io(manifest))?;
        let Manifest { layers } =
            serde_json::from_str(&text).map_err(|error| wrong(format!("no manifest: {error}")))?;
        Ok(Layers { store, manifest, layers })
    }

    /// The GGUF file of the model.
    fn model(&self) -> Result<PathBuf, Error> {
        let file = self.of_type(MODEL).next();
        file.ok_or_else(|| self.wrong(format!("no layer of type {MODEL}")))?
    }

    /// LoRA adapters in GGUF files.
    fn adapters(&self) -> Result<Vec<PathBuf>, Error> {
        self.of_type(ADAPTER).collect()
    }

    fn of_type(&self, ty: &'static str) -> impl Iterator<Item = Result<PathBuf, Error>> {
        let layers = self.layers.iter().filter(move |layer| layer.media_type == ty);
        layers.map(|layer| blob(self.store, layer).map_err(|reason| self.wrong(reason)))
    }

    fn wrong(&self, reason: String) -> Error {
        Error::Manifest { path: self.manifest.to_owned(), reason }
    }
}

/// The file of a layer, or what is wrong.
fn blob(store: &Path, layer: &Layer) -> Result<PathBuf, String> {
    let hex = layer.digest.strip_prefix("sha256:");
    let is_sha256 =
        |hex: &&str| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hex = hex.filter(is_sha256);
    let hex = hex.ok_or_else(|| format!("`{}` is no SHA-256 digest", layer.digest))?;
    let blob = store.join("blobs").join(format!("sha256-{hex}"));
    match blob.is_file() {
        true => Ok(blob),
        false => Err(format!("its blob {} is missing", blob.display())),
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
