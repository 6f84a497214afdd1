//! Values of absent fields of `config.json`, by class.
//!
//! Source: transformers' configuration classes. A value is listed if without it a checkpoint would become another model, or
//! if published checkpoints omit the field.

use serde_json::{Value as Json, json};

use super::Settings;

/// The configuration with the values of its class for absent fields. A field that is null is not absent.
pub(super) fn filled(settings: Settings<'_>) -> Json {
    let mut config = settings.0.clone();
    let defaults = defaults(config["architectures"][0].as_str().unwrap_or_default());
    if let (Json::Object(fields), Json::Object(defaults)) = (&mut config, defaults) {
        for (field, value) in defaults {
            fields.entry(field).or_insert(value);
        }
    }
    config
}

/// The defaults of a class. Those of fields with several names have the name that is looked for last.
fn defaults(class: &str) -> Json {
    match class {
        "MistralForCausalLM" | "Exaone4ForCausalLM" | "Cohere2ForCausalLM" => {
            json!({"sliding_window": 4096})
        }
        "Phi3ForCausalLM" => json!({"original_max_position_embeddings": 4096}),
        "MixtralForCausalLM" | "Lfm2ForCausalLM" | "Lfm2MoeForCausalLM" => base(1e6),
        "CohereForCausalLM"
        | "Ernie4_5ForCausalLM"
        | "Ernie4_5_MoeForCausalLM"
        | "Llama4ForCausalLM"
        | "Llama4ForConditionalGeneration" => base(5e5),
        "Olmo3ForCausalLM" => json!({"rotary_emb_base": 5e5, "sliding_window": 4096}),
        "GptOssForCausalLM" => json!({"rotary_emb_base": 150_000.0, "sliding_window": 128}),
        "MiniMaxM2ForCausalLM" => base(5e6),
        "SmolLM3ForCausalLM" => base(2e6),
        "NomicBertModel" | "NomicBertForMaskedLM" => base(1000.0),
        class if class.starts_with("ModernBertFor") || class == "ModernBertModel" => {
            base(160_000.0)
        }
        "Glm4ForCausalLM" | "Glm4MoeForCausalLM" => json!({"rope_pct": 0.5}),
        "GPTNeoXForCausalLM"
        | "StableLmForCausalLM"
        | "StableLMEpochForCausalLM"
        | "Qwen3NextForCausalLM"
        | "Qwen3_5ForCausalLM"
        | "Qwen3_5ForConditionalGeneration"
        | "Qwen3_5MoeForCausalLM"
        | "Qwen3_5MoeForConditionalGeneration" => json!({"rope_pct": 0.25}),
        "DeepseekV3ForCausalLM" => json!({
            "norm_topk_prob": true, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
        }),
        "Glm4MoeLiteForCausalLM" => json!({
            "norm_topk_prob": true, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8,
        }),
        "Gemma2ForCausalLM" => json!({"query_pre_attn_scalar": 256, "sliding_window": 4096}),
        "Gemma3ForCausalLM" | "Gemma3ForConditionalGeneration" => gemma3(),
        _ => json!({}),
    }
}

/// The base frequency of RoPE.
fn base(frequency: f32) -> Json {
    json!({"rotary_emb_base": frequency})
}

/// `text_config` of Gemma 3 has only what differs from these.
fn gemma3() -> Json {
    json!({
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 131_072, "rms_norm_eps": 1e-6,
        "query_pre_attn_scalar": 256, "sliding_window": 4096, "rotary_emb_base": 1e6,
        "tie_word_embeddings": true,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use crate::{Settings, draft, of_checkpoint};

    /// The metadata of a class's checkpoint with a few fields.
    fn metadata(class: &str, more: &Json) -> bilayer_gguf::Metadata {
        let mut config = json!({
            "architectures": [class], "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
            "max_position_embeddings": 128, "vocab_size": 99, "intermediate_size": 96, "rms_norm_eps": 1e-5,
            "layer_norm_eps": 1e-5, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
            "v_head_dim": 16, "n_routed_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "num_local_experts": 4,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let settings = Settings(&config);
        draft(of_checkpoint(settings).unwrap(), settings).unwrap().0
    }

    #[test]
    fn a_part_of_the_head_rotates_unless_the_checkpoint_says_otherwise() {
        for (class, architecture, part) in [
            ("StableLmForCausalLM", "stablelm", 4),
            ("StableLMEpochForCausalLM", "stablelm", 4),
            ("GPTNeoXForCausalLM", "gptneox", 4),
            ("Glm4ForCausalLM", "glm4", 8),
            ("Glm4MoeForCausalLM", "glm4moe", 8),
            ("LlamaForCausalLM", "llama", 16),
        ] {
            let dims = |more: Json| {
                metadata(class, &more).u32(&format!("{architecture}.rope.dimension_count")).unwrap()
            };
            assert_eq!(dims(json!({})), part, "{class}");
            for name in ["partial_rotary_factor", "rotary_pct", "rope_pct"] {
                assert_eq!(dims(json!({name: 0.75})), 12, "{class}, {name}");
            }
            assert_eq!(dims(json!({"rope_parameters": {"partial_rotary_factor": 0.75}})), 12);
        }
    }

    #[test]
    fn the_base_frequency_is_that_of_the_class() {
        let base = |class, more| metadata(class, &more).f32("llama.rope.freq_base").unwrap();
        assert_eq!(base("LlamaForCausalLM", json!({})), 1e4);
        assert_eq!(base("MixtralForCausalLM", json!({})), 1e6);
        assert_eq!(base("MixtralForCausalLM", json!({"rope_theta": 5e5})), 5e5);
        assert_eq!(
            base("MixtralForCausalLM", json!({"rope_parameters": {"rope_theta": 7e5}})),
            7e5
        );
    }

    /// A window that is null is none.
    #[test]
    fn the_window_is_that_of_the_class() {
        let soft = json!({"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "logit_scale": 1.0});
        for (class, architecture, expected) in [
            ("Cohere2ForCausalLM", "cohere2", 4096),
            ("Gemma2ForCausalLM", "gemma2", 4096),
            ("Olmo3ForCausalLM", "olmo2", 4096),
            ("GptOssForCausalLM", "gpt-oss", 128),
        ] {
            let key = format!("{architecture}.attention.sliding_window");
            let window = |given: Option<Json>| {
                let mut more = soft.clone();
                if let Some(given) = given {
                    more["sliding_window"] = given;
                }
                metadata(class, &more).u32(&key).ok()
            };
            assert_eq!(window(None), Some(expected), "{class}");
            assert_eq!(window(Some(json!(8))), Some(8), "{class}");
            assert_eq!(window(Some(json!(null))), None, "{class}");
        }
    }

    #[test]
    fn experts_of_deepseek_v3_are_grouped_and_their_weights_normalized() {
        let plain = metadata("DeepseekV3ForCausalLM", &json!({}));
        assert!(plain.opt_bool("deepseek2.expert_weights_norm").unwrap().unwrap());
        assert_eq!(plain.u32("deepseek2.expert_group_count").unwrap(), 8);
        assert_eq!(plain.u32("deepseek2.expert_group_used_count").unwrap(), 4);
        assert_eq!(plain.f32("deepseek2.expert_weights_scale").unwrap(), 2.5);
        let told =
            metadata("DeepseekV3ForCausalLM", &json!({"norm_topk_prob": false, "n_group": 1}));
        assert!(!told.opt_bool("deepseek2.expert_weights_norm").unwrap().unwrap());
        assert_eq!(told.u32("deepseek2.expert_group_count").unwrap(), 1);
    }

    #[test]
    fn a_text_model_of_gemma3_may_say_almost_nothing() {
        let config = json!({
            "architectures": ["Gemma3ForConditionalGeneration"], "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        });
        let settings = Settings(&config);
        let (metadata, _) = draft(of_checkpoint(settings).unwrap(), settings).unwrap();
        let size = |key: &str| metadata.u32(&format!("gemma3.{key}")).unwrap();
        assert_eq!((size("vocab_size"), size("context_length")), (262_208, 131_072));
        assert_eq!((size("attention.head_count"), size("attention.head_count_kv")), (8, 4));
        assert_eq!((size("attention.key_length"), size("attention.sliding_window")), (256, 1024));
        assert_eq!(metadata.f32("gemma3.rope.freq_base").unwrap(), 1e6);
        assert_eq!(metadata.f32("gemma3.attention.scale").unwrap(), 1.0 / 16.0);
    }
}
