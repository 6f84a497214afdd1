//! DeepSeek V2 and V3, R1, Kimi K2, GLM-4.7-Flash, Mistral Large 3: latent attention, leading dense layers, then experts
//! in groups beside shared ones.

use bilayer_gguf::Metadata;
use bilayer_graph::{Pairs, Score};

use crate::checkpoint::missing;
use crate::experts::Weights;
use crate::keys::Keys;
use crate::{
    Absent, Architecture, Checkpoint, Config, Draft, Error, Experts, Mixer, Name, Norm, Rotary,
    checkpoint, decoder, latent, names, tiny,
};

const NAME: &str = "deepseek2";

/// Tokens and layers, with the block for multi-token prediction or without, of GLM-4.7-Flash, whose scores are sigmoids;
/// many files do not say so.
const GLM_FLASH: (usize, [usize; 2]) = (154_880, [47, 48]);

/// Entry in the table of architectures.
pub(crate) static ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    config,
    record: decoder::record,
    tiny: || {
        let more = [
            ("attention.head_count_kv", 1u32.into()),
            ("attention.kv_lora_rank", 32u32.into()),
            ("attention.q_lora_rank", 48u32.into()),
            ("attention.key_length_mla", 24u32.into()),
            ("attention.value_length_mla", 16u32.into()),
            ("rope.dimension_count", 8u32.into()),
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", 4f32.into()),
            ("rope.scaling.original_context_length", 64u32.into()),
            ("rope.scaling.yarn_log_multiplier", 0.1f32.into()),
            ("leading_dense_block_count", 1u32.into()),
            ("expert_count", 8u32.into()),
            ("expert_used_count", 3u32.into()),
            ("expert_group_count", 4u32.into()),
            ("expert_group_used_count", 2u32.into()),
            ("expert_feed_forward_length", 32u32.into()),
            ("expert_shared_count", 1u32.into()),
            ("expert_gating_func", 2u32.into()),
            ("expert_weights_norm", true.into()),
            ("expert_weights_scale", 2.5f32.into()),
        ];
        tiny::decoder(NAME, Norm::Rms, &more)
    },
    names: &[
        names::ENDS,
        names::GATED,
        names::EXPERTS,
        names::SHARED_EXPERTS,
        names::NORMS,
        names::MTP,
        &[
            names::SELECTION_BIAS,
            Name::kept("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
            Name::kept("blk.{}.attn_q_a", "model.layers.{}.self_attn.q_a_proj"),
            Name::kept("blk.{}.attn_q_a_norm", "model.layers.{}.self_attn.q_a_layernorm"),
            Name::kept("blk.{}.attn_q_b", "model.layers.{}.self_attn.q_b_proj"),
            Name::kept("blk.{}.attn_kv_a_mqa", "model.layers.{}.self_attn.kv_a_proj_with_mqa"),
            Name::kept("blk.{}.attn_kv_a_norm", "model.layers.{}.self_attn.kv_a_layernorm"),
            Name::keys_of_heads("blk.{}.attn_k_b", "model.layers.{}.self_attn.kv_b_proj"),
            Name::values_of_heads("blk.{}.attn_v_b", "model.layers.{}.self_attn.kv_b_proj"),
            Name::kept("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
        ],
    ],
    // Files have it beside its parts, or are given these.
    ignored: &[latent::WHOLE, ".rotary_emb.inv_freq"],
    checkpoint: Checkpoint {
        classes: &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"],
        activations: &["silu"],
        fields: &[
            checkpoint::SIZES,
            checkpoint::FEED_FORWARD,
            checkpoint::RMS,
            checkpoint::EXPERTS,
            checkpoint::ROUTED,
            checkpoint::LATENT,
        ],
        more,
        absent: &[
            Absent::yes("norm_topk_prob").of("DeepseekV3ForCausalLM"),
            Absent::size("n_group", 8).of("DeepseekV3ForCausalLM"),
            Absent::size("topk_group", 4).of("DeepseekV3ForCausalLM"),
            Absent::number("routed_scaling_factor", 2.5).of("DeepseekV3ForCausalLM"),
            Absent::yes("norm_topk_prob").of("Glm4MoeLiteForCausalLM"),
            Absent::size("n_group", 1).of("Glm4MoeLiteForCausalLM"),
            Absent::size("topk_group", 1).of("Glm4MoeLiteForCausalLM"),
            Absent::number("routed_scaling_factor", 1.8).of("Glm4MoeLiteForCausalLM"),
        ],
        ..Checkpoint::USUAL
    },
};

fn more(draft: &mut Draft<'_>) -> Result<(), Error> {
    draft.refuse("moe_layer_freq", &[1.into()], "experts in some layers only")?;
    draft.refuse("rope_interleave", &[true.into()], "rotation of the halves of a head")?;
    router(draft)?;
    let of = |name: &'static str| draft.needed_size(&[name]);
    let (rank, rotated) = (of("kv_lora_rank")?, of("qk_rope_head_dim")?);
    let plain = of("qk_nope_head_dim")?;
    draft.set("attention.head_count_kv", 1u32);
    draft.set("attention.key_length", rank.saturating_add(rotated));
    draft.set("attention.value_length", rank);
    draft.set("attention.key_length_mla", plain.saturating_add(rotated));
    checkpoint::rope(draft)?;
    draft.set("rope.dimension_count", rotated);
    amplitude(draft)
}

/// How experts are chosen: V2 by softmax scores, from the groups with the best expert or from all; V3 and GLM-4.7-Flash by
/// sigmoid scores, from the groups with the best two.
fn router(draft: &mut Draft<'_>) -> Result<(), Error> {
    let is_v3 = draft.settings.0["architectures"][0] != "DeepseekV2ForCausalLM";
    let method = draft.settings.text(&["topk_method"])?;
    let (score, methods) = match is_v3 {
        true => ("sigmoid", &["noaux_tc"][..]),
        false => ("softmax", &["greedy", "group_limited_greedy"][..]),
    };
    draft.refuse("scoring_func", &[score.into()], "another score of experts than the class has")?;
    let known: Vec<_> = methods.iter().map(|&method| method.into()).collect();
    draft.refuse("topk_method", &known, "this choice of experts")?;
    if !is_v3 {
        draft.refuse("norm_topk_prob", &[false.into()], "weights that are divided by their sum")?;
        if method.unwrap_or("greedy") == "greedy" {
            draft.metadata.remove(&format!("{NAME}.expert_group_count"));
            draft.metadata.remove(&format!("{NAME}.expert_group_used_count"));
        }
    }
    draft.set("expert_gating_func", if is_v3 { 2u32 } else { 1 });
    Ok(())
}

/// YaRN's factor on scores, which this architecture has in place of the one on cosine and sine.
fn amplitude(draft: &mut Draft<'_>) -> Result<(), Error> {
    let all = draft.settings;
    let rope = all.part("rope_parameters").or_else(|| all.part("rope_scaling"));
    let Some(rope) = rope.filter(|rope| rope.0.get("factor").is_some()) else { return Ok(()) };
    let times = rope.number(&["mscale_all_dim"])?.unwrap_or(0.0);
    if times == 0.0 {
        return Ok(());
    }
    draft.set("rope.scaling.yarn_log_multiplier", 0.1 * times);
    // Beside the multiplier, the factor on cosine and sine counts as it is, not relative to YaRN's own.
    let factor = rope.number(&["factor"])?.ok_or_else(|| missing(&["factor"]))?;
    let key = format!("{NAME}.rope.scaling.attn_factor");
    let relative = draft.metadata.opt_f32(&key)?.unwrap_or(1.0);
    let whole = relative * (0.1 * factor.max(1.0).ln() + 1.0);
    draft.metadata.remove(&key);
    if (whole - 1.0).abs() > 1e-6 {
        draft.set("rope.scaling.attn_factor", whole);
    }
    Ok(())
}

fn config(metadata: &Metadata) -> Result<Config, Error> {
    let keys = Keys { metadata, architecture: NAME };
    let mut config = Config::read(&keys, Norm::Rms, Some(Pairs::Interleaved))?;
    let Mixer::Latent(latent) = config.layers[0].mixer else {
        return Err(keys.value(
            "attention.kv_lora_rank",
            "the rank of latent attention",
            "nothing",
        ));
    };
    let mut amplitude = 1.0;
    if let Some(multiplier) = keys.positive_or_zero("rope.scaling.yarn_log_multiplier")? {
        let whole = keys.positive_or_zero("rope.scaling.yarn_attn_factor")?;
        let given = whole.or(keys.positive_or_zero("rope.scaling.attn_factor")?).unwrap_or(1.0);
        let given = given * keys.attn_multiplier()?;
        let layers = config.layers.iter_mut().chain(&mut config.mtp);
        for rope in layers.filter_map(|layer| layer.rope.as_mut()) {
            // The key is a tenth of the checkpoint's `mscale_all_dim`.
            amplitude = rope.scaling.amplitude(10.0 * multiplier);
            *rope = Rotary { attn_factor: given / rope.scaling.magnitude(), ..*rope };
        }
    }
    config.temper(&keys)?;
    config.attention_scale = amplitude * amplitude / (latent.query_dim() as f32).sqrt();
    let mut experts = Experts::read(&keys, Weights::Scores)?;
    if let Some(experts) = &mut experts {
        *experts = experts.with_shared(&keys)?;
        let (vocab, layers) = GLM_FLASH;
        if config.vocab == vocab && layers.contains(&config.layers.len()) {
            *experts = experts.scored(&keys, Score::Sigmoid);
        }
        if let (Score::Softmax, Some(groups)) = (experts.score, &mut experts.groups) {
            groups.best = 1;
        }
    }
    config.with_experts(&keys, experts)
}

#[cfg(test)]
mod tests {
    use bilayer_gguf::Value;
    use bilayer_graph::{Groups, Op, Score, Temperature};
    use bilayer_quant::Type;

    use super::{ARCHITECTURE, Mixer, tiny::changed};
    use crate::{Latent, Outline, record};

    #[test]
    fn a_token_is_cached_once_for_all_heads() {
        let config = changed(&ARCHITECTURE, &[]).unwrap();
        let latent =
            Latent { query_rank: Some(48), rank: 32, plain_dim: 16, rotated_dim: 8, value_dim: 16 };
        assert!(config.layers.iter().all(|layer| layer.mixer == Mixer::Latent(latent)));
        let graph = record(&config, &Outline::new(Type::F32, &[])).unwrap();
        let stored: Vec<_> = graph.caches.iter().map(|cache| cache.stored_width()).collect();
        assert_eq!(stored, [40; 3]);
        let direct = changed(&ARCHITECTURE, &[("attention.q_lora_rank", 0u32.into())]).unwrap();
        let outline = Outline::new(Type::F32, &[]);
        record(&direct, &outline).unwrap();
        assert!(outline.tensors().iter().any(|(name, _)| name == "blk.0.attn_q.weight"));
    }

    /// m = 0.1 mscale_all_dim ln(4) + 1 squared on the scores, over the root of 24; nothing on cosine and sine.
    #[test]
    fn yarn_scales_the_scores() {
        for (multiplier, m) in [(0.1f32, 1.138_629_4_f32), (0.0707, 1.098_011)] {
            let key = [("rope.scaling.yarn_log_multiplier", multiplier.into())];
            let config = changed(&ARCHITECTURE, &key).unwrap();
            let expected = m * m / 24f32.sqrt();
            assert!((config.attention_scale - expected).abs() < 1e-6, "{}", config.attention_scale);
            assert!((config.layers[0].rope.unwrap().magnitude() - 1.0).abs() < 1e-6);
        }
        for name in ["attn_factor", "yarn_attn_factor", "attn_multiplier"] {
            let key = format!("rope.scaling.{name}");
            let config = changed(&ARCHITECTURE, &[(key.as_str(), 2f32.into())]).unwrap();
            assert!((config.layers[0].rope.unwrap().magnitude() - 2.0).abs() < 1e-6, "{name}");
        }
    }

    #[test]
    fn softmax_groups_count_by_their_best_expert() {
        let groups = |more: &[(&str, Value)]| {
            changed(&ARCHITECTURE, more).unwrap().experts.unwrap().groups.unwrap()
        };
        assert_eq!(groups(&[]), Groups { count: 4, used: 2, best: 2 });
        assert_eq!(groups(&[("expert_gating_func", 1u32.into())]).best, 1);
    }

    #[test]
    fn glm_flash_has_sigmoids_unless_its_file_says_otherwise() {
        let experts = |vocab: u32, layers: u32, score: u32| {
            let sizes = [("vocab_size", vocab.into()), ("block_count", layers.into())];
            let score = [("expert_gating_func", score.into())];
            changed(&ARCHITECTURE, &[&sizes[..], &score].concat()).unwrap().experts.unwrap()
        };
        for layers in [47, 48] {
            let found = experts(154_880, layers, 0);
            assert_eq!((found.score, found.groups.unwrap().best), (Score::Sigmoid, 2), "{layers}");
        }
        for (vocab, layers, score) in [(154_880, 47, 1), (154_880, 46, 0), (102_400, 47, 0)] {
            let found = experts(vocab, layers, score);
            assert_eq!(found.score, Score::Softmax, "{vocab} {layers} {score}");
            assert_eq!(found.groups.unwrap().best, 1);
        }
    }

    #[test]
    fn queries_grow_by_the_length_or_else_by_the_original_context() {
        let scale = ("attention.temperature_scale", 0.1f32.into());
        let length = ("attention.temperature_length", 32u32.into());
        for (keys, length) in [(vec![scale.clone()], 64), (vec![scale, length], 32)] {
            let config = changed(&ARCHITECTURE, &keys).unwrap();
            let expected = Temperature { scale: 0.1, length, offset: 0 };
            assert!(config.layers.iter().all(|layer| layer.temperature == Some(expected)));
            let graph = record(&config, &Outline::new(Type::F32, &[])).unwrap();
            let grows =
                |op: &Op| matches!(op, Op::Scale { temperature: Some(by), .. } if *by == expected);
            let growing = graph.nodes.iter().filter(|node| grows(&node.op)).count();
            assert_eq!(growing, config.layers.len());
        }
        let none = changed(&ARCHITECTURE, &[]).unwrap();
        assert!(none.layers.iter().all(|layer| layer.temperature.is_none()));
    }

    #[test]
    fn odd_latent_keys_are_refused_by_name() {
        let cases = [
            ("attention.kv_lora_rank", 0u32),
            ("attention.key_length_mla", 8),
            ("attention.value_length_mla", 0),
            ("attention.key_length", 41),
            ("attention.value_length", 16),
            ("attention.head_count_kv", 2),
        ];
        for (name, value) in cases {
            let error = changed(&ARCHITECTURE, &[(name, value.into())]).unwrap_err().to_string();
            assert!(error.contains(&format!("deepseek2.{name}")), "{name}: {error}");
        }
    }

    #[test]
    fn early_files_have_the_lengths_of_whole_heads() {
        let mut early = (ARCHITECTURE.tiny)();
        for name in ["key_length", "value_length"] {
            let length = early.remove(&format!("deepseek2.attention.{name}_mla")).unwrap();
            early.set(&format!("deepseek2.attention.{name}"), length);
        }
        early.set("deepseek2.attention.head_count_kv", 4u32);
        let expected = (ARCHITECTURE.config)(&(ARCHITECTURE.tiny)()).unwrap();
        assert_eq!((ARCHITECTURE.config)(&early).unwrap(), expected);
    }
}
