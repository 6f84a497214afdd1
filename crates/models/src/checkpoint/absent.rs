//! Values of absent fields of `config.json`.
//!
//! Source: transformers' configuration classes. A value is listed if without it a checkpoint would become another model, or
//! if published checkpoints omit the field.

use serde_json::{Value as Json, json};

use super::Settings;

/// The value of a field that checkpoints leave out. A field that is null is not absent.
#[derive(Clone, Copy, Debug)]
pub struct Absent {
    /// The field. One with several names has the name that is looked for last.
    field: &'static str,
    value: AbsentValue,
    /// The class whose checkpoints it is for; those of the whole architecture without one.
    class: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
enum AbsentValue {
    Size(u32),
    Number(f64),
    Yes,
    Text(&'static str),
}

impl Absent {
    const fn new(field: &'static str, value: AbsentValue) -> Absent {
        Absent { field, value, class: None }
    }

    /// A count or length.
    pub(crate) const fn size(field: &'static str, value: u32) -> Absent {
        Absent::new(field, AbsentValue::Size(value))
    }

    /// A number.
    pub(crate) const fn number(field: &'static str, value: f64) -> Absent {
        Absent::new(field, AbsentValue::Number(value))
    }

    /// A flag that is true.
    pub(crate) const fn yes(field: &'static str) -> Absent {
        Absent::new(field, AbsentValue::Yes)
    }

    /// A text.
    pub(crate) const fn text(field: &'static str, value: &'static str) -> Absent {
        Absent::new(field, AbsentValue::Text(value))
    }

    /// Of one class of the architecture alone.
    pub(crate) const fn of(self, class: &'static str) -> Absent {
        Absent { class: Some(class), ..self }
    }
}

/// The configuration with values for absent fields.
pub(super) fn filled(settings: Settings<'_>, absent: &[Absent]) -> Json {
    let mut config = settings.0.clone();
    let class = config["architectures"][0].as_str().unwrap_or_default().to_owned();
    if let Json::Object(fields) = &mut config {
        for of in absent.iter().filter(|of| of.class.is_none_or(|of| of == class)) {
            let value = match of.value {
                AbsentValue::Size(value) => json!(value),
                AbsentValue::Number(value) => json!(value),
                AbsentValue::Yes => json!(true),
                AbsentValue::Text(value) => json!(value),
            };
            fields.entry(of.field).or_insert(value);
        }
    }
    config
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
            ("Gemma2Model", "gemma2", 4096),
            ("MistralForCausalLM", "llama", 4096),
            ("MistralModel", "llama", 4096),
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
