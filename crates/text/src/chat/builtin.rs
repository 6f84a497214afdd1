//! Built-in chat formats, for files without a template.

/// A well-known chat format.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Its name, the same as llama.cpp's where that has one.
    pub name: &'static str,
    pub(super) source: &'static str,
    /// Tokens that end an answer, and markers of the next question that begin with line breaks. Others, such as `User:`,
    /// would end ordinary answers.
    pub(super) ends: &'static [&'static str],
    /// The family of its replies, of which the source need not say anything.
    pub(super) replies: &'static str,
}

macro_rules! table {
    ($($name:literal $(as $file:literal)? ends $($end:literal),* $(; replies $replies:literal)?;)*) => {
        &[$(Builtin {
            name: $name,
            source: include_str!(concat!("builtin/", first!($($file,)? $name), ".jinja")),
            ends: &[$($end),*],
            replies: first!($($replies,)? "generic"),
        }),*]
    };
}

macro_rules! first {
    ($first:literal $(, $other:literal)?) => {
        $first
    };
}

/// All formats. Sources: the templates of the published models.
const ALL: &[Builtin] = table! {
    "chatml" ends "<|im_end|>";
    "llama2" ends "</s>";
    "llama2-sys" ends "</s>";
    "llama2-sys-bos" ends "</s>";
    "llama2-sys-strip" ends "</s>";
    "llama3" ends "<|eot_id|>";
    "llama4" ends "<|eot|>"; replies "llama4";
    "mistral-v1" ends "</s>";
    "mistral-v3" ends "</s>"; replies "mistral-v3";
    "mistral-v3-tekken" ends "</s>"; replies "mistral-v3";
    "mistral-v7" ends "</s>"; replies "mistral-v3";
    "mistral-v7-tekken" ends "</s>"; replies "mistral-v3";
    "gemma" ends "<end_of_turn>";
    "phi3" ends "<|end|>";
    "phi4" ends "<|im_end|>";
    "zephyr" ends "\n<|user|>\n";
    "vicuna" ends "</s>";
    "vicuna-orca" ends "</s>";
    "deepseek" ends "<|EOT|>";
    "deepseek2" ends "<｜end▁of▁sentence｜>";
    "deepseek3" ends "<｜end▁of▁sentence｜>"; replies "deepseek-r1";
    "deepseek-ocr" ends "<｜end▁of▁sentence｜>";
    "command-r" ends "<|END_OF_TURN_TOKEN|>"; replies "command-r";
    "granite" ends "<|end_of_text|>"; replies "granite3";
    "granite-4.0" ends "<|end_of_text|>"; replies "hermes";
    "granite-4.1" as "granite-4.0" ends "<|end_of_text|>"; replies "hermes";
    "falcon3" ends "\n<|user|>\n";
    "monarch" ends "</s>";
    "orion" ends "</s>";
    "openchat" ends "<|end_of_turn|>";
    "chatglm3" ends "<|user|>", "<|observation|>";
    "chatglm4" ends "<|user|>", "<|observation|>";
    "glmedge" ends "<|user|>", "<|observation|>";
    "minicpm" ends "</s>";
    "exaone3" ends "[|endofturn|]";
    "exaone4" ends "[|endofturn|]";
    "exaone-moe" ends "<|endofturn|>"; replies "hermes";
    // Its models have no token that ends an answer, so a dialogue in an answer ends it.
    "rwkv-world" ends "\n\nUser: ";
    "gigachat" ends "<|message_sep|>";
    "megrez" ends "<|turn_end|>";
    "yandex" ends "</s>";
    "bailing" ends "<|endoftext|>";
    "bailing-think" ends "<|endoftext|>";
    "bailing2" ends "<|role_end|>"; replies "hermes";
    "smolvlm" ends "<end_of_utterance>";
    "hunyuan-moe" ends "<|eos|>";
    "hunyuan-dense" ends "<｜hy_place▁holder▁no▁2｜>";
    "hunyuan-vl" ends "<｜hy_Assistant｜>", "<｜hy_place▁holder▁no▁2｜>";
    "kimi-k2" ends "<|im_end|>"; replies "kimi-k2";
    "gpt-oss" ends "<|return|>"; replies "gpt-oss";
    "seed_oss" ends "<seed:eos>"; replies "seed-oss";
    "grok-2" ends "<|separator|>";
    "pangu-embedded" ends "[unused10]";
    "solar-open" ends "<|flush|>", "<|calls|>"; replies "solar-open";
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

    /// The format with that source.
    pub(super) fn of_source(source: &str) -> Option<&'static Builtin> {
        ALL.iter().find(|builtin| builtin.source == source)
    }
}
