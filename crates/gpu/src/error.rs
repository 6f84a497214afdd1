//! Why there is no GPU backend.

/// Errors of opening an adapter. What goes wrong later is a [`bilayer_graph::Error`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No adapter of that name, or none at all.
    #[error("{}", no_adapter(.wanted.as_deref(), .found))]
    NoAdapter {
        /// What was asked for.
        wanted: Option<String>,
        /// The adapters there are.
        found: Vec<String>,
    },
    /// The driver does not open it.
    #[error("cannot open the adapter {adapter}: {reason}")]
    Open {
        /// The adapter.
        adapter: String,
        /// What the driver says.
        reason: String,
    },
    /// The adapter computes wrong results.
    #[error("the adapter {adapter} failed its self-check: {reason}")]
    SelfCheck {
        /// The adapter.
        adapter: String,
        /// What was wrong.
        reason: String,
    },
}

fn no_adapter(wanted: Option<&str>, found: &[String]) -> String {
    let list = if found.is_empty() {
        "there are none (on Linux a Vulkan driver is needed)".to_owned()
    } else {
        format!("there are: {}", found.join(", "))
    };
    match wanted {
        Some(name) => format!("no adapter `{name}`; {list}"),
        None if found.is_empty() => format!("no adapter; {list}"),
        None => format!("no adapter but software ones, which are used only when named; {list}"),
    }
}
