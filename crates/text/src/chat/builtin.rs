//! Built-in chat formats, for files without a template.

/// A well-known chat format.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Its name, the same as llama.cpp's where that has one.
    pub name: &'static str,
    pub(super) source: &'static str,
    /// Texts that end an answer or begin the next question.
    pub(super) ends: &'static [&'static str],
}

macro_rules! table {
    ($($name:literal ends $($end:literal),*;)*) => {
        &[$(Builtin {
            name: $name,
            source: include_str!(concat!("builtin/", $name, ".jinja")),
            ends: &[$($end),*],
        }),*]
    };
}

/// All formats. Sources: the templates of the published models.
const ALL: &[Builtin] = table! {
    "chatml" ends "<|im_end|>";
    "llama2" ends "</s>", "[INST]";
    "llama3" ends "<|eot_id|>";
    "mistral-v1" ends "</s>", "[INST]";
    "mistral-v3" ends "</s>", "[INST]";
    "gemma" ends "<end_of_turn>";
    "phi3" ends "<|end|>";
    "phi4" ends "<|im_end|>";
    "zephyr" ends "<|user|>";
    "vicuna" ends "</s>", "USER:";
    "deepseek3" ends "<｜end▁of▁sentence｜>", "<｜User｜>";
    "command-r" ends "<|END_OF_TURN_TOKEN|>";
    "granite" ends "<|end_of_text|>", "<|start_of_role|>";
    "falcon3" ends "<|user|>";
};

impl Builtin {
    /// All formats.
    pub fn all() -> &'static [Builtin] {
        ALL
    }

    /// The format of that name.
    pub fn find(name: &str) -> Option<&'static Builtin> {
        ALL.iter().find(|builtin| builtin.name == name)
    }
}
