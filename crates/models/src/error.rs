//! Errors between a file's metadata and a recorded graph.

/// Errors of this crate; each one names the key, tensor or architecture.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key is absent or of another kind.
    #[error(transparent)]
    Metadata(#[from] bilayer_gguf::Error),
    /// The architecture is not supported.
    #[error("architecture `{name}` is not supported; supported: {}", known())]
    UnknownArchitecture {
        /// The value of `general.architecture`.
        name: String,
    },
    /// A key has a value that no model can have.
    #[error("key {key}: expected {expected}, found {found}; convert the model again")]
    Value {
        /// The key.
        key: String,
        /// The valid values.
        expected: String,
        /// The value in the file.
        found: String,
    },
    /// A key requests a feature that this architecture does not implement.
    #[error("key {key} is {found}: {feature} is not supported for this architecture")]
    Unsupported {
        /// The key.
        key: String,
        /// The value in the file.
        found: String,
        /// The unsupported feature.
        feature: &'static str,
    },
    /// A model cannot lose these layers.
    #[error("{what}: {reason}; no layer of it can be removed so")]
    Cut {
        /// The architecture, and the layer or key.
        what: String,
        /// Why.
        reason: &'static str,
    },
    /// The class of a checkpoint is not supported.
    #[error("class `{class}` is not supported; supported: {}", classes())]
    UnknownClass {
        /// The value of `architectures`.
        class: String,
    },
    /// A checkpoint's `config.json` lacks a field.
    #[error("`{names}` is missing")]
    MissingField {
        /// The accepted names of the field.
        names: String,
    },
    /// A field has a value that no model can have.
    #[error("`{field}`: expected {expected}, found {found}")]
    Field {
        /// The field.
        field: String,
        /// The valid values.
        expected: String,
        /// The value found.
        found: String,
    },
    /// A field requests a feature that this architecture does not implement.
    #[error("`{field}` is {found}: {feature} is not supported for this architecture")]
    UnsupportedField {
        /// The field.
        field: String,
        /// The value found.
        found: String,
        /// The unsupported feature.
        feature: &'static str,
    },
    /// The file contains a tensor that the recorded model would ignore, so its logits would be wrong.
    #[error(
        "tensor `{name}` is not used by architecture `{architecture}`; \
         this variant of the model is not supported"
    )]
    UnusedTensor {
        /// The tensor.
        name: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// A tensor is missing, or its shape or type contradicts the metadata.
    #[error(transparent)]
    Graph(#[from] bilayer_graph::Error),
}

impl Error {
    /// The tensor at fault, if the file contains it.
    pub fn tensor(&self) -> Option<&str> {
        use bilayer_graph::Error as Graph;
        match self {
            Error::Graph(Graph::TensorShape { name, .. }) | Error::UnusedTensor { name, .. } => {
                Some(name)
            }
            _ => None,
        }
    }
}

fn known() -> String {
    crate::all().iter().map(|architecture| architecture.name).collect::<Vec<_>>().join(", ")
}

fn classes() -> String {
    let classes = crate::all().iter().flat_map(|known| known.checkpoint.classes).copied();
    classes.collect::<Vec<_>>().join(", ")
}
