//! Errors of opening a GPU.

/// Errors of opening an adapter. Later failures are [`bilayer_graph::Error`]s.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No adapter matches, or there is none.
    #[error("{}", no_adapter(.wanted.as_deref(), .found))]
    NoAdapter {
        /// The requested name.
        wanted: Option<String>,
        /// The available adapters.
        found: Vec<String>,
    },
    /// The driver cannot open it.
    #[error("cannot open the adapter {adapter}: {reason}")]
    Open {
        /// The adapter.
        adapter: String,
        /// The driver's message.
        reason: String,
    },
    /// The adapter computes wrong results.
    #[error("the adapter {adapter} failed its self-check: {reason}")]
    SelfCheck {
        /// The adapter.
        adapter: String,
        /// The problem.
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
        Some(name) => format!("no GPU `{name}`; {list}"),
        None if found.is_empty() => format!("no GPU; {list}"),
        None => format!("no GPU but software ones, which are used only when named; {list}"),
    }
}
