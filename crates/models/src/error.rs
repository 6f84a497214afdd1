//! What can be wrong between a file's metadata and a recorded graph.

/// Errors of this crate; each names the key, the tensor or the architecture.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key is absent or of another kind.
    #[error(transparent)]
    Metadata(#[from] bilayer_gguf::Error),
    /// The file's architecture has no file here.
    #[error("architecture `{name}` is not supported; known are: {}", known())]
    UnknownArchitecture {
        /// What `general.architecture` says.
        name: String,
    },
    /// A key's value cannot be that of a model.
    #[error("key {key}: expected {expected}, found {found}; convert the model again")]
    Value {
        /// The key.
        key: String,
        /// What a model may have there.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// A key asks for something this architecture's code does not do.
    #[error("key {key} is {found}: {feature} is not supported for this architecture")]
    Unsupported {
        /// The key.
        key: String,
        /// What the file has.
        found: String,
        /// What it would take.
        feature: &'static str,
    },
    /// A checkpoint's class has no architecture here.
    #[error("class `{class}` is not supported; known are: {}", classes())]
    UnknownClass {
        /// What `architectures` says.
        class: String,
    },
    /// A checkpoint's `config.json` lacks a field.
    #[error("`{names}` is missing")]
    MissingField {
        /// The names it may go by.
        names: String,
    },
    /// A field holds what no model of its kind can have.
    #[error("`{field}`: expected {expected}, found {found}")]
    Field {
        /// The field.
        field: String,
        /// What may stand there.
        expected: String,
        /// What does.
        found: String,
    },
    /// A field asks for something this architecture's code does not do.
    #[error("`{field}` is {found}: {feature} is not supported for this architecture")]
    UnsupportedField {
        /// The field.
        field: String,
        /// What it holds.
        found: String,
        /// What it would take.
        feature: &'static str,
    },
    /// The file holds a tensor that the recorded model would not use: its logits would be wrong.
    #[error(
        "tensor `{name}` has no place in architecture `{architecture}` as it is known here; \
         the model is of a variant that is not supported"
    )]
    UnusedTensor {
        /// The tensor.
        name: String,
        /// The architecture.
        architecture: &'static str,
    },
    /// A tensor is missing or has another shape or type than the metadata implies.
    #[error(transparent)]
    Graph(#[from] bilayer_graph::Error),
}

impl Error {
    /// The tensor of the file that is to blame, where it is one that is there.
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
