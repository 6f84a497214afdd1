//! The settings that messages name.

macro_rules! settings {
    ($($setting:ident: $name:literal, $long:literal $(, $short:literal)?;)*) => {
        /// A setting that messages name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Setting {
            $(#[doc = concat!("`", $long, "`, in programs `", $name, "`.")] $setting,)*
        }

        impl Setting {
            /// All of them.
            pub const ALL: &[Setting] = &[$(Setting::$setting),*];

            /// Its name in programs: a method of the library's `Builder`, an argument in Python, a key in C, or a variable of
            /// the environment.
            pub fn name(self) -> &'static str {
                match self {
                    $(Setting::$setting => $name,)*
                }
            }

            /// Its flags on the command line: the long one, and the short one if there is one.
            pub fn flags(self) -> &'static [&'static str] {
                match self {
                    $(Setting::$setting => &[$long $(, $short)?],)*
                }
            }
        }
    };
}

settings! {
    // Text and KV cache.
    Context: "context", "--ctx-size", "-c";
    UbatchSize: "ubatch_size", "--ubatch-size", "-ub";
    Checkpoints: "checkpoints", "--ctx-checkpoints";
    CacheTypeK: "cache_type", "--cache-type-k", "-ctk";
    CacheTypeV: "cache_type", "--cache-type-v", "-ctv";
    HadamardKeys: "hadamard_keys", "--k-cache-hadamard", "-khad";
    Parallel: "parallel", "--parallel", "-np";
    // The CPU.
    Threads: "threads", "--threads", "-t";
    Numa: "numa", "--numa";
    NoMmap: "no_mmap", "--no-mmap";
    // Placement.
    GpuLayers: "gpu_layers", "--gpu-layers", "-ngl";
    TensorSplit: "tensor_split", "--tensor-split", "-ts";
    MainGpu: "main_gpu", "--main-gpu", "-mg";
    GpuBytes: "gpu_bytes", "--vram";
    MarginBytes: "margin_bytes", "--fit-target", "-fitt";
    OverrideTensor: "override_tensor", "--override-tensor", "-ot";
    ExpertCache: "expert_cache", "--expert-cache";
    ExpertCounts: "expert_counts", "--expert-counts";
    // Drafts.
    Lookup: "lookup", "--lookup";
    DraftModel: "draft_model", "--model-draft", "-md";
    DraftMax: "draft_max", "--draft-max";
    DraftMin: "draft_min", "--draft-min";
    DraftPMin: "draft_p_min", "--draft-p-min";
    // What a model is for, and its texts.
    Lora: "lora", "--lora";
    Pooling: "pooling", "--pooling";
    ChatTemplate: "chat_template", "--chat-template";
    Tokens: "tokens", "--tokens";
    Truncate: "truncate", "--truncate";
    PromptName: "prompt_name", "--prompt-name";
    Aggregation: "aggregation", "--aggregation";
    Stride: "stride", "--stride";
    // Making files and measuring.
    Imatrix: "imatrix", "--imatrix";
    AllowRequantize: "allow_requantize", "--allow-requantize";
    NoVocab: "no_vocab", "--no-vocab";
    PromptTokens: "prompt_tokens", "--n-prompt", "-p";
    DecodeTokens: "decode_tokens", "--n-gen", "-n";
    // The Hugging Face hub.
    Offline: "HF_HUB_OFFLINE", "--offline";
    HfToken: "HF_TOKEN", "--hf-token";
}

impl Setting {
    /// The flag that messages name: the short one if there is one.
    pub fn flag(self) -> &'static str {
        self.flags().last().unwrap_or(&"")
    }
}

#[cfg(test)]
mod tests {
    use super::Setting;

    #[test]
    fn messages_name_the_short_flag_if_there_is_one() {
        assert_eq!(Setting::Context.flag(), "-c");
        assert_eq!(Setting::Numa.flag(), "--numa");
        for setting in Setting::ALL {
            assert!(setting.flags()[0].starts_with("--"), "{setting:?}");
            assert!(setting.flag().starts_with('-'), "{setting:?}");
        }
    }

    #[test]
    fn each_flag_is_of_one_setting() {
        let flags: Vec<&str> = Setting::ALL.iter().flat_map(|of| of.flags()).copied().collect();
        for flag in &flags {
            assert_eq!(flags.iter().filter(|other| other == &flag).count(), 1, "{flag}");
        }
    }
}
